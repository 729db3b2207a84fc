"""The optimised schedule: certified levels chosen to make the run as cheap as the arithmetic allows.

The search walks down a geometric grid of bias targets. At each it evaluates every level of every kind that reaches the
target with the levels found so far as children, and keeps the best for a few exchange rates between cost and variance:
a parent that averages pays for both. Then it chooses the root. It takes about a second and no simulator call.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from smoothplan import arguments, confidence, curvature
from smoothplan.arguments import Ints, Numbers
from smoothplan.schedules import level as arithmetic
from smoothplan.schedules.level import Certificate, Level, Problem, ReferenceMoments, Return
from smoothplan.schedules.schedule import CERTAIN_SHARE, Schedule, shared_reference, trimmed

PRICE_GROWTH = 8.0
"""From one rung of a ladder to the next the price grows by this factor at least: all coarser rungs cost a seventh."""

Table = TypeVar("Table", Certificate, Return, ReferenceMoments)


@dataclass(frozen=True)
class _Candidates:
    """Levels that reach a target: what is proved of them, and what they are made of. One entry per candidate."""

    kind: arithmetic.Kind
    certificate: Certificate
    reference: Ints  # −1: constant
    samples: Ints
    linear: Ints | None = None
    quadratic: Ints | None = None
    pairs: int = 0

    def level(self, entry: int, skipped: int) -> Level:
        """The level of one entry of a table from which the first `skipped` levels were left out."""

        def chosen(children: Ints | None) -> int | None:
            return None if children is None or children[entry] < 0 else int(children[entry]) + skipped

        return Level(
            kind=self.kind,
            samples=int(self.samples[entry]),
            reference=chosen(self.reference),
            linear=chosen(self.linear),
            quadratic=chosen(self.quadratic),
            pairs=self.pairs,
            shift=float(self.proved(entry).shift),
        )

    def proved(self, entry: int) -> Certificate:
        """The certificate of one entry."""
        return Certificate(*(float(np.broadcast_to(c, self.reference.shape)[entry]) for c in self.certificate))


class Rung(NamedTuple):
    """How to know the value of an action within a radius: the mean of returns through a level."""

    radius: float
    level: int  # which one
    through: Return
    samples: float  # after which the bias of a return and the certified noise of the mean are within the radius

    @property
    def price(self) -> float:
        """Simulator calls of all samples."""
        return self.samples * float(self.through.calls)


@dataclass(frozen=True)
class _References:
    """References worth considering: none is both dearer and worse than another."""

    certificate: ReferenceMoments
    level: Ints
    samples: Ints


def optimised(problem: Problem, epsilon: float, delta: float, order: int = 2) -> Schedule:
    """The cheapest schedule found for accuracy ε with probability 1 − δ.

    Args:
        problem: see `Problem.of`.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        order: the highest order of levels that is allowed: 0 for plug-in levels only. A hard maximum has no other.

    Raises:
        ValueError: ε is beyond what floating point, any level or a search of reasonable length can reach.
    """
    curvature.resolvable(epsilon, problem.values)
    if problem.width / 2.0 <= epsilon:
        return Schedule(problem, (Level("constant"),), 1, epsilon, delta)
    if not problem.derivatives:
        order = 0
    levels, certificates = _table(problem, order).down_to(_finest_bias(problem, epsilon))
    with np.errstate(over="ignore", invalid="ignore"):
        root, repeats = _root(problem, _columns(certificates), epsilon, delta, order)
    return Schedule(problem, trimmed([*levels, root]), repeats, epsilon, delta)


def ladder(
    problem: Problem, radius: float, delta: float, order: int = 2, budget: float = math.inf
) -> tuple[list[Level], list[Rung]]:
    """The levels of a problem, and those of them that an action's interval goes through as it shrinks to a radius.

    At each rung the level is the one that makes its radius cheapest. As a finer level costs T ∝ bias^−α and its noise
    falls with the square root of the samples, the bias is about α/(2 + α) of the radius.

    Args:
        problem: see `Problem.of`.
        radius: the finest that is wanted.
        delta: the probability that the noise is larger than certified, for all rungs together.
        order: the highest order of levels that is allowed. A hard maximum has plug-in levels only.
        budget: the price at which the ladder ends before the radius is reached. The first rung is always there.
    """
    arguments.number("delta for each action", delta, least=arguments.LEAST_DELTA / problem.actions)
    if not problem.derivatives:
        order = 0
    table, found = _table(problem, order), list[Rung]()
    # A geometric grid from below the widest radius to the finest, of which 1e-12 is beyond the accuracy of floats.
    widest = problem.action_gap / 2.0
    finest = max(radius, 1e-12 * (widest or 1.0))
    steps = math.ceil(math.log(widest / finest) / -math.log(0.95)) if finest < widest else 0  # of 5 %
    for wanted in np.geomspace(widest, finest, steps + 1)[1:].tolist() if steps > 0 else [finest]:
        with np.errstate(over="ignore", invalid="ignore"):
            returns = arithmetic.one_step(problem, _columns(table.down_to(_finest_bias(problem, wanted))[1]))
            rung = _rung(returns, wanted, delta / 8)  # over how many rungs δ is split is not known yet
        if found and (rung is None or not rung.price <= budget):
            break
        found.append(_reached(rung, wanted, returns))
    rungs = found[-1:]
    for rung in reversed(found):
        if rung.level != rungs[0].level and PRICE_GROWTH * rung.price <= rungs[0].price:
            rungs.insert(0, rung)
    return table.down_to(_finest_bias(problem, rungs[-1].radius))[0], rungs


def _finest_bias(problem: Problem, radius: float) -> float:
    """The finest bias of a level that is of use: no schedule profits from a return biased by less than a tenth."""
    return 0.1 * radius / max(problem.discount, 0.1)


def _rung(returns: Return, radius: float, delta: float) -> Rung | None:
    """The cheapest way to know an action value within a radius; None where every return is biased more."""
    room = radius - returns.bias
    fine = np.flatnonzero(room > 0.0)
    if not len(fine):
        return None
    through = _rows(returns, fine)
    samples = np.ceil(confidence.bernstein_count(through.variance, through.width, room[fine], delta))
    entry = int(np.argmin(samples * through.calls))
    proved = Return(*(float(column) for column in _rows(through, entry)))
    return Rung(radius, int(fine[entry]), proved, float(samples[entry]))


def _reached(rung: Rung | None, epsilon: float, returns: Return) -> Rung:
    """The rung, if there is one."""
    if rung is None:
        raise ValueError(
            f"epsilon must be greater than {np.min(returns.bias):.3g}, the least bias of levels with up to "
            f"{_sample_sizes()[-1]:.0e} returns per action, got {epsilon:g}"
        )
    return rung


class _Table:
    """The levels of a problem, from coarse to fine. A finer request extends the table and leaves what was there."""

    def __init__(self, problem: Problem, order: int) -> None:
        self._problem, self._order = problem, order
        self._levels = [Level("constant")]
        self._certificates = [arithmetic.constant(problem)]
        # From one bias target to the next. One step can shrink a bias by γ and no more, so it must not be coarser.
        self._ratio = max(0.85, problem.discount**0.5)
        self._target = self._certificates[0].bias * self._ratio
        self._counts: list[tuple[float, int]] = []  # target, and the number of levels once it was met

    def down_to(self, floor: float) -> tuple[list[Level], list[Certificate]]:
        """The levels for all targets of the grid that are not below the floor, and what is proved of them.

        Raises:
            ValueError: there would be too many of them.
        """
        if self._target >= floor:
            left = math.inf if self._ratio == 1.0 else math.log(floor / self._target) / math.log(self._ratio)
            most = 30_000  # which takes ten or twenty seconds; a discount of 0.999 needs 20,000 or more
            if len(self._counts) + left > most:
                raise ValueError(
                    f"discount must be smaller for a recursive schedule, got {self._problem.discount!r}: from a bias "
                    f"of {self._certificates[0].bias:.3g} to one of {floor:.3g} it would take "
                    f"{len(self._counts) + left:.2g} steps, more than {most:,}. Recursion is for short horizons: a "
                    "smaller discount or a larger epsilon would help, or a planner for long horizons, such as "
                    "ReferenceCruiser"
                )
        while self._target >= floor:
            # Where floats end, the search stops being careful: plug-in levels over the latest eight state a price.
            hopeless = self._certificates[-1].calls > 1e300
            skipped = max(0, len(self._levels) - 8) if hopeless else 0
            columns = _columns(self._certificates[skipped:])
            with np.errstate(over="ignore", invalid="ignore"):
                found = list(_best(self._problem, columns, self._target, 0 if hopeless else self._order))
            for candidates, entry in found:
                self._levels.append(candidates.level(entry, skipped))
                self._certificates.append(candidates.proved(entry))
            self._counts.append((self._target, len(self._levels)))
            self._target *= self._ratio
        count = max((count for target, count in self._counts if target >= floor), default=1)
        return self._levels[:count], self._certificates[:count]


@lru_cache(maxsize=64)
def _table(problem: Problem, order: int) -> _Table:
    return _Table(problem, order)


def _best(problem: Problem, table: Certificate, target: float, order: int) -> Iterator[tuple[_Candidates, int]]:
    """The best candidates for a bias target, one for each exchange rate, without repetition."""
    found = list(_candidates(problem, table, target, order))
    everyday = ((problem.reward_range[1] - problem.reward_range[0] + problem.discount * problem.width) / 2.0) ** 2
    taken: set[tuple[float, float]] = set()
    # Weights of the variance that a return has anyway, against that of the level: low ones favour low variance.
    for rate in (0.02, 0.2, 2.0, 20.0):
        best: tuple[float, _Candidates, int] | None = None
        for candidates in found:
            certificate = candidates.certificate
            work = (rate * everyday + problem.discount**2 * certificate.variance) * (1.0 + certificate.calls)
            entry = int(np.argmin(work))
            if best is None or work[entry] < best[0]:
                best = (float(work[entry]), candidates, entry)
        if best is not None:
            _, candidates, entry = best
            key = (float(candidates.certificate.variance[entry]), float(candidates.certificate.calls[entry]))
            if key not in taken:
                taken.add(key)
                yield candidates, entry


@cache
def _sample_sizes() -> Ints:
    """Returns per action that are tried in a reference."""
    return np.unique(np.round(np.concatenate([2.0 ** np.arange(0.0, 14.0, 0.25), 2.0 ** np.arange(14.0, 50.01)])))


def _candidates(problem: Problem, table: Certificate, target: float, order: int) -> Iterator[_Candidates]:
    """All levels with a bias of at most the target whose children are in the table."""
    returns = arithmetic.one_step(problem, table)
    level, samples = _grid(np.arange(len(table.bias)), _sample_sizes())
    through = _rows(returns, level)
    around = arithmetic.reference(problem, through, samples)
    plug_in = arithmetic.plug_in(problem, through, around)
    reach = plug_in.bias <= target
    if reach.any():
        yield _Candidates("plug-in", _rows(plug_in, reach), level[reach], samples[reach])
    if order == 0:
        return

    references = _frontier(around, level, samples)
    # The constant reference is row −1 and has no samples.
    columns = zip(references.certificate, arithmetic.constant_reference(problem), strict=True)
    references = _References(
        ReferenceMoments(*(np.append(np.broadcast_to(many, references.level.shape), one) for many, one in columns)),
        np.append(references.level, -1),
        np.append(references.samples, 0),
    )
    # A linear child whose return is biased by less than a fifth of the target is finer than is of use.
    useful = np.flatnonzero((returns.bias < target) & (returns.bias >= 0.2 * target))
    if problem.discount == 0.0:
        useful = np.zeros(1, dtype=np.int64)
    r, j = _grid(np.arange(len(references.level)), useful)
    first = arithmetic.first_order(problem, _rows(references.certificate, r), _rows(returns, j))
    reach = first.bias <= target
    if reach.any():
        yield _Candidates(
            "order-1", _rows(first, reach), references.level[r[reach]], references.samples[r[reach]], j[reach]
        )
    if order == 1:
        return

    # About 50 levels are tried as children of the quadratic term: they are coarse, and the choice is not critical.
    coarse = np.arange(0, len(table.bias), math.ceil(len(table.bias) / 50))
    r, j, k = _grid(np.arange(len(references.level)), useful, coarse)
    for pairs in (2, 3, 4, 6, 8, 12, 16, 32):
        second = arithmetic.second_order(
            problem, _rows(references.certificate, r), _rows(returns, j), _rows(returns, k), pairs
        )
        if pairs == 2:
            # What the quadratic term adds to the bias is known before the number of pairs is. It squares the support of
            # its child, on which the price of a mean depends in the end: levels with a very wide one are left out.
            reach = (second.bias <= target) & (second.high - second.low <= 1e6 * problem.width)
            if not reach.any():
                return
            r, j, k = r[reach], j[reach], k[reach]
            second = _rows(second, reach)
        yield _Candidates("order-2", second, references.level[r], references.samples[r], j, k, pairs)


def _root(problem: Problem, table: Certificate, epsilon: float, delta: float, order: int) -> tuple[Level, int]:
    """The cheapest root level over the levels of the table, and how often it is sampled."""
    returns = arithmetic.one_step(problem, table)

    # Plug-in: every action's mean return within ε.
    rung = _reached(_rung(returns, epsilon, CERTAIN_SHARE * delta / problem.actions), epsilon, returns)
    plug_in = Level("plug-in", samples=int(rung.samples), reference=rung.level)
    if order == 0:
        return plug_in, 1

    # Order 1 is enough here: the shared reference is drawn once, so making it precise costs next to nothing.
    tried = np.unique(np.round(2.0 ** np.arange(2.0, 40.01, 0.25)))  # returns per action in its reference
    level, counts = _grid(np.arange(len(table.bias)), tried)
    around = shared_reference(problem, _rows(returns, level), counts, delta)
    references = _frontier(around, level, counts)
    r, j = _grid(np.arange(len(references.level)), np.flatnonzero(returns.bias < epsilon))
    certificate = arithmetic.first_order(problem, _rows(references.certificate, r), _rows(returns, j))
    reach = np.flatnonzero(certificate.bias < epsilon)
    if len(reach):
        certificate, r, j = _rows(certificate, reach), r[reach], j[reach]
        # Samples after which bias and certified noise are within ε.
        width, room = certificate.high - certificate.low, epsilon - certificate.bias
        repeats = np.ceil(confidence.bernstein_count(certificate.variance, width, room, CERTAIN_SHARE * delta))
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


def _frontier(around: ReferenceMoments, level: Ints, samples: Ints) -> _References:
    """Of all references those that are better than every cheaper one, by 5 % at least."""
    order = np.lexsort((around.second, around.calls))
    chosen: list[int] = []
    least = np.inf
    for row in order[np.flatnonzero(np.diff(np.minimum.accumulate(around.second[order]), prepend=np.inf) < 0.0)]:
        if around.second[row] <= 0.95 * least:
            chosen.append(int(row))
            least = around.second[row]
    rows = np.array(chosen, dtype=np.int64)
    return _References(_rows(around, rows), level[rows], samples[rows])


def _grid(*axes: Numbers) -> list[Ints]:
    """All combinations of entries, as flat arrays."""
    return [grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")]


def _rows(table: Table, rows: Numbers) -> Table:
    """Some rows of a certificate, a return or a reference whose fields are columns."""
    return type(table)(*(column[rows] if np.ndim(column) else column for column in table))


def _columns(certificates: list[Certificate]) -> Certificate:
    """Certificates as one, whose fields are columns."""
    return Certificate(*(np.array(column, dtype=np.float64) for column in zip(*certificates, strict=True)))
