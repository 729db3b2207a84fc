"""Comparisons: planners × budgets × seeds on one's own model, as tidy rows."""

import csv
import io
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import amount
from smoothplan.base.records import Record, plain, renderer
from smoothplan.models.model import GenerativeModel, SimulatorError, action_names, required_model
from smoothplan.models.tabular import TabularModel
from smoothplan.run.checkpoint import described
from smoothplan.run.plan import PlanResult, plan, root_state
from smoothplan.run.progress import Display
from smoothplan.run.records import GapDetails, Planner
from smoothplan.theory.backups import HardMax
from smoothplan.theory.exact import Solution, solve

COLUMNS = (
    "planner",  # its name in this comparison
    "settings",  # the planner in words
    "budget",  # simulator calls allowed
    "seed",
    "calls",  # simulator calls made
    "seconds",
    "status",  # why the run ended; "failed" if it did not start
    "action",
    "action_name",
    "value",
    "low",  # of the interval of the value
    "high",
    "width",
    "support",  # the basis of the interval: proved, lower (only the lower end is proved), declared, or estimate
    "gap",  # proved: no action is better by more
    "exact",  # the value under the planner's own backup, if the model is a table
    "error",  # value − exact
    "regret",  # of the action, by exact action values under the planner's own backup
    "ordinary_regret",  # of the action, by exact action values of the hard maximum: one yardstick for all planners
    "failure",  # the planner's message if it did not run
)
"""The columns of the rows; a cell is None if it does not apply."""

Contestant = Planner | Callable[[GenerativeModel, Any, int, int], Any]
"""A planner, or a function (model, state, calls, seed) that returns an object with the attributes action and calls."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Record):
    """Runs of planners with budgets and seeds: one row for each, in this order."""

    rows: tuple[dict[str, Any], ...]  # with the names of `COLUMNS`
    wanted: int  # number of runs that were asked for; rows are fewer after an interruption
    model: str  # in words
    state: Any
    names: tuple[str, ...]  # of the actions, [K]

    def __repr__(self) -> str:
        planners, budgets = (len({row[name] for row in self.rows}) for name in ("planner", "budget"))
        done = f"{len(self.rows)} of {self.wanted} runs" if len(self.rows) < self.wanted else f"{self.wanted} runs"
        failed = sum(row["failure"] is not None for row in self.rows)
        return f"Comparison({done}: {planners} planners, {budgets} budgets" + (f", {failed} failed)" if failed else ")")

    def groups(self) -> dict[tuple[str, int], list[dict[str, Any]]]:
        """The runs of each planner and budget."""
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in self.rows:
            found.setdefault((row["planner"], row["budget"]), []).append(row)
        return found

    def table(self) -> str:
        """Means of the runs of each planner and budget, for people.

        Behind ± is the standard error of the mean; "covered" is the share of intervals that contain the exact value.
        """
        return str(renderer().table(self))

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The rows as comma-separated values, also written to a file if one is given."""
        stream = io.StringIO()
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        if path is not None:
            Path(path).write_text(stream.getvalue(), encoding="utf-8")
        return stream.getvalue()


def compare(
    planners: Contestant | Iterable[Any] | Mapping[str, Any],
    model: GenerativeModel,
    state: Any = None,
    *,
    calls: int | Iterable[int],
    seeds: int | Iterable[int] = 10,
    max_seconds: float | None = None,
    workers: Any = 1,
    exact: bool = True,
    progress: bool = False,
) -> Comparison:
    """Runs every planner with every budget and every seed, and returns one row for each run.

    If a planner refuses to run, because the budget is too small or the forecast is hopeless, its row says so. Ctrl-C
    ends the comparison and returns the finished runs. Rows depend neither on the order of runs nor on the other
    planners.

    Args:
        planners: one or more planners, or a dictionary of planners by name. In place of a planner there may be a
            function (model, state, calls, seed) that returns an object with the attributes action and calls, and
            optionally value, interval, gap, status, seconds.
        model: the simulator.
        state: where to plan; the model's initial state by default.
        calls: simulator calls that a run may make: one budget or several.
        seeds: a number of seeds, from 0 on, or the seeds themselves.
        max_seconds: a limit on the time of each run. Rows then depend on the machine.
        workers: of each run, as for `plan`.
        exact: whether to compare with the exact solution, if the model is a table.
        progress: whether to show progress on standard error.

    Raises:
        SimulatorError: the simulator failed.

    >>> import smoothplan as sp
    >>> model = sp.models.garnet(states=20, actions=2, discount=0.2, seed=1)
    >>> compare([sp.UCT(), sp.SmoothCruiser(sp.LogSumExp(1.0), 0.1)], model, 0, calls=[500, 1_000], seeds=2)
    Comparison(8 runs: 2 planners, 2 budgets)
    """
    required_model(model)
    named, budgets = _named(planners), _wholes("calls", [calls] if np.isscalar(calls) else calls, least=1)
    drawn = _wholes("seeds", range(arguments.whole("seeds", seeds)) if np.isscalar(seeds) else seeds, least=0)
    limit = None if max_seconds is None else arguments.positive("max_seconds", max_seconds)
    root, shown = root_state(model, state), arguments.flag("progress", progress)
    table = model if arguments.flag("exact", exact) and isinstance(model, TabularModel) else None
    keys = list(product(named, budgets, drawn))
    done: dict[tuple[str, int, int], dict[str, Any]] = {}
    solutions: dict[int, Solution] = {}
    with Display(shown, title="comparing", unit="runs", max_calls=len(keys)) as display:
        try:
            # Seeds come first, so that after an interruption all planners have about as many runs.
            for seed, budget, (name, contestant) in product(drawn, budgets, named.items()):
                display.show(f"{name}, {amount(budget)} calls, seed {seed}")
                row = _run(contestant, model, root, budget, seed, {"max_seconds": limit, "workers": workers})
                if row["status"] == "interrupted":
                    break
                if table is not None and row["status"] != "failed":
                    row |= _beside_truth(table, root, contestant, row, solutions)
                row |= {"planner": name, "settings": described(contestant)[:200]}
                done[name, budget, seed] = dict.fromkeys(COLUMNS) | row
                display.update(len(done))
        except KeyboardInterrupt:  # between two runs; a run that is interrupted ends by itself
            pass
    rows = tuple(done[key] for key in keys if key in done)
    return Comparison(rows, len(keys), described(model)[:200], root, action_names(model))


def _wholes(name: str, values: Any, least: int) -> list[int]:
    """One or more different whole numbers."""
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    if not found:
        raise ValueError(f"{name} must be a whole number or several, got {arguments.shown(values)}")
    return [arguments.whole(name, each, least=least) for each in dict.fromkeys(found)]


def _named(planners: Any) -> dict[str, Contestant]:
    """The contestants by name. One without a name gets that of its class, with a number if there are several."""
    if isinstance(planners, Mapping):
        named = {str(name): contestant for name, contestant in planners.items()}
    else:
        several = list(planners) if isinstance(planners, Iterable) and not isinstance(planners, str) else [planners]
        names = [getattr(one, "__name__", type(one).__name__) for one in several]
        numbers = [f" {names[:end].count(name)}" * (names.count(name) > 1) for end, name in enumerate(names, start=1)]
        named = {name + number: one for name, number, one in zip(names, numbers, several, strict=True)}
    if not named:
        raise ValueError(f"planners must be one or more planners, got {arguments.shown(planners)}")
    for contestant in named.values():
        if isinstance(contestant, type) or not (hasattr(contestant, "start") or callable(contestant)):
            wanted = "planners, or functions (model, state, calls, seed)"
            raise TypeError(f"planners must be {wanted}, got {arguments.shown(contestant)}")
    return named


def _run(
    contestant: Any, model: GenerativeModel, root: Any, budget: int, seed: int, options: dict[str, Any]
) -> dict[str, Any]:
    """A run as a row, without the columns that depend on the comparison."""
    row: dict[str, Any] = {"budget": budget, "seed": seed, "calls": 0}
    started = time.perf_counter()
    try:
        if hasattr(contestant, "start"):
            result: Any = plan(contestant, model, root, seed=seed, max_calls=budget, **options)
        else:
            result = contestant(model, root, budget, seed)
    except SimulatorError:
        raise  # it concerns every planner
    except (ValueError, TypeError, ArithmeticError, NotImplementedError) as error:
        failure = str(error) or type(error).__name__
        return row | {"seconds": time.perf_counter() - started, "status": "failed", "failure": failure}
    seconds = getattr(result, "seconds", None)
    row |= {"calls": int(result.calls), "status": str(getattr(result, "status", "completed"))}
    row["seconds"] = time.perf_counter() - started if seconds is None else float(seconds)
    row["action"] = None if result.action is None else int(result.action)
    row["action_name"] = None if result.action is None else action_names(model)[int(result.action)]
    value, interval = getattr(result, "value", None), getattr(result, "interval", None)
    if value is None and result.action is not None and hasattr(result, "q"):
        value = result.q[result.action]  # of a decision
    if interval is not None:
        row |= {"low": float(interval[0]), "high": float(interval[1]), "width": float(interval[1] - interval[0])}
        row["support"] = result.support if isinstance(result, PlanResult) else "estimate"
    details = getattr(result, "details", None)
    gap = details.gap if isinstance(details, GapDetails) else getattr(result, "gap", None)
    row |= {"value": None if value is None else float(value), "gap": None if gap is None else max(float(gap), 0.0)}
    found: dict[str, Any] = plain(row)  # numbers that are not finite become None
    return found


def _beside_truth(
    model: TabularModel, state: int, contestant: Any, row: dict[str, Any], solutions: dict[int, Solution]
) -> dict[str, Any]:
    """The columns of a run that need exact values. Solutions are kept by the id of the backup: not all have a hash."""
    found: dict[str, Any] = {}
    action, backup = row["action"], getattr(contestant, "backup", None)
    if action is not None:
        ordinary = solutions[0] = solutions.get(0) or solve(model, HardMax())
        found["ordinary_regret"] = float(ordinary.q[state].max() - ordinary.q[state][action])
    if backup is not None and getattr(contestant, "tail", "honest") != "zero":  # else it is the value of a few steps
        own = solutions[id(backup)] = solutions.get(id(backup)) or solve(model, backup)
        found["exact"] = float(own.values[state])
        found["error"] = None if row["value"] is None else row["value"] - found["exact"]
        found["regret"] = None if action is None else float(own.q[state].max() - own.q[state][action])
    return found
