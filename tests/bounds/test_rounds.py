"""Rounds of samples: what relative bounds prove, and of which action."""

import math
from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.bounds.converge import converge, new_side
from smoothplan.bounds.gape import OTGapE, SearchRun
from smoothplan.bounds.rounds import TUNING, BestAction, Rounds
from smoothplan.theory.backups import Backup
from tests.adversarial import ADVERSARIAL
from tests.bounds.test_converge import naive_bounds
from tests.bounds.test_gape import DELTA, Forgetful, bandit, too_many
from tests.common import alone, contain, recurrent, started, tied

HARD = sp.HardMax()


def in_rounds(search: SearchRun) -> Rounds:
    """Has a search make rounds from its start."""
    assert search.rounds is not None
    search.rounds.take_over = lambda calls: calls > 0  # type: ignore[method-assign]
    return search.rounds


def explored(search: SearchRun, calls: int, limit: int) -> bool:
    """Searches until so many calls are made, or by a round up to a limit; whether the gap is 0."""
    return search.explore(calls, limit, alone(search.explorer))


def relative_bounds_hold(search: SearchRun, solution: sp.exact.Solution) -> bool:
    """Whether bounds relative to each of some states contain the truth, V(s) − V(anchor) and Q(s, a) − γ·V(anchor)."""
    explorer, rounds = search.explorer, search.rounds
    assert rounds is not None
    graph, rules, work, states = explorer.graph, explorer.rules, explorer.work, np.asarray(explorer.states)
    anchors = dict.fromkeys([0, rounds.anchor, len(states) - 1])
    for anchor in anchors:
        bounds = []
        for side, value in ((1, graph.low[anchor]), (-1, graph.high[anchor])):
            found = new_side(graph, rules, side, anchor, float(value))
            surplus = converge(graph, rules, found, work.frames, work.room, 1e-4)
            bounds.append(side * np.append(found.values, found.q + surplus + (1.0 - rules.discount) * found.base))
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
    """Of thirty coins that are alike, one misleads for longer than it may alone: in about 90 % of the runs."""
    model, runs = bandit(30), 24
    assert not too_many(sum(proofs_fail(model, HARD, OTGapE, seed, 4000) for seed in range(runs)), runs)
    assert too_many(sum(proofs_fail(model, HARD, Forgetful, seed, 4000) for seed in range(runs)), runs)


@pytest.mark.parametrize("parts", [1, TUNING.parts])
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
            rounds.proved = None
            rounds.tighten(gap / 2.0)
        proved, anchor = rounds.proved, rounds.anchor
        assert proved is not None
        cuts = np.linspace(explorer.graph.low[anchor], explorer.graph.high[anchor], parts + 1)
        worst = -math.inf
        for low, high in pairwise(cuts.tolist()):
            above, below = (
                naive_bounds(explorer, HARD, side, anchor, end)[1][0] + (1.0 - model.discount) * end
                for side, end in ((1, low), (-1, high))
            )
            worst = max(worst, np.delete(above, proved.best).max() - below[proved.best])
        assert worst - 1e-9 <= proved.gap <= worst + 0.02 * gap


def test_the_smallest_relative_gap_is_kept_with_its_action() -> None:
    """Whenever it changes, plain sweeps prove it of the action that it names; otherwise all of it stays."""
    actions: set[tuple[int, int]] = set()
    for seed in range(4):
        model = tied(recurrent(seed, states=3))
        search = started(OTGapE(HARD, 0.0, DELTA), model, seed=seed)
        rounds, explorer = in_rounds(search), search.explorer
        explored(search, 10, 10)
        while search.calls < 300:
            proved = rounds.proved
            rounds.tighten(0.0)
            found = rounds.proved
            if found is not None and found != proved:
                assert proved is None or found.gap < proved.gap
                anchor = rounds.anchor
                above, below = (
                    naive_bounds(explorer, HARD, side, anchor, float(end[anchor]))[1][0]
                    + (1.0 - model.discount) * float(end[anchor])
                    for side, end in ((1, explorer.graph.low), (-1, explorer.graph.high))
                )
                assert found.gap >= np.delete(above, found.best).max() - below[found.best] - 1e-9
                actions.add((seed, found.best))
            assert not explored(search, search.calls + 10, search.calls + 10)
    assert len(actions) > len({seed for seed, _ in actions})  # of some search it names one action, then another


def test_the_better_of_two_proofs_is_returned_with_its_own_action() -> None:
    search = started(OTGapE(HARD, 0.0, DELTA), recurrent(2, actions=3))
    search.explorer.explore(0.0, 50, 50)
    assert search.rounds is not None
    absolute = search.proved
    for best, challenger in product(range(3), repeat=2):
        better, worse = (BestAction(best, challenger, absolute.gap + by) for by in (-0.1, 0.1))
        search.rounds.proved = better
        assert search.proved == better
        search.rounds.proved = worse
        assert search.proved == absolute
