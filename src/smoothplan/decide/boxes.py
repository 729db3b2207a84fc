"""Actions that are numbers or vectors in a box: a coarse set first, then closer ones around what is left.

The policy that returns follow chooses from the coarse set. Only the first action is refined: the race goes on between
points that are closer and closer together, each time in a window around the actions that are not clearly worse.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains.reference import QFunction, Reference
from smoothplan.decide.race import Race
from smoothplan.models.derived import chosen_actions, discretise
from smoothplan.models.model import Box, GenerativeModel, States

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


@dataclass(frozen=True, eq=False)
class _OfNearest:
    """Q̂ of all points: that of the nearest coarse one, which comes first, so that policies stay coarse."""

    coarse: QFunction
    nearest: Ints  # [K + n]

    def q(self, states: States) -> Floats:
        """Estimates, [n, K + n]."""
        return np.asarray(self.coarse(states), dtype=np.float64)[:, self.nearest]


def _widen(race: Race, model: GenerativeModel, reference: Reference, more: Floats, link: int, again: Ints) -> None:
    """Further actions of a box take part in a race; see `Race.widen`."""
    box = cast(Box, model.actions)
    points = np.concatenate([chosen_actions(race.model), more])
    scaled, coarse = (
        ((each - box.low) / (box.high - box.low)).reshape(len(each), -1) for each in (points, coarse_points(box))
    )
    nearest = ((scaled[:, None] - coarse[None]) ** 2).sum(axis=-1).argmin(axis=1)
    race.widen(discretise(model, points)[0], _OfNearest(reference.q, nearest), link, again)


def add_point(race: Race, model: GenerativeModel, reference: Reference, action: Any) -> int:
    """The place of an action among those of a race between actions of a box, in which it takes part if it did not."""
    points = chosen_actions(race.model)
    same = (points == action).reshape(len(points), -1).all(axis=1)
    if same.any():
        return int(np.argmax(same))
    choice = race.choice()
    _widen(race, model, reference, np.asarray(action)[None], choice, np.array([choice]))
    return len(points)


def refine(
    race: Race, model: GenerativeModel, reference: Reference, left: Callable[[], int], run: Callable[[float], None]
) -> None:
    """Runs a race in rounds: first between the coarse actions of a box, then between closer ones around what is left.

    Args:
        race: between the coarse actions.
        model: the simulator, whose actions are a box.
        reference: Q̂ of the coarse actions.
        left: tells the calls that are left.
        run: goes on with the race by a share of what is left.

    Raises:
        Stopped: time is up.
    """
    box = window = cast(Box, model.actions)
    points, size, sides = coarse_points(box), box.low.size, box.high - box.low
    share = ROUND_SHARE
    while True:
        run(share)
        best, wide = race.choice(), window.high - window.low
        kept = points[np.append(race.contenders, best)]
        room = wide / (CLOSER.get(size, 5) - 1)
        low, high = np.maximum(kept.min(axis=0) - room, box.low), np.minimum(kept.max(axis=0) + room, box.high)
        if np.prod((high - low) / wide) > SHRINKS or ((high - low) / sides).max() < FINEST:
            break
        window = Box(low, high)
        more = closer_points(window)
        apart = np.abs((more[:, None] - points[None]) / sides).reshape(len(more), len(points), -1).max(axis=2)
        known = apart.min(axis=1) <= 1e-9
        again, more = np.append(apart[known].argmin(axis=1), best), more[~known]
        share = max(ROUND_SHARE, race.price(len(more) + len(again)) / max(left(), 1))
        if share > 1.0:
            break
        points = np.concatenate([points, more])
        _widen(race, model, reference, more, best, again)
    if len(race.active) > 1:
        run(1.0)
