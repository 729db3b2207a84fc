"""Confidence: which means, probabilities and expectations are compatible with what was seen.

What is imported from here checks its arguments and takes arrays. Compiled code imports the scalar kernels of the same
names from `smoothplan.confidence.kl`, `betting` and `thresholds`.
"""

from smoothplan.confidence.arrays import (
    ball_maximum,
    ball_minimum,
    bernoulli_divergence,
    bernoulli_lower,
    bernoulli_upper,
    categorical_threshold,
    mean_interval,
    share,
    wager_regret,
)
from smoothplan.confidence.means import ConfidenceSequence, bernstein_count, bernstein_radius

__all__ = [
    "ConfidenceSequence",
    "ball_maximum",
    "ball_minimum",
    "bernoulli_divergence",
    "bernoulli_lower",
    "bernoulli_upper",
    "bernstein_count",
    "bernstein_radius",
    "categorical_threshold",
    "mean_interval",
    "share",
    "wager_regret",
]
