"""UCT, a baseline: its configuration, and its run. What it finds are estimates."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from smoothplan import arguments, curvature
from smoothplan.backups import Backup, HardMax, is_mixture, required_backup
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.planners.chunks import in_slices
from smoothplan.planners.engines import searched_table
from smoothplan.running.run import Display, Found, Root, Run, Standing, Status
from smoothplan.running.workers import Workers
from smoothplan.search.known import Key
from smoothplan.search.rules import spans
from smoothplan.search.tree import TreeRules, TreeSearch

MOST_DEPTH = 10_000
"""Of a tree: what lies beyond does not matter at any discount below 0.999."""


@dataclass(frozen=True)
class UCT:
    """Upper confidence bounds applied to trees (Kocsis and Szepesvári, 2006): a baseline, without a guarantee.

    Every round goes down a tree of what was seen, by the action with the largest Q + c·w·√(log N / n), untried ones
    first and in random order; adds a node where it leaves the tree; finds out what that is worth; and puts its
    discounted return into the mean Q of every pair on its way. The scale w is the range of the returns that were seen
    from that node on: what a model declares is often many times wider than what happens (by its rewards, a lake that
    pays 1 at its end may have values in [0, 20]), and a range that is seen needs no tuning for rewards of another size.

    It has no end of its own, so that `plan` needs `max_calls` or `max_seconds`. A round that is cut short by the limit
    counts for nothing. Values and action are estimates. The interval of the result is what the model declares.

    Args:
        backup: the hard maximum.
        epsilon: how deep the tree is where no depth is given: what lies beyond is worth ε at most. It then counts as 0.
        depth: D, steps of a round, at most.
        loop: "closed": a node is a state at a depth, and equal states share their statistics; "open": a node is a
            sequence of actions, for simulators whose states never repeat. An open loop converges to the best such
            sequence, which may be worse than reacting to what happens.
        exploration: c. UCB1 has √2 for returns whose range is 1 (Auer, Cesa-Bianchi and Fischer, 2002), and so has UCT:
            2·C_p with C_p = 1/√2. Regrets on nine models hardly differed between 0.5 and √2; below, a search may
            settle on a wrong action.
        rollout: what a new node is worth: "random", the return of random actions to the depth; "none", the middle of
            what is possible from there on. A rollout takes calls, but the middle may be far off: "none" is better
            where calls are few for the depth, and bad where an episode ends at its goal.
        recommendation: "value", the action with the best mean; "visits", the one that was tried most.
        key: what identifies a state of a closed loop, a function from a state to something hashable; by default the
            state itself.
    """

    backup: Backup = field(default_factory=HardMax)
    epsilon: float = 0.1
    depth: int | None = None
    loop: Literal["closed", "open"] = "closed"
    exploration: float = 1.0
    rollout: Literal["random", "none"] | None = "random"
    recommendation: Literal["value", "visits"] = "value"
    key: Key | None = None

    delta: ClassVar[float] = 0.0
    no_forecast: ClassVar[str] = "it goes on until a limit is reached: it never knows how close it is"

    def __post_init__(self) -> None:
        required_backup(self.backup)
        if not is_mixture(self.backup) or self.backup.temperature != 0.0:
            raise ValueError(f"UCT is for the hard maximum, got {self.backup!r}: use OTGapE")
        object.__setattr__(self, "epsilon", arguments.accuracy(self.epsilon))
        if self.depth is not None:
            object.__setattr__(self, "depth", arguments.whole("depth", self.depth, most=MOST_DEPTH))
        object.__setattr__(self, "exploration", arguments.bounded("exploration", self.exploration))
        if self.rollout is None:  # as a spec says it
            object.__setattr__(self, "rollout", "none")
        for name, choices in (
            ("loop", ("closed", "open")),
            ("rollout", ("random", "none")),
            ("recommendation", ("value", "visits")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be {choices[0]!r} or {choices[1]!r}, got {getattr(self, name)!r}")
        if self.key is not None and not callable(self.key):
            raise TypeError(f"key must be a function from a state to something hashable, got {self.key!r}")
        if self.key is not None and self.loop == "open":
            raise ValueError(f"key is for loop='closed': an open loop tells no states apart, got {self.key!r}")

    def begin(self, root: Root) -> Run:
        """A search that knows nothing but the root."""
        if root.max_calls is None and root.max_seconds is None:
            raise ValueError("UCT needs a limit, max_calls or max_seconds, for it has no end of its own: got neither")
        table, oracle = searched_table(root, self.key, self.backup), Oracle(root.model, root.seed)
        return UCTRun(self, root, TreeSearch(self._rules(root.model), oracle, root.state, table, self.key))

    def depth_for(self, model: GenerativeModel) -> int:
        """The depth of the tree: as given, or such that what lies beyond is worth ε at most, either way."""
        if self.depth is not None:
            return self.depth
        largest = max(map(abs, curvature.value_interval(model, self.backup)))
        if model.discount == 0.0 or model.discount * largest <= self.epsilon:
            return 1
        depth = math.ceil((math.log(self.epsilon) - math.log(largest)) / math.log(model.discount))
        if depth > MOST_DEPTH:
            raise ValueError(
                f"epsilon must be larger, got {self.epsilon:g}: beyond a depth of {MOST_DEPTH:,}, the most there is, "
                f"may lie {model.discount**MOST_DEPTH * largest:.2g}; or give the depth that you want"
            )
        return depth

    def _rules(self, model: GenerativeModel) -> TreeRules:
        depth = self.depth_for(model)
        possible = spans(model, self.backup, depth, "zero")
        return TreeRules(
            actions=model.actions,
            depth=depth,
            discount=model.discount,
            open_loop=self.loop == "open",
            exploration=self.exploration,
            rollout=self.rollout == "random",
            middle=arguments.frozen(possible.mean(axis=1)),
        )


class UCTRun:
    """A run of UCT: the search in slices, with a look at the clock in between."""

    def __init__(self, planner: UCT, root: Root, search: TreeSearch) -> None:
        self._planner, self._root, self.search = planner, root, search
        self.saved, self.restore = search.saved, search.restore
        self.interval = curvature.value_interval(root.model, planner.backup)
        self.standing: Standing | None = None  # it proves nothing of an action

    def go(self, workers: Workers, display: Display) -> Status:
        """Searches until a limit is reached. Rounds build on each other: one worker does all."""
        in_slices(self, self._root.max_calls, workers, display)
        return "max_calls"

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self.search.oracle.calls

    def explore(self, until: int, limit: int) -> bool:
        """Searches until a number of calls is made. It has no end of its own."""
        self.search.search(until, limit)
        return False

    def found(self) -> Found:
        """The recommended action, of those that were tried, and its mean return, clipped to the declared interval."""
        counts, means = self.search.counts, self.search.q
        candidates = np.where(counts > 0, means, -np.inf)
        if self._planner.recommendation == "visits":
            candidates = np.where(counts == counts.max(), candidates, -np.inf)
        action = int(np.argmax(candidates))
        return Found(
            value=float(np.clip(means[action], *self.interval)),
            interval=self.interval,
            action=action,
            q=means,
            calls=self.calls,
            samples=int(counts.sum()),  # rounds that were finished
            epsilon=self._planner.epsilon,
            delta=self._planner.delta,
        )
