"""The rules of a search on a model, from what the model declares."""

import math

import numpy as np

from smoothplan import curvature
from smoothplan.arguments import Floats, frozen
from smoothplan.backups import Backup
from smoothplan.engines.kernels import Softmaxes
from smoothplan.models.base import GenerativeModel
from smoothplan.search.graph import Rules


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
    bounds = spans(model, backup, horizon, tail)
    low, high = model.reward_range
    shifts = frozen(backup.shifts(model.actions).T)
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
        soft=Softmaxes(backup.temperature, shifts, frozen(np.ones((1, len(shifts))))),
        soft_share=1.0,
        focused=True,
    )


def spans(model: GenerativeModel, backup: Backup, horizon: int | None, tail: str) -> Floats:
    """Bounds of any value at each stage, [H + 1, 2]: the last row is for what follows the last stage."""
    rows = [np.array(curvature.value_interval(model, backup) if tail == "honest" else (0.0, 0.0))]
    if horizon is None:
        return np.array(2 * rows)
    for _ in range(horizon):
        earlier = np.array(model.reward_range) + np.array(backup.at_zero_range(model.actions))
        earlier = earlier + model.discount * rows[0]
        if model.terminates:
            earlier = np.array([min(earlier[0], 0.0), max(earlier[1], 0.0)])
        rows.insert(0, earlier)
    return np.array(rows)
