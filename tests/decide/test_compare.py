"""Comparisons: rows are those of single runs, whatever is compared, and survive interruptions."""

import csv
import importlib
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.theory.backups import HardMax

MODULE = importlib.import_module("smoothplan.decide.compare")  # the package has a function of this name

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


def counted(monkeypatch: pytest.MonkeyPatch, fail_at: int | None = None) -> list[tuple[str, int, int]]:
    """The class, budget and seed of the runs that are really made; Ctrl-C comes before one of them."""
    made: list[tuple[str, int, int]] = []

    def planned(planner: Any, model: Any, root: Any, *, seed: int, max_calls: int, **options: Any) -> Any:
        if len(made) == fail_at:
            raise KeyboardInterrupt
        made.append((type(planner).__name__, max_calls, seed))
        return sp.plan(planner, model, root, seed=seed, max_calls=max_calls, **options)

    monkeypatch.setattr(MODULE, "plan", planned)
    return made


def test_rows_are_single_runs_beside_the_truth(model: sp.TabularModel) -> None:
    comparison = sp.compare([CRUISER, ("tree", TREE)], model, 3, calls=[200, 2_000], seeds=[4, 7])
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
    comparison = sp.compare([first, wrong, TREE], model, 0, calls=100, seeds=1)
    function, failed, _ = comparison.rows
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
        ([("a", TREE), ("a", CRUISER), ("a 1", TREE)], {}, "'a 1' twice"),
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


def test_an_interrupted_comparison_goes_on_and_can_be_extended(
    model: sp.TabularModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run of each planner is made again, as a check."""
    file, planners = tmp_path / "runs", {"a": CRUISER, "b": TREE}
    whole = sp.compare(planners, model, 0, calls=[200, 400], seeds=2)
    with monkeypatch.context() as patched:
        counted(patched, fail_at=3)
        part = sp.compare(planners, model, 0, calls=[200, 400], seeds=2, checkpoint=file)
    assert (len(part.rows), part.wanted) == (3, 8)
    assert "3 of 8 runs" in repr(part)
    assert all(row in timeless(whole) for row in timeless(part))
    made = counted(monkeypatch)
    again = sp.compare(planners, model, 0, calls=[200, 400], seeds=2, checkpoint=file)
    assert len(made) == 5 + 2
    assert timeless(again) == timeless(whole)
    assert [row["seconds"] for row in again.rows if row in part.rows] == [row["seconds"] for row in part.rows]
    made.clear()
    sp.compare({"renamed": TREE}, model, 0, calls=[200, 800], seeds=[1, 5], checkpoint=file)
    assert made == [("UCT", 200, 1), ("UCT", 800, 1), ("UCT", 200, 5), ("UCT", 800, 5)]
    for other in (sp.models.garnet(states=20, actions=2, branching=2, discount=0.2, seed=2), model):
        with pytest.raises(sp.CheckpointError, match="of another"):
            sp.compare(planners, other, 1 if other is model else 0, calls=200, seeds=1, checkpoint=file)
    with pytest.raises(sp.CheckpointError, match="of another"):
        sp.plan(CRUISER, model, 0, checkpoint=file)


def test_a_planner_that_is_not_the_same_any_more_is_found_out(model: sp.TabularModel, tmp_path: Path) -> None:
    class Renamed(sp.UCT):
        def __repr__(self) -> str:
            return "a planner"

    sp.compare([Renamed(depth=3)], model, 0, calls=100, seeds=2, checkpoint=tmp_path / "runs")
    sp.compare([Renamed(depth=3)], model, 0, calls=100, seeds=2, checkpoint=tmp_path / "runs")
    with pytest.raises(sp.CheckpointError, match="of another model or planner: a planner with 100 calls and seed 0"):
        sp.compare([Renamed(depth=1)], model, 0, calls=100, seeds=2, checkpoint=tmp_path / "runs")


def test_a_run_that_is_interrupted_is_no_row(model: sp.TabularModel, tmp_path: Path) -> None:
    made = []

    def stopping(model: Any, state: Any, calls: int, seed: int) -> Any:
        made.append(seed)
        return SimpleNamespace(action=0, calls=1, status="interrupted" if seed == 1 else "completed")

    assert len(sp.compare([stopping], model, 0, calls=10, seeds=5, checkpoint=tmp_path / "runs").rows) == 1
    assert len(sp.compare([stopping], model, 0, calls=10, seeds=1, checkpoint=tmp_path / "runs").rows) == 1
    assert made == [0, 1]


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
    assert tuple(read[0]) == MODULE.COLUMNS
    assert json.loads(comparison.to_json())["rows"] == list(comparison.rows)
    unknown = sp.compare([CRUISER], model, 0, calls=500, seeds=1, exact=False)
    assert unknown.rows[0]["exact"] is None
    assert "covered" not in unknown.table()
