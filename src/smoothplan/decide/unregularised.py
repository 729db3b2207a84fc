"""Plans for the unregularised optimal value by smooth planners, and the default backup, planner and limit on calls.

The bias of a smooth backup is bounded, and the interval accounts for it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, amount
from smoothplan.bounds.gape import OTGapE
from smoothplan.chains.cruiser import ReferenceCruiser
from smoothplan.models.model import GenerativeModel, required_model
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import JitModel
from smoothplan.recursive.planners import DebiasedCruiser
from smoothplan.run.plan import PlanResult, outward, plan
from smoothplan.run.records import REFUSED_CALLS, Planner
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, LogSumExp, OptimalTransport


def plan_unregularised(
    model: GenerativeModel,
    state: Any = None,
    *,
    bias: float,
    planner: Callable[[Backup], Planner] | None = None,
    cost: ArrayLike | None = None,
    max_calls: int | None = None,
    max_seconds: float | None = None,
    **options: Any,
) -> PlanResult:
    """Plans for the unregularised optimal value, the maximum over policies of the expected return, by a smooth planner.

    The backup moves no value by more than `bias`, see `smooth_backup`. The difference between the two values is known
    to lie in an interval [low, high], the result's `bonus`: if the regularised value is in [a, b], the unregularised
    one is in [a − high, b − low].

    Args:
        model: the simulator.
        state: where to plan; the model's initial state by default.
        bias: the tolerated difference of values. It widens the interval by at most as much, and by half as much again
            if costs have either sign.
        planner: from the backup to a planner. By default `choose` makes one, which proves a lower bound only, and a
            limit on calls if no limit is given.
        cost: costs [K, K] of an optimal-transport backup; by default the backup is `LogSumExp`.
        max_calls: as for `plan`.
        max_seconds: as for `plan`.
        **options: of `plan`: seed, workers, progress, engine.

    Returns:
        A plan whose `value` and `interval` are unregularised. `regularised_value` and `regularised_interval` are those
        of the smooth backup, as are the action values. `chosen` has the reasons for the backup, and for the planner and
        the limit if they were not given.

    Raises:
        ValueError: the planner plans with another backup, or for another value than the discounted one.

    >>> from smoothplan import DebiasedCruiser, models
    >>> model = models.garnet(states=20, actions=2, discount=0.1, seed=1)
    >>> found = plan_unregularised(model, 0, bias=0.2, planner=lambda F: DebiasedCruiser(F, epsilon=0.1))
    >>> found.interval[1] - found.interval[0] <= 2 * 0.1 + 0.2
    True
    """
    required_model(model)
    backup = smooth_backup(model, arguments.positive("bias", bias), cost)
    chosen = {"backup": f"{_spec(backup)}, for a bias of at most {bias:g}"}
    made: Planner
    if planner is None:
        made, max_calls, reasons = choose(model, backup, max_calls, max_seconds)
        chosen |= reasons
    else:
        made = planner(backup)
    if made.backup is not backup:
        raise ValueError(f"planner must plan with the backup that it is given, {backup!r}, got {made!r}")
    if isinstance(made, OTGapE) and made.tail == "zero":
        raise ValueError(
            "planner must plan for the discounted value, got tail='zero', which is the value of the first "
            f"{made.horizon} steps: use tail='honest'"
        )
    result = plan(made, model, state, max_calls=max_calls, max_seconds=max_seconds, **options)
    interval = result.interval
    if result.status != "terminal":
        low, high = curvature.gap_of_values(model, backup)
        least, most = curvature.value_interval(model, HardMax())
        low, high = outward(np.array([max(interval[0] - high, least), min(interval[1] - low, most)])).tolist()
        interval = low, high
    return replace(
        result,
        value=min(max(result.value, interval[0]), interval[1]),
        interval=interval,
        regularised_value=result.value,
        regularised_interval=result.interval,
        chosen=chosen,
    )


def smooth_backup(model: GenerativeModel, bias: float, cost: Any = None) -> Backup:
    """A backup whose optimal values are within a bias of the unregularised ones: by default the smoothest `LogSumExp`.

    Args:
        model: the simulator.
        bias: the tolerated difference of values.
        cost: costs [K, K] for an optimal-transport backup; by default the backup is `LogSumExp`.
    """
    actions = max(model.actions, 2)  # one action has no regularisation, at any temperature
    if cost is None:
        temperature, _ = curvature.smoothing_for_bias(bias, model.discount, actions)
        return LogSumExp(temperature, model.actions)
    costs: Floats = np.asarray(cost, dtype=np.float64)
    largest = float(np.abs(costs).max(initial=0.0))
    tau, lam = curvature.smoothing_for_bias(bias, model.discount, actions, largest)
    return OptimalTransport(cost=costs, tau=tau, lam=lam)


def _spec(backup: Backup) -> str:
    """A backup as on the command line, without its costs."""
    if isinstance(backup, OptimalTransport):
        return f"ot:tau={backup.tau:.3g},lam={backup.lam:.3g}"
    return f"lse:temperature={backup.temperature:.3g}"


# Defaults


class Choice(NamedTuple):
    """A planner for a model, and a limit on its simulator calls."""

    planner: ReferenceCruiser
    max_calls: int | None
    reasons: dict[str, str]  # for the backup, the planner and the limit, as far as they were not given


def choose(
    model: GenerativeModel, backup: Backup | None = None, max_calls: int | None = None, max_seconds: float | None = None
) -> Choice:
    """A planner for a long horizon that ends in seconds: chains of order 1 around a reference from the simulator.

    A limit on calls that is chosen does not depend on the clock, so the same seed gives the same result.

    Args:
        model: a simulator with an initial state, see `references.default_reference`.
        backup: F, smooth; `entropy_backup` by default.
        max_calls, max_seconds: limits; if neither is given, a limit on calls is chosen.
    """
    reasons = {}
    if backup is None:
        backup = entropy_backup(model)
        added = curvature.gap_of_values(model, backup)[1]
        share = added / width(model)
        reasons["backup"] = (
            f"{_spec(backup)}, which adds at most {added:.3g} to a value, {share:.1%} of the range of all values"
        )
    planner = ReferenceCruiser(backup, order=1, epsilon=1e-4 * width(model))
    reasons["planner"] = (
        f"reference-cruiser:order=1,epsilon={planner.epsilon:.3g}, whose chains do not branch, for a horizon of about "
        f"{1.0 / (1.0 - model.discount):.3g} steps"
    )
    if max_calls is None and max_seconds is None:  # both defaults take seconds, if a simulator in Python is quick
        max_calls, kind = 200_000, "a simulator in Python"
        if isinstance(model, TabularModel | JitModel):
            max_calls, kind = 2_000_000, "a table or a compiled simulator"
        reasons["limit"] = f"{amount(max_calls)} simulator calls, for {kind}; max_calls=N or max_seconds=T changes it"
    return Choice(planner, max_calls, reasons)


def width(model: GenerativeModel) -> float:
    """The width of an interval that contains every unregularised value; 1 if that is 0."""
    low, high = curvature.value_interval(model, HardMax())
    return (high - low) or 1.0


def entropy_backup(model: GenerativeModel) -> Backup:
    """`LogSumExp` with a temperature that biases values by at most a thousandth of the width of their interval."""
    return smooth_backup(model, 1e-3 * width(model))


def is_long(model: GenerativeModel) -> bool:
    """Whether the horizon is too long for recursion, which would refuse the model even at a coarse accuracy."""
    epsilon = 0.1
    # Values that range over ten times the accuracy need 30 levels: their price exceeds all limits, and takes long to
    # compute.
    if model.discount >= 0.95 and width(model) >= 10.0 * epsilon:
        return True
    planner = DebiasedCruiser(LogSumExp(1.0, model.actions), epsilon)
    try:
        return planner.schedule(model).calls > REFUSED_CALLS
    except ValueError:  # values are so large that this accuracy is out of reach
        return True
