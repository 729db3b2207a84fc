"""Planning for the ordinary maximum with smooth planners: the bias of regularisation is bounded, and booked."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import ArrayLike

from smoothplan import arguments, curvature, figures, summaries
from smoothplan.backups import Backup, HardMax
from smoothplan.defaults import Choice, choose, smooth_backup
from smoothplan.models.base import GenerativeModel, required_model
from smoothplan.plan import PlanResult, plan
from smoothplan.planners.gape import OTGapE
from smoothplan.running.run import Identification, Planner


@dataclass(frozen=True, eq=False, repr=False)
class UnregularisedResult:
    """What a plan with a smooth backup says of the ordinary optimal value, max over policies of the expected return."""

    value: float  # the regularised value, brought into the interval
    interval: tuple[float, float]  # contains the ordinary optimal value with probability at least 1 − δ, if certified
    certified: bool  # False where the planner's interval is an estimate: then so is this one
    gap: tuple[float, float]  # contains the regularised value less the ordinary one, for certain
    bias: float  # what was tolerated
    backup: Backup
    planner: Planner
    regularised: PlanResult
    choice: Choice | None = None  # the reasons for the planner, if none was given

    @property
    def action(self) -> int | None:
        """The best action as far as the run knows; none at a terminal state."""
        return self.regularised.action

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know, such as that no reference could be made and the policy is a random one."""
        found: tuple[str, ...] = getattr(self.regularised.details, "warnings", ())
        return found

    def __repr__(self) -> str:
        low, high = self.interval
        return f"UnregularisedResult(value {self.value:.6g} in [{low:.6g}, {high:.6g}], by {self.regularised!r})"

    def summary(self) -> str:
        """What was found, in lines for people."""
        return summaries.unregularised_summary(self)

    def _repr_html_(self) -> str:
        return figures.unregularised_html(self)

    def figure(self) -> Any:
        """A Plotly figure of the ordinary and the regularised value, and of the action values."""
        return figures.unregularised_figure(self)

    def to_json(self) -> str:
        """One JSON object."""
        fields = {"value": self.value, "interval": self.interval, "gap": self.gap, "bias": self.bias}
        fields |= {"certified": self.certified, "action": self.action, "backup": repr(self.backup)}
        fields["warnings"] = list(self.warnings)
        return json.dumps(fields | {"regularised": json.loads(self.regularised.to_json())})


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
) -> UnregularisedResult:
    """Plans for the ordinary optimal value with a smooth planner.

    The backup moves no value by more than `bias`, see `defaults.smooth_backup`. What it may move is known from both
    sides, [low, high]: if the regularised value is in [a, b], the ordinary one is in [a − high, b − low].

    Args:
        model: the simulator.
        state: where to plan; the model's initial state by default.
        bias: the difference of values that is tolerated. The interval is wider by as much, at most; where costs have
            either sign, by half as much again.
        planner: from the backup to a planner. By default `defaults.choose` has one, which proves a lower bound only,
            and a limit on calls if none is given.
        cost: costs [K, K] of an optimal-transport backup; without them it is `LogSumExp`.
        max_calls: as for `plan`.
        max_seconds: as for `plan`.
        **options: of `plan`: seed, workers, progress, engine.

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
    made: Planner
    choice = None
    if planner is None:
        choice = choose(model, backup)
        made = choice.planner
        if max_calls is None and max_seconds is None:
            max_calls = choice.max_calls
        else:
            reasons = {name: reason for name, reason in choice.reasons.items() if name != "limit"}
            choice = replace(choice, reasons=reasons)
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
    gap, interval = curvature.gap_of_values(model, backup), result.interval
    if result.status != "terminal":
        least, most = curvature.value_interval(model, HardMax())
        interval = max(interval[0] - gap[1], least), min(interval[1] - gap[0], most)
    value = min(max(result.value, interval[0]), interval[1])
    certified = not isinstance(result.details, Identification) or result.details.certified
    return UnregularisedResult(value, interval, certified, gap, bias, backup, made, result, choice)
