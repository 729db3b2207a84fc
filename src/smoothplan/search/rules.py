"""The rules of a search on a model, from what the model declares."""

import math

import numpy as np

from smoothplan import arguments, curvature
from smoothplan.arguments import Floats, frozen
from smoothplan.backups import Backup, HardMax, is_mixture
from smoothplan.engines.kernels import Softmaxes
from smoothplan.models.base import GenerativeModel, rewards_are_known
from smoothplan.search.graph import BY_OUTCOME, FIXED, UNLIMITED, VARYING, Rules

MOST_STAGES = 100_000
"""The largest horizon of a search that tells stages apart: every state has bounds at each stage."""

MOST_SUCCESSORS = 10**9
"""The largest bound on the successors of one state and action."""


def rules_of(
    model: GenerativeModel,
    backup: Backup,
    delta: float,
    successors: int | None = None,
    horizon: int | None = None,
    tail: str = "honest",
    rewards: str = "declared",
) -> Rules:
    """The rules of a focused search with valid thresholds, pooled counts and soft walks; see `OTGapE`.

    Args:
        model: the simulator.
        backup: F.
        delta: the probability that any interval fails.
        successors: a bound on the different next states of one (s, a); the model's own by default, if it has one.
        horizon: stages; None for the discounted value.
        tail: what follows the last stage, "honest" or "zero".
        rewards: "declared", or "bounded" to use nothing but their range.
    """
    successors = model.max_successors if successors is None else successors
    kind = VARYING
    if rewards == "declared" and rewards_are_known(model):
        kind = FIXED
    elif rewards == "declared" and model.reward_kind in ("bernoulli", "transition"):
        kind = BY_OUTCOME
    bound = UNLIMITED
    if successors is not None:
        bound = arguments.whole("max_successors", successors, most=MOST_SUCCESSORS)
        bound *= 2 if kind == BY_OUTCOME and model.reward_kind == "bernoulli" else 1
    bounds = spans(model, backup, horizon, tail)
    low, high = model.reward_range
    # A frame of one column, and walks by the policy, for a backup that is called.
    form, temperature = (backup, backup.temperature) if is_mixture(backup) else (HardMax(), 1.0)
    shifts = frozen(form.shifts(model.actions).T)
    return Rules(
        actions=model.actions,
        bound=bound,
        discount=model.discount,
        stages=horizon or 1,
        endless=horizon is None,
        stage_wise=False,
        span_low=frozen(bounds[:, 0].copy()),
        span_high=frozen(bounds[:, 1].copy()),
        reward_low=low,
        reward_width=high - low,
        kind=kind if high > low else FIXED,
        one_successor=model.reward_kind == "transition",
        log_odds=-math.log(delta),
        # The sets of transitions hold for the values that are looked for: from below and from above, at every stage.
        # Two outcomes have one probability, and its interval holds for all values at once.
        union=math.log(2.0 * (horizon or 1)),
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
