"""Problems with tables for the study `peers`, and where each starts."""

from collections.abc import Callable

import numpy as np

import smoothplan as sp
from studies.regret import sysadmin

LOST = 20.0
"""The cost of a job that finds its queue full."""

TRACK = (
    "###......G",
    "##.......G",
    "#........G",
    "#....#####",
    "#...######",
    "#...######",
    "#...######",
    "#SSS######",
)
"""# wall, S start, G finish, anything else road."""

FASTEST, FAILURE = 3, 0.1
"""The largest speed in each direction, and the probability that an acceleration has no effect."""


def two_queues(room: int = 10, arrival: float = 0.4, rates: tuple[float, float] = (0.4, 0.2)) -> sp.TabularModel:
    """Routing to two queues (Hajek, 1984): an event is an arrival, which joins the queue of the action, or a service.

    Every job costs 1 per event. Costs of lost jobs are expected ones.
    """
    side = room + 1
    places = [(first, second) for first in range(side) for second in range(side)]
    table = []
    for queues in places:
        joined = [(min(queues[0] + 1, room), queues[1]), (queues[0], min(queues[1] + 1, room))]
        served = [(max(queues[0] - 1, 0), queues[1]), (queues[0], max(queues[1] - 1, 0))]
        rewards = [-float(sum(queues)) - arrival * LOST * (length == room) for length in queues]
        events = [[(arrival, joined[action]), *zip(rates, served, strict=True)] for action in range(2)]
        table.append(
            [
                [(chance, first * side + second, rewards[action], False) for chance, (first, second) in events[action]]
                for action in range(2)
            ]
        )
    return sp.TabularModel.from_outcomes(table, discount=0.95)


def race_track() -> sp.TabularModel:
    """A race track (Barto, Bradtke and Singh, 1995), with a bound on the speed. State 0 stands on the starting line.

    An action changes the velocity by −1, 0 or 1 in each direction. A step costs 1. Whoever leaves the track is put back
    on the starting line; whoever meets the finish is done.
    """
    marks = {(r, c): mark for r, row in enumerate(TRACK) for c, mark in enumerate(row) if mark != "#"}
    starts = [(r, c, 0, 0) for (r, c), mark in marks.items() if mark == "S"]
    done = (-1, -1, 0, 0)
    numbers = {state: number for number, state in enumerate([*starts, done])}

    def move(r: int, c: int, down: int, right: int) -> list[tuple[int, int, int, int]]:
        steps = max(abs(down), abs(right))
        for step in range(1, steps + 1):
            mark = marks.get((r + round(down * step / steps), c + round(right * step / steps)))
            if mark is None or mark == "G":
                return starts if mark is None else [done]
        return [(r + down, c + right, down, right)]

    def outcomes(state: tuple[int, int, int, int], action: int) -> list[tuple[float, int, float, bool]]:
        r, c, *velocity = state
        result = []
        for chance, change in ((1.0 - FAILURE, (action // 3 - 1, action % 3 - 1)), (FAILURE, (0, 0))):
            down, right = (max(-FASTEST, min(FASTEST, v + dv)) for v, dv in zip(velocity, change, strict=True))
            found = move(r, c, down, right)
            result += [(chance / len(found), numbers.setdefault(to, len(numbers)), -1.0, False) for to in found]
        return result

    table: list[list[list[tuple[float, int, float, bool]]]] = []
    while len(table) < len(numbers):
        state = list(numbers)[len(table)]
        table.append([[(1.0, numbers[done], 0.0, False)] if state == done else outcomes(state, a) for a in range(9)])
    return sp.TabularModel.from_outcomes(table, discount=0.95, terminal=np.arange(len(table)) == numbers[done])


BUILT: dict[str, tuple[Callable[[], sp.TabularModel], int]] = {
    "river swim": (sp.models.river_swim, 0),
    "sailing": (sp.models.sailing, 0),
    "two queues": (two_queues, 0),
    "race track": (race_track, 0),
    "SysAdmin": (lambda: sysadmin(6), 63),  # all machines are running
}
"""Problems, each with the state in which it starts."""
