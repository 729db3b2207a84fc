"""Rounds of samples: when they take over from walks, what relative bounds prove, and how a search is resumed."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base import streams
from smoothplan.base.arguments import Floats, Ints
from smoothplan.bounds.converge import converge, new_side
from smoothplan.bounds.gape import OTGapE, SearchRun
from smoothplan.bounds.rounds import SHARING, BestAction, Rounds, root_intervals
from smoothplan.chains.shared import SharedReference
from smoothplan.models.model import States
from smoothplan.run.records import Root
from smoothplan.theory.backups import Backup
from studies.recurrent import mixed
from tests.adversarial import ADVERSARIAL
from tests.bounds.test_converge import naive_bounds
from tests.bounds.test_gape import DELTA, Forgetful, bandit, too_many
from tests.common import alone, contain, identified, recurrent, started, tied, vectorised
from tests.saving import copied, equal

HARD = sp.HardMax()


def in_rounds(search: SearchRun) -> Rounds:
    """Has a search make rounds from its start."""
    search.rounds.take_over = lambda calls: calls > 0  # type: ignore[method-assign]
    return search.rounds


def explored(search: SearchRun, calls: int, limit: int) -> bool:
    """Searches until so many calls are made, or by a round up to a limit; whether the gap is 0."""
    return search.explore(calls, limit, alone(search.explorer))


def relative_bounds_hold(search: SearchRun, solution: sp.exact.Solution) -> bool:
    """Whether bounds relative to each of some states contain the truth, V(s) − V(anchor) and Q(s, a) − γ·V(anchor)."""
    explorer, rounds = search.explorer, search.rounds
    graph, rules, work, states = explorer.graph, explorer.rules, explorer.work, np.asarray(explorer.states)
    anchors = dict.fromkeys([0, rounds.anchor, len(states) - 1])
    for anchor in anchors:
        bounds = []
        for side, value in ((1, graph.low[anchor]), (-1, graph.high[anchor])):
            found = new_side(graph, rules, side, anchor, float(value))
            converge(graph, rules, found, work.frames, work.room, 1e-4)
            bounds.append(side * np.append(found.values, found.q + (1.0 - rules.discount) * found.base))
        value = solution.values[states[anchor]]
        truth = np.append(solution.values[states] - value, solution.q[states] - rules.discount * value)
        if not contain(bounds[1], truth, bounds[0]):
            return False
    return True


def proof_fails(search: SearchRun, solution: sp.exact.Solution) -> bool:
    """Whether another action is better than the proved one by more than the gap, which may be negative."""
    q = solution.q[np.asarray(search.explorer.states)[0]]
    best, _, gap = search.proved
    return bool(np.delete(q, best).max() - q[best] > gap + 1e-9)


def proofs_fail(model: sp.TabularModel, backup: Backup, planner: type[OTGapE], seed: int, calls: int) -> bool:
    """Whether anything that rounds prove of a model is wrong, at any of some looks at a search."""
    solution = sp.exact.solve(model, backup, 1e-10)
    search = started(planner(backup, 0.0, DELTA), model, seed=seed)
    in_rounds(search)
    over = False
    while search.calls < calls and not over:
        over = explored(search, min(calls, 10 + search.calls), calls)
        if proof_fails(search, solution) or not relative_bounds_hold(search, solution):
            return True
    return False


def random_recurrent(seed: int) -> sp.TabularModel:
    kind = ("deterministic", "bernoulli", "transition")[seed % 3]
    return recurrent(seed, kind, states=3 + seed % 4, branching=2 + seed % 2, discount=(0.3, 0.6, 0.9)[seed // 3 % 3])


RECURRENT: dict[str, Callable[[int], sp.TabularModel]] = ADVERSARIAL | {"random": random_recurrent}


@pytest.mark.parametrize("name", RECURRENT)
def test_what_rounds_prove_is_true(name: str) -> None:
    """Bounds relative to several anchors, and the gap of the action that is certified."""
    runs = 20 if name == "random" else 12
    models = [RECURRENT[name](seed) for seed in range(runs)]
    backups: list[list[Backup]] = [[HARD, sp.LogSumExp(0.1)] if name == "random" else [HARD] for _ in models]
    failures = sum(
        proofs_fail(model, backups[seed][seed % len(backups[seed])], OTGapE, seed, 800)
        for seed, model in enumerate(models)
    )
    assert not too_many(failures, runs)


def test_the_check_notices_a_missing_union() -> None:
    """Of thirty coins that are alike, one misleads for longer than it may alone: in about 80 % of the runs."""
    model, runs = bandit(30), 32
    assert not too_many(sum(proofs_fail(model, HARD, OTGapE, seed, 8000) for seed in range(runs)), runs)
    assert too_many(sum(proofs_fail(model, HARD, Forgetful, seed, 8000) for seed in range(runs)), runs)


@pytest.mark.parametrize("parts", [1, SHARING.parts])
def test_the_relative_gap_covers_every_part(parts: int) -> None:
    """It is that of plain sweeps, with the anchor's value at the end of its part that is worse: in the worst part."""
    for seed in (2, 3, 4):  # no action is proved to be the best within these calls
        model = recurrent(seed, states=3)
        search = started(OTGapE(HARD, 0.0, DELTA), model, seed=seed)
        rounds, explorer = in_rounds(search), search.explorer
        while search.calls < 200:
            assert not explored(search, 200, 200)
        rounds.tighten(0.0)
        gap = search.proved.gap
        assert gap > 0.0
        if parts > 1:  # near ε the interval of the anchor's value is cut
            rounds.proved = BestAction(0, 0, math.inf)
            rounds.tighten(gap / 2.0)
        proved, anchor = rounds.proved, rounds.anchor
        cuts = np.linspace(explorer.graph.low[anchor], explorer.graph.high[anchor], parts + 1)
        worst = -math.inf
        for low, high in pairwise(cuts.tolist()):
            above, below = (
                naive_bounds(explorer, HARD, side, anchor, end)[1][0] + (1.0 - model.discount) * end
                for side, end in ((1, low), (-1, high))
            )
            worst = max(worst, np.delete(above, proved.best).max() - below[proved.best])
        assert worst - 1e-9 <= proved.gap <= worst + 0.02 * gap
        rounds.proved = better = BestAction(1 - proved.best, proved.best, proved.gap / 2.0)
        rounds.tighten(gap / 2.0 if parts > 1 else 0.0)
        assert rounds.proved == better  # a larger gap does not replace it, nor its action


def test_the_better_of_two_proofs_is_returned_with_its_own_action() -> None:
    search = started(OTGapE(HARD, 0.0, DELTA), recurrent(2, actions=3))
    search.explorer.explore(0.0, 50, 50)
    absolute = search.proved
    for best, challenger in product(range(3), repeat=2):
        better, worse = (BestAction(best, challenger, absolute.gap + by) for by in (-0.1, 0.1))
        search.rounds.proved = better
        assert search.proved == better
        assert (search.result().action, search.progress.relative) == (best, True)
        search.rounds.proved = worse
        assert search.proved == absolute


# Walks or rounds


def test_rounds_are_for_focused_searches_with_pooled_counts_and_softmaxes() -> None:
    def rounds(backup: Any = HARD, **options: Any) -> bool:
        return started(OTGapE(backup, 0.0, **options), recurrent(1)).rounds.take_over(10**6)

    assert rounds()
    assert rounds(sp.LogSumExp(0.1))
    assert not rounds(sampling="trajectories")
    assert rounds(horizon=5)
    assert not rounds(horizon=5, counts="stage-wise")
    assert not rounds(sp.Tsallis(0.5))


def searched(model: Any, epsilon: float, seed: int, rounds: bool | None = None) -> tuple[int, int]:
    """Calls and rounds of a search to its end in slices as those of a run; `rounds` for always or never."""
    search = started(OTGapE(HARD, epsilon), model, seed=seed)
    if rounds is not None:
        search.rounds.take_over = lambda calls: rounds and calls > 0  # type: ignore[method-assign]
    over = False
    while not over:
        until = search.calls + 1 + search.calls // 10
        over = search.explore(until, until, alone(search.explorer))
    return search.calls, int(search.explorer.graph.totals[0]["chunks"])


WALKED_OR_ROUNDS: dict[str, tuple[list[sp.TabularModel], float]] = {
    "fresh": ([sp.models.garnet(100_000, 5, 2, 0.7, 0, sparsity=0.5)] * 3, 1.0),
    "recurrent": ([sp.models.garnet(20, 3, 2, 0.8, seed) for seed in range(5)], 0.1),
    "mixed": ([mixed(seed, depth=2, states=20) for seed in range(5)], 0.2),
}
"""Models, and an ε."""


@pytest.mark.parametrize("name", WALKED_OR_ROUNDS)
def test_the_better_of_walks_and_rounds(name: str) -> None:
    """Rounds where states recur and nowhere else; the calls are nearly those of the better of both."""
    models, epsilon = WALKED_OR_ROUNDS[name]
    found = [searched(model, epsilon, seed) for seed, model in enumerate(models)]
    if name == "fresh":
        assert all(rounds == 0 for _, rounds in found)
    else:
        assert sum(rounds > 0 for _, rounds in found) > len(found) / 2
    ratios = [
        calls / min(searched(model, epsilon, seed, rounds)[0] for rounds in (False, True))
        for seed, ((calls, _), model) in enumerate(zip(found, models, strict=True))
    ]
    assert np.median(ratios) <= 1.2


def test_wide_bounds_do_not_hide_the_best_policy() -> None:
    """An option close to its end, with bounds a hundred times as wide as its value: a search once stuck for ever.

    From $80.33 the price rises or falls by a factor of 1.056 twice; selling at 100 now pays as much as selling later.
    """

    def step(states: Ints, actions: Ints, rng: np.random.Generator) -> Any:
        time, ups = states.T
        paid = np.where(actions == 1, 100.0 - 80.33 * 1.0563 ** (2 * ups - time), 0.0)
        up = (rng.random(len(states)) < 0.49) & (actions == 0)
        return np.stack([time + 1, ups + up], axis=1), np.maximum(paid, 0.0), (actions == 1) | (time >= 2)

    names, start = ["hold", "exercise"], [0, 0]
    model = sp.VectorModel(step, actions=names, discount=0.99, horizon=31, reward_range=(0, 100), initial_state=start)
    found = sp.plan(sp.OTGapE(sp.HardMax(), 0.5, 0.1), model, max_calls=1_000_000, seed=1)
    assert found.status == "converged"


def test_a_search_goes_on_with_the_graph_of_a_reference() -> None:
    """Calls, states and bounds are those of both; another model or δ is refused."""
    model = tied(recurrent(3, states=8, actions=3))
    shared = SharedReference(model, HARD, root=0, delta=0.1, seed=1)
    shared.improve(500)
    root = Root(model, 0, 1, 1000, None, "auto", time.perf_counter())
    search = OTGapE(HARD, 0.0).start(root, shared.explorer)
    assert search.result().calls == 500
    while search.calls < 1000:
        assert not search.explore(1000, 1000, alone(shared.explorer))
    assert shared.calls == 1000
    q = sp.exact.solve(model, HARD).q[:1]
    assert contain(root_intervals(search.explorer)[:, 0], q[0], root_intervals(search.explorer)[:, 1])
    assert (shared.error_range(np.array([0])) < np.ptp(sp.curvature.value_interval(model, HARD))).all()
    for planner, other in ((OTGapE(HARD, 0.0, delta=0.2), model), (OTGapE(HARD, 0.0), recurrent(4))):
        with pytest.raises(ValueError, match=f"explorer must be .* delta={planner.delta:g}"):
            planner.start(replace(root, model=other), shared.explorer)


# Pairs with many successors


def scattering(places: int = 500, rewards: str = "deterministic", **declarations: Any) -> sp.VectorModel:
    """Every action leads to one of many places, all equally likely; "varying" rewards break what is declared."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        moved = rng.integers(places, size=len(states))
        if rewards == "varying":
            return moved, rng.random(len(states))
        return moved, moved / places if rewards == "transition" else states % 7 / 10.0 + 0.2 * actions

    declared: dict[str, Any] = {
        "actions": 2,
        "discount": 0.5,
        "reward_range": (0, 1),
        "reward_kind": "deterministic" if rewards == "deterministic" else "transition",
        "terminates": False,
        "initial_state": 0,
    }
    return sp.VectorModel(step, **declared | declarations)


@pytest.mark.parametrize("bound", [100_000, None])
@pytest.mark.parametrize("rewards", ["deterministic", "transition"])
def test_hundreds_of_successors(bound: int | None, rewards: str) -> None:
    """Bounds hold with δ = 1e-6, and memory is for what was seen. A kernel without room for a pair fails here."""
    result = sp.plan(OTGapE(HARD, 0.0, 1e-6), scattering(rewards=rewards, max_successors=bound), max_calls=15_000)
    assert result.calls == 15_000
    places = np.arange(500)
    mean = (places % 7).mean() / 10.0 + 0.2 if rewards == "deterministic" else float(places.mean()) / 500
    future = 0.5 * mean / (1.0 - 0.5)
    truth = np.array([future, 0.2 + future]) if rewards == "deterministic" else np.full(2, mean + future)
    assert result.q_intervals is not None
    assert contain(result.q_intervals[:, 0], truth, result.q_intervals[:, 1])
    found = identified(result)
    assert found.graph is not None
    assert found.states == 500
    assert found.bytes < 15_000 * 50 + 1_000_000


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize(
    ("places", "rewards", "declarations", "message"),
    [
        (500, "deterministic", {"max_successors": 20}, "more than 20 different next states at state 0, action [01]"),
        (5, "varying", {}, "a reward declared as fixed by the transition took two values .* at state 0, action [01]"),
    ],
)
def test_broken_declarations_are_noticed_by_walks_and_rounds(
    rounds: bool, places: int, rewards: str, declarations: dict[str, Any], message: str
) -> None:
    with pytest.raises(sp.ModelError, match=message):
        searched(scattering(places, rewards, **declarations), 0.001, 1, rounds)


def test_a_value_range_that_is_wrong_is_refuted() -> None:
    """All values are near 1/(1−γ) = 2, far above what is declared."""
    model = sp.TabularModel(
        np.full((2, 2, 2), 0.5),
        np.tile([0, 1], (2, 2, 1)),
        [[0.9, 1.0], [0.95, 0.9]],
        discount=0.5,
        reward_range=(0.0, 1.0),
        value_range=(0.0, 1.0),
    )
    for simulator, rounds in product((model, vectorised(model)), (False, True)):
        with pytest.raises(sp.ModelError, match="value_range"):
            searched(simulator, 1e-3, 0, rounds)


# Resumed


def stepped(search: SearchRun, calls: int) -> None:
    """Searches in slices as those of a run with at most 3000 calls, until it has made so many."""
    while search.calls < calls:
        assert not search.explore(search.calls + 1 + search.calls // 10, 3000, alone(search.explorer))


@pytest.mark.parametrize("simulator", [False, True])
def test_no_random_numbers_are_used_twice(simulator: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks draw from stream 0 of the seed, and every chunk of every round from one of its own."""
    used: list[tuple[int, int]] = []
    right = streams.generator

    def generator(seed: int, chunk: int = 0, role: streams.Role = "samples") -> np.random.Generator:
        used.append((seed, chunk))
        return right(seed, chunk, role)

    monkeypatch.setattr(streams, "generator", generator)
    table = tied(recurrent(3, states=8, actions=3))
    search = started(OTGapE(HARD, 0.0), vectorised(table) if simulator else table, seed=7)
    stepped(search, 3000)
    assert len(used) > 10
    assert len(set(used)) == len(used)
    assert {seed for seed, _ in used} == {7}


@pytest.mark.parametrize("simulator", [False, True])
@pytest.mark.parametrize("kind", ["deterministic", "bernoulli", "transition"])
def test_a_restored_search_goes_on_with_the_same_rounds(kind: str, simulator: bool) -> None:
    """From any boundary of slices, to the last bit."""
    table = tied(recurrent(3, kind, states=8, actions=3))
    model: Any = vectorised(table) if simulator else table
    planner = OTGapE(sp.LogSumExp(0.1), 0.0)
    rng = np.random.default_rng(0)
    undisturbed = started(planner, model)
    stepped(undisturbed, 3000)
    assert undisturbed.explorer.graph.totals[0]["chunks"] > 5
    expected = undisturbed.saved()
    for pause in rng.integers(1, 2500, size=4):
        search = started(planner, model)
        stepped(search, int(pause))
        fresh = started(planner, model)
        fresh.restore(copied(search.saved()))
        assert fresh.progress == search.progress
        stepped(fresh, 3000)
        assert equal(fresh.saved(), expected)
        assert fresh.proved == undisturbed.proved


def test_a_restored_search_has_room_for_hundreds_of_successors_and_the_same_estimates() -> None:
    search, fresh = (started(OTGapE(HARD, 0.0), scattering()) for _ in range(2))
    stepped(search, 1000)
    search.rounds.differences = np.array([-0.1, 0.1])
    fresh.restore(copied(search.saved()))
    np.testing.assert_array_equal(fresh.result().q, search.result().q)
    assert fresh.explorer.work.room.shape[1] >= fresh.explorer.graph.pairs["seen"].max() > 16
