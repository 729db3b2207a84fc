"""Debiased levels: the noise of a reference, and the bias that remains once its first terms are cancelled.

A reference Q̂ is the mean of N independent returns per action; e = Q̂ − E Q̂ is its noise. F(Q̂) is biased, because F is
curved: E F(Q̂) = F(E Q̂) + a/N + b/N² + … Means over halves and quarters of the same returns have the same expansion with
2/N and 4/N in place of 1/N, so that a weighted sum of F at the whole, at the halves and at the quarters cancels the
first terms (Richardson; a jackknife over blocks). It needs no further simulator call, and no derivative of F but
the policy ∇F, which samples of order 1 follow anyway: there the second term takes it at the halves, too.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from smoothplan.base.arguments import Numbers

Debiased = Literal["plug-in", "order-1"]  # the kinds of levels that can be debiased


class Debiasing(NamedTuple):
    """Weights of averages over the 2^k blocks of the returns, k = 0, 1, 2, of N/2^k returns each.

    `values[k]` weighs the mean of F(Q̂_b) over those blocks b. `slopes[k]` weighs the mean of ⟨∇F(Q̂_b), Q̂_b − Q̂_b′⟩,
    where b′ is the other half of the block that contains b: it has the mean of ⟨∇F(Q̂_b), e_b⟩: e_b′ is independent.
    """

    values: tuple[float, ...]
    slopes: tuple[float, ...]


DEBIASING: dict[tuple[Debiased, int], Debiasing] = {
    ("plug-in", 0): Debiasing((1.0,), (0.0,)),
    ("plug-in", 1): Debiasing((2.0, -1.0), (0.0, 0.0)),
    ("plug-in", 2): Debiasing((8.0 / 3.0, -2.0, 1.0 / 3.0), (0.0, 0.0, 0.0)),
    ("order-1", 0): Debiasing((1.0,), (0.0,)),
    ("order-1", 1): Debiasing((0.0, 1.0), (0.0, 0.0)),
    ("order-1", 2): Debiasing((2.0 / 3.0, 0.5, -1.0 / 6.0), (0.0, 0.25, 0.0)),
}
"""The weighted sum in place of F(Q̂), by kind of level and number of cancelled terms: N^−1, or N^−1 and N^−2.

At order 1 the return X_A − Q̂(A) adds −⟨∇F(Q̂), e⟩ to the mean, whose terms are cancelled, too."""

MOST = 2  # terms that a level can cancel


class Noise(NamedTuple):
    """Bounds of ‖range(e)‖, for the mean e of n independent returns per action less its expectation."""

    second: Numbers  # in L²
    fourth: Numbers  # in L⁴
    sixth: Numbers  # in L⁶


def central_moments(variance: Numbers, width: Numbers) -> tuple[Numbers, Numbers]:
    """The largest |μ₃| and μ₄ of a variable of that width and of that variance at most.

    Given the variance v, both are largest if it takes two values: v·√(w² − 4v) and v·(w² − 3v). They grow with v up
    to w²/6.
    """
    variance = np.minimum(variance, width**2 / 6.0)
    return variance * np.sqrt(width**2 - 4.0 * variance), variance * (width**2 - 3.0 * variance)


def noise(actions: int, variance: Numbers, width: Numbers, count: Numbers) -> Noise:
    """The noise of a mean of n returns of variance v and width w at most, for each of K actions.

    range(e)² ≤ 2S with S = Σ(e_a − ē)², a quadratic form of independent entries. Its moments are sums of products of
    the entries' moments, which follow from those of one return; p and −q are the entries of the form.
    """
    third, fourth = central_moments(variance, width)
    m2 = variance / count
    m3 = third / count**2
    m4 = (fourth + 3.0 * (count - 1.0) * variance**2) / count**3
    m6 = (
        width**2 * fourth
        + (count - 1.0) * (15.0 * fourth * variance + 10.0 * third**2 + 15.0 * (count - 2.0) * variance**3)
    ) / count**5
    p, q = (actions - 1) / actions, 1.0 / actions
    two, three = actions * (actions - 1), actions * (actions - 1) * (actions - 2)  # ordered pairs and triples
    square = actions * p**2 * m4 + two * (p**2 + 2.0 * q**2) * m2**2
    cube = (
        actions * p**3 * m6
        + two * (3.0 * p**3 + 12.0 * p * q**2) * m4 * m2
        + two / 2.0 * (12.0 * p**2 * q + 8.0 * q**3) * m3**2
        + three / 6.0 * (6.0 * p**3 + 36.0 * p * q**2 - 48.0 * q**3) * m2**3
    )
    return Noise(np.sqrt(2.0 * actions * p * m2), (4.0 * square) ** 0.25, (8.0 * cube) ** (1.0 / 6.0))


def largest_debias(derivatives: Sequence[float]) -> int:
    """How many terms can be cancelled with a certificate: a remainder of the fourth order at least must be bounded."""
    return MOST if len(derivatives) >= 3 else 0


def left_over(
    kind: Debiased,
    debias: int,
    actions: int,
    derivatives: Sequence[float],
    variance: Numbers,
    width: Numbers,
    samples: Numbers,
) -> Numbers:
    """The bias that noise leaves in a debiased level: a bound of |E[…] − F(E Q̂)| over all F, states and returns.

    Taylor's expansion around E Q̂, up to the fourth or up to the sixth order, whichever is less. The term of degree k
    over a block of n returns is a sum of products of cumulants, each with a power of 1/n; a power n^−i, i ≤ debias,
    has a weight of zero. Each slope ⟨∇F, e⟩ has k times the term of F.

    There are three or more `derivatives`, bounds of the second, third, … derivatives of F in directions of range 1.
    Variance and width are those of one return.
    """
    values, slopes = DEBIASING[kind, debias]
    own = 1.0 if kind == "order-1" else 0.0  # the weight of −⟨∇F(Q̂), e⟩
    blocks = [noise(actions, variance, width, samples / 2**k) for k in range(len(values))]
    third, fourth = central_moments(variance, width)

    def term(degree: int, power: int, bound: Numbers) -> Numbers:
        """The term of a degree that falls like N^−power, of this size over all returns."""
        weight = sum(value * 2.0 ** (power * k) for k, value in enumerate(values)) - own * degree
        weight += sum(slope * degree * 2.0 ** (power * k) for k, slope in enumerate(slopes))
        return abs(weight) * bound / samples**power

    def remainder(degree: int) -> Numbers:
        """Taylor's remainder of a degree: d/k!·range(e)^k, and k times that for a slope."""
        norms = [block.fourth if degree == 4 else block.sixth for block in blocks]
        # At the whole the integrals of F(Q̂) and of −⟨∇F(Q̂), e⟩ have opposite signs, and the latter is larger.
        weights = [abs(own * degree - values[0]), *map(abs, values[1:])]
        weights = [weight + degree * abs(slope) for weight, slope in zip(weights, slopes, strict=True)]
        total = sum(weight * norm**degree for weight, norm in zip(weights, norms, strict=True))
        return derivatives[degree - 2] / math.factorial(degree) * total

    skewness = term(3, 2, actions * derivatives[1] * third / 6.0)
    bound = skewness + remainder(4)
    if len(derivatives) >= 5:
        others = actions - 1
        gaussian = 4.0 * others * (others + 2.0) * variance**2  # E range⁴ of normal variables of that variance
        finer = (
            skewness
            + term(4, 2, derivatives[2] / 24.0 * gaussian)
            + term(4, 3, actions * derivatives[2] / 24.0 * np.maximum(fourth, 2.0 * variance**2))
            + term(5, 3, actions * derivatives[3] / 12.0 * third * 2.0 * others * variance)
            + term(5, 4, actions * derivatives[3] / 120.0 * (width * fourth + 10.0 * third * variance))
            + remainder(6)
        )
        bound = np.minimum(bound, finer)
    return bound


def swings(kind: Debiased, debias: int) -> tuple[list[float], list[float]]:
    """Bounds of the weighted sum above and below F(Q̂): weights of the terms that splits of the returns add.

    Split k cuts each of 2^k blocks into halves. The mean of F at two halves exceeds F at their mean by at most
    m(d) = min(range(d), d₂/2·range(d)²), where d is half of the difference of the halves; a slope is at most 4·m(d).
    d has the second and fourth moments of the noise of the block.
    """
    values, slopes = DEBIASING[kind, debias]
    weights = [sum(values[split + 1 :]) for split in range(debias)]
    above = [max(weight, 0.0) + 4.0 * slope for weight, slope in zip(weights, slopes[1:], strict=True)]
    return above, [max(-weight, 0.0) for weight in weights]
