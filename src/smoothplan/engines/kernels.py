"""What the compiled engines share: levels, softmaxes and frames in the form that compiled code reads.

A frame is an array [1 + J, K + 1] with a reference and its softmaxes; each depth of a recursion has one of its own.
Numba caches compiled code by the file of the caller: after a change here, `make clean` is due.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, frozen
from smoothplan.backups import Backup
from smoothplan.schedules.schedule import Schedule
from smoothplan.streams import Stream, compiled, uniform

CONSTANT, PLUG_IN, FIRST, SECOND = range(4)
KINDS = {"constant": CONSTANT, "plug-in": PLUG_IN, "order-1": FIRST, "order-2": SECOND}

ZERO_FRAME, GIVEN_FRAME, FIRST_FRAME = range(3)
"""Frames of the constant reference and of the root's reference, and the first of those that samples fill."""

GIVEN = -1
"""In place of the number of samples: the reference is there before the level is sampled."""

LEVEL = np.dtype(
    [
        ("kind", np.int64),
        ("samples", np.int64),
        ("reference", np.int64),  # −1 where there is none, and so below
        ("linear", np.int64),
        ("quadratic", np.int64),
        ("pairs", np.int64),
        ("equal_pairs", np.int64),  # whether pairs of one action are drawn too
        ("by_policy", np.int64),  # whether the linear term is centred by ⟨π, Q̂⟩
        ("clipped", np.int64),
        ("shift", np.float64),  # the constant itself, for the constant level
        ("low", np.float64),
        ("high", np.float64),
    ],
    align=True,
)
"""A level as compiled code sees it."""


class Softmaxes(NamedTuple):
    """A backup as a mixture of softmaxes over columns; see `transport.Columns`."""

    temperature: float  # 0 for the hard maximum
    shifts: Floats  # [J, K]
    weights: Floats  # [S, J], or [1, J] where they do not depend on the state


def softmaxes(backup: Backup, actions: int, states: int | None) -> Softmaxes:
    """A backup in the form that compiled code reads; `states` is the number of states of a table."""
    weights = backup.weights(None if states is None else np.arange(states))
    return Softmaxes(backup.temperature, frozen(backup.shifts(actions).T), frozen(np.atleast_2d(weights)))


def new_frames(schedule: Schedule, soft: Softmaxes) -> Floats:
    """Frames for a recursion through a schedule."""
    columns, actions = soft.shifts.shape
    return np.zeros((FIRST_FRAME + len(schedule.levels), 1 + columns, actions + 1))


def level_table(schedule: Schedule) -> NDArray[np.void]:
    """A schedule in the form that compiled code reads, [L] of `LEVEL`."""
    table = np.zeros(len(schedule.levels), dtype=LEVEL)
    for row, level in enumerate(schedule.levels):
        entry = table[row]
        entry["kind"] = KINDS[level.kind]
        entry["samples"] = level.samples if row < len(table) - 1 else GIVEN
        for name in ("reference", "linear", "quadratic"):
            child = getattr(level, name)
            entry[name] = -1 if child is None else child
        entry["pairs"] = level.pairs
        entry["equal_pairs"] = level.equal_pairs
        entry["by_policy"] = level.centring == "policy"
        entry["clipped"] = level.clip is not None
        entry["shift"] = level.shift + (schedule.problem.middle if level.kind == "constant" else 0.0)
        entry["low"], entry["high"] = level.clip or (-math.inf, math.inf)
    result: NDArray[np.void] = frozen(table)
    return result


@compiled
def fill_frame(frames: Floats, frame: int, soft: Softmaxes) -> None:
    """The softmaxes at the reference in a frame [1 + J, K + 1].

    Row 0 holds Q̂. Row 1 + j receives the running sums of the odds exp((Q̂_i − shift_ij − top)/η) over actions i, and
    behind them the soft maximum η log Σ_i exp((Q̂_i − shift_ij)/η).
    """
    columns, actions = soft.shifts.shape
    for j in range(columns):
        top = frames[frame, 0, 0] - soft.shifts[j, 0]
        for i in range(1, actions):
            top = max(top, frames[frame, 0, i] - soft.shifts[j, i])
        maximum = top
        if soft.temperature > 0.0:
            scale = 1.0 / soft.temperature
            total = 0.0
            for i in range(actions):
                total += math.exp((frames[frame, 0, i] - soft.shifts[j, i] - top) * scale)
                frames[frame, 1 + j, i] = total
            maximum += soft.temperature * math.log(total)
        frames[frame, 1 + j, actions] = maximum


@compiled
def frame_value(frames: Floats, frame: int, state: int, soft: Softmaxes) -> float:
    """F(Q̂) at the reference of a frame."""
    row = state if len(soft.weights) > 1 else 0
    columns, actions = soft.shifts.shape
    value = 0.0
    for j in range(columns):
        value += soft.weights[row, j] * frames[frame, 1 + j, actions]
    return value


@compiled
def draw_column(state: int, soft: Softmaxes, stream: Stream) -> int:
    """A column J ~ μ_s."""
    columns = len(soft.shifts)
    if columns == 1:
        return 0
    row = state if len(soft.weights) > 1 else 0
    level = uniform(stream)
    j = 0
    while j < columns - 1 and level >= soft.weights[row, j]:
        level -= soft.weights[row, j]
        j += 1
    return j


@compiled
def draw_action(frames: Floats, frame: int, column: int, stream: Stream) -> int:
    """An action A ~ p_·J at the reference of a frame."""
    last = frames.shape[2] - 2
    level = uniform(stream) * frames[frame, 1 + column, last]
    action = 0
    for i in range(last):
        action += level >= frames[frame, 1 + column, i]
    return action


@compiled
def policy_mean(frames: Floats, frame: int, state: int, soft: Softmaxes) -> float:
    """⟨π, Q̂⟩ at the reference of a frame."""
    row = state if len(soft.weights) > 1 else 0
    columns, actions = soft.shifts.shape
    mean = 0.0
    for j in range(columns):
        before, inner = 0.0, 0.0
        for i in range(actions):
            inner += (frames[frame, 1 + j, i] - before) * frames[frame, 0, i]
            before = frames[frame, 1 + j, i]
        mean += soft.weights[row, j] * inner / before
    return mean
