"""Searches by bounds where episodes end and where actions are illegal: proofs against exact solutions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.bounds.gape import SearchRun
from smoothplan.models import finite_horizon, garnet
from smoothplan.theory import curvature, exact
from smoothplan.theory.backups import Backup
from tests.common import alone, identified, started, vectorised
from tests.models.test_derived import BACKUPS, masked_garnet, with_an_illegal_action

STEPS = 4


def season(discount: float = 1.0) -> sp.TabularModel:
    """A table with illegal actions, cut off after some steps."""
    model: Any = finite_horizon(masked_garnet(), STEPS, discount=discount)
    return model  # type: ignore[no-any-return]


def unrolled(discount: float = 1.0) -> sp.TabularModel:
    """The same without a word about where it comes from: every state has its own samples."""
    staged = season(discount)
    parts = staged.probabilities, staged.successors, staged.rewards
    declared: dict[str, Any] = {
        "reward_kind": staged.reward_kind,
        "reward_range": staged.reward_range,
        "terminal": staged.terminal,
    }
    return sp.TabularModel(*parts, **declared, discount=discount, horizon=STEPS, legal=staged.legal)


def proofs_hold(search: SearchRun, model: sp.TabularModel, backup: Backup) -> bool:
    """Whether all intervals of a search contain the exact values, at every state and stage."""
    solution, graph, rules = exact.solve(model, backup), search.explorer.graph, search.explorer.rules
    states, slack = np.asarray(search.explorer.states), 1e-9
    if not rules.endless:  # state s at stage h is number h·S + s
        states = (states[:, None] + 7 * (STEPS - rules.stages + np.arange(rules.stages))).reshape(-1)
    values, q = solution.values[states], solution.q[states].reshape(-1)
    low, high, q_low, q_high = (
        part[: len(exact_values)]
        for part, exact_values in ((graph.low, values), (graph.high, values), (graph.q_low, q), (graph.q_high, q))
    )
    inside = (low <= values + slack) & (values <= high + slack)
    return bool(inside.all() and (q_low <= q + slack).all() and (q <= q_high + slack).all())


@pytest.mark.parametrize("backup", BACKUPS, ids=lambda backup: type(backup).__name__)
@pytest.mark.parametrize("made", [season, unrolled])
@pytest.mark.parametrize("simulator", [False, True])
def test_proofs_hold_at_every_state_and_stage(
    backup: Backup, made: Callable[..., sp.TabularModel], simulator: bool
) -> None:
    """With δ = 1e-4 for each search, a false alarm has a probability of 0.2 % per case; they are far rarer."""
    model = made(1.0)
    given: Any = vectorised(model) if simulator and made is unrolled else model
    if simulator and made is season:
        base = vectorised(masked_garnet())
        given = finite_horizon(base, STEPS, discount=1.0)
    for seed in range(5 if simulator else 20):
        start = np.array([0, STEPS]) if simulator and made is season else 0
        search = started(sp.OTGapE(backup, 0.0, 1e-4), given, seed=seed, state=start)
        for until in (60, 400, 2_000):
            while search.calls < until and not search.explore(until, until, alone(search.explorer)):
                pass
            assert proofs_hold(search, model, backup), (seed, until)
        low, high = search.interval
        assert high - low < 0.8 * np.ptp(curvature.value_interval(model, backup))  # they are not vacuous


def test_samples_of_a_season_are_pooled() -> None:
    """The gap after as many calls, with the samples of all stages and without."""
    gaps = [
        identified(sp.plan(sp.OTGapE(sp.HardMax(), 0.0), model, 0, max_calls=5_000, seed=1)).gap
        for model in (season(), unrolled())
    ]
    assert gaps[0] < 0.7 * gaps[1]


@pytest.mark.parametrize("model", [season(), unrolled()])
def test_a_search_of_episodes_converges(model: sp.TabularModel) -> None:
    for planner in (sp.OTGapE(sp.LogSumExp(0.1), 0.3), sp.MDPGapE(epsilon=0.3)):
        result = sp.plan(planner, model, 0, seed=3)
        solution = exact.solve(model, planner.backup)
        assert result.status == "converged"
        assert solution.q[0].max() - solution.q[0, result.action or 0] <= 0.3
        again = sp.plan(planner, model, 0, seed=3, workers=2)
        assert (again.interval, again.calls) == (result.interval, result.calls)


def test_an_illegal_action_changes_nothing() -> None:
    """The same bits with a fourth action that is illegal everywhere, for searches and for trees."""
    model = garnet(states=20, actions=3, branching=3, discount=0.8, seed=2)
    wider = with_an_illegal_action(model)
    costs = 1.0 - np.eye(4)
    ours = {"tau": 0.4, "lam": 0.8}
    pairs: list[tuple[Any, Any]] = [
        (soft := sp.OTGapE(sp.LogSumExp(0.1), 0.0), soft),
        *((alike, alike) for alike in (sp.MDPGapE(epsilon=0.0), sp.UCT(), sp.UCT(loop="open"))),
        (
            sp.OTGapE(sp.OptimalTransport(cost=costs[:3, :3], prior=[0.25, 0.25, 0.5], **ours), 0.0),
            sp.OTGapE(sp.OptimalTransport(cost=costs, prior=[0.125, 0.125, 0.25, 0.5], **ours), 0.0),
        ),
    ]
    for narrow, wide in pairs:
        cases: list[tuple[Any, Any]] = [(model, wider)]
        if isinstance(
            narrow, sp.MDPGapE | sp.UCT
        ):  # how many actions a function allows is not known, and F(0) depends on it
            cases.append((vectorised(model), vectorised(wider)))
        for given, wider_model in cases:
            found = sp.plan(narrow, given, 0, max_calls=3_000, seed=4)
            again = sp.plan(wide, wider_model, 0, max_calls=3_000, seed=4)
            # Sums over the actions of a prior are rounded in another order.
            assert found.interval == (again.interval if narrow is wide else pytest.approx(again.interval, abs=1e-12))
            assert found.q.tolist() == (
                again.q[:3].tolist() if narrow is wide else pytest.approx(again.q[:3], abs=1e-12)
            )
            assert again.q[3] == -np.inf


def test_trees_take_legal_actions_only_and_end_with_the_episode() -> None:
    model = season()
    solution = exact.solve(model, sp.HardMax())
    for given in (model, vectorised(model)):
        for loop in ("closed", "open"):
            result = sp.plan(sp.UCT(loop=loop), given, 3, max_calls=4_000, seed=1)
            illegal = solution.q[3] == -np.inf
            assert illegal.any()
            assert (result.q[illegal] == -np.inf).all()
            assert result.action in np.flatnonzero(~illegal)
    closed = sp.plan(sp.UCT(), model, 3, max_calls=100_000, seed=1)
    assert closed.value == pytest.approx(solution.values[3], abs=0.1)


def ring(states: Ints, actions: Ints, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """A walk in a circle, which never ends."""
    return (states + actions + rng.integers(0, 2, len(states))) % 5, np.zeros(len(states))


SEARCHES: dict[str, Any] = {
    "focused": sp.OTGapE(sp.HardMax(), 0.0),
    "trajectories": sp.OTGapE(sp.HardMax(), 0.0, sampling="trajectories"),
    "no rounds": sp.OTGapE(sp.Tsallis(0.3), 0.0),
    "stages": sp.OTGapE(sp.HardMax(), 0.0, horizon=3),
    "a tree": sp.UCT(),
    "an open loop": sp.UCT(loop="open", rollout="none"),
}


@pytest.mark.parametrize("planner", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_an_episode_beyond_the_horizon_is_an_error(planner: Any, discount: float) -> None:
    model = sp.VectorModel(ring, actions=2, discount=discount, horizon=6, reward_range=(0, 1), initial_state=0)
    with pytest.raises(sp.ModelError, match=r"horizon=6 is exceeded: an episode has not .* 6 steps, at") as caught:
        sp.plan(planner, model, max_calls=10_000)
    assert getattr(caught.value, "partial", None) is not None  # nothing computed is lost


def layered(seed: int) -> sp.TabularModel:
    """Episodes of exactly five steps, through layers of two states."""
    rng, count = np.random.default_rng(seed), 11
    successors = np.stack([np.minimum(2 * (s // 2 + 1) + rng.integers(2, size=(2, 2)), 10) for s in range(count)])
    chances = rng.choice([0.0, 0.5, 1.0], size=(count, 2))
    probabilities = np.stack([chances, 1.0 - chances], axis=2)
    terminal = np.arange(count) == 10
    return sp.TabularModel(
        probabilities, successors, rng.random((count, 2)), discount=1.0, horizon=5, terminal=terminal
    )


def test_an_episode_of_the_full_length_is_no_error() -> None:
    """Walks to the end of an episode that find nothing to sample, too."""
    for seed in range(20):
        for backup in (sp.HardMax(), sp.Tsallis(0.3)):
            assert sp.plan(sp.OTGapE(backup, 0.0), layered(seed), max_calls=3_000, seed=seed).calls <= 3_000


def test_stages_are_told_apart_if_the_backup_does() -> None:
    """The weights of its prior jump from one action to another after the first step."""
    model, backup_of = season(), sp.OptimalTransport
    last = np.arange(model.states) >= 7
    prior = np.where(last[:, None], [0.02, 0.02, 0.96], [0.96, 0.02, 0.02])
    table = backup_of(cost=1.0 - np.eye(3), tau=2.0, lam=0.2, prior=prior)
    steps = backup_of(
        cost=table.cost, tau=2.0, lam=0.2, prior=lambda states: prior[(STEPS - states[:, 1]) * 7 + states[:, 0]]
    )
    simulator = finite_horizon(vectorised(masked_garnet()), STEPS, discount=1.0)
    solution = exact.solve(model, table)
    for planner, given, start in ((table, model, 0), (steps, simulator, np.array([0, STEPS]))):
        result = sp.plan(sp.OTGapE(planner, 0.0, 1e-4), given, start, max_calls=20_000, seed=1)
        assert result.interval[0] <= solution.values[0] <= result.interval[1]
        assert result.interval[1] - result.interval[0] < 1.0
        reference = sp.SharedReference(given, planner, seed=1)
        reference.improve(20_000)
        q, legal = reference.q(np.asarray(start)[None])[0], solution.q[0] > -np.inf
        assert q[legal] == pytest.approx(solution.q[0, legal], abs=0.3)
    whole = sp.OTGapE(sp.Tsallis(0.3), 0.0)  # all stages have the same backup
    assert not started(whole, model).explorer.rules.endless
    assert started(sp.OTGapE(table, 0.0), model).explorer.rules.endless
    keyed = sp.OTGapE(sp.HardMax(), 0.0, key=lambda state: tuple(state.tolist()))
    assert started(keyed, simulator, state=np.array([0, STEPS])).explorer.rules.endless


def test_discounts_of_single_steps_mean_the_same_at_all_stages() -> None:
    """Episodes survive a step with probability d/γ, whatever the season's own discount is."""

    def step(states: Ints, actions: Ints, rng: np.random.Generator) -> Any:
        return states + 0, np.ones(len(states)), np.zeros(len(states), dtype=np.bool_), np.full(len(states), 0.45)

    declared: dict[str, Any] = {"actions": 2, "discount": 0.9, "reward_range": (1, 1), "initial_state": 0}
    bases = [kind(step, **declared) for kind in (sp.VectorModel, sp.JitModel)]
    for base, discount in ((base, discount) for base in bases for discount in (1.0, 0.5)):
        model, truth = finite_horizon(base, 5, discount=discount), sum((0.5 * discount) ** t for t in range(5))
        found = sp.Oracle(model, seed=1).sample(np.tile([0, 5], (20_000, 1)), np.zeros(20_000, dtype=np.int64))
        assert found.terminals.mean() == pytest.approx(0.5, abs=0.016)  # 4.5 standard errors
        for key in (None, lambda state: tuple(state.tolist())):  # with samples of all stages together, and apart
            result = sp.plan(sp.OTGapE(sp.HardMax(), 0.0, 1e-4, key=key), model, max_calls=20_000, seed=1)
            assert result.interval[0] <= truth <= result.interval[1] < truth + 0.4


def test_a_root_has_steps_left() -> None:
    base = sp.VectorModel(ring, actions=2, discount=0.9, reward_range=(0, 1), initial_state=0)
    model = finite_horizon(base, 3)
    for state in ([0, 0], [0, 4]):
        with pytest.raises(ValueError, match=r"state must end with the steps left, from 1 to 3, got \[0, \d\]"):
            sp.plan(sp.MDPGapE(epsilon=0.1), model, state)
    with pytest.raises(ValueError, match="horizon must be None for a model with one of 3, got 2"):
        sp.plan(sp.MDPGapE(epsilon=0.1, horizon=2), model)
