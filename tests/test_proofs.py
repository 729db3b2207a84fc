"""The proofs: their pages are complete, and what has no test elsewhere is tried here."""

import importlib
import itertools
import math
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import binom

import smoothplan as sp
from docs.statements import HEADING, MENTION, linked
from smoothplan import confidence
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import LogSumExp
from smoothplan.confidence import ConfidenceSequence, bernstein_count, bernstein_radius
from smoothplan.engines.base import Sums
from smoothplan.engines.batched import BatchedEngine
from smoothplan.models.base import States
from smoothplan.planners import recursive
from smoothplan.running.progress import Silent
from smoothplan.running.run import Found, Root
from smoothplan.running.work import Chunk, Outcome, Work
from smoothplan.running.workers import Workers
from smoothplan.schedules import debias as debiasing
from smoothplan.schedules import level as arithmetic
from smoothplan.schedules import optimise
from smoothplan.schedules.debias import DEBIASING, Debiased, central_moments, left_over
from smoothplan.schedules.explicit import explicit_schedule
from smoothplan.schedules.level import Level, Problem
from smoothplan.schedules.optimise import Kinds, optimised
from smoothplan.schedules.schedule import Schedule, shared_reference
from smoothplan.transport import CUMULANTS
from studies.errata_measures import ladder_price
from tests.attack.levels import Laws, Outcomes, in_place_of_value
from tests.common import identified
from tests.naive import Exact
from tests.test_certified import SMALL, holds, lottery

ROOT = Path(__file__).parent.parent
PROOFS = ROOT / "docs" / "proofs"
CHAPTERS = ["backups", "levels", "debiased", "root", "bounds", "references", "prices"]

NAME = re.compile(r"`([^`]+)`")


# The pages


class Statement(NamedTuple):
    number: str
    text: str


@cache
def statements(chapter: str) -> list[Statement]:
    text = (PROOFS / f"{chapter}.md").read_text(encoding="utf-8")
    starts = list(HEADING.finditer(text))
    # A statement ends where the next heading of any kind begins.
    ends = [re.compile(r"^##", re.MULTILINE).search(text, start.end()) for start in starts]
    return [
        Statement(start[2], text[start.start() : end.start() if end else len(text)])
        for start, end in zip(starts, ends, strict=True)
    ]


def named(statement: Statement) -> tuple[list[str], list[str]]:
    """The functions and the tests of a statement."""
    lines = re.findall(r"^Code: (.*)\. Test: (.*)\.$", statement.text, re.MULTILINE)
    assert len(lines) == 1, f"{statement.number} must have one line `Code: ... Test: ...`, got {len(lines)}"
    functions, tests = (NAME.findall(part) for part in lines[0])
    return functions, tests


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_statement_is_proved_and_names_its_code_and_its_tests(chapter: str) -> None:
    number = CHAPTERS.index(chapter) + 1
    found = statements(chapter)
    assert [statement.number for statement in found] == [f"{number}.{i}" for i in range(1, len(found) + 1)]
    for statement in found:
        proof = statement.text.partition("**Proof.**")[2]
        assert "∎" in proof, f"{statement.number} has no proof that ends"
        functions, tests = named(statement)
        assert functions
        assert tests
        for function in functions:
            assert exists(function), f"{statement.number}: there is no {function}"
        for test in tests:
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{statement.number}: no {test}"


def exists(name: str) -> bool:
    """Whether a dotted name is a function, a class, a method or a constant of a module."""
    parts = name.split(".")
    for size in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        try:
            reduce(getattr, parts[size:], module)
        except AttributeError:
            return False
        return True
    return False


def mentions(text: str) -> Iterator[str]:
    for found in MENTION.finditer(text):
        yield from re.findall(r"\d+\.\d+", found[0])


def test_mentions_of_statements_are_right() -> None:
    known = {statement.number for chapter in CHAPTERS for statement in statements(chapter)}
    pages = [*PROOFS.glob("*.md"), *(ROOT / name for name in ("README.md", "docs/guide.md", "docs/theory.md"))]
    wrong = [(page.name, it) for page in pages for it in mentions(page.read_text(encoding="utf-8")) if it not in known]
    assert not wrong


def test_a_wrong_name_would_be_found() -> None:
    assert exists("smoothplan.schedules.level.certify")
    assert exists("smoothplan.confidence.means.ConfidenceSequence.update")
    assert not exists("smoothplan.schedules.level.certified")
    assert not exists("smoothplan.nowhere.certify")
    assert list(mentions("by Lemmas 1.2 and 3.4, Theorem\n5.6.")) == ["1.2", "3.4", "5.6"]


def test_mentions_become_links() -> None:
    text = "### Lemma 1.1. Here\nSee Lemmas 1.2 to 1.4, `Lemma 1.1` and [Theorem 7.4](prices.md); but Theorem\n1.7."
    places = ("lemma-12-the-closed-form-of-the-transport-backup", "lemma-14-moments-of-a-variable-of-given-range")
    first, second = (f"backups.md#{place}" for place in places)
    wanted = text.replace("1.2", f"[1.2]({first})").replace("1.4", f"[1.4]({second})")
    wanted = wanted.replace("Theorem\n1.7", "[Theorem\n1.7](backups.md#theorem-17-taylors-remainders)")
    assert linked(text, "proofs") == wanted
    assert linked("Theorem 1.7", ".") == "[Theorem 1.7](proofs/backups.md#theorem-17-taylors-remainders)"


# Returns of two values


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


# Chapter 1


def laws(rng: np.random.Generator, count: int, size: int) -> tuple[Floats, Floats]:
    """Points [count, size] in [0, 1] with both ends among them, and weights [count, size]."""
    points = rng.beta(0.5, 0.5, size=(count, size))
    points[:, 0], points[:, 1] = 0.0, 1.0
    return points, rng.dirichlet(np.full(size, 0.5), size=count)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_moments_of_a_variable_of_given_range(size: int) -> None:
    points, weights = laws(np.random.default_rng(size), 20_000, size)
    centred = points - (weights * points).sum(axis=1, keepdims=True)
    variance, third, fourth = ((weights * centred**power).sum(axis=1) for power in (2, 3, 4))
    room = 1e-12
    assert (np.abs(third) <= variance * np.sqrt(np.maximum(1.0 - 4.0 * variance, 0.0)) + room).all()
    assert (fourth <= variance * (1.0 - 3.0 * variance) + room).all()
    assert (third**2 <= variance * (fourth - variance**2) + room).all()
    # The bounds that are used need not know the variance, only a bound of it.
    for looser in (variance, np.maximum(variance, 0.2)):
        most = central_moments(looser, np.ones(len(variance)))
        assert (np.abs(third) <= most[0] + room).all()
        assert (fourth <= most[1] + room).all()
    if size == 2:
        assert np.allclose(fourth, variance * (1.0 - 3.0 * variance))


def joint_cumulant(weights: Floats, variables: list[Floats]) -> Floats:
    """κ of variables on points with weights, all [n, m], by all partitions, [n]."""

    def partitions(items: list[int]) -> Iterator[list[list[int]]]:
        if not items:
            yield []
            return
        first, *rest = items
        for others in partitions(rest):
            yield [[first], *others]
            for place in range(len(others)):
                yield [*others[:place], [first, *others[place]], *others[place + 1 :]]

    total = np.zeros(len(weights))
    for blocks in partitions(list(range(len(variables)))):
        moments = [(weights * np.prod([variables[i] for i in block], axis=0)).sum(axis=1) for block in blocks]
        total += (-1.0) ** (len(blocks) - 1) * math.factorial(len(blocks) - 1) * np.prod(moments, axis=0)
    return total


@pytest.mark.parametrize("size", [2, 3])
def test_joint_cumulants_that_certificates_use(size: int) -> None:
    """On four and six points of the plane. Some are near the bounds, but κ(Y, Y, Z) not above κ₃'s."""
    rng = np.random.default_rng(size)
    (y, weights), (z, _) = laws(rng, 30_000, 2 * size), laws(rng, 30_000, 2 * size)
    z = rng.permuted(z, axis=1)
    indicator = (rng.random(y.shape) < 0.5).astype(np.float64)
    largest = [np.abs(joint_cumulant(weights, each)).max() for each in ([y, z], [y, y, z], 3 * [indicator] + 2 * [z])]
    bounds = np.array([CUMULANTS[2], 1.0 / 8.0, CUMULANTS[5]])
    assert (np.array(largest) <= bounds + 1e-12).all()
    assert (np.array(largest) >= 0.75 * np.minimum(bounds, [1.0, CUMULANTS[3], 1.0])).all()


# Chapter 2


@pytest.mark.parametrize("rewards", [1, 2, 3])
def test_the_variance_of_a_return_is_attained(rewards: int) -> None:
    """Next states of the largest and the least value, levels that are wrong by their whole bias, rewards that agree."""
    setting = replace(problem(0.7), values=(-1.0, 2.0))
    bias, deviation, gamma = 0.3, 0.4, setting.discount
    outcomes = []
    for good, noise, *others in itertools.product((0, 1), (-1, 1), *[(0, 1)] * (rewards - 1)):
        sample = (setting.values[1] + bias if good else setting.values[0] - bias) + noise * deviation
        outcomes.append((good + sum(others)) / rewards + gamma * sample)  # rewards are 0 or 1
    level = arithmetic.Certificate(bias, deviation**2, -9.0, 9.0, 1.0)
    assert np.var(outcomes) == pytest.approx(float(arithmetic.one_step(setting, level, rewards).variance), rel=1e-12)
    # A narrower support bounds the mean of a sample given the next state, too.
    narrow = level._replace(low=0.0, high=1.0, variance=0.0)
    assert arithmetic.one_step(setting, narrow).variance == pytest.approx(((1.0 + gamma) / 2.0) ** 2)


@pytest.mark.parametrize("debias", [0, 1, 2])
def test_parts_of_certificates_of_order_1(debias: int) -> None:
    """By enumeration, of biased references and children: how the mean given a reference varies with its noise, and how
    far noise in the policy moves the mean. A whole certificate would hide an error in one part by the slack of others.
    """
    rng = np.random.default_rng(debias)
    drifts, crosses = [], []
    for number in range(160):
        case = random_case(rng, 2, 4)
        if number % 2:  # rare and equal returns, a warm backup: where the moments are attained
            chance = np.full(2, 0.02 * number / 160)
            case = Case(4, np.array([0.0, rng.uniform(0.0, 4.0)]), np.ones(2), chance, LogSumExp(3.0))
        bias, own = rng.uniform(0.0, 0.3, size=2) * (number % 4 > 1)
        apart = (bias + own) * np.array([1.0, -1.0])  # E X − E Q̂, as different as it may be
        setting = problem(0.5, case.backup.temperature)
        low, high = float(case.low.min()), float((case.low + case.width).max())
        through = arithmetic.Return(bias, case.variance, low, high, 1.0)
        around = arithmetic.reference(setting, through, case.samples)
        linear = arithmetic.Return(own, 0.0, low, high, 1.0)
        proved = arithmetic.first_order(setting, around, linear, debias=debias)
        outcomes = case.outcomes(2**debias)
        policy = case.backup.policy(outcomes.whole)
        moved = policy @ apart
        total = in_place_of_value(case.backup, outcomes.blocks, DEBIASING["order-1", debias])
        means = total - (policy * (outcomes.whole - case.mean)).sum(axis=1) + moved
        between = around.second + 2.0 * own
        drift = float(proved.variance) - between**2 / 4.0
        drifts.append(outcomes.variance(means) / drift)
        if debias > 0 and bias + own > 0.0:
            left = left_over("order-1", debias, 2, setting.derivatives, case.variance, high - low, case.samples)
            cross = float(proved.bias) - float(proved.shift) - own - float(left)
            crosses.append(abs(outcomes.mean(moved) - float(case.backup.policy(case.mean) @ apart)) / cross)
    assert 0.5 < max(drifts) <= 1.0
    assert debias == 0 or 0.4 < max(crosses) <= 1.0


def test_the_variance_of_a_plug_in_level_is_nearly_attained() -> None:
    """One action far better than the other, on the scale of a temperature that is far above the noise."""
    case = Case(4, np.array([100.0, 0.0]), np.ones(2), np.full(2, 0.5), LogSumExp(10.0))
    outcomes, setting = case.outcomes(1), problem(0.5, 10.0)
    through = arithmetic.Return(0.0, case.variance, 0.0, 1.0, 1.0)
    proved = arithmetic.plug_in(setting, through, arithmetic.reference(setting, through, case.samples))
    values = case.backup.value(outcomes.blocks[:, 0])
    variance = outcomes.variance(values)
    assert 0.95 * float(proved.variance) < variance <= float(proved.variance)


# Chapter 3


def expanded(case: Case) -> Floats:
    """The terms c₂, c₃, c₂₂, c₄, c₃₂ and c₅ of Lemma 3.1, of the mean of all N returns."""
    n, eta, every = case.samples, case.backup.temperature, range(len(case.low))
    policy, indicators = case.backup.policy(case.mean)[None], np.eye(len(case.low))[:, None]

    def partial(*of: int) -> float:
        return float(joint_cumulant(policy, [indicators[a] for a in of])[0]) / eta ** (len(of) - 1)

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
def test_splits_swing_no_further_than_is_proved(written: Written) -> None:
    """Of single samples, with any means over blocks: how far the weighted sum is above and below F(Q̂)."""
    rng, largest = np.random.default_rng(written.debias), np.zeros(2)
    for actions, scale in itertools.product((2, 3), (0.1, 1.0, 10.0)):
        backup = LogSumExp(1.0)
        blocks = scale * rng.normal(size=(2_000, 2**written.debias, actions))
        swings = in_place_of_value(backup, blocks, DEBIASING[written.kind, written.debias])
        swings -= backup.value(blocks.mean(axis=1))
        ends = np.zeros((2, len(blocks)))
        for split, (above, below) in enumerate(zip(written.above, written.below, strict=True)):
            halves = blocks.reshape(len(blocks), 2**split, 2, -1, actions).mean(axis=3)
            ranges = np.ptp(halves[:, :, 0] - halves[:, :, 1], axis=2) / 2.0
            most = np.minimum(ranges, backup.derivatives(actions)[0] / 2.0 * ranges**2).mean(axis=1)
            ends += np.array([above, below])[:, None] * most
        assert (swings <= ends[0] + 1e-12).all()
        assert (-swings <= ends[1] + 1e-12).all()
        ratios = np.stack([swings, -swings]) / np.maximum(ends, 1e-9)
        largest = np.maximum(largest, ratios.max(axis=1))
    # Some swing nearly as far.
    assert (largest >= 0.99 * np.array([any(written.above), any(written.below)])).all()


@each_debiased
def test_certificates_of_debiased_levels_are_those_of_the_proofs(written: Written) -> None:
    """Written out from Propositions 3.3 and 3.4: their parts hide each other in any one case."""
    for actions, eta, n in itertools.product((2, 4), (0.05, 0.5, 5.0), (4, 40)):
        setting = replace(problem(0.5, eta), actions=actions, at_zero=(-0.2, 0.4), above_max=-0.6)
        derivatives = LogSumExp(eta).derivatives(actions)
        d2, d3 = derivatives[:2]
        t, variance, low, high = 0.03, 0.2, -0.7, 0.6
        own, own_variance, least, most = 0.02, 0.3, -1.1, 0.9
        width = high - low
        through = arithmetic.Return(t, variance, low, high, 1.0)
        linear = arithmetic.Return(own, own_variance, least, most, 1.0)
        around = arithmetic.reference(setting, through, n)

        def rho(x: float) -> float:
            return min(x, d2 / 2.0 * x**2)  # noqa: B023

        def split_norm(k: int) -> float:
            norms = debiasing.noise(actions, variance, width, n / 2**k)  # noqa: B023
            return float(min(norms.second, d2 / 2.0 * norms.fourth**2))  # noqa: B023

        above = sum(alpha * split_norm(k) for k, alpha in enumerate(written.above))
        below = sum(beta * split_norm(k) for k, beta in enumerate(written.below))
        up, down = sum(written.above) * rho(width), sum(written.below) * rho(width)
        left = written.left(actions, derivatives, variance, width, n)
        if written.kind == "plug-in":
            proved = arithmetic.plug_in(setting, through, around, written.debias)
            swing = math.hypot(split_norm(0) + above, below)
            expected = (t + left, (math.sqrt(variance / n) + swing) ** 2, low - 0.2 - down, high + 0.4 + up, 0.0)
        else:
            proved = arithmetic.first_order(setting, around, linear, "action", written.debias)
            swing = math.hypot(split_norm(0) + below, above)
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


# Chapter 4


@pytest.mark.parametrize("chance", [0.02, 0.5, 0.9])
def test_the_confidence_sequence_is_a_supermartingale_and_its_level(chance: float) -> None:
    """By all sequences of eight coins in batches of two: the mean of both capitals, and the ends that they give."""
    delta, size = 0.5, 2
    capitals = np.zeros(2)
    for coins in itertools.product((0.0, 1.0), repeat=8):
        probability = math.prod(chance if coin else 1.0 - chance for coin in coins)
        sequence = ConfidenceSequence(-1.0, 1.0, delta, 0.3)  # of 2X − 1, so that the width is 2
        known = [-1.0, 1.0]
        tilts = tilted = penalty = 0.0
        for start in range(0, 8, size):
            batch = 2.0 * np.array(coins[start : start + size]) - 1.0
            # What is fixed before the batch.
            centre, spread = sequence.mean, sequence.variance
            tilt = 0.3 * 2.0 / (spread + 0.3 * 2.0)
            sequence.update(size, batch.sum(), float(batch @ batch))
            tilts, tilted = tilts + size * tilt, tilted + tilt * float(batch.sum())
            penalty += (-math.log1p(-tilt) - tilt) * float(((batch - centre) ** 2).sum()) / 4.0
            radius = 2.0 * (math.log(2.0 / delta) + penalty) / tilts
            known = [max(known[0], tilted / tilts - radius), min(known[1], tilted / tilts + radius)]
            assert sequence.interval == pytest.approx(known, abs=1e-9)
        drift = (tilted - tilts * (2.0 * chance - 1.0)) / 2.0
        capitals += probability * np.exp([drift - penalty, -drift - penalty])
    assert (capitals <= 1.0).all()
    assert capitals.max() > 0.5


@pytest.mark.parametrize("name", ["bernoulli", "ends", "transport", "lottery"])
@pytest.mark.parametrize("samples", [4, 100, 10_000])
def test_samples_around_a_good_reference_have_their_certificate(name: str, samples: int) -> None:
    """By enumeration, at the corners of what a good reference may be. Some are near the bounds. In a lottery, whose
    values are declared, they are further apart than any action values.
    """
    model, backup = (lottery(ends=True), LogSumExp(0.3)) if name == "lottery" else SMALL[name](0)
    setting, delta = Problem.of(model, backup), 0.1
    solution = sp.exact.solve(model, backup, tolerance=1e-10)
    q, value = solution.q[0], float(solution.values[0])
    children = (Level("constant"), Level("plug-in", samples=1, reference=0))
    through, linear = (arithmetic.one_step(setting, proved) for proved in arithmetic.certify(setting, children))
    good = shared_reference(setting, through, samples, delta)
    shift = float(arithmetic.first_order(setting, good, linear).shift)
    first = Level("order-1", samples=samples, reference=0, linear=1, shift=shift)
    second = Level("order-2", samples=samples, reference=0, linear=0, quadratic=0, pairs=2)
    ratios = []
    for root in (first, second):
        schedule = Schedule(setting, (*children, root), 1, 1.0, delta)
        exact = Exact(setting, schedule.levels, backup, model)
        for signs in itertools.product((-1.0, 1.0), repeat=2):
            reference = np.clip(q + good.bias * np.array(signs), through.low, through.high)
            found = exact.around(2, 0, reference.tolist())
            holds(schedule.sample, found, value)
            low, high = schedule.sample_support(reference, float(backup.value(reference[None], np.array([0]))[0]))
            assert low - 1e-9 <= found.values[0] <= found.values[-1] <= high + 1e-9
            ratios.append(abs(found.mean - value) / float(schedule.sample.bias))
    assert max(ratios) > 0.3 or name == "lottery"


@pytest.mark.parametrize("order", [0, 1])
def test_all_of_delta_is_spent_and_no_more(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What confidence sequences and Bernstein bounds of one run may fail with adds up: Theorem 4.6."""
    model, delta = sp.models.garnet(states=20, actions=2, discount=0.1, seed=1, reward_kind="bernoulli"), 0.1
    planner = (sp.SparseSampling if order == 0 else sp.SmoothCruiser)(LogSumExp(1.0), epsilon=0.05, delta=delta)
    schedule = planner.schedule(model)
    assert schedule.root.kind == ("plug-in" if order == 0 else "order-1")
    sequences, bounds = [], []

    class Noted(ConfidenceSequence):
        def __post_init__(self) -> None:
            super().__post_init__()
            sequences.append(self.delta)

    def noted(variance: float, width: float, count: float, share: float) -> object:
        bounds.append(share)
        return radius(variance, width, count, share)

    radius = confidence.bernstein_radius
    monkeypatch.setattr(recursive, "ConfidenceSequence", Noted)
    sp.plan(planner, model, 0)
    monkeypatch.setattr(confidence, "bernstein_radius", noted)
    assert replace(schedule).noise > 0.0  # a copy, which has not computed anything yet
    actions = model.actions
    if order == 0:
        assert len(sequences) == actions
        assert sum(sequences) + actions * bounds[0] == pytest.approx(0.9 * delta)
    else:
        assert len(sequences) == actions + 1
        assert sum(sequences) + actions * bounds[0] + bounds[1] == pytest.approx(delta)


Look = tuple[Chunk, Sums, Found]


def looked_at(schedule: Schedule, backup: LogSumExp, model: sp.TabularModel, limit: int | None = None) -> list[Look]:
    """A run of a schedule: every chunk that is booked, with what is found after it; after the end, for the last one."""
    root = Root(model, 0, seed=3, max_calls=limit, max_seconds=None, engine="batched", started=0.0)
    run = recursive.ScheduleRun(schedule, backup, root, BatchedEngine(schedule, backup), schedule.epsilon)
    looks: list[Look] = []

    class Watched(Workers):
        def in_order(self, work: Work, chunks: Iterable[Chunk]) -> Generator[tuple[Chunk, Outcome], None, None]:
            for chunk, outcome in super().in_order(work, chunks):
                assert isinstance(outcome.sums, Sums)
                try:
                    yield chunk, outcome
                finally:  # where a run stops early it asks for no more
                    looks.append((chunk, outcome.sums, run.found()))

    with Watched() as workers:
        run.go(workers, Silent())
    looks[-1] = (*looks[-1][:2], run.found())
    return looks


@pytest.mark.parametrize("limit", [None, 900, 8_000])
@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("order", [0, 1])
def test_a_run_proves_what_the_theorem_says(order: int, best: bool, limit: int | None) -> None:
    """Every interval of a run from the sums of its chunks, by Theorem 4.6 written down once more: its shares, its
    biases, and the bound of Lemma 4.1 at the very end only. Where all rewards are the best ones, and a level is shifted
    further up, estimates leave the interval, and the value does not.
    """
    chances = np.full((3, 2), 1.0) if best else np.array([[0.5, 0.4], [0.9, 0.1], [0.2, 0.3]])
    successors = np.broadcast_to([1, 2], (3, 2, 2)).copy()
    model = sp.TabularModel(np.full((3, 2, 2), 0.5), successors, chances, discount=0.2, reward_kind="bernoulli")
    backup, delta, epsilon = LogSumExp(1.0), 0.1, 0.05
    found = optimised(Problem.of(model, backup), epsilon, delta, order)
    levels = (Level("constant", shift=3.0 if best else 0.0, rewards=found.levels[0].rewards), *found.levels[1:])
    schedule = replace(found, levels=levels, early_stopping=False)
    assert schedule.root.kind == ("plug-in" if order == 0 else "order-1")
    through, sample = schedule.action_return, schedule.sample
    (low, high), bias = schedule.problem.values, float(through.bias)
    q_low, q_high = (np.full(2, end) for end in schedule.problem.action_values)
    support, share = (float(through.low), float(through.high)), 0.65 if order == 0 else 0.05
    target = max(epsilon - schedule.bias, 1e-12)
    tuned = target if order == 0 else math.sqrt(through.variance / schedule.root.samples)
    actions = [ConfidenceSequence(*support, share * delta / 2, tuned) for _ in range(2)]
    means, outside = None, 0

    def by_actions(least: Floats, most: Floats) -> None:
        nonlocal low, high, q_low, q_high
        q_low, q_high = np.maximum(q_low, least - bias), np.minimum(q_high, most + bias)
        low = max(low, float(backup.value(least - bias)))
        high = min(high, float(backup.value(most + bias)))

    looks = looked_at(schedule, backup, model, limit)
    for place, (chunk, sums, result) in enumerate(looks):
        if chunk.method == "returns":
            actions[chunk.action].update(*sums)
            if chunk.action == 1:
                by_actions(*np.array([each.interval for each in actions]).T)
        else:
            if means is None:
                reference = np.array([each.mean for each in actions])
                ends = schedule.sample_support(reference, float(backup.value(reference)))
                means = ConfidenceSequence(*ends, 0.65 * delta, target)
            means.update(*sums)
            low, high = max(low, means.interval[0] - sample.bias), min(high, means.interval[1] + sample.bias)
        q = np.array([each.mean for each in actions])
        if limit is None and place == len(looks) - 1:
            if order == 0:
                noise = bernstein_radius(through.variance, through.width, schedule.root.samples, 0.25 * delta / 2)
                by_actions(q - noise, q + noise)
            else:
                assert means is not None
                noise = bernstein_radius(sample.variance, sample.high - sample.low, schedule.repeats, 0.25 * delta)
                low, high = max(low, means.mean - noise - sample.bias), min(high, means.mean + noise + sample.bias)
        assert result.interval == pytest.approx((low, high), rel=1e-12)
        assert result.q_intervals == pytest.approx(np.stack([q_low, q_high], axis=1), rel=1e-12)
        if actions[1].count > 0:
            estimate = float(backup.value(q)) if means is None else means.mean
            outside += not low <= estimate <= high
            assert result.value == pytest.approx(min(max(estimate, low), high), rel=1e-12)
    count = sum(each.count for each in actions) + (0 if means is None else means.count)
    assert (count == 2 * schedule.root.samples + (0 if order == 0 else schedule.repeats)) == (limit is None)
    assert (outside > 0) >= best


@pytest.mark.parametrize("order", [0, 1])
def test_a_run_stops_no_earlier_than_its_value_is_within_epsilon(order: int) -> None:
    """Where all rewards are the best ones, the value is at the upper end: half of the width is not enough."""
    one, successors = np.ones((1, 2)), np.zeros((1, 2, 1), dtype=int)
    model = sp.TabularModel(one[..., None], successors, one, discount=0.2, reward_kind="bernoulli")
    backup, epsilon = LogSumExp(1.0), 0.05
    schedule = optimised(Problem.of(model, backup), epsilon, 0.1, order)
    *before, last = [found for _, _, found in looked_at(schedule, backup, model)]
    errors = [max(found.interval[1] - found.value, found.value - found.interval[0]) for found in (*before, last)]
    assert all(error > epsilon for error in errors[:-1])
    assert errors[-1] <= epsilon * (1.0 + 1e-9)
    assert len(before) > 10


# Chapter 7


def problem(discount: float, temperature: float = 1.0, actions: int = 2) -> Problem:
    model = sp.models.garnet(states=20, actions=actions, discount=discount, seed=1, reward_kind="bernoulli")
    return Problem.of(model, LogSumExp(temperature))


def explicit(setting: Problem, epsilon: float, delta: float = 0.1) -> Schedule:
    schedule = explicit_schedule(setting, epsilon, delta)
    assert schedule is not None
    return schedule


@pytest.mark.parametrize("epsilon", [0.1, 1e-3, 1e-9])
@pytest.mark.parametrize(
    ("discount", "temperature", "actions"), [(0.0, 1.0, 2), (0.2, 0.3, 3), (0.2, 0.01, 2), (0.7, 1.0, 2)]
)
def test_the_explicit_schedule_is_certified(discount: float, temperature: float, actions: int, epsilon: float) -> None:
    schedule = explicit(problem(discount, temperature, actions), epsilon)
    assert schedule.bias + schedule.noise <= epsilon * (1.0 + 1e-9)
    assert schedule.bias <= epsilon / 2.0


def test_what_the_proof_says_of_the_explicit_levels() -> None:
    """Variances and noise are bounded, supports grow slowly, N grows like bias^(−1/2): Lemmas 7.2 and 7.3."""
    setting = problem(0.5)
    schedule = explicit(setting, 1e-11)
    rows = [row for row, level in enumerate(schedule.levels[:-1]) if level.debias == 2]
    assert rows == list(range(rows[0], rows[-1] + 1))
    gamma, (second, third) = setting.discount, setting.derivatives[:2]
    # The rule itself: i(k) = max(0, ⌈k/2 + c⌉), and the level before for what is fine.
    theta = math.sqrt((1.0 - math.sqrt(gamma)) / (3.0 * second)) / gamma
    offset = 2.0 * math.log(math.sqrt(setting.width / 2.0) / theta) / math.log(1.0 / gamma)
    coarse = [max(0, math.ceil(row / 2.0 + offset)) for row in range(len(schedule.levels) - 1)]
    for row, level in enumerate(schedule.levels[1:-1], start=1):
        fine = coarse[row] < row
        assert level.kind == ("order-1" if fine else "plug-in")
        assert (level.reference, level.linear) == ((coarse[row], row - 1) if fine else (row - 1, None))
        assert level.rewards == 1
    targets = setting.width / 2.0 * gamma ** (np.arange(len(schedule.levels) - 1) / 2.0)
    certificates = [schedule.certificates[row] for row in rows]
    biases = np.array([float(it.bias) for it in certificates])
    assert (biases <= targets[rows] * (1.0 + 1e-12)).all()
    variances = np.array([float(it.variance) for it in certificates])
    assert variances[len(rows) // 2 :].max() <= 1.01 * variances[: len(rows) // 2].max()
    for row in rows:
        level = schedule.levels[row]
        assert level.reference is not None
        through = schedule._return(level.reference)
        noise = 2.0 * (setting.actions - 1) * float(through.variance) / level.samples
        assert noise <= (1.0 - math.sqrt(gamma)) / (math.sqrt(gamma) * third)
    sizes = np.array([schedule.levels[row].samples for row in rows]) * np.sqrt(targets[rows])
    assert sizes[len(rows) // 2 :].max() <= 2.0 * sizes[: len(rows) // 2].max()  # powers of two
    # A support that grew with a power of 1/b, as it does with pairs, would be larger by orders of magnitude.
    widths = np.array([float(it.high - it.low) for it in certificates])
    assert widths[-1] <= (rows[-1] / rows[0]) ** 6 * widths[0]


@pytest.mark.parametrize("discount", [0.2, 0.5])
def test_the_explicit_price_grows_like_the_cube(discount: float) -> None:
    """Over six decades: not faster than ε⁻³ with a power of the logarithm, and not slower than the theorem allows."""
    coarse, fine = (explicit(problem(discount), epsilon).calls for epsilon in (1e-5, 1e-11))
    slope = math.log10(fine / coarse) / 6.0
    assert 2.7 < slope < 3.3


def test_what_runs_is_never_dearer_than_the_explicit_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the search does badly: here it may use plug-in levels only, which are far dearer in the end."""
    setting, epsilon = problem(0.5), 1e-7
    ours = explicit(setting, epsilon)
    assert optimised(setting, epsilon, 0.1, 2, 2).calls <= ours.calls
    monkeypatch.setattr(Kinds, "within", lambda self, problem: [Kinds(0)])
    optimise.optimised.cache_clear()
    try:
        assert optimised(setting, epsilon, 0.1, 2, 2) == ours
        assert optimised(setting, epsilon, 0.1, 2, 0).calls > 10 * ours.calls
    finally:
        optimise.optimised.cache_clear()


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


@pytest.mark.parametrize("debias", [0, 1, 2])
def test_what_searched_levels_pay_for(debias: int) -> None:
    """What the certificates of Theorem 7.5 ask for, with its constants, in schedules that a search has found."""
    setting = problem(0.5)
    schedule = optimised(setting, 1e-7, 0.1, 1, debias)
    second, third, fourth, _, sixth = setting.derivatives
    reward_width = setting.reward_range[1] - setting.reward_range[0]
    least = setting.discount**2 * min(setting.width, reward_width) ** 2 / 4.0
    of_order_1, averaging = 0, 0
    for row, level in enumerate(schedule.levels[:-1]):
        if level.kind == "constant" or level.reference is None:
            continue
        bias, coarse = (float(schedule.certificates[place].bias) for place in (row, level.reference))
        variance = float(schedule._return(level.reference).variance) / level.samples
        noise = 2.0 * (setting.actions - 1) * variance
        if schedule.levels[level.reference].kind != "constant":
            assert variance * level.samples >= least
            averaging += schedule.levels[level.reference].rewards > 1
        assert schedule.costs[row] >= setting.actions * level.samples * (1 + schedule.costs[level.reference])
        remains = min(setting.actions**-0.5 * (setting.actions - 1) * math.sqrt(variance), second / 2.0 * noise) / 2.0
        if level.debias > 0:
            # R₄ and R₆ for two actions, of which the whole block, and there m₂² and m₄m₂, are a part.
            kind: Debiased = "order-1" if level.kind == "order-1" else "plug-in"
            slope = 1.0 if kind == "order-1" else 0.0
            whole = [abs(DEBIASING[kind, level.debias].values[0] - degree * slope) for degree in (4, 6)]
            kurtosis = 3.0 * (level.samples - 1) * variance**2 / level.samples
            remains = min(
                fourth / 24.0 * whole[0] * 6.0 * variance**2, sixth / 720.0 * whole[1] * 30.0 * kurtosis * variance
            )
        if level.kind == "plug-in":
            assert bias * (1.0 + 1e-9) >= setting.discount * coarse + remains
            continue
        of_order_1 += 1
        assert level.linear is not None
        through, linear = (setting.discount * it for it in (coarse, float(schedule.certificates[level.linear].bias)))
        rest = (bias - linear) * (1.0 + 1e-9) - min(through, second * through**2)
        if level.debias > 0:
            assert rest >= third * noise * (through + linear) + remains
        else:
            assert rest >= 0.0
            assert bias - linear >= min(math.sqrt(noise), second / 2.0 * noise) / 2.0
    assert of_order_1 >= 5
    assert averaging >= 5


@pytest.mark.parametrize("discount", [0.02, 0.2, 0.5])
def test_the_exponent_of_the_printed_schedule(discount: float) -> None:
    """From ε = 1e-50 to 1e-100, where logarithms still count. The 3 that is printed is off by 1 at γ = 0.2 already."""
    coarse, fine = (ladder_price(problem(discount), epsilon, 0.1, coarse_pairs=False) for epsilon in (1e-50, 1e-100))
    slope = (fine - coarse) / (50.0 * math.log(10.0))
    expected = 2.0 + max(1.0, 2.0 * math.log(5.0) / math.log(1.0 / discount))
    assert expected - 0.02 < slope < expected + 0.15


def words(discount: float, prize: int | None) -> sp.VectorModel:
    """Words of two letters as numbers, 1 for the empty one; beyond a prize every step pays 1."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        following = 2 * states + actions
        if prize is None:
            return following, np.zeros(len(states))
        depth = np.floor(np.log2(following)).astype(np.int64) - (prize.bit_length() - 1)
        return following, ((depth >= 0) & (following >> np.maximum(depth, 0) == prize)).astype(np.float64)

    return sp.VectorModel(
        step, actions=2, discount=discount, reward_range=(0, 1), reward_kind="deterministic", terminates=False,
        initial_state=np.int64(1),
    )  # fmt: skip


def test_a_needle_is_not_found_by_those_who_do_not_look() -> None:
    """Upper end and gap of a planner with m calls are no smaller than Theorem 7.8 says, and valid where a prize is."""
    discount, calls = 0.8, 60
    planner = sp.OTGapE(sp.HardMax(), epsilon=0.01, delta=0.1)
    nothing = sp.plan(planner, words(discount, None), max_calls=calls)
    depth = math.floor(math.log2(calls))  # 2^(h+1) > m: a prize at that depth may be missed
    assert nothing.interval[0] == 0.0
    assert nothing.interval[1] >= discount**depth / (1.0 - discount)
    assert identified(nothing).gap >= discount ** (depth + 1) / (1.0 - discount)  # 2^h > m: one behind either action
    for prize in (4, 7):
        value = discount ** (prize.bit_length() - 2) / (1.0 - discount)
        found = sp.plan(planner, words(discount, prize), max_calls=calls)
        low, high = found.interval
        assert low <= value * (1.0 + 1e-9)
        assert high >= value * (1.0 - 1e-9)
        leads = int(f"{prize:b}"[1])  # the action that the prize is behind
        assert found.action == leads or identified(found).gap >= value * (1.0 - 1e-9)


@pytest.mark.parametrize("temperature", [0.05, 0.3, 2.0])
@pytest.mark.parametrize(("actions", "discount"), [(2, 0.5), (2, 0.99), (5, 0.9)])
def test_a_soft_maximum_does_not_take_the_needle_whole(temperature: float, actions: int, discount: float) -> None:
    """What a prize moves in the model of Theorem 7.7 is within the bound there, and near it at a high temperature."""
    backup = LogSumExp(temperature)
    for depth in (0, 1, 4, 9):
        without = with_prize = 0.0
        for step in range(depth + 1):
            others = np.full(actions - 1, discount * without)
            reward = 1.0 if step == 0 else 0.0
            with_prize = float(backup.value(np.append(others, reward + discount * with_prize)))
            without = float(backup.value(np.full(actions, discount * without)))
        bound = temperature / actions * math.expm1(1.0 / temperature) * (discount / actions) ** depth
        assert 0.0 <= with_prize - without <= bound * (1.0 + 1e-9) + 1e-12
    if temperature > 1.0:
        assert with_prize - without >= 0.8 * bound


def test_no_mean_is_known_from_fewer_samples() -> None:
    """The best test between the coins of Proposition 7.9 needs what it says, and no more than ten times that.

    So does Bernstein's count for fair coins, within a larger constant.
    """
    for epsilon in (0.125, 0.1, 0.01, 1e-4):
        for delta in (0.1, 1e-3, 1e-9):
            least = 3.0 / (128.0 * epsilon**2) * math.log(1.0 / (4.0 * delta))
            ours = float(bernstein_count(0.25, 1.0, epsilon, delta))
            assert least <= ours <= 100.0 * least
            for calls, enough in ((math.ceil(least) - 1, False), (math.ceil(10.0 * least), True)):
                if calls <= 10**6:
                    laws = [binom.pmf(np.arange(calls + 1), calls, 0.5 + sign * 2.0 * epsilon) for sign in (1, -1)]
                    assert (np.minimum(*laws).sum() <= 2.0 * delta) == enough
