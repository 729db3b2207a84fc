"""The compiled engine: interprets a schedule with Numba, one state at a time, on tables of transitions.

One self-recursive function reads the table of levels. Its signature is explicit, no argument of a recursive call is a
literal, and it allocates nothing: each depth has a frame of its own. Four things make it fast:

- a pointer passes the data that all calls share, whose fields are read at the point of use;
- returns that go no further than the constant level are summed in a loop that keeps the random state in registers;
- the linear term of a level is its last, so that it is followed in a loop and not by recursion;
- a reference that is there before the level is sampled, constant or given, has its softmaxes ready in a frame.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from smoothplan.base.arguments import Floats, frozen
from smoothplan.base.compiling import compiled, pointer_to
from smoothplan.base.streams import CALLS, Stream, advance
from smoothplan.models.model import Oracle
from smoothplan.models.tabular import OUTCOME, Tables, TabularModel, first_outcome, select
from smoothplan.recursive.debias import DEBIASING, MOST, Debiased
from smoothplan.recursive.schedule import Schedule
from smoothplan.run.chunks import Sums
from smoothplan.theory.backups import SoftmaxMixture, softmaxes
from smoothplan.theory.softmaxes import Softmaxes, draw_action, draw_column, fill_frame, frame_value, policy_mean

# Frames of the constant reference and of the root's reference, and the first that samples fill; and the number 1. None
# is a literal: Numba would compile a function that gets one a second time.
ZERO_FRAME, GIVEN_FRAME, FIRST_FRAME = cast(tuple[int, int, int], tuple(np.arange(3)))
ONE = cast(int, np.int64(1))

LEVEL = np.dtype(
    [
        ("constant", np.int64),  # whether it is the constant level, whose value is `shift`
        ("samples", np.int64),  # −1 for the root, whose reference is given
        ("reference", np.int64),  # −1 if there is none, and so below
        ("linear", np.int64),
        ("quadratic", np.int64),
        ("pairs", np.int64),
        ("printed", np.int64),  # whether pairs of one action are drawn too, and ⟨π, Q̂⟩ centres the linear term
        ("clipped", np.int64),
        ("debias", np.int64),
        ("blocks", np.int64),  # 2^debias
        ("block_samples", np.int64),  # N/2^debias
        ("block_share", np.float64),  # 2^debias/N
        ("values", np.float64, (MOST + 1,)),  # weights of each F(Q̂_b) of a block b, by k
        ("slopes", np.float64, (MOST + 1,)),  # weights of each ⟨∇F(Q̂_b), Q̂_b − Q̂_b′⟩
        ("rewards", np.int64),  # M
        ("reward_share", np.float64),  # 1/M
        ("shift", np.float64),
        ("low", np.float64),
        ("high", np.float64),
    ],
    align=True,
)
"""A level as compiled code reads it."""


class Recursion(NamedTuple):
    """The data that the recursion reads, and the arrays that it writes to."""

    discount: float
    levels: NDArray[np.void]  # [L] of LEVEL
    tables: Tables
    soft: Softmaxes
    legal: NDArray[np.bool_]  # [S, K]; [0, K] if all actions are, everywhere
    frames: Floats  # [FIRST_FRAME + L, 1 + J + blocks, K + 1], one for each depth; the blocks are halves, then quarters
    stream: Stream


Pointer = Sequence[Recursion]
"""A pointer in compiled code: its entry 0 is the recursion."""


def _level_table(schedule: Schedule) -> NDArray[np.void]:
    """A schedule as compiled code reads it, [L] of `LEVEL`."""
    table = np.zeros(len(schedule.levels), dtype=LEVEL)
    for row, level in enumerate(schedule.levels):
        entry, is_root = table[row], row == len(table) - 1
        debias = 0 if is_root else level.debias
        entry["constant"] = level.kind == "constant"
        entry["samples"] = -1 if is_root else level.samples
        for name in ("reference", "linear", "quadratic"):
            child = getattr(level, name)
            entry[name] = -1 if child is None else child
        for name in ("pairs", "printed", "rewards"):
            entry[name] = getattr(level, name)
        entry["debias"], entry["blocks"], entry["block_samples"] = debias, 1 << debias, level.samples >> debias
        if debias > 0:
            entry["block_share"] = (1 << debias) / level.samples
            debiasing = DEBIASING[cast(Debiased, level.kind), debias]
            for name, weights in (("values", debiasing.values), ("slopes", debiasing.slopes)):
                entry[name][: len(weights)] = weights / 2.0 ** np.arange(len(weights))
        entry["reward_share"] = 1.0 / level.rewards
        entry["shift"] = schedule.guess(level) if level.kind == "constant" else level.shift
        entry["clipped"] = level.clip is not None
        entry["low"], entry["high"] = level.clip or (-math.inf, math.inf)
    return cast(NDArray[np.void], frozen(table))


@partial(compiled, inlined=True, inner=True)
def _draws(run: Pointer, state: int, action: int, count: int, rewards: int) -> tuple[float, int, int]:
    """Draws `count` returns that each average a number of rewards: the innermost loops.

    Returns the sum of all rewards, the number of returns that go on, and the last next state, negative if it ends.
    """
    tables, stream = run[0].tables, run[0].stream
    s0, s1, s2, s3 = stream[0], stream[1], stream[2], stream[3]
    start = first_outcome(tables, state, action)
    total, going_on, successor = 0.0, 0, 0
    for _ in range(count):
        word, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
        outcome = tables.outcomes[select(tables.outcomes, start, tables.width, word)]
        total += outcome.reward
        successor = outcome.successor
        going_on += successor >= 0
    for _ in range(count * (rewards - 1)):
        word, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
        total += tables.outcomes[select(tables.outcomes, start, tables.width, word)].reward
    stream[0], stream[1], stream[2], stream[3] = s0, s1, s2, s3
    stream[CALLS] += np.uint64(count * rewards)
    return total, going_on, successor


@partial(compiled, merged=True)
def _block_terms(q: Floats, sibling: Floats, shifts: Floats, scale: float) -> tuple[float, float, float]:
    """Of one column at a block's means [K]: the top score, the sum of the odds, and Σ odds·(Q̂_b − Q̂_b′).

    Means are −∞ for illegal actions, whose odds are 0.
    """
    # The best action's odds are 1 and need no exponential.
    if len(shifts) == 2:
        one, two = q[0] - shifts[0], q[1] - shifts[1]
        odds = math.exp(-abs(one - two) * scale)
        first = q[0] - sibling[0] if q[0] > -np.inf else 0.0
        second = q[1] - sibling[1] if q[1] > -np.inf else 0.0
        return max(one, two), 1.0 + odds, first + odds * second if one > two else second + odds * first
    best, top = 0, q[0] - shifts[0]
    for i in range(1, len(shifts)):
        score = q[i] - shifts[i]
        best = i if score > top else best
        top = max(top, score)
    total, inner, i = 1.0, q[best] - sibling[best], best
    for _ in range(1, len(shifts)):
        i = 0 if i == len(shifts) - 1 else i + 1  # around the circle
        odds = math.exp((q[i] - shifts[i] - top) * scale)
        total += odds
        inner += odds * (q[i] - sibling[i]) if odds > 0.0 else 0.0
    return top, total, inner


@partial(compiled, inlined=True, inner=True)
def _debiasing(frames: Floats, frame: int, state: int, level: Any, soft: Softmaxes) -> float:
    """The terms of halves and quarters that a debiased level adds to its multiple of F(Q̂)."""
    place = state if len(soft.weights) > 1 else 0
    columns, scale = len(soft.shifts), 1.0 / max(soft.temperature, 1e-300)  # 0 for the hard maximum
    value = 0.0
    for j in range(columns):
        first, blocks = 1 + columns, 2
        for k in range(1, level.debias + 1):
            tops, product, slope = 0.0, 1.0, 0.0
            for block in range(blocks):
                q, sibling = frames[frame, first + block], frames[frame, first + (block ^ 1)]
                top, total, inner = _block_terms(q, sibling, soft.shifts[j], scale)
                tops += top
                product *= total  # a logarithm of all is cheaper than one each
                if level.slopes[k] != 0.0:
                    slope += inner / total
            mean = level.values[k] * (tops + soft.temperature * math.log(product)) + level.slopes[k] * slope
            value += soft.weights[place, j] * mean
            first, blocks = first + blocks, 2 * blocks
    return value


def _signature() -> Any:
    """The types of `_sample`, read off a smallest instance of each argument."""
    import numba

    floats = frozen(np.zeros((1, 1)))
    run = Recursion(
        0.5,
        frozen(np.zeros(1, dtype=LEVEL)),
        Tables(frozen(np.zeros(1, dtype=OUTCOME)), 1, 1),
        Softmaxes(1.0, floats, floats),
        frozen(np.zeros((0, 1), dtype=np.bool_)),
        np.zeros((1, 1, 1)),
        np.zeros(5, np.uint64),
    )
    return numba.float64(numba.int64, numba.int64, numba.int64, numba.types.CPointer(numba.typeof(run)))


@partial(compiled, signature=_signature, inner=True)
def _sample(row: int, state: int, depth: int, run: Pointer) -> float:
    """One sample of a level at a state.

    `result` is the sum of a chain of linear terms so far; `scale`, the weight of the level that the chain has reached.

    No argument of a recursive call may be a literal: Numba would compile a second version and crash on loading it.
    Fields of `run` are read at the point of use: a local name for one would be saved around every recursive call.
    """
    result, scale = 0.0, 1.0
    while True:
        level = run[0].levels[row]
        if level.constant == 1:
            return float(result + scale * level.shift)

        # The reference Q̂: zeros, the root's, or the mean of N returns per action, in the frame of this depth.
        frame = ZERO_FRAME
        if level.samples < 0:
            frame = GIVEN_FRAME
        elif level.samples == 0 and len(run[0].legal) > 0:  # zeros for the legal actions
            frame = depth
            for action in range(run[0].tables.actions):
                run[0].frames[depth, 0, action] = 0.0 if run[0].legal[state, action] else -np.inf
            fill_frame(run[0].frames, depth, run[0].soft)
        elif level.samples > 0:
            frame = depth
            child = run[0].levels[level.reference]
            for action in range(run[0].tables.actions):
                if len(run[0].legal) > 0 and not run[0].legal[state, action]:
                    run[0].frames[depth, 0, action] = -np.inf
                    for place in range(1 + len(run[0].soft.shifts), run[0].frames.shape[1]):
                        run[0].frames[depth, place, action] = -np.inf
                    continue
                total, half = 0.0, 0.0
                for block in range(level.blocks):
                    part = 0.0
                    if child.constant == 1:
                        part, going_on, _ = _draws(run, state, action, level.block_samples, child.rewards)
                        part = part * child.reward_share + going_on * (run[0].discount * child.shift)
                    else:
                        for _ in range(level.block_samples):
                            reward, _, successor = _draws(run, state, action, ONE, child.rewards)
                            part += reward * child.reward_share
                            if successor >= 0:
                                part += run[0].discount * _sample(level.reference, successor, depth + 1, run)
                    total += part
                    if level.debias > 0:
                        part *= level.block_share
                        place = len(run[0].soft.shifts) + level.blocks - 1 + block
                        run[0].frames[depth, place, action] = part
                        if level.debias == 2 and block & 1 == 1:
                            run[0].frames[depth, len(run[0].soft.shifts) + 1 + (block >> 1), action] = half + 0.5 * part
                        half = 0.5 * part
                run[0].frames[depth, 0, action] = min(max(total / level.samples, level.low), level.high)
            fill_frame(run[0].frames, depth, run[0].soft)
        value = frame_value(run[0].frames, frame, state, run[0].soft)
        if level.debias > 0:
            value = level.values[0] * value + _debiasing(run[0].frames, depth, state, level, run[0].soft)
        value += level.shift

        # The quadratic term: two actions of one column, and the U-statistic of n paired differences of their returns.
        if level.quadratic >= 0:
            column = draw_column(state, run[0].soft, run[0].stream)
            first = draw_action(run[0].frames, frame, column, run[0].stream)
            second = draw_action(run[0].frames, frame, column, run[0].stream)
            if first != second or level.printed == 1:
                child = run[0].levels[level.quadratic]
                gap = run[0].frames[frame, 0, first] - run[0].frames[frame, 0, second]
                total, squares = 0.0, 0.0
                for _ in range(level.pairs):
                    difference, sign, action = -gap, 1.0, first
                    for _ in range(2):
                        reward, _, successor = _draws(run, state, action, ONE, child.rewards)
                        difference += sign * (reward * child.reward_share)
                        if successor >= 0:
                            future = child.shift
                            if child.constant == 0:
                                future = _sample(level.quadratic, successor, depth + 1, run)
                            difference += sign * run[0].discount * future
                        sign, action = -1.0, second
                    total += difference
                    squares += difference * difference
                spread = level.pairs * (level.pairs - 1) * 4.0 * run[0].soft.temperature
                value += (total * total - squares) / spread

        # The linear term: an action of the policy, centred. Unless this level clips, its return continues the loop.
        if level.linear < 0:
            return float(result + scale * min(max(value, level.low), level.high))
        action = draw_action(run[0].frames, frame, draw_column(state, run[0].soft, run[0].stream), run[0].stream)
        if level.printed == 0:
            value -= run[0].frames[frame, 0, action]
        else:
            value -= policy_mean(run[0].frames, frame, state, run[0].soft)
        child = run[0].levels[level.linear]
        reward, _, successor = _draws(run, state, action, ONE, child.rewards)
        value += reward * child.reward_share
        if level.clipped == 0 and successor >= 0:
            result += scale * value
            scale *= run[0].discount
            row, state = level.linear, successor
            continue
        if successor >= 0:
            value += run[0].discount * _sample(level.linear, successor, depth + 1, run)
        return float(result + scale * min(max(value, level.low), level.high))


@compiled
def _sum_samples(state: int, action: int, count: int, recursion: Recursion) -> tuple[float, float]:
    """Sum and sum of squares of returns of an action; or of root samples, if the action is negative.

    Returns go through the level of the root's reference, root samples are taken around the reference in its frame.
    """
    for frame in range(ZERO_FRAME, FIRST_FRAME):
        fill_frame(recursion.frames, frame, recursion.soft)
    run = pointer_to(recursion)
    row = len(recursion.levels) - 1
    if action >= 0:
        row = recursion.levels[row].reference
    child = recursion.levels[row]
    total, squares = 0.0, 0.0
    # Blocks of samples are summed first: one long sum of samples that are nearly alike would lose more digits than
    # confidence sequences allow for.
    block = 1024
    for start in range(0, count, block):
        added, added_squares = 0.0, 0.0
        for _ in range(min(block, count - start)):
            if action < 0:
                value = _sample(row, state, FIRST_FRAME, run)
            else:
                value, _, successor = _draws(run, state, action, ONE, child.rewards)
                value *= child.reward_share
                if successor >= 0:
                    value += recursion.discount * _sample(row, successor, FIRST_FRAME, run)
            added += value
            added_squares += value * value
        total, squares = total + added, squares + added_squares
    return total, squares


@dataclass(frozen=True, eq=False)
class CompiledEngine:
    """An interpreter of a schedule, for tabular models and mixtures of softmaxes. See `BatchedEngine`."""

    schedule: Schedule
    backup: SoftmaxMixture
    model: TabularModel

    compiled: ClassVar[bool] = True
    chunk_calls: ClassVar[int] = 1 << 21

    @cached_property
    def _tables(self) -> tuple[float, NDArray[np.void], Tables, Softmaxes, NDArray[np.bool_]]:
        model = self.model
        soft = softmaxes(self.backup, model.actions, model.states)
        legal = frozen(np.zeros((0, model.actions), dtype=np.bool_)) if model.legal is None else model.legal
        return model.discount, _level_table(self.schedule), model.tables, soft, legal

    def _run(self, stream: Stream) -> Recursion:
        columns, actions = self._tables[3].shifts.shape
        blocks = 2 * max(1 << level.debias for level in self.schedule.levels) - 2
        frames = np.zeros((FIRST_FRAME + len(self.schedule.levels), 1 + columns + blocks, actions + 1))
        return Recursion(*self._tables, frames, stream)

    def returns(self, oracle: Oracle, state: Any, action: int, count: int) -> Sums:
        """Returns of an action at the root, through the level of the root's reference."""
        return Sums(count, *_sum_samples(int(state), action, count, self._run(oracle.stream)))

    def values(self, oracle: Oracle, state: Any, reference: Floats, count: int) -> Sums:
        """Samples of the root's value around a given reference, [K]."""
        run = self._run(oracle.stream)
        run.frames[GIVEN_FRAME, 0, :-1] = reference
        return Sums(count, *_sum_samples(int(state), -1, count, run))
