"""Confidence bounds by exact calculation. `tests.attack` looks for the largest probability that they fail."""

import itertools
import math
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import multinomial

from smoothplan.base.arguments import Floats
from smoothplan.confidence import ConfidenceSequence, bernstein_count, bernstein_radius, kl, means
from tests.attack.intervals import wealth
from tests.common import ball_maximum, ball_minimum

share = np.vectorize(kl.share)


def categorical_threshold(counts: Any, bound: int, log_odds: float) -> float:
    return kl.categorical_threshold(np.array(counts, dtype=np.int64), bound, log_odds)


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
    assert (bernstein_radius(0.0, 1.0, 1.0, delta), bernstein_count(0.0, 1.0, 1e-9, delta)) == (0.0, 1.0)


# The confidence sequence


DELTA = 0.1


@pytest.mark.parametrize(("variance", "radius"), [(0.2, 0.01), (0.05, 0.003), (0.01, 0.001), (0.001, 0.0001)])
def test_the_width_adapts_to_the_variance(variance: float, radius: float) -> None:
    """The count approaches 2v·log(2/δ)/r², what a known variance and a normal mean would need, not the width²/4.

    The sequence is fed with batches of exactly this variance until it reaches the radius.
    """
    ideal = 2.0 * variance * math.log(2.0 / DELTA) / radius**2
    for low, high in ((0.0, 1.0), (-40.0, -39.0)):
        sequence, batch, mean = ConfidenceSequence(low, high, DELTA, radius), math.ceil(ideal / 100), low + 0.4
        while sequence.interval[1] - sequence.interval[0] > 2.0 * radius:
            sequence.update(batch, batch * mean, batch * (mean**2 + variance))
        assert ideal <= sequence.count <= 1.2 * ideal


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
    rng, sequence = np.random.default_rng(2), ConfidenceSequence(0.0, 1.0, 0.1, 0.05)
    for _ in range(100):
        before, samples = sequence.interval, (rng.random(5) < 0.05).astype(np.float64)
        sequence.update(5, samples.sum(), float(samples @ samples))
        assert before[0] <= sequence.interval[0] <= sequence.interval[1] <= before[1]


def test_no_variables_and_a_support_of_one_point() -> None:
    sequence = ConfidenceSequence(0.0, 1.0, 0.1, 0.05)
    sequence.update(0, 0.0, 0.0)
    assert (sequence.interval, sequence.count, sequence.mean) == ((0.0, 1.0), 0, 0.5)
    point = ConfidenceSequence(2.5, 2.5, 0.1, 0.05)
    point.update(4, 10.0, 25.0)
    assert (point.interval, point.count, point.mean) == ((2.5, 2.5), 4, 2.5)


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_a_target_that_is_no_radius_is_named(target: float) -> None:
    with pytest.raises(ValueError, match="target must be"):
        ConfidenceSequence(0.0, 1.0, 0.1, target)


# Kullback–Leibler bounds

DIGITS = Context(prec=80)
LOG_2 = DIGITS.ln(Decimal(2))


@pytest.fixture(scope="module", autouse=True)
def _digits() -> Iterator[None]:
    with localcontext(DIGITS):
        yield


probabilities = st.one_of(
    st.sampled_from([0.0, 1.0]),
    st.floats(1e-30, 1.0),
    st.floats(-14.0, 0.0).map(lambda x: 10.0**x),
    st.floats(-14.0, 0.0).map(lambda x: 1.0 - 10.0**x),
)
levels = st.floats(-15.0, math.log10(50.0)).map(lambda x: 10.0**x)


def exact_divergence(p: Sequence[Any], q: Sequence[Any]) -> Decimal:
    """KL(p, q) in 80 digits."""
    pairs = [(Decimal(a), Decimal(b)) for a, b in zip(p, q, strict=True) if a > 0]
    return sum((a * (a / b).ln() if b > 0 else Decimal("inf") for a, b in pairs), Decimal(0))


def exact_bernoulli(p: float, q: float) -> Decimal:
    return exact_divergence([p, 1 - Decimal(p)], [q, 1 - Decimal(q)])


@settings(deadline=None)
@given(probabilities, levels)
@example(0.5, 37.0)
@example(1e-12, 1e-10)
@example(0.01, 1.0)
@example(0.0, 31.0)
@example(9.263964347542263e-08, 10.0**-4.171875)
def test_bernoulli_limits_are_met_from_outside(p: float, level: float) -> None:
    """No point inside them has been left out, and hardly one outside taken in."""
    upper, lower = kl.bernoulli_upper(p, level), kl.bernoulli_lower(p, level)
    assert lower <= p <= upper
    if upper < 1.0:
        assert exact_bernoulli(p, upper) >= Decimal(level)
    inwards = upper - 2e-14 * upper
    assert inwards <= p or exact_bernoulli(p, inwards) <= Decimal(level) * (1 + Decimal("1e-12"))
    if lower > 0.0:
        assert exact_bernoulli(p, lower) >= Decimal(level)
    inwards = lower + 2e-14 * lower + 1e-307
    assert inwards >= p or exact_bernoulli(p, inwards) <= Decimal(level) * (1 + Decimal("1e-12"))


def test_bernoulli_limits_at_the_ends() -> None:
    for level in (0.0, 1e-15, 1e-3, 1.0, 50.0, math.inf):
        assert (kl.bernoulli_upper(1.0, level), kl.bernoulli_lower(0.0, level)) == (1.0, 0.0)
    for p in (0.0, 0.3, 1.0):
        assert kl.bernoulli_upper(p, 0.0) == kl.bernoulli_lower(p, 0.0) == p
    assert (kl.bernoulli_upper(0.3, math.inf), kl.bernoulli_lower(0.3, math.inf)) == (1.0, 0.0)


# The ball


def exact_ball(shares: Floats, values: Floats, unseen: float, level: float) -> tuple[Decimal, Decimal]:
    """A value that some distribution in the ball attains, and one that none exceeds; both in 80 digits.

    The first is the expectation under q ∝ share/(ν − value), whose divergence is calculated; the second is Jensen's
    inequality with the same ν. Both are right for every ν that makes the divergence at most `level`.
    """
    total = sum((Decimal(s) for s in shares), Decimal(0))
    seen = [(Decimal(s) / total, Decimal(v)) for s, v in zip(shares, values, strict=True) if s > 0]
    p, worth = [s for s, _ in seen], [v for _, v in seen]
    radius = Decimal(level)
    best = max([Decimal(v) for v in values] + [Decimal(unseen)])

    def tilted(t: Decimal) -> list[Decimal]:
        weights = [s / (best + t - v) for s, v in seen]
        return [w / sum(weights) for w in weights]

    def bound(t: Decimal) -> Decimal:
        return best + t - (sum((s * (best + t - v).ln() for s, v in seen), -radius)).exp()

    if min(worth) == best:
        return best, best
    if max(worth) < best and exact_divergence(p, q := tilted(Decimal(0))) <= radius:
        # What is left goes to the best that was not seen.
        kept = (exact_divergence(p, q) - radius).exp()
        q = [kept * b for b in q]
        assert exact_divergence(p, q) <= radius * (1 + Decimal("1e-30"))
        return sum((b * v for b, v in zip(q, worth, strict=True)), (1 - kept) * best), bound(Decimal(0))
    reach = best - sum((s * v for s, v in seen), Decimal(0))
    low, high = Decimal(-70), Decimal(50)
    for _ in range(80):
        middle = (low + high) / 2
        if exact_divergence(p, tilted(reach * middle.exp())) > radius:
            low = middle
        else:
            high = middle
    t = reach * high.exp()
    return sum((b * v for b, v in zip(tilted(t), worth, strict=True)), Decimal(0)), bound(t)


def random_ball(rng: np.random.Generator) -> tuple[Floats, Floats, float, float]:
    """Shares of 1 to 8 outcomes, of which some may be zero or 1e-12, values of any scale, an unseen one, a level."""
    size = int(rng.integers(1, 9))
    counts = rng.multinomial(int(10.0 ** rng.uniform(0.0, 6.0)), rng.dirichlet(np.full(size, rng.choice([0.1, 1.0]))))
    if size > 1 and rng.random() < 0.2:
        counts = np.concatenate([[10**12, 1], np.zeros(size - 2, dtype=np.int64)])
    values = (rng.random(size) + rng.choice([0.0, -0.5, 3.0])) * 10.0 ** rng.uniform(-9.0, 9.0)
    if rng.random() < 0.2:
        values[rng.integers(size)] = 0.0
    if rng.random() < 0.3:
        values[rng.integers(size)] = values[rng.integers(size)]
    spread = float(np.ptp(values)) + 1e-9
    unseen = rng.choice([-math.inf, values.max() + spread * rng.random(), values.min() - spread, values.mean()])
    return counts / counts.sum(), values, float(unseen), float(10.0 ** rng.uniform(-15.0, math.log10(50.0)))


def test_the_ball_is_exact() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        shares, values, unseen, level = random_ball(rng)
        found = Decimal(ball_maximum(shares, values, unseen, level))
        attained, bound = exact_ball(shares, values, unseen, level)
        # Rounding is relative to the expectation of the absolute values: next to nothing where what counts is rare.
        rounding = Decimal("1e-13") * max(abs(bound), Decimal(float(shares @ np.abs(values))))
        assert abs(bound - attained) <= rounding / 10**6
        assert attained - rounding / 10**6 <= found <= bound + rounding
        assert ball_minimum(shares, -values, -unseen, level) == -found


@pytest.mark.parametrize("count", [100, 10_000])
@pytest.mark.parametrize("value", [0.1, 0.7, -0.3])
def test_the_ball_of_many_outcomes_is_rounded_outwards(count: int, value: float) -> None:
    """A sum of many equal terms errs in one direction, by more than a few units in the last place."""
    shares, values, level = np.full(count, 1.0 / count), np.full(count, value), 10.0 / count
    assert ball_maximum(shares, values, -math.inf, level) == value
    gap = Decimal(value + 1e-9) - Decimal(value)
    exact = Decimal(value) + gap * (1 - (-Decimal(level)).exp())
    found = Decimal(ball_maximum(shares, values, value + 1e-9, level))
    assert exact <= found <= exact + Decimal("2e-15") * count * Decimal(abs(value))


def test_the_ball_at_the_ends() -> None:
    shares, values = np.array([0.25, 0.75]), np.array([1.0, 3.0])
    assert ball_maximum(shares, values, 9.0, 0.0) == ball_minimum(shares, values, -9.0, 0.0) == 2.5
    assert (ball_maximum(shares, values, 9.0, math.inf), ball_minimum(shares, values, -9.0, math.inf)) == (9.0, -9.0)
    assert (ball_maximum([1.0], [2.0], -math.inf, 0.5), ball_minimum([1.0], [2.0], math.inf, 0.5)) == (2.0, 2.0)
    assert ball_maximum(shares, [2.0, 2.0], -math.inf, 0.5) == 2.0
    # An outcome of share 0 may have any probability that the level allows, as what is not listed may.
    assert math.isclose(ball_maximum([1.0, 0.0], [0.0, 1.0], -math.inf, 0.5), -math.expm1(-0.5), rel_tol=1e-12)
    assert math.isclose(ball_maximum([1.0], [0.0], 1.0, 0.5), -math.expm1(-0.5), rel_tol=1e-12)


# Thresholds


def test_shares_sum_to_one() -> None:
    """What is left after n of them is 1/log₂(n + 2)."""
    parts = share(np.arange(1_000_000))
    assert (parts > 0.0).all()
    assert (np.diff(parts) < 0.0).all()
    left = 1.0 - np.cumsum(parts)
    np.testing.assert_allclose(left, 1.0 / np.log2(np.arange(1_000_000) + 3.0), rtol=1e-10)


@pytest.mark.parametrize("bound", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_categorical_mixture_is_a_martingale(count: int, bound: int) -> None:
    """E exp(n·KL(p̂, p) − β) is δ exactly, summed over all samples; less where some outcomes cannot happen."""
    rng = np.random.default_rng([count, bound])
    for probability in (rng.dirichlet(np.ones(bound)), rng.dirichlet(np.full(bound, 0.1)), np.eye(bound)[0]):
        expectation = 0.0
        for cut in itertools.combinations(range(count + bound - 1), bound - 1):
            counts = np.diff([-1, *cut, count + bound - 1]) - 1
            chance = multinomial.pmf(counts, count, probability)
            seen = counts > 0
            if chance > 0.0:
                divergence = counts[seen] @ np.log(counts[seen] / count / probability[seen])
                # The order in which outcomes were seen does not matter, nor that some have not been.
                threshold = categorical_threshold(rng.permutation(counts[seen]), bound, 1.0)
                assert math.isclose(threshold, categorical_threshold(counts, bound, 1.0), rel_tol=1e-12)
                expectation += chance * math.exp(divergence - threshold + 1.0)
        assert expectation <= 1.0 + 1e-9
        assert (probability == 0.0).any() or math.isclose(expectation, 1.0, rel_tol=1e-9)


def test_thresholds_of_many_observations() -> None:
    """β = log(1/δ) + ((B−1)/B)·log(n) + O(1), without the rounding of n·log(n)."""
    for bound in (2, 5):
        constant = bound * math.lgamma(1.0 / bound) - (bound - 1) / 2 * math.log(2 * math.pi)
        for count in (999, 1000, 10**6, 10**12):
            counts = np.full(bound, count)
            expected = constant + (1 / bound - 0.5) * -bound * math.log(count) + 0.5 * math.log(count * bound)
            assert math.isclose(categorical_threshold(counts, bound, 3.0), 3.0 + expected, abs_tol=1.0 / count + 1e-9)


@pytest.mark.parametrize("count", [1, 2, 10, 60])
def test_the_portfolio_falls_behind_by_its_regret_and_no_more(count: int) -> None:
    """On any returns of one asset, the other being cash; in full where one of them is never worth anything."""
    rng, regret = np.random.default_rng(count), kl.wager_regret(count)
    wagers = np.linspace(0.0, 1.0, 1001)[:-1, None]
    for _ in range(50):
        returns = rng.choice([rng.exponential(1.0, count), rng.random(count) * 2.0, rng.choice([0.0, 3.0], count)])
        best = float(np.log1p(wagers * (returns - 1.0)).sum(axis=1).max())
        assert best - wealth(returns, 1.0) <= regret + 1e-9
    assert math.isclose(-wealth(np.zeros(count), 1.0), regret, rel_tol=1e-9)
    huge = np.full(count, 1e15)
    assert math.isclose(np.log(huge).sum() - wealth(huge, 1.0), regret, rel_tol=1e-9)


# The interval from wagers

samples_of_all_kinds = st.one_of(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30),
    st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=30),
    st.lists(st.sampled_from([0.1, 0.3, 0.3 + 1e-11]), min_size=1, max_size=30),
    st.lists(st.floats(0.0, 1e-9), min_size=1, max_size=30),
    st.lists(st.floats(1.0 - 1e-9, 1.0), min_size=1, max_size=30),
)


PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620900")


def exact_regret(count: int) -> Decimal:
    """log Π 2k/(2k − 1), from its series where the product is long."""
    if count <= 1000:
        return math.prod((Decimal(2 * k) / Decimal(2 * k - 1) for k in range(1, count + 1)), start=Decimal(1)).ln()
    n = Decimal(count)
    return (PI * (n + Decimal("0.25") + 1 / (32 * n) - 1 / (128 * n**2) - 5 / (2048 * n**3))).ln() / 2


def exact_fortune(values: Sequence[Fraction], repeats: Sequence[int], m: Decimal) -> Decimal:
    """The bound on the logarithm of the fortune against m, in 80 digits: the two values, staked whole or wagered."""
    count = sum(repeats)
    first = sum((c * x for x, c in zip(values, repeats, strict=True)), Fraction(0)) / count
    second = sum((c * x * x for x, c in zip(values, repeats, strict=True)), Fraction(0)) / count
    # In fractions until nothing cancels any more: the variance of numbers within 1e-77 of 1 has no digit among the 80.
    below, most = first - min(values), max(values) - first
    above = min((second - first * first) / below, most) if below > 0 else Fraction(0)
    share = below / (below + above) if below > 0 else Fraction(1)
    mean, least, upper, likely = (
        Decimal(x.numerator) / Decimal(x.denominator) for x in (first, min(values), first + above, share)
    )

    def logarithm(b: Decimal) -> Decimal:
        lower, higher = 1 + b * (least / m - 1), 1 + b * (upper / m - 1)
        if likely == 1:
            return count * higher.ln()
        return count * (likely * higher.ln() + (1 - likely) * lower.ln()) if lower > 0 else Decimal("-inf")

    # The best wager makes the derivative zero; in any case it is a wager, so that the fortune is no less.
    b = Decimal(1) if m <= least else min(Decimal(1), (mean - m) * m / ((m - least) * (upper - m)))
    return max(logarithm(Decimal(1)), logarithm(b) - exact_regret(count)) - LOG_2


def check_rounding(values: Sequence[float], repeats: Sequence[int], interval: tuple[float, float], odds: float) -> None:
    """The exact limits lie inside an interval, and, unless rounding hides the variance, not far inside."""
    needed = Decimal(odds) + LOG_2
    upwards = [Fraction(x) for x in values]
    ends = ((upwards, Decimal(float(interval[0]))), ([1 - x for x in upwards], 1 - Decimal(float(interval[1]))))
    for samples, limit in ends:
        if limit > 1e-300:
            assert exact_fortune(samples, repeats, limit) >= needed
        if limit > 1e-6 and max(values) - min(values) > 0.1:
            assert exact_fortune(samples, repeats, limit * (1 + Decimal("1e-8"))) <= needed


@settings(max_examples=200, deadline=None)
@given(samples_of_all_kinds, st.floats(0.0, 30.0))
@example([0.3] * 20 + [0.3 + 1e-11], 3.0)
@example([1.0 - 1e-9, 1.0 - 5e-10], 20.0)
@example([0.0, 1e-200], 0.0)
@example([0.0, 0.0, 3.989242850492787e-70], 0.0)
@example([0.0] * 99 + [1.5e-16], 3.0)  # the upper limit was 1e-13
def test_the_interval_is_rounded_outwards(values: list[float], log_odds: float) -> None:
    samples = np.array(values)
    sums = len(samples), float(samples.sum()), float(samples @ samples), float(samples.min()), float(samples.max())
    check_rounding(values, [1] * len(values), means.mean_interval(*sums, log_odds), log_odds)


@pytest.mark.parametrize(
    ("values", "repeats"),
    [
        ((0.1, 0.9), (10**6 - 1, 1)),
        ((0.0, 1.0), (10**6 - 3, 3)),
        ((0.1, 0.1 + 1e-7), (5 * 10**5, 5 * 10**5)),
        ((0.3, 0.3 + 1e-11), (10**6, 1)),
        ((1e-9, 2e-9), (5 * 10**5, 5 * 10**5)),
        ((1.0 - 1e-9, 1.0), (5 * 10**5, 5 * 10**5)),
        ((0.3, 0.7, 1.0), (6 * 10**5, 3 * 10**5, 10**5)),
    ],
)
def test_sums_that_were_rounded_a_million_times(values: tuple[float, ...], repeats: tuple[int, ...]) -> None:
    """Adding the same number again and again errs in one direction: the interval allows for that."""
    samples = np.random.default_rng(0).permutation(np.repeat(values, repeats))
    total, squares = float(np.cumsum(samples)[-1]), float(np.cumsum(samples**2)[-1])
    interval = means.mean_interval(len(samples), total, squares, min(values), max(values), 3.0)
    check_rounding(values, repeats, interval, 3.0)


@pytest.mark.parametrize("variance", [0.0, 1e-5, 0.001, 0.05])
def test_the_betting_interval_adapts_to_the_variance(variance: float) -> None:
    """2·√(2v·(log(4/δ) + regret)/n), and no more than a few times log(4/δ)/n beyond; that alone if nothing varies."""
    spread = 0.3 if variance else 0.0
    for count in (1_000, 10_000, 10**6):
        sums = count, 0.4 * count, (0.16 + variance) * count, 0.4 - spread, 0.4 + spread
        low, high = means.mean_interval(*sums, math.log(1.0 / DELTA))
        needed = (math.log(4.0 / DELTA) + (kl.wager_regret(count) if variance else 1.0)) / count
        by_variance = 2.0 * math.sqrt(2.0 * variance * needed)
        assert low <= 0.4 <= high
        assert 0.9 * min(by_variance, needed) <= high - low <= by_variance + (2.0 if variance else 1.0) * needed


# The best action


def test_leaders_are_found_by_their_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        intervals = np.sort(rng.integers(0, 4, size=(4, 2)), axis=1).astype(float)
        low, high = intervals.T
        best = int(np.lexsort((-high, -low))[0])
        challenger = int(np.where(np.arange(4) == best, -np.inf, high).argmax())
        assert means.leaders(low, high) == (best, challenger, high[challenger] - low[best])
