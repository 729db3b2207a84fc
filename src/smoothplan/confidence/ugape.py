"""UGapE's rule: the best action at the root and its challenger, from intervals of the action values."""

from smoothplan.base.arguments import Floats
from smoothplan.base.compiling import compiled


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
