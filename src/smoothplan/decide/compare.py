"""Comparisons: planners × budgets × seeds on one's own model, as tidy rows that can be resumed and extended."""

import csv
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import amount
from smoothplan.base.records import Record, plain, renderer
from smoothplan.models.calls import SimulatorError
from smoothplan.models.model import GenerativeModel
from smoothplan.models.tabular import TabularModel
from smoothplan.run.checkpoint import Checkpoint, CheckpointError, described
from smoothplan.run.plan import PlanResult, model_identity, plan, root_state
from smoothplan.run.records import GapDetails, Planner
from smoothplan.run.session import session
from smoothplan.theory.backups import Backup, HardMax
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
    checkpoint: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Runs every planner with every budget and every seed, and returns one row for each run.

    If a planner refuses to run, because the budget is too small or the forecast is hopeless, its row says so. Ctrl-C
    ends the comparison and returns the finished runs. Rows depend neither on the order of runs nor on the other
    planners.

    Args:
        planners: planners, or (name, planner) pairs, or a dictionary of planners by name. In place of a planner there
            may be a function (model, state, calls, seed) that returns an object with the attributes action and calls,
            and optionally value, interval, gap, status, seconds.
        model: the simulator.
        state: where to plan; the model's initial state by default.
        calls: simulator calls that a run may make: one budget or several.
        seeds: a number of seeds, from 0 on, or the seeds themselves.
        max_seconds: a limit on the time of each run. Rows then depend on the machine.
        workers: of each run, as for `plan`.
        exact: whether to compare with the exact solution, if the model is a table.
        progress: whether to show progress on standard error.
        checkpoint: a file, to which every finished run is written. A comparison that finds a file of the same model and
            state uses the runs that it needs and adds the others: it continues after an interruption, and can be
            extended by planners, budgets and seeds. Planners and models are recognised by their `repr`; in addition,
            one run of every planner is made again and must give the same row, unless time is limited.

    Raises:
        CheckpointError: the file is in use, of another model, state or planner, damaged, or cannot be written.
        SimulatorError: the simulator failed.

    >>> import smoothplan as sp
    >>> model = sp.models.garnet(states=20, actions=2, discount=0.2, seed=1)
    >>> compare([sp.UCT(), sp.SmoothCruiser(sp.LogSumExp(1.0), 0.1)], model, 0, calls=[500, 1_000], seeds=2)
    Comparison(8 runs: 2 planners, 2 budgets)
    """
    named = _named(planners)
    budgets = [arguments.whole("calls", each) for each in ([calls] if np.isscalar(calls) else _listed("calls", calls))]
    numbers = range(arguments.whole("seeds", seeds)) if np.isscalar(seeds) else _listed("seeds", seeds)
    drawn = [arguments.whole("seeds", each, least=0) for each in numbers]
    max_seconds = None if max_seconds is None else arguments.positive("max_seconds", max_seconds)
    root = root_state(model, state)
    shown = arguments.flag("progress", progress)
    table = model if arguments.flag("exact", exact) and isinstance(model, TabularModel) else None
    keys = [(name, budget, seed) for name in named for budget in budgets for seed in drawn]
    done: dict[tuple[str, int, int], dict[str, Any]] = {}
    solutions: dict[int, Solution] = {}
    with session(
        title="comparing",
        unit="runs",
        progress=shown,
        max_calls=len(keys),
        checkpoint=checkpoint,
        identity={"kind": "comparison"} | model_identity(model, root),
        signals=False,
    ) as opened:
        runs = _Runs(model, root, max_seconds, workers, opened.workers.checkpoint)
        try:
            # Seeds come last, so that after an interruption all planners have about as many runs.
            for name, budget, seed in sorted(keys, key=lambda key: (drawn.index(key[2]), budgets.index(key[1]))):
                opened.display.show(f"{name}, {amount(budget)} calls, seed {seed}")
                row = runs.row(named[name], budget, seed)
                if row["status"] == "interrupted":
                    break
                row |= {"planner": name, "settings": described(named[name])[:200]}
                if table is not None and row.get("failure") is None:
                    row |= _beside_truth(table, root, named[name], row, solutions)
                done[name, budget, seed] = dict.fromkeys(COLUMNS) | row
                opened.display.update(len(done))
        except KeyboardInterrupt:  # between two runs; a run that is interrupted ends by itself
            pass
    return Comparison(tuple(done[key] for key in keys if key in done), len(keys), described(model)[:200], root)


def _listed(name: str, values: Any) -> list[Any]:
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    if not found:
        raise ValueError(f"{name} must be a whole number or several, got {arguments.shown(values)}")
    return list(dict.fromkeys(found))


def _named(planners: Any) -> dict[str, Contestant]:
    """The contestants by name. One without a name gets that of its class, with a number if there are several."""
    if isinstance(planners, Mapping):
        pairs = list(planners.items())
    else:
        several = planners if isinstance(planners, Iterable) and not isinstance(planners, str) else [planners]
        pairs = [each if isinstance(each, tuple) and len(each) == 2 else (None, each) for each in several]
    if not pairs:
        raise ValueError(f"planners must be one or more planners, got {arguments.shown(planners)}")
    for _, contestant in pairs:
        if isinstance(contestant, type) or not (_is_planner(contestant) or callable(contestant)):
            raise TypeError(
                "planners must be planners, or functions (model, state, calls, seed), got "
                f"{arguments.shown(contestant)}"
            )
    usual = [getattr(one, "__name__", type(one).__name__) if name is None else str(name) for name, one in pairs]
    named: dict[str, Contestant] = {}
    for place, (name, (_, contestant)) in enumerate(zip(usual, pairs, strict=True)):
        unique = name if usual.count(name) == 1 else f"{name} {usual[: place + 1].count(name)}"
        if unique in named:
            raise ValueError(f"planners must have different names, got {unique!r} twice")
        named[unique] = contestant
    return named


def _is_planner(contestant: Contestant) -> TypeGuard[Planner]:
    return hasattr(contestant, "start")


@dataclass(eq=False)
class _Runs:
    """Makes runs, or reads them from a checkpoint."""

    model: GenerativeModel
    root: Any
    max_seconds: float | None
    workers: Any
    file: Checkpoint | None
    compared: set[str] = field(default_factory=set)  # planners of which a run was made again

    def row(self, contestant: Contestant, budget: int, seed: int) -> dict[str, Any]:
        """A run as a row, without the columns that depend on the comparison."""
        if self.file is None:
            return self._made(contestant, budget, seed)
        words = described(contestant)
        key = json.dumps([words, budget, seed, self.max_seconds])
        arrays = self.file.snapshot(key)
        if arrays is None:
            row = self._made(contestant, budget, seed)
            if row["status"] != "interrupted":
                self.file.keep(key, {"row": np.frombuffer(json.dumps(row, allow_nan=False).encode(), dtype=np.uint8)})
            self.compared.add(words)
            return row
        row = json.loads(arrays["row"].tobytes())
        if words not in self.compared and _is_planner(contestant) and self.max_seconds is None:
            again = self._made(contestant, budget, seed)
            if again["status"] == "interrupted":
                return again
            if again | {"seconds": None} != row | {"seconds": None}:
                raise CheckpointError(
                    f"the checkpoint is of another model or planner: {words} with {budget} calls and seed "
                    f"{seed} found {row} there, {again} here"
                )
            self.compared.add(words)
        return dict(row)

    def _made(self, contestant: Contestant, budget: int, seed: int) -> dict[str, Any]:
        started, result = time.perf_counter(), None
        row: dict[str, Any] = {"budget": budget, "seed": seed, "calls": 0}
        try:
            if _is_planner(contestant):
                limits: dict[str, Any] = {"max_calls": budget, "max_seconds": self.max_seconds}
                result = plan(contestant, self.model, self.root, seed=seed, workers=self.workers, **limits)
            else:
                function: Any = contestant
                result = function(self.model, self.root, budget, seed)
        except SimulatorError:
            raise  # it concerns every planner
        except (ValueError, TypeError, ArithmeticError, NotImplementedError) as error:
            row |= {"status": "failed", "failure": str(error) or type(error).__name__}
        seconds = time.perf_counter() - started
        return row | {"seconds": seconds} | ({} if result is None else _findings(result))


def _findings(result: Any) -> dict[str, Any]:
    """The columns that a result fills."""
    row: dict[str, Any] = {"calls": int(result.calls), "action": None if result.action is None else int(result.action)}
    row["status"] = str(getattr(result, "status", "completed"))
    value, interval = getattr(result, "value", None), getattr(result, "interval", None)
    if value is None and result.action is not None and hasattr(result, "q"):
        value = result.q[result.action]  # of a decision
    if interval is not None:
        row |= {"low": float(interval[0]), "high": float(interval[1]), "width": float(interval[1] - interval[0])}
        row["support"] = result.support if isinstance(result, PlanResult) else "estimate"
    details = getattr(result, "details", None)
    gap = details.gap if isinstance(details, GapDetails) else getattr(result, "gap", None)
    row |= {"value": None if value is None else float(value), "gap": None if gap is None else max(float(gap), 0.0)}
    seconds = getattr(result, "seconds", None)
    found: dict[str, Any] = plain(row | ({} if seconds is None else {"seconds": float(seconds)}))
    return found


def _beside_truth(
    model: TabularModel, state: int, contestant: Contestant, row: dict[str, Any], solutions: dict[int, Solution]
) -> dict[str, Any]:
    """The columns of a run that need exact values. Solutions are kept by the id of the backup: not all have a hash."""
    found: dict[str, Any] = {}
    action, backup = row.get("action"), getattr(contestant, "backup", None)

    def solution(backup: Backup, key: int) -> Solution:
        if key not in solutions:
            solutions[key] = solve(model, backup)
        return solutions[key]

    def regret(solution: Solution) -> float:
        return float(solution.q[state].max() - solution.q[state][action])

    if action is not None:
        found["ordinary_regret"] = regret(solution(HardMax(), 0))
    if backup is not None and getattr(contestant, "tail", "honest") != "zero":  # else it is the value of a few steps
        own = solution(backup, id(backup))
        found["exact"] = float(own.values[state])
        found["error"] = None if row.get("value") is None else row["value"] - found["exact"]
        found["regret"] = None if action is None else regret(own)
    return found
