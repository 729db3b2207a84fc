"""Mixtures of softmaxes: in NumPy, and for compiled code, with draws from their policies and statistics of chains.

In compiled code a frame is an array [1 + J, K + 1] with a reference and its softmaxes; each depth of a recursion has
one of its own. Functions that read or write a frame are inlined: a call would pass dozens of numbers for its arrays.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.base.streams import Stream, advance, fraction, uniform

_SKEW = math.sqrt((15.0 - math.sqrt(105.0)) / 30.0)
"""1 − 2p of the Bernoulli variable with the largest |κ₅|, a zero of the derivative of u(1 − u²)(2 − 3u²)/4."""

CUMULANTS = {
    2: 1.0 / 4.0,
    3: math.sqrt(3.0) / 18.0,
    4: 1.0 / 8.0,
    5: _SKEW * (1.0 - _SKEW**2) * (2.0 - 3.0 * _SKEW**2) / 4.0,
    6: 1.0 / 4.0,
}
"""The largest |κ_k| of a variable of range 1; for k = 5, of an indicator. Bernoulli variables attain them.

Derivatives of a soft maximum are means of cumulants. The proofs are in docs/proofs/backups.md.
"""


def cumulant_bounds(temperature: float) -> tuple[float, ...]:
    """Bounds of the derivatives of order 2 to 6 of a mixture of softmaxes, in directions of range 1.

    The k-th is a mean of joint cumulants over η^(k−1). Lemma 1.6 (docs/proofs/backups.md) proves them for the
    directions that certificates need; for others no larger ones were found.
    """
    joint = CUMULANTS | {3: 1.0 / 8.0}  # of three coins, any two of which are independent and decide the third
    return tuple(bound / temperature ** (order - 1) for order, bound in joint.items())


def exponentials(q: Floats, shifts: Floats, temperature: float) -> tuple[Floats, Floats, Floats]:
    """The softmaxes of q [..., K] less shifts [K, J], column by column, in the log domain.

    Returns odds exp((q_i − shift_ij − top_j)/η) with top_j = max_i (q_i − shift_ij), [..., K, J]; their sums over i,
    [..., 1, J]; and the soft maxima η log Σ_i exp((q_i − shift_ij)/η), [..., J].
    """
    scores = q[..., :, None] - shifts
    top = scores.max(axis=-2, keepdims=True)
    with np.errstate(under="ignore"):
        odds = np.exp((scores - top) / temperature)
    total = odds.sum(axis=-2, keepdims=True)
    return odds, total, np.asarray((top + temperature * np.log(total))[..., 0, :])


def hessian(local: Floats, coupling: Floats, temperature: float) -> Floats:
    """(diag(π) − Σ_j μ_j p_·j p_·jᵀ)/η for local softmaxes p and couplings Γ_ij = μ_j·p_ij, [..., K, K]."""
    with np.errstate(under="ignore"):
        outer = np.einsum("...ij,...kj->...ik", coupling, local)
        diagonal = coupling.sum(axis=-1)[..., None] * np.eye(local.shape[-2])
    return np.asarray((diagonal - outer) / temperature)


def entropy(distribution: Floats) -> Floats:
    """The Shannon entropy −Σ p log p in nats along the last axis, [...]."""
    safe = np.where(distribution > 0.0, distribution, 1.0)
    return np.asarray(-(distribution * np.log(safe)).sum(axis=-1))


def conjugate(policy: Floats, shifts: Floats, weights: Floats, temperature: float) -> Floats:
    """max over q of ⟨π, q⟩ − F(q), [n], for policies [n, K], shifts [K, J] and weights [n, J].

    Each iteration makes a Sinkhorn step, after which q − η·log π varies by no more than the shifts do, and then the
    best of some damped Newton steps. Sinkhorn steps alone need thousands of iterations if η is small.

    Raises:
        ArithmeticError: it does not converge.
    """
    present, common = policy > 0.0, policy > np.finfo(float).eps
    # Coordinates scaled by √π keep the Hessian well conditioned. Rarer actions are left to the Sinkhorn steps: their
    # coordinates have nothing but the rounding errors of eigenvectors.
    scale = np.where(common, 1.0 / np.sqrt(np.where(common, policy, 1.0)), 0.0)
    dampings = np.append(10.0 ** -np.arange(16), np.inf)[:, None, None]
    reach = float(np.ptp(shifts)) / temperature
    # The error of the result is at most the ℓ₁ error of the marginal π times the range of the shifts.
    tolerance = max(1e-12, 64.0 * np.finfo(float).eps * reach)

    def assessed(q: Floats, eta: float) -> tuple[Floats, Floats, Floats, Floats]:
        """The dual and the ℓ₁ error of the marginal, [..., n], local softmaxes and couplings."""
        odds, total, maxima = exponentials(q, shifts, eta)
        local, coupling = odds / total, odds / total * weights[:, None, :]
        dual = (policy * np.where(present, q, 0.0)).sum(axis=-1) - (weights * maxima).sum(axis=-1)
        return dual, np.abs(policy - coupling.sum(axis=-1)).sum(axis=-1), local, coupling

    with np.errstate(divide="ignore", under="ignore"):
        log_policy, log_weights = np.log(policy), np.log(weights)
        q = temperature * log_policy
        # Rough solutions at higher temperatures are good starts.
        for eta in temperature * 4.0 ** np.arange(math.ceil(math.log(max(reach, 1.0), 4.0)), -1, -1):
            for _ in range(500):  # a few are usual
                maxima = exponentials(q, shifts, eta)[2]
                q = eta * log_policy - exponentials(eta * log_weights - maxima, shifts.T, eta)[2]
                dual, error, local, coupling = assessed(q, eta)
                if error.max(initial=0.0) <= (0.01 if eta > temperature else tolerance):
                    break
                curvature = hessian(local, coupling, 1.0) * scale[:, :, None] * scale[:, None, :]
                values, vectors = np.linalg.eigh(curvature)
                along = (((policy - coupling.sum(axis=-1)) * scale)[:, None, :] @ vectors)[:, 0, :]
                steps = (vectors @ (along / (np.maximum(values, 0.0) + dampings))[..., None])[..., 0]
                tried = q + eta * scale * steps
                duals, errors, _, _ = assessed(tried, eta)
                # Relative differences of the dual below 1e-14 are rounding: the better marginal decides.
                ties = duals >= duals.max(axis=0) - 1e-14 * (1.0 + np.abs(duals.max(axis=0)))
                q = tried[np.where(ties, errors, np.inf).argmin(axis=0), np.arange(len(policy))]
            else:
                raise ArithmeticError(f"the regulariser did not converge at a temperature of {temperature!r}")
        return np.asarray(dual)


# Compiled code


class Softmaxes(NamedTuple):
    """A mixture of softmaxes over columns, as in `backups.SoftmaxMixture`."""

    temperature: float  # 0 for the hard maximum
    shifts: Floats  # [J, K]
    weights: Floats  # [S, J], or [1, J] if they do not depend on the state


@partial(compiled, inlined=True, inner=True)
def fill_frame(frames: Floats, frame: int, soft: Softmaxes) -> None:
    """The softmaxes at the reference in a frame [1 + J, K + 1].

    Row 0 holds Q̂. Row 1 + j receives the running sums of the odds exp((Q̂_i − shift_ij − top)/η) over actions i, and
    behind them the soft maximum η log Σ_i exp((Q̂_i − shift_ij)/η).
    """
    columns, actions = soft.shifts.shape
    temperature = soft.temperature
    q = frames[frame, 0]
    for j in range(columns):
        shifts, sums = soft.shifts[j], frames[frame, 1 + j]
        # The best action's odds are 1 and need no exponential.
        if actions == 2 and temperature > 0.0:
            one, two = q[0] - shifts[0], q[1] - shifts[1]
            odds = math.exp(-abs(one - two) * (1.0 / temperature))
            sums[0], sums[1] = 1.0 if one >= two else odds, 1.0 + odds
            sums[2] = max(one, two) + temperature * math.log(1.0 + odds)
            continue
        best, top = 0, q[0] - shifts[0]
        for i in range(1, actions):
            score = q[i] - shifts[i]
            best = i if score > top else best
            top = max(top, score)
        total = 1.0
        if temperature > 0.0:
            scale, i = 1.0 / temperature, best
            sums[best] = 1.0
            for _ in range(1, actions):
                i = 0 if i == actions - 1 else i + 1  # around the circle
                sums[i] = math.exp((q[i] - shifts[i] - top) * scale)
            total = 0.0
            for i in range(actions):
                total += sums[i]
                sums[i] = total
        sums[actions] = top + temperature * math.log(total)


@partial(compiled, inlined=True, inner=True)
def frame_value(frames: Floats, frame: int, state: int, soft: Softmaxes) -> float:
    """F(Q̂) at the reference of a frame."""
    row = state if len(soft.weights) > 1 else 0
    columns, actions = soft.shifts.shape
    value = 0.0
    for j in range(columns):
        value += soft.weights[row, j] * frames[frame, 1 + j, actions]
    return value


@partial(compiled, inlined=True, inner=True)
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


@partial(compiled, inlined=True, inner=True)
def draw_action(frames: Floats, frame: int, column: int, stream: Stream) -> int:
    """An action A ~ p_·J at the reference of a frame."""
    last = frames.shape[2] - 2
    level = uniform(stream) * frames[frame, 1 + column, last]
    action = 0
    for i in range(last):
        action += level >= frames[frame, 1 + column, i]
    return action


@partial(compiled, inlined=True, inner=True)
def policy_mean(frames: Floats, frame: int, state: int, soft: Softmaxes) -> float:
    """⟨π, Q̂⟩ at the reference of a frame."""
    row = state if len(soft.weights) > 1 else 0
    columns, actions = soft.shifts.shape
    mean = 0.0
    for j in range(columns):
        before, inner = 0.0, 0.0
        for i in range(actions):
            odds = frames[frame, 1 + j, i] - before
            inner += odds * frames[frame, 0, i] if odds > 0.0 else 0.0
            before = frames[frame, 1 + j, i]
        mean += soft.weights[row, j] * inner / before
    return mean


# Many references at once


@partial(compiled, merged=True)
def framed(q: Floats, row: int, soft: Softmaxes, frames: Floats) -> None:
    """Puts a row of references [n, K] and its softmaxes into the one frame, [1, 1 + J, K + 1]."""
    for i in range(q.shape[1]):
        frames[0, 0, i] = q[row, i]
    fill_frame(frames, 0, soft)


@partial(compiled, inner=True)
def fill_choices(q: Floats, soft: Softmaxes, stream: Stream, sums: Floats, chosen: Ints, advantages: Floats) -> None:
    """As `choose`, into arrays, with room for the running sums of one column, [K].

    It takes half of the time of `fill_frame`, `draw_column` and `draw_action`: only one column's sums are kept, and the
    random state is in registers. Unsigned numbers spare Numba the test for negative indices.
    """
    if soft.temperature == 0.0:  # the first of the best actions, which has no advantage
        for place in range(len(q)):
            best = 0
            for i in range(1, q.shape[1]):
                if q[place, i] > q[place, best]:
                    best = i
            chosen[place], advantages[place] = best, 0.0
        return
    columns, actions = soft.shifts.shape
    shifts, weights, temperature, scale = soft.shifts, soft.weights, soft.temperature, 1.0 / soft.temperature
    s0, s1, s2, s3 = stream[0], stream[1], stream[2], stream[3]
    for row in range(np.uint64(len(q))):
        own = row if len(weights) > 1 else np.uint64(0)
        column = 0
        if columns > 1:
            word, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
            level = fraction(word)
            while column < columns - 1 and level >= weights[own, column]:
                level -= weights[own, column]
                column += 1
        value, first = 0.0, 0
        for j in range(columns):
            best, top = 0, q[row, 0] - shifts[j, 0]
            for i in range(1, actions):
                score = q[row, i] - shifts[j, i]
                best = i if score > top else best
                top = max(top, score)
            # From the best action on around the circle: its own odds are 1 and need no exponential.
            if j == column:
                first, sums[0] = best, 1.0
            i, total = best, 1.0
            for passed in range(1, actions):
                i = 0 if i == actions - 1 else i + 1
                total += math.exp((q[row, i] - shifts[j, i] - top) * scale)
                if j == column:
                    sums[passed] = total
            value += weights[own, j] * (top + temperature * math.log(total))
        word, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
        level = fraction(word) * sums[actions - 1]
        action = first
        for i in range(actions - 1):
            action += level >= sums[i]
        action -= actions if action >= actions else 0
        chosen[row], advantages[row] = action, value - q[row, action]
    stream[0], stream[1], stream[2], stream[3] = s0, s1, s2, s3


@partial(compiled, allocates=True)
def choose(q: Floats, soft: Softmaxes, stream: Stream) -> tuple[Ints, Floats]:
    """Actions A ~ ∇F(Q̂) and their advantages F(Q̂) − Q̂(A), [n] each, at references [n, K].

    The weights of `soft` are [n, J] or [1, J].
    """
    chosen, advantages = np.empty(len(q), dtype=np.int64), np.empty(len(q))
    fill_choices(q, soft, stream, np.empty(q.shape[1]), chosen, advantages)
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


# Statistics of chains


@partial(compiled, merged=True)
def draw_stop(discount: float, horizon: int, stream: Stream) -> int:
    """A step T with P(T = t) ∝ γ^t, t = 0..H−1, by inversion."""
    if discount == 0.0:
        return 0
    if discount == 1.0:
        return int(horizon * uniform(stream))
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


@partial(compiled, merged=True)
def paired(total: float, squares: float, pairs: int) -> tuple[float, float]:
    """From Σx and Σx² of n differences: the U-statistic for (E x)², and the sample variance."""
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


@partial(compiled, inner=True)
def sums_of(samples: Floats, size: int) -> tuple[float, float]:
    """Sum and sum of squares of the first `size` samples.

    Blocks are summed before they are added up: one long sum of samples that are nearly alike loses more digits than
    confidence sequences allow for.
    """
    total, squares = 0.0, 0.0
    for place in range(size):
        total += samples[place]
        squares += samples[place] * samples[place]
    return total, squares
