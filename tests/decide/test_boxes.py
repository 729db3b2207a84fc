"""Actions that are numbers or vectors of a box: decisions, agents, and the geometry of discretised actions."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.cli import main
from smoothplan.decide.boxes import coarse_points
from smoothplan.models.model import States
from smoothplan.run.records import GapDetails
from tests.common import Counter

ONCE: dict[str, Any] = {"discount": 0.9, "initial_state": 0.0}


def rough(states: States, actions: Floats, rng: np.random.Generator) -> Floats:
    """Noise of standard deviation 0.1 that close actions do not share."""
    phases = 60.0 * actions.reshape(len(actions), -1).sum(axis=1)
    noise = 0.1 * rng.standard_normal((2, len(actions)))
    return np.asarray(noise[0] * np.cos(phases) + noise[1] * np.sin(phases))


def once(gain: Any, low: Any = 0.0, high: Any = 1.0, **declared: Any) -> sp.VectorModel:
    """A single choice, with a noisy gain."""

    def step(states: States, actions: Floats, rng: np.random.Generator) -> tuple[States, Floats, Any]:
        return states, gain(actions) + rough(states, actions, rng), np.ones(len(states), dtype=np.bool_)

    return sp.VectorModel(step, actions=sp.Box(low, high), **ONCE | declared)


def peak(actions: Floats) -> Floats:
    """Best at 0.44, and far from every coarse action."""
    return -np.abs(actions - 0.44)


def hill(actions: Floats) -> Floats:
    """Best at (0.3, -0.2)."""
    return -np.asarray(((actions - [0.3, -0.2]) ** 2).sum(axis=1))


def regulator(**changes: Any) -> sp.VectorModel:
    """A point on a line that is pushed to 0, at a cost."""

    def step(states: States, actions: Floats, rng: np.random.Generator) -> tuple[States, Floats]:
        moved = np.clip(states + actions + 0.1 * rng.standard_normal(len(states)), -3.0, 3.0)
        return moved, -(states**2) - 0.3 * actions**2

    declared: dict[str, Any] = {"discount": 0.9, "initial_state": 1.3, "terminates": False, "reward_range": (-11, 0)}
    return sp.VectorModel(step, actions=sp.Box(-2.0, 2.0), **declared | changes)


# Of eight seeds the largest losses are 0.0025, 0, 0.015 and 0.015; coarse actions lose 0.06, 0, 0.13, 0.13.
@pytest.mark.parametrize(
    ("model", "gain", "top", "loss"),
    [
        (once(peak), peak, 0.0, 0.01),
        (once(lambda actions: actions**2), lambda actions: actions**2, 1.0, 0.0),  # at the edge
        (once(hill, [-1, -1], [1, 1]), hill, 0.0, 0.05),
        (once(hill, [-1, -1], [1, 1], reward_range=(-4, 1)), hill, 0.0, 0.05),
    ],
)
def test_decisions_are_close_to_the_best_action(model: Any, gain: Any, top: float, loss: float) -> None:
    for seed in range(2):
        decision = sp.decide(model, calls=20_000, seed=seed)
        assert decision.action in model.actions.required("action", [decision.action])
        assert top - gain(np.array([decision.action]))[0] <= loss
        assert decision.calls <= 20_000


def test_a_regulator_pushes_as_riccati_says() -> None:
    value = 1.0
    for _ in range(200):
        value = 1.0 + 0.9 * value - (0.9 * value) ** 2 / (0.3 + 0.9 * value)
    best = -0.9 * value / (0.3 + 0.9 * value) * 1.3
    assert sp.decide(regulator(), calls=20_000, seed=0).action == pytest.approx(best, abs=0.15)


def test_the_race_goes_on_with_closer_actions_and_keeps_its_returns() -> None:
    decision = sp.decide(once(peak), calls=20_000, seed=1)
    points, chosen = decision.actions, decision.place
    assert points is not None
    assert chosen is not None
    assert decision.samples is not None
    assert points[:9].tolist() == coarse_points(sp.Box(0, 1)).tolist() == np.linspace(0, 1, 9).tolist()
    assert isinstance(decision.action, float)
    assert points[chosen] == decision.action
    assert decision.names[chosen] == f"{decision.action:.4g}"
    assert len(decision.names) == len(points)
    assert f"{len(points)} actions of the box were compared" in decision.method
    # Every later window lies around what was left, so most actions are close to the best one.
    assert np.median(np.abs(points - 0.44)) < 0.1
    sampled = ~np.isnan(decision.samples)
    assert sampled.any(axis=0).all()
    assert not sampled.all(axis=1).any()
    # Actions of different rounds are compared through those that took part in both.
    behind = peak(points) - peak(np.array([decision.action]))
    assert (np.abs(decision.differences - behind) <= 5.0 * decision.difference_errors).all()  # 60 actions: 3e-5


def test_links_add_up() -> None:
    model = once(peak)
    decision = sp.decide(model, calls=20_000, seed=1)
    found = decision.samples
    assert found is not None
    apart = ~np.isnan(found[:, 0]) & ~np.isnan(found[:, -1])
    assert not apart.any()  # so the difference of the first and the last action is a sum
    assert np.isfinite(decision.difference_errors).all()
    assert decision.difference_errors[decision.place or 0] == 0.0


def test_decisions_repeat_for_any_number_of_workers() -> None:
    model = sp.VectorModel.from_scalar(scalar, actions=sp.Box(0.0, 1.0), **ONCE)
    first, again = (sp.decide(model, calls=3_000, seed=3, workers=each) for each in (1, 2))
    assert first.action == again.action
    assert first.calls == again.calls
    np.testing.assert_array_equal(first.samples, again.samples)
    assert sp.decide(model, calls=3_000, seed=4).q.tolist() != first.q.tolist()


def scalar(state: float, action: float, rng: np.random.Generator) -> tuple[float, float, bool]:
    """A single choice, one state at a time."""
    return state, -abs(action - 0.6) + 0.1 * rng.standard_normal(), True


@pytest.mark.parametrize("calls", [1, 10, 150, 5_000])
def test_limits_on_calls_are_kept_exactly(calls: int) -> None:
    counter = Counter(once(peak))
    model = sp.VectorModel(counter, actions=sp.Box(0.0, 1.0), **ONCE)
    decision = sp.decide(model, calls=calls, seed=0)
    assert decision.calls == counter.calls <= calls
    assert 0.0 <= decision.action <= 1.0
    assert bool(decision.warnings) or calls >= 150


def test_limits_on_time_are_kept_roughly() -> None:
    sp.decide(once(peak), calls=2_000)  # imports
    started = time.perf_counter()
    decision = sp.decide(once(peak), seconds=0.5)
    assert time.perf_counter() - started < 3.0
    assert abs(decision.action - 0.44) < 0.05
    assert decision.actions is not None
    assert len(decision.actions) > 9


def test_a_season_of_prices_looks_at_the_stock_that_is_left() -> None:
    def step(states: States, actions: Floats, rng: np.random.Generator) -> tuple[States, Floats]:
        sold = np.minimum(rng.poisson(8.0 * np.exp(-actions / 4.0)), states[:, 0])
        return np.stack([states[:, 0] - sold], axis=1), actions * sold

    shop = sp.VectorModel(step, actions=sp.Box(2.0, 10.0), discount=0.9, initial_state=np.array([20]), terminates=False)
    season = sp.models.finite_horizon(shop, 4, discount=1.0)
    few, many = (sp.decide(season, np.array([stock, 4]), calls=10_000, seed=0) for stock in (3, 40))
    assert few.action > many.action + 2.0
    assert many.action == pytest.approx(4.0, abs=1.0)  # enough for all: the price of the largest revenue
    assert "the model declares no range of rewards" in " ".join(many.notes)


def test_what_is_reported(tmp_path: Path) -> None:
    decision = sp.decide(once(peak), calls=5_000, seed=0)
    assert decision.actions is not None
    text = decision.summary()
    assert f"action {decision.action:.4g}: " in text
    assert f"→ {decision.action:.4g}" in text
    lines = [line.split()[0] for line in text.replace("→", " ").splitlines() if line.startswith("   ")]
    assert lines == sorted(lines, key=float)
    assert len(lines) <= 12
    saved = json.loads(decision.to_json())
    assert saved["action"] == decision.action
    assert saved["actions"] == decision.actions.tolist()
    pytest.importorskip("plotly")
    chart = decision.figure()
    low, high, curve, star = chart.data
    assert list(curve.x) == sorted(decision.actions)
    assert (np.array(low.y) <= curve.y).all()
    assert (np.array(high.y) >= curve.y).all()
    assert star.x == (decision.action,)
    assert star.y[0] in curve.y
    plane = sp.decide(once(hill, [-1, -1], [1, 1]), calls=5_000, seed=0)
    assert plane.action.shape == (2,)
    assert json.loads(plane.to_json())["action"] == plane.action.tolist()
    assert f"→ {', '.join(f'{side:.4g}' for side in plane.action)}" in plane.summary()
    assert plane.figure().data


def test_agents_act_on_a_box(tmp_path: Path) -> None:
    model = regulator()
    agent = sp.Agent(model, calls=600, reference_calls=5_000, seed=2)
    assert isinstance(agent.act(1.3), float)
    episode = agent.play(max_steps=5)
    assert episode.actions.dtype == np.float64
    assert episode.actions.shape == (5,)
    assert episode.score > -5.0  # without pushing it is -8.5
    agent.save(tmp_path / "agent")
    again = sp.Agent.load(tmp_path / "agent", model, calls=600)
    assert again.act(0.5) == agent.act(0.5)
    with pytest.raises(ValueError, match=re.escape("with 9 actions and discount 0.9, got 9 actions and discount 0.8")):
        sp.Agent.load(tmp_path / "agent", regulator(discount=0.8))
    plane = sp.Agent(once(hill, [-1, -1], [1, 1]), calls=600, reference_calls=500)
    assert plane.play(max_steps=3).actions.shape == (1, 2)


@pytest.mark.filterwarnings("ignore")
def test_pendulums_of_gymnasium_are_played() -> None:
    outcome = sp.act("Pendulum-v1", calls=60, reference_calls=500, max_steps=3)
    assert outcome.episodes[0].actions.shape == (3, 1)
    assert (np.abs(outcome.episodes[0].actions) <= 2.0).all()


def constant(states: States) -> Any:
    return np.zeros(len(states))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sp.Box(-np.inf, 1.0), "low must be finite, so that actions can be compared, got -inf"),
        (lambda: sp.Box(2.0, 1.0), "low must be below high, got 2.0 and 1.0"),
        (lambda: sp.decide(once(peak), policy=constant), "policy must be None if actions are a box"),
        (lambda: sp.Agent(once(peak), reference=sp.CriticReference(constant)), "reference must be None if actions are"),
        (lambda: once(peak, legal=lambda states: np.ones((len(states), 9), bool)), "legal"),
        (lambda: sp.plan(sp.OTGapE(sp.HardMax(), 0.1, 0.1), once(peak)), "model must have finitely many actions here"),
        (lambda: sp.plan(sp.UCT(), once(peak)), "model must have finitely many actions here, got Box(0.0, 1.0)"),
        (lambda: sp.Oracle(once(peak), 0).sample(np.zeros(1), np.array([1.5])), "in Box(0.0, 1.0), got 1.5"),
    ],
)
def test_refusals_name_the_argument(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_distances_between_actions_are_costs_of_transport() -> None:
    def push(states: States, forces: Floats, rng: np.random.Generator) -> tuple[States, Floats]:
        moved = np.clip(np.round(states + forces + rng.integers(-1, 2, len(states))), -2.0, 2.0)
        return moved, -np.abs(states) - 0.3 * np.abs(forces)

    cart = sp.VectorModel(
        push, actions=sp.Box(-1.0, 1.0), discount=0.5, initial_state=2.0, reward_range=(-2.3, 0.0), terminates=False
    )
    model, cost = sp.models.discretise(cart, 3)
    assert cost.tolist() == [[0.0, 0.5, 1.0], [0.5, 0.0, 0.5], [1.0, 0.5, 0.0]]
    values, places = np.zeros(5), np.arange(-2, 3)
    for _ in range(60):  # values of the five places
        moved = np.clip(places[:, None, None] + np.arange(-1, 2)[:, None] + np.arange(-1, 2), -2, 2)
        q = -np.abs(places)[:, None] - 0.3 * np.abs(np.arange(-1, 2)) + 0.5 * values[moved + 2].mean(axis=2)
        values = q.max(axis=1)
    backup = sp.OptimalTransport(cost=cost, tau=0.05, lam=1.0)
    result = sp.plan(sp.OTGapE(backup, epsilon=0.2, delta=1e-6), model, max_calls=100_000, seed=0)
    assert isinstance(result.details, GapDetails)
    assert result.details.gap <= 0.2
    assert result.action is not None
    assert values[4] - q[4, result.action] <= result.details.gap
    assert result.interval[0] <= values[4] <= result.interval[1]


def test_the_command_line_decides_on_a_box(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "prices.py").write_text(
        """import smoothplan as sp
step = lambda s, a, rng: (s, a * rng.poisson(12 - a))
model = sp.VectorModel(step, actions=sp.Box(1, 11), discount=0, initial_state=0)
"""
    )
    own = f"{tmp_path / 'prices.py'}:model"
    assert main(["decide", "--simulator", own, "--calls", "3000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["action"] == pytest.approx(6.0, abs=1.3)
    assert main(["plan", "--simulator", own]) != 0
    assert "model must have finitely many actions here, got Box(1.0, 11.0)" in capsys.readouterr().err
