"""Paired returns: what different first actions or policies earn from the same states under the same random numbers.

Group g of row i takes its first action and then follows its policy π_g, for H steps or to the end of the episode. A
function V̂ values the state that is reached:

    X(h) = Σ_{t<h} γ^t R_t + γ^h V̂(s_h),    h = one of some marks, the last of which is H.

Returns valued at an early mark have little noise and the errors of V̂; later ones have more noise, and less of its
errors.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base.arguments import Floats, Ints
from smoothplan.models.model import Oracle, States, Transition, horizon_of, too_long

Policy = Callable[[States], Ints]
"""From states [n, ...] to actions [n]."""


Values = Callable[[States], Floats]
"""V̂, from states [n, ...] to values [n]."""


class PairedReturns(NamedTuple):
    """Returns of n rows and G groups, valued at M marks."""

    valued: Floats  # X at every mark, [M, n, G]
    weights: Floats  # γ^h if the episode goes on at a mark, else 0: the weight of V̂ in X, [M, n, G]
    tails: Floats  # the part of X that is V̂'s, [M, n, G]
    steps: Ints  # steps made, [n, G]


def paired_returns(
    oracle: Oracle,
    states: States,
    policies: Sequence[Policy],
    value: Values,
    marks: Sequence[int],
    first: Ints | None = None,
    until: float = math.inf,
) -> PairedReturns:
    """Samples returns of policies, one for each group or one for all, from states [n, ...], valued at ascending marks.

    As long as row i goes on in every group, its groups draw the same random numbers, if the simulator draws alike from
    different states. Rows are independent of each other. The first actions of the groups [G] may be given. Returns are
    cut before the step with which the oracle would have made more than `until` calls, unless it is the first.

    Raises:
        ModelError: an episode has not ended after as many steps as the model's horizon.
    """
    count, groups = len(states), len(policies) if first is None else len(first)
    places = np.stack([states] * groups, axis=0)  # [G, n, ...]
    totals, steps = np.zeros((groups, count)), np.zeros((groups, count), dtype=np.int64)
    going = np.ones((groups, count), dtype=np.bool_)
    scale, discount, horizon = 1.0, oracle.model.discount, horizon_of(oracle.model)
    valued, weights, tails = np.zeros((3, len(marks), groups, count))

    def choose() -> Ints:
        chosen = np.zeros((groups, count), dtype=np.int64)
        if len(policies) == 1:
            chosen[going] = policies[0](places[going])
            return chosen
        for group in np.flatnonzero(going.any(axis=1)).tolist():
            rows = _some(going[group])
            chosen[group, rows] = policies[group](places[group, rows])
        return chosen

    def move(found: Transition, *where: Any) -> None:
        """Moves some rows on."""
        places[where], going[where] = found.next_states, ~found.terminals
        totals[where] += scale * found.rewards
        steps[where] += 1

    chosen = choose() if first is None else np.repeat(np.asarray(first)[:, None], count, axis=1)
    for step in range(1, marks[-1] + 1):
        together = np.asarray(going.all(axis=0) & (groups > 1))
        alone = going & ~together
        if together.any():
            rows = _some(together)
            pairs = ((places[group, rows], chosen[group, rows]) for group in range(groups))
            for group, found in enumerate(oracle.sample_alike(pairs)):
                move(found, group, rows)
        if alone.any():
            move(oracle.sample(places[alone], chosen[alone]), alone)
        scale *= discount
        left = int(going.sum())
        if step == horizon and left > 0:
            raise too_long(oracle.model, step, places[going][0])
        over = left == 0 or oracle.calls + left > until
        reached = [mark for mark, at in enumerate(marks) if at == step or (over and at > step)]
        if reached:
            tail = np.zeros((groups, count))
            if left > 0:
                tail[going] = scale * value(places[going])
            weights[reached], tails[reached], valued[reached] = scale * going, tail, totals + tail
        if over:
            break
        if step < marks[-1]:
            chosen = choose()
    by_row = (np.ascontiguousarray(array.swapaxes(-1, -2)) for array in (valued, weights, tails, steps))
    return PairedReturns._make(by_row)


def _some(rows: NDArray[np.bool_]) -> Any:
    """An index of some rows, which makes no copy if it is all of them."""
    return slice(None) if rows.all() else rows


# Tournaments between policies

LEAST_ROWS, LEAST_STEPS = 8, 10  # of a comparison between policies, if returns can be as long


class Outcome(NamedTuple):
    """The winner of a tournament, and its lead over the runner-up by paired returns, with its standard error."""

    winner: int
    second: int
    lead: float
    error: float


def tournament(
    oracle: Oracle,
    starts: Callable[[int], States],
    policies: Sequence[Policy],
    value: Values,
    horizon: int,
    calls: int,
    *,
    learnt: Sequence[bool] | None = None,
    favourite: int | None = None,
    level: float = 0.9,
    least_rows: int = LEAST_ROWS,
) -> Outcome | None:
    """Compares policies by paired returns, in rounds after which the better half goes on.

    Returns start at states that `starts` gives, have as many steps as the horizon at most, and V̂ values the states
    where they are cut. Policies that are not `learnt`, those that V̂ is not of, gain nothing by it beyond what the
    others gain. Another policy replaces the favourite only if it is better at a level, by a one-sided test. In a round
    each policy has `least_rows` returns at least, if they can be as long as `LEAST_STEPS`. There is no outcome with too
    few calls, or fewer than two policies.
    """
    left, until = list(range(len(policies))), oracle.calls + calls
    if len(left) < 2 or affordable(calls, horizon, least_rows) < len(left):
        return None
    rounds = max(1, (len(left) - 1).bit_length()) if least_rows > 1 else 1
    found = np.zeros((0, len(left)))
    for number in range(rounds):
        stop = oracle.calls + (until - oracle.calls) // (rounds - number)
        usual = steps = max(1, min(horizon, (stop - oracle.calls) // len(left) // least_rows))
        while (rows := (stop - oracle.calls) // (len(left) * usual)) > 0:  # again if episodes end early
            chosen = [policies[one] for one in left]
            more = paired_returns(oracle, starts(rows), chosen, value, [steps], until=stop)
            own = np.array([learnt is None or learnt[one] for one in left])
            valued, tails = more.valued[-1], more.tails[-1]
            if own.any():
                valued = valued - np.where(own, 0.0, np.maximum(tails - tails[:, own].max(axis=1, keepdims=True), 0.0))
            found, usual = np.concatenate([found, valued]), min(steps, math.ceil(1.25 * more.steps.mean()))
        order = np.argsort(-found.mean(axis=0), kind="stable")
        kept = order[: max(2, (len(left) + 1) // 2)]
        if favourite is not None and left.index(favourite) not in kept:
            kept[-1] = left.index(favourite)
        left, found = [left[place] for place in kept], found[:, kept]
    order = np.argsort(-found.mean(axis=0), kind="stable")
    first, second = (int(place) for place in order[:2])
    if favourite is not None:
        usual = left.index(favourite)
        lead, error = _lead(found[:, first] - found[:, usual])
        if first != usual:
            second = usual
            if lead <= quantile(level, len(found) - 1) * error:
                first, second = usual, first
    return Outcome(left[first], left[second], *_lead(found[:, first] - found[:, second]))


def affordable(calls: int, horizon: int, least_rows: int = LEAST_ROWS) -> int:
    """How many policies a number of calls can compare."""
    return calls // (least_rows * min(horizon, LEAST_STEPS))


def _lead(apart: Floats) -> tuple[float, float]:
    """The mean of differences, and its standard error."""
    return float(apart.mean()), float(apart.std(ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else math.inf


def quantile(level: float, freedom: int) -> float:
    """The quantile of Student's distribution at a level, by its expansion around the normal one (Fisher, Cornish).

    >>> [round(quantile(0.95, freedom), 2) for freedom in (10, 30, 1000)]  # 1.81, 1.70 and 1.65 in tables
    [1.81, 1.7, 1.65]
    """
    z = NormalDist().inv_cdf(level)
    if freedom < 1:
        return math.inf if level > 0.5 else -math.inf
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
