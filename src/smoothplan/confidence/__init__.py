"""Confidence: which means, probabilities and expectations are compatible with what was seen."""

from smoothplan.confidence.betting import mean_interval
from smoothplan.confidence.kl import ball_maximum, ball_minimum, bernoulli_divergence, bernoulli_lower, bernoulli_upper
from smoothplan.confidence.means import ConfidenceSequence, bernstein_count, bernstein_radius
from smoothplan.confidence.thresholds import categorical_threshold, share, wager_regret

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
