"""Rounds of samples: converged bounds, what they prove, how samples are drawn, and when rounds take over from walks."""

import math
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chi2

import smoothplan as sp
from smoothplan import streams
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup
from smoothplan.confidence.thresholds import share, wager_regret
from smoothplan.models.base import States
from smoothplan.planners.gape import OTGapE
from smoothplan.search import batches, rounds
from smoothplan.search.converge import converge, new_side
from smoothplan.search.explorer import Explorer
from smoothplan.search.graph import BY_OUTCOME, CHUNKS, ENDED, FIXED, STATES, VARYING
from smoothplan.search.rounds import View
from smoothplan.search.ugape import Certificate
from studies.recurrent import mixed
from tests.adversarial import ADVERSARIAL
from tests.common import ball_maximum, ball_minimum, begun, by_state, content, identified, vectorised
from tests.test_gape import WITHOUT_UNION, bandit
from tests.test_search import tied

HARD = sp.HardMax()

DELTA = 0.3
"""A large δ: what fails too often fails visibly."""

FALSE_ALARM = 1e-6
"""The probability that a check of coverage complains of what holds with probability 1 − δ."""

MANY = 10**9
"""More walks than any search makes."""


def too_many(failures: int, runs: int) -> bool:
    """Whether so many failures have probability `FALSE_ALARM` at most, if each has probability `DELTA`."""
    return bool(binom.sf(failures - 1, runs, DELTA) < FALSE_ALARM)


def recurrent(
    seed: int, kind: str = "deterministic", states: int = 5, actions: int = 2, branching: int = 3, discount: float = 0.7
) -> sp.TabularModel:
    """A few states that recur; rewards are "deterministic", "bernoulli" or "transition"; some transitions end."""
    rng = np.random.default_rng(seed)
    shape = (states, actions, branching)
    rewards = rng.uniform(0.1, 0.9, size=shape if kind == "transition" else shape[:2])
    return sp.TabularModel(
        rng.dirichlet(np.ones(branching), size=shape[:2]),
        np.argsort(rng.random((states, actions, states)), axis=-1)[..., :branching],
        rewards if kind == "bernoulli" else 4.0 * rewards - 1.0,
        discount=discount,
        reward_kind=kind,  # type: ignore[arg-type]
        reward_range=(0.0, 1.0) if kind == "bernoulli" else (-1.0, 3.0),
        terminal=rng.random(shape) < 0.1,
    )


# Converged bounds


def naive_bounds(search: Explorer, backup: Backup, side: int, anchor: int, value: float) -> tuple[Floats, Floats]:
    """Bounds of values [n] and action values [n, K] by sweeps over everything, from above or from below.

    Less `value`, which is the anchor's, where there is an anchor.
    """
    graph, rules = search.graph, search.rules
    count, discount = int(graph.totals[STATES]), rules.discount
    base = value if anchor >= 0 else 0.0
    edge = float((rules.span_high if side > 0 else rules.span_low)[0]) - base
    reward_edge = rules.reward_low + (rules.reward_width if side > 0 else 0.0)
    values, q = np.full(count, edge), np.zeros((count, rules.actions))
    for _ in range(math.ceil(math.log(1e-13) / math.log(discount))):
        if anchor >= 0:
            values[anchor] = 0.0
        for state, action in np.ndindex(q.shape):
            pair = graph.pairs[state * rules.actions + action]
            if pair["count"] == 0:
                q[state, action] = reward_edge + discount * edge
                continue
            places = slice(int(pair["start"]), int(pair["start"] + pair["seen"]))
            successors = graph.successors[places]
            worth = discount * np.where(successors == ENDED, -base, values[successors])
            others = discount * edge
            if rules.kind == BY_OUTCOME:
                worth, others, reward = worth + graph.rewards[places], others + reward_edge, 0.0
            else:
                reward = float(pair["reward_high"] if side > 0 else pair["reward_low"])
            shares = graph.hits[places] / pair["count"]
            unseen = others if pair["seen"] < rules.bound else -side * math.inf
            if side > 0:
                q[state, action] = reward + ball_maximum(shares, worth, unseen, pair["level"])
            else:
                q[state, action] = reward + ball_minimum(shares, worth, unseen, pair["level"])
        q -= 0.0 if anchor < 0 else (1.0 - discount) * base
        values = np.asarray(backup.value(q, np.asarray(search.states)))
        values = np.minimum(values, edge) if side > 0 else np.maximum(values, edge)
    if anchor >= 0:
        values[anchor] = 0.0
    return values, q


def three_backups(model: sp.TabularModel) -> list[Backup]:
    return [HARD, sp.LogSumExp(0.3), by_state(model)]


KINDS: dict[str, tuple[str, Any, int]] = {
    "fixed": ("deterministic", "declared", FIXED),
    "two rewards": ("bernoulli", "declared", BY_OUTCOME),
    "by transition": ("transition", "declared", BY_OUTCOME),
    "varying": ("transition", "bounded", VARYING),
}
"""How rewards are declared, what a planner makes of it, and their kind in a search."""


@pytest.mark.parametrize(("kind", "rewards", "expected"), KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("which", range(3), ids=["hard", "log-sum-exp", "transport"])
def test_converged_bounds_are_those_of_plain_sweeps(which: int, kind: str, rewards: Any, expected: int) -> None:
    """To the tolerance, and never on the wrong side: of both sides, with and without an anchor."""
    tolerance = 1e-6
    # Few successors seen; all that there can be; and one that will never be seen.
    for seed, calls, bound in ((0, 12, None), (1, 300, 3), (2, 300, 4)):
        model = recurrent(seed, kind)
        backup = three_backups(model)[which]
        search = begun(OTGapE(backup, 0.0, rewards=rewards, successors=bound), model, seed=seed)
        search.explore(0.0, calls, MANY)
        assert search.rules.kind == expected
        graph, rules = search.graph, search.rules
        others = [-1, 0, int(graph.totals[STATES]) - 1]
        for side, anchor in product((1, -1), others):
            value = float((graph.low if side > 0 else graph.high)[anchor])
            bounds = new_side(graph, rules, side, anchor, value)
            surplus = converge(graph, rules, bounds, search.work.frames, search.work.room, tolerance)
            values, q = naive_bounds(search, backup, side, anchor, value)
            excess = bounds.values - side * values
            excess_q = bounds.q.reshape(q.shape) + surplus - side * q
            for each in (excess, excess_q):
                assert -1e-9 <= each.min() <= each.max() <= 2.0 * tolerance


@pytest.mark.parametrize("which", range(3), ids=["hard", "log-sum-exp", "transport"])
def test_any_values_to_begin_with_give_a_bound(which: int) -> None:
    """One pass, without any improvement: what it would add to the values is enough to move them to the safe side."""
    rng = np.random.default_rng(0)
    for seed, kind in enumerate(("deterministic", "bernoulli", "transition")):
        model = recurrent(seed, kind)
        backup = three_backups(model)[which]
        search = begun(OTGapE(backup, 0.0), model, seed=seed)
        search.explore(0.0, 200, MANY)
        graph, rules = search.graph, search.rules
        for side, anchor in product((1, -1), (-1, 0)):
            value = float((graph.low if side > 0 else graph.high)[anchor])
            values, q = naive_bounds(search, backup, side, anchor, value)
            for scale in (0.1, 10.0):
                bounds = new_side(graph, rules, side, anchor, value)
                others = np.arange(len(values)) != anchor
                bounds.values[others] = side * values[others] + scale * rng.normal(size=others.sum())
                surplus = converge(graph, rules, bounds, search.work.frames, search.work.room, math.inf)
                assert (bounds.values >= side * values - 1e-9).all()
                assert (bounds.q.reshape(q.shape) + surplus >= side * q - 1e-9).all()


# What relative bounds prove


def in_rounds(search: Explorer) -> None:
    """Has a search make rounds from its start."""
    assert search.rounds is not None
    search.rounds.take_over = lambda graph, calls: calls > 0  # type: ignore[method-assign]


def relative_bounds_hold(search: Explorer, solution: sp.exact.Solution) -> bool:
    """Whether bounds relative to each of some states contain the truth, V(s) − V(anchor) and Q(s, a) − γ·V(anchor)."""
    assert search.rounds is not None
    graph, states, discount = search.graph, np.asarray(search.states), search.rules.discount
    anchors = dict.fromkeys([0, search.rounds.anchor, len(states) - 1])
    for anchor in anchors:
        bounds = []
        for side, value in ((1, graph.low[anchor]), (-1, graph.high[anchor])):
            found = new_side(graph, search.rules, side, anchor, float(value))
            surplus = converge(graph, search.rules, found, search.work.frames, search.work.room, 1e-4)
            bounds.append(side * np.append(found.values, found.q + surplus + (1.0 - discount) * found.base))
        value = solution.values[states[anchor]]
        truth = np.append(solution.values[states] - value, solution.q[states] - discount * value)
        if not contain(bounds[1], truth, bounds[0]):
            return False
    return True


def contain(low: Floats, truth: Floats, high: Floats, rounding: float = 1e-9) -> bool:
    return bool(((low <= truth + rounding) & (truth <= high + rounding)).all())


def certificate_fails(search: Explorer, solution: sp.exact.Solution) -> bool:
    """Whether another action is better than the certified one by more than the gap, which may be negative."""
    q = solution.q[np.asarray(search.states)[0]]
    best, _, gap = search.certificate
    return bool(np.delete(q, best).max() - q[best] > gap + 1e-9)


def proofs_fail(model: sp.TabularModel, backup: Backup, planner: type[OTGapE], seed: int, calls: int) -> bool:
    """Whether anything that rounds prove of a model is wrong, at any of some looks at a search."""
    solution = sp.exact.solve(model, backup, 1e-10)
    search = begun(planner(backup, 0.0, DELTA), model, seed=seed)
    in_rounds(search)
    over = False
    while search.oracle.calls < calls and not over:
        over = search.search(0.0, min(calls, 10 + search.oracle.calls), MANY, calls)
        if certificate_fails(search, solution) or not relative_bounds_hold(search, solution):
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
    assert too_many(sum(proofs_fail(model, HARD, WITHOUT_UNION, seed, 4000) for seed in range(runs)), runs)


@pytest.mark.parametrize("parts", [1, rounds.PARTS])
def test_the_relative_gap_covers_every_part(parts: int) -> None:
    """It is that of plain sweeps, with the anchor's value at the end of its part that is worse: in the worst part."""
    for seed in (2, 3, 4):  # no action is proved to be the best within these calls
        model = recurrent(seed, states=3)
        search = begun(OTGapE(HARD, 0.0, DELTA), model, seed=seed)
        in_rounds(search)
        while search.oracle.calls < 200:
            assert not search.search(0.0, 200, MANY)
        view, calls = View(search.graph, search.rules, search.work), search.oracle.calls
        assert search.rounds is not None
        search.rounds.tighten(view, 0.0, calls)
        gap = search.certificate.gap
        assert gap > 0.0
        if parts > 1:  # near ε the interval of the anchor's value is cut
            search.rounds.proved = None
            search.rounds.tighten(view, gap / 2.0, calls)
        proved, anchor = search.rounds.proved, search.rounds.anchor
        assert proved is not None
        cuts = np.linspace(search.graph.low[anchor], search.graph.high[anchor], parts + 1)
        worst = -math.inf
        for low, high in pairwise(cuts.tolist()):
            above, below = (
                naive_bounds(search, HARD, side, anchor, end)[1][0] + (1.0 - model.discount) * end
                for side, end in ((1, low), (-1, high))
            )
            worst = max(worst, np.delete(above, proved.best).max() - below[proved.best])
        assert worst - 1e-9 <= proved.gap <= worst + 0.02 * gap


def test_the_smallest_relative_gap_is_kept_with_its_action() -> None:
    """Whenever it changes, plain sweeps prove it of the action that it names; otherwise all of it stays."""
    actions: set[tuple[int, int]] = set()
    for seed in range(4):
        model = tied(recurrent(seed, states=3))
        search = begun(OTGapE(HARD, 0.0, DELTA), model, seed=seed)
        in_rounds(search)
        assert search.rounds is not None
        search.search(0.0, 10, MANY)
        while search.oracle.calls < 300:
            proved = search.rounds.proved
            search.rounds.tighten(View(search.graph, search.rules, search.work), 0.0, search.oracle.calls)
            found = search.rounds.proved
            if found is not None and found != proved:
                assert proved is None or found.gap < proved.gap
                anchor = search.rounds.anchor
                above, below = (
                    naive_bounds(search, HARD, side, anchor, float(end[anchor]))[1][0]
                    + (1.0 - model.discount) * float(end[anchor])
                    for side, end in ((1, search.graph.low), (-1, search.graph.high))
                )
                assert found.gap >= np.delete(above, found.best).max() - below[found.best] - 1e-9
                actions.add((seed, found.best))
            assert not search.search(0.0, search.oracle.calls + 10, MANY)
    assert len(actions) > len({seed for seed, _ in actions})  # of some search it names one action, then another


def test_the_better_of_two_proofs_is_returned_with_its_own_action() -> None:
    search = begun(OTGapE(HARD, 0.0, DELTA), recurrent(2, actions=3))
    search.explore(0.0, 50, MANY)
    assert search.rounds is not None
    absolute = search.certificate
    for best, challenger in product(range(3), repeat=2):
        better, worse = (Certificate(best, challenger, absolute.gap + by) for by in (-0.1, 0.1))
        search.rounds.proved = better
        assert search.certificate == better
        search.rounds.proved = worse
        assert search.certificate == absolute


# The threshold for one function


def leaves(p: Floats, f: Floats, level: Callable[[int], float], n: int, seed: int, top: bool) -> bool:
    """Whether p·f is ever outside of the bounds after 1 to n draws from p.

    Args:
        p, f: probabilities and values of outcomes, [m].
        level: the level of the ball after so many draws.
        n: draws.
        seed: of the draws.
        top: whether the ends of f, beyond which nothing unseen can be worth anything, are those of its values.
    """
    draws = np.random.default_rng(seed).choice(len(p), size=n, p=p)
    ends = (f.min(), f.max()) if top else (f.min() - 0.5, f.max() + 0.5)
    mean, hits = float(p @ f), np.zeros(len(p))
    for count, draw in enumerate(draws, start=1):
        hits[draw] += 1.0
        if count > 50 and count % (1 + count // 50):  # a bound changes little from one draw to the next
            continue
        seen = hits > 0.0
        shares, values = hits[seen] / count, f[seen]
        if mean > ball_maximum(shares, values, ends[1], level(count)) + 1e-12:
            return True
        if mean < ball_minimum(shares, values, ends[0], level(count)) - 1e-12:
            return True
    return False


def functional(delta: float, share: float = 1.0) -> Callable[[int], float]:
    """The level of a search for one function, from above and from below; or with a part of its log(2/δ)."""
    return lambda count: (share * math.log(2.0 / delta) + wager_regret(count)) / count


def random_function(seed: int) -> tuple[Floats, Floats]:
    """Probabilities and values: any, or rare and large, or nearly certain."""
    rng = np.random.default_rng(seed)
    outcomes = int(rng.integers(2, 8))
    if seed % 3 == 0:
        return rng.dirichlet(np.ones(outcomes)), rng.random(outcomes)
    rare = 10.0 ** -rng.uniform(0.5, 2.5)
    p = np.append(rng.dirichlet(np.ones(outcomes - 1)) * (1.0 - rare), rare)
    f = np.append(0.05 * rng.random(outcomes - 1), 1.0)
    return p, f if seed % 3 == 1 else -f


def test_one_function_stays_within_its_bounds_at_all_times() -> None:
    """Random distributions and functions, whose ends are known exactly or loosely."""
    runs = 150
    failures = sum(leaves(*random_function(i), functional(DELTA), 600, i, top=i % 2 == 0) for i in range(runs))
    assert not too_many(failures, runs)


def test_the_check_notices_a_threshold_that_is_too_small() -> None:
    """With a tenth of log(2/δ), two thirds of the sequences of coins leave their bounds, where 30 % may."""
    runs = 60
    coin = np.array([0.5, 0.5]), np.array([0.0, 1.0])
    assert too_many(sum(leaves(*coin, functional(DELTA, 0.1), 600, i, top=True) for i in range(runs)), runs)


@pytest.mark.parametrize("chance", [0.5, 0.2, 0.03])
@pytest.mark.parametrize("delta", [0.5, 0.1])
def test_the_probability_of_ever_leaving_the_bounds_by_enumeration(chance: float, delta: float) -> None:
    """Of two outcomes, by the exact distribution of the number of the second that has never left; n up to 300."""
    level = functional(delta)
    alive, left = {0: 1.0}, 0.0
    for count in range(1, 301):
        after: dict[int, float] = {}
        for hits, probability in alive.items():
            after[hits] = after.get(hits, 0.0) + probability * (1.0 - chance)
            after[hits + 1] = after.get(hits + 1, 0.0) + probability * chance
        alive = {}
        for hits, probability in after.items():
            shares, values = np.array([count - hits, hits]) / count, np.array([0.0, 1.0])
            high = ball_maximum(shares, values, 1.0, level(count))
            low = ball_minimum(shares, values, 0.0, level(count))
            if low <= chance <= high:
                alive[hits] = probability
            else:
                left += probability
    assert 0.01 * delta < left <= delta


# How samples are drawn


def test_chunks_cover_all_counts_once() -> None:
    rng = np.random.default_rng(0)
    for calls in (0, 50, 5_000, 10**9):
        most = min(max(batches.FIRST_ROWS, calls // 16), batches.CHUNK_ROWS)
        for _ in range(50):
            counts = rng.integers(1, rng.choice([2, 5, 300, 3000]), size=rng.integers(1, 40), endpoint=True)
            found, sizes, ends = np.zeros_like(counts), [], []
            for piece, part in batches.chunked(counts, calls):
                assert len(counts[piece]) == len(part)
                assert (part > 0).all()
                found[piece] += part
                sizes.append(int(part.sum()))
                ends.append((piece.start, piece.stop))
            np.testing.assert_array_equal(found, counts)
            assert all(size == most for size in sizes[:-1])
            assert 0 < sizes[-1] <= most
            assert all(second[0] in (first[1], first[1] - 1) for first, second in pairwise(ends))


def test_draws_from_a_table_have_its_probabilities() -> None:
    """Chi-square over the outcomes of every pair, at a level of 1e-6 in all."""
    model = recurrent(3, "transition", states=6, branching=4)
    rows = np.array([0, 3, 4, 11])
    counts = np.array([20_000, 1, 5_000, 100_000])
    keys, rewards, times = batches.drawn(model.tables, rows, counts, seed=5, chunk=7)
    np.testing.assert_array_equal(times.sum(axis=1), counts)
    again = batches.drawn(model.tables, rows, counts, seed=5, chunk=7)
    np.testing.assert_array_equal(times, again[2])
    assert (times != batches.drawn(model.tables, rows, counts, seed=5, chunk=8)[2]).any()
    for i, row in enumerate(rows):
        state, action = divmod(int(row), model.actions)
        observed: dict[tuple[int, float], int] = {}
        for key, reward, number in zip(keys[i].tolist(), rewards[i].tolist(), times[i].tolist(), strict=True):
            place = -1 if key < 0 else key, reward
            observed[place] = observed.get(place, 0) + number
        expected: dict[tuple[int, float], float] = {}
        table = model.rewards[state, action]
        for b, chance in enumerate(model.probabilities[state, action]):
            end = bool(model.ends[state, action, b])
            place = -1 if end else int(model.successors[state, action, b]), float(table[b])
            expected[place] = expected.get(place, 0.0) + float(chance)
        assert {place for place, number in observed.items() if number} <= set(expected)
        if counts[i] > 1:
            statistic = sum(
                (observed.get(place, 0) - counts[i] * chance) ** 2 / (counts[i] * chance)
                for place, chance in expected.items()
            )
            assert chi2.sf(statistic, len(expected) - 1) > 1e-6 / 3


def test_what_pads_a_table_is_never_drawn() -> None:
    """Among 10¹⁶ calls rounding would leave some to a place without an outcome: about one in 3·10¹⁵."""
    chances = np.random.default_rng(0).dirichlet(np.full(10, 0.5))
    model = sp.TabularModel(chances[None, None], np.zeros((1, 1, 10), dtype=np.int64), [[5.0]], discount=0.5)
    for chunk in range(5):
        _, _, times = batches.drawn(model.tables, np.zeros(1, dtype=np.int64), np.array([10**16]), seed=0, chunk=chunk)
        assert times.shape == (1, 12)
        assert times.sum() == 10**16
        assert (times >= 0).all()
        assert not times[0, 10:].any()


@pytest.mark.parametrize("simulator", [False, True])
@pytest.mark.parametrize(("kind", "sets"), [("deterministic", 1), ("bernoulli", 2)])
def test_the_order_in_which_pairs_spend_is_fixed_before_their_outcomes(kind: Any, sets: int, simulator: bool) -> None:
    """Pairs that a round samples for the first time spend δ in the order of their entries, whatever they bring."""
    table = sp.models.garnet(states=6, actions=2, branching=3, discount=0.5, seed=1, reward_kind=kind)
    planner = OTGapE(HARD, 0.0, 0.2, rewards="declared" if sets == 1 else "bounded")
    counts = np.random.default_rng(0).integers(1, 60, size=12)  # several chunks
    for seed in range(4):
        search = begun(planner, vectorised(table) if simulator else table, seed=seed)
        for state in np.arange(table.states):
            search.number(state)
        order = np.array([1, 4, 6, 7, 0, 2, 3, 5, 8, 9, 10, 11])
        for entries in (order[:4], np.arange(12)):
            search._sample_all(entries, counts[entries])
        spent = [0.2 * share(index) / sets for index in range(12)]
        np.testing.assert_allclose(np.exp(-search.graph.pairs["log_odds"][order]), spent, rtol=1e-12)


@pytest.mark.parametrize("simulator", [False, True])
def test_no_random_numbers_are_used_twice(simulator: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks draw from stream 0 of the seed, and every chunk of every round from one of its own."""
    used: list[tuple[int, int]] = []
    right = streams.generator

    def generator(seed: int, chunk: int = 0) -> np.random.Generator:
        used.append((seed, chunk))
        return right(seed, chunk)

    monkeypatch.setattr(streams, "generator", generator)
    table = tied(recurrent(3, states=8, actions=3))
    search = begun(OTGapE(HARD, 0.0), vectorised(table) if simulator else table, seed=7)
    stepped(search, 3000)
    assert len(used) > 10
    assert len(set(used)) == len(used)
    assert {seed for seed, _ in used} == {7}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_rows_are_grouped_as_by_sorting(dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    for count in (1, 2, 17, 1000):
        states = rng.integers(0, 2, size=(count, *shape)).astype(dtype)
        if np.dtype(dtype).kind == "f":
            states = np.where(rng.random(states.shape) < 0.5, states, -states).astype(dtype)  # −0.0 too
        pairs, ends = rng.integers(0, 3, size=count), rng.random(count) < 0.3
        groups, first = batches._grouped(batches._words(states), pairs, ends)
        flat = states.reshape(count, -1).astype(np.float64) + 0.0
        table = np.concatenate([flat, pairs[:, None], ends[:, None]], axis=1)
        _, firsts, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
        np.testing.assert_array_equal(np.sort(first), np.sort(firsts))
        np.testing.assert_array_equal(first[groups], firsts[inverse.reshape(-1)])


# Walks or rounds


def searched(model: Any, epsilon: float, seed: int, rounds: bool | None = None) -> tuple[int, int]:
    """Calls and rounds of a search to its end in slices as those of a run; `rounds` for always or never."""
    search = begun(OTGapE(HARD, epsilon), model, seed=seed)
    assert search.rounds is not None
    if rounds is not None:
        search.rounds.take_over = lambda graph, calls: rounds and calls > 0  # type: ignore[method-assign]
    over = False
    while not over:
        until = search.oracle.calls + 1 + search.oracle.calls // 10
        over = search.search(epsilon, until, MANY, until)
    return search.oracle.calls, int(search.graph.totals[CHUNKS])


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
    for simulator in (model, vectorised(model)):
        with pytest.raises(sp.ModelError, match="value_range"):
            sp.plan(OTGapE(HARD, 1e-3), simulator, 0, max_calls=20_000)


# Resumed


def stepped(search: Explorer, calls: int) -> None:
    """Searches in slices as those of a run with at most 3000 calls, until it has made so many."""
    while search.oracle.calls < calls:
        assert not search.search(0.0, search.oracle.calls + 1 + search.oracle.calls // 10, MANY, 3000)


@pytest.mark.parametrize("simulator", [False, True])
@pytest.mark.parametrize("kind", ["deterministic", "bernoulli", "transition"])
def test_a_restored_search_goes_on_with_the_same_rounds(kind: str, simulator: bool) -> None:
    """From any boundary of slices, to the last bit."""
    table = tied(recurrent(3, kind, states=8, actions=3))
    model: Any = vectorised(table) if simulator else table
    planner = OTGapE(sp.LogSumExp(0.1), 0.0)
    rng = np.random.default_rng(0)
    undisturbed = begun(planner, model)
    stepped(undisturbed, 3000)
    assert undisturbed.graph.totals[CHUNKS] > 5
    expected = undisturbed.saved()
    for pause in rng.integers(1, 2500, size=4):
        search = begun(planner, model)
        stepped(search, int(pause))
        fresh = begun(planner, model)
        fresh.restore({name: array.copy() for name, array in search.saved().items()})
        stepped(fresh, 3000)
        found = fresh.saved()
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            assert array.tobytes() == found[name].tobytes(), name
        assert fresh.certificate == undisturbed.certificate


@pytest.mark.parametrize("simulator", [False, True])
def test_a_run_in_rounds_is_resumed(simulator: bool, tmp_path: Path) -> None:
    """A run that was out of time, several times over, returns what one without limits returns."""
    table = tied(recurrent(3, states=8, actions=3))
    model: Any = vectorised(table) if simulator else table
    planner = OTGapE(sp.LogSumExp(0.1), 0.0)
    direct = sp.plan(planner, model, 0, seed=2, max_calls=3000)
    for seconds in (0.02, 0.05, None):
        path = tmp_path / "run"
        resumed = sp.plan(planner, model, 0, seed=2, max_calls=3000, max_seconds=seconds, checkpoint=path)
    assert content(resumed) == content(direct)
