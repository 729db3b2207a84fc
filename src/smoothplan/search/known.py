"""The states of a simulator that a search knows, told apart by their keys."""

import sys
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from smoothplan.search import saved as saving
from smoothplan.search.saved import Arrays, Readable, require

Key = Callable[[Any], Hashable]
"""What identifies a state: states with the same key are taken for the same."""


class KnownStates:
    """States of a simulator, numbered in the order of their discovery; the root is number 0.

    Args:
        root: the first state.
        key: what identifies a state, by default all its bytes.
    """

    def __init__(self, root: Any, key: Key | None) -> None:
        first = np.asarray(root)
        if key is None and first.dtype.hasobject:
            raise TypeError(f"key must be given for states of objects, whose bytes are addresses: got {root!r}")
        self._key: Key = _bytes if key is None else key
        self._numbers: dict[Hashable, int] = {}
        self.states: list[Any] = []
        state = first[()]  # a number is a number, as successors are
        self.find(state)  # complains of a key that is no key
        self.add(state)

    def find(self, state: Any) -> int:
        """The number of a state; −1 where it is not known."""
        key = self._key(state)
        try:
            return self._numbers.get(key, -1)
        except TypeError:
            raise TypeError(f"key must return something hashable, got {key!r} of state {state.tolist()}") from None

    def add(self, state: Any) -> int:
        """Numbers a state that is not known."""
        number = self._numbers[self._key(state)] = len(self.states)
        self.states.append(state.copy())
        return number

    @property
    def bytes(self) -> int:
        """Memory of states and keys."""
        states = sum(int(state.nbytes) for state in self.states)
        return states + sys.getsizeof(self._numbers) + sum(map(sys.getsizeof, self._numbers))

    def saved(self) -> Arrays:
        """The states, for a checkpoint."""
        states = np.stack(self.states)
        if states.dtype.hasobject or states.dtype.kind not in "biufV":
            raise ValueError(f"a search is saved where states are made of numbers, got states of dtype {states.dtype}")
        return {"states": states}

    def restored(self, arrays: Readable) -> "KnownStates":
        """What was saved, with the same root and the same key."""
        root = np.asarray(self.states[0])
        states = saving.piece(arrays, "states", root.dtype, None, *root.shape)
        require(len(states) > 0 and states[0].tobytes() == root.tobytes(), "'states' must begin with the root")
        result = KnownStates(root, self._key)
        for state in states[1:]:
            result.add(state)
        require(len(result._numbers) == len(states), "'states' must differ in their keys")
        return result


def _bytes(state: Any) -> bytes:
    """All bytes of a state; the two zeros are one."""
    return bytes((state + 0.0 if state.dtype.kind == "f" else state).tobytes())
