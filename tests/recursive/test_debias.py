"""Debiased levels and the noise of references, by enumeration: Chapter 3 of the proofs, and what it rests on."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from smoothplan.base.arguments import Floats
from smoothplan.recursive import debias as debiasing
from smoothplan.recursive import level as arithmetic
from smoothplan.recursive.debias import DEBIASING, Debiased, central_moments, left_over
from smoothplan.theory.backups import LogSumExp
from tests.attack.curvatures import joint_cumulant
from tests.attack.levels import Laws, Outcomes, in_place_of_value
from tests.recursive.common import entropy_problem


@dataclass(frozen=True)
class Case:
    """Action a pays low_a with probability 1 − p_a, and low_a + width_a otherwise, N times."""

    samples: int
    low: Floats  # [K]
    width: Floats  # [K]
    chance: Floats  # [K], p
    backup: LogSumExp

    @property
    def mean(self) -> Floats:
        return np.asarray(self.low + self.width * self.chance)

    @property
    def variance(self) -> float:
        return float((self.width**2 * self.chance * (1.0 - self.chance)).max())

    def outcomes(self, blocks: int) -> Outcomes:
        values = np.stack([self.low, self.low + self.width], axis=1)
        return Outcomes.of(Laws(values, np.stack([1.0 - self.chance, self.chance], axis=1)), self.samples, blocks)


def random_case(rng: np.random.Generator, actions: int, samples: int) -> Case:
    width = np.ones(actions) if rng.random() < 0.5 else rng.uniform(0.0, 1.0, size=actions)
    backup = LogSumExp(float(np.exp(rng.uniform(np.log(0.1), np.log(5.0)))))
    return Case(samples, rng.normal(size=actions), width, rng.beta(0.6, 0.6, size=actions), backup)


# --- Moments and cumulants


@pytest.mark.parametrize("actions", [2, 3, 4, 7])
def test_moments_of_the_reference_approach_those_of_normal_variables(actions: int) -> None:
    """After many returns S·n/v is a chi-squared variable with K − 1 degrees of freedom: all coefficients at once."""
    count, variance = 1e9, 0.2
    found = debiasing.noise(actions, variance, 1.0, count)
    moments = np.cumprod([actions - 1.0, actions + 1.0, actions + 3.0]) * (2.0 * variance / count) ** np.arange(1, 4)
    np.testing.assert_allclose([found.second**2, found.fourth**4, found.sixth**6], moments, rtol=1e-6)


# --- What noise leaves of the bias


def expanded(case: Case) -> Floats:
    """The terms c₂, c₃, c₂₂, c₄, c₃₂ and c₅ of Lemma 3.1, of the mean of all N returns."""
    n, eta, every = case.samples, case.backup.temperature, range(len(case.low))
    policy, indicators = case.backup.policy(case.mean), np.eye(len(case.low))

    def partial(*of: int) -> float:
        return joint_cumulant(indicators[:, list(of)], policy) / eta ** (len(of) - 1)

    p, q, w = case.chance, 1.0 - case.chance, case.width
    k2, k3 = w**2 * p * q, w**3 * p * q * (q - p)
    k4, k5 = w**4 * p * q * (1.0 - 6.0 * p * q), w**5 * p * q * (q - p) * (1.0 - 12.0 * p * q)
    return np.array(
        [
            sum(partial(a, a) * k2[a] for a in every) / (2 * n),
            sum(partial(a, a, a) * k3[a] for a in every) / (6 * n**2),
            3 * sum(partial(a, a, c, c) * k2[a] * k2[c] for a in every for c in every) / (24 * n**2),
            sum(partial(a, a, a, a) * k4[a] for a in every) / (24 * n**3),
            10 * sum(partial(a, a, a, c, c) * k3[a] * k2[c] for a in every for c in every) / (120 * n**3),
            sum(partial(a, a, a, a, a) * k5[a] for a in every) / (120 * n**4),
        ]
    )


def sizes(actions: int, derivatives: tuple[float, ...], variance: float, width: float, n: int) -> Floats:
    """The bounds of all these terms but the first, of Proposition 3.2."""
    _, d3, d4, d5, _ = derivatives
    third, fourth = (float(moment) for moment in central_moments(variance, width))
    return np.array(
        [
            actions * d3 * third / (6 * n**2),
            d4 * 4 * (actions - 1) * (actions + 1) * variance**2 / (24 * n**2),
            actions * d4 * max(fourth, 2 * variance**2) / (24 * n**3),
            actions * d5 * third * 2 * (actions - 1) * variance / (12 * n**3),
            actions * d5 * (width * fourth + 10 * third * variance) / (120 * n**4),
        ]
    )


@pytest.mark.parametrize("actions", [2, 3])
def test_the_expansion_of_a_mean_and_the_sizes_of_its_terms(actions: int) -> None:
    """By enumeration, for blocks of one to three returns. Every term is larger than the remainder in some case."""
    rng, seen = np.random.default_rng(actions), np.zeros(6, dtype=bool)
    for number in range(60):
        n = 1 + number % 3
        case = replace(random_case(rng, actions, n), backup=LogSumExp(6.0))
        outcomes, terms = case.outcomes(1), expanded(case)
        whole = outcomes.blocks[:, 0]
        noise = whole - case.mean
        slopes = (case.backup.policy(whole) * noise).sum(axis=1)
        derivatives = case.backup.derivatives(actions)
        remainder = derivatives[4] / 720.0 * outcomes.mean(np.ptp(noise, axis=1) ** 6)
        value = outcomes.mean(case.backup.value(whole)) - float(case.backup.value(case.mean))
        rounding = 1e-14
        assert abs(value - terms.sum()) <= remainder + rounding
        assert abs(outcomes.mean(slopes) - np.array([2, 3, 4, 4, 5, 5]) @ terms) <= 6.0 * remainder + rounding
        seen |= np.abs(terms) > 2.0 * remainder
        bounds = sizes(actions, derivatives, case.variance, float(case.width.max()), n)
        assert (np.abs(terms[1:]) <= bounds + rounding).all()
    assert seen.all()


@dataclass(frozen=True)
class Written:
    """A row of the table of weights in Chapter 3, and what Propositions 3.2 and 3.4 make of it."""

    kind: Debiased
    debias: int
    v: dict[int, float]  # by the number of blocks m
    y: dict[int, float]
    above: tuple[float, ...]  # α, by split
    below: tuple[float, ...]  # β

    def omega(self, degree: int, power: int) -> float:
        values = sum(weight * float(m) ** power for m, weight in self.v.items())
        return values + degree * sum(weight * float(m) ** power for m, weight in self.y.items())

    @property
    def omegas(self) -> Floats:
        """The weights of all terms."""
        return np.array([self.omega(k, p) for k, p in ((2, 1), (3, 2), (4, 2), (4, 3), (5, 3), (5, 4))])

    def xi(self, m: int, degree: int) -> float:
        v, y = self.v[m], self.y.get(m, 0.0)
        return abs(v + degree * y) if m == 1 else abs(v) + degree * abs(y)

    def left(self, actions: int, derivatives: tuple[float, ...], variance: float, width: float, n: int) -> float:
        """The bound of |ℓ|."""
        terms = np.abs(self.omegas[1:]) * sizes(actions, derivatives, variance, width, n)
        fourth, sixth = 0.0, 0.0
        for m in self.v:
            norms = debiasing.noise(actions, variance, width, n / m)
            fourth += derivatives[2] / 24.0 * self.xi(m, 4) * float(norms.fourth) ** 4
            sixth += derivatives[4] / 720.0 * self.xi(m, 6) * float(norms.sixth) ** 6
        return min(float(terms[0]) + fourth, float(terms.sum()) + sixth)

    def remainders(self, case: Case, outcomes: Outcomes) -> tuple[float, float]:
        """R₄ and R₆ with the true moments of the noise."""
        found = []
        for degree, bound in zip((4, 6), case.backup.derivatives(len(case.low))[2::2], strict=True):
            total = 0.0
            for m in self.v:
                blocks = outcomes.blocks[:, : outcomes.blocks.shape[1] // m].mean(axis=1)
                total += self.xi(m, degree) * outcomes.mean(np.ptp(blocks - case.mean, axis=1) ** degree)
            found.append(bound / math.factorial(degree) * total)
        return found[0], found[1]


WRITTEN = [
    Written("plug-in", 1, {1: 2.0, 2: -1.0}, {}, (0.0,), (1.0,)),
    Written("plug-in", 2, {1: 8 / 3, 2: -2.0, 4: 1 / 3}, {}, (0.0, 1 / 3), (5 / 3, 0.0)),
    Written("order-1", 1, {1: 0.0, 2: 1.0}, {1: -1.0}, (1.0,), (0.0,)),
    Written("order-1", 2, {1: 2 / 3, 2: 1 / 2, 4: -1 / 6}, {1: -1.0, 2: 1 / 4}, (4 / 3, 0.0), (0.0, 1 / 6)),
]

each_debiased = pytest.mark.parametrize("written", WRITTEN, ids=lambda row: f"{row.kind}, {row.debias}")


@each_debiased
@pytest.mark.parametrize("actions", [2, 3])
def test_what_noise_leaves_of_the_bias(actions: int, written: Written) -> None:
    """By enumeration: the weights of all terms and the remainders. And `left_over` is the bound that they add up to.

    It is a sum of many terms with signs of their own, so that no single case comes near it.
    """
    rng = np.random.default_rng([actions, written.debias])
    weights = DEBIASING[written.kind, written.debias]
    for number in range(12):
        case = replace(random_case(rng, actions, 4), backup=LogSumExp([0.3, 1.0, 6.0][number % 3]))
        outcomes, value = case.outcomes(2**written.debias), float(case.backup.value(case.mean))
        sums = in_place_of_value(case.backup, outcomes.blocks, weights)
        if written.kind == "order-1":
            sums -= (case.backup.policy(outcomes.whole) * (outcomes.whole - case.mean)).sum(axis=1)
        left, terms = outcomes.mean(sums) - value, written.omegas * expanded(case)
        fourth, sixth = written.remainders(case, outcomes)
        rounding = 1e-13
        assert abs(left - terms[1]) <= fourth + rounding
        assert abs(left - terms.sum()) <= sixth + rounding
        given = actions, case.backup.derivatives(actions), case.variance, float(case.width.max()), case.samples
        assert abs(left) <= written.left(*given) + rounding
    for eta, variance, n in itertools.product((0.05, 0.5, 5.0), (0.01, 0.1, 0.25), (4, 12, 400)):
        derivatives = LogSumExp(eta).derivatives(actions)
        for declared, none in ((derivatives, ()), (derivatives[:3], (math.inf,) * 2)):
            found = left_over(written.kind, written.debias, actions, declared, variance, 1.3, n)
            assert found == pytest.approx(written.left(actions, declared + none, variance, 1.3, n), rel=1e-12)


@each_debiased
@pytest.mark.parametrize(("actions", "eta", "n"), [*itertools.product((2, 4), (0.05, 0.5, 5.0), (4, 40))])
def test_certificates_are_those_of_the_proofs(actions: int, eta: float, n: int, written: Written) -> None:
    """Written out from Propositions 3.3 and 3.4: their parts hide each other in any one case."""
    setting = replace(entropy_problem(0.5, eta), actions=actions, at_zero=(-0.2, 0.4), above_max=-0.6)
    derivatives = LogSumExp(eta).derivatives(actions)
    d2, d3 = derivatives[:2]
    t, variance, low, high = 0.03, 0.2, -0.7, 0.6
    own, own_variance, least, most = 0.02, 0.3, -1.1, 0.9
    width = high - low
    through = arithmetic.Bounds(t, variance, low, high, 1.0)
    around = arithmetic.reference(setting, through, n)

    def rho(x: float) -> float:
        return min(x, d2 / 2.0 * x**2)

    norms = [debiasing.noise(actions, variance, width, n / 2**k) for k in range(written.debias)]
    splits = [float(min(norm.second, d2 / 2.0 * norm.fourth**2)) for norm in norms]
    above, below = np.dot(written.above, splits), np.dot(written.below, splits)
    up, down = sum(written.above) * rho(width), sum(written.below) * rho(width)
    left = written.left(actions, derivatives, variance, width, n)
    if written.kind == "plug-in":
        proved = arithmetic.plug_in(setting, through, around, written.debias)
        swing = math.hypot(splits[0] + above, below)
        expected = (t + left, (math.sqrt(variance / n) + swing) ** 2, low - 0.2 - down, high + 0.4 + up, 0.0)
    else:
        linear = arithmetic.Bounds(own, own_variance, least, most, 1.0)
        proved = arithmetic.first_order(setting, around, linear, written.debias)
        swing = math.hypot(splits[0] + below, above)
        h, second = rho(2.0 * t) / 2.0, math.sqrt(2.0 * (actions - 1) * variance / n)
        drift = swing + min(2.0, 2.0 * d2 * second) * (t + own)
        excess = sum(-v for v in written.v.values() if v < 0.0) + sum(y for m, y in written.y.items() if m > 1)
        expected = (
            h + d3 * second**2 * (t + own) + left + own,
            own_variance + (second + 2.0 * t + 2.0 * own) ** 2 / 4.0 + drift**2,
            max(-0.2 - width, -0.6) - down + least + h,
            0.4 + width + min(up, width * excess) + most + h,
            h,
        )
    found = proved.bias, proved.variance, proved.low, proved.high, proved.shift
    assert [float(number) for number in found] == pytest.approx(expected, rel=1e-12)


def test_noise_in_the_policy_is_real() -> None:
    """By enumeration: a bias β of a reference moves the mean of a debiased level by −½E D³F[e, e, β], of order 1/N.

    So no proof can do without the product of noise and bias: one of order 1/N² would be refuted.
    """
    backup, chance, width, beta = LogSumExp(1.0), np.array([0.3, 0.6]), np.array([1.0, 0.7]), np.array([1e-5, -1e-5])
    for samples in (4, 8, 12):
        case = Case(samples, np.array([0.6, 0.0]), width, chance, backup)
        outcomes = case.outcomes(4)
        total = in_place_of_value(backup, outcomes.blocks, DEBIASING["order-1", 2])
        whole = outcomes.whole
        policy = backup.policy(whole)

        def bias(truth: Floats) -> float:
            """Of a level whose reference has the mean of the case and whose linear child is perfect."""
            linear = (policy * (truth - whole)).sum(axis=1)  # noqa: B023
            return outcomes.mean(total + linear) - float(backup.value(truth))  # noqa: B023

        turn = backup.hessian(case.mean + beta) - backup.hessian(case.mean - beta)
        predicted = -0.25 * np.diagonal(turn) @ (width**2 * chance * (1.0 - chance)) / samples
        assert bias(case.mean - beta) - bias(case.mean) == pytest.approx(predicted, rel=0.03)
