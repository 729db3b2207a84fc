"""UCT (Kocsis and Szepesvári, 2006), a baseline: a tree search whose results are estimates.

A node of a closed loop is a state at a depth: equal states at equal depth share their statistics. A node of an open
loop is a sequence of actions. A node is known by the number under which it was added; the root is number 0. Every round
adds one node at most, and ends with the return that it drew, discounted, in the mean of every pair that it passed.

The loop is that of `smoothplan.graph.walks`: select an action, sample it, absorb the outcome. On a table all of it is
compiled; otherwise `proceed` returns for every sample, and its caller calls the simulator.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.base.records import Arrays, Readable, finite, piece, require
from smoothplan.base.streams import CALLS, Stream, uniform
from smoothplan.graph.explorer import NO_TABLE, Key, StateIndex, searched_table
from smoothplan.graph.graph import NOWHERE, empty_slots, enter_all, slot_of, spans
from smoothplan.graph.walks import FULL, PAUSED, SAMPLE
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.models.tabular import Tables, draw
from smoothplan.run.progress import Display
from smoothplan.run.records import Root, Snapshot, Status
from smoothplan.run.session import in_slices
from smoothplan.run.workers import Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, is_mixture, required_backup

FIRST_NODES, MOST_DEPTH = 256, 10_000
"""Nodes that a new tree has room for; the largest depth: later steps are negligible at any discount below 0.999."""


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

    def start(self, root: Root) -> "UCTRun":
        """A search that knows nothing but the root."""
        if root.max_calls is None and root.max_seconds is None:
            raise ValueError("UCT needs a limit, max_calls or max_seconds, for it has no end of its own: got neither")
        return UCTRun(self, root)

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

    def rules(self, model: GenerativeModel) -> "TreeRules":
        """What does not change during a search of the model."""
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


# The tree

TREE_STATE = np.dtype(
    [
        # The round.
        ("action", np.int64),  # to sample next
        ("depth", np.int64),  # of the path in the tree
        ("rolled", np.int64),  # the depth of a rollout below the tree; 0 where there is none
        ("node", np.int64),
        ("total", np.float64),  # what the rollout has returned
        ("weight", np.float64),  # the discount of its next reward
        ("waiting", np.bool_),  # whether an outcome is still to be absorbed
        # What the caller asks for.
        ("until", np.int64),  # no round begins after this many calls in all
        ("limit", np.int64),  # and no call is made after this many
    ],
    align=True,
)
"""Where a tree search stands between two samples."""


class Tree(NamedTuple):
    """The arrays. There is room for N nodes."""

    keys: Ints  # [N], state · D + depth of a node of a closed loop
    counts: Ints  # [N, K], rounds that passed a pair
    means: Floats  # [N, K], of their returns from there on
    least: Floats  # [N], the smallest return from there on that was seen
    most: Floats  # [N]
    children: NDArray[np.int32]  # [N, K], of an open loop; [1, K] otherwise
    slots: NDArray[np.int32]  # hash table of nodes by key
    size: Ints  # [1], how many nodes there are


class TreeRules(NamedTuple):
    """What does not change during a tree search."""

    actions: int  # K
    depth: int  # D
    discount: float
    open_loop: bool
    exploration: float  # c
    rollout: bool  # whether a new node is worth what a random rollout finds there
    middle: Floats  # [D + 1], what it is worth otherwise, at each depth


def new_tree(rules: TreeRules, room: int, root: int) -> Tree:
    """A tree of a root, with room for `room` nodes."""
    tree = Tree(
        keys=np.zeros(room, dtype=np.int64),
        counts=np.zeros((room, rules.actions), dtype=np.int64),
        means=np.zeros((room, rules.actions)),
        least=np.full(room, np.inf),
        most=np.full(room, -np.inf),
        children=np.full((room if rules.open_loop else 1, rules.actions), NOWHERE, dtype=np.int32),
        slots=empty_slots(1 if rules.open_loop else room),
        size=np.ones(1, dtype=np.int64),
    )
    tree.keys[0] = root * rules.depth
    enter_all(tree.slots, tree.keys, 1)
    return tree


@compiled
def ucb_action(tree: Tree, rules: TreeRules, node: int, stream: Stream) -> int:
    """An untried action at random, or else the one with the largest Q + c·w·√(log N / n).

    w is the range of the returns that were seen from the node on. Of equal bounds the one that was tried less often
    wins: where all returns were the same, all actions are tried equally often.
    """
    visits, untried = 0, 0
    for action in range(rules.actions):
        visits += tree.counts[node, action]
        untried += tree.counts[node, action] == 0
    if untried > 0:
        skipped = int(uniform(stream) * untried)
        for action in range(rules.actions):
            if tree.counts[node, action] == 0:
                if skipped == 0:
                    return action
                skipped -= 1
    bonus = rules.exploration * (tree.most[node] - tree.least[node]) * math.sqrt(math.log(visits))
    best, highest = 0, -np.inf
    for action in range(rules.actions):
        count = tree.counts[node, action]
        bound = tree.means[node, action] + bonus / math.sqrt(count)
        if bound > highest or (bound == highest and count < tree.counts[node, best]):
            best, highest = action, bound
    return best


@compiled
def proceed(
    tree: Tree,
    rules: TreeRules,
    outcomes: NDArray[np.void],
    width: int,
    loop: NDArray[np.void],
    path: Ints,
    rewards: Floats,
    state: int,
    reward: float,
    end: bool,
    stream: Stream,
) -> int:
    """Goes on with a tree search until it is `PAUSED`, is `FULL`, or waits for a `SAMPLE` of `loop.action`.

    Args:
        tree: what is known.
        rules: what is fixed.
        outcomes, width: of the `Tables` to sample from; without any outcomes, `SAMPLE` is returned.
        loop: [1] of `TREE_STATE`, what is asked for and where the search stands.
        path: [D, 2], the nodes and the actions of the round.
        rewards: [D], of these steps.
        state: the number of the state that the sample has led to, where it was asked for.
        reward: of that sample.
        end: whether it ended the episode.
        stream: of the oracle.
    """
    now = loop[0]
    node, depth, rolled = now.node, now.depth, now.rolled
    action, total, weight, waiting = now.action, now.total, now.weight, now.waiting
    tables = Tables(outcomes, rules.actions, width)
    root = tree.keys[0] // rules.depth
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
                if not over:
                    # The node that the step leads to: a known one, or a new one.
                    size = int(tree.size[0])
                    if rules.open_loop:
                        child = int(tree.children[node, action])
                        if child < 0:
                            tree.children[node, action] = size
                    else:
                        key = state * rules.depth + depth
                        slot = slot_of(tree.slots, tree.keys, key)
                        child = int(tree.slots[slot])
                        if child < 0:
                            tree.slots[slot], tree.keys[size] = size, key
                    node = child
                    if child < 0:
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
            node, state = 0, root
            if calls >= now.until or tree.size[0] == len(tree.keys):
                now.depth, now.rolled, now.waiting = 0, 0, False
                return PAUSED if calls >= now.until else FULL
        if calls >= now.limit:
            return PAUSED  # what was begun counts for nothing
        if rolled > 0:
            action = int(uniform(stream) * rules.actions)
        else:
            action = ucb_action(tree, rules, node, stream)
            path[depth, 0], path[depth, 1] = node, action
        waiting = True

        # Sample it.
        if len(outcomes) == 0:
            now.node, now.depth, now.rolled = node, depth, rolled
            now.action, now.total, now.weight, now.waiting = action, total, weight, True
            return SAMPLE
        state, reward, end = draw(tables, state, action, stream)


class UCTRun:
    """A tree search at work."""

    progress: None = None  # it proves nothing of an action

    def __init__(self, planner: UCT, root: Root) -> None:
        table = searched_table(root, planner.key, planner.backup)
        self._planner, self._limit = planner, root.max_calls
        self.interval = curvature.value_interval(root.model, planner.backup)
        self.rules = rules = planner.rules(root.model)
        self.oracle = Oracle(root.model, root.seed)
        self._tables = NO_TABLE if table is None else table.tables
        self._root = np.asarray(root.state)[None]
        self._known = StateIndex(root.state, planner.key) if table is None and not rules.open_loop else None
        self._first = 0 if table is None else int(root.state)  # the number of the root
        self.tree = new_tree(rules, FIRST_NODES, self._first)
        self._loop = np.zeros(1, dtype=TREE_STATE)
        self._path = np.zeros((rules.depth, 2), dtype=np.int64)
        self._rewards = np.zeros(rules.depth)

    def run(self, workers: Workers, display: Display) -> Status:
        """Searches until a limit is reached. Rounds build on each other, so one worker makes them."""
        in_slices(self, self.explore, self._limit, workers, display)
        return "max_calls"

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self.oracle.calls

    def explore(self, until: int, limit: int) -> bool:
        """Rounds of the search, which has no end of its own: always False.

        Args:
            until: no round begins after this many simulator calls in all.
            limit: no call is made after this many in all. A round that it cuts short counts for nothing.
        """
        self._loop[:] = np.zeros(1, dtype=TREE_STATE)
        self._loop["until"], self._loop["limit"] = min(until, limit), limit
        states, number, reward, end = self._root, 0, 0.0, False
        work = self._tables.outcomes, self._tables.width, self._loop, self._path, self._rewards
        stream = self.oracle.stream
        known, last = self._known, self.rules.depth - 1
        while True:
            verdict = proceed(self.tree, self.rules, *work, number, reward, end, stream)
            if verdict == FULL:
                self.tree = self._copied(int(1.5 * len(self.tree.keys)), self.tree._asdict())
            elif verdict != SAMPLE:
                return False
            else:
                action, depth, rolled = self._loop[0].item()[:3]
                states, reward, end = self._step(states if depth else self._root, action)
                if known is not None and not (rolled or end or depth == last):
                    number = known.find(states[0])
                    number = known.add(states[0]) if number < 0 else number

    def _step(self, states: States, action: int) -> tuple[States, float, bool]:
        """One simulator call, at states [1, ...]."""
        answer = self.oracle.sample(states, np.array([action]))
        return answer.next_states, float(answer.rewards[0]), bool(answer.terminals[0])

    @property
    def counts(self) -> Ints:
        """Rounds through each of the root's actions, [K]."""
        return np.array(self.tree.counts[0])

    @property
    def q(self) -> Floats:
        """The mean returns of the root's actions, [K]; the middle of all that is possible where one is untried."""
        return np.asarray(np.where(self.counts > 0, self.tree.means[0], self.rules.middle[0]))

    def result(self) -> Snapshot:
        """The recommended action, of those that were tried, and its mean return, clipped to the declared interval."""
        counts, means = self.counts, self.q
        candidates = np.where(counts > 0, means, -np.inf)
        if self._planner.recommendation == "visits":
            candidates = np.where(counts == counts.max(), candidates, -np.inf)
        action = int(np.argmax(candidates))
        return Snapshot(
            value=float(np.clip(means[action], *self.interval)),
            interval=self.interval,
            action=action,
            q=means,
            calls=self.calls,
            samples=int(counts.sum()),  # rounds that were finished
            epsilon=self._planner.epsilon,
            delta=self._planner.delta,
        )

    def saved(self) -> Arrays:
        """Everything that the search depends on from here, between two rounds of it: n nodes."""
        size = int(self.tree.size[0])
        names = ("counts", "means", "least", "most", "children" if self.rules.open_loop else "keys")
        arrays = {name: getattr(self.tree, name)[:size].copy() for name in names}
        states = {} if self._known is None else self._known.saved()
        return self.oracle.saved() | arrays | states

    def restore(self, arrays: Readable) -> None:
        """Takes on what `saved` gave, of a search that was made with the same arguments.

        Raises:
            ValueError: they are not such arrays. The search is then as it was.
        """
        actions = self.rules.actions
        counts = piece(arrays, "counts", np.int64, None, actions)
        size = len(counts)
        found = {"counts": counts, "means": finite(arrays, "means", size, actions), "size": np.array([size])}
        found |= {name: piece(arrays, name, np.float64, size) for name in ("least", "most")}
        known = self._known
        if self.rules.open_loop:
            children = found["children"] = piece(arrays, "children", np.int32, size, actions)
            require(size > 0 and (children < size).all(), "'children' must be nodes")
        else:
            keys = found["keys"] = piece(arrays, "keys", np.int64, size)
            require(size > 0 and keys[0] == self.tree.keys[0], "'keys' must begin with the root")
            known = None if known is None else known.restored(arrays)
        self.oracle.restore(arrays)
        self.tree, self._known = self._copied(max(FIRST_NODES, size), found), known

    def _copied(self, room: int, arrays: Readable) -> Tree:
        """The tree of these arrays, with room for `room` nodes."""
        result = new_tree(self.rules, room, self._first)
        for name in set(arrays) - {"slots"}:
            getattr(result, name)[: len(arrays[name])] = arrays[name]
        if not self.rules.open_loop:
            result.slots[:] = NOWHERE
            enter_all(result.slots, result.keys, int(result.size[0]))
        return result
