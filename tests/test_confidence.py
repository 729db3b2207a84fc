"""Confidence bounds: exact calculation where there is one, long simulations where there is none."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from smoothplan.arguments import Floats
from smoothplan.confidence import MAX_TILT, ConfidenceSequence, bernstein_count, bernstein_radius

# Bernstein


@pytest.mark.parametrize("delta", [0.5, 0.1, 1e-6])
def test_radius_and_count_are_inverse(delta: float) -> None:
    variance = np.array([1e-9, 1e-6, 0.01, 0.25])[:, None, None]
    width = np.array([0.5, 1.0, 7.0])[:, None]
    radius = np.array([1e-4, 1e-2, 0.3])
    count = bernstein_count(variance, width, radius, delta)
    np.testing.assert_allclose(bernstein_radius(variance, width, count, delta), np.broadcast_to(radius, (4, 3, 3)))
    count = np.array([1.0, 10.0, 1e6])
    radius = bernstein_radius(variance, width, count, delta)
    np.testing.assert_allclose(bernstein_count(variance, width, radius, delta), np.broadcast_to(count, (4, 3, 3)))


def test_what_has_no_variance_is_known_after_one_look() -> None:
    assert bernstein_radius(0.0, 1.0, 1.0, 0.1) == 0.0
    assert bernstein_count(0.0, 1.0, 1e-9, 0.1) == 1.0


@pytest.mark.parametrize("delta", [0.5, 0.1, 0.01, 1e-4])
@pytest.mark.parametrize("count", [1, 2, 5, 20, 100, 1000, 10_000])
def test_bernstein_covers_bernoulli_means(count: int, delta: float) -> None:
    """P(|mean − p| > r), exactly."""
    for p in [0.0, 1e-5, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.77, 0.99, 1.0]:
        radius = float(bernstein_radius(p * (1.0 - p), 1.0, count, delta))
        # A mean at the very edge is inside, whatever rounding makes of it.
        below = binom.cdf(math.ceil(count * (p - radius) - 1e-9) - 1, count, p)
        above = binom.sf(math.floor(count * (p + radius) + 1e-9), count, p)
        assert below + above <= delta


# The confidence sequence


def test_the_inequality_behind_the_supermartingale() -> None:
    """exp(λξ − ψ(λ)ξ²) ≤ 1 + λξ for ξ ≥ −1 and 0 ≤ λ < 1; equality at ξ = −1 and at ξ = 0."""
    tilt = np.concatenate([np.linspace(0.0, 0.999, 400), [1e-9, 1e-4, MAX_TILT]])[:, None]
    xi = np.concatenate([np.linspace(-1.0, 1.0, 4001), np.linspace(1.0, 50.0, 500), [-1e-7, 1e-7]])
    penalty = -np.log1p(-tilt) - tilt
    np.testing.assert_array_less(np.exp(tilt * xi - penalty * xi**2), 1.0 + tilt * xi + 1e-12)
    # With a smaller penalty it is false.
    assert (np.exp(tilt * xi - 0.99 * penalty * xi**2) > 1.0 + tilt * xi + 1e-6).any()


DELTA = 0.1
RUNS = 400
LOOKS = 200

Draw = Callable[[np.random.Generator, tuple[int, ...]], Any]

# Each with the support, the mean and how to draw it. The supports are wider than need be in some.
VARIABLES: dict[str, tuple[float, float, float, Draw]] = {
    "rare": (0.0, 1.0, 0.01, lambda rng, shape: rng.random(shape) < 0.01),
    "frequent": (0.0, 1.0, 0.99, lambda rng, shape: rng.random(shape) < 0.99),
    "coin": (0.0, 1.0, 0.5, lambda rng, shape: rng.random(shape) < 0.5),
    "constant": (-3.0, 5.0, 0.3, lambda rng, shape: np.full(shape, 0.3)),
    "edge": (0.0, 1.0, 1.0, lambda rng, shape: np.ones(shape)),
    "skewed": (0.0, 1.0, 1.0 / 11.0, lambda rng, shape: rng.random(shape) ** 10),
    "skewed down": (-2.0, 1.0, 10.0 / 11.0, lambda rng, shape: 1.0 - rng.random(shape) ** 10),
    "two points": (-1.0, 10.0, 0.7, lambda rng, shape: np.where(rng.random(shape) < 0.1, 7.0, 0.0)),
}

Build = Callable[[float, float, float, float], ConfidenceSequence]


def misses(name: str, batch: int, target: float, build: Build = ConfidenceSequence) -> int:
    """How many of `RUNS` sequences exclude the mean at any of `LOOKS` looks; the target is relative to the width."""
    low, high, mean, draw = VARIABLES[name]
    rng = np.random.default_rng([len(name), batch])
    samples: Floats = np.asarray(draw(rng, (RUNS, LOOKS, batch)), dtype=np.float64)
    totals, squares = samples.sum(axis=-1), (samples**2).sum(axis=-1)
    count = 0
    for run in range(RUNS):
        sequence = build(low, high, DELTA, target * (high - low))
        for total, square in zip(totals[run].tolist(), squares[run].tolist(), strict=True):
            sequence.update(batch, total, square)
            if not sequence.interval[0] - 1e-9 <= mean <= sequence.interval[1] + 1e-9:
                count += 1
                break
    return count


# 48 simulations that each fail with a probability of at most 2e-8 make a false-alarm rate of at most 1e-6.
ALLOWED = int(binom.isf(2e-8, RUNS, DELTA))


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("batch", [1, 7, 60])
def test_coverage_at_all_times(name: str, batch: int) -> None:
    """The mean is never excluded, at any look, in all but a fraction δ of runs. False alarms: 1e-6 in all."""
    for target in (0.3, 0.01):
        assert misses(name, batch, target) <= ALLOWED


def generous(low: float, high: float, delta: float, target: float) -> ConfidenceSequence:
    """A sequence that fails about ten times as often as it should."""
    return ConfidenceSequence(low, high, min(10.0 * delta, 0.999), target)


class HalfPenalised(ConfidenceSequence):
    """A sequence that charges half of what each batch should cost."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_penalty":
            value = (getattr(self, "_penalty", 0.0) + value) / 2.0
        super().__setattr__(name, value)


@pytest.mark.parametrize("build", [generous, HalfPenalised])
def test_the_coverage_test_notices_a_wrong_sequence(build: Build) -> None:
    """Over many times the samples that the target needs: the probability of failing must not add up."""
    assert misses("coin", 60, 0.03) <= ALLOWED
    assert misses("coin", 60, 0.03, build) > ALLOWED


def exact_batches(mean: float, variance: float, batch: int, sequence: ConfidenceSequence, radius: float) -> int:
    """The count at which a sequence fed with batches of exactly this mean and variance reaches a radius."""
    while sequence.interval[1] - sequence.interval[0] > 2.0 * radius:
        sequence.update(batch, batch * mean, batch * (mean**2 + variance))
    return sequence.count


@pytest.mark.parametrize(("variance", "radius"), [(0.2, 0.01), (0.05, 0.003), (0.01, 0.001), (0.001, 0.0001)])
def test_the_width_adapts_to_the_variance(variance: float, radius: float) -> None:
    """The count approaches 2v·log(2/δ)/r², what a known variance and a normal mean would need, not the width²/4."""
    ideal = 2.0 * variance * math.log(2.0 / DELTA) / radius**2
    for low, high in ((0.0, 1.0), (-40.0, -39.0)):
        sequence = ConfidenceSequence(low, high, DELTA, radius)
        count = exact_batches(low + 0.4, variance, math.ceil(ideal / 100), sequence, radius)
        assert ideal <= count <= 1.2 * ideal


def test_scale_and_shift_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    plain, moved = ConfidenceSequence(0.0, 1.0, 0.1, 0.02), ConfidenceSequence(-3.0, 5.0, 0.1, 0.16)
    for _ in range(50):
        samples = rng.random(20)
        plain.update(20, samples.sum(), float(samples @ samples))
        samples = 8.0 * samples - 3.0
        moved.update(20, samples.sum(), float(samples @ samples))
        np.testing.assert_allclose(8.0 * np.array(plain.interval) - 3.0, moved.interval, atol=1e-9)


def test_a_far_support_does_not_lose_coverage_to_rounding() -> None:
    """At 10⁸ from 0 the sum of squares has no correct digit of the variance left: the interval must widen instead."""
    rng = np.random.default_rng(1)
    for far in (1e6, 1e8, -1e10):
        for _ in range(50):
            sequence = ConfidenceSequence(far, far + 1.0, DELTA, 0.01)
            for _ in range(20):
                samples = far + (rng.random(200) < 0.5)
                sequence.update(200, samples.sum(), float(samples @ samples))
                assert sequence.interval[0] <= far + 0.5 <= sequence.interval[1]


def test_the_interval_only_shrinks_and_stays_in_the_support() -> None:
    rng = np.random.default_rng(2)
    sequence = ConfidenceSequence(0.0, 1.0, 0.1, 0.05)
    previous = sequence.interval
    assert previous == (0.0, 1.0)
    assert sequence.mean == 0.5
    for _ in range(100):
        samples = (rng.random(5) < 0.05).astype(np.float64)
        sequence.update(5, samples.sum(), float(samples @ samples))
        assert previous[0] <= sequence.interval[0] <= sequence.interval[1] <= previous[1]
        previous = sequence.interval
    assert sequence.count == 500


def test_an_empty_batch_changes_nothing() -> None:
    sequence = ConfidenceSequence(0.0, 1.0, 0.1, 0.05)
    sequence.update(10, 5.0, 5.0)
    before = (sequence.interval, sequence.count, sequence.mean, sequence.variance)
    sequence.update(0, 0.0, 0.0)
    assert (sequence.interval, sequence.count, sequence.mean, sequence.variance) == before


def test_a_support_of_one_point_is_known() -> None:
    sequence = ConfidenceSequence(2.5, 2.5, 0.1, 0.05)
    assert sequence.interval == (2.5, 2.5)
    sequence.update(4, 10.0, 25.0)
    assert sequence.interval == (2.5, 2.5)
    assert (sequence.count, sequence.mean) == (4, 2.5)


def test_one_batch_or_many_are_both_valid() -> None:
    """How a sample is cut changes the interval, for the tilt learns between batches, but not by much."""
    rng = np.random.default_rng(3)
    samples = rng.random(20_000) ** 2
    widths = []
    for batch in (20_000, 2_000, 200, 20):
        sequence = ConfidenceSequence(0.0, 1.0, 1e-6, 0.01)
        for start in range(0, len(samples), batch):
            piece = samples[start : start + batch]
            sequence.update(len(piece), piece.sum(), float(piece @ piece))
        assert sequence.interval[0] < 1.0 / 3.0 < sequence.interval[1]
        widths.append(sequence.interval[1] - sequence.interval[0])
    assert max(widths) < 3.0 * min(widths)


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_a_target_that_is_no_radius_is_named(target: float) -> None:
    with pytest.raises(ValueError, match="target must be"):
        ConfidenceSequence(0.0, 1.0, 0.1, target)
