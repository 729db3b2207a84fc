"""Comparisons: rows are those of single runs, whatever is compared."""

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.theory.backups import HardMax

CRUISER = sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1)
TREE = sp.UCT(depth=3)


@pytest.fixture(scope="module")
def model() -> sp.TabularModel:
    return sp.models.garnet(states=20, actions=2, branching=2, discount=0.2, seed=1)


def timeless(comparison: sp.Comparison) -> list[dict[str, Any]]:
    return [{name: cell for name, cell in row.items() if name != "seconds"} for row in comparison.rows]


def first(model: Any, state: Any, calls: int, seed: int) -> Any:
    """A contestant that is a function."""
    return SimpleNamespace(action=0, calls=min(calls, 7), q=np.array([0.25, 0.5]), gap=np.inf)


def test_rows_are_single_runs_beside_the_truth(model: sp.TabularModel) -> None:
    comparison = sp.compare({"SmoothCruiser": CRUISER, "tree": TREE}, model, 3, calls=[200, 2_000], seeds=[4, 7])
    assert [(row["planner"], row["budget"], row["seed"]) for row in comparison.rows] == [
        (name, budget, seed) for name in ("SmoothCruiser", "tree") for budget in (200, 2_000) for seed in (4, 7)
    ]
    ordinary = sp.exact.solve(model, HardMax()).q[3]
    for row in comparison.rows:
        planner: Any = CRUISER if row["planner"] == "SmoothCruiser" else TREE
        result = sp.plan(planner, model, 3, max_calls=row["budget"], seed=row["seed"])
        assert (row["value"], row["action"], row["calls"]) == (result.value, result.action, result.calls)
        assert (row["low"], row["high"]) == result.interval
        assert row["calls"] <= row["budget"]
        solution = sp.exact.solve(model, planner.backup)
        assert row["error"] == result.value - solution.values[3]
        assert row["regret"] == solution.q[3].max() - solution.q[3][result.action]
        assert row["ordinary_regret"] == ordinary.max() - ordinary[result.action]
    assert {row["support"] for row in comparison.rows} == {"proved", "declared"}


def test_rows_do_not_depend_on_what_else_is_compared(model: sp.TabularModel) -> None:
    both = sp.compare({"a": CRUISER, "b": TREE}, model, 0, calls=[300, 600], seeds=2)
    other = sp.compare({"b": TREE, "a": CRUISER}, model, 0, calls=[600, 300], seeds=[1, 0])

    def order(row: dict[str, Any]) -> Any:
        return row["planner"], row["budget"], row["seed"]

    assert sorted(timeless(both), key=order) == sorted(timeless(other), key=order)
    assert timeless(sp.compare({"b": TREE}, model, 0, calls=300, seeds=1)) == [
        row for row in timeless(both) if order(row) == ("b", 300, 0)
    ]


def test_a_function_may_take_part_and_a_planner_may_fail(model: sp.TabularModel) -> None:
    wrong = sp.SmoothCruiser(sp.LogSumExp(1.0, 5), epsilon=0.1)  # for another number of actions
    comparison = sp.compare([first, wrong, TREE, TREE], model, 0, calls=100, seeds=1)
    assert [row["planner"] for row in comparison.rows] == ["first", "SmoothCruiser", "UCT 1", "UCT 2"]
    function, failed, *_ = comparison.rows
    assert (function["planner"], function["action"], function["calls"], function["value"]) == ("first", 0, 7, 0.25)
    assert function["gap"] is None
    assert function["error"] is None
    assert failed["status"] == "failed"
    assert "5" in failed["failure"]
    assert failed["failure"] in comparison.table()
    assert "1 failed" in repr(comparison)
    comparison.figure()


def test_a_simulator_that_fails_is_no_failure_of_a_planner() -> None:
    def step(states: Any, actions: Any, rng: Any) -> Any:
        raise RuntimeError("out of order")

    broken = sp.VectorModel(step, actions=2, discount=0.5, reward_range=(0, 1), initial_state=np.zeros(2))
    with pytest.raises(sp.SimulatorError, match="out of order"):
        sp.compare([sp.UCT(depth=3, loop="open")], broken, calls=100, seeds=1)


@pytest.mark.parametrize(
    ("planners", "options", "message"),
    [
        ([], {}, "planners must be one or more"),
        ([sp.UCT], {}, "planners must be planners"),
        ("uct", {}, "planners must be planners"),
        ([TREE], {"calls": []}, "calls must be a whole number or several"),
        ([TREE], {"calls": "many"}, "calls must be a whole number"),
        ([TREE], {"seeds": [-1]}, "seeds must be at least 0"),
        ([TREE], {"state": 99}, "state must be in"),
        ([TREE], {"progress": "json"}, "progress must be true or false"),
    ],
)
def test_mistakes_are_named(model: sp.TabularModel, planners: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        sp.compare(planners, model, **{"state": 0, "calls": 10, "seeds": 1} | options)


@pytest.mark.parametrize("how", ["between runs", "in a run"])
def test_an_interrupted_comparison_keeps_the_finished_runs(model: sp.TabularModel, how: str) -> None:
    def stopping(model: Any, state: Any, calls: int, seed: int) -> Any:
        if how == "between runs" and seed == 1:
            raise KeyboardInterrupt
        return SimpleNamespace(action=0, calls=1, status="interrupted" if seed == 1 else "completed")

    part = sp.compare({"a": TREE, "b": stopping}, model, 0, calls=200, seeds=5)
    assert [(row["planner"], row["seed"]) for row in part.rows] == [("a", 0), ("a", 1), ("b", 0)]
    assert timeless(part)[:2] == timeless(sp.compare({"a": TREE}, model, 0, calls=200, seeds=2))
    assert part.wanted == 10
    assert "3 of 10 runs" in repr(part)


def test_the_table_and_the_files(model: sp.TabularModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = sp.compare([CRUISER], model, 0, calls=500, seeds=4, progress=True)
    assert not capsys.readouterr().out
    values = np.array([row["value"] for row in comparison.rows])
    (heading, line) = comparison.table().splitlines()
    assert f"{values.mean():.4g} ± {values.std(ddof=1) / 2:.2g}" in line
    assert "100%" in line
    assert heading.split()[:1] == ["planner"]
    text = comparison.to_csv(tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text("utf-8") == text
    read = list(csv.DictReader(io.StringIO(text)))
    assert [float(row["value"]) for row in read] == values.tolist()
    assert tuple(read[0]) == tuple(comparison.rows[0])
    assert json.loads(comparison.to_json())["rows"] == list(comparison.rows)
    unknown = sp.compare([CRUISER], model, 0, calls=500, seeds=1, exact=False)
    assert unknown.rows[0]["exact"] is None
    assert "covered" not in unknown.table()
