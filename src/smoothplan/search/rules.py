"""The rules of a search on a model, from what the model declares."""

import math

import numpy as np

from smoothplan import arguments, curvature
from smoothplan.arguments import Floats, frozen
from smoothplan.backups import Backup, HardMax, is_mixture
from smoothplan.engines.kernels import Softmaxes
from smoothplan.models.base import GenerativeModel
from smoothplan.search.graph import Rules

MOST_STAGES = 100_000
"""The largest horizon of a search that tells stages apart: every state has bounds at each stage."""

MOST_SUCCESSORS = 100_000
"""The largest bound on the successors of one state and action."""


def rules_of(
    model: GenerativeModel,
    backup: Backup,
    delta: float,
    successors: int | None = None,
    horizon: int | None = None,
    tail: str = "honest",
) -> Rules:
    """The rules of a focused search with valid thresholds, pooled counts and soft walks; see `OTGapE`.

    Args:
        model: the simulator.
        backup: F.
        delta: the probability that any interval fails.
        successors: a bound on the different next states of one (s, a); the model's own by default.
        horizon: stages; None for the discounted value.
        tail: what follows the last stage, "honest" or "zero".
    """
    bound = model.max_successors if successors is None else successors
    if bound is None:
        raise ValueError(
            "successors must be given, for this model declares no max_successors: a bound on the different next "
            "states of one state and action"
        )
    # One pair may lead to B states, whose K actions have room for B successors each: B²·K places of 12 bytes. At most
    # 2²⁷ of them are allowed, one and a half gigabytes.
    most = min(MOST_SUCCESSORS, math.isqrt(2**27 // model.actions))
    arguments.whole("max_successors" if successors is None else "successors", bound, most=most)
    bounds = spans(model, backup, horizon, tail)
    low, high = model.reward_range
    # A frame of one column, and walks by the policy, for a backup that is called.
    form, temperature = (backup, backup.temperature) if is_mixture(backup) else (HardMax(), 1.0)
    shifts = frozen(form.shifts(model.actions).T)
    return Rules(
        actions=model.actions,
        bound=int(bound),
        discount=model.discount,
        stages=horizon or 1,
        endless=horizon is None,
        stage_wise=False,
        span_low=frozen(bounds[:, 0].copy()),
        span_high=frozen(bounds[:, 1].copy()),
        reward_low=low,
        reward_width=high - low,
        varying=high > low and model.reward_kind != "deterministic",
        log_odds=-math.log(delta),
        published=-1.0,
        soft=Softmaxes(temperature, shifts, frozen(np.ones((1, len(shifts))))),
        soft_share=1.0,
        focused=True,
    )


def spans(model: GenerativeModel, backup: Backup, horizon: int | None, tail: str) -> Floats:
    """Bounds of any value at each stage, [H + 1, 2]: the last row is for what follows the last stage."""
    low, high = curvature.value_interval(model, backup)
    if horizon is None:
        return np.array(2 * [(low, high)])
    at_zero = backup.at_zero_range(model.actions)
    rows = [(low, high) if tail == "honest" else (0.0, 0.0)]
    for _ in range(horizon):
        low, high = (
            reward + zero + model.discount * later
            for reward, zero, later in zip(model.reward_range, at_zero, rows[-1], strict=True)
        )
        rows.append((min(low, 0.0), max(high, 0.0)) if model.terminates else (low, high))
    return np.array(rows[::-1])
