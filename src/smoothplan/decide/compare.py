"""Comparisons: planners × budgets × seeds on one's own model, as tidy rows that can be resumed and extended."""

import csv
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
    if max_seconds is not None:
        max_seconds = arguments.positive("max_seconds", max_seconds)
    root = root_state(model, state)
    shown = arguments.flag("progress", progress)
    truth = _Truth(model if arguments.flag("exact", exact) else None, root)
    # Seeds come last, so that after an interruption all planners have about as many runs.
    order = [(name, budget, seed) for seed in drawn for budget in budgets for name in named]
    done: dict[tuple[str, int, int], dict[str, Any]] = {}
    with (
        _Runs(model, root, max_seconds, workers, checkpoint) as runs,
        session(title="comparing", unit="runs", progress=shown, max_calls=len(order), signals=False) as opened,
    ):
        try:
            for name, budget, seed in order:
                opened.display.show(f"{name}, {amount(budget)} calls, seed {seed}")
                row = runs.row(named[name], budget, seed)
                if row["status"] == "interrupted":
                    break
                row |= {"planner": name, "settings": described(named[name])[:200]} | truth.columns(named[name], row)
                done[name, budget, seed] = dict.fromkeys(COLUMNS) | row
                opened.display.update(len(done))
        except KeyboardInterrupt:  # between two runs; a run that is interrupted ends by itself
            pass
    keys = [(name, budget, seed) for name in named for budget in budgets for seed in drawn]
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
    numbers = {name: iter(range(1, len(usual) + 1)) for name in usual}
    named = {}
    for name, (_, contestant) in zip(usual, pairs, strict=True):
        unique = name if usual.count(name) == 1 else f"{name} {next(numbers[name])}"
        if unique in named:
            raise ValueError(f"planners must have different names, got {unique!r} twice")
        named[unique] = contestant
    return named


def _is_planner(contestant: Contestant) -> TypeGuard[Planner]:
    return hasattr(contestant, "start")


class _Runs:
    """Makes runs, or reads them from a checkpoint."""

    def __init__(self, model: GenerativeModel, root: Any, max_seconds: float | None, workers: Any, path: Any) -> None:
        self._model, self._root, self._max_seconds, self._workers = model, root, max_seconds, workers
        self._path, self._file = path, None
        self._compared: set[str] = set()  # planners of which a run was made again
        if path is not None:
            self._file = Checkpoint(path, {"kind": "comparison"} | model_identity(model, root))

    def __enter__(self) -> "_Runs":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def row(self, contestant: Contestant, budget: int, seed: int) -> dict[str, Any]:
        """A run as a row, without the columns that depend on the comparison.

        Killing the process at any moment loses no finished run.
        """
        if self._file is None:
            return self._made(contestant, budget, seed)
        words = described(contestant)
        key = json.dumps([words, budget, seed, self._max_seconds])
        arrays = self._file.snapshot(key)
        if arrays is None:
            row = self._made(contestant, budget, seed)
            if row["status"] != "interrupted":
                self._file.keep(key, {"row": np.frombuffer(json.dumps(row, allow_nan=False).encode(), dtype=np.uint8)})
            self._compared.add(words)
            return row
        row = json.loads(arrays["row"].tobytes())
        if words not in self._compared and _is_planner(contestant) and self._max_seconds is None:
            again = self._made(contestant, budget, seed)
            if again["status"] == "interrupted":
                return again
            if again | {"seconds": None} != row | {"seconds": None}:
                raise CheckpointError(
                    f"checkpoint {self._path} is of another model or planner: {words} with {budget} calls and seed "
                    f"{seed} found {row} there, {again} here"
                )
            self._compared.add(words)
        return dict(row)

    def _made(self, contestant: Contestant, budget: int, seed: int) -> dict[str, Any]:
        started, result = time.perf_counter(), None
        row: dict[str, Any] = {"budget": budget, "seed": seed, "calls": 0}
        try:
            if _is_planner(contestant):
                limits: dict[str, Any] = {"max_calls": budget, "max_seconds": self._max_seconds}
                result = plan(contestant, self._model, self._root, seed=seed, workers=self._workers, **limits)
            else:
                function: Any = contestant
                result = function(self._model, self._root, budget, seed)
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
    gap = details.gap if isinstance(details, GapDetails) and details.certified else getattr(result, "gap", None)
    row |= {"value": None if value is None else float(value), "gap": None if gap is None else max(float(gap), 0.0)}
    seconds = getattr(result, "seconds", None)
    found: dict[str, Any] = plain(row | ({} if seconds is None else {"seconds": float(seconds)}))
    return found


class _Truth:
    """Exact solutions of a table, one for each backup; nothing is known of other models."""

    def __init__(self, model: GenerativeModel | None, state: Any) -> None:
        self._model, self._state = model if isinstance(model, TabularModel) else None, state
        self._hard_max = HardMax()
        self._solutions: dict[int, Solution] = {}  # by the id of the backup: not all backups can be hashed

    def columns(self, contestant: Contestant, row: dict[str, Any]) -> dict[str, Any]:
        """The columns of a run that need the truth."""
        found: dict[str, Any] = {}
        if self._model is None or row.get("failure") is not None:
            return found
        action = row.get("action")
        if action is not None:
            found["ordinary_regret"] = self._regret(self._solution(self._hard_max), action)
        backup = getattr(contestant, "backup", None)
        if backup is None or getattr(contestant, "tail", "honest") == "zero":  # the value of a few steps is another one
            return found
        solution = self._solution(backup)
        found["exact"] = float(solution.values[self._state])
        if row.get("value") is not None:
            found["error"] = row["value"] - found["exact"]
        if action is not None:
            found["regret"] = self._regret(solution, action)
        return found

    def _solution(self, backup: Backup) -> Solution:
        assert self._model is not None
        if id(backup) not in self._solutions:
            self._solutions[id(backup)] = solve(self._model, backup)
        return self._solutions[id(backup)]

    def _regret(self, solution: Solution, action: int) -> float:
        q = solution.q[self._state]
        return float(q.max() - q[action])
