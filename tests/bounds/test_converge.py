"""Converged bounds: those of plain sweeps, and never on the wrong side."""

import math
from itertools import product

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.bounds.converge import converge, new_side
from smoothplan.bounds.gape import OTGapE
from smoothplan.graph.explorer import Explorer
from smoothplan.graph.graph import BY_OUTCOME, ENDED, FIXED, VARYING
from smoothplan.theory.backups import Backup
from tests.common import ball_maximum, ball_minimum, begun, bounded, by_state, recurrent

HARD = sp.HardMax()


MANY = 10**9
"""More walks than any search makes."""


def naive_bounds(search: Explorer, backup: Backup, side: int, anchor: int, value: float) -> tuple[Floats, Floats]:
    """Bounds of values [n] and action values [n, K] by sweeps over everything, from above or from below.

    Less `value`, which is the anchor's, where there is an anchor.
    """
    graph, rules = search.graph, search.rules
    count, discount = search.count, rules.discount
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


KINDS = {"deterministic": FIXED, "bernoulli": BY_OUTCOME, "transition": BY_OUTCOME, "bounded": VARYING}
"""Kinds of rewards, as a model declares them and in a search."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", range(3), ids=["hard", "log-sum-exp", "transport"])
def test_converged_bounds_are_those_of_plain_sweeps(which: int, kind: str) -> None:
    """To the tolerance, and never on the wrong side: of both sides, with and without an anchor."""
    tolerance = 1e-6
    # Few successors seen; all that there can be; and one that will never be seen.
    for seed, calls, bound in ((0, 12, None), (1, 300, 3), (2, 300, 4)):
        model = bounded(recurrent(seed, "transition")) if kind == "bounded" else recurrent(seed, kind)
        backup = three_backups(model)[which]
        search = begun(OTGapE(backup, 0.0, successors=bound), model, seed=seed)
        search.explore(0.0, calls, MANY)
        assert search.rules.kind == KINDS[kind]
        graph, rules = search.graph, search.rules
        others = [-1, 0, search.count - 1]
        for side, anchor in product((1, -1), others):
            value = float((graph.low if side > 0 else graph.high)[anchor])
            bounds = new_side(graph, rules, side, anchor, value)
            converge(graph, rules, bounds, search.work.frames, search.work.room, tolerance)
            values, q = naive_bounds(search, backup, side, anchor, value)
            excess = bounds.values - side * values
            excess_q = bounds.q.reshape(q.shape) - side * q
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
                converge(graph, rules, bounds, search.work.frames, search.work.room, math.inf)
                assert (bounds.values >= side * values - 1e-9).all()
                assert (bounds.q.reshape(q.shape) >= side * q - 1e-9).all()
