"""The study of models for model checkers: tables of choices, verdicts, and what Storm says where it is installed."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from studies import prism
from studies.base import Row
from studies.recurrent import redeclared
from studies.tests.studied import changed, small_run, verdict

STORM = pytest.mark.skipif(find_spec("stormpy") is None, reason="stormpy is not installed")
TINY = replace(prism.QUICK, models=("maze", "consensus"), seeds=1, max_calls=2_000)

CHOICES = [
    [[(0.5, 1), (0.5, 2)], [(1.0, 3)]],
    [[(0.9, 1), (0.1, 2)]],
    [[(1.0, 2)]],
    [[(0.25, 2), (0.75, 3)]],
]
"""Two ways from state 0 to the goal, state 2; the others have one choice each."""


def test_a_table_is_discounted_reachability() -> None:
    model = prism.table(CHOICES, {2}, start=0)
    assert (model.states, model.actions, model.terminal.tolist()) == (4, 2, [False, False, True, False])
    np.testing.assert_array_equal(model.probabilities[1, 0], model.probabilities[1, 1])
    half = sp.exact.solve(redeclared(model, discount=0.5), sp.HardMax())
    # The value x of a loop that is left with probability p: x = p + γ(1 − p)x.
    loops = [p / (1.0 - 0.5 * (1.0 - p)) for p in (0.1, 0.25)]
    np.testing.assert_allclose(half.q[0], [0.5 + 0.25 * loops[0], 0.5 * loops[1]], rtol=1e-7)
    np.testing.assert_allclose(prism.limit(model)[[0, 1, 3]], 1.0, atol=prism.TOLERANCE)


@STORM
def test_it_runs_to_the_end(tmp_path: Path) -> None:
    rows, findings = small_run(prism.STUDY, TINY, tmp_path)
    assert [row.result["states"] for row in rows if row.settings["family"] == "check"] == [15, 272]
    assert all(claim.holds for claim in findings.evidence.claims)
    assert len(findings.evidence.tables[0].rows) == len(rows) - 2


def planted(**change: Any) -> list[Row]:
    """Rows of runs and checks that are right, but for what is changed."""
    right = {"apart": 0.0, "states": 15, "calls": 100, "gap": 0.1, "status": "converged"}
    right |= {"missed": False, "regret": 0.0}
    rows = [Row(cell.settings, cell.seed, right, 0.0) for cell in prism.cells(TINY)]
    return changed(rows, lambda settings, result: change, model="maze")


@pytest.mark.parametrize(
    ("change", "quantity"),
    [({"apart": 0.01}, prism.APART), ({"missed": True}, prism.MISSED), ({"regret": 0.2}, prism.WRONG)],
)
def test_claims_hold_or_fail_as_they_should(change: dict[str, Any], quantity: str) -> None:
    assert verdict(prism.evidence(TINY, planted()), quantity)
    evidence = prism.evidence(TINY, planted(**change))
    assert [claim.quantity for claim in evidence.claims if not claim.holds] == [quantity]
