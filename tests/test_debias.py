"""Debiased levels: what noise leaves of the bias, the noise itself, and the swings, by enumeration of all returns.

Returns take two values, which is where moments are extreme; everything is exact, and an adversarial search looks for
the cases in which a bound is nearly attained. A ratio above 1 would refute a certificate.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from smoothplan.arguments import Floats
from smoothplan.backups import LogSumExp, OptimalTransport
from smoothplan.schedules import debias as debiasing
from smoothplan.schedules.debias import DEBIASING, Debiased, central_moments, left_over, noise, swings

KINDS: list[tuple[Debiased, int]] = [("plug-in", 1), ("plug-in", 2), ("order-1", 1), ("order-1", 2)]


@dataclass(frozen=True)
class Case:
    """Returns of K actions: action a pays low_a with probability 1 − p_a, and low_a + width_a otherwise, N times."""

    samples: int
    low: Floats  # [K]
    width: Floats  # [K]
    chance: Floats  # [K], p
    backup: LogSumExp | OptimalTransport

    @property
    def mean(self) -> Floats:
        return np.asarray(self.low + self.width * self.chance)

    @property
    def variance(self) -> float:
        return float((self.width**2 * self.chance * (1.0 - self.chance)).max())


@dataclass(frozen=True)
class Enumerated:
    """All outcomes of the means over the smallest blocks: their probabilities [n] and values [n, blocks, K]."""

    probabilities: Floats
    blocks: Floats

    @classmethod
    def of(cls, case: Case, blocks: int) -> "Enumerated":
        each = case.samples // blocks
        counts = np.arange(each + 1)
        binomials = np.array([math.comb(each, int(count)) for count in counts])
        per_action = []
        for low, width, p in zip(case.low, case.width, case.chance, strict=True):
            odds = binomials * p**counts * (1.0 - p) ** (each - counts)
            heads = np.array(list(itertools.product(range(each + 1), repeat=blocks)))
            per_action.append((np.prod(odds[heads], axis=1), low + width * heads / each))
        picks = np.array(list(itertools.product(*(range(len(odds)) for odds, _ in per_action))))
        probabilities = np.prod([odds[picks[:, a]] for a, (odds, _) in enumerate(per_action)], axis=0)
        means = np.stack([values[picks[:, a]] for a, (_, values) in enumerate(per_action)], axis=2)
        return cls(probabilities, means)

    def mean(self, values: Floats) -> float:
        return float(self.probabilities @ values)


def at_blocks(case: Case, blocks: Floats, power: int) -> Floats:
    """Means over 2^power blocks, [n, 2^power, K]."""
    count = 2**power
    return np.asarray(blocks.reshape(len(blocks), count, -1, blocks.shape[2]).mean(axis=2))


def weighted_sum(case: Case, blocks: Floats, kind: Debiased, debias: int) -> Floats:
    """What a debiased level has in place of F(Q̂), written from its definition, [n]."""
    backup, weights = case.backup, DEBIASING[kind, debias]
    total = np.zeros(len(blocks))
    for power, weight in enumerate(weights.values):
        total += weight * backup.value(at_blocks(case, blocks, power)).mean(axis=1)
    for power, weight in enumerate(weights.slopes):
        if weight:
            q = at_blocks(case, blocks, power)
            sibling = q[:, np.arange(q.shape[1]) ^ 1]
            total += weight * (backup.policy(q) * (q - sibling)).sum(axis=2).mean(axis=1)
    return total


def level_mean(case: Case, outcomes: Enumerated, kind: Debiased, debias: int) -> Floats:
    """The mean of a level given its returns, whose linear child is perfect, less F(E Q̂), [n]."""
    result = weighted_sum(case, outcomes.blocks, kind, debias)
    if kind == "order-1":
        whole = outcomes.blocks.mean(axis=1)
        result = result - (case.backup.policy(whole) * (whole - case.mean)).sum(axis=1)
    return np.asarray(result - case.backup.value(case.mean))


def bias_ratio(case: Case, kind: Debiased, debias: int) -> float:
    """|bias| over its bound."""
    outcomes = Enumerated.of(case, 2**debias)
    bias = abs(outcomes.mean(level_mean(case, outcomes, kind, debias)))
    actions = len(case.low)
    arguments = actions, case.backup.derivatives(actions), case.variance, float(case.width.max()), case.samples
    bound = float(left_over(kind, debias, *arguments))
    return bias / bound if bias > 1e-12 else 0.0


def random_case(rng: np.random.Generator, actions: int, samples: int) -> Case:
    temperature = float(np.exp(rng.uniform(np.log(0.1), np.log(5.0))))
    backup: LogSumExp | OptimalTransport = LogSumExp(temperature)
    if rng.random() < 0.3:
        cost, reference = rng.normal(size=(actions, actions)), rng.dirichlet(np.ones(actions))
        backup = OptimalTransport(cost=cost, tau=1.0, lam=temperature, reference=reference)
    width = np.ones(actions) if rng.random() < 0.5 else rng.uniform(0.0, 1.0, size=actions)
    return Case(samples, rng.normal(size=actions), width, rng.beta(0.6, 0.6, size=actions), backup)


def worse(case: Case, ratio: Callable[[Case], float], rng: np.random.Generator, steps: int) -> float:
    """The largest ratio that a random walk finds which only goes uphill."""
    best = ratio(case)
    for step in range(steps):
        size = 0.5 * 0.93**step
        moved = replace(
            case,
            low=case.low + size * rng.normal(size=len(case.low)),
            chance=np.clip(case.chance + size * rng.normal(size=len(case.low)), 1e-3, 1.0 - 1e-3),
        )
        found = ratio(moved)
        if found > best:
            best, case = found, moved
    return best


@pytest.mark.parametrize(("kind", "debias"), KINDS)
def test_left_over_bias_is_bounded(kind: Debiased, debias: int) -> None:
    """Adversarial search over returns, temperatures and backups: no bias above its bound, and some that are near."""
    rng = np.random.default_rng(debias)
    ratios = []
    for actions, samples, count in ((2, 4, 40), (2, 8, 20), (3, 4, 8), *(((2, 2, 20),) if debias == 1 else ())):
        for _ in range(count):
            case = random_case(rng, actions, samples)
            ratios.append(worse(case, lambda some: bias_ratio(some, kind, debias), rng, 25))
    assert max(ratios) <= 1.0
    assert (
        max(ratios)
        > {("plug-in", 1): 0.3, ("plug-in", 2): 0.02, ("order-1", 1): 0.2, ("order-1", 2): 0.02}[kind, debias]
    )
