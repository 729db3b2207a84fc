"""What the engines of chains share: draws from a backup's softmaxes at references, and the paired statistic.

Numba caches compiled code by the file of the caller: after a change here, `make clean` is due.
"""

import math
from functools import partial

import numpy as np

from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup, NoCurvatureError
from smoothplan.engines.kernels import Softmaxes, draw_action, draw_column, fill_frame, frame_value
from smoothplan.streams import Stream, compiled, uniform


def smooth(backup: Backup) -> None:
    """Raises unless the backup has curvature to correct for."""
    if backup.temperature == 0.0:
        raise NoCurvatureError(
            f"{type(backup).__name__} has no curvature, and so no correction of second order: sample values or "
            "returns, or use LogSumExp or OptimalTransport"
        )


@compiled
def framed(q: Floats, row: int, soft: Softmaxes, frames: Floats) -> None:
    """Puts a row of references [n, K] and its softmaxes into the one frame, [1, 1 + J, K + 1]."""
    for i in range(q.shape[1]):
        frames[0, 0, i] = q[row, i]
    fill_frame(frames, 0, soft)


@compiled
def _greedy(q: Floats, row: int) -> int:
    """The first of the best actions of a row."""
    best = 0
    for i in range(1, q.shape[1]):
        if q[row, i] > q[row, best]:
            best = i
    return best


@partial(compiled, allocates=True)
def choose(q: Floats, soft: Softmaxes, stream: Stream) -> tuple[Ints, Floats]:
    """Actions A ~ ∇F(Q̂) and their advantages F(Q̂) − Q̂(A), [n] each, at references [n, K].

    The weights of `soft` are [n, J] or [1, J].
    """
    columns, actions = soft.shifts.shape
    frames = np.empty((1, 1 + columns, actions + 1))
    chosen, advantages = np.empty(len(q), dtype=np.int64), np.empty(len(q))
    for row in range(len(q)):
        if soft.temperature == 0.0:
            chosen[row], advantages[row] = _greedy(q, row), 0.0
        else:
            framed(q, row, soft, frames)
            chosen[row] = draw_action(frames, 0, draw_column(row, soft, stream), stream)
            advantages[row] = frame_value(frames, 0, row, soft) - q[row, chosen[row]]
    return chosen, advantages


@partial(compiled, allocates=True)
def choose_pairs(q: Floats, soft: Softmaxes, stream: Stream) -> tuple[Ints, Ints]:
    """Independent actions A, A′ ~ p_·J of one column J ~ μ, [n] each, at references [n, K]; `soft` as above."""
    columns, actions = soft.shifts.shape
    frames = np.empty((1, 1 + columns, actions + 1))
    first, second = np.empty(len(q), dtype=np.int64), np.empty(len(q), dtype=np.int64)
    for row in range(len(q)):
        framed(q, row, soft, frames)
        column = draw_column(row, soft, stream)
        first[row], second[row] = draw_action(frames, 0, column, stream), draw_action(frames, 0, column, stream)
    return first, second


@compiled
def draw_stop(discount: float, horizon: int, stream: Stream) -> int:
    """A step T with P(T = t) ∝ γ^t, t = 0..H−1, by inversion."""
    if discount == 0.0:
        return 0
    rate = math.log(discount)
    step = int(math.log1p(math.expm1(horizon * rate) * uniform(stream)) / rate)
    return min(step, horizon - 1)


@partial(compiled, allocates=True)
def draw_stops(count: int, discount: float, horizon: int, stream: Stream) -> Ints:
    """Steps T as above, [n]."""
    stops = np.empty(count, dtype=np.int64)
    for row in range(count):
        stops[row] = draw_stop(discount, horizon, stream)
    return stops


@compiled
def stop_weight(discount: float, horizon: int) -> float:
    """Σ_{t<H} γ^t: what a sample at one drawn step stands for."""
    return 1.0 if discount == 0.0 else math.expm1(horizon * math.log(discount)) / (discount - 1.0)


@compiled
def paired(total: float, squares: float, pairs: int) -> tuple[float, float]:
    """From Σx and Σx² of n differences: the U-statistic for (E x)² (THEORY.md, E6), and the sample variance."""
    square = (total * total - squares) / (pairs * (pairs - 1))
    return square, max(squares - total * total / pairs, 0.0) / (pairs - 1)


@compiled
def paired_sums(totals: Floats, squares: Floats, pairs: int, scale: float) -> tuple[float, float, float]:
    """For samples with Σx and Σx², [m] each: the sums of scale·statistic, of its square, and of the variances."""
    total, square_sum, noise = 0.0, 0.0, 0.0
    for row in range(len(totals)):
        square, variance = paired(totals[row], squares[row], pairs)
        total += scale * square
        square_sum += (scale * square) ** 2
        noise += variance
    return total, square_sum, noise
