"""Confidence sets and bounds: every interval of every discovered state and pair holds, at every look."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import gammaln

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.bounds.gape import OTGapE
from smoothplan.bounds.rounds import best_action
from smoothplan.confidence.kl import bernoulli_lower, bernoulli_upper, wager_regret
from smoothplan.graph import sets
from smoothplan.graph.explorer import Explorer
from smoothplan.graph.graph import BY_OUTCOME, ENDED, spans
from smoothplan.run.records import EngineName
from smoothplan.theory.backups import Backup, discrete_cost
from tests.common import ball_maximum, ball_minimum, begun, bounded, by_state, contain, tied

SURE = 1e-6
"""A δ at which no interval of the few hundred searches of this file fails: they raise a false alarm with probability
below 1e-3, before the seeds are fixed."""


MANY = 10**9
"""More rounds than any search makes."""


def garnet(
    seed: int, states: int = 7, actions: int = 2, branching: int = 2, kind: Any = "bernoulli", discount: float = 0.6
) -> sp.TabularModel:
    return sp.models.garnet(states, actions, branching, discount, seed, reward_kind=kind)


def ending(
    seed: int, states: int = 6, actions: int = 2, branching: int = 3, discount: float = 0.6, kind: Any = "bounded"
) -> sp.TabularModel:
    """Rewards in [−3, 7] that depend on the next state; some transitions end the episode, as does the last state."""
    rng = np.random.default_rng(seed)
    shape = (states, actions, branching)
    successors = np.argsort(rng.random((states, actions, states)), axis=-1)[..., :branching]
    ends = (rng.random(shape) < 0.2) | (successors == states - 1)
    return sp.TabularModel(
        rng.dirichlet(np.ones(branching), size=shape[:2]),
        successors,
        rng.uniform(-3.0, 7.0, size=shape),
        discount=discount,
        reward_kind=kind,
        reward_range=(-3.0, 7.0),
        terminal=ends,
    )


def exact(model: sp.TabularModel, planner: OTGapE) -> Floats:
    """What the intervals must contain, [H, S, 1 + K]: the value and the action values of each state at each stage.

    They are the discounted values; or those of backward induction where nothing follows the last stage.
    """
    stages = planner.horizon or 1
    if planner.tail == "honest":
        solution = sp.exact.solve(model, planner.backup, 1e-11)
        return np.tile(np.column_stack([solution.values, solution.q]), (stages, 1, 1))
    value, found = np.zeros(model.states), list[Floats]()
    for _ in range(stages):
        q = sp.exact.action_values(model, value)
        value = np.where(model.terminal, 0.0, planner.backup.value(q, np.arange(model.states)))
        found.insert(0, np.column_stack([value, q]))
    return np.array(found)


class Look(NamedTuple):
    """All intervals of a search."""

    states: Ints  # [N], the model's own numbers
    low: Floats  # [N, H, 1 + K], of the values and the action values
    high: Floats


def look(search: Explorer) -> Look:
    number, stages, actions, graph = search.count, search.rules.stages, search.rules.actions, search.graph
    low, high = (
        np.column_stack([values[: number * stages], q[: number * stages * actions].reshape(-1, actions)])
        for values, q in ((graph.low, graph.q_low), (graph.high, graph.q_high))
    )
    shape = number, stages, 1 + actions
    return Look(np.array([int(search.state(i)) for i in range(number)]), low.reshape(shape), high.reshape(shape))


def holds(seen: Look, truth: Floats) -> bool:
    """Whether every interval contains what it should."""
    return contain(seen.low, truth[:, seen.states].transpose(1, 0, 2), seen.high)


def nested(outer: Look, inner: Look) -> bool:
    """Whether no interval has widened, to the last bit, and none has turned over."""
    number = len(outer.states)
    kept = (outer.states == inner.states[:number]).all()
    narrower = (outer.low <= inner.low[:number]).all() and (outer.high >= inner.high[:number]).all()
    return bool(kept and narrower and (inner.low <= inner.high).all())


def slices(search: Explorer, calls: int, growth: float = 1.3) -> Iterator[Look]:
    """Looks at a search while it makes `calls` calls."""
    yield look(search)
    until = 0
    while until < calls:
        until = min(calls, until + 1 + int((growth - 1.0) * until))
        search.explore(0.0, until, MANY)
        assert search.oracle.calls <= until
        yield look(search)


# Every interval holds at every look

PLANNERS: dict[str, Callable[[Backup], OTGapE]] = {
    "endless focused": lambda backup: OTGapE(backup, 0.0, SURE),
    "endless trajectories": lambda backup: OTGapE(backup, 0.0, SURE, sampling="trajectories"),
    "pooled, zero tail": lambda backup: OTGapE(backup, 0.0, SURE, horizon=4, tail="zero"),
    "pooled, honest tail": lambda backup: OTGapE(backup, 0.0, SURE, horizon=3, sampling="trajectories"),
    "stage-wise, zero tail": lambda backup: OTGapE(
        backup, 0.0, SURE, horizon=4, tail="zero", counts="stage-wise", sampling="trajectories", walk=0.5
    ),
    "stage-wise, honest tail": lambda backup: OTGapE(backup, 0.0, SURE, horizon=3, counts="stage-wise"),
    "endless greedy": lambda backup: OTGapE(backup, 0.0, SURE, walk="greedy"),
    "one successor too many": lambda backup: OTGapE(backup, 0.0, SURE, successors=4),
}


MODELS: dict[str, sp.TabularModel] = {
    "bernoulli": garnet(1),
    "deterministic": garnet(2, actions=3, branching=3, kind="deterministic", discount=0.8),
    "nothing but transitions": tied(garnet(6, kind="deterministic", discount=0.8)),
    "ending": ending(3),
    "ending, two successors": ending(4, states=8, actions=3, branching=2, discount=0.3),
}


def backups(model: sp.TabularModel) -> list[Backup]:
    transport = sp.OptimalTransport(cost=discrete_cost(model.actions), tau=2.0, lam=0.05)
    return [sp.HardMax(), sp.LogSumExp(0.2), transport, by_state(model)]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS.keys())
@pytest.mark.parametrize("engine", ["compiled", "batched"])
def test_all_intervals_hold_and_never_widen(
    planner: Callable[[Backup], OTGapE], model: sp.TabularModel, engine: EngineName
) -> None:
    """All that was discovered, not the root only: a bound that is wrong deep down shows before it reaches the root."""
    for seed, backup in enumerate(backups(model)):
        truth = exact(model, planner(backup))
        search = begun(planner(backup), model, engine, seed=seed)
        looks = list(slices(search, 10_000 if engine == "compiled" else 400))
        assert all(holds(seen, truth) for seen in looks)
        assert all(nested(outer, inner) for outer, inner in pairwise(looks))
        first, last = looks[0], looks[-1]
        # Bounds that said nothing would hold too.
        width = (first.high - first.low)[0, 0, 1:].max()
        assert last.high[0, 0, 1:].max() - last.low[0, 0, 1:].max() < 0.9 * width
        assert len(last.states) > 2


# Levels


@pytest.mark.parametrize("kind", ["deterministic", "bernoulli", "bounded"])
@pytest.mark.parametrize("branching", [1, 2, 3])
def test_what_pairs_spend_adds_up_to_delta(kind: Any, branching: int) -> None:
    """Each pair spends a part of δ at its first sample, for each of the sets that it needs; all parts differ.

    A reward of one of two sizes is a part of the outcome, and needs no set of its own.
    """
    model = garnet(1, states=40, actions=3, branching=branching, kind="bernoulli" if kind == "bounded" else kind)
    planner = OTGapE(sp.HardMax(), 0.0, 0.2, sampling="trajectories", successors=branching)
    search = begun(planner, bounded(model) if kind == "bounded" else model)
    search.explore(0.0, 20_000, MANY)
    pairs = search.graph.pairs[search.graph.pairs["count"] > 0]
    sets = (kind == "bounded") + (branching > 1 or kind == "bernoulli")
    assert len(pairs) == search.graph.totals[0]["pairs"] > 10
    spent = np.sort(np.exp(-pairs["log_odds"]))[::-1] * max(sets, 1)
    i = np.arange(len(pairs))
    np.testing.assert_allclose(spent, 0.2 * (1.0 / np.log2(i + 2) - 1.0 / np.log2(i + 3)), rtol=1e-9)
    assert spent.sum() < 0.2


@pytest.mark.parametrize("horizon", [None, 3])
def test_the_level_of_a_pair_covers_both_sides_at_every_stage(horizon: int | None) -> None:
    """Where there may be more than two outcomes, a statement is about one function: there are two at each stage."""
    search = begun(OTGapE(sp.HardMax(), 0.0, 0.2, horizon=horizon), garnet(1, branching=3, kind="deterministic"))
    search.explore(0.0, 500, MANY)
    pairs = search.graph.pairs[search.graph.pairs["count"] > 0]
    regret = np.array([wager_regret(count) for count in pairs["count"]])
    statements = 2.0 * (horizon or 1)
    level = (pairs["log_odds"] + math.log(statements) + regret) / pairs["count"]
    np.testing.assert_allclose(pairs["level"], level, rtol=1e-12)


def test_the_level_of_a_pair_with_two_outcomes_covers_all_probabilities() -> None:
    search = begun(OTGapE(sp.HardMax(), 0.0, 0.2), garnet(1, kind="deterministic"))
    search.explore(0.0, 500, MANY)
    sampled = search.graph.pairs[search.graph.pairs["count"] > 0]
    assert set(sampled["seen"]) == {1, 2}
    for pair in sampled:
        count, hits = int(pair["count"]), search.graph.hits[pair["start"] : pair["start"] + pair["seen"]]
        mixture = float(gammaln(hits + 0.5).sum() - gammaln(0.5) * len(hits) - gammaln(count + 1.0))  # of likelihoods
        likelihood = float(hits @ np.log(hits / count))
        level = (pair["log_odds"] + likelihood - mixture) / count
        assert math.isclose(pair["level"], level, rel_tol=1e-9)
        ends = bernoulli_lower(hits[0] / count, level), bernoulli_upper(hits[0] / count, level)
        np.testing.assert_allclose([pair["first_low"], pair["first_high"]], ends, rtol=1e-9)


def test_both_ends_of_a_mean_reward_share_what_it_may_spend() -> None:
    """After one sample, which is where an interval is no intersection yet."""
    search = begun(OTGapE(sp.HardMax(), 0.0, 0.2, sampling="trajectories"), ending(1, states=40))
    search.explore(0.0, 60, MANY)
    first = search.graph.pairs[search.graph.pairs["count"] == 1]
    assert len(first) > 10
    for pair in first:
        seen = float(pair["least"])
        odds = pair["log_odds"] + math.log(2.0) + math.log(2.0)  # two ends, and half of a fortune is staked whole
        ends = seen * math.exp(-odds), 1.0 - (1.0 - seen) * math.exp(-odds)
        np.testing.assert_allclose([pair["reward_low"], pair["reward_high"]], -3.0 + 10.0 * np.array(ends), rtol=1e-9)


# The bounds of one pair


@pytest.mark.parametrize("tail", ["honest", "zero"])
@pytest.mark.parametrize("rewards", [(1.0, 2.0), (-2.0, -1.0)])
def test_spans_contain_every_value_at_its_stage(rewards: tuple[float, float], tail: Any) -> None:
    """And 0 where episodes end, which rewards of one sign would leave out: the end is among what was not seen."""
    model = ending(0)
    constant = [np.full(model.probabilities.shape, reward) for reward in rewards]  # which reach the ends
    mixed = np.random.default_rng(0).uniform(*rewards, size=model.probabilities.shape)
    for given, ends in product((*constant, mixed), (False, True)):
        table = sp.TabularModel(
            model.probabilities,
            model.successors,
            given,
            discount=0.6,
            reward_kind="transition",
            reward_range=rewards,
            terminal=model.ends if ends else None,
        )
        for backup in (sp.HardMax(), sp.LogSumExp(0.5), by_state(table)):
            low, high = spans(table, backup, 4, tail).T
            values = exact(table, OTGapE(backup, 0.0, horizon=4, tail=tail))[:, ~table.terminal, 0]
            assert (low[:4, None] <= values + 1e-9).all()
            assert (values <= high[:4, None] + 1e-9).all()
            assert not ends or ((low <= 0.0) & (high >= 0.0)).all()
            assert ends or (low[0] > 0.0) == (rewards[0] > 0.0)


def interval_of_sets(search: Explorer, entry: int, later: int) -> tuple[float, float]:
    """The interval of an action value by its definition, from the counts and levels of a pair."""
    graph, rules = search.graph, search.rules
    pair = graph.pairs[entry]
    places = slice(int(pair["start"]), int(pair["start"] + pair["seen"]))
    shares, by_outcome = graph.hits[places] / pair["count"], rules.kind == BY_OUTCOME
    ends: list[float] = []
    for side in (-1, 1):
        span, values = (rules.span_low, graph.low) if side < 0 else (rules.span_high, graph.high)
        reward_edge = rules.reward_low + (rules.reward_width if side > 0 else 0.0)
        other = rules.discount * span[later] + (reward_edge if by_outcome else 0.0)
        worth = np.array([graph.rewards[place] if by_outcome else 0.0 for place in range(places.start, places.stop)])
        for i, successor in enumerate(graph.successors[places]):
            if successor != ENDED:
                after = span[later] if later == rules.stages else values[successor * rules.stages + later]
                worth[i] += rules.discount * after
        if pair["seen"] == rules.bound:
            other = -side * math.inf
        if rules.bound == 1:
            found = float(worth[0])
        elif rules.bound == 2:
            first, second = worth[0], worth[1] if len(worth) > 1 else other
            limits = bernoulli_lower(shares[0], pair["level"]), bernoulli_upper(shares[0], pair["level"])
            found = side * max(side * (x * first + (1.0 - x) * second) for x in limits)
        else:
            found = (ball_maximum if side > 0 else ball_minimum)(shares, worth, other, pair["level"])
        reward = 0.0 if by_outcome else float(pair["reward_low" if side < 0 else "reward_high"])
        ends.append(reward + found)
    return ends[0], ends[1]


@pytest.mark.parametrize("horizon", [None, 3])
@pytest.mark.parametrize("kind", ["deterministic", "bernoulli", "transition", "bounded"])
def test_the_interval_of_an_action_value_is_that_of_its_sets(kind: Any, horizon: int | None) -> None:
    """What was not seen may be worth anything, its reward included, until as many were seen as there can be."""
    met = set()
    for branching, successors in ((1, None), (2, None), (3, None), (3, 4)):
        by_pair = kind in ("deterministic", "bernoulli")
        model = (garnet if by_pair else ending)(3, branching=branching, kind=kind)
        search = begun(OTGapE(sp.HardMax(), 0.0, 0.1, horizon=horizon, successors=successors), model)
        for calls in (3, 20, 200):
            search.explore(0.0, calls, MANY)
            for entry in np.flatnonzero(search.graph.pairs["count"]).tolist():
                met.add((search.rules.bound, int(search.graph.pairs[entry]["seen"])))
                for later in [0] if horizon is None else range(1, horizon + 1):
                    found = sets._action_interval(search.graph, search.rules, entry, later, search.work.room)
                    assert found == pytest.approx(interval_of_sets(search, entry, later), rel=1e-9, abs=1e-9)
    doubled = {(2, 1), (2, 2), (6, 2), (6, 6), (8, 5)}
    assert met >= (doubled if kind == "bernoulli" else {(1, 1), (2, 1), (3, 2), (3, 3), (4, 3)})


# Rounding


def exact_values(model: sp.TabularModel) -> list[Fraction]:
    """The values of a model with one action and two successors, in rational arithmetic by Cramer's rule."""
    discount = Fraction(model.discount)
    (p, r), (q, s) = (
        (Fraction(float(chances[0, 0])), Fraction(float(reward[0])))
        for chances, reward in zip(model.probabilities, model.rewards, strict=True)
    )
    a, b, c, d = 1 - discount * p, -discount * (1 - p), -discount * q, 1 - discount * (1 - q)
    return [(r * d - b * s) / (a * d - b * c), (a * s - c * r) / (a * d - b * c)]


@pytest.mark.parametrize(("discount", "seen"), [(0.9, 3.0), (0.99, 12.0), (0.999, 0.0)])
def test_rounding_errors_of_sweeps_add_up_over_the_horizon(discount: float, seen: float) -> None:
    """They stay below the bound of Lemma 5.24 and, with a long horizon, exceed any fixed number of units."""
    largest = 0.0
    for seed in range(40 if discount < 0.999 else 5):
        rng = np.random.default_rng(seed)
        chances, rewards = rng.dirichlet(np.ones(2), size=(2, 1)), rng.random((2, 1))
        model = sp.TabularModel(
            chances, np.tile([0, 1], (2, 1, 1)), rewards, discount=discount, reward_range=(0.0, 1.0)
        )
        search = begun(OTGapE(sp.HardMax(), 0.0), model)
        for state in (0, 1):
            search.number(state)
            search.record(
                np.full(2, state), np.array([0, 1]), np.full(2, rewards[state, 0]), np.ones(2, dtype=np.int64)
            )
            pair = search.graph.pairs[state]
            pair["first_low"] = pair["first_high"] = chances[state, 0, 0]  # known for certain
        for _ in range(round(45.0 / (1.0 - discount))):
            search.sweep()
        for value, low, high in zip(exact_values(model), search.graph.low, search.graph.high, strict=False):
            error = max(Fraction(float(low)) - value, value - Fraction(float(high)))
            assert error <= 9 * Fraction(1, 2**53) * (1 + 1 / (1 - Fraction(discount))) / (1 - Fraction(discount))
            largest = max(largest, float(error) / math.ulp(float(value)))
    assert largest >= seen


# The best action


def test_a_certificate_holds_in_whichever_case_is_true() -> None:
    """No action values of any case contradict it, some attain its gap, and no other action has a smaller one."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = int(rng.integers(1, 4)), int(rng.integers(2, 5))
        cases = np.sort(rng.random((*shape, 2)), axis=-1) + rng.normal(size=(shape[0], 1, 1))
        gaps = np.full(shape[1], -np.inf)
        for (low, high), best in product(np.moveaxis(cases, -1, 1), range(shape[1])):
            worst = np.where(np.arange(shape[1]) == best, low, high)  # the action values that contradict it most
            gaps[best] = max(gaps[best], np.delete(worst, best).max() - worst[best])
        best, _, gap = best_action(cases)
        assert gap == gaps[best] == gaps.min()
