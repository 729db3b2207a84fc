"""Confidence: the means, probabilities and expectations that are compatible with what was seen.

`means` has the confidence sequence of a mean and Bernstein's inequality. `kl`, `betting` and `thresholds` are scalar
kernels for compiled code, which check nothing.
"""

from smoothplan.confidence.means import ConfidenceSequence, bernstein_count, bernstein_radius

__all__ = ["ConfidenceSequence", "bernstein_count", "bernstein_radius"]
