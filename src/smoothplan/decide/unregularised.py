"""Plans for the unregularised optimal value by smooth planners, and the default backup, planner and limit on calls.

The bias of a smooth backup is bounded, and the interval accounts for it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import amount
from smoothplan.chains.cruiser import ReferenceCruiser
from smoothplan.models.model import GenerativeModel, effective_horizon, horizon_of, required_model
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
        planner: from the backup to a planner. By default `choose_planner` makes one, which proves a lower bound only,
            and a limit on calls if no limit is given.
        cost: costs [K, K] of an optimal-transport backup; by default the backup is `LogSumExp`.
        max_calls: as for `plan`.
        max_seconds: as for `plan`.
        **options: of `plan`: seed, workers, progress, engine.

    Returns:
        A plan whose `value` and `interval` are unregularised. `regularised_value` and `regularised_interval` are those
        of the smooth backup, as are the action values. `chosen` has the reasons for choices that were made.

    >>> from smoothplan import DebiasedCruiser, models
    >>> model = models.garnet(states=20, actions=2, discount=0.1, seed=1)
    >>> found = plan_unregularised(model, 0, bias=0.2, planner=lambda F: DebiasedCruiser(F, epsilon=0.1))
    >>> found.interval[1] - found.interval[0] <= 2 * 0.1 + 0.2
    True
    """
    required_model(model)
    backup = smooth_backup(model, arguments.positive("bias", bias), cost)
    reasons = {"backup": f"{_spec(backup)}, for a bias of at most {bias:g}"}
    if planner is None:
        made, max_calls, chosen = choose_planner(model, backup, max_calls, max_seconds)
        reasons |= chosen
    else:
        made = planner(backup)
    if made.backup is not backup:
        raise ValueError(f"planner must plan with the backup that it is given, {backup!r}, got {made!r}")
    if getattr(made, "tail", "honest") == "zero":
        raise ValueError(f"planner must plan for the discounted value, got tail='zero' in {made!r}: use tail='honest'")
    result = plan(made, model, state, max_calls=max_calls, max_seconds=max_seconds, **options)
    low, high = result.interval
    if result.status != "terminal":
        (less, more), (least, most) = curvature.gap_of_values(model, backup), curvature.value_interval(model, HardMax())
        low, high = outward(np.array([max(low - more, least), min(high - less, most)])).tolist()
    return replace(
        result,
        value=min(max(result.value, low), high),
        interval=(low, high),
        regularised_value=result.value,
        regularised_interval=result.interval,
        chosen=reasons,
    )


def smooth_backup(model: GenerativeModel, bias: float | None = None, cost: Any = None) -> Backup:
    """A backup whose optimal values are within a bias of the unregularised ones: by default the smoothest `LogSumExp`.

    Its τ and λ satisfy τ(max|C| + λ log K) = (1−γ)·bias (Proposition 6.16). Half goes to costs, if there are any.

    Args:
        model: the simulator.
        bias: the tolerated difference of values; by default a thousandth of the width of their interval.
        cost: costs [K, K] for an optimal-transport backup; by default the backup is `LogSumExp`.
    """
    bias = 1e-3 * width(model) if bias is None else bias
    actions = max(model.actions, 2)  # one action has no regularisation, at any temperature
    if cost is None:
        temperature, _ = curvature.smoothing_for_bias(bias, model.discount, actions, horizon=horizon_of(model))
        return LogSumExp(temperature, model.actions)
    costs = np.asarray(cost, dtype=np.float64)
    largest = float(np.abs(costs).max(initial=0.0))
    tau, lam = curvature.smoothing_for_bias(bias, model.discount, actions, largest, horizon_of(model))
    return OptimalTransport(cost=costs, tau=tau, lam=lam)


def _spec(backup: Backup) -> str:
    """A backup as on the command line, without its costs."""
    if isinstance(backup, OptimalTransport):
        return f"ot:tau={backup.tau:.3g},lam={backup.lam:.3g}"
    return f"lse:temperature={backup.temperature:.3g}"


def choose_planner(
    model: GenerativeModel, backup: Backup | None = None, max_calls: int | None = None, max_seconds: float | None = None
) -> tuple[Planner, int | None, dict[str, str]]:
    """A planner for a long horizon that ends in seconds: chains of order 1 around a reference from the simulator.

    A limit on calls that is chosen does not depend on the clock, so the same seed gives the same result.

    Args:
        model: a simulator with an initial state, see `references.default_reference`.
        backup: F, smooth; `smooth_backup` by default.
        max_calls, max_seconds: limits; if neither is given, a limit on calls is chosen.

    Returns:
        The planner, the limit on calls, and the reasons for the backup, the planner and the limit, as far as they were
        not given.
    """
    reasons = {}
    if backup is None:
        backup = smooth_backup(model)
        added = curvature.gap_of_values(model, backup)[1]
        share = f"{added / width(model):.1%} of the range of all values"
        reasons["backup"] = f"{_spec(backup)}, which adds at most {added:.3g} to a value, {share}"
    planner = ReferenceCruiser(backup, order=1, epsilon=1e-4 * width(model))
    reasons["planner"] = (
        f"reference-cruiser:order=1,epsilon={planner.epsilon:.3g}, whose chains do not branch, for a horizon of about "
        f"{effective_horizon(model):.3g} steps"
    )
    if max_calls is None and max_seconds is None:  # both defaults take seconds, if a simulator in Python is quick
        max_calls, kind = 200_000, "a simulator in Python"
        if isinstance(model, TabularModel | JitModel):
            max_calls, kind = 2_000_000, "a table or a compiled simulator"
        reasons["limit"] = f"{amount(max_calls)} simulator calls, for {kind}; max_calls=N or max_seconds=T changes it"
    return planner, max_calls, reasons


def width(model: GenerativeModel) -> float:
    """The width of an interval that contains every unregularised value; 1 if that is 0."""
    curvature.require_rewards(model, "plans")
    low, high = curvature.value_interval(model, HardMax())
    return (high - low) or 1.0


def is_long(model: GenerativeModel) -> bool:
    """Whether the horizon is too long for recursion, which would refuse the model even at an accuracy of 0.1."""
    # 30 levels, whose price takes long to compute
    if model.discount >= 0.95 and (horizon_of(model) or np.inf) >= 20 and width(model) >= 1.0:
        return True
    try:
        return DebiasedCruiser(LogSumExp(1.0, model.actions), 0.1).schedule(model).calls > REFUSED_CALLS
    except ValueError:  # values are so large that this accuracy is out of reach
        return True
