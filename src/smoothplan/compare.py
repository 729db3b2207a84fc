"""Comparisons: planners × budgets × seeds on one's own model, as tidy rows that can be resumed and extended."""

import csv
import io
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeGuard, cast

import numpy as np

from smoothplan import arguments, figures, summaries
from smoothplan.arguments import amount
from smoothplan.backups import Backup, HardMax
from smoothplan.exact import Solution, solve
from smoothplan.models.base import GenerativeModel
from smoothplan.models.calls import SimulatorError
from smoothplan.models.tabular import TabularModel
from smoothplan.plan import PlanResult, plan, root_state
from smoothplan.running.checkpoint import Checkpoint
from smoothplan.running.fingerprint import describe, fingerprint
from smoothplan.running.progress import Count
from smoothplan.running.run import Identification, Planner, finite_only

COLUMNS = (
    "planner",  # its name in this comparison
    "settings",  # the planner in words
    "budget",  # simulator calls allowed
    "seed",
    "calls",  # made
    "seconds",
    "status",  # why the run ended; "failed" if it did not start
    "action",
    "value",
    "low",  # of the interval of the value
    "high",
    "width",
    "support",  # what the interval rests on: proved, lower (only the lower end is), declared, or estimate
    "gap",  # what is proved: no action is better by more
    "exact",  # the value under the planner's own backup, where the model is a table
    "error",  # value − exact
    "regret",  # of the action, by exact action values under the planner's own backup
    "ordinary_regret",  # of the action, by exact action values of the hard maximum: one yardstick for all planners
    "failure",  # what the planner said if it did not run
)
"""Of the rows; None where a run has nothing to say."""

Row = dict[str, Any]

Function = Callable[[GenerativeModel, Any, int, int], Any]

Contestant = Planner | Function
"""A planner, or a function (model, state, calls, seed) that returns an object with the attributes action and calls."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Runs of planners with budgets and seeds: one row for each, in this order."""

    rows: tuple[Row, ...]  # with the names of `COLUMNS`
    wanted: int  # number of runs that were asked for; rows are fewer after an interruption
    model: str  # in words
    state: Any

    def __repr__(self) -> str:
        planners, budgets = (len({row[name] for row in self.rows}) for name in ("planner", "budget"))
        done = f"{len(self.rows)} of {self.wanted} runs" if len(self.rows) < self.wanted else f"{self.wanted} runs"
        failed = sum(row["failure"] is not None for row in self.rows)
        return f"Comparison({done}: {planners} planners, {budgets} budgets" + (f", {failed} failed)" if failed else ")")

    def groups(self) -> dict[tuple[str, int], list[Row]]:
        """The runs of each planner and budget."""
        found: dict[tuple[str, int], list[Row]] = {}
        for row in self.rows:
            found.setdefault((row["planner"], row["budget"]), []).append(row)
        return found

    def cells(self) -> list[list[str]]:
        """A row of texts for each planner and budget, below a row of titles."""
        known = any(row["exact"] is not None for row in self.rows)
        truths = ["covered", "mean error", "mean regret"] if known else []
        titles = ["planner", "action (share)", "budget", "runs", "mean calls", "mean value", "mean width", *truths]
        return [titles, *(_cells(group, known) for group in self.groups().values())]

    def table(self) -> str:
        """Means of the runs of each planner and budget, for people.

        Behind ± is the standard error of the mean; "covered" is the share of intervals that contain the exact value.
        """
        failures = Counter(f"{row['planner']}: {row['failure']}" for row in self.rows if row["failure"] is not None)
        failed = [f"{count} runs failed, {reason}" for reason, count in failures.items()]
        return "\n".join([summaries.aligned(self.cells(), texts=2), *failed])

    def summary(self) -> str:
        """The table below what was compared."""
        return f"{self!r} at state {arguments.shown(self.state)} of {self.model}\n{self.table()}"

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The rows as comma-separated values, also written to a file if one is given."""
        stream = io.StringIO()
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        if path is not None:
            Path(path).write_text(stream.getvalue(), encoding="utf-8")
        return stream.getvalue()

    def to_json(self) -> str:
        """One JSON object."""
        fields = {"model": self.model, "state": np.asarray(self.state).tolist(), "wanted": self.wanted}
        return json.dumps(fields | {"rows": list(self.rows)}, allow_nan=False)

    def _repr_html_(self) -> str:
        return figures.comparison_html(self)

    def figure(self) -> Any:
        """A Plotly figure of values and intervals against simulator calls, a colour for each planner."""
        return figures.comparison_figure(self)


def _cells(group: Sequence[Row], known: bool) -> list[str]:
    """The runs of one planner and budget in texts."""
    ran = [row for row in group if row["failure"] is None]

    def mean(name: str, error: bool = False) -> str:
        values = [row[name] for row in ran if row[name] is not None]
        if not values:
            return "–"
        noise = f" ± {stdev(values) / math.sqrt(len(values)):.2g}" if error and len(values) > 1 else ""
        return f"{fmean(values):.4g}{noise}"

    actions = Counter(row["action"] for row in ran if row["action"] is not None).most_common(1)
    action = f"{actions[0][0]} ({actions[0][1] / len(ran):.0%})" if actions else "–"
    calls = f"{round(fmean(row['calls'] for row in ran)):,}" if ran else "–"
    cells = [group[0]["planner"], action, f"{group[0]['budget']:,}", f"{len(ran)}", calls]
    cells += [mean("value", error=True), mean("width")]
    if not known:
        return cells
    tested = [row for row in ran if row["exact"] is not None and row["low"] is not None]
    inside = [row["low"] <= row["exact"] <= row["high"] for row in tested]
    return [*cells, f"{fmean(inside):.0%}" if inside else "–", mean("error", error=True), mean("regret", error=True)]


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

    A planner that refuses to run, for a budget that is too small or a forecast that is hopeless, gives a row that says
    so. Ctrl-C ends the comparison and returns the runs that are done. Rows do not depend on the order of runs, nor on
    what else is compared.

    Args:
        planners: planners, or (name, planner) pairs, or a dictionary of planners by name. In place of a planner there
            may be a function (model, state, calls, seed) that returns an object with the attributes action and calls,
            and, where it has them, value, interval, gap, status, seconds.
        model: the simulator.
        state: where to plan; the model's initial state by default.
        calls: simulator calls that a run may make: one budget or several.
        seeds: a number of seeds, from 0 on, or the seeds themselves.
        max_seconds: a limit on the time of each run. Rows then depend on the machine.
        workers: of each run, as for `plan`.
        exact: whether to compare with the exact solution, where the model is a table.
        progress: whether to show how far it is, on standard error.
        checkpoint: a file. Every run is written there when it is done. A comparison that finds a file of the same model
            and state uses the runs that it needs and adds the others: it goes on after an interruption, and can be
            extended by planners, budgets and seeds.

    Raises:
        CheckpointError: the file is in use, of another model or state, damaged, or cannot be written.
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
    truth = _Truth(model if arguments.flag("exact", exact) else None, root)
    # Seeds come last, so that after an interruption all planners have about as many runs.
    order = [(name, budget, seed) for seed in drawn for budget in budgets for name in named]
    done: dict[tuple[str, int, int], Row] = {}
    with _Kept(checkpoint, model, root) as kept, _display(progress, len(order)) as display:
        try:
            for name, budget, seed in order:
                contestant = named[name]
                if display is not None:
                    display.show(f"{name}, {amount(budget)} calls, seed {seed}")
                key = kept.key(contestant, budget, seed, max_seconds)
                row = kept.find(key)
                if row is None:
                    row = _run(contestant, model, root, budget, seed, max_seconds, workers)
                    if row["status"] == "interrupted":
                        break
                    kept.add(key, row)
                row = row | {"planner": name, "settings": describe(contestant)}
                done[name, budget, seed] = dict.fromkeys(COLUMNS) | row | truth(contestant, row)
                if display is not None:
                    display.over()
        except KeyboardInterrupt:  # between two runs; a run that is interrupted ends by itself
            pass
    keys = [(name, budget, seed) for name in named for budget in budgets for seed in drawn]
    return Comparison(tuple(done[key] for key in keys if key in done), len(keys), describe(model), root)


def _display(progress: bool, runs: int) -> AbstractContextManager[Count | None]:
    return Count("comparing", runs, "runs") if arguments.flag("progress", progress) else nullcontext()


def _listed(name: str, values: Any) -> list[Any]:
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    if not found:
        raise ValueError(f"{name} must be a whole number or several, got {arguments.shown(values)}")
    return list(dict.fromkeys(found))


def _named(planners: Any) -> dict[str, Contestant]:
    """The contestants by name. Those without one have the name of their class, numbered where there are several."""
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
    return hasattr(contestant, "begin")


# One run


def _run(
    contestant: Contestant,
    model: GenerativeModel,
    root: Any,
    budget: int,
    seed: int,
    max_seconds: float | None,
    workers: Any,
) -> Row:
    """A run as a row, without what depends on the comparison."""
    started = time.perf_counter()
    row = {"budget": budget, "seed": seed, "calls": 0}
    try:
        if _is_planner(contestant):
            result: Any = plan(
                contestant, model, root, seed=seed, max_calls=budget, max_seconds=max_seconds, workers=workers
            )
        else:
            result = cast(Function, contestant)(model, root, budget, seed)
    except SimulatorError:
        raise  # it concerns every planner
    except (ValueError, TypeError, ArithmeticError, NotImplementedError) as error:
        seconds = time.perf_counter() - started
        return row | {"status": "failed", "failure": str(error) or type(error).__name__, "seconds": seconds}
    return row | {"seconds": time.perf_counter() - started} | _findings(result)


def _findings(result: Any) -> Row:
    """What a result says, as far as it does."""
    row: Row = {"calls": int(result.calls), "action": None if result.action is None else int(result.action)}
    row["status"] = str(getattr(result, "status", "completed"))
    value, interval = getattr(result, "value", None), getattr(result, "interval", None)
    if value is None and result.action is not None and hasattr(result, "q"):
        value = result.q[result.action]  # of a decision
    if interval is not None:
        row |= {"low": float(interval[0]), "high": float(interval[1]), "width": float(interval[1] - interval[0])}
        row["support"] = summaries.support(result) if isinstance(result, PlanResult) else "estimate"
    details = getattr(result, "details", None)
    gap = details.gap if isinstance(details, Identification) and details.certified else getattr(result, "gap", None)
    row |= {"value": None if value is None else float(value), "gap": None if gap is None else max(float(gap), 0.0)}
    seconds = getattr(result, "seconds", None)
    row |= {} if seconds is None else {"seconds": float(seconds)}
    return cast(Row, finite_only(row))


class _Truth:
    """Exact solutions of a table, one for each backup; nothing is known of other models."""

    def __init__(self, model: GenerativeModel | None, state: Any) -> None:
        self._model, self._state = model if isinstance(model, TabularModel) else None, state
        self._known: list[tuple[Backup, Solution]] = []  # backups are few, and not all can be hashed
        self._ordinary = HardMax()

    def __call__(self, contestant: Contestant, row: Row) -> Row:
        """The columns of a run that need the truth."""
        found: Row = {}
        if self._model is None or row.get("failure") is not None:
            return found
        if row.get("action") is not None:
            found["ordinary_regret"] = self._regret(self._solution(self._ordinary), row["action"])
        backup = getattr(contestant, "backup", None)
        if backup is None or getattr(contestant, "tail", "honest") == "zero":  # which has another value: of a few steps
            return found
        solution = self._solution(backup)
        found["exact"] = float(solution.values[self._state])
        if row.get("value") is not None:
            found["error"] = row["value"] - found["exact"]
        if row.get("action") is not None:
            found["regret"] = self._regret(solution, row["action"])
        return found

    def _solution(self, backup: Backup) -> Solution:
        for known, solution in self._known:
            if known is backup:
                return solution
        assert self._model is not None
        solution = solve(self._model, backup)
        self._known.append((backup, solution))
        return solution

    def _regret(self, solution: Solution, action: int) -> float:
        q = solution.q[self._state]
        return float(q.max() - q[action])


# What is kept in a file


class _Kept(AbstractContextManager["_Kept"]):
    """The runs in a checkpoint, by what they depend on; none without a file."""

    def __init__(self, path: str | os.PathLike[str] | None, model: GenerativeModel, state: Any) -> None:
        self._file: Checkpoint | None = None
        self._prints: dict[int, str] = {}
        if path is not None:
            things = {"model": model, "state": state}
            identity = {name: f"{describe(thing)} ({fingerprint(thing)})" for name, thing in things.items()}
            self._file = Checkpoint(path, {"kind": "comparison", "version": version("smoothplan")} | identity)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def key(self, contestant: Contestant, budget: int, seed: int, max_seconds: float | None) -> str:
        """What a run depends on, beside model and state."""
        if self._file is None:
            return ""
        mark = self._prints.setdefault(id(contestant), fingerprint(contestant))
        return json.dumps([mark, budget, seed, max_seconds])

    def find(self, key: str) -> Row | None:
        """A run that is done."""
        arrays = None if self._file is None else self._file.snapshot(key)
        if arrays is None:
            return None
        row: Row = json.loads(arrays["row"].tobytes())
        return row

    def add(self, key: str, row: Row) -> None:
        """Keeps a run. A kill at any moment loses nothing that was added."""
        if self._file is not None:
            self._file.keep(key, {"row": np.frombuffer(json.dumps(row, allow_nan=False).encode(), dtype=np.uint8)})
