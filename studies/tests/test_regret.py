"""The study of regret: its table of SysAdmin, its roots, its claims."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

import smoothplan as sp
from smoothplan.decide.unregularised import width
from studies import regret
from studies.base import Cell, Row
from studies.tests.studied import small_run

MACHINES = 4
TINY = regret.Settings(sizes=(("garnet", 20), ("frozen_lake", 4)), pairs=2, budgets=(100, 1_000), slow_budget=1_000)

FALSE_ALARM = 1e-6


def test_it_runs_to_the_end(tmp_path: Path) -> None:
    findings = small_run(regret.STUDY, TINY, tmp_path)[1]
    assert findings.rows == 2 * 2 * 2 * len(regret.PLANNERS)
    assert [len(figure.series) for figure in findings.evidence.figures] == [9, 9]


def test_sysadmin_is_the_one_of_the_zoo() -> None:
    """A χ² test for each of some pairs; together they raise a false alarm with probability 1e-6."""
    table, simulator = regret.sysadmin(MACHINES), sp.models.sysadmin(MACHINES)
    for name in ("actions", "discount", "reward_range"):
        assert getattr(table, name) == getattr(simulator, name)
    rng, samples, pairs = np.random.default_rng(0), 10_000, 8
    for state, action in zip(
        rng.integers(2**MACHINES, size=pairs), rng.integers(MACHINES + 1, size=pairs), strict=True
    ):
        bits = (state >> np.arange(MACHINES) & 1).astype(np.int8)
        drawn = sp.Oracle(simulator, 0).sample(np.tile(bits, (samples, 1)), np.full(samples, action))
        assert drawn.rewards == pytest.approx(table.expected_rewards[state, action])
        counts = np.bincount(drawn.next_states @ (1 << np.arange(MACHINES)), minlength=2**MACHINES)
        expected = samples * table.probabilities[state, action]
        assert not counts[expected == 0.0].any()
        # Rare outcomes are put together, for χ² needs a few of each.
        kept = expected >= 10.0
        found, wanted = (np.append(each[kept], each[~kept].sum()) for each in (counts, expected))
        found, wanted = found[wanted > 0.0], wanted[wanted > 0.0]
        assert scipy.stats.chisquare(found, wanted).pvalue > FALSE_ALARM / pairs


@pytest.mark.parametrize(("name", "size"), [("garnet", 30), ("sailing", 3), ("frozen_lake", 4), ("sysadmin", 3)])
def test_roots_leave_something_to_choose_and_hide_the_order_of_actions(name: str, size: int) -> None:
    orders = set()
    for seed in range(4):
        model, root, q = regret.task(name, size, seed)
        assert not model.terminal[root]
        solved = sp.exact.solve(model, sp.HardMax()).q
        assert solved[root] == pytest.approx(q, abs=1e-6)
        loss = (solved.max(axis=1) - solved.mean(axis=1))[~model.terminal]
        assert q.max() - q.mean() >= np.median(loss) - 1e-6
        orders.add(tuple(np.argsort(q)))
    assert len(orders) > 1


def test_who_cannot_start_chooses_at_random() -> None:
    cell = Cell({"model": "sailing", "size": 3, "planner": "SparseSampling", "budget": 10}, 0)
    result = regret.measure(cell)
    assert not result["informed"]
    assert result["regret"] == result["random"] > 0.0
    assert result["calls"] == 0


def test_recursion_gets_the_finest_accuracy_that_it_can_pay_for() -> None:
    accuracy = regret.affordable("SparseSampling", "garnet", 20, 1_000)
    assert accuracy is not None
    model = regret.build("garnet", 20, 0)
    calls = [
        sp.forecast(sp.SparseSampling(sp.HardMax(), share * accuracy * width(model)), model).calls
        for share in (1.0, 0.9)
    ]
    assert 0 < calls[0] <= 1_000 < calls[1]


def planted(share: dict[str, float], bound: float) -> list[bool]:
    """Verdicts where planners are left with such a share of a random choice's regret, 1, at their largest budget."""
    settings = replace(regret.QUICK, pairs=3)
    rows = []
    for cell in regret.cells(settings):
        planner = cell.settings["planner"]
        found = {"random": 1.0, "regret": share.get(planner, 0.0), "informed": True}
        rows.append(Row(cell.settings, cell.seed, found | {"bound": bound if planner == "MDPGapE" else None}, 1.0))
    return [claim.holds for claim in regret.evidence(settings, rows).claims]


def test_claims_hold_or_fail_as_they_should() -> None:
    assert planted({"MDPGapE": 0.01, "OTGapE": 0.01, "UCT": 0.01}, bound=0.5) == [True] * 5
    assert planted({"MDPGapE": 1.0}, bound=2.0) == [False, True, True, False, True]
    assert planted({"OTGapE": 0.8}, bound=0.5) == [True, False, True, True, True]
    assert planted({"UCT": 0.5}, bound=0.5) == [True, True, False, True, True]
    assert planted({"MDPGapE": 0.02}, bound=0.01) == [True, True, True, True, False]
