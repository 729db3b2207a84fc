"""Attacks on the certificates of levels: all outcomes of a level are listed, whose children do their worst.

Returns take two or three values. Their means are as far from the true action values as their certificates allow, in any
directions. What a child passes on unchanged, its own bias or variance, is taken off both truth and bound: a ratio says
how much of what a level adds is really there.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal, NamedTuple

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.recursive import debias as debiasing
from smoothplan.recursive import level as arithmetic
from smoothplan.recursive.debias import DEBIASING, Debiased, Debiasing
from smoothplan.recursive.level import Bounds, Level
from smoothplan.theory.backups import HardMax, LogSumExp, OptimalTransport, SoftmaxMixture
from smoothplan.theory.curvature import Problem
from tests.attack.climbing import ROUNDING, Draw, Target, quotient
from tests.naive import Exact, random_model, with_own_shifts

Quantity = Literal["bias by noise", "bias", "variance", "support"]
"""Of a level; the first is the bias where children have none."""


# --- Returns, and all outcomes of their means -------------------------------------------------------------------------


@dataclass(frozen=True)
class Laws:
    """Laws of one variable per action: values [K, m] and their probabilities [K, m]."""

    values: Floats
    chances: Floats

    @property
    def mean(self) -> Floats:
        return np.asarray((self.chances * self.values).sum(axis=1))

    @property
    def variance(self) -> Floats:
        return np.asarray((self.chances * (self.values - self.mean[:, None]) ** 2).sum(axis=1))

    def around(self, mean: Floats) -> "Laws":
        """The same laws, moved to other means [K]."""
        return replace(self, values=self.values + (mean - self.mean)[:, None])

    def proved(self, bias: float, *, by_action: bool) -> Bounds:
        """The tightest certificate; by action, the width is that of the widest law, which is all that moments need."""
        low, high = float(self.values.min()), float(self.values.max())
        if by_action:
            low, high = 0.0, float(np.ptp(self.values, axis=1).max())
        return Bounds(bias=bias, variance=float(self.variance.max()), low=low, high=high, calls=1.0)


def laws(draw: Draw, actions: int, size: int, width: float = 1.0) -> Laws:
    """Laws on `size` values whose widths are `width` or less."""
    widths = np.full(actions, width) if draw.pick([True, False]) else width * draw.between(0.0, 1.0, actions)
    if size <= 2:
        chance = draw.between(1e-3, 1.0 - 1e-3, actions)
        values, chances = np.stack([0.0 * widths, widths], axis=1), np.stack([1.0 - chance, chance], axis=1)
        return Laws(values[:, :size], chances if size == 2 else np.ones((actions, 1)))
    middle = draw.between(0.0, 1.0, actions)
    values = np.stack([0.0 * widths, middle * widths, widths], axis=1)
    return Laws(values, np.stack([draw.law(3) for _ in range(actions)]))


@dataclass(frozen=True)
class Outcomes:
    """All outcomes of the means of returns over blocks: their probabilities [n] and values [n, blocks, K]."""

    probabilities: Floats
    blocks: Floats

    @classmethod
    def of(cls, returns: Laws, samples: int, blocks: int) -> "Outcomes":
        each = samples // blocks
        counts = _compositions(each, returns.values.shape[1])  # [c, m]
        orders = np.array([math.factorial(each) / math.prod(map(math.factorial, row)) for row in counts.tolist()])
        per_action = []
        for values, chances in zip(returns.values, returns.chances, strict=True):
            odds = orders * np.prod(chances**counts, axis=1)
            picks = _grid((len(counts),) * blocks)
            per_action.append((np.prod(odds[picks], axis=1), (counts @ values / each)[picks]))
        picks = _grid(tuple(len(odds) for odds, _ in per_action))
        probabilities = np.prod([odds[picks[:, a]] for a, (odds, _) in enumerate(per_action)], axis=0)
        means = np.stack([values[picks[:, a]] for a, (_, values) in enumerate(per_action)], axis=2)
        possible = probabilities > 0.0
        return cls(probabilities[possible], means[possible])

    @property
    def whole(self) -> Floats:
        """Q̂, [n, K]."""
        return np.asarray(self.blocks.mean(axis=1))

    def mean(self, values: Floats) -> float:
        return float(self.probabilities @ values)

    def variance(self, values: Floats) -> float:
        return self.mean((values - self.mean(values)) ** 2)


@cache
def _compositions(total: int, parts: int) -> Ints:
    """All ways to write a number as a sum of so many, [c, parts]."""
    ways = itertools.product(range(total + 1), repeat=parts)
    return np.array([way for way in ways if sum(way) == total])


@cache
def _grid(sizes: tuple[int, ...]) -> Ints:
    """All combinations of indices, [n, len(sizes)]."""
    return np.indices(sizes).reshape(len(sizes), -1).T


def in_place_of_value(backup: SoftmaxMixture, blocks: Floats, weights: Debiasing) -> Floats:
    """What a debiased level has in place of F(Q̂), from its definition: blocks [n, 2^k, K] to [n]."""
    total = np.zeros(len(blocks))
    for power, (value, slope) in enumerate(zip(weights.values, weights.slopes, strict=True)):
        q = blocks.reshape(len(blocks), 2**power, -1, blocks.shape[2]).mean(axis=2)
        total += value * backup.value(q).mean(axis=1)
        if slope:
            sibling = q[:, np.arange(q.shape[1]) ^ 1]
            total += slope * (backup.policy(q) * (q - sibling)).sum(axis=2).mean(axis=1)
    return total


# --- Levels -----------------------------------------------------------------------------------------------------------

SIZES: dict[int, list[tuple[int, int, int]]] = {
    0: [(2, 1, 2), (2, 2, 2), (2, 4, 2), (2, 9, 2), (3, 1, 2), (3, 3, 2), (4, 1, 2), (4, 2, 2), (2, 2, 3), (3, 1, 3)],
    1: [(2, 2, 2), (2, 4, 2), (2, 6, 2), (2, 8, 2), (3, 2, 2), (3, 4, 2), (4, 2, 2), (2, 2, 3), (3, 2, 3)],
    2: [(2, 4, 2), (2, 4, 2), (2, 4, 2), (2, 4, 2), (2, 8, 2), (3, 4, 2), (2, 4, 3)],
}
"""K, N, and on how many values returns are, by the number of terms cancelled: so that outcomes can be listed."""


def backups(draw: Draw, actions: int, *, hard: bool = False) -> SoftmaxMixture:
    """A backup, whose temperature is in units of a return's width."""
    kind = draw.pick(["entropy", "entropy", "transport", *["hard"] * hard], "F")
    if kind == "hard":
        return HardMax()
    eta = draw.scale(*draw.pick([(0.03, 0.2), (0.2, 1.0), (1.0, 5.0)]), "η")
    if kind == "entropy":
        return LogSumExp(eta)
    cost, reference = eta * draw.reals(actions**2).reshape(actions, actions), draw.law(actions)
    return OptimalTransport(cost=cost, tau=1.0, lam=eta, reference=reference)


@cache
def _model(actions: int) -> sp.TabularModel:
    return random_model(0, actions=actions, discount=0.0)


def child(draw: Draw, q: Floats, noise: Laws, *, biased: bool = True, by_action: bool = True) -> tuple[Laws, Bounds]:
    """Returns through a child that does its worst around true action values [K], and their certificate.

    Their means are wrong by its bias at most, if it is biased.
    """
    biased = draw.pick([biased, False])
    bias = draw.scale(1e-3, 1.0, "child's bias") if biased else 0.0
    moved = noise.around(q + bias * draw.between(-1.0, 1.0, len(q)))
    return moved, moved.proved(bias, by_action=by_action)


class Truth(NamedTuple):
    """What a level is."""

    error: float  # E Y − V
    variance: float
    low: float
    high: float


def against(proved: Bounds, truth: Truth, quantity: Quantity, passed: tuple[float, float] = (0.0, 0.0)) -> float:
    """The ratio of a quantity, where bias and variance that are `passed` on count in neither.

    A shift centres an error of one sign. So the bound of the other end is met whenever there is no error at all, which
    says nothing; the ratio is that of the error before the shift.
    """
    if quantity in ("bias by noise", "bias"):
        bias, shift = float(proved.bias), float(proved.shift)
        error = truth.error if shift < 0.0 else -truth.error
        if shift == 0.0:
            return quotient(abs(error) - passed[0], bias - passed[0])
        if -error > bias + ROUNDING:
            return math.inf
        return quotient(error - passed[0] + abs(shift), bias - passed[0] + abs(shift))
    if quantity == "variance":
        return quotient(truth.variance - passed[1], float(proved.variance) - passed[1])
    middle = (float(proved.low) + float(proved.high)) / 2.0
    return quotient(max(truth.high - middle, middle - truth.low), float(proved.high) - middle)


def level(kind: Debiased | Literal["order-2"], debias: int, quantity: Quantity, draw: Draw) -> float:
    """A level of any kind around a sampled reference."""
    actions, samples, size = draw.pick(SIZES[debias])
    if kind == "order-2" and draw.pick([True, False, False]):
        samples, size = 1, 1  # a reference without noise
    draw.said |= {"K": actions, "N": samples}
    backup = backups(draw, actions, hard=kind == "plug-in" and debias == 0)
    q = draw.reals(actions) * draw.pick([1.0, max(backup.temperature, 0.1)])
    ends = float(q.min()), float(q.max())  # of all action values, where γ = 0
    problem = replace(Problem.of(_model(actions), backup), reward_range=ends, values=(-1e3, 1e3))
    value, biased = float(backup.value(q)), quantity != "bias by noise"

    through = partial(child, draw, q, biased=biased, by_action=quantity != "support")
    returns, use = through(laws(draw, actions, size))
    around, outcomes = arithmetic.reference(problem, use, samples), Outcomes.of(returns, samples, 2**debias)
    if kind == "plug-in":
        proved = arithmetic.plug_in(problem, use, around, debias)
        sums = in_place_of_value(backup, outcomes.blocks, DEBIASING[kind, debias]) + float(proved.shift)
        return against(proved, uncorrected(outcomes, sums, value), quantity, (float(use.bias), 0.0))
    still = Laws(np.zeros((actions, 1)), np.ones((actions, 1)))
    linear, by_linear = through(laws(draw, actions, 2) if quantity == "support" else still)
    # The printed levels: they subtract ⟨π, Q̂⟩, and draw pairs also where both actions are the same.
    printed = draw.pick([False, False, True])
    if kind == "order-1":
        pairs, quadratic = 0, None
        proved = arithmetic.first_order(problem, around, by_linear, debias, printed)
    else:
        quadratic, by_pairs = through(laws(draw, actions, 2, draw.scale(1e-2, 3.0)))
        pairs = draw.pick([2, 3, 10], "n")
        proved = arithmetic.second_order(problem, around, by_linear, by_pairs, pairs, printed)
    sums = in_place_of_value(backup, outcomes.blocks, DEBIASING["order-1", debias]) + float(proved.shift)
    truth = corrected(backup, outcomes, sums, linear, quadratic, pairs, value, printed)
    return against(proved, truth, quantity, (float(by_linear.bias), float(by_linear.variance)))


def uncorrected(outcomes: Outcomes, sums: Floats, value: float) -> Truth:
    """A plug-in level with `sums` [n] in place of F(Q̂), when F(Q) is `value`."""
    return Truth(outcomes.mean(sums) - value, outcomes.variance(sums), float(sums.min()), float(sums.max()))


def corrected(
    backup: SoftmaxMixture,
    outcomes: Outcomes,
    sums: Floats,
    linear: Laws,
    quadratic: Laws | None,
    pairs: int,
    value: float,
    printed: bool = False,
) -> Truth:
    """A level of order 1 or 2 with `sums` [n] in place of F(Q̂), when F(Q) is `value`."""
    whole, policy = outcomes.whole, backup.policy(outcomes.whole)
    centre = (policy * whole).sum(axis=1, keepdims=True) if printed else whole
    error = linear.mean - centre
    means = sums + (policy * error).sum(axis=1)
    spread = (policy * (linear.variance + error**2)).sum(axis=1) - (policy * error).sum(axis=1) ** 2
    lows = sums + (linear.values.min(axis=1) - centre).min(axis=1)
    highs = sums + (linear.values.max(axis=1) - centre).max(axis=1)
    if quadratic is not None:
        added = pair_terms(backup, whole, quadratic, pairs, printed)
        means, spread, lows, highs = means + added[0], spread + added[1], lows + added[2], highs + added[3]
    variance = outcomes.variance(means) + outcomes.mean(spread)
    return Truth(outcomes.mean(means) - value, variance, float(lows.min()), float(highs.max()))


def pair_terms(
    backup: SoftmaxMixture, whole: Floats, laws: Laws, pairs: int, equal: bool
) -> tuple[Floats, Floats, Floats, Floats]:
    """Mean, variance, smallest and largest value of the quadratic term around references [n, K].

    Both actions are drawn from one column: a and b ≠ a with probability −η·H_ab, and a twice with what is left of π_a;
    then pairs may be drawn all the same. A U-statistic of n differences of mean
    d and variance v has the variance 4d²v/n + 2v²/(n(n−1)). It is linear in each difference: extreme at their ends.
    """
    eta, actions = backup.temperature, whole.shape[1]
    chance = -eta * backup.hessian(whole) * (1.0 - np.eye(actions))
    if equal:
        chance += (backup.policy(whole) - chance.sum(axis=2))[:, :, None] * np.eye(actions)
    apart = laws.mean - whole
    d2 = (apart[:, :, None] - apart[:, None, :]) ** 2
    v = laws.variance[:, None] + laws.variance
    mean = (chance * d2).sum(axis=(1, 2)) / (4.0 * eta)
    squares = d2**2 + 4.0 * d2 * v / pairs + 2.0 * v**2 / (pairs * (pairs - 1))
    variance = (chance * squares).sum(axis=(1, 2)) / (16.0 * eta**2) - mean**2
    lowest, highest = laws.values.min(axis=1) - whole, laws.values.max(axis=1) - whole
    ends = statistic_ends(lowest, highest, pairs, equal=equal) / (4.0 * eta)
    return mean, variance, ends.min(axis=(0, 2, 3)), ends.max(axis=(0, 2, 3))


def statistic_ends(lowest: Floats, highest: Floats, pairs: int, *, equal: bool = False) -> Floats:
    """The U-statistic of differences of variables in [lowest, highest], [n, K] each, with each of them at an end.

    [pairs + 1, n, K, K], by how many are at the upper end; 0 for two equal actions, unless these are drawn, too.
    """
    least, most = lowest[:, :, None] - highest[:, None, :], highest[:, :, None] - lowest[:, None, :]
    share = np.arange(pairs + 1)[:, None, None, None]
    total, square = share * most + (pairs - share) * least, share * most**2 + (pairs - share) * least**2
    return np.asarray((total**2 - square) / (pairs * (pairs - 1)) * (1.0 - (not equal) * np.eye(lowest.shape[1])))


# --- What levels are made of ------------------------------------------------------------------------------------------


def noise_norm(power: int, draw: Draw) -> float:
    """‖range(e)‖ in L^power."""
    actions, samples, size = draw.pick(SIZES[0])
    draw.said |= {"K": actions, "N": samples}
    returns = laws(draw, actions, size)
    outcomes = Outcomes.of(returns, samples, 1)
    found = outcomes.mean(np.ptp(outcomes.whole - returns.mean, axis=1) ** power) ** (1.0 / power)
    moments = returns.proved(0.0, by_action=True)
    return quotient(found, float(debiasing.noise(actions, moments.variance, moments.width, samples)[power // 2 - 1]))


def central_moment(power: int, draw: Draw) -> float:
    """|μ₃| or μ₄ given the variance."""
    law = laws(draw, 1, draw.pick([2, 3]))
    found = abs(float((law.chances * (law.values - law.mean) ** power).sum()))
    return quotient(found, float(debiasing.central_moments(law.variance, np.ptp(law.values))[power - 3][0]))


def one_return(draw: Draw) -> float:
    """The variance of a return with M rewards, of which the first comes with the next state."""
    gamma, rewards = draw.one(0.0, 0.99, "γ"), draw.pick([1, 2, 5], "M")
    single, ends, known = draw.pick([True, False]), draw.pick([True, False]), draw.pick([True, False, False])
    bias = draw.scale(1e-3, 3.0) * draw.pick([0.0, 1.0])
    samples = laws(draw, 2, 2, draw.scale(1e-2, 10.0)).around(draw.scale(1e-2, 10.0) * draw.reals(2))
    if ends:
        samples.values[1] = 0.0
    together = draw.law(4).reshape(2, 2)  # of reward and next state
    if single:
        together[:, 0], together[:, 1] = together.sum(axis=1), 0.0
    if known:
        together[0], together[1] = together.sum(axis=0), 0.0
    alive = samples.mean[: 1 if ends else 2]
    # The narrowest interval of values that are wrong by the bias at most.
    low, high = min(alive.min() + bias, alive.mean()), max(alive.max() - bias, alive.mean())
    if ends:
        low, high = min(low, 0.0), max(high, 0.0)
    problem = replace(
        Problem.of(_model(2), LogSumExp(1.0)),
        discount=gamma,
        reward_noise=0.0 if known else 1.0,
        single_successor=single and not ends,
        values=(float(low), float(high)),
        terminates=ends,
    )
    first = samples.values[: len(alive)]
    variance = float(samples.variance[: len(alive)].max())
    proved = arithmetic.one_step(problem, Bounds(bias, variance, first.min(), first.max(), 0.0), rewards)
    chance, heads = together.sum(axis=0), together.sum(axis=1)[1]
    future = samples.mean - chance @ samples.mean
    spread = chance @ (samples.variance + future**2)
    joint = float(together[1] @ future)
    found = heads * (1.0 - heads) / rewards + gamma**2 * spread + 2.0 * gamma * joint / rewards
    return quotient(float(found), float(proved.variance))


def clipping(draw: Draw) -> float:
    """The bias by clipping a sample whose mean is wrong by a bias, beyond that bias."""
    bias = draw.scale(1e-3, 1.0) * draw.pick([0.0, 1.0])
    value = draw.one(0.0, 1.0)
    mean = value + bias * draw.one(-1.0, 1.0)
    law = laws(draw, 1, draw.pick([2, 3]), draw.scale(0.1, 10.0)).around(np.array([mean]))
    low, high = -draw.one(-0.5, 3.0), 1.0 + draw.one(-0.5, 3.0)
    problem = replace(Problem.of(_model(2), LogSumExp(1.0)), values=(0.0, 1.0))
    before = Bounds(bias, float(law.variance[0]), float(law.values.min()), float(law.values.max()), 1.0)
    after = abs(float((law.chances * np.clip(law.values, low, high)).sum()) - value)
    return quotient(after - bias, float(arithmetic.clipped(problem, before, low, high).bias) - bias)


def clipped_reference(power: int, draw: Draw) -> float:
    """‖range(clipped Q̂ − Q)‖ in L² or L⁴."""
    actions, samples, size = draw.pick(SIZES[0])
    draw.said |= {"K": actions, "N": samples}
    q = draw.between(0.0, 1.0, actions)
    returns, proved_of_one = child(draw, q, laws(draw, actions, size, draw.scale(0.1, 10.0)))
    low, high = -draw.one(-0.2, 1.0), 1.0 + draw.one(-0.2, 1.0)
    problem = replace(Problem.of(_model(actions), LogSumExp(1.0)), reward_range=(0.0, 1.0), values=(-9.0, 9.0))
    around = arithmetic.reference(problem, proved_of_one, samples)
    proved = arithmetic.clipped_reference(problem, around, low, high)
    outcomes = Outcomes.of(returns, samples, 1)
    ranges = np.ptp(np.clip(outcomes.whole, low, high) - q, axis=1)
    return quotient(
        outcomes.mean(ranges**power) ** (1.0 / power), float(proved.second if power == 2 else proved.fourth)
    )


# --- Whole schedules --------------------------------------------------------------------------------------------------

SCHEDULES: dict[str, tuple[Level, ...]] = {
    "plug-in of plug-in": (Level("plug-in", samples=1, reference=0), Level("plug-in", samples=1, reference=1)),
    "order 1 of plug-in": (
        Level("plug-in", samples=2, reference=0),
        Level("order-1", samples=1, reference=0, linear=1),
    ),
    "order 1 of order 1": (Level("order-1", samples=0, linear=0), Level("order-1", samples=1, reference=0, linear=1)),
    "order 2": (Level("order-1", samples=0, linear=0), Level("order-2", samples=0, linear=0, quadratic=0, pairs=2)),
    "debiased order 1": (
        Level("plug-in", samples=1, reference=0),
        Level("order-1", samples=2, reference=0, linear=0, debias=1),
    ),
    "order 1 of two rewards": (
        Level("plug-in", samples=1, reference=0, rewards=2),
        Level("order-1", samples=0, linear=1),
    ),
    "clipped plug-in": (Level("plug-in", samples=1, reference=0), Level("plug-in", samples=1, reference=1)),
}
"""Tables of levels below the constant one, small enough to list all outcomes."""


def schedule(quantity: Quantity, draw: Draw) -> float:
    """The last level of a table, on a model of two states with two actions and Bernoulli rewards; one may end it."""
    name = draw.pick(list(SCHEDULES), "levels")
    chances = draw.between(0.0, 1.0, 4).reshape(2, 2)
    model = sp.TabularModel(
        np.stack([chances, 1.0 - chances], axis=-1),
        np.broadcast_to([0, 1], (2, 2, 2)),
        draw.between(0.0, 1.0, 4).reshape(2, 2),
        discount=draw.one(0.0, 0.95, "γ"),
        reward_kind="bernoulli",
        terminal=np.array([False, draw.pick([False, False, True])]),
    )
    backup = backups(draw, 2)
    problem = Problem.of(model, backup)
    table = SCHEDULES[name]
    if name.startswith("clipped"):
        reach = problem.width * draw.between(0.0, 1.0, 2)
        table = *table[:-1], replace(table[-1], clip=(problem.middle - reach[0], problem.middle + reach[1]))
    levels = with_own_shifts(problem, (Level("constant"), *table))
    found = Exact(problem, levels, backup, model).level(2, 0)
    tolerance = 1e-14 * (1.0 + max(map(abs, problem.values))) / (1.0 - model.discount)
    value = float(sp.exact.solve(model, backup, tolerance).values[0])
    truth = Truth(found.mean - value, found.variance, found.values[0], found.values[-1])
    return against(arithmetic.certify(problem, levels)[-1], truth, quantity)


# --- The table --------------------------------------------------------------------------------------------------------

PATH = "smoothplan.recursive.level."
QUANTITIES: tuple[Quantity, ...] = ("bias by noise", "bias", "variance", "support")


def _levels(kind: Debiased, function: str) -> list[Target]:
    times = ("", ", debiased", ", debiased twice")
    return [
        Target(
            f"{kind}{times[debias]}: {quantity}",
            PATH + function,
            partial(level, kind, debias, quantity),
            starts=8 if debias < 2 else 5,
            steps=35 if debias < 2 else 20,
        )
        for debias in range(3)
        for quantity in QUANTITIES
    ]


def _each(name: str, path: str, ratio: Callable[[int, Draw], float], options: dict[int, str]) -> list[Target]:
    return [Target(f"{name}: {word}", path, partial(ratio, option)) for option, word in options.items()]


NORMS = {2: "second", 4: "fourth", 6: "sixth"}

TARGETS = [
    *_levels("plug-in", "plug_in"),
    *_levels("order-1", "first_order"),
    *(
        Target(f"order-2: {quantity}", PATH + "second_order", partial(level, "order-2", 0, quantity))
        for quantity in QUANTITIES
    ),
    *_each("norm of the noise", "smoothplan.recursive.debias.noise", noise_norm, NORMS),
    *_each("central moment", "smoothplan.recursive.debias.central_moments", central_moment, {3: "third", 4: "fourth"}),
    Target("return: variance", PATH + "one_step", one_return, steps=80),
    Target("clipping: bias", PATH + "clipped", clipping),
    *_each("clipped reference", PATH + "clipped_reference", clipped_reference, {2: "second", 4: "fourth"}),
    *(
        Target(f"schedule: {quantity}", PATH + "certify", partial(schedule, quantity), starts=8, steps=8)
        for quantity in QUANTITIES[1:]
    ),
]
