"""The optimised schedule: certified levels chosen to make the run as cheap as the arithmetic allows.

The search walks down a geometric grid of bias targets. At each it evaluates every level of every kind that reaches the
target with the levels found so far as children, and keeps the best for a few exchange rates between cost and variance:
a parent that averages pays for both. Then it chooses the root. More kinds of levels may mislead a greedy walk, so it is
repeated with fewer kinds, and the cheapest schedule wins. It takes about a second and no simulator call. Where an
episode has few steps, there is a walk for each number of steps left, whose children are the levels for a step less.
"""

import math
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from smoothplan import confidence
from smoothplan.base import arguments
from smoothplan.base.arguments import Ints, Numbers
from smoothplan.recursive import level as arithmetic
from smoothplan.recursive.debias import largest_debias
from smoothplan.recursive.level import Bounds, Level
from smoothplan.recursive.schedule import CERTAIN_SHARE, Schedule, renumbered, require_depth, shared_reference, trimmed
from smoothplan.run.records import LONG_HORIZONS
from smoothplan.theory.curvature import Problem, require_resolvable

PRICE_GROWTH = 8.0
"""From one rung of a ladder to the next the price grows by this factor at least: all coarser rungs cost a seventh."""

MOST_STAGES = 12
"""Steps of an episode for which there are levels of their own, at most. A price grows with every step by a factor."""

STAGE_STEP = 0.5
"""Levels with a step less are as fine as this share of the bias of a level: its linear child has most of its bias."""

Record = TypeVar("Record", bound=tuple[Any, ...])  # its fields are columns, records, or one value for all rows


class Rung(NamedTuple):
    """The cheapest way to know the value of an action within a radius: the mean of returns through a level."""

    radius: float
    level: int  # its row
    through: Bounds  # of one return
    samples: float  # after which the bias of a return and the certified noise of the mean are within the radius

    @property
    def price(self) -> float:
        """Simulator calls of all samples."""
        return self.samples * float(self.through.calls)


class _Averages(NamedTuple):
    """Means of returns through levels, as columns: the references or the plug-in levels that they make."""

    certificate: Any  # ReferenceMoments or Bounds
    badness: Numbers  # smaller is better
    level: Ints  # −1: the constant reference
    samples: Ints


class _Candidates(NamedTuple):
    """Levels of one kind that reach a target, as columns."""

    kind: arithmetic.Kind
    certificate: Bounds
    around: _Averages  # the reference of each
    debias: int = 0
    linear: Ints | None = None
    quadratic: Ints | None = None
    pairs: int = 0


class Search(NamedTuple):
    """What the search of a problem may use."""

    order: int  # the highest order of levels
    debias: int  # the most terms that are cancelled
    staged: bool  # whether levels are for so many steps left


def searches(problem: Problem, order: int, debias: int) -> list[Search]:
    """All that are made; the best result counts.

    Raises:
        ValueError: neither the discount nor the horizon ends the recursion soon.
    """
    short = problem.horizon is not None and problem.horizon <= MOST_STAGES
    if problem.discount == 1.0 and not short:
        raise ValueError(
            f"horizon must be at most {MOST_STAGES} for recursion with discount=1, got {problem.horizon}: the price "
            f"grows with every step by a factor; {LONG_HORIZONS}"
        )
    ways = [False] * (problem.discount < 1.0) + [True] * short
    return [Search(*kinds, staged) for kinds in allowed_kinds(problem, order, debias) for staged in ways]


def allowed_kinds(problem: Problem, order: int, debias: int) -> list[tuple[int, int]]:
    """Sets of kinds of levels that are searched one by one: the highest order, and the most terms that are cancelled.

    The hard maximum has order 0 only, and only mixtures of softmaxes have order 2. Pairs are not combined with debiased
    levels, because together they were never cheaper.
    """
    order = min(order, 2 if problem.pairs else 1) if problem.derivatives else 0
    debias = min(debias, largest_debias(problem.derivatives))
    return [(some, 0) for some in range(order + 1)] + [(min(order, 1), terms) for terms in range(1, debias + 1)]


@lru_cache(maxsize=64)
def optimised(problem: Problem, epsilon: float, delta: float, order: int = 2, debias: int = 0) -> Schedule:
    """The cheapest schedule found for accuracy ε with probability 1 − δ.

    Its levels have the given order at the highest, 0 for plug-in levels only, and cancel so many terms at most. A hard
    maximum has no others than plug-in levels.

    Raises:
        ValueError: ε is out of reach of floating point, of any level, or of a search of reasonable length.
    """
    require_resolvable(epsilon, problem.values, problem.reward_range)
    if problem.width / 2.0 <= epsilon:
        return Schedule(problem, (Level("constant"),), 1, epsilon, delta)
    found = []
    for way in searches(problem, order, debias):
        levels, first, returns = children_of(problem, way).down_to(_finest_bias(problem, epsilon))
        root, repeats = _root(problem, returns, epsilon, delta, way.order)
        root = renumbered(root, first.__add__)
        found.append(Schedule(problem, trimmed([*levels, root]), repeats, epsilon, delta))
    return min(found, key=lambda schedule: schedule.calls)


def ladder(
    problem: Problem, radius: float, delta: float, order: int = 2, debias: int = 0, budget: float = math.inf
) -> tuple[list[Level], list[Rung]]:
    """The levels of a problem, and the rungs that an action's interval passes as it shrinks to a radius.

    Each rung has the level that makes its radius cheapest. As a finer level costs T ∝ bias^−α and its noise falls with
    the square root of the samples, the bias is about α/(2 + α) of the radius. The noise is larger than certified with
    probability δ, for all rungs together. A budget is the price at which the ladder ends before the radius is reached;
    there is one rung at least.
    """
    arguments.number("delta for each action", delta, least=arguments.LEAST_DELTA / problem.actions)
    # A geometric grid from below the widest radius to the finest, of which 1e-12 is beyond the accuracy of floats.
    widest = problem.action_gap / 2.0
    finest = max(radius, 1e-12 * (widest or 1.0))
    steps = math.ceil(math.log(widest / finest) / -math.log(0.95)) if finest < widest else 0  # of 5 %
    grid = np.geomspace(widest, finest, steps + 1)[1:].tolist() if steps > 0 else [finest]
    ladders = []
    for way in searches(problem, order, debias):
        search, found = children_of(problem, way), list[Rung]()
        for wanted in grid:
            *_, returns = search.down_to(_finest_bias(problem, wanted))
            try:
                rung = _rung(returns, wanted, delta / 8)  # δ is split over the rungs, whose number is not known yet
            except ValueError:
                if found:
                    break
                raise
            if found and not rung.price <= budget:
                break
            found.append(rung)
        rungs = found[-1:]
        for rung in reversed(found):
            if rung.level != rungs[0].level and PRICE_GROWTH * rung.price <= rungs[0].price:
                rungs.insert(0, rung)
        levels, first, _ = search.down_to(_finest_bias(problem, rungs[-1].radius))
        ladders.append((levels, [rung._replace(level=rung.level + first) for rung in rungs]))
    # The finest last rung, and the cheapest of those.
    return min(ladders, key=lambda made: (made[1][-1].radius, made[1][-1].price))


def _finest_bias(problem: Problem, radius: float) -> float:
    """The finest useful bias of a level: no schedule profits from a return biased by less than a tenth."""
    return 0.1 * radius / max(problem.discount, 0.1)


@np.errstate(over="ignore", invalid="ignore")
def _rung(returns: Bounds, radius: float, delta: float) -> Rung:
    """The cheapest way to know an action value within a radius.

    Raises:
        ValueError: every return is biased more.
    """
    room = radius - returns.bias
    fine = np.flatnonzero(room > 0.0)
    if not len(fine):
        raise ValueError(
            f"epsilon must be greater than {np.min(returns.bias):.3g}, the least bias of levels with up to "
            f"{_sample_sizes(0)[-1]:.0e} returns per action, got {radius:g}"
        )
    through = _rows(returns, fine)
    samples = np.ceil(confidence.bernstein_count(through.variance, through.width, room[fine], delta))
    entry = int(np.argmin(samples * through.calls))
    proved = Bounds(*map(float, _rows(through, entry)))
    return Rung(radius, int(fine[entry]), proved, float(samples[entry]))


@np.errstate(over="ignore", invalid="ignore")
def _root(problem: Problem, returns: Bounds, epsilon: float, delta: float, order: int) -> tuple[Level, int]:
    """The cheapest root level over these returns, and the number of its samples."""
    # Plug-in: every action's mean return within ε.
    rung = _rung(returns, epsilon, CERTAIN_SHARE * delta / problem.actions)
    plug_in = Level("plug-in", samples=int(rung.samples), reference=rung.level)
    if order == 0:
        return plug_in, 1

    # Order 1 is enough here: the shared reference is drawn once, so making it precise costs next to nothing.
    tried = np.unique(np.round(2.0 ** np.arange(2.0, 40.01, 0.25)))  # returns per action in its reference
    level, counts = _grid(np.arange(len(returns.bias)), tried)
    around = shared_reference(problem, _rows(returns, level), counts, delta)
    references = _frontier(_Averages(around, around.bias, level, counts))
    r, j = _grid(np.arange(len(references.level)), np.flatnonzero(returns.bias < epsilon))
    certificate = arithmetic.first_order(problem, _rows(references.certificate, r), _rows(returns, j))
    reach = np.flatnonzero(certificate.bias < epsilon)
    if not len(reach):
        return plug_in, 1
    certificate, r, j = _rows(certificate, reach), r[reach], j[reach]
    # Samples after which bias and certified noise are within ε.
    room, share = epsilon - certificate.bias, CERTAIN_SHARE * delta
    repeats = np.ceil(confidence.bernstein_count(certificate.variance, certificate.width, room, share))
    once = references.certificate.calls[r]
    price = once + repeats * (certificate.calls - once)
    entry = int(np.argmin(price))
    if not price[entry] < problem.actions * rung.price:
        return plug_in, 1
    root = Level(
        "order-1",
        samples=int(references.samples[r[entry]]),
        reference=int(references.level[r[entry]]),
        linear=int(j[entry]),
        shift=float(certificate.shift[entry]),
    )
    return root, int(repeats[entry])


class LevelSearch:
    """The levels of a problem, from coarse to fine. A finer request adds levels to those found before.

    The problem is that at the states which the levels are for. In a staged search children are levels for a step less.
    """

    def __init__(self, problem: Problem, way: Search) -> None:
        order, debias, staged = way
        self._problem, self._order, self._left = problem, order, problem.horizon if staged else None
        self._below = children_of(problem, way) if self._left else None
        self._levels = [Level("constant", left=self._left)]
        self.certificates = arithmetic.certify(problem, self._levels)
        # From one bias target to the next. One step shrinks a bias by γ and no more, so the grid has some steps within
        # that: about five, but two for discounts so large that no run can pay. Stages have grids of their own.
        self._ratio = 0.85 if staged else max(0.85, min(problem.discount**0.2, 0.95), problem.discount**0.5)
        self._target = self.certificates[0].bias * self._ratio
        self._counts: list[tuple[float, int]] = []  # target, and the number of levels once it was met
        # By the number of cancelled terms: references, of which the constant one costs nothing and needs no debiasing;
        # and plug-in levels that reach the latest target. Neither depends on the target, so both grow with the levels.
        constant = arithmetic.constant_reference(problem)
        free = _Averages(constant, constant.second, np.array([-1]), np.array([0]))
        self._references = [free, *[_rows(free, np.arange(0))] * debias]
        self._plug_in: list[_Averages | None] = [None] * (debias + 1)
        self._averaged = 0  # the levels that these are over

    @np.errstate(over="ignore", invalid="ignore")
    def down_to(self, floor: float) -> tuple[list[Level], int, Bounds]:
        """The levels for all targets of the grid that are not below the floor, after the levels that they need.

        Then the row of the first of them, and returns through them, as columns.

        Raises:
            ValueError: there would be too many of them.
        """
        problem = self._problem
        if self._target >= floor:
            left = math.log(floor / self._target) / math.log(self._ratio)
            # Ten or twenty seconds for each set of kinds; a discount of 0.999 needs 20,000 or more.
            require_depth(problem, len(self._counts) + left, most=30_000)
        while self._target >= floor:
            for some, row in self._best(list(self._candidates())):
                reference, samples = int(some.around.level[row]), int(some.around.samples[row])
                proved = Bounds(*map(float, _rows(some.certificate, row)))
                level = Level(
                    some.kind,
                    left=self._left,
                    samples=samples,
                    reference=None if reference < 0 else reference,
                    debias=some.debias,
                    rewards=int(arithmetic.best_rewards(problem, proved)),
                    linear=None if some.linear is None else int(some.linear[row]),
                    quadratic=None if some.quadratic is None else int(some.quadratic[row]),
                    pairs=some.pairs,
                    shift=float(proved.shift),
                )
                self._levels.append(level)
                self.certificates.append(proved)
            self._counts.append((self._target, len(self._levels)))
            self._target *= self._ratio
        count = max((count for target, count in self._counts if target >= floor), default=1)
        own, returns = self._levels[:count], self._returns(count)
        if self._below is None:
            return own, 0, returns
        needed, first, _ = self._below.down_to(STAGE_STEP * floor)
        return [*needed, *(renumbered(level, first.__add__) for level in own)], len(needed), returns

    def _returns(self, count: int) -> Bounds:
        """The certificates of returns through the first levels, as columns."""
        proved = Bounds(*np.array(self.certificates[:count], dtype=np.float64).T.copy())
        rewards = np.array([float(level.rewards) for level in self._levels[:count]])
        return arithmetic.one_step(self._problem, proved, rewards)

    def _best(self, candidates: list[_Candidates]) -> Iterator[tuple[_Candidates, int]]:
        """The best candidate for each exchange rate between cost and variance, without repetition."""
        problem = self._problem
        everyday = ((problem.reward_range[1] - problem.reward_range[0] + problem.discount * problem.width) / 2.0) ** 2
        taken: set[tuple[float, float]] = set()
        # Weights of the variance that a return has anyway, against that of the level: low ones favour low variance.
        for rate in (0.02, 0.2, 2.0, 20.0) if candidates else ():
            found = list[tuple[float, _Candidates, int]]()
            for some in candidates:
                proved = some.certificate
                work = (rate * everyday + problem.discount**2 * proved.variance) * (1.0 + proved.calls)
                found.append((np.min(work), some, int(np.argmin(work))))
            _, some, row = min(found, key=lambda each: each[0])
            proved = _rows(some.certificate, row)
            if (proved.variance, proved.calls) not in taken:
                taken.add((proved.variance, proved.calls))
                yield some, row

    def _candidates(self) -> Iterator[_Candidates]:
        """Levels that reach the target, with the levels so far as children, or those for a step less."""
        problem, target = self._problem, self._target
        below = self._below
        returns = self._returns(len(self._levels)) if below is None else below.down_to(STAGE_STEP * target)[2]
        if returns.calls[-1] > 1e300:
            # Near the largest float, plug-in levels over the latest eight are enough to state a price.
            plug_in, _ = self._averages(returns, max(0, len(returns.bias) - 8), 0)
            plug_in = _rows(plug_in, plug_in.badness <= target)
            if len(plug_in.level):
                yield _Candidates("plug-in", plug_in.certificate, plug_in)
            return
        # A linear child whose return is biased by less than a fifth of the target is needlessly fine.
        useful = np.flatnonzero((returns.bias < target) & (returns.bias >= 0.2 * target))
        if not len(useful):  # without a future there is no bias
            useful = np.flatnonzero(returns.bias < target)[:1]
        for debias, known in enumerate(self._plug_in):
            plug_in, references = self._averages(returns, self._averaged, debias)
            plug_in = plug_in if known is None else _joined(known, plug_in)
            # The others are dropped, because later targets are finer.
            plug_in = self._plug_in[debias] = _rows(plug_in, plug_in.badness <= target)
            if len(plug_in.level):
                yield _Candidates("plug-in", plug_in.certificate, plug_in, debias)
            if self._order > 0:
                if debias > 0:  # the bias of a level whose linear child has none
                    perfect = Bounds(0.0, 0.0, 0.0, 0.0, 0.0)
                    alone = arithmetic.first_order(problem, references.certificate, perfect, debias)
                    references = references._replace(badness=alone.bias)
                references = _frontier(_joined(self._references[debias], _frontier(references)))
                self._references[debias] = references
                if debias > 0:
                    references = _rows(references, references.badness <= target)
                r, j = _grid(np.arange(len(references.level)), useful)
                first = arithmetic.first_order(problem, _rows(references.certificate, r), _rows(returns, j), debias)
                reach = first.bias <= target
                if reach.any():
                    yield _Candidates("order-1", _rows(first, reach), _rows(references, r[reach]), debias, j[reach])
        self._averaged = len(returns.bias)
        if self._order == 2:
            yield from self._second_order(returns, useful)

    def _averages(self, returns: Bounds, first: int, debias: int) -> tuple[_Averages, _Averages]:
        """Plug-in levels that cancel `debias` terms, over the latest children, and their references."""
        level, samples = _grid(np.arange(first, len(returns.bias)), _sample_sizes(debias))
        through = _rows(returns, level)
        around = arithmetic.reference(self._problem, through, samples)
        proved = arithmetic.plug_in(self._problem, through, around, debias)
        return _Averages(proved, proved.bias, level, samples), _Averages(around, around.second, level, samples)

    def _second_order(self, returns: Bounds, useful: Ints) -> Iterator[_Candidates]:
        problem, references = self._problem, self._references[0]
        # About 15 levels are tried as children of the quadratic term: they are coarse, and the choice is not critical.
        coarse = np.arange(0, len(returns.bias), math.ceil(len(returns.bias) / 15))
        r, j, k = _grid(np.arange(len(references.level)), useful, coarse)
        for pairs in (2, 4, 10):
            around = _rows(references, r)
            second = arithmetic.second_order(problem, around.certificate, _rows(returns, j), _rows(returns, k), pairs)
            if pairs == 2:
                # The bias by the quadratic term does not depend on the number of pairs. This term squares the support
                # of its child, on which the price of a mean depends in the end: very wide ones are left out.
                reach = (second.bias <= self._target) & (second.width <= 1e6 * problem.width)
                if not reach.any():
                    return
                r, j, k = r[reach], j[reach], k[reach]
                second, around = _rows(second, reach), _rows(around, reach)
            yield _Candidates("order-2", second, around, 0, j, k, pairs)


level_search = lru_cache(maxsize=64)(LevelSearch)
"""The search of a problem, with the levels that it has found before."""


def children_of(problem: Problem, way: Search) -> LevelSearch:
    """The search of the levels that returns may go through: those for a step less if it is staged."""
    steps = problem.horizon
    return level_search(problem.at(steps - 1) if way.staged and steps else problem, way)


@cache
def _sample_sizes(debias: int) -> Numbers:
    """The numbers of returns per action to try in a reference: multiples of its blocks."""
    sizes, blocks = np.concatenate([2.0 ** np.arange(0.0, 14.0, 0.25), 2.0 ** np.arange(14.0, 50.01)]), 2**debias
    return np.unique(np.maximum(np.round(sizes / blocks), 1.0) * blocks)


def _frontier(references: _Averages) -> _Averages:
    """The references that are better than every cheaper one, by 5 % at least."""
    badness = references.badness
    order = np.lexsort((badness, references.certificate.calls))
    chosen: list[int] = []
    least = np.inf
    for row in order[np.flatnonzero(np.diff(np.minimum.accumulate(badness[order]), prepend=np.inf) < 0.0)]:
        if badness[row] <= 0.95 * least:
            chosen.append(int(row))
            least = badness[row]
    return _rows(references, np.array(chosen, dtype=np.int64))


def _grid(*axes: Numbers) -> list[Ints]:
    return [grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")]


def _rows(record: Record, rows: Numbers) -> Record:
    def column(whole: Any) -> Any:
        if isinstance(whole, tuple):
            return _rows(whole, rows)
        return whole[rows] if isinstance(whole, np.ndarray) and whole.ndim else whole

    return type(record)(*map(column, record))


def _joined(above: _Averages, below: _Averages) -> _Averages:
    def column(one: Any, two: Any) -> Any:
        if isinstance(one, tuple):
            return type(one)(*map(column, one, two))
        return np.concatenate([np.broadcast_to(one, len(above.level)), np.broadcast_to(two, len(below.level))])

    return _Averages(*map(column, above, below))
