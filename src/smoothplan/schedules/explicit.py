"""The explicit schedule: levels written down by a rule, not searched for, whose price is proved to be Õ(ε⁻³).

Biases fall by √γ from one level to the next, b_k = (W/2)·γ^(k/2). A fine level has the one before it as its linear
child, and a far coarser one, of a bias of about √b_k, for its reference. docs/proofs/prices.md has the proof. What runs
is the schedule that a search finds, or this one where it is cheaper.
"""

import math
from bisect import bisect_left
from dataclasses import replace

import numpy as np

from smoothplan import confidence
from smoothplan.schedules import level as arithmetic
from smoothplan.schedules.debias import MOST
from smoothplan.schedules.level import Certificate, Level, Problem, Return
from smoothplan.schedules.schedule import CERTAIN_SHARE, REFERENCE_SHARE, Schedule, shared_reference, trimmed

DERIVATIVES = 5
"""Derivatives of F that must be bounded: from the second to the sixth."""

SIZES = 4.0 * 2.0 ** np.arange(61)
"""Returns per action that a reference may have, from the number of blocks of a debiased level on."""


def explicit_schedule(problem: Problem, epsilon: float, delta: float, most: float = math.inf) -> Schedule | None:
    """The explicit schedule for ε < W/2; None where it costs more than `most` calls, or more than floats can count.

    Args:
        problem: of a backup whose derivatives are bounded up to the sixth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        most: calls.
    """
    gamma, bend = problem.discount, max(problem.derivatives[0], 1e-300)  # a backup of one action does not bend
    levels, costs = [Level("constant")], [0]
    returns = [arithmetic.one_step(problem, arithmetic.constant(problem))]
    # A quarter of ε is for the bias of the root's linear child, and a quarter for that of its reference.
    fine, radius = epsilon / 4.0, math.sqrt(epsilon / (4.0 * bend)) / 2.0
    while returns[-1].bias > min(fine, radius):
        bias = problem.width / 2.0 * gamma ** (len(levels) / 2.0)
        room = (1.0 - math.sqrt(gamma)) * bias  # what the linear child leaves, a third of it for the reference's bias
        found = _level(problem, returns, bias, _first(returns, math.sqrt(room / (3.0 * bend))))
        if found is None:
            return None
        level, proved = found
        costs.append(_cost(problem, level, costs))
        if costs[-1] > most:
            return None
        levels.append(level)
        # Calls are counted in `costs`, for floats may be too small for them.
        returns.append(arithmetic.one_step(problem, proved._replace(bias=bias, calls=0.0)))
    coarse, linear = _first(returns, radius), _first(returns, fine)
    through, share = returns[coarse], REFERENCE_SHARE * delta / problem.actions
    samples = math.ceil(confidence.bernstein_count(through.variance, through.width, radius, share))
    root = arithmetic.first_order(problem, shared_reference(problem, through, samples, delta), returns[linear])
    room, share = epsilon - root.bias, CERTAIN_SHARE * delta
    repeats = math.ceil(confidence.bernstein_count(root.variance, root.high - root.low, room, share))
    top = Level("order-1", samples=samples, reference=coarse, linear=linear, shift=float(root.shift))
    schedule = Schedule(problem, trimmed([*levels, top]), repeats, epsilon, delta)
    return schedule if schedule.calls <= most else None


def _first(returns: list[Return], bias: float) -> int:
    """The first level whose return has no more than this bias, or the number of levels: biases fall."""
    return bisect_left(returns, -bias, key=lambda through: -float(through.bias))


def _level(problem: Problem, returns: list[Return], bias: float, coarse: int) -> tuple[Level, Certificate] | None:
    """A level of this bias: order 1 around a coarse reference, debiased; plug-in where no level is fine enough for it.

    It takes the least of `SIZES` that will do; None where none does.
    """
    last = len(returns) - 1
    if coarse > last:
        level = Level("plug-in", samples=1, reference=last)
        certificate = arithmetic.plug_in(problem, returns[last], arithmetic.reference(problem, returns[last], SIZES))
    else:
        level = Level("order-1", samples=2**MOST, reference=coarse, debias=MOST, linear=last)
        around = arithmetic.reference(problem, returns[coarse], SIZES)
        certificate = arithmetic.first_order(problem, around, returns[last], debias=MOST)
    reached = np.flatnonzero(certificate.bias <= bias)
    if len(reached) == 0:
        return None
    size = int(reached[0])
    proved = Certificate(*(float(column[size] if np.ndim(column) else column) for column in certificate))
    return replace(level, samples=int(SIZES[size]), shift=proved.shift), proved


def _cost(problem: Problem, level: Level, costs: list[int]) -> int:
    """Simulator calls of one sample."""
    assert level.reference is not None
    linear = 0 if level.linear is None else 1 + costs[level.linear]
    return problem.actions * level.samples * (1 + costs[level.reference]) + linear
