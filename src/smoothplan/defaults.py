"""Defaults: a backup whose bias hardly matters, a planner that ends in seconds, and the reasons for both."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from smoothplan import curvature
from smoothplan.arguments import Floats, amount
from smoothplan.backups import Backup, HardMax, LogSumExp, OptimalTransport
from smoothplan.models.base import GenerativeModel
from smoothplan.models.jit import JitModel
from smoothplan.models.tabular import TabularModel
from smoothplan.planners import DebiasedCruiser, ReferenceCruiser
from smoothplan.running.run import REFUSED_CALLS

BIAS = 1e-3
"""The bias of regularisation that is tolerated, as a fraction of the width of the value interval."""

COMPILED_CALLS, PYTHON_CALLS = 2_000_000, 200_000
"""Simulator calls where no limit is given: seconds for tables and compiled simulators, and for quick ones in Python."""


def smooth_backup(model: GenerativeModel, bias: float, cost: Any = None) -> Backup:
    """A backup whose optimal values are within a bias of the ordinary ones: without costs, the smoothest `LogSumExp`.

    Args:
        model: whose values are meant.
        bias: the difference that is tolerated.
        cost: costs [K, K] for an optimal-transport backup; by default there are none, and the backup is `LogSumExp`.
    """
    actions = max(model.actions, 2)  # one action has no regularisation, whatever the temperature
    if cost is None:
        temperature = curvature.smoothing_for_bias(bias, model.discount, actions).tau
        return LogSumExp(temperature, model.actions)
    costs: Floats = np.asarray(cost, dtype=np.float64)
    largest = float(np.abs(costs).max(initial=0.0))
    tau, lam = curvature.smoothing_for_bias(bias, model.discount, actions, largest)
    return OptimalTransport(cost=costs, tau=tau, lam=lam)


def width(model: GenerativeModel) -> float:
    """The width of an interval that contains every unregularised value; 1 where there is only one value."""
    low, high = curvature.value_interval(model, HardMax())
    return (high - low) or 1.0


def entropy_backup(model: GenerativeModel) -> Backup:
    """`LogSumExp` with a temperature that biases values by at most a thousandth of the width of their interval."""
    return smooth_backup(model, BIAS * width(model))


def is_long(model: GenerativeModel) -> bool:
    """Whether the horizon is too long for recursion, which would refuse the model even at a coarse accuracy."""
    epsilon, temperature = 0.1, 1.0
    # Values that range over ten times the accuracy take 30 levels here: a price beyond all limits, and long to compute.
    if model.discount >= 0.95 and width(model) >= 10.0 * epsilon:
        return True
    planner = DebiasedCruiser(LogSumExp(temperature, model.actions), epsilon)
    try:
        return planner.schedule(model).calls > REFUSED_CALLS
    except ValueError:  # values are so large that this accuracy is out of reach
        return True


@dataclass(frozen=True, eq=False)
class Choice:
    """A planner for a model, and a limit on its simulator calls, with the reasons."""

    planner: ReferenceCruiser
    max_calls: int
    reasons: dict[str, str]  # of the backup, the planner and the limit


def choose(model: GenerativeModel, backup: Backup | None = None) -> Choice:
    """A planner for a long horizon that ends in seconds: chains of order 1 around a reference from the simulator.

    Args:
        model: a simulator with an initial state, see `references.default_reference`.
        backup: F, smooth; `entropy_backup` by default.
    """
    reasons, span = {}, width(model)
    if backup is None:
        backup = entropy_backup(model)
        added = curvature.gap_of_values(model, backup)[1]
        reasons["backup"] = (
            f"lse:temperature={backup.temperature:.3g}, which adds at most {added:.3g} to a value, {BIAS:.1%} of the "
            "range of all values"
        )
    planner = ReferenceCruiser(backup, order=1, epsilon=1e-4 * span)
    reasons["planner"] = (
        f"reference-cruiser:order=1,epsilon={planner.epsilon:.3g}, whose chains do not branch, for a horizon of about "
        f"{1.0 / (1.0 - model.discount):.3g} steps"
    )
    calls, reasons["limit"] = _affordable(model)
    return Choice(planner, calls, reasons)


def _affordable(model: GenerativeModel) -> tuple[int, str]:
    """A limit on simulator calls, and why. No clock decides it: the same seed gives the same result."""
    compiled = isinstance(model, TabularModel | JitModel)
    calls = COMPILED_CALLS if compiled else PYTHON_CALLS
    kind = "a table or a compiled simulator" if compiled else "a simulator in Python"
    return calls, f"{amount(calls)} simulator calls, for {kind}; max_calls=N or max_seconds=T changes it"
