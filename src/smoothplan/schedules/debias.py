"""Debiased levels: the noise of a reference, and what is left of it once the first terms of its bias are cancelled.

A reference Q̂ is the mean of N independent returns per action; e = Q̂ − E Q̂ is its noise. F(Q̂) is biased, because F is
curved: E F(Q̂) = F(E Q̂) + a/N + b/N² + … Means over halves and quarters of the same returns have the same expansion with
2/N and 4/N in place of 1/N, so that a weighted sum of F at the whole, at the halves and at the quarters cancels the
first terms (Richardson; a jackknife over blocks). It needs no further simulator call and no derivative of F.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from smoothplan.arguments import Numbers

Debiased = Literal["plug-in", "order-1"]
"""The kinds of levels that can be debiased."""


@dataclass(frozen=True)
class Debiasing:
    """Weights of what is averaged over the 2^k blocks of the returns, k = 0, 1, 2, of N/2^k returns each.

    `values[k]` weighs the mean of F(Q̂_b) over those blocks b. `slopes[k]` weighs the mean of ⟨∇F(Q̂_b), Q̂_b − Q̂_b′⟩,
    where b′ is the other half of the block that contains b: it has the mean of ⟨∇F(Q̂_b), e_b⟩, for e_b′ is independent.
    """

    values: tuple[float, ...]
    slopes: tuple[float, ...] = ()


DEBIASING: dict[tuple[Debiased, int], Debiasing] = {
    ("plug-in", 0): Debiasing((1.0,)),
    ("plug-in", 1): Debiasing((2.0, -1.0)),
    ("plug-in", 2): Debiasing((8.0 / 3.0, -2.0, 1.0 / 3.0)),
    ("order-1", 0): Debiasing((1.0,)),
    ("order-1", 1): Debiasing((0.0, 1.0)),
    ("order-1", 2): Debiasing((2.0 / 3.0, 0.5, -1.0 / 6.0), (0.0, 0.25)),
}
"""What a level adds up in place of F(Q̂), by its kind and by how many terms are cancelled: N^−1, or N^−1 and N^−2.

At order 1 the return X_A − Q̂(A) adds −⟨∇F(Q̂), e⟩ to the mean, whose terms are cancelled, too."""

MOST = 2
"""The most terms that a level can cancel."""
