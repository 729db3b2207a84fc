"""The optimised schedule: certified levels chosen to make the run as cheap as the arithmetic allows.

The search walks down a geometric grid of bias targets. At each it evaluates every level of every kind that reaches the
target with the levels found so far as children, and keeps the best for a few exchange rates between cost and variance:
a parent that averages pays for both. Then it chooses the root. More kinds of levels may mislead a greedy walk, so it is
repeated with fewer kinds, and the cheapest schedule wins. It takes about a second and no simulator call.
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
from smoothplan.recursive.level import Bounds, Level, ReferenceMoments
from smoothplan.recursive.schedule import CERTAIN_SHARE, Schedule, require_depth, shared_reference, trimmed
from smoothplan.theory.curvature import Problem, require_resolvable

PRICE_GROWTH = 8.0
"""From one rung of a ladder to the next the price grows by this factor at least: all coarser rungs cost a seventh."""

Record = TypeVar("Record", bound=tuple[Any, ...])  # its fields are columns, records, or one value for all rows


class _Candidates(NamedTuple):
    """Levels that reach a target, with their certificates. One row per candidate."""

    kind: arithmetic.Kind
    certificate: Bounds
    reference: Ints  # −1: constant
    samples: Ints
    debias: int = 0
    linear: Ints | None = None
    quadratic: Ints | None = None
    pairs: int = 0

    def level(self, problem: Problem, row: int) -> tuple[Level, Bounds]:
        def chosen(children: Ints | None) -> int | None:
            return None if children is None or children[row] < 0 else int(children[row])

        proved = Bounds(*map(float, _rows(self.certificate, row)))
        level = Level(
            kind=self.kind,
            samples=int(self.samples[row]),
            reference=chosen(self.reference),
            debias=self.debias,
            rewards=int(arithmetic.best_rewards(problem, proved)),
            linear=chosen(self.linear),
            quadratic=chosen(self.quadratic),
            pairs=self.pairs,
            shift=float(proved.shift),
        )
        return level, proved


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


class _References(NamedTuple):
    """References, as columns."""

    certificate: ReferenceMoments
    badness: Numbers  # smaller is better
    level: Ints  # −1: constant
    samples: Ints


Table = TypeVar("Table", _Candidates, _References)


class Kinds(NamedTuple):
    """The kinds of levels that a schedule may have."""

    order: int  # the highest order: 0 for plug-in levels only
    debias: int = 0  # the most terms that a level may cancel

    def within(self, problem: Problem) -> "list[Kinds]":
        """Sets of these kinds, each searched alone, as far as a problem has them.

        The hard maximum has order 0 only, and only mixtures of softmaxes have order 2. Pairs are not combined with
        debiased levels, because together they were never cheaper.
        """
        order = min(self.order, 2 if problem.pairs else 1) if problem.derivatives else 0
        debias = min(self.debias, largest_debias(problem.derivatives))
        return [Kinds(some) for some in range(order + 1)] + [
            Kinds(min(order, 1), terms) for terms in range(1, debias + 1)
        ]


@lru_cache(maxsize=64)
def optimised(problem: Problem, epsilon: float, delta: float, order: int = 2, debias: int = 0) -> Schedule:
    """The cheapest schedule found for accuracy ε with probability 1 − δ.

    Args:
        problem: see `Problem.of`.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        order: the highest order of levels that is allowed: 0 for plug-in levels only. A hard maximum has no other.
        debias: the most terms that a level may cancel; 0 for no debiased levels.

    Raises:
        ValueError: ε is out of reach of floating point, of any level, or of a search of reasonable length.
    """
    require_resolvable(epsilon, problem.values, problem.reward_range)
    if problem.width / 2.0 <= epsilon:
        return Schedule(problem, (Level("constant"),), 1, epsilon, delta)
    found = []
    for kinds in Kinds(order, debias).within(problem):
        levels, certificates = _search(problem, kinds).down_to(_finest_bias(problem, epsilon))
        with np.errstate(over="ignore", invalid="ignore"):
            root, repeats = _root(problem, _returns(problem, levels, certificates), epsilon, delta, kinds.order)
        found.append(Schedule(problem, trimmed([*levels, root]), repeats, epsilon, delta))
    return min(found, key=lambda schedule: schedule.calls)


def ladder(
    problem: Problem, radius: float, delta: float, order: int = 2, debias: int = 0, budget: float = math.inf
) -> tuple[list[Level], list[Rung]]:
    """The levels of a problem, and the rungs that an action's interval passes as it shrinks to a radius.

    Each rung has the level that makes its radius cheapest. As a finer level costs T ∝ bias^−α and its noise falls with
    the square root of the samples, the bias is about α/(2 + α) of the radius.

    Args:
        problem: see `Problem.of`.
        radius: the finest.
        delta: the probability that the noise is larger than certified, for all rungs together.
        order, debias: the kinds of levels that are allowed, see `optimised`.
        budget: the price at which the ladder ends before the radius is reached. There is one rung at least.
    """
    arguments.number("delta for each action", delta, least=arguments.LEAST_DELTA / problem.actions)
    kinds = Kinds(order, debias).within(problem)
    ladders = [_ladder(_search(problem, some), problem, radius, delta, budget) for some in kinds]
    # The finest last rung, and the cheapest of those.
    return min(ladders, key=lambda found: (found[1][-1].radius, found[1][-1].price))


def _ladder(
    search: "_LevelSearch", problem: Problem, radius: float, delta: float, budget: float
) -> tuple[list[Level], list[Rung]]:
    found = list[Rung]()
    # A geometric grid from below the widest radius to the finest, of which 1e-12 is beyond the accuracy of floats.
    widest = problem.action_gap / 2.0
    finest = max(radius, 1e-12 * (widest or 1.0))
    steps = math.ceil(math.log(widest / finest) / -math.log(0.95)) if finest < widest else 0  # of 5 %
    for wanted in np.geomspace(widest, finest, steps + 1)[1:].tolist() if steps > 0 else [finest]:
        levels, certificates = search.down_to(_finest_bias(problem, wanted))
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                # δ is split over the rungs, whose number is not known yet.
                rung = _rung(_returns(problem, levels, certificates), wanted, delta / 8)
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
    return search.down_to(_finest_bias(problem, rungs[-1].radius))[0], rungs


def _finest_bias(problem: Problem, radius: float) -> float:
    """The finest useful bias of a level: no schedule profits from a return biased by less than a tenth."""
    return 0.1 * radius / max(problem.discount, 0.1)


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
            f"{_sample_sizes()[-1]:.0e} returns per action, got {radius:g}"
        )
    through = _rows(returns, fine)
    samples = np.ceil(confidence.bernstein_count(through.variance, through.width, room[fine], delta))
    entry = int(np.argmin(samples * through.calls))
    proved = Bounds(*(float(column) for column in _rows(through, entry)))
    return Rung(radius, int(fine[entry]), proved, float(samples[entry]))


class _LevelSearch:
    """The levels of a problem, from coarse to fine. A finer request adds levels to those found before."""

    def __init__(self, problem: Problem, kinds: Kinds) -> None:
        self._problem, self._kinds = problem, kinds
        self._levels = [Level("constant")]
        self._certificates = [arithmetic.constant(problem)]
        # From one bias target to the next. One step shrinks a bias by γ and no more, so the grid has some steps within
        # that: about five, but two for discounts so large that no run can pay.
        self._ratio = max(0.85, min(problem.discount**0.2, 0.95), problem.discount**0.5)
        self._target = self._certificates[0].bias * self._ratio
        self._counts: list[tuple[float, int]] = []  # target, and the number of levels once it was met
        self._pools = [_Pool(problem, kinds, debias) for debias in range(kinds.debias + 1)]
        self._pooled = 0  # levels that the pools know

    def down_to(self, floor: float) -> tuple[list[Level], list[Bounds]]:
        """The levels for all targets of the grid that are not below the floor, and their certificates.

        Raises:
            ValueError: there would be too many of them.
        """
        if self._target >= floor:
            left = math.inf if self._ratio == 1.0 else math.log(floor / self._target) / math.log(self._ratio)
            # Ten or twenty seconds for each set of kinds; a discount of 0.999 needs 20,000 or more.
            require_depth(self._problem, len(self._counts) + left, most=30_000)
        while self._target >= floor:
            with np.errstate(over="ignore", invalid="ignore"):
                found = list(_best(self._problem, self._candidates()))
            for candidates, row in found:
                level, proved = candidates.level(self._problem, row)
                self._levels.append(level)
                self._certificates.append(proved)
            self._counts.append((self._target, len(self._levels)))
            self._target *= self._ratio
        count = max((count for target, count in self._counts if target >= floor), default=1)
        return self._levels[:count], self._certificates[:count]

    def _candidates(self) -> Iterator[_Candidates]:
        """Levels that reach the target, with the levels so far as children."""
        problem, target = self._problem, self._target
        if self._certificates[-1].calls > 1e300:
            # Near the largest float, plug-in levels over the latest eight are enough to state a price.
            first = max(0, len(self._levels) - 8)
            latest = _Pool(problem, Kinds(0), 0)
            latest.add(_returns(problem, self._levels[first:], self._certificates[first:]), first)
            yield from latest.plug_in_levels(target)
            return
        returns = _returns(problem, self._levels, self._certificates)
        new = np.arange(self._pooled, len(self._levels))
        for pool in self._pools:
            pool.add(_rows(returns, new), self._pooled)
        self._pooled = len(self._levels)
        # A linear child whose return is biased by less than a fifth of the target is needlessly fine.
        useful = np.flatnonzero((returns.bias < target) & (returns.bias >= 0.2 * target))
        if problem.discount == 0.0:
            useful = np.zeros(1, dtype=np.int64)
        for pool in self._pools:
            yield from pool.plug_in_levels(target)
            if self._kinds.order > 0:
                yield from _first_order(problem, returns, target, pool.references, useful, pool.debias)
        if self._kinds.order == 2:
            yield from _second_order(problem, returns, target, self._pools[0].references, useful)


@lru_cache(maxsize=64)
def _search(problem: Problem, kinds: Kinds) -> _LevelSearch:
    return _LevelSearch(problem, kinds)


class _Pool:
    """Plug-in levels that cancel `debias` terms, and references for levels of higher order.

    Neither depends on the target, so a pool grows with the levels.
    """

    def __init__(self, problem: Problem, kinds: Kinds, debias: int) -> None:
        self.debias = debias
        self._problem, self._kinds = problem, kinds
        self._plug_in: _Candidates | None = None  # those that reach the latest target, and those of the latest levels
        # The constant reference costs nothing and needs no debiasing.
        constant, here = arithmetic.constant_reference(problem), 1 if debias == 0 else 0
        self.references = _References(
            ReferenceMoments(*(np.full(here, column) for column in constant)),
            np.full(here, constant.second),
            np.full(here, -1),
            np.zeros(here, dtype=np.int64),
        )

    def add(self, returns: Bounds, first: int) -> None:
        """Adds the returns through levels, whose rows begin at `first`."""
        problem, debias = self._problem, self.debias
        level, samples = _grid(np.arange(len(returns.bias)), _sample_sizes(debias))
        through = _rows(returns, level)
        around = arithmetic.reference(problem, through, samples)
        plug_in = arithmetic.plug_in(problem, through, around, debias)
        new = _Candidates("plug-in", plug_in, level + first, samples, debias)
        self._plug_in = new if self._plug_in is None else _joined(self._plug_in, new)
        if self._kinds.order == 0:
            return
        badness = around.second
        if debias > 0:  # the bias of a level whose linear child has none
            perfect = Bounds(0.0, 0.0, 0.0, 0.0, 0.0)
            badness = arithmetic.first_order(problem, around, perfect, debias).bias
        better = _frontier(_References(around, badness, level + first, samples))
        self.references = _frontier(_joined(self.references, better))

    def plug_in_levels(self, target: float) -> Iterator[_Candidates]:
        """The levels that reach a bias target; the others are dropped, because later targets are finer."""
        assert self._plug_in is not None
        self._plug_in = _rows(self._plug_in, self._plug_in.certificate.bias <= target)
        if len(self._plug_in.samples):
            yield self._plug_in


def _best(problem: Problem, candidates: Iterator[_Candidates]) -> Iterator[tuple[_Candidates, int]]:
    """The best candidate for each exchange rate between cost and variance, without repetition."""
    everyday = ((problem.reward_range[1] - problem.reward_range[0] + problem.discount * problem.width) / 2.0) ** 2
    # Weights of the variance that a return has anyway, against that of the level: low ones favour low variance.
    rates = np.array([0.02, 0.2, 2.0, 20.0])[:, None]
    best: list[tuple[float, _Candidates, int] | None] = [None] * len(rates)
    for some in candidates:
        certificate = some.certificate
        work = (rates * everyday + problem.discount**2 * certificate.variance) * (1.0 + certificate.calls)
        for place, entry in enumerate(np.argmin(work, axis=1)):
            least = best[place]
            if least is None or work[place, entry] < least[0]:
                best[place] = float(work[place, entry]), some, int(entry)
    taken: set[tuple[float, float]] = set()
    for found in best:
        if found is not None:
            _, some, entry = found
            key = (float(some.certificate.variance[entry]), float(some.certificate.calls[entry]))
            if key not in taken:
                taken.add(key)
                yield some, entry


@cache
def _sample_sizes(debias: int = 0) -> Ints:
    """The numbers of returns per action to try in a reference: multiples of its blocks."""
    sizes, blocks = np.concatenate([2.0 ** np.arange(0.0, 14.0, 0.25), 2.0 ** np.arange(14.0, 50.01)]), 2**debias
    return np.unique(np.maximum(np.round(sizes / blocks), 1.0) * blocks)


def _first_order(
    problem: Problem, returns: Bounds, target: float, references: _References, useful: Ints, debias: int
) -> Iterator[_Candidates]:
    if debias > 0:
        references = _rows(references, np.flatnonzero(references.badness <= target))
    r, j = _grid(np.arange(len(references.level)), useful)
    first = arithmetic.first_order(problem, _rows(references.certificate, r), _rows(returns, j), debias)
    reach = first.bias <= target
    if reach.any():
        r, j = r[reach], j[reach]
        yield _Candidates("order-1", _rows(first, reach), references.level[r], references.samples[r], debias, j)


def _second_order(
    problem: Problem, returns: Bounds, target: float, references: _References, useful: Ints
) -> Iterator[_Candidates]:
    # About 15 levels are tried as children of the quadratic term: they are coarse, and the choice is not critical.
    coarse = np.arange(0, len(returns.bias), math.ceil(len(returns.bias) / 15))
    r, j, k = _grid(np.arange(len(references.level)), useful, coarse)
    for pairs in (2, 4, 10):
        second = arithmetic.second_order(
            problem, _rows(references.certificate, r), _rows(returns, j), _rows(returns, k), pairs
        )
        if pairs == 2:
            # The bias by the quadratic term does not depend on the number of pairs. This term squares the support of
            # its child, on which the price of a mean depends in the end: levels with a very wide one are left out.
            reach = (second.bias <= target) & (second.width <= 1e6 * problem.width)
            if not reach.any():
                return
            r, j, k = r[reach], j[reach], k[reach]
            second = _rows(second, reach)
        yield _Candidates("order-2", second, references.level[r], references.samples[r], 0, j, k, pairs)


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
    references = _frontier(_References(around, around.bias, level, counts))
    r, j = _grid(np.arange(len(references.level)), np.flatnonzero(returns.bias < epsilon))
    certificate = arithmetic.first_order(problem, _rows(references.certificate, r), _rows(returns, j))
    reach = np.flatnonzero(certificate.bias < epsilon)
    if len(reach):
        certificate, r, j = _rows(certificate, reach), r[reach], j[reach]
        # Samples after which bias and certified noise are within ε.
        room = epsilon - certificate.bias
        count = confidence.bernstein_count(certificate.variance, certificate.width, room, CERTAIN_SHARE * delta)
        repeats = np.ceil(count)
        once = references.certificate.calls[r]
        price = once + repeats * (certificate.calls - once)
        entry = int(np.argmin(price))
        if price[entry] < problem.actions * rung.price:
            root = Level(
                "order-1",
                samples=int(references.samples[r[entry]]),
                reference=int(references.level[r[entry]]),
                linear=int(j[entry]),
                shift=float(certificate.shift[entry]),
            )
            return root, int(repeats[entry])
    return plug_in, 1


def _frontier(references: _References) -> _References:
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


def _joined(above: Table, below: Table) -> Table:
    sizes = len(above.samples), len(below.samples)

    def column(parts: tuple[Any, Any]) -> Any:
        if isinstance(parts[0], tuple):
            return type(parts[0])(*map(column, zip(*parts, strict=True)))
        if not np.ndim(parts[0]) and not np.ndim(parts[1]) and parts[0] == parts[1]:
            return parts[0]
        return np.concatenate([np.broadcast_to(part, size) for part, size in zip(parts, sizes, strict=True)])

    return type(above)(*map(column, zip(above, below, strict=True)))


def _returns(problem: Problem, levels: list[Level], certificates: list[Bounds]) -> Bounds:
    """The certificates of returns through levels, as columns."""
    columns = Bounds(*(np.array(column, dtype=np.float64) for column in zip(*certificates, strict=True)))
    return arithmetic.one_step(problem, columns, np.array([float(level.rewards) for level in levels]))
