import numpy as np

from smoothplan.confidence.ugape import ugape


def test_leaders_are_found_by_their_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        intervals = np.sort(rng.integers(0, 4, size=(4, 2)), axis=1).astype(float)
        low, high = intervals.T
        best = int(np.lexsort((-high, -low))[0])
        challenger = int(np.where(np.arange(4) == best, -np.inf, high).argmax())
        assert ugape(intervals) == (best, challenger, high[challenger] - low[best])
