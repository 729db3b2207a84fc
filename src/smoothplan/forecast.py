"""Forecasts: what a planner will cost and why, from its schedule alone."""

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from smoothplan import figures
from smoothplan.arguments import amount
from smoothplan.models.base import GenerativeModel, required_model
from smoothplan.running.run import LONG_HORIZONS, REFUSED_CALLS, Planner, Scheduled, required_planner, within
from smoothplan.schedules.schedule import Schedule

LEGEND = """\
N: returns per action in the reference Q̂; debias: terms of its bias that are cancelled; n: pairs of returns in the
quadratic term; "from": the level that the returns of the reference, the return X of the drawn action, and the pairs go
through; M: rewards that are averaged in a return through the level."""


@dataclass(frozen=True, eq=False, repr=False)
class Forecast:
    """What a planner will cost at most, and why. No simulator call is made for it."""

    planner: Scheduled
    model: GenerativeModel

    def __repr__(self) -> str:
        try:
            return f"Forecast({self.summary()})"
        except ValueError as error:  # ε is out of reach
            return f"Forecast({error})"

    def _repr_html_(self) -> str:
        return figures.forecast_html(self)

    def figure(self) -> Any:
        """A Plotly figure of the price against ε."""
        return figures.forecast_figure(self)

    @cached_property
    def schedule(self) -> Schedule:
        """The table of levels."""
        return self.planner.schedule(self.model)

    @property
    def calls(self) -> int:
        """The most simulator calls that the run may make; it stops earlier where its interval is within ε before."""
        return self.schedule.calls

    @cached_property
    def exponent(self) -> float:
        """How the price grows: log₂ of the forecast at ε/2 over the forecast at ε.

        Where ε is so small that there is no schedule for ε/2, from 2ε to ε.
        """
        try:
            dear, cheap = self._calls_at(self.schedule.epsilon / 2.0), self.calls
        except ValueError:
            dear, cheap = self.calls, self._calls_at(self.schedule.epsilon * 2.0)
        return math.log2(dear) - math.log2(max(cheap, 1)) if dear > 0 else 0.0

    @cached_property
    def prices(self) -> tuple[tuple[float, int], ...]:
        """(ε, calls) around the present ε, the largest ε first: what a figure shows.

        Up to six larger ε, until a price is one that `plan` would start; up to three smaller ones, while it is. Prices
        that no float can hold are left out.
        """
        epsilon = self.schedule.epsilon
        larger, smaller = [(epsilon, self.calls)], [(epsilon, self.calls)]
        try:
            while len(larger) <= 2 or (len(larger) <= 6 and larger[-1][1] > REFUSED_CALLS):
                larger.append((larger[-1][0] * 2.0, self._calls_at(larger[-1][0] * 2.0)))
            while len(smaller) <= 3 and smaller[-1][1] <= REFUSED_CALLS:
                smaller.append((smaller[-1][0] / 2.0, self._calls_at(smaller[-1][0] / 2.0)))
        except ValueError:  # there is no schedule for that ε
            pass
        return tuple(point for point in (*larger[:0:-1], *smaller) if point[1] < 10**300)

    def _calls_at(self, epsilon: float) -> int:
        return self.planner.with_epsilon(epsilon).schedule(self.model).calls

    def table(self) -> str:
        """The levels as a table for people: from the root down, each with its children and what is proved of it.

        The root's row is about one sample around the shared reference.
        """
        schedule = self.schedule
        last, shown = len(schedule.levels) - 1, 30  # rows that fit on a screen
        lines = [
            f"{'level':>5}  {'kind':<8} {'N':>9} {'debias':>6} {'n':>3}  {'Q̂ from':>6} {'X from':>6} "
            f"{'pairs from':>10}  {'M':>5} {'bias':>9} {'deviation':>9}  {'calls':>9}"
        ]
        for row in range(last, max(last - shown, -1), -1):
            level = schedule.levels[row]
            proved = schedule.certificates[row] if row < last else schedule.sample
            calls = schedule.costs[row] if row < last else schedule.sample_calls or schedule.reference_calls
            children = [("" if c is None else str(c)) for c in (level.reference, level.linear, level.quadratic)]
            lines.append(
                f"{row if row < last else 'root':>5}  {level.kind:<8} {level.samples or '':>9} {level.debias or '':>6} "
                f"{level.pairs or '':>3}  "
                f"{children[0]:>6} {children[1]:>6} {children[2]:>10}  "
                f"{level.rewards if row < last else '':>5} "
                f"{float(proved.bias):>9.3g} {math.sqrt(proved.variance):>9.3g}  {amount(calls):>9}"
            )
        if last >= shown:
            lines.append(f"       … and {last + 1 - shown} more levels")
        lines.append(LEGEND)
        return "\n".join(lines)

    def to_json(self) -> str:
        """One JSON object: the price, how it comes about, and every level."""
        schedule = self.schedule
        levels = [
            asdict(level) | {"bias": float(proved.bias), "variance": float(proved.variance), "calls": calls}
            for level, proved, calls in zip(schedule.levels, schedule.certificates, schedule.costs, strict=True)
        ]
        names = ("calls", "reference_calls", "repeats", "sample_calls", "epsilon", "delta", "bias", "noise")
        fields = {name: getattr(schedule, name) for name in names}
        return json.dumps(fields | {"exponent": self.exponent, "levels": levels})

    def summary(self) -> str:
        """The price in words."""
        schedule = self.schedule
        parts = [f"at most {amount(self.calls)} simulator calls"]
        if schedule.repeats > 1:
            parts.append(
                f"{amount(schedule.reference_calls)} for one shared reference, then {schedule.repeats:,} samples of "
                f"{amount(schedule.sample_calls)} calls"
            )
        sure = f"with probability at least {1.0 - schedule.delta:g}"
        parts.append(f"error at most {schedule.bias:.3g} bias + {schedule.noise:.3g} noise {sure}")
        if not within(schedule.bias + schedule.noise, schedule.epsilon):
            parts.append(f"which does not confirm the epsilon of {schedule.epsilon:g} that the publication promises")
        if self.calls > 0:
            parts.append(f"halving epsilon costs 2^{self.exponent:.2f} times as much")
        if self.calls > REFUSED_CALLS:
            parts.append(f"hopeless: {LONG_HORIZONS}")
        return "; ".join(parts)


def forecast(planner: Planner, model: GenerativeModel) -> Forecast:
    """The largest price of a planner on a model, without a single simulator call.

    >>> import smoothplan as sp
    >>> model = sp.models.garnet(states=50, actions=2, branching=4, discount=0.2, seed=1)
    >>> sp.forecast(sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1, delta=0.1), model).calls < 10_000
    True

    Raises:
        TypeError: the planner has no schedule; it says why in its attribute `no_forecast`.
    """
    required_planner(planner)
    required_model(model)
    if not isinstance(planner, Scheduled):
        reason = getattr(planner, "no_forecast", "it has no schedule")
        raise TypeError(f"{type(planner).__name__} has no forecast: {reason}; limit it with max_calls")
    return Forecast(planner, model)
