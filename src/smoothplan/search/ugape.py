"""UGapE (Gabillon et al., 2012) at the root: which action leads, which one challenges it, and the gap between them."""

import numpy as np

from smoothplan.arguments import Floats
from smoothplan.compiling import compiled


@compiled
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


def ugape(intervals: Floats) -> tuple[int, int | None, float]:
    """The best action, its challenger, and the gap U(challenger) − L(best), from intervals [K, 2] (the paper's UGapE).

    The best action has the largest lower bound; among equals the larger upper bound decides, then the order. With one
    action there is no challenger and no gap.
    """
    best, challenger, gap = leaders(*np.ascontiguousarray(intervals.T))
    return best, challenger if len(intervals) > 1 else None, gap
