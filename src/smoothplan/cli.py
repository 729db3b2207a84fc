"""The command line: what each command does and prints. Its options are in `options`."""

import argparse
import inspect
import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import smoothplan
from smoothplan import defaults, drawing, exact, simulators, specs, summaries
from smoothplan.arguments import shown
from smoothplan.backups import Backup, HardMax
from smoothplan.decide import Decision
from smoothplan.exact import Solution
from smoothplan.models import GenerativeModel, SimulatorError, TabularModel
from smoothplan.options import command_parser, complaint
from smoothplan.running.progress import Shown
from smoothplan.running.run import Identification, Planner, Scheduled
from smoothplan.running.workers import ClusterError

ROWS = 20
"""Rows of a table of states or episodes; `--json` has all of them."""

Lines = Iterable[tuple[str, str]]
"""What a command prints for people: names and texts."""

Command = Callable[[argparse.Namespace, Console], None]
"""What the parser's command of that name does."""


class _Console(Console):
    """A console that leaves a closed pipe to `main`."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0, 2 if it fails, 130 if it is interrupted."""
    parser = command_parser()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal or pipe can encode an ε
    try:
        try:
            options = parser.parse_args(arguments)
            if options.command is None:
                parser.print_help()
                return 0
            with warnings.catch_warnings():
                warnings.showwarning = partial(_warn, parser)
                console = _Console()
                console.width = max(console.width, 10_000)  # a long line wraps in the terminal; no digit is cut off
                COMMANDS[options.command](options, console)
        finally:
            print(end="", flush=True)  # raises here, not at exit, if the output cannot be written
    except KeyboardInterrupt:
        return _complain(parser, "interrupted", status=130)
    except BrokenPipeError:
        _discard_output()  # the reader closed the pipe, as `head` does: not an error
    except SimulatorError as error:
        return _complain(parser, _failed_call(error, options), status=2)
    except (ValueError, TypeError, ArithmeticError, ImportError, MemoryError, OSError, ClusterError) as error:
        if isinstance(error, OSError):
            _discard_output()
        return _complain(parser, str(error) or type(error).__name__, status=2)
    return 0


def _discard_output() -> None:
    """Lets Python's own flush at exit succeed after standard output was closed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(parser: argparse.ArgumentParser, message: str, status: int) -> int:
    print(complaint(parser, message), end="", file=sys.stderr)
    return status


def _warn(parser: argparse.ArgumentParser, message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"{parser.prog}: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _failed_call(error: SimulatorError, options: argparse.Namespace) -> str:
    """What a plan found before its simulator failed, and how to repeat the failing call."""
    message = str(error)
    if isinstance(error.partial, Decision):
        best = f"action {error.partial.names[error.partial.action or 0]} seems best (estimate)"
        known = best if error.partial.returns.any() else "no action is known to be better"
        message += f"; so far, after {error.partial.calls:,} calls, {known}"
    elif error.partial is not None:
        low, high = error.partial.interval
        message += f"; so far, after {error.partial.calls:,} calls, the interval is [{low:.6g}, {high:.6g}]"
    if getattr(options, "failure", None):
        failure = {"model": options.model, "call": json.loads(error.call.to_json())}
        again = shlex.quote(options.failure)
        if options.simulator is not None:
            failure |= {"simulator": options.simulator}
            again += f" --simulator {shlex.quote(options.simulator)}"
        try:
            Path(options.failure).write_text(json.dumps(failure) + "\n", encoding="utf-8")
        except OSError as reason:
            return f"{message}; the call could not be saved: {reason}"
        message += f"; repeat the call with: smoothplan reproduce {again}"
    return message


def _given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options with these names that were given."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _state(text: str | None) -> Any:
    """A number, or numbers between commas; None for the initial state."""
    if text is None:
        return None
    try:
        return json.loads(text if "," not in text or text.startswith("[") else f"[{text}]")
    except (ValueError, RecursionError):
        raise ValueError(f"--state must be a number or numbers between commas, got {shown(text)}") from None


# --- Printing -------------------------------------------------------------------------------------------------------


def _print(console: Console, lines: Lines, indent: str = "", width: int = 8) -> None:
    for name, text in lines:
        console.print(f"{indent}[bold]{name:<{width}}[/]{text}", highlight=False)


def _filled(rows: Sequence[Sequence[str]]) -> Table:
    """A table of a text and numbers in each row, the first row being titles."""
    table = _table(*rows[0], numbers=True)
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    return table


def _table(*titles: str, numbers: bool = False) -> Table:
    """A table without lines; the columns after the first are right-aligned numbers, or texts."""
    table = Table(titles[0], box=None, pad_edge=False)
    for title in titles[1:]:
        table.add_column(title, justify="right" if numbers else "left")
    return table


# --- Commands -------------------------------------------------------------------------------------------------------


def _model(options: argparse.Namespace) -> GenerativeModel:
    """The model of a spec, or what the user's own file makes."""
    return specs.build_model(options.model) if options.simulator is None else simulators.load(options.simulator)


def _chosen(options: argparse.Namespace, model: GenerativeModel) -> tuple[Planner, int | None, dict[str, str]]:
    """The planner of a plan, its limit on calls, and the reasons for what the command line does not name."""
    environment = options.model is not None and specs.is_environment(options.model)
    if options.planner is not None or not (environment or defaults.is_long(model)):
        return _named(options, model), options.max_calls, {}
    backup = None if options.backup is None else specs.build_backup(options.backup, model.actions)
    choice = defaults.choose(model, backup)
    if options.max_calls is None and options.max_seconds is None:
        return choice.planner, choice.max_calls, choice.reasons
    reasons = {name: reason for name, reason in choice.reasons.items() if name != "limit"}
    return choice.planner, options.max_calls, reasons


def _named(options: argparse.Namespace, model: GenerativeModel) -> Planner:
    """The planner that the command line names, or the default."""
    return _planner(options.planner or specs.DEFAULT_PLANNER, options.backup, model)


def _planner(planner: str, backup: str | None, model: GenerativeModel) -> Planner:
    """The planner of a spec, with the backup of another, or the one that it has without."""
    given = None if backup is None else specs.build_backup(backup, model.actions)
    return specs.build_planner(planner, given, model.actions)


def _forecast(options: argparse.Namespace, console: Console) -> None:
    model = _model(options)
    forecast = smoothplan.forecast(_named(options, model), model)
    if options.json:
        print(forecast.to_json())
        return
    console.print(forecast.table(), highlight=False, markup=False)
    console.print(forecast.summary(), highlight=False, markup=False)


def _plan(options: argparse.Namespace, console: Console) -> None:
    if options.bias is not None:
        _plan_unregularised(options, console)
        return
    model = _model(options)
    planner, max_calls, reasons = _chosen(options, model)
    if options.exact and getattr(planner, "tail", "honest") == "zero":
        raise ValueError("--exact is the discounted value, which a planner with tail=zero does not estimate")
    state = _state(options.state)
    truth = _exact(options, model, planner.backup)
    if options.graph is not None:
        if not isinstance(planner, smoothplan.OTGapE):
            raise ValueError("--graph needs a planner that explores a graph: ot-gape or mdp-gape")
        drawing.saved_kind(options.graph)  # fails before the run, not after it
    result = smoothplan.plan(planner, model, state, **_run_options(options) | {"max_calls": max_calls})
    details = result.details
    if options.graph is not None and isinstance(details, Identification):
        drawing.save(details.graph, options.graph)
    root = model.initial_state if state is None else state
    value = None if truth is None else float(truth.values[root])
    price = planner.schedule(model).calls if isinstance(planner, Scheduled) else None
    if options.json:
        extra = {"forecast": price, "chosen": reasons or None, "exact": value}
        found = {name: field for name, field in extra.items() if field is not None}
        print(json.dumps(json.loads(result.to_json()) | found))
        return
    _print(console, summaries.warning_lines(result))
    _print(console, ((name, f"{text} (chosen)") for name, text in reasons.items()))
    _print(console, summaries.plan_lines(result, price, value))
    actions = summaries.root_actions(result, None if truth is None else truth.q[root].tolist())
    if actions is not None:
        console.print(_filled(actions))


def _run_options(options: argparse.Namespace) -> dict[str, Any]:
    names = ("seed", "max_seconds", "workers", "checkpoint", "chunk_seconds", "worker_memory", "engine")
    return _given(options, *names) | {"progress": _progress(options)}


def _progress(options: argparse.Namespace) -> Shown:
    wanted = "none" if options.quiet else options.progress
    live = wanted == "live" or (wanted == "auto" and sys.stderr.isatty())
    return "json" if wanted == "json" else live


def _exact(options: argparse.Namespace, model: GenerativeModel, backup: Backup) -> Solution | None:
    """The exact solution, if it is asked for."""
    if not options.exact:
        return None
    if not isinstance(model, TabularModel):
        raise ValueError(f"--exact needs a table of states, and model {options.model or options.simulator} has none")
    return exact.solve(model, backup)


def _plan_unregularised(options: argparse.Namespace, console: Console) -> None:
    for name in ("backup", "graph"):
        if getattr(options, name) is not None:
            raise ValueError(f"--bias chooses the backup and plans for values: it cannot be used with --{name}")
    model, state = _model(options), _state(options.state)
    solution = _exact(options, model, HardMax())
    truth = None if solution is None else float(solution.values[model.initial_state if state is None else state])
    found = smoothplan.plan_unregularised(
        model,
        state,
        bias=options.bias,
        planner=None if options.planner is None else partial(specs.build_planner, options.planner),
        max_calls=options.max_calls,
        **_run_options(options),
    )
    if options.json:
        print(json.dumps(json.loads(found.to_json()) | ({} if truth is None else {"exact": truth})))
        return
    _print(console, summaries.warning_lines(found.regularised))
    _print(console, summaries.unregularised_lines(found, truth))
    console.print("What was planned, the regularised value:", highlight=False)
    _print(console, summaries.plan_lines(found.regularised), indent="  ")


def _reproduce(options: argparse.Namespace, console: Console) -> None:
    try:
        failure = json.loads(Path(options.file).read_text("utf-8"))
        spec, call, simulator = failure["model"], failure["call"], failure.get("simulator")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{options.file} is not a failing simulator call saved by a plan") from None
    if options.model is None and options.simulator is None:
        if simulator is not None:  # a file of data never says what code to run
            again = f"--simulator {shlex.quote(str(simulator))}"
            raise ValueError(f"{options.file} is about a simulator of your own, which you must name: add {again}")
        options.model = str(spec)
    model = _model(options)
    found = smoothplan.reproduce(model, json.dumps(call))
    if options.json:
        fields = {name: values.tolist() for name, values in found._asdict().items()}
        print(json.dumps({"model": options.model or options.simulator, **fields}))
        return
    console.print(f"the call did not fail this time: next states {found.next_states.tolist()}", highlight=False)
    console.print(f"rewards {found.rewards.tolist()}, terminal {found.terminals.tolist()}", highlight=False)


def _decide(options: argparse.Namespace, console: Console) -> None:
    model = _model(options)
    decision = smoothplan.decide(
        model,
        _state(options.state),
        progress=_progress(options),
        **_given(options, "calls", "seconds", "epsilon", "delta", "seed", "workers"),
    )
    if options.json:
        print(decision.to_json())
        return
    console.print(decision.summary(), highlight=False, markup=False)


def _compare(options: argparse.Namespace, console: Console) -> None:
    model = _model(options)
    backups = options.backup or [None]
    if len(backups) == 1:
        backups *= len(options.planner)
    if len(backups) != len(options.planner):
        counts = f"{len(options.planner)} planners and {len(backups)} backups"
        raise ValueError(f"--backup must be given once, or for each --planner, got {counts}")
    names = options.planner
    if options.backup is not None and len(set(names)) < len(names):  # the backups tell them apart
        names = [f"{planner} with {backup}" for planner, backup in zip(names, backups, strict=True)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"--planner must name each planner once, got {twice[0]} twice")
    made = [_planner(planner, backup, model) for planner, backup in zip(options.planner, backups, strict=True)]
    comparison = smoothplan.compare(
        dict(zip(names, made, strict=True)),
        model,
        _state(options.state),
        calls=options.calls,
        progress=not options.quiet and sys.stderr.isatty(),
        **_given(options, "seeds", "checkpoint", "workers"),
    )
    if options.csv is not None:
        comparison.to_csv(options.csv)
    if options.figure is not None:
        comparison.figure().write_html(options.figure)
    if options.json:
        print(comparison.to_json())
        return
    console.print(comparison.table(), highlight=False, markup=False)


def _check(options: argparse.Namespace, console: Console) -> None:
    model, state = _model(options), _state(options.state)
    states = None if state is None else np.asarray(state)[None]
    report = smoothplan.check_model(model, states, progress=_progress(options), **_given(options, "seed", "rounds"))
    if options.json:
        print(json.dumps(report._asdict()))
        return
    (low, high), (least, most) = report.rewards, model.reward_range
    bound = "no bound declared" if model.max_successors is None else f"declared {model.max_successors} at most"
    ends = "" if model.terminates else ", as declared"
    lines = [
        ("passed", f"{report.calls:,} simulator calls at {report.states:,} states: evidence, not proof"),
        ("rewards", f"from {low:g} to {high:g}; declared [{least:g}, {most:g}], {model.reward_kind}"),
        ("next", f"at most {report.successors} different states after one state and action; {bound}"),
        ("ends", f"{report.terminal:.1%} of the transitions end in a terminal state{ends}"),
    ]
    _print(console, lines, width=9)


def _act(options: argparse.Namespace, console: Console) -> None:
    name, keywords = specs.parse_environment(options.env)
    discount = keywords.pop("discount", options.discount)  # it may be given as in the spec of a model
    known = inspect.signature(smoothplan.act).parameters.keys() - {
        "reward_range",
        "value_range",
        "state_bytes",
        "options",
    }
    if taken := sorted(known & keywords.keys()):
        raise ValueError(f"{taken[0]} is not an option of an environment, in {options.env!r}")
    result = smoothplan.act(
        name,
        discount=discount,
        progress=not options.quiet and sys.stderr.isatty(),
        **_given(options, "calls", "seconds", "episodes", "seed", "record", "reference_calls", "max_steps"),
        **keywords,
    )
    if options.json:
        print(result.to_json())
        return
    ends = {
        "terminated": "terminated",
        "truncated": "cut off by the environment's time limit",
        "max_steps": "stopped by --max-steps",
        "interrupted": "interrupted",
    }
    table = _table("episode", "return", "discounted", "steps", "deviations", "ms/step", numbers=True)
    table.add_column("end")
    for number, episode in enumerate(result.episodes[:ROWS]):
        speed = f"{1e3 * episode.seconds / max(episode.steps, 1):.1f}"
        numbers = (f"{number}", f"{episode.score:g}", f"{episode.discounted:.4g}", f"{episode.steps}")
        table.add_row(*numbers, f"{episode.deviations}", speed, ends[episode.end])
    console.print(table)
    if len(result.episodes) > ROWS:
        console.print(f"… and {len(result.episodes) - ROWS} more episodes: --json prints all")
    lines = [*summaries.act_lines(result)]
    _print(console, lines + ([] if options.record is None else [("animation", options.record)]), width=11)


def _list(options: argparse.Namespace, console: Console) -> None:
    kind: str = options.kind
    registry: Mapping[str, specs.Factory] = options.registry
    entries: dict[str, dict[str, Any]] = {
        name: {
            "description": (inspect.getdoc(factory) or "").partition("\n")[0],
            "options": {
                key: "required" if default is inspect.Parameter.empty else default
                for key, default in specs.options_of(kind, factory).items()
            },
        }
        for name, factory in registry.items()
    }
    if options.json:
        print(json.dumps({f"{kind}s": entries}))
        return

    def written(default: Any) -> str:
        return str(default).lower() if default is None or isinstance(default, bool) else str(default)

    console.width = Console().width  # long descriptions wrap within their column
    table = _table(kind, "options and defaults", "what it is")
    for name, entry in entries.items():
        defaults_of = ", ".join(f"{key}={written(default)}" for key, default in entry["options"].items())
        table.add_row(f"[bold]{name}[/]", defaults_of, entry["description"])
    console.print(table)


def _solve(options: argparse.Namespace, console: Console) -> None:
    model, named = _model(options), options.model or options.simulator
    if not isinstance(model, TabularModel):
        raise ValueError(f"model {named} is not a table of states, and only a table has an exact solution")
    names = options.backup or ["hard-max"]
    states = options.state or list(range(model.states))
    for state in states:
        if not 0 <= state < model.states:
            raise ValueError(f"--state must be in 0..{model.states - 1}, got {state}")
    backups = [specs.build_backup(name, model.actions) for name in names]
    solutions = [exact.solve(model, backup, options.tolerance) for backup in backups]
    if options.json:
        print(json.dumps(_solution_fields(named, model, names, solutions, states)))
        return
    console.print(f"{model!r}", highlight=False)
    for number, name in enumerate(names, start=1):
        console.print(f"  ({number}) {name}", highlight=False, markup=False)
    printed = states if options.state else states[:ROWS]
    console.print(_solutions(model, solutions, printed))
    if len(printed) < len(states):
        console.print(f"… and {len(states) - len(printed)} more states: choose with --state N; --json prints all")
    largest = max(solution.error for solution in solutions)
    console.print(f"No value is off by more than {largest:.1e}, rounding included.", highlight=False)


def _solution_fields(
    name: str, model: TabularModel, names: Sequence[str], solutions: Sequence[Solution], states: Sequence[int]
) -> dict[str, Any]:
    chosen = np.array(states)
    return {
        "model": name,
        "discount": model.discount,
        "states": chosen.tolist(),
        "solutions": [
            {"backup": backup, "error": solution.error, "iterations": solution.iterations}
            | {field: getattr(solution, field)[chosen].tolist() for field in ("values", "q", "policy")}
            for backup, solution in zip(names, solutions, strict=True)
        ],
    }


def _solutions(model: TabularModel, solutions: Sequence[Solution], states: Sequence[int]) -> Table:
    """One row per state: its value and its best action under each backup."""
    actions = model.action_names or [f"action {action}" for action in range(model.actions)]
    table = _table("state")
    for number in range(1, len(solutions) + 1):
        table.add_column(f"({number}) value", justify="right")
        table.add_column(f"({number}) best action")
    for state in states:
        cells = [f"{state}: {model.state_names[state]}" if model.state_names else str(state)]
        for solution in solutions:
            if model.terminal[state]:
                cells += ["0", "[dim]terminal[/]"]
                continue
            best = int(solution.policy[state].argmax())
            cells += [f"{solution.values[state]:.6f}", f"{actions[best]} {solution.policy[state, best]:.0%}"]
        table.add_row(*cells)
    return table


COMMANDS: dict[str, Command] = {
    "plan": _plan,
    "decide": _decide,
    "forecast": _forecast,
    "compare": _compare,
    "check": _check,
    "reproduce": _reproduce,
    "act": _act,
    "models": _list,
    "backups": _list,
    "planners": _list,
    "solve": _solve,
}
"""What each command of the parser does."""


if __name__ == "__main__":
    sys.exit(main())
