"""UCT (Kocsis and Szepesvári, 2006) on arrays that compiled code reads and fills: the tree, and rounds on a table.

A node of a closed loop is a state at a depth: equal states at equal depth share their statistics. A node of an open
loop is a sequence of actions. A node is known by the number under which it was added; the root is number 0. Every round
adds one node at most, and ends with the return that it drew, discounted, in the mean of every pair that it passed.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, Ints
from smoothplan.compiling import compiled
from smoothplan.models.tabular import Tables, draw
from smoothplan.search.graph import enter_all, slot_of
from smoothplan.streams import CALLS, Stream, uniform

NOWHERE = -1
"""In place of a node: there is none."""

LOAD = 2
"""Slots of the hash table per node that there is room for, at least."""

PAUSED, FULL = range(2)
"""Why `rounds` returned: enough calls were made; more room is needed."""


class Tree(NamedTuple):
    """The arrays. There is room for N nodes."""

    keys: Ints  # [N], state · D + depth of a node of a table's closed loop
    counts: Ints  # [N, K], rounds that passed a pair
    means: Floats  # [N, K], of their returns from there on
    least: Floats  # [N], the smallest return from there on that was seen
    most: Floats  # [N]
    children: NDArray[np.int32]  # [N, K], of an open loop; [1, K] otherwise
    slots: NDArray[np.int32]  # hash table of nodes by key; [1] where there is none
    size: Ints  # [1], how many nodes there are


class Rules(NamedTuple):
    """What does not change during a search."""

    actions: int  # K
    depth: int  # D
    discount: float
    open_loop: bool
    exploration: float  # c
    rollout: bool  # whether a new node is worth what a random rollout finds there
    middle: Floats  # [D + 1], what it is worth otherwise, at each depth


def new_tree(rules: Rules, room: int, hashed: bool) -> Tree:
    """A tree of a root, with room for so many nodes; with an empty hash table where nodes have keys."""
    return Tree(
        keys=np.zeros(room, dtype=np.int64),
        counts=np.zeros((room, rules.actions), dtype=np.int64),
        means=np.zeros((room, rules.actions)),
        least=np.full(room, np.inf),
        most=np.full(room, -np.inf),
        children=np.full((room if rules.open_loop else 1, rules.actions), NOWHERE, dtype=np.int32),
        slots=np.full(1 << (LOAD * room - 1).bit_length() if hashed else 1, NOWHERE, dtype=np.int32),
        size=np.ones(1, dtype=np.int64),
    )


def grown(tree: Tree, rules: Rules, room: int) -> Tree:
    """The same tree with room for more nodes."""
    hashed = len(tree.slots) > 1
    result = new_tree(rules, room, hashed)
    for name in ("keys", "counts", "means", "least", "most", "children", "size"):
        old = getattr(tree, name)
        getattr(result, name)[: len(old)] = old
    if hashed:
        rehash(result)
    return result


@compiled
def rehash(tree: Tree) -> None:
    """Fills an empty hash table with the nodes that there are."""
    enter_all(tree.slots, tree.keys, tree.size[0])


@compiled
def known_by_key(tree: Tree, key: int) -> tuple[int, bool]:
    """The node with that key, and whether it was there before."""
    slot = slot_of(tree.slots, tree.keys, key)
    if tree.slots[slot] >= 0:
        return int(tree.slots[slot]), True
    node = int(tree.size[0])
    tree.size[0] += 1
    tree.slots[slot] = node
    tree.keys[node] = key
    return node, False


@compiled
def known_by_actions(tree: Tree, parent: int, action: int) -> tuple[int, bool]:
    """The node after an action at another, and whether it was there before."""
    child = int(tree.children[parent, action])
    if child >= 0:
        return child, True
    node = int(tree.size[0])
    tree.size[0] += 1
    tree.children[parent, action] = node
    return node, False


@compiled
def chosen(tree: Tree, rules: Rules, node: int, stream: Stream) -> int:
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
def random_action(rules: Rules, stream: Stream) -> int:
    """An action of a rollout."""
    return int(uniform(stream) * rules.actions)


@compiled
def back_up(tree: Tree, rules: Rules, path: Ints, rewards: Floats, steps: int, rest: float) -> None:
    """Puts the return of a round into the means along its path.

    Args:
        tree: what is known.
        rules: what is fixed.
        path: [D, 2], the nodes and the actions.
        rewards: [D], of these steps.
        steps: how many.
        rest: the return after them.
    """
    total = rest
    for step in range(steps - 1, -1, -1):
        node, action = path[step, 0], path[step, 1]
        total = rewards[step] + rules.discount * total
        tree.counts[node, action] += 1
        tree.means[node, action] += (total - tree.means[node, action]) / tree.counts[node, action]
        tree.least[node] = min(tree.least[node], total)
        tree.most[node] = max(tree.most[node], total)


@compiled
def _rolled_out(rules: Rules, tables: Tables, state: int, depth: int, limit: int, stream: Stream) -> tuple[float, bool]:
    """The return of random actions from a state to the last depth; and whether the calls were enough."""
    total, weight = 0.0, 1.0
    while depth < rules.depth:
        if int(stream[CALLS]) >= limit:
            return total, False
        state, reward, end = draw(tables, state, random_action(rules, stream), stream)
        total += weight * reward
        if end:
            break
        weight *= rules.discount
        depth += 1
    return total, True


@compiled
def _round(
    tree: Tree, rules: Rules, tables: Tables, root: int, limit: int, path: Ints, rewards: Floats, stream: Stream
) -> bool:
    """One round; False where the calls that may be made, in all, were not enough, and it counts for nothing."""
    state, node, depth, rest = root, 0, 0, 0.0
    while True:
        if int(stream[CALLS]) >= limit:
            return False
        action = chosen(tree, rules, node, stream)
        path[depth, 0], path[depth, 1] = node, action
        state, rewards[depth], end = draw(tables, state, action, stream)
        depth += 1
        if end or depth == rules.depth:
            break
        if rules.open_loop:
            node, known = known_by_actions(tree, node, action)
        else:
            node, known = known_by_key(tree, state * rules.depth + depth)
        if not known:
            if rules.rollout:
                rest, enough = _rolled_out(rules, tables, state, depth, limit, stream)
                if not enough:
                    return False
            else:
                rest = rules.middle[depth]
            break
    back_up(tree, rules, path, rewards, depth, rest)
    return True


@compiled
def rounds(
    tree: Tree,
    rules: Rules,
    tables: Tables,
    root: int,
    until: int,
    limit: int,
    path: Ints,
    rewards: Floats,
    stream: Stream,
) -> int:
    """Rounds on a table, until one of the verdicts above; see `Search.search`."""
    while int(stream[CALLS]) < until:
        if tree.size[0] == len(tree.keys):
            return FULL
        _round(tree, rules, tables, root, limit, path, rewards, stream)
    return PAUSED
