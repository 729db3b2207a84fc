"""UCT (Kocsis and Szepesvári, 2006): one tree search, on a table of transitions or on any simulator.

A node of a closed loop is a state at a depth: equal states at equal depth share their statistics. A node of an open
loop is a sequence of actions. A node is known by the number under which it was added; the root is number 0. Every round
adds one node at most, and ends with the return that it drew, discounted, in the mean of every pair that it passed.

The loop is that of `smoothplan.search.loop`: select an action, sample it, absorb the outcome. On a table all of it is
compiled; otherwise `proceed` returns for every sample, and its caller asks the simulator.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, Ints
from smoothplan.compiling import compiled
from smoothplan.models.base import Oracle, States
from smoothplan.models.tabular import Tables, TabularModel, draw
from smoothplan.search import saved as saving
from smoothplan.search.explorer import NO_TABLE
from smoothplan.search.graph import NOWHERE, empty_slots, enter_all, slot_of
from smoothplan.search.known import Key, KnownStates
from smoothplan.search.loop import FULL, PAUSED, SAMPLE
from smoothplan.search.saved import Arrays, Readable, require
from smoothplan.streams import CALLS, Stream, uniform

FIRST_NODES = 256
"""Nodes that a new tree has room for."""

TREE_TURN = np.dtype(
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
    wins: where all returns were the same, all actions get their turn.
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
    turn: NDArray[np.void],
    path: Ints,
    rewards: Floats,
    state: int,
    reward: float,
    end: bool,
    stream: Stream,
) -> int:
    """Goes on with a tree search until it is `PAUSED`, is `FULL`, or waits for a `SAMPLE` of `turn.action`.

    Args:
        tree: what is known.
        rules: what is fixed.
        outcomes, width: of the `Tables` to sample from; without any outcomes, `SAMPLE` is returned.
        turn: [1] of `TREE_TURN`, what is asked for and where the search stands.
        path: [D, 2], the nodes and the actions of the round.
        rewards: [D], of these steps.
        state: the number of the state that the sample has led to, where it was asked for.
        reward: of that sample.
        end: whether it ended the episode.
        stream: of the oracle.
    """
    me = turn[0]
    node, depth, rolled = me.node, me.depth, me.rolled
    action, total, weight, waiting = me.action, me.total, me.weight, me.waiting
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
            if calls >= me.until or tree.size[0] == len(tree.keys):
                me.depth, me.rolled, me.waiting = 0, 0, False
                return PAUSED if calls >= me.until else FULL
        if calls >= me.limit:
            return PAUSED  # what was begun counts for nothing
        if rolled > 0:
            action = int(uniform(stream) * rules.actions)
        else:
            action = ucb_action(tree, rules, node, stream)
            path[depth, 0], path[depth, 1] = node, action
        waiting = True

        # Sample it.
        if len(outcomes) == 0:
            me.node, me.depth, me.rolled = node, depth, rolled
            me.action, me.total, me.weight, me.waiting = action, total, weight, True
            return SAMPLE
        state, reward, end = draw(tables, state, action, stream)


class TreeSearch:
    """A tree search in progress.

    Args:
        rules: what is fixed.
        oracle: the simulator.
        root: the state to plan at.
        table: the simulator as a table, which compiled code draws from; None to call it through the oracle.
        key: what identifies a state of a closed loop on a simulator that is called, by default all its bytes.
    """

    def __init__(
        self, rules: TreeRules, oracle: Oracle, root: Any, table: TabularModel | None = None, key: Key | None = None
    ) -> None:
        self.rules, self.oracle = rules, oracle
        self._tables = NO_TABLE if table is None else table.tables
        self._root = np.asarray(root)[None]
        self._known = KnownStates(root, key) if table is None and not rules.open_loop else None
        self._first = 0 if table is None else int(root)  # the number of the root
        self.tree = new_tree(rules, FIRST_NODES, self._first)
        self._turn = np.zeros(1, dtype=TREE_TURN)
        self._path = np.zeros((rules.depth, 2), dtype=np.int64)
        self._rewards = np.zeros(rules.depth)

    def search(self, until: int, limit: int) -> None:
        """Rounds of the search.

        Args:
            until: no round begins after this many simulator calls in all.
            limit: no call is made after this many in all. A round that it cuts short counts for nothing.
        """
        self._turn[:] = np.zeros(1, dtype=TREE_TURN)
        self._turn["until"], self._turn["limit"] = min(until, limit), limit
        states, number, reward, end = self._root, 0, 0.0, False
        work = self._tables.outcomes, self._tables.width, self._turn, self._path, self._rewards
        stream = self.oracle.stream
        known, last = self._known, self.rules.depth - 1
        while True:
            verdict = proceed(self.tree, self.rules, *work, number, reward, end, stream)
            if verdict == FULL:
                self.tree = self._copied(int(1.5 * len(self.tree.keys)), self.tree._asdict())
            elif verdict != SAMPLE:
                return
            else:
                action, depth, rolled = self._turn[0].item()[:3]
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

    def saved(self) -> Arrays:
        """Everything that the search depends on from here, between two rounds of it: n nodes."""
        size = int(self.tree.size[0])
        names = ("counts", "means", "least", "most", "children" if self.rules.open_loop else "keys")
        arrays = {name: getattr(self.tree, name)[:size].copy() for name in names}
        states = {} if self._known is None else self._known.saved()
        return saving.oracle_arrays(self.oracle) | arrays | states

    def restore(self, arrays: Readable) -> None:
        """Takes on what `saved` gave, of a search that was made with the same arguments.

        Raises:
            ValueError: they are not such arrays. The search is then as it was.
        """
        streams, actions = saving.read_streams(arrays), self.rules.actions
        counts = saving.piece(arrays, "counts", np.int64, None, actions)
        size = len(counts)
        found = {"counts": counts, "means": saving.finite(arrays, "means", size, actions), "size": np.array([size])}
        found |= {name: saving.piece(arrays, name, np.float64, size) for name in ("least", "most")}
        known = self._known
        if self.rules.open_loop:
            children = found["children"] = saving.piece(arrays, "children", np.int32, size, actions)
            require(size > 0 and (children < size).all(), "'children' must be nodes")
        else:
            keys = found["keys"] = saving.piece(arrays, "keys", np.int64, size)
            require(size > 0 and keys[0] == self.tree.keys[0], "'keys' must begin with the root")
            known = None if known is None else known.restored(arrays)
        self.tree, self._known = self._copied(max(FIRST_NODES, size), found), known
        saving.set_streams(self.oracle, streams)

    def _copied(self, room: int, arrays: Readable) -> Tree:
        """The tree of these arrays, with room for `room` nodes."""
        result = new_tree(self.rules, room, self._first)
        for name in set(arrays) - {"slots"}:
            getattr(result, name)[: len(arrays[name])] = arrays[name]
        if not self.rules.open_loop:
            result.slots[:] = NOWHERE
            enter_all(result.slots, result.keys, int(result.size[0]))
        return result
