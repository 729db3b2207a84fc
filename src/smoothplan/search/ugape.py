"""UGapE (Gabillon et al., 2012) at the root: which action leads, which one challenges it, and the gap between them."""

from typing import NamedTuple

import numpy as np

from smoothplan.arguments import Floats
from smoothplan.compiling import compiled


class Certificate(NamedTuple):
    """No action is better than the best one by more than the gap."""

    best: int
    challenger: int
    gap: float


def leaders(low: Floats, high: Floats) -> tuple[int, int, float]:
    """The best action, its challenger and the gap, from lower and upper bounds [K] each; see `ugape`."""
    best = 0
    for action in range(1, len(low)):
        if low[action] > low[best] or (low[action] == low[best] and high[action] > high[best]):
            best = action
    if len(low) == 1:
        return 0, 0, 0.0
    challenger = 1 if best == 0 else 0
    for action in range(len(low)):
        if action != best and high[action] > high[challenger]:
            challenger = action
    return best, challenger, high[challenger] - low[best]


compiled_leaders = compiled(leaders, inner=True, merged=True)


def ugape(intervals: Floats) -> tuple[int, int | None, float]:
    """The best action, its challenger, and the gap U(challenger) − L(best), from intervals [K, 2] (the paper's UGapE).

    The best action has the largest lower bound; among equals the larger upper bound decides, then the order. With one
    action there is no challenger and no gap.
    """
    best, challenger, gap = leaders(intervals[:, 0], intervals[:, 1])
    return best, challenger if len(intervals) > 1 else None, float(gap)


def certificate(cases: Floats) -> Certificate:
    """The action with the smallest gap, where one of several cases holds: intervals [m, K, 2], of all actions in each.

    Only differences within a case matter: its intervals may be those of action values less something common to all.
    """
    actions = cases.shape[1]
    if actions == 1:
        return Certificate(0, 0, 0.0)
    excess = cases[:, None, :, 1] - cases[:, :, None, 0]  # [m, best, challenger]
    excess[:, np.arange(actions), np.arange(actions)] = -np.inf
    worst = excess.max(axis=0)
    gaps = worst.max(axis=1)
    best = int(np.argmin(gaps))
    return Certificate(best, int(np.argmax(worst[best])), float(gaps[best]))
