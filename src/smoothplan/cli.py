"""The command line: argument parsing and printing, nothing else."""

import argparse
import inspect
import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from rich.console import Console
from rich.table import Table

import smoothplan
from smoothplan import defaults, drawing, exact, specs
from smoothplan.arguments import shown
from smoothplan.backups import Backup, HardMax
from smoothplan.exact import Solution
from smoothplan.models import GenerativeModel, SimulatorError, TabularModel
from smoothplan.plan import PlanResult
from smoothplan.running.run import Diagnosis, Estimate, Identification, Planner, Scheduled
from smoothplan.running.workers import ClusterError

ROWS = 20
"""Rows of a table of states or episodes; `--json` has all of them."""

GUIDE = """\
A model, a backup or a planner is named by a spec, name:key=value,...

  smoothplan plan --model garnet:states=50,actions=2,branching=4,discount=0.2,seed=1 \\
                  --backup lse:temperature=1 --planner debiased:epsilon=0.01,delta=0.1 --state 0 --exact
  smoothplan forecast --model garnet:discount=0.2 --planner smooth-cruiser:epsilon=0.05
                                                       the price, before any simulator call
  smoothplan plan --model river-swim:discount=0.7 --backup hard-max --planner ot-gape:epsilon=0.1 --graph seen.svg
                                                       the best action, with an interval for each
  smoothplan plan --model gym:CartPole-v1,discount=0.99
                                                       a long horizon: planner and backup are chosen for it
  smoothplan plan --model river-swim --bias 0.5        the ordinary optimal value, by smooth planning
  smoothplan act --env FrozenLake-v1,map_name=8x8 --calls 2000
                                                       plays an episode, planning at every step
  smoothplan models                                    the models, their options and defaults
  smoothplan solve --model river-swim                  exact optimal values of every state
  smoothplan solve --model river-swim --backup hard-max --backup lse:temperature=0.1 \\
                   --backup ot:tau=1,lam=0.1,cost=line the same under three backups, side by side
  smoothplan solve --model gym:FrozenLake-v1,map_name=8x8,discount=0.95 --state 0 --json
"""

Lines = Iterable[tuple[str, str]]
"""What a command prints for people: names and texts."""

Command = Callable[[argparse.Namespace, Console], None]


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(_complain(self, message, status=2))


class _Console(Console):
    """A console that leaves a closed pipe to `main`."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0, 2 if it fails, 130 if it is interrupted."""
    parser = _parser()
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
                options.command(options, console)
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
    print(f"{parser.prog}: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def _warn(parser: argparse.ArgumentParser, message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"{parser.prog}: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _failed_call(error: SimulatorError, options: argparse.Namespace) -> str:
    """What a plan found before its simulator failed, and how to repeat the failing call."""
    message = str(error)
    if error.partial is not None:
        low, high = error.partial.interval
        message += f"; so far, after {error.partial.calls:,} calls, the value is in [{low:.6g}, {high:.6g}]"
    if getattr(options, "failure", None):
        failure = {"model": options.model, "call": json.loads(error.call.to_json())}
        try:
            Path(options.failure).write_text(json.dumps(failure) + "\n", encoding="utf-8")
        except OSError as reason:
            return f"{message}; the call could not be saved: {reason}"
        message += f"; repeat the call with: smoothplan reproduce {shlex.quote(options.failure)}"
    return message


# --- Arguments ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="smoothplan",
        description="Plan with a simulator: regularised optimal values and actions.",
        epilog=GUIDE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"smoothplan {smoothplan.__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, command: Command, summary: str, description: str = "") -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(
            name,
            help=summary,
            description=description or None,
            epilog=GUIDE if description else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.add_argument("--json", action="store_true", help="print one JSON object")
        added.set_defaults(command=command)
        return added

    _add_plan(
        add(
            "plan",
            _plan,
            "the value of a state, with an interval, or its best action",
            "Plans at a state: its regularised optimal value, with an interval that holds with probability\n"
            "1 − delta, or its best action. The price of a value is known in advance: see `smoothplan forecast`.\n"
            "Without --planner, a planner for long horizons is chosen and explained if recursion would be too\n"
            "expensive or the model is a Gymnasium environment.",
        )
    )
    forecast = add(
        "forecast",
        _forecast,
        "what a plan will cost, without running it",
        "States the price of a plan in simulator calls, and how it comes about, without making any.",
    )
    _add_specs(forecast)
    again = add("reproduce", _reproduce, "repeat a simulator call that failed, with the same random numbers")
    again.add_argument("file", metavar="FILE", help="the file that the failing plan wrote")
    again.add_argument("--model", metavar="SPEC", help="another model than the one of the plan")
    _add_act(
        add(
            "act",
            _act,
            "play a Gymnasium environment, planning at every step",
            "Plays episodes of a Gymnasium environment. At every step it plans with a generative model of the\n"
            "environment, within a budget of simulator calls or seconds. The environment itself is stepped, with its\n"
            "own time limit and randomness.",
        )
    )
    for kind, registry in (("model", specs.MODELS), ("backup", specs.BACKUPS), ("planner", specs.PLANNERS)):
        listing = add(f"{kind}s", _list, f"list the {kind}s, their options and defaults")
        listing.set_defaults(kind=kind, registry=registry)
    solve = add(
        "solve",
        _solve,
        "exact values of a tabular model",
        "Solves a tabular model exactly, by value iteration with a guaranteed error.",
    )
    solve.add_argument("--model", required=True, metavar="SPEC", help="for example garnet:states=50,actions=2,seed=1")
    solve.add_argument(
        "--backup",
        action="append",
        metavar="SPEC",
        help="hard-max (the default), lse:temperature=0.1 or ot:tau=1,lam=0.1,cost=ring; repeat to compare",
    )
    solve.add_argument("--state", action="append", type=int, metavar="N", help="show this state only; may be repeated")
    solve.add_argument("--tolerance", type=float, default=1e-8, help="largest error of a value (default: %(default)s)")
    return parser


def _add_specs(command: argparse.ArgumentParser, otherwise: str = "") -> None:
    backup, planner = specs.DEFAULT_BACKUP, specs.DEFAULT_PLANNER
    command.add_argument("--model", required=True, metavar="SPEC", help="for example garnet:discount=0.2,seed=1")
    command.add_argument("--backup", metavar="SPEC", help=f"the Bellman backup (default: {backup}{otherwise})")
    command.add_argument("--planner", metavar="SPEC", help=f"planner and accuracy (default: {planner}{otherwise})")


def _add_plan(plan: argparse.ArgumentParser) -> None:
    _add_specs(plan, ", or chosen for a long horizon")
    add = plan.add_argument
    add("--bias", type=float, metavar="B", help="plan for the ordinary optimal value, with a backup off by at most B")
    add("--state", metavar="S", help="a number, or 0.1,0,0,0 for a vector; by default the initial state")
    add("--seed", type=int, default=0, help="the same seed gives the same result (default: %(default)s)")
    add("--max-calls", type=int, metavar="N", help="stop before more than N simulator calls")
    add("--max-seconds", type=float, metavar="T", help="stop after about T seconds")
    add(
        "--workers",
        type=lambda text: text if "://" in text else int(text),
        metavar="N",
        help="a number of threads or processes, or tcp://host:port of a Dask scheduler (default: 1)",
    )
    add("--checkpoint", metavar="FILE", help="save progress there, and resume from it")
    add("--chunk-seconds", type=float, metavar="T", help="fail if one chunk of work takes longer than T seconds")
    add("--worker-memory", type=int, metavar="BYTES", help="memory limit of each worker process")
    add(
        "--failure",
        metavar="FILE",
        default="smoothplan-failure.json",
        help="where a failing simulator call is saved, for `smoothplan reproduce` (default: %(default)s)",
    )
    add("--engine", choices=("auto", "compiled", "batched"), help=argparse.SUPPRESS)
    add("--exact", action="store_true", help="show the exact value for comparison (tabular models)")
    add("--graph", metavar="FILE", help="save the graph explored by ot-gape or mdp-gape: a .svg drawing, .dot or .json")
    add(
        "--progress",
        choices=("auto", "live", "json", "none"),
        default="auto",
        help="on standard error: a live line, JSON lines, or nothing; by default live on a terminal",
    )
    add("--quiet", action="store_true", help="the same as --progress none")


def _add_act(act: argparse.ArgumentParser) -> None:
    add = act.add_argument
    add("--env", required=True, metavar="SPEC", help="an id and options, such as FrozenLake-v1,map_name=8x8")
    add("--calls", type=int, metavar="N", help="simulator calls per step; 0 plays the first reference")
    add("--seconds", type=float, metavar="T", help="time per step, instead of calls")
    add("--reference-calls", type=int, metavar="N", help="simulator calls for the first reference")
    add("--episodes", type=int, default=1, metavar="E", help="number of episodes (default: %(default)s)")
    add("--max-steps", type=int, metavar="N", help="limit on the steps of an episode")
    add("--discount", type=float, default=0.99, metavar="G", help="discount for planning (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of episodes and planning (default: %(default)s)")
    add("--record", metavar="FILE", help="save the first episode as an animation: .gif or .mp4")
    add("--quiet", action="store_true", help="no progress on standard error")


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


def _table(*titles: str, numbers: bool = False) -> Table:
    """A table without lines; the columns after the first are right-aligned numbers, or texts."""
    table = Table(titles[0], box=None, pad_edge=False)
    for title in titles[1:]:
        table.add_column(title, justify="right" if numbers else "left")
    return table


def _findings(model: GenerativeModel, result: PlanResult, price: int | None, truth: float | None) -> Lines:
    """What a run found."""
    statuses = {
        "converged": "converged: within epsilon",
        "completed": "completed: the planner finished, without a promise on epsilon",
        "max_calls": "stopped by the limit on calls",
        "max_seconds": "stopped by the limit on time",
        "interrupted": "interrupted",
        "terminal": "terminal: the state is worth 0",
    }
    yield "value", _value(result)
    if truth is not None:
        yield "exact", _compared(truth, result.interval)
    yield "action", "none, the state is terminal" if result.action is None else _action(model, result)
    yield from _details(model, result)
    promised = "" if price is None else f", forecast {price:,} at most"
    yield "calls", f"{result.calls:,}{promised}, {result.seconds:.2f} s"
    yield "status", statuses[result.status]


def _sure(result: PlanResult) -> str:
    if isinstance(result.details, Identification) and not result.details.certified:
        return "(estimate: thresholds do not cover delta)"
    return f"with probability at least {1 - result.delta:g}"


def _value(result: PlanResult) -> str:
    """The value and its interval: certified, or an estimate."""
    (low, high), details = result.interval, result.details
    declared = "by the declared rewards"
    if isinstance(details, Diagnosis) and not details.certified:
        return f"{result.value:.6g} (estimate); at least {low:.6g} {_sure(result)}; at most {high:.6g}, {declared}"
    if isinstance(details, Estimate):
        noise = "" if details.standard_error is None else f" ± {details.standard_error:.2g} (one standard error)"
        cut = f"truncated at depth {details.depth}: bias at most {details.bias:.2g}"
        return f"estimate {result.value:.6g}{noise}, {cut}; in [{low:.6g}, {high:.6g}], {declared}"
    if result.delta == 0.0 and low < high:  # no sample supports the interval
        return f"{result.value:.6g} (estimate); in [{low:.6g}, {high:.6g}], {declared}"
    return f"{result.value:.6g}, in [{low:.6g}, {high:.6g}] {_sure(result)}"


def _details(model: GenerativeModel, result: PlanResult) -> Iterator[tuple[str, str]]:
    """What is particular to the planner."""
    match result.details:
        case Diagnosis(policy_interval=(worst, best)) as diagnosis:
            yield "policy", f"of the reference: worth between {worst:.6g} and {best:.6g} {_sure(result)}"
            yield "means", diagnosis.summary()
        case Identification(gap=gap, standing=standing):
            within = f"within {gap:.4g} of the best" if gap > 0.0 else "the best"
            yield "gap", f"action {_names(model)[result.action or 0]} is {within} {_sure(result)}"
            if standing is not None:
                yield "means", "; ".join(standing.sentences())


def _compared(truth: float, interval: tuple[float, float]) -> str:
    inside = interval[0] <= truth <= interval[1]
    return f"{truth:.6g}, {'inside' if inside else 'OUTSIDE'} the interval"


def _names(model: GenerativeModel) -> Sequence[str]:
    return getattr(model, "action_names", None) or [str(action) for action in range(model.actions)]


def _action(model: GenerativeModel, result: PlanResult) -> str:
    """The chosen action and the policy. They are certified only by a planner that identifies the best action."""
    names = _names(model)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(names, result.policy, strict=True))
    estimate = "" if isinstance(result.details, Identification) else " (estimate)"
    return f"{names[result.action or 0]}{estimate}; policy {shares}"


def _root_actions(model: GenerativeModel, result: PlanResult, truth: Sequence[float] | None) -> Table:
    """The interval of every root action, its simulator calls, and its exact value if known."""
    assert isinstance(result.details, Identification)
    assert result.q_intervals is not None
    exact_title = [] if truth is None else ["exact"]
    table = _table("root action", "at least", "at most", "calls", *exact_title, numbers=True)
    for action, (name, (low, high)) in enumerate(zip(_names(model), result.q_intervals, strict=True)):
        cells = [name, f"{low:.6g}", f"{high:.6g}", f"{result.details.action_calls[action]:,}"]
        table.add_row(*cells, *([] if truth is None else [f"{truth[action]:.6g}"]))
    return table


# --- Commands -------------------------------------------------------------------------------------------------------


def _chosen(options: argparse.Namespace, model: GenerativeModel) -> tuple[Planner, int | None, dict[str, str]]:
    """The planner of a plan, its limit on calls, and the reasons for what the command line does not name."""
    backup = None if options.backup is None else specs.build_backup(options.backup, model.actions)
    if options.planner is not None or not (specs.is_environment(options.model) or defaults.is_long(model)):
        return _named(options, model), options.max_calls, {}
    choice = defaults.choose(model, backup)
    if options.max_calls is None and options.max_seconds is None:
        return choice.planner, choice.max_calls, choice.reasons
    reasons = {name: reason for name, reason in choice.reasons.items() if name != "limit"}
    return choice.planner, options.max_calls, reasons


def _named(options: argparse.Namespace, model: GenerativeModel) -> Planner:
    """The planner that the command line names, or the default."""
    backup = specs.build_backup(options.backup or specs.DEFAULT_BACKUP, model.actions)
    return specs.build_planner(options.planner or specs.DEFAULT_PLANNER, backup)


def _forecast(options: argparse.Namespace, console: Console) -> None:
    model = specs.build_model(options.model)
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
    model = specs.build_model(options.model)
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
    _print(console, ((name, f"{text} (chosen)") for name, text in reasons.items()))
    _print(console, _findings(model, result, price, value))
    if isinstance(details, Identification) and result.q_intervals is not None:
        console.print(_root_actions(model, result, None if truth is None else truth.q[root].tolist()))


def _run_options(options: argparse.Namespace) -> dict[str, Any]:
    wanted = "none" if options.quiet else options.progress
    live = wanted == "live" or (wanted == "auto" and sys.stderr.isatty())
    names = ("seed", "max_seconds", "workers", "checkpoint", "chunk_seconds", "worker_memory", "engine")
    return _given(options, *names) | {"progress": "json" if wanted == "json" else live}


def _exact(options: argparse.Namespace, model: GenerativeModel, backup: Backup) -> Solution | None:
    """The exact solution, if it is asked for."""
    if not options.exact:
        return None
    if not isinstance(model, TabularModel):
        raise ValueError(f"--exact needs a table of states, and model {options.model} has none")
    return exact.solve(model, backup)


def _plan_unregularised(options: argparse.Namespace, console: Console) -> None:
    for name in ("backup", "graph"):
        if getattr(options, name) is not None:
            raise ValueError(f"--bias chooses the backup and plans for values: it cannot be used with --{name}")
    model, state = specs.build_model(options.model), _state(options.state)
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
    low, high = found.interval
    sure = _sure(found.regularised)
    lines = [("value", f"{found.value:.6g}, in [{low:.6g}, {high:.6g}] {sure}: the ordinary optimal value")]
    if truth is not None:
        lines.append(("exact", _compared(truth, found.interval)))
    least, most = found.gap
    lines.append(("backup", f"lse:temperature={found.backup.temperature:.3g}, for a bias of at most {found.bias:g}"))
    lines.append(("bias", f"the regularised value is too large by {least:.4g} to {most:.4g}, for certain"))
    reasons = {} if found.choice is None else found.choice.reasons
    _print(console, [*lines, *((name, f"{text} (chosen)") for name, text in reasons.items())])
    console.print("What was planned, the regularised value:", highlight=False)
    _print(console, _findings(model, found.regularised, None, None), indent="  ")


def _reproduce(options: argparse.Namespace, console: Console) -> None:
    try:
        failure = json.loads(Path(options.file).read_text("utf-8"))
        spec, call = failure["model"], failure["call"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{options.file} is not a failing simulator call saved by a plan") from None
    model = specs.build_model(options.model or str(spec))
    found = smoothplan.reproduce(model, json.dumps(call))
    if options.json:
        fields = {name: values.tolist() for name, values in found._asdict().items()}
        print(json.dumps({"model": options.model or spec, **fields}))
        return
    console.print(f"the call did not fail this time: next states {found.next_states.tolist()}", highlight=False)
    console.print(f"rewards {found.rewards.tolist()}, terminal {found.terminals.tolist()}", highlight=False)


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
    error = "" if result.error is None else f" ± {result.error:.2g} (standard error)"
    calls = f"{result.reference_calls:,} for the first reference, {result.calls:,} in all; {result.seconds:.1f} s"
    lines = [
        *(("warning", text) for text in result.warnings),
        ("return", f"{result.mean:.4g}{error}, of {len(result.episodes)} episodes of {result.environment}"),
        ("backup", f"lse:temperature={result.backup.temperature:.3g}, at discount {result.discount:g}"),
        ("calls", calls),
    ]
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
    model = specs.build_model(options.model)
    if not isinstance(model, TabularModel):
        raise ValueError(f"model {options.model} is not a table of states, and only a table has an exact solution")
    names = options.backup or ["hard-max"]
    states = options.state or list(range(model.states))
    for state in states:
        if not 0 <= state < model.states:
            raise ValueError(f"--state must be in 0..{model.states - 1}, got {state}")
    backups = [specs.build_backup(name, model.actions) for name in names]
    solutions = [exact.solve(model, backup, options.tolerance) for backup in backups]
    if options.json:
        print(json.dumps(_solution_fields(options.model, model, names, solutions, states)))
        return
    console.print(f"{model!r}", highlight=False)
    for number, name in enumerate(names, start=1):
        console.print(f"  ({number}) {name}", highlight=False, markup=False)
    printed = states if options.state else states[:ROWS]
    console.print(_solutions(model, solutions, printed))
    if len(printed) < len(states):
        console.print(f"… and {len(states) - len(printed)} more states: choose with --state N; --json prints all")
    largest = max(solution.error for solution in solutions)
    console.print(f"Every value is exact to within {largest:.1e}.", highlight=False)


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


if __name__ == "__main__":
    sys.exit(main())
