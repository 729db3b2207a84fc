"""Actions that are numbers or vectors in a box: a coarse set first, then closer ones around what is left.

The policy that returns follow chooses from the coarse set. Only the first action is refined: by rounds of races between
points that are closer and closer together, each in a window around the actions that are not clearly worse. The best
action of a round takes part in the next one, so that differences add up from round to round.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import working_time
from smoothplan.chains.reference import QFunction, Reference
from smoothplan.decide.race import CLEAR, Difference, Horizons, Race
from smoothplan.models.derived import discretise
from smoothplan.models.model import Box, GenerativeModel, States
from smoothplan.run.records import Root
from smoothplan.run.workers import Workers

COARSE = {1: 9, 2: 3, 3: 3}  # points of each side, for boxes of few dimensions
CLOSER = {1: 9, 2: 4}  # the same for windows
SCATTERED = 16  # points in boxes of more dimensions
ROUND_SHARE = 0.5  # of what is left, for a round that is not the last
SHRINKS = 0.75  # a window that is larger than this share of the one before tells no more
FINEST = 1e-3  # the width of the last window, as a share of the box


def coarse_points(box: Box) -> Floats:
    """The actions that policies choose from, [K] or [K, d]."""
    return box.grid(COARSE[box.low.size]) if box.low.size in COARSE else _scattered(box)


def closer_points(window: Box) -> Floats:
    """Points of a window, [n] or [n, d]."""
    return window.grid(CLOSER[window.low.size]) if window.low.size in CLOSER else _scattered(window)


def _scattered(box: Box) -> Floats:
    """The middles of a box and of its faces, and points that fill it evenly, [n, d].

    These are multiples of powers of 1/φ, modulo 1 (Roberts, 2018): φ^(d+1) = φ + 1 generalises the golden ratio.
    """
    size, phi, middle = box.low.size, 2.0, (box.low + box.high) / 2.0
    faces = [np.where(np.arange(size) == axis, end, middle) for axis in range(size) for end in (box.low, box.high)]
    for _ in range(50):
        phi = (1.0 + phi) ** (1.0 / (size + 1))
    multiples = np.arange(1, SCATTERED + 1)[:, None] * phi ** -np.arange(1.0, size + 1)
    return np.concatenate([[middle, *faces], box.low + (box.high - box.low) * ((0.5 + multiples) % 1.0)])


def _quadratic(points: Floats) -> Floats:
    """Monomials of points [n] or [n, d] of degree 2 at most, [n, p]; no mixed ones in more than five dimensions."""
    points = 2.0 * points.reshape(len(points), -1) - 1.0
    size = points.shape[1]
    pairs = [(one, other) for one in range(size) for other in range(one, size) if one == other or size <= 5]
    products = [points[:, one] * points[:, other] for one, other in pairs]
    return np.column_stack([np.ones(len(points)), points, *products])


@dataclass(frozen=True, eq=False)
class _OfNearest:
    """Q̂ of all points: that of the nearest coarse one, which comes first, so that policies stay coarse."""

    coarse: QFunction
    nearest: Ints  # [K + n]

    def q(self, states: States) -> Floats:
        """Estimates, [n, K + n]."""
        return np.asarray(self.coarse(states), dtype=np.float64)[:, self.nearest]


class _Round(NamedTuple):
    """A race between some of the points."""

    race: Race
    places: Ints  # the point that each action of the race is, [K + n]

    def action(self, point: int) -> int | None:
        """The action of the race that is a point; None if it takes no part."""
        return next((int(each) for each in self.race.legal if self.places[each] == point), None)


class Refinement:
    """Rounds of races around the best actions of a box, with the attributes and the estimates of a `Race`.

    Args:
        root: where to decide, with the model of the coarse actions.
        model: the simulator, whose actions are a box.
        reference: Q̂ of the coarse actions.
        delta, first_chunk: as for `Race`.

    Attributes:
        points: the actions compared, [K] or [K, d]; the coarse ones come first.
    """

    def __init__(
        self, root: Root, model: GenerativeModel, reference: Reference, delta: float | None, first_chunk: int = 0
    ) -> None:
        self._root, self._model, self._reference, self._delta = root, model, reference, delta
        self._box = self._window = cast(Box, model.actions)
        self.points = coarse_points(self._box)
        self._coarse = len(self.points)
        self._rounds = [_Round(Race(root, reference, delta, first_chunk), np.arange(self._coarse))]
        self._links = [-1]  # the best point of the round before, for each round

    @property
    def _last(self) -> Race:
        return self._rounds[-1].race

    @property
    def rounds(self) -> int:
        """How many there were."""
        return len(self._rounds)

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return sum(each.race.calls for each in self._rounds)

    @property
    def next_chunk(self) -> int:
        """The number of the next chunk of samples."""
        return self._last.next_chunk

    @property
    def enough(self) -> int:
        """Rows that make an estimate."""
        return self._last.enough

    @property
    def horizons(self) -> Horizons:
        """The lengths of returns of the last round."""
        return self._last.horizons

    @property
    def cut_weight(self) -> float:
        """The mean weight of the reference's values in returns of the last round."""
        return self._last.cut_weight

    @property
    def legal(self) -> Ints:
        """All points."""
        return np.arange(len(self.points))

    @property
    def active(self) -> Ints:
        """The points that are not eliminated."""
        return self._rounds[-1].places[self._last.active]

    @property
    def best(self) -> int:
        """The reference's best action."""
        return self._rounds[0].race.best

    @property
    def claim(self) -> float:
        """The value of the state by the reference."""
        return self._rounds[0].race.claim

    @property
    def samples(self) -> Floats:
        """Paired returns of the last round, [n, K]; NaN for points that took no part."""
        race, places = self._rounds[-1]
        found = np.full((len(race.samples), len(self.points)), np.nan)
        found[:, places[race.legal]] = race.samples[:, race.legal]
        return found

    def run(self, calls: int, workers: Workers) -> None:
        """Races in rounds, with at most that many calls.

        Raises:
            Stopped: time is up.
        """
        limit = self.calls + calls
        self._refine(lambda share: self._last.run(int(share * (limit - self.calls)), workers))

    def run_for(self, until: float, workers: Workers) -> None:
        """Races in rounds until a time on the clock of `working_time`."""
        self._refine(lambda share: self._last.run_for(until - (1.0 - share) * (until - working_time()), workers))

    def _refine(self, race: Callable[[float], None]) -> None:
        """Races with shares of what is left, and looks closer after each; the last round has all the rest."""
        race(ROUND_SHARE)
        while self._look_closer():
            race(ROUND_SHARE)
        if len(self.active) > 1:
            race(1.0)

    def _look_closer(self) -> bool:
        """Begins a round in a smaller window, if the last one has left a part of its own."""
        box, size, kept = self._box, self._box.low.size, self._promising()
        if len(kept) == 0:
            return False
        left, wide = np.concatenate([self.points[kept], self._peak()]), self._window.high - self._window.low
        room = wide / (8.0 if size == 1 else 4.0)
        low, high = np.maximum(left.min(axis=0) - room, box.low), np.minimum(left.max(axis=0) + room, box.high)
        if np.prod((high - low) / wide) > SHRINKS or ((high - low) / (box.high - box.low)).max() < FINEST:
            return False
        best, peak, self._window = self.choice(), self._peak(), Box(low, high)
        more = np.concatenate([peak, closer_points(self._window)])
        apart = np.abs(more - self.points[best]).reshape(len(more), -1).max(axis=1)
        more = more[apart > 1e-9 * float(np.max(box.high - box.low))]
        self.points, first = np.concatenate([self.points, more]), len(self.points)
        refined = [] if best < self._coarse else [best]
        places = np.array([*range(self._coarse), *refined, *range(first, len(self.points))])
        among = np.flatnonzero((places == best) | (places >= first))  # the best comes first
        root = replace(self._root, model=discretise(self._model, self.points[places])[0])
        reference = _OfNearest(self._reference.q, self._nearest(self.points[places]))
        race = Race(root, reference, self._delta, self.next_chunk, among)
        race.continues(self._last)
        self._rounds.append(_Round(race, places))
        self._links.append(best)
        return True

    def _promising(self) -> Ints:
        """The points of the last round that its returns do not show to be clearly worse than the best; none of too few.

        What was not met in so many returns does not count here: it would keep everything.
        """
        race, places = self._rounds[-1]
        counts = (~np.isnan(race.samples[:, race.active])).sum(axis=0)
        if len(counts) == 0 or counts.min() < race.enough:
            return np.zeros(0, dtype=np.int64)
        rows = race.samples[:, race.active]
        behind = rows[:, [int(np.nanmean(rows, axis=0).argmax())]] - rows
        errors = np.nanstd(behind, axis=0) / np.sqrt((~np.isnan(behind)).sum(axis=0))
        return np.asarray(places[race.active[np.nanmean(behind, axis=0) <= CLEAR * errors]])

    def _nearest(self, points: Floats) -> Ints:
        """The nearest coarse action of each point, in units of the box's sides, [n]."""
        scaled = ((points - self._box.low) / (self._box.high - self._box.low)).reshape(len(points), -1)
        apart = ((scaled[:, None] - scaled[None, : self._coarse]) ** 2).sum(axis=-1)
        return np.asarray(apart.argmin(axis=1))

    def estimates(self) -> tuple[Floats, Floats, Ints]:
        """Action values, standard errors and numbers of returns, [K] each, by the last round of each point."""
        found = np.full((2, len(self.points)), np.inf)
        counts = np.zeros(len(self.points), dtype=np.int64)
        for race, places in self._rounds:
            means, errors, returns = race.estimates()
            own = [each for each in race.legal if returns[each] >= race.enough or counts[places[each]] == 0]
            found[:, places[own]], counts[places[own]] = (means[own], errors[own]), returns[own]
        return found[0], found[1], counts

    def difference(self, one: int, other: int, early: bool = False) -> Difference:
        """How much better one point is than another, by the last round of both, or by rounds with points in common."""
        return self._difference(one, other, early, len(self._rounds))

    def _difference(self, one: int, other: int, early: bool, rounds: int) -> Difference:
        """The same by the first rounds."""
        number, found = rounds - 1, self._rounds[rounds - 1]
        first, second = found.action(one), found.action(other)
        if first is not None and second is not None:
            return found.race.difference(first, second, early)
        if first is None and second is None:
            return self._difference(one, other, early, number)
        link = self._links[number]  # takes part in this round and in the one before
        parts = [
            self._difference(*pair, early, number if None in map(found.action, pair) else rounds)
            for pair in ((one, link), (link, other))
        ]
        error = math.hypot(*(part.error for part in parts))
        return Difference(sum(part.mean for part in parts), error, min(part.rows for part in parts))

    def choice(self) -> int:
        """The best point of the coarse round, as `Race.choice` has it; or of the last window, by a quadratic function.

        Neighbouring actions have similar values, so the function that is fitted to all points of a window has less
        noise than their own estimates. The best point of the round before is left only for one that leads by a standard
        error: of the returns, and of what the function leaves unexplained.
        """
        race, places = self._rounds[-1]
        left = race.legal
        if len(self._rounds) == 1:
            return int(places[race.choice()])
        features = self._features()
        freedom, (estimates, part, *rows) = len(left) - features.shape[1], race.shrunk(left)
        if len(rows[0]) < race.enough or freedom < 1:
            return int(places[left[0]])
        fit = np.linalg.pinv(features)
        fitted = features @ (fit @ estimates)
        ahead = int(fitted.argmax())
        lead = (features[ahead] - features[0]) @ fit  # of each estimate in the difference
        unexplained = float(((estimates - fitted) ** 2).sum()) / freedom * float(lead @ lead)
        early, late = (float(race.variances(each @ lead[:, None])[0]) for each in rows)
        error = math.sqrt(unexplained + early + part**2 * late)
        return int(places[left[ahead if fitted[ahead] - fitted[0] > error else 0]])

    def _features(self) -> Floats:
        """Those of the points of the last window, [n, p]."""
        race, places = self._rounds[-1]
        window = self._window
        return _quadratic((self.points[places[race.legal]] - window.low) / (window.high - window.low))

    def _peak(self) -> Floats:
        """Where the function fitted to the last window is largest, [1] or [1, d]; empty if it has no maximum."""
        race, size, window, none = self._last, self._box.low.size, self._window, self.points[:0]
        estimates, _, early, _ = race.shrunk(race.legal)
        if len(self._rounds) == 1 or len(early) < race.enough:
            return none
        weights = np.linalg.pinv(features := self._features()) @ estimates
        slopes, bends = weights[1 : size + 1], np.zeros((size, size))
        if features.shape[1] == 1 + 2 * size:
            bends[np.diag_indices(size)] = weights[size + 1 :]
        else:
            bends[np.triu_indices(size)] = weights[size + 1 :]
        bends = bends + bends.T
        if np.linalg.eigvalsh(bends).max() >= 0.0:
            return none
        place = np.clip(np.linalg.solve(bends, -slopes), -1.0, 1.0).reshape(window.low.shape)
        return np.asarray(window.low + (window.high - window.low) * (place + 1.0) / 2.0)[None]
