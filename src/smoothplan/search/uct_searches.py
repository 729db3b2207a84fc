"""Searches by UCT: compiled on tables, and in Python on any simulator; and what a checkpoint keeps of them."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

import numpy as np

from smoothplan.arguments import Floats, Ints
from smoothplan.models.base import Oracle
from smoothplan.models.tabular import TabularModel
from smoothplan.search import saved as saving
from smoothplan.search import uct
from smoothplan.search.explorer import Key
from smoothplan.search.saved import Arrays, Readable, require
from smoothplan.search.uct import NOWHERE, Rules, Tree, grown, new_tree
from smoothplan.streams import CALLS

FIRST_ROOM = 256
"""Nodes that a new tree has room for."""

GROWTH = 1.5
"""A tree that is full gets room for so many times as many nodes."""


class Search(ABC):
    """A search in progress.

    Args:
        rules: what is fixed.
        oracle: the simulator.
    """

    def __init__(self, rules: Rules, oracle: Oracle) -> None:
        self.rules, self.oracle = rules, oracle
        self.tree = self._new_tree(FIRST_ROOM)
        self._path = np.zeros((rules.depth, 2), dtype=np.int64)
        self._rewards = np.zeros(rules.depth)

    @abstractmethod
    def search(self, until: int, limit: int) -> None:
        """Rounds of the search.

        Args:
            until: no round begins after so many simulator calls in all.
            limit: no more calls are made in all. A round that it cuts short counts for nothing.
        """

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
        names = ["counts", "means", "least", "most"] + ["children"] * self.rules.open_loop
        arrays = {name: getattr(self.tree, name)[:size].copy() for name in names}
        return saving.oracle_arrays(self.oracle) | arrays | self._saved_nodes()

    def restore(self, arrays: Readable) -> None:
        """Goes back, or on, to what `saved` gave, of a search that was made with the same arguments.

        Raises:
            ValueError: they are no such arrays. The search is then as it was.
        """
        streams = saving.read_streams(arrays)
        counts = saving.piece(arrays, "counts", np.int64, None, self.rules.actions)
        size = len(counts)
        require(size > 0, "'counts' must have a root")
        require((counts >= 0).all(), "'counts' must not be negative")
        require(counts.sum(dtype=np.float64) <= int(streams[1][CALLS]), "'counts' must not go beyond the calls")
        tree = self._new_tree(max(FIRST_ROOM, size))
        tree.size[0] = size
        tree.counts[:size] = counts
        tree.means[:size] = saving.finite(arrays, "means", size, self.rules.actions)
        for name in ("least", "most"):
            ends = saving.piece(arrays, name, np.float64, size)
            require((np.isfinite(ends) == counts.any(axis=1)).all(), f"{name!r} must be that of the rounds")
            getattr(tree, name)[:size] = ends
        if self.rules.open_loop:
            tree.children[:size] = self._read_children(arrays, size)
        self._restore_nodes(arrays, tree)
        self.tree = tree
        saving.set_streams(self.oracle, streams)

    def _read_children(self, arrays: Readable, size: int) -> Any:
        children = saving.piece(arrays, "children", np.int32, size, self.rules.actions)
        parents, _ = np.nonzero(children != NOWHERE)
        found = children[children != NOWHERE]
        require(np.array_equal(np.sort(found), np.arange(1, size)), "'children' must name every node but the root once")
        require((found > parents).all(), "'children' must be younger than their parents")
        return children

    @abstractmethod
    def _new_tree(self, room: int) -> Tree:
        """A tree of a root."""

    @abstractmethod
    def _saved_nodes(self) -> Arrays:
        """What the nodes of a closed loop are."""

    @abstractmethod
    def _restore_nodes(self, arrays: Readable, tree: Tree) -> None:
        """Takes on what the nodes of a closed loop are, for a tree that has the rest."""

    def _grow(self) -> None:
        self.tree = grown(self.tree, self.rules, int(GROWTH * len(self.tree.keys)))


class TableSearch(Search):
    """The search on a table of transitions, all of it compiled."""

    def __init__(self, rules: Rules, oracle: Oracle, root: int, model: TabularModel) -> None:
        self._root, self._tables, self._states = root, model.tables, model.states
        super().__init__(rules, oracle)

    def search(self, until: int, limit: int) -> None:
        """See `Search`."""
        until = min(until, limit)
        steps, stream = (self._path, self._rewards), self.oracle.stream
        while uct.rounds(self.tree, self.rules, self._tables, self._root, until, limit, *steps, stream) == uct.FULL:
            self._grow()

    def _new_tree(self, room: int) -> Tree:
        tree = new_tree(self.rules, room, hashed=not self.rules.open_loop)
        tree.keys[0] = self._root * self.rules.depth
        if not self.rules.open_loop:
            uct.rehash(tree)
        return tree

    def _saved_nodes(self) -> Arrays:
        return {} if self.rules.open_loop else {"keys": self.tree.keys[: self.tree.size[0]].copy()}

    def _restore_nodes(self, arrays: Readable, tree: Tree) -> None:
        if self.rules.open_loop:
            return
        size = int(tree.size[0])
        keys = saving.piece(arrays, "keys", np.int64, size)
        require(keys[0] == tree.keys[0], "'keys' must begin with the root")
        most = self._states * self.rules.depth
        require(((keys >= 0) & (keys < most)).all(), f"'keys' must be states and depths, in 0..{most - 1}")
        require(len(np.unique(keys)) == size, "'keys' must differ")
        tree.keys[:size] = keys
        tree.slots[:] = NOWHERE
        uct.rehash(tree)


class KeyedSearch(Search):
    """The search on any simulator; the states of a closed loop are told apart by a key.

    Args:
        rules: what is fixed.
        oracle: the simulator.
        root: the state to plan at.
        key: what identifies a state, by default all its bytes.
    """

    def __init__(self, rules: Rules, oracle: Oracle, root: Any, key: Key | None) -> None:
        super().__init__(rules, oracle)
        self._key: Key = _bytes if key is None else key
        self._root = np.asarray(root)[()]  # a number is a number, as successors are
        if key is None and not rules.open_loop and np.asarray(root).dtype.hasobject:
            raise TypeError(f"key must be given for states of objects, whose bytes are addresses: got {root!r}")
        self._states: list[Any] = [self._root]  # [n], of the nodes of a closed loop, and their depths
        self._depths: list[int] = [0]
        self._numbers: dict[tuple[int, Hashable], int] = {} if rules.open_loop else {self._place(self._root, 0): 0}

    def search(self, until: int, limit: int) -> None:
        """See `Search`; the same rounds as `uct.rounds`."""
        while self.oracle.calls < min(until, limit):
            if self.tree.size[0] == len(self.tree.keys):
                self._grow()
            self._round(limit)

    def _round(self, limit: int) -> None:
        rules, stream = self.rules, self.oracle.stream
        state, node, depth, rest = self._root, 0, 0, 0.0
        while True:
            if self.oracle.calls >= limit:
                return
            action = uct.chosen(self.tree, rules, node, stream)
            self._path[depth] = node, action
            state, self._rewards[depth], end = self._step(state, action)
            depth += 1
            if end or depth == rules.depth:
                break
            node, known = self._node(node, action, state, depth)
            if not known:
                worth = self._rolled_out(state, depth, limit) if rules.rollout else float(rules.middle[depth])
                if worth is None:
                    return
                rest = worth
                break
        uct.back_up(self.tree, rules, self._path, self._rewards, depth, rest)

    def _node(self, parent: int, action: int, state: Any, depth: int) -> tuple[int, bool]:
        """The node that a step leads to, and whether it was there before."""
        if self.rules.open_loop:
            return uct.known_by_actions(self.tree, parent, action)
        place = self._place(state, depth)
        number = self._numbers.get(place)
        if number is not None:
            return number, True
        number = int(self.tree.size[0])
        self.tree.size[0] += 1
        self._states.append(state.copy())
        self._depths.append(depth)
        self._numbers[place] = number
        return number, False

    def _place(self, state: Any, depth: int) -> tuple[int, Hashable]:
        """What identifies a node of a closed loop."""
        key = self._key(state)
        try:
            hash(key)
        except TypeError:
            raise TypeError(f"key must return something hashable, got {key!r} of state {state.tolist()}") from None
        return depth, key

    def _rolled_out(self, state: Any, depth: int, limit: int) -> float | None:
        """The return of random actions from a state to the last depth; None where the calls were not enough."""
        total, weight = 0.0, 1.0
        for _ in range(depth, self.rules.depth):
            if self.oracle.calls >= limit:
                return None
            state, reward, end = self._step(state, uct.random_action(self.rules, self.oracle.stream))
            total += weight * reward
            if end:
                break
            weight *= self.rules.discount
        return total

    def _step(self, state: Any, action: int) -> tuple[Any, float, bool]:
        """One simulator call."""
        answer = self.oracle.sample(np.asarray(state)[None], np.array([action]))
        return answer.next_states[0], float(answer.rewards[0]), bool(answer.terminals[0])

    def _new_tree(self, room: int) -> Tree:
        return new_tree(self.rules, room, hashed=False)

    def _saved_nodes(self) -> Arrays:
        if self.rules.open_loop:
            return {}
        states = np.stack(self._states)
        if states.dtype.hasobject or states.dtype.kind not in "biufV":
            raise ValueError(f"a search is saved where states are made of numbers, got states of dtype {states.dtype}")
        return {"states": states, "depths": np.array(self._depths, dtype=np.int64)}

    def _restore_nodes(self, arrays: Readable, tree: Tree) -> None:
        if self.rules.open_loop:
            return
        size, root = int(tree.size[0]), np.asarray(self._root)
        states = saving.piece(arrays, "states", root.dtype, size, *root.shape)
        require(states[0].tobytes() == root.tobytes(), "'states' must begin with the root")
        require(root.dtype.kind != "f" or np.isfinite(states).all(), "'states' must be finite")
        depths = saving.piece(arrays, "depths", np.int64, size).tolist()
        require(depths[0] == 0, "'depths' must begin with the root")
        require(all(0 < depth < self.rules.depth for depth in depths[1:]), "'depths' must be those of a path")
        found = [state.copy() for state in states]
        try:
            numbers = {self._place(state, depths[number]): number for number, state in enumerate(found)}
        except Exception as error:  # of a key that was made for other states
            raise ValueError(f"the saved arrays do not fit: 'states' has one that is unknown: {error}") from error
        require(len(numbers) == size, "'states' of a depth must differ in their keys")
        self._states, self._depths, self._numbers = found, depths, numbers


def _bytes(state: Any) -> bytes:
    """All bytes of a state; the two zeros are one."""
    return bytes((state + 0.0 if state.dtype.kind == "f" else state).tobytes())
