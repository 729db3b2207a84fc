"""UCT (Kocsis and Szepesvári, 2006), a baseline: a tree search whose results are estimates.

A node of a closed loop is a state at a depth: equal states at equal depth share their statistics. A node of an open
loop is a sequence of actions. A node is known by the number under which it was added; the root is number 0. Every round
adds one node at most, and ends with the return that it drew, discounted, in the mean of every pair that it passed.

The loop is that of `smoothplan.graph.walks`: select an action, sample it, absorb the outcome. On a table all of it is
compiled; otherwise `proceed` returns for every sample, and its caller calls the simulator.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.base.records import Arrays, Readable
from smoothplan.base.streams import CALLS, Stream, uniform
from smoothplan.graph.explorer import NO_TABLE, Key, StateIndex, required_key, searched_table
from smoothplan.graph.graph import empty_slots, enter_all, slot_of, spans
from smoothplan.graph.sets import FULL
from smoothplan.graph.walks import PAUSED, SAMPLE
from smoothplan.models.model import GenerativeModel, Oracle, States, horizon_of, legal_actions, too_long
from smoothplan.models.tabular import Tables, draw
from smoothplan.run.progress import Display
from smoothplan.run.records import Root, Snapshot, Status
from smoothplan.run.workers import Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, is_mixture, required_backup

FIRST_NODES, MOST_DEPTH = 256, 10_000
"""Nodes that a new tree has room for; the largest depth: later steps are negligible at any discount below 0.999."""


@dataclass(frozen=True)
class UCT:
    """Upper confidence bounds applied to trees (Kocsis and Szepesvári, 2006): a baseline, without a guarantee.

    Every round goes down the tree by the action with the largest Q + c·w·√(log N / n), untried ones first and in random
    order; adds a node where it leaves the tree; evaluates that node; and puts its discounted return into the mean Q of
    every pair on its way. The scale w is the range of the returns seen from that node on: declared ranges are often
    many times wider.

    It has no end of its own, so `plan` needs `max_calls` or `max_seconds`. A round that is cut short by the limit
    counts for nothing. Values and action are estimates. The interval of the result is that of the declared values.

    Args:
        backup: the hard maximum.
        epsilon: the depth of the tree if no depth is given: rewards beyond it are worth ε at most. They count as 0. A
            tree is no deeper than the model's horizon.
        depth: D, steps of a round, at most.
        loop: "closed": a node is a state at a depth, and equal states share their statistics; "open": a node is a
            sequence of actions, for simulators whose states never repeat. An open loop converges to the best such
            sequence, which may be worse than reacting to the state.
        exploration: c. UCB1 has √2 for returns whose range is 1 (Auer, Cesa-Bianchi and Fischer, 2002). Regrets on nine
            models hardly differed between 0.5 and √2; below, a search may settle on a wrong action.
        rollout: the value of a new node: "random", the return of random actions to the depth; "none", the middle of the
            possible values, which is better if calls are few for the depth, and bad if an episode ends at its goal.
        key: identifies a state of a closed loop by something hashable; by default the state itself.
    """

    backup: Backup = field(default_factory=HardMax)
    epsilon: float = 0.1
    depth: int | None = None
    loop: Literal["closed", "open"] = "closed"
    exploration: float = 1.0
    rollout: Literal["random", "none"] | None = "random"
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
        object.__setattr__(self, "rollout", "none" if self.rollout is None else self.rollout)  # None is a spec's word
        arguments.one_of("loop", self.loop, "closed", "open")
        arguments.one_of("rollout", self.rollout, "random", "none")
        required_key(self.key)
        if self.key is not None and self.loop == "open":
            raise ValueError(f"key is for loop='closed': an open loop tells no states apart, got {self.key!r}")

    def start(self, root: Root) -> "UCTRun":
        """A search that knows nothing but the root."""
        if root.max_calls is None and root.max_seconds is None:
            raise ValueError("UCT needs a limit, max_calls or max_seconds, because it has no end of its own")
        return UCTRun(self, root)

    def depth_for(self, model: GenerativeModel) -> int:
        """The depth of the tree: as given, or such that rewards beyond it are worth ε at most, either way."""
        if self.depth is not None:
            return self.depth
        largest = max(map(abs, curvature.value_interval(model, self.backup)))
        if model.discount == 0.0 or model.discount * largest <= self.epsilon:
            return 1
        depth: float = horizon_of(model) or math.inf
        if model.discount < 1.0:
            depth = min(depth, math.ceil((math.log(self.epsilon) - math.log(largest)) / math.log(model.discount)))
        if depth > MOST_DEPTH:
            raise ValueError(
                f"epsilon must be larger, got {self.epsilon:g}: rewards beyond the largest depth, {MOST_DEPTH:,}, may "
                f"be worth {model.discount**MOST_DEPTH * largest:.2g}; or give the depth that you want"
            )
        return int(depth)


# The tree

TREE_STATE = np.dtype(
    [
        # The round.
        ("action", np.int64),  # to sample next
        ("depth", np.int64),  # of the path in the tree
        ("rolled", np.int64),  # the depth of a rollout below the tree; 0 if there is none
        ("node", np.int64),
        ("total", np.float64),  # the return of the rollout so far
        ("weight", np.float64),  # the discount of its next reward
        ("waiting", np.bool_),  # whether an outcome is still to be absorbed
        ("state", np.int64),  # the outcome of a sample of a simulator: the number of the next state
        ("reward", np.float64),
        ("end", np.bool_),  # of the episode
        # The request.
        ("until", np.int64),  # no round begins after this many calls in all
        ("limit", np.int64),  # and no call is made after this many
        ("root", np.int64),  # the number of the root's state
    ],
    align=True,
)
"""The state of a tree search between two samples."""


class Tree(NamedTuple):
    """The arrays. There is room for N nodes."""

    keys: Ints  # [N], state·D + depth of a node of a closed loop; parent·K + action + 1 of an open loop
    counts: Ints  # [N, K], rounds that passed a pair
    means: Floats  # [N, K], of their returns from there on
    least: Floats  # [N], the smallest return from there on that was seen
    most: Floats  # [N]
    slots: NDArray[np.int32]  # hash table of nodes by key
    size: Ints  # [1], the number of nodes


class TreeRules(NamedTuple):
    """The constants of a tree search."""

    actions: int  # K
    depth: int  # D
    discount: float
    open_loop: bool
    exploration: float  # c
    rollout: bool  # whether a random rollout gives the value of a new node
    middle: Floats  # [D + 1], its value otherwise, at each depth


def resized(tree: Readable, room: int, actions: int) -> Tree:
    """A tree of these arrays with room for `room` nodes; missing arrays are those of nodes that were never passed."""
    result = Tree(
        keys=np.zeros(room, dtype=np.int64),
        counts=np.zeros((room, actions), dtype=np.int64),
        means=np.zeros((room, actions)),
        least=np.full(room, np.inf),
        most=np.full(room, -np.inf),
        slots=empty_slots(room),
        size=np.zeros(1, dtype=np.int64),
    )
    for name in set(Tree._fields) & set(tree) - {"slots"}:
        getattr(result, name)[: len(tree[name])] = tree[name]
    enter_all(result.slots, result.keys, int(result.size[0]))
    return result


@partial(compiled, inner=True)
def ucb_action(tree: Tree, rules: TreeRules, node: int, legal: NDArray[np.bool_], stream: Stream) -> int:
    """An untried legal action at random, or else the one with the largest Q + c·w·√(log N / n).

    w is the range of the returns that were seen from the node on. Of equal bounds the one that was tried less often
    wins: if all returns were the same, all actions are tried equally often.
    """
    visits, untried = 0, 0
    for action in range(rules.actions):
        visits += tree.counts[node, action]
        untried += tree.counts[node, action] == 0 and legal[action]
    if untried > 0:
        left = int(uniform(stream) * untried)
        for action in range(rules.actions):
            left -= tree.counts[node, action] == 0 and legal[action]
            if left < 0:
                return action
    bonus = rules.exploration * (tree.most[node] - tree.least[node]) * math.sqrt(math.log(visits))
    best, highest = 0, -np.inf
    for action in range(rules.actions):
        count = tree.counts[node, action]
        bound = tree.means[node, action] + bonus / math.sqrt(count)
        if legal[action] and (bound > highest or (bound == highest and count < tree.counts[node, best])):
            best, highest = action, bound
    return best


@partial(compiled, inner=True)
def any_legal(legal: NDArray[np.bool_], stream: Stream) -> int:
    """A random legal action."""
    left = int(uniform(stream) * legal.sum())
    for action in range(len(legal)):
        left -= legal[action]
        if left < 0:
            return action
    return len(legal) - 1


@compiled
def proceed(
    tree: Tree,
    rules: TreeRules,
    tables: Tables,
    loop: NDArray[np.void],
    path: Ints,
    rewards: Floats,
    legal: NDArray[np.bool_],
    stream: Stream,
) -> int:
    """Goes on with a tree search until it is `PAUSED`, is `FULL`, or waits for a `SAMPLE` of `loop.action`.

    If the tables are empty, `SAMPLE` is returned. `loop` [1] is the request, the state of the search, and the outcome
    of a sample that was asked for; `path` [D, 2] and `rewards` [D] are the round's. `legal` has the legal actions of
    each state of the table, [S, K], or those of the root and of the present state of a simulator, [2, K].
    """
    now = loop[0]
    node, depth, rolled = now.node, now.depth, now.rolled
    action, total, weight, waiting = now.action, now.total, now.weight, now.waiting
    state, reward, end = now.state, now.reward, now.end
    while True:
        if waiting:  # absorb the outcome
            over = end
            if rolled > 0:
                total += weight * reward
                weight *= rules.discount
                rolled += 1
                over = over or rolled == rules.depth
            else:
                rewards[depth] = reward
                depth += 1
                total = 0.0
                over = over or depth == rules.depth
                if not over:  # the node that the step leads to: a known one, or a new one
                    size = int(tree.size[0])
                    key = node * rules.actions + action + 1 if rules.open_loop else state * rules.depth + depth
                    slot = slot_of(tree.slots, tree.keys, key)
                    node = int(tree.slots[slot])
                    if node < 0:
                        tree.slots[slot], tree.keys[size] = size, key
                        tree.size[0] += 1
                        if rules.rollout:
                            rolled, weight = depth, 1.0
                        else:
                            total, over = rules.middle[depth], True
            if over:  # the return of the round goes into the means along its path
                for step in range(depth - 1, -1, -1):
                    passed, taken = path[step, 0], path[step, 1]
                    total = rewards[step] + rules.discount * total
                    tree.counts[passed, taken] += 1
                    tree.means[passed, taken] += (total - tree.means[passed, taken]) / tree.counts[passed, taken]
                    tree.least[passed] = min(tree.least[passed], total)
                    tree.most[passed] = max(tree.most[passed], total)
                depth = rolled = 0

        # Select an action: at the root of a new round, further down, or in a rollout.
        waiting = False
        calls = int(stream[CALLS])
        if depth == 0:
            node, state = 0, now.root
            if calls >= now.until or tree.size[0] == len(tree.keys):
                now.depth, now.rolled, now.waiting = 0, 0, False
                return PAUSED if calls >= now.until else FULL
        if calls >= now.limit:
            return PAUSED  # an unfinished round counts for nothing
        row = state if len(tables.outcomes) > 0 else min(depth, 1)
        if rolled > 0:
            action = any_legal(legal[row], stream)
        else:
            action = ucb_action(tree, rules, node, legal[row], stream)
            path[depth, 0], path[depth, 1] = node, action
        waiting = True

        # Sample it.
        if len(tables.outcomes) == 0:
            now.node, now.depth, now.rolled = node, depth, rolled
            now.action, now.total, now.weight, now.waiting = action, total, weight, True
            return SAMPLE
        state, reward, end = draw(tables, state, action, stream)


class UCTRun:
    """A tree search at work."""

    def __init__(self, planner: UCT, root: Root) -> None:
        table, model = searched_table(root, planner.key, planner.backup), root.model
        curvature.require_rewards(model, "UCT")
        self._planner, self._limit, depth = planner, root.max_calls, planner.depth_for(root.model)
        self.interval = curvature.value_interval(model, planner.backup)
        self.rules = TreeRules(
            actions=model.actions,
            depth=depth,
            discount=model.discount,
            open_loop=planner.loop == "open",
            exploration=planner.exploration,
            rollout=planner.rollout == "random",
            middle=arguments.frozen(spans(model, planner.backup, depth, "zero").mean(axis=1)),
        )
        self.oracle = Oracle(model, root.seed)
        self._tables = NO_TABLE if table is None else table.tables
        self._root = np.asarray(root.state)[None]
        self._index = StateIndex(root.state, planner.key) if table is None and not self.rules.open_loop else None
        self._first = 0 if table is None else int(root.state)  # the number of the root
        key = 0 if self.rules.open_loop else self._first * self.rules.depth
        self.tree = resized({"keys": np.array([key]), "size": np.array([1])}, FIRST_NODES, model.actions)
        self._path, self._rewards = np.zeros((depth, 2), dtype=np.int64), np.zeros(depth)
        self._legal = np.ones((2 if table is None else table.states, model.actions), dtype=np.bool_)
        if table is not None and table.legal is not None:
            self._legal = table.legal.copy()
        self._note_legal(self._root, 0)

    def run(self, workers: Workers, display: Display) -> Status:
        """Searches until a limit is reached. Rounds build on each other, so one worker makes them."""

        def explore(until: int, limit: int) -> tuple[int, bool]:
            self.explore(until, limit)
            if display.shown:
                display.update(self.calls, self.interval)
            return self.calls, False  # it has no end of its own

        workers.in_slices(self, explore, self._limit)
        return "max_calls"

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self.oracle.calls

    def explore(self, until: int, limit: int) -> None:
        """Makes rounds. None begins after `until` simulator calls in all, and no call is made after `limit`."""
        loop, states = np.zeros(1, dtype=TREE_STATE), self._root
        loop["until"], loop["limit"], loop["root"], now = min(until, limit), limit, self._first, loop[0]
        while True:
            work = self._tables, loop, self._path, self._rewards, self._legal, self.oracle.stream
            verdict = proceed(self.tree, self.rules, *work)
            if verdict == FULL:
                self.tree = resized(self.tree._asdict(), int(1.5 * len(self.tree.keys)), self.rules.actions)
            elif verdict != SAMPLE:
                return
            else:
                action, depth, rolled = now.item()[:3]
                states, now["reward"], end = self._step(states if depth else self._root, action)
                now["end"], steps = end, max(depth, rolled) + 1
                if not end and steps == horizon_of(self.oracle.model):
                    raise too_long(self.oracle.model, steps, states[0])
                if not end:
                    self._note_legal(states, 1)
                if self._index is not None and not (rolled or end or depth == self.rules.depth - 1):
                    now["state"] = self._index.number(states[0])

    def _note_legal(self, states: States, row: int) -> None:
        """Notes the legal actions of a simulator's state [1, ...], the root in row 0 and the present one in row 1."""
        if len(self._tables.outcomes) == 0 and (legal := legal_actions(self.oracle.model, states)) is not None:
            self._legal[row] = legal[0]

    def _step(self, states: States, action: int) -> tuple[States, float, bool]:
        """One simulator call, at states [1, ...]."""
        states, (reward,), (end,) = self.oracle.sample(states, np.array([action]))
        return states, float(reward), bool(end)

    def result(self) -> Snapshot:
        """The recommended action, of those that were tried, and its mean return, clipped to the declared interval.

        Without a try, the estimate of an action value is the middle of the possible ones.
        """
        counts = self.tree.counts[0]
        q = np.where(counts > 0, self.tree.means[0], self.rules.middle[0])
        q = np.where(self._legal[self._first], q, -np.inf)
        action = int(np.argmax(np.where(counts > 0, q, -np.inf) if counts.any() else q))
        return Snapshot(
            value=float(np.clip(q[action], *self.interval)),
            interval=self.interval,
            action=action,
            q=q,
            calls=self.calls,
            samples=int(counts.sum()),  # rounds that were finished
            epsilon=self._planner.epsilon,
            delta=self._planner.delta,
        )

    def saved(self) -> Arrays:
        """The search between two rounds, as arrays with a row for each node."""
        size = int(self.tree.size[0])
        arrays = {name: array[:size].copy() for name, array in self.tree._asdict().items() if name != "slots"}
        states = {} if self._index is None else self._index.saved()
        return self.oracle.saved() | arrays | states

    def restore(self, arrays: Readable) -> None:
        """Takes on the arrays that `saved` gave, of a search that was made with the same arguments."""
        self._index = None if self._index is None else self._index.restored(arrays)
        self.oracle.restore(arrays)
        self.tree = resized(arrays, max(FIRST_NODES, len(arrays["keys"])), self.rules.actions)
