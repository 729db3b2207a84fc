"""Decisions on models with horizons, illegal actions and unknown rewards: against exact recursions."""

import json
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains.fitted import FittedReference, HingeRidge
from smoothplan.chains.grid import GridReference
from smoothplan.chains.least_squares import LeastSquaresReference
from smoothplan.chains.reference import values_of
from smoothplan.decide.policies import full_horizon
from smoothplan.models.model import ModelError, States
from smoothplan.theory.backups import HardMax

SEATS, NIGHTS = 4, 12
FARES = np.array([0.0, 50.0, 100.0, 200.0])
CHANCES = np.array([0.3, 0.4, 0.2, 0.1])


def sell(states: States, actions: Ints, rng: np.random.Generator) -> Any:
    """Seats left, the fare that is asked for, nights left, and a number that makes all states different."""
    seats, fare = states[:, 0], states[:, 1].astype(int)
    sold = (actions == 1) & allowed(states)[:, 1]
    reward = np.where(sold, FARES[fare], np.where(actions == 1, 1e6, 0.0))  # a lure, if it is not legal
    asked = (rng.random(len(states))[:, None] >= np.cumsum(CHANCES)).sum(axis=1)
    nights = states[:, 2] - 1.0
    return np.stack([seats - sold, asked, nights, rng.random(len(states))], axis=1), reward, nights <= 0.0


def allowed(states: States) -> Any:
    """Rejecting is always possible; accepting needs a seat and a customer."""
    return np.stack([np.ones(len(states), dtype=bool), (states[:, 0] > 0) & (states[:, 1] > 0)], axis=1)


def season(**changes: Any) -> sp.VectorModel:
    declared: dict[str, Any] = {
        "actions": ["reject", "accept"],
        "discount": 1.0,
        "horizon": NIGHTS,
        "reward_range": (0, 200),
        "legal": allowed,
        "initial_state": [SEATS, 1.0, NIGHTS, 0.5],
    }
    return sp.VectorModel(sell, **declared | changes)


@cache
def exact_q() -> Floats:
    """Action values [nights left, seats, fare, K] by recursion; −∞ if not legal."""
    q = np.zeros((NIGHTS + 1, SEATS + 1, len(FARES), 2))
    values = np.zeros(SEATS + 1)  # of the next night, averaged over what is asked for
    for night in range(1, NIGHTS + 1):
        q[night, :, :, 0] = values[:, None]
        q[night, :, :, 1] = -np.inf
        q[night, 1:, 1:, 1] = FARES[1:] + values[:-1, None]
        values = q[night].max(axis=2) @ CHANCES
    return q


def exact(states: States) -> Floats:
    seats, fares, nights = states[:, :3].astype(int).T
    return np.asarray(exact_q()[nights, seats, fares])


OPTIMAL = sp.CriticReference(exact)


def test_a_season_at_a_discount_of_1_is_worth_what_the_recursion_says() -> None:
    """Six action values within five standard errors, a false alarm of about 1e-5; returns run to the end."""
    model = season()
    for start in ([4, 1, 12, 0.5], [2, 2, 5, 0.5], [1, 1, 2, 0.5]):
        decision = sp.decide(model, np.array(start, dtype=float), calls=30_000, seed=1, reference=OPTIMAL)
        truth = exact(np.array([start]))[0]
        assert decision.action == truth.argmax()
        assert (np.abs(decision.q - truth) <= 5.0 * decision.q_errors).all()
        assert (decision.q_errors < 0.05 * truth.max()).all()
        assert "beyond" not in decision.method
        assert not any("cut" in note for note in decision.notes)


@pytest.mark.parametrize("calls", [3_000, 30_000])
def test_decisions_of_a_season_lose_little(calls: int) -> None:
    """The most that any of nine decisions may lose is 6 % of the fare that is asked for."""
    model, lost = season(), []
    for seed, start in enumerate([[4, 1, 12, 0.5], [2, 2, 5, 0.5], [1, 1, 3, 0.5]] * 3):
        decision = sp.decide(model, np.array(start, dtype=float), calls=calls, seed=seed)
        assert decision.calls <= calls
        assert decision.action is not None
        truth = exact(np.array([start]))[0]
        lost.append(truth.max() - truth[decision.action])
    assert max(lost) <= 3.0


@pytest.mark.parametrize("kind", ["fit", "least squares", "grid", "table"])
def test_references_look_as_far_as_the_horizon(kind: str) -> None:
    """Forty steps pay at least 1 each at a discount of 1; every reference claims about as much."""

    def step(states: Any, actions: Any, rng: Any) -> Any:
        following = states.copy()
        rewards, ends = np.empty(len(states)), np.empty(len(states), dtype=np.bool_)
        for row in range(len(states)):
            following[row, 0] -= 1.0
            rewards[row] = 1.0 * actions[row] + 0.01 * following[row, 0]
            ends[row] = following[row, 0] <= 0.0
        return following, rewards, ends

    steps = 40
    declared: dict[str, Any] = {"actions": 2, "discount": 1.0, "horizon": steps, "reward_range": (0, 2)}
    make: Any = sp.JitModel if kind == "grid" else sp.VectorModel
    model = make(step, **declared, max_successors=1, reward_kind="deterministic", initial_state=np.array([1.0 * steps]))
    if kind == "grid":
        reference: Any = GridReference.build(model, HardMax(), max_calls=30_000)
    else:
        made: dict[str, Callable[[], Any]] = {
            "fit": lambda: FittedReference(model, HardMax()),
            "least squares": lambda: LeastSquaresReference(model),
            "table": lambda: sp.SharedReference(model, HardMax()),
        }
        reference = made[kind]()
        reference.improve(3_000)
    left = np.array([steps, steps // 2, 1])
    truth = left + 0.01 * (left - 1) * left / 2
    found = values_of(reference.q, left[:, None].astype(float), model)
    np.testing.assert_allclose(found.max(axis=1), truth, atol=0.12 * truth[0])
    assert (found[:, 1] - found[:, 0] > 0.3).all()


def test_returns_are_no_longer_than_the_horizon() -> None:
    assert full_horizon(season()) == NIGHTS
    assert full_horizon(season(discount=0.5)) == 6
    assert full_horizon(season(discount=0.999)) == NIGHTS
    assert full_horizon(season(horizon=10**9, discount=0.9)) == full_horizon(season(horizon=None, discount=0.9)) == 38


@pytest.mark.parametrize(
    "call",
    [
        lambda model: sp.decide(model, calls=5_000, reference=OPTIMAL),
        lambda model: sp.decide(model, calls=5_000),
        lambda model: FittedReference(model, HardMax()).improve(4_000),
        lambda model: LeastSquaresReference(model).improve(4_000),
    ],
)
def test_an_episode_beyond_the_horizon_is_named(call: Callable[[Any], Any]) -> None:
    with pytest.raises(ModelError, match=r"horizon=5 is exceeded: an episode has not ended after 5 steps, at state \["):
        call(season(horizon=5))


# Legal actions


def test_illegal_actions_are_never_tried_and_stand_as_dashes() -> None:
    """A simulator that is asked for an illegal one raises; here each would pay a million."""
    decision = sp.decide(season(), np.array([0.0, 2.0, 5.0, 0.5]), calls=6_000, seed=2)
    assert (decision.action, decision.returns[1]) == (0, 0)
    for values in (decision.q, decision.q_errors, decision.differences, decision.difference_errors):
        assert np.isnan(values).tolist() == [False, True]
    assert "accept  –, not legal here" in decision.summary()
    found = json.loads(decision.to_json())
    assert (found["q"][1], found["q_errors"][1], found["names"]) == (None, None, ["reject", "accept"])
    assert not decision.warnings
    model = season()
    with sp.Agent(model, calls=300, reference_calls=3_000) as agent:
        episode = agent.play(max_steps=20)
    assert (episode.steps, episode.end) == (NIGHTS, "terminated")
    assert allowed(episode.states)[np.arange(NIGHTS), episode.actions].all()


def shop(states: States, actions: Ints, rng: np.random.Generator) -> Any:
    """A walk on the line, where it pays to be at 0."""
    moved = states + 0.3 * (actions[:, None] - 1.0) + 0.1 * rng.standard_normal(states.shape)
    return moved, np.exp(-(moved[:, 0] ** 2))


def test_a_model_without_the_illegal_action_gives_the_same_bits() -> None:
    declared: dict[str, Any] = {"discount": 0.9, "reward_range": (0, 1), "initial_state": np.array([0.4])}
    small = sp.VectorModel(shop, actions=3, **declared)
    large = sp.VectorModel(
        shop, actions=5, legal=lambda states: np.tile(np.arange(5) < 3, (len(states), 1)), **declared
    )
    critic = sp.CriticReference(lambda states: -np.abs(states + 0.3 * (np.arange(3) - 1.0)))
    larger = sp.CriticReference(lambda states: np.pad(critic.q(states), ((0, 0), (0, 2)), constant_values=np.nan))
    one = sp.decide(small, calls=20_000, seed=3, reference=critic)
    other = sp.decide(large, calls=20_000, seed=3, reference=larger)
    assert (one.action, one.regret, one.calls) == (other.action, other.regret, other.calls)
    for name in ("q", "q_errors", "differences", "difference_errors", "returns"):
        assert getattr(one, name).tolist() == getattr(other, name)[:3].tolist(), name
        assert not np.nan_to_num(getattr(other, name)[3:]).any()


@pytest.mark.parametrize("regressor", [None, "nearest"])
def test_fits_take_targets_of_legal_actions_only(regressor: str | None) -> None:
    """A fit with NaN in a column is the fit of the other rows; no column depends on the others."""
    from smoothplan.chains.fitted import _Copies

    class Nearest:
        def fit(self, points: Floats, values: Floats) -> None:
            self.points, self.values = points, values

        def predict(self, points: Floats) -> Floats:
            return np.asarray(self.values[np.abs(points - self.points[:, 0]).argmin(axis=1)])

    points = np.linspace(-1.0, 1.0, 200)[:, None]
    targets = np.stack([points[:, 0], -3.0 * points[:, 0], 0.0 * points[:, 0]], axis=1)
    targets[:120, 1], targets[:, 2] = np.nan, np.nan
    ridge: Any = HingeRidge(points, 0) if regressor is None else _Copies(Nearest(), points)
    variant = HingeRidge.variants[2]
    found = ridge.function.predict(ridge.function.features(points), ridge.fit(targets, variant))
    assert np.abs(found[:, 0] - points[:, 0]).max() < 0.06
    assert np.abs(found[120:, 1] + 3.0 * points[120:, 0]).max() < 0.15
    assert not found[:, 2].any()


@pytest.mark.parametrize("kind", ["fit", "least squares"])
def test_references_learn_with_illegal_actions(kind: str) -> None:
    """Their best legal action loses at most 25 of a fare of 100 or so, on average over states."""
    model = season()
    reference: Any = LeastSquaresReference(model) if kind == "least squares" else FittedReference(model, HardMax())
    reference.improve(30_000)
    rng = np.random.default_rng(0)
    states = np.stack(
        [rng.integers(0, 5, 500), rng.integers(0, 4, 500), rng.integers(1, 13, 500), rng.random(500)], axis=1
    )
    truth = exact(states)
    lost = truth.max(axis=1) - truth[np.arange(500), values_of(reference.q, states, model).argmax(axis=1)]
    assert lost.mean() < 6.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sp.decide(season(), calls=2_000, policy=lambda states: np.ones(len(states), dtype=int)),
            "policy must return legal actions, got accept at state [",
        ),
        (
            lambda: sp.decide(season(), calls=9, reference=sp.CriticReference(lambda s: np.full((len(s), 2), np.nan))),
            "the reference must be finite, got nan (state [4.0, 1.0, 12.0, 0.5], action reject)",
        ),
        (
            lambda: GridReference.build(season(), HardMax(), low=[0.0] * 4, high=[1.0] * 4),
            "model must have the same actions everywhere for a grid, got one with legal=",
        ),
        (
            lambda: sp.SharedReference(season(reward_range=None), HardMax()),
            "reward_range must be declared for a SharedReference, got (-inf, inf)",
        ),
        (
            lambda: sp.plan_unregularised(season(reward_range=None), bias=0.1),
            "reward_range must be declared for",
        ),
        (
            lambda: sp.plan(sp.MDPGapE(epsilon=0.1), season(reward_range=None)),
            "reward_range must be declared for a search by bounds, got (-inf, inf)",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# Rewards whose range is not known


def test_without_a_range_of_rewards_decisions_are_estimates_and_say_so() -> None:
    model, unknown = season(), season(reward_range=None)
    known = sp.decide(model, calls=20_000, seed=5, reference=OPTIMAL)
    decision = sp.decide(unknown, calls=20_000, seed=5, reference=OPTIMAL)
    assert decision.action == known.action
    assert decision.q.tolist() == known.q.tolist()  # nothing depends on the range but what is proved
    assert (decision.gap, decision.certified, decision.q_intervals) == (math.inf, False, None)
    assert sum("no range of rewards" in sentence for sentence in (*decision.notes, *decision.warnings)) == 1
    assert not any("no range of rewards" in sentence for sentence in known.notes)
    assert not re.search(r"\b(nan|inf)\b", decision.summary())
    found = json.loads(decision.to_json())
    assert (found["epsilon"], found["gap"]) == (None, None)
    alone = sp.decide(unknown, calls=20_000, seed=5)
    assert alone.action == known.action
    assert not re.search(r"\b(nan|inf)\b", alone.summary())


@pytest.mark.parametrize("kind", ["labels", "numbers", "compiled"])
def test_every_kind_of_state_is_decided_without_a_range_of_rewards(kind: str) -> None:
    def swim(states: Any, actions: Ints, rng: np.random.Generator) -> Any:
        """Six places of a river; upstream pays 1, and downstream pays 0.05 at the other end."""
        place = states["place"] if kind == "labels" else states
        moved = np.clip(place + np.where((actions == 1) & (rng.random(len(place)) < 0.7), 1, -1), 0, 5)
        reward = np.where((place == 5) & (actions == 1), 1.0, np.where((place == 0) & (actions == 0), 0.05, 0.0))
        following = states.copy()
        if kind == "labels":
            following["place"] = moved
        return following if kind == "labels" else moved.astype(states.dtype), reward

    if kind == "compiled":
        model: Any = sp.models.mountain_car()
        model = sp.JitModel(model.step, actions=3, discount=0.99, initial_state=model.initial_state)
    else:
        start = np.zeros((), dtype=[("place", np.int64)]) if kind == "labels" else np.array(0)
        model = sp.VectorModel(swim, actions=2, discount=0.95, initial_state=start)
    decision = sp.decide(model, calls=20_000, seed=1)
    assert np.isfinite(decision.q).all()
    assert np.isfinite(decision.q_errors).all()
    assert not re.search(r"\b(nan|inf)\b", decision.summary())
    if kind != "compiled":
        assert decision.action == 1
        assert "table" in decision.method


def test_outcomes_that_are_alike_leave_a_doubt_of_their_size() -> None:
    """Returns of 3 that are all alike may still miss an outcome: with n of them, the error is 3/n."""
    model = sp.VectorModel(
        lambda states, actions, rng: (states, np.full(len(states), 3.0), np.ones(len(states), dtype=bool)),
        actions=2,
        discount=0.9,
        initial_state=np.array([0.0]),
    )
    decision = sp.decide(model, calls=1_000, reference=sp.CriticReference(lambda states: np.zeros((len(states), 2))))
    np.testing.assert_allclose(decision.q_errors, 3.0 / decision.returns)


@pytest.mark.parametrize("prize", [100.0, -1e4])
@pytest.mark.parametrize("season", [False, True])
def test_a_reward_that_no_walk_has_met_does_not_end_a_decision(prize: float, season: bool) -> None:
    """Twelve places, where a random walk seldom goes beyond the fifth; at the end of them is a prize or a pit."""

    def walk(states: Any, actions: Ints, rng: np.random.Generator) -> Any:
        moved = np.where((actions == 1) & (rng.random(len(states)) < 0.95), states + 1, np.maximum(states - 2, 0))
        over = moved == 12
        return moved, np.where(over, prize, -0.1 * (actions == 0)), over

    model: Any = sp.VectorModel(walk, actions=2, discount=0.99, initial_state=np.array(0))
    if season:
        model = sp.models.finite_horizon(model, 60, discount=1.0)
    for seed in range(3):
        decision = sp.decide(model, calls=30_000, seed=seed)
        assert decision.action == (1 if prize > 0 else decision.action)
        assert season or "table" in decision.method or "SharedReference" in decision.method
        assert (decision.gap, decision.certified) == (math.inf, False)
    reference = sp.SharedReference(model, sp.HardMax(), assumed=(-0.2, 0.1), seed=1)
    reference.improve(30_000)
    assert reference.calls == 30_000
    assert reference.assumed is not None
    assert reference.assumed[0] <= min(prize, -0.1)
    assert reference.assumed[1] >= prize
    start = np.asarray(model.initial_state)[None]
    assert reference.q(start).max() > (0.5 * prize if prize > 0 else -10.0)
    again = sp.SharedReference(model, sp.HardMax(), assumed=(-0.2, 0.1))
    again.restore(reference.saved())
    assert (again.assumed, again.q(start).tolist()) == (reference.assumed, reference.q(start).tolist())


def test_an_agent_of_unknown_rewards_goes_on_after_it_was_saved(tmp_path: Any) -> None:
    def swim(states: Any, actions: Ints, rng: np.random.Generator) -> Any:
        moved = np.clip(states + np.where((actions == 1) & (rng.random(len(states)) < 0.7), 1, -1), 0, 5)
        return moved, np.where((states == 5) & (actions == 1), 1.0, 0.0)

    model = sp.VectorModel(swim, actions=2, discount=0.9, initial_state=np.array(0))
    agent = sp.Agent(model, calls=200, reference_calls=2_000)
    agent.act(0)
    agent.save(tmp_path / "swim.npz")
    again = sp.Agent.load(tmp_path / "swim.npz", model, calls=200)
    assert [agent.decide(place).q.tolist() for place in (1, 4)] == [again.decide(place).q.tolist() for place in (1, 4)]
