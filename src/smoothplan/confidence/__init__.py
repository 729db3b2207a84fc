"""Intervals of means, probabilities and expectations that hold at all times at once."""

from smoothplan.confidence.means import ConfidenceSequence, bernstein_count, bernstein_radius

__all__ = ["ConfidenceSequence", "bernstein_count", "bernstein_radius"]
