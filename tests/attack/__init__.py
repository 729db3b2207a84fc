"""An adversary who looks for the largest ratio of a truth, calculated exactly, to the bound that the library proves.

    python -m tests.attack --minutes 30 --seed 0 --write

A ratio above 1 would refute a bound. `tests/statistics/test_attack.py` makes a quick search of every target; this
one takes as long as it is given, and writes the largest ratios into docs/proofs/ratios.md.
"""

from tests.attack import curvatures, intervals, levels, searching
from tests.attack.climbing import Target

TARGETS: dict[str, Target] = {
    target.name: target for part in (levels, curvatures, intervals, searching) for target in part.TARGETS
}
"""Every bound under attack, by name."""
