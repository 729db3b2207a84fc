"""A backup that is no mixture of softmaxes, as a search calls it: compiled code calls back into Python."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from smoothplan import arguments, brake
from smoothplan.arguments import Floats
from smoothplan.backups import Backup

LOWER, POLICY, UPPER = -1, 0, 1
"""What a call is for: F of lower bounds, the policy at upper bounds, F of upper bounds."""


class Callback:
    """A backup at the action values in a frame, see `kernels.fill_frame`: F, or its policy as running sums.

    An error cannot pass through compiled code. It is kept until `check`; meanwhile calls leave the frame as it is, with
    what compiled code has written there, which proves nothing.

    Args:
        backup: F.
        frames: [1, 2, K + 1], where compiled code leaves the action values and finds what it asks for.
        state: from the key of a state in the graph to the state.
        stop: called after an error, to have compiled code return soon.
    """

    def __init__(self, backup: Backup, frames: Floats, state: Callable[[int], Any], stop: Callable[[], None]) -> None:
        self._backup, self._frame, self._state, self._stop = backup, frames[0], state, stop
        self._actions = frames.shape[2] - 1
        self._error: BaseException | None = None
        self.function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(self._call)

    def check(self) -> None:
        """Raises the error of an earlier call, if there was one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _call(self, key: int, wanted: int) -> None:
        if self._error is not None:
            return
        try:
            actions, answer, name = self._actions, self._frame[1], type(self._backup).__name__
            running = brake.current.get()
            if running is not None:
                running.check()
            q, states = self._frame[:1, :actions].copy(), np.asarray(self._state(key))[None]
            if wanted == POLICY:
                policy = arguments.distributions(f"policy of {name}", self._backup.policy(q, states), actions)
                answer[:actions] = np.cumsum(policy[0])
            else:
                answer[actions] = arguments.array(f"value of {name}", self._backup.value(q, states))[0]
        except BaseException as error:
            self._error = error
            self._stop()
