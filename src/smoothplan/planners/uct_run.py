"""The run of UCT: rounds in slices, and what they say of the root."""

import numpy as np

from smoothplan import curvature
from smoothplan.arguments import Floats
from smoothplan.planners.slices import in_slices
from smoothplan.running.run import Display, Planner, Root, Status
from smoothplan.running.workers import Workers
from smoothplan.search.saved import Arrays, Readable
from smoothplan.search.tree import TreeSearch


class UCTRun:
    """A run of UCT: slices of the search, with a look at the clock in between."""

    status: Status = "max_calls"
    identification = None
    diagnosis = None
    q_intervals = None

    def __init__(self, planner: Planner, root: Root, search: TreeSearch, by_visits: bool) -> None:
        self._root, self._search, self._by_visits = root, search, by_visits
        self.epsilon, self.delta = planner.epsilon, planner.delta
        self.interval = curvature.value_interval(root.model, planner.backup)

    def go(self, workers: Workers, display: Display) -> None:
        """Searches until a limit is reached. Rounds build on each other: one worker does all."""
        in_slices(self, self._explore, self._root.max_calls, workers, display)
        self.status = "max_calls"

    def _explore(self, until: int, limit: int) -> bool:
        self._search.search(until, limit)
        return False  # it has no end of its own

    def saved(self) -> Arrays:
        """The search as arrays, for a checkpoint."""
        return self._search.saved()

    def restore(self, arrays: Readable) -> None:
        """Takes on the search that was saved."""
        self._search.restore(arrays)

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self._search.oracle.calls

    @property
    def samples(self) -> int:
        """Rounds that were finished."""
        return int(self._search.counts.sum())

    @property
    def q(self) -> Floats:
        """Estimates of the action values, [K]."""
        return self._search.q

    @property
    def action(self) -> int:
        """The recommended action, of those that were tried."""
        counts = self._search.counts
        q = np.where(counts > 0, self.q, -np.inf)
        if self._by_visits:
            q = np.where(counts == counts.max(), q, -np.inf)
        return int(np.argmax(q))

    @property
    def value(self) -> float:
        """The estimate for that action, moved into the interval where it is outside."""
        low, high = self.interval
        return float(np.clip(self.q[self.action], low, high))
