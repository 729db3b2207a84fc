"""Rounds of samples: converged bounds, what they prove, how samples are drawn, and when rounds take over from walks."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chi2

import smoothplan as sp
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup, discrete_cost
from smoothplan.confidence.kl import ball_maximum, ball_minimum
from smoothplan.confidence.thresholds import wager_regret
from smoothplan.models.base import States
from smoothplan.planners.gape import OTGapE
from smoothplan.search import batches
from smoothplan.search.converge import converge, new_side
from smoothplan.search.explorer import Explorer
from smoothplan.search.graph import BY_OUTCOME, ENDED, FIXED, PAIRS, ROUNDS, STATES, VARYING
from smoothplan.search.rounds import Rounds
from studies.recurrent import mixed
from tests.adversarial import ADVERSARIAL
from tests.common import begun, by_state, vectorised
from tests.test_gape import WITHOUT_UNION

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
    room, values, q = np.zeros(100), np.full(count, edge), np.zeros((count, rules.actions))
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
                q[state, action] = reward + ball_minimum(shares, worth, unseen, pair["level"], room)
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
