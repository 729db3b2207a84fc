"""The command line: argument parsing and printing, nothing else."""

import argparse
import inspect
import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from rich.console import Console
from rich.table import Table

import smoothplan
from smoothplan import defaults, exact, specs
from smoothplan.arguments import Floats, shown
from smoothplan.backups import Backup
from smoothplan.exact import Solution
from smoothplan.forecast import Scheduled
from smoothplan.models import GenerativeModel, SimulatorError, TabularModel
from smoothplan.plan import PlanResult
from smoothplan.running.run import Identification, Planner
from smoothplan.running.workers import ClusterError
from smoothplan.search.explored import saved_kind

ROWS = 20
"""States shown when nobody asks for particular ones."""

WIDE = 10_000
"""Columns of a table of values: more than it can need."""

GUIDE = """\
A model, a backup or a planner is named by a spec, name:key=value,...

  smoothplan plan --model garnet:states=50,actions=2,branching=4,discount=0.2,seed=1 \\
                  --backup lse:temperature=1 --planner second-order:epsilon=0.01,delta=0.1 --state 0 --exact
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


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(_complain(self, message, status=2))


class _Console(Console):
    """A console that leaves a reader who went away to `main`."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 2 if it fails, 130 if it is interrupted, else the command's."""
    parser = _parser()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal or pipe knows an ε
    try:
        try:
            options = parser.parse_args(arguments)
            if options.command is None:
                parser.print_help()
                return 0
            command: Callable[[argparse.Namespace, Console], int | None] = options.command
            with warnings.catch_warnings():
                warnings.showwarning = partial(_warn, parser)
                return command(options, _Console()) or 0
        finally:
            print(end="", flush=True)  # what cannot be written shows here, whatever was printed
    except KeyboardInterrupt:
        return _complain(parser, "interrupted", status=130)
    except BrokenPipeError:
        _discard_output()  # the reader left, as `head` does: not an error
    except SimulatorError as error:
        return _complain(parser, _written_down(error, options), status=2)
    except (ValueError, TypeError, ArithmeticError, ImportError, MemoryError, OSError, ClusterError) as error:
        if isinstance(error, OSError):
            _discard_output()
        return _complain(parser, str(error) or type(error).__name__, status=2)
    return 0


def _discard_output() -> None:
    """Lets Python's own flush at exit succeed, where standard output has gone away."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(parser: argparse.ArgumentParser, message: str, status: int) -> int:
    print(f"{parser.prog}: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def _warn(parser: argparse.ArgumentParser, message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"{parser.prog}: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _written_down(error: SimulatorError, options: argparse.Namespace) -> str:
    """What became of a plan whose simulator failed, and how the call can be made again."""
    message = str(error)
    if error.partial is not None:
        low, high = error.partial.interval
        message += f"; so far, after {error.partial.calls:,} calls, the value is in [{low:.6g}, {high:.6g}]"
    if getattr(options, "failure", None):
        failure = {"model": options.model, "call": json.loads(error.call.to_json())}
        try:
            Path(options.failure).write_text(json.dumps(failure) + "\n", encoding="utf-8")
        except OSError as reason:
            return f"{message}; the call could not be written down: {reason}"
        message += f"; make the call again with: smoothplan reproduce {shlex.quote(options.failure)}"
    return message


def _reproduce(options: argparse.Namespace, console: Console) -> None:
    try:
        failure = json.loads(Path(options.file).read_text("utf-8"))
        spec, call = failure["model"], failure["call"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{options.file} is not what a plan wrote down of a failing simulator call") from None
    model = specs.build_model(options.model or str(spec))
    found = smoothplan.reproduce(model, json.dumps(call))
    if options.json:
        fields = {name: values.tolist() for name, values in found._asdict().items()}
        print(json.dumps({"model": options.model or spec, **fields}))
        return
    console.print(f"the call did not fail this time: next states {found.next_states.tolist()}", highlight=False)
    console.print(f"rewards {found.rewards.tolist()}, terminal {found.terminals.tolist()}", highlight=False)


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="smoothplan",
        description="Plan with a simulator: regularised optimal values and actions.",
        epilog=GUIDE,
        formatter_class=layout,
    )
    parser.add_argument("--version", action="version", version=f"smoothplan {smoothplan.__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    plan = commands.add_parser(
        "plan",
        help="the value of a state, with an interval, or its best action",
        description="Plans at a state: its regularised optimal value, with an interval that holds with probability "
        "1 − delta, or its best action. The price of a value is known before the start: see `smoothplan forecast`. "
        "Where no planner is named and recursion would take for ever, or the model is a Gymnasium environment, one "
        "that follows chains around a reference is chosen, with a backup, and the choice is explained.",
        epilog=GUIDE,
        formatter_class=layout,
    )
    forecast = commands.add_parser(
        "forecast",
        help="what a plan will cost, without running it",
        description="States the price of a plan in simulator calls, and how it comes about, without making any.",
        epilog=GUIDE,
        formatter_class=layout,
    )
    for command in (plan, forecast):
        command.add_argument("--model", required=True, metavar="SPEC", help="for example garnet:discount=0.2,seed=1")
        chosen = "" if command is forecast else ", or chosen for a long horizon"
        command.add_argument(
            "--backup", metavar="SPEC", help=f"what is planned for (default: {specs.DEFAULT_BACKUP}{chosen})"
        )
        command.add_argument(
            "--planner", metavar="SPEC", help=f"how, and how accurately (default: {specs.DEFAULT_PLANNER}{chosen})"
        )
        command.add_argument("--json", action="store_true", help="print one JSON object")
    plan.add_argument(
        "--bias",
        type=float,
        metavar="B",
        help="plan for the ordinary optimal value, with a backup that is off by at most B, instead of --backup",
    )
    plan.add_argument("--state", metavar="S", help="a number, or 0.1,0,0,0 for a vector; by default the initial state")
    plan.add_argument("--seed", type=int, default=0, help="the same seed gives the same result (default: %(default)s)")
    plan.add_argument("--max-calls", type=int, metavar="N", help="stop before more than N simulator calls")
    plan.add_argument("--max-seconds", type=float, metavar="T", help="stop after about T seconds")
    plan.add_argument("--workers", type=int, default=1, metavar="N", help="how many work (default: %(default)s)")
    plan.add_argument(
        "--pool",
        choices=("auto", "threads", "processes"),
        default="auto",
        help="threads suit compiled engines, processes simulators in Python; by default what suits",
    )
    plan.add_argument(
        "--cluster", metavar="WHERE", help="a Dask cluster that does the work: local, or tcp://host:port of a scheduler"
    )
    plan.add_argument("--checkpoint", metavar="FILE", help="keep what is done there, and go on where it ends")
    plan.add_argument(
        "--simulator-timeout", type=float, metavar="T", help="a call of the simulator may take so many seconds"
    )
    plan.add_argument(
        "--failure",
        metavar="FILE",
        default="smoothplan-failure.json",
        help="where a failing simulator call is written down, for `smoothplan reproduce` (default: %(default)s)",
    )
    plan.add_argument("--engine", choices=("auto", "compiled", "batched"), default="auto", help=argparse.SUPPRESS)
    plan.add_argument("--exact", action="store_true", help="show the exact value beside it (tabular models)")
    plan.add_argument(
        "--graph", metavar="FILE", help="save what a search by bounds explored: a .svg drawing, .dot or .json"
    )
    plan.add_argument(
        "--progress",
        choices=("auto", "live", "json", "none"),
        default="auto",
        help="on standard error: a live line, JSON lines for machines, or nothing; by default live on a terminal",
    )
    plan.add_argument("--quiet", action="store_true", help="the same as --progress none")
    plan.set_defaults(command=_plan)
    forecast.set_defaults(command=_forecast)

    again = commands.add_parser(
        "reproduce",
        help="make a simulator call again that went wrong",
        description="Makes the simulator call again that ended a plan, with the same random numbers.",
    )
    again.add_argument("file", metavar="FILE", help="what the plan wrote down")
    again.add_argument("--model", metavar="SPEC", help="another model than the one of the plan")
    again.add_argument("--json", action="store_true", help="print one JSON object")
    again.set_defaults(command=_reproduce)

    _add_act(commands)
    for kind, registry in (("model", specs.MODELS), ("backup", specs.BACKUPS), ("planner", specs.PLANNERS)):
        listing = commands.add_parser(f"{kind}s", help=f"list the {kind}s, their options and defaults")
        listing.add_argument("--json", action="store_true", help="print one JSON object")
        listing.set_defaults(command=_list, kind=kind, registry=registry)

    solve = commands.add_parser(
        "solve",
        help="exact values of a tabular model",
        description="Solves a tabular model exactly, by value iteration with a guaranteed error.",
        epilog=GUIDE,
        formatter_class=layout,
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
    solve.add_argument("--json", action="store_true", help="print one JSON object")
    solve.set_defaults(command=_solve)
    return parser


def _add_act(commands: Any) -> None:
    act = commands.add_parser(
        "act",
        help="play a Gymnasium environment, planning at every step",
        description="Plays episodes of a Gymnasium environment. At every step it plans with a generative model of the "
        "environment, within a budget of simulator calls or seconds. The environment itself is stepped, with its own "
        "time limit and randomness.",
        epilog=GUIDE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    act.add_argument("--env", required=True, metavar="SPEC", help="an id and options, as FrozenLake-v1,map_name=8x8")
    act.add_argument("--calls", type=int, metavar="N", help="simulator calls for a step; 0 plays the first reference")
    act.add_argument("--seconds", type=float, metavar="T", help="time for a step, instead of calls")
    act.add_argument("--reference-calls", type=int, metavar="N", help="simulator calls for the first reference, about")
    act.add_argument("--episodes", type=int, default=1, metavar="E", help="how many (default: %(default)s)")
    act.add_argument("--max-steps", type=int, metavar="N", help="steps of an episode, at most")
    act.add_argument("--discount", type=float, default=0.99, metavar="G", help="of planning (default: %(default)s)")
    act.add_argument("--seed", type=int, default=0, help="of episodes and planning (default: %(default)s)")
    act.add_argument("--record", metavar="FILE", help="save the first episode as an animation (GIF; needs Pillow)")
    act.add_argument("--quiet", action="store_true", help="no progress on standard error")
    act.add_argument("--json", action="store_true", help="print one JSON object")
    act.set_defaults(command=_act)


def _act(options: argparse.Namespace, console: Console) -> None:
    name, keywords = specs.parse_environment(options.env)
    discount = keywords.pop("discount", options.discount)  # where it stands in the spec of a model
    known = inspect.signature(smoothplan.act).parameters.keys() - {"reward_range", "options"}
    if taken := sorted(known & keywords.keys()):
        raise ValueError(f"{taken[0]} is not an option of an environment, in {options.env!r}")
    given = {name: getattr(options, name) for name in ("reference_calls", "max_steps")}
    result = smoothplan.act(
        name,
        discount=discount,
        calls=options.calls,
        seconds=options.seconds,
        episodes=options.episodes,
        seed=options.seed,
        record=options.record,
        progress=not options.quiet and sys.stderr.isatty(),
        **{name: value for name, value in given.items() if value is not None},
        **keywords,
    )
    if options.json:
        print(result.to_json())
        return
    console.width = max(console.width, WIDE)
    table = Table(box=None, pad_edge=False)
    for title in ("episode", "return", "discounted", "steps", "deviations", "ms/step"):
        table.add_column(title, justify="right")
    table.add_column("end")
    for number, episode in enumerate(result.episodes[:ROWS]):
        speed = f"{1e3 * episode.seconds / max(episode.steps, 1):.1f}"
        numbers = (f"{number}", f"{episode.score:g}", f"{episode.discounted:.4g}", f"{episode.steps}")
        table.add_row(*numbers, f"{episode.deviations}", speed, ENDS[episode.end])
    console.print(table)
    if len(result.episodes) > ROWS:
        console.print(f"… and {len(result.episodes) - ROWS} more episodes: take all with --json")
    error = "" if result.error is None else f" ± {result.error:.2g} (standard error)"
    for title, text in (
        ("return", f"{result.mean:.4g}{error}, of {len(result.episodes)} episodes of {result.environment}"),
        ("backup", f"lse:temperature={result.backup.temperature:.3g}, at discount {result.discount:g}"),
        (
            "calls",
            f"{result.reference_calls:,} for the first reference, {result.calls:,} in all; {result.seconds:.1f} s",
        ),
    ):
        console.print(f"[bold]{title:<11}[/]{text}", highlight=False)
    if options.record is not None:
        console.print(f"[bold]{'animation':<11}[/]{options.record}", highlight=False)


ENDS = {
    "terminated": "terminated",
    "truncated": "cut off by the environment's time limit",
    "max_steps": "given up after --max-steps",
    "interrupted": "interrupted",
}


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
    table = Table(kind, "options and defaults", "what it is", box=None, pad_edge=False)
    for name, entry in entries.items():
        defaults = ", ".join(f"{key}={_shown(default)}" for key, default in entry["options"].items())
        table.add_row(f"[bold]{name}[/]", defaults, entry["description"])
    console.print(table)


def _shown(default: Any) -> str:
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)


class _Setting(NamedTuple):
    """What a command line names, or what was chosen where it does not."""

    model: GenerativeModel
    backup: Backup
    planner: Planner
    max_calls: int | None
    reasons: dict[str, str]  # of what was chosen


def _setting(options: argparse.Namespace, *, may_choose: bool) -> _Setting:
    model = specs.build_model(options.model)
    backup = None if options.backup is None else specs.build_backup(options.backup, model.actions)
    limits = getattr(options, "max_calls", None), getattr(options, "max_seconds", None)
    if may_choose and options.planner is None and (specs.is_environment(options.model) or defaults.is_long(model)):
        choice = defaults.choose(model, backup)
        if limits == (None, None):
            return _Setting(model, choice.planner.backup, choice.planner, choice.max_calls, choice.reasons)
        reasons = {name: reason for name, reason in choice.reasons.items() if name != "limit"}
        return _Setting(model, choice.planner.backup, choice.planner, limits[0], reasons)
    backup = backup or specs.build_backup(specs.DEFAULT_BACKUP, model.actions)
    return _Setting(model, backup, specs.build_planner(options.planner or specs.DEFAULT_PLANNER, backup), limits[0], {})


def _forecast(options: argparse.Namespace, console: Console) -> None:
    setting = _setting(options, may_choose=False)
    forecast = smoothplan.forecast(setting.planner, setting.model)
    if options.json:
        print(forecast.to_json())
        return
    console.width = max(console.width, WIDE)
    console.print(forecast.table(), highlight=False, markup=False)
    console.print(forecast.summary(), highlight=False, markup=False)


def _plan(options: argparse.Namespace, console: Console) -> None:
    if options.bias is not None:
        _plan_unregularised(options, console)
        return
    model, backup, planner, max_calls, reasons = _setting(options, may_choose=True)
    truth = None
    if options.exact:
        _has_truth(options, model)
        if getattr(planner, "tail", "honest") == "zero":
            raise ValueError("--exact is the discounted value, and a planner with tail=zero has another aim")
        truth = exact.solve(model, backup)  # type: ignore[arg-type]
    if options.graph is not None:
        if not isinstance(planner, smoothplan.OTGapE):
            raise ValueError("--graph needs a planner that explores a graph: ot-gape or mdp-gape")
        saved_kind(options.graph)  # before the work, not after it
    state = None if options.state is None else _state(options.state)
    result = smoothplan.plan(
        planner, model, state, max_calls=max_calls, max_seconds=options.max_seconds, **_run_options(options)
    )
    if options.graph is not None and result.identification is not None:
        result.identification.graph.save(options.graph)
    root = model.initial_state if state is None else state
    price = planner.schedule(model).calls if isinstance(planner, Scheduled) else None
    if options.json:
        fields = json.loads(result.to_json()) | ({} if price is None else {"forecast": price})
        fields |= {"chosen": reasons} if reasons else {}
        print(json.dumps(fields | ({} if truth is None else {"exact": float(truth.values[root])})))
        return
    console.width = max(console.width, WIDE)
    for name, text in reasons.items():
        console.print(f"[bold]{name:<8}[/]{text} (chosen)", highlight=False)
    for name, text in _findings(model, result, price, None if truth is None else float(truth.values[root])):
        console.print(f"[bold]{name:<8}[/]{text}", highlight=False)
    if result.identification is not None and result.q_intervals is not None:
        console.print(_actions(model, result, result.identification, None if truth is None else truth.q[root]))


def _run_options(options: argparse.Namespace) -> dict[str, Any]:
    wanted = "none" if options.quiet else options.progress
    live = wanted == "live" or (wanted == "auto" and sys.stderr.isatty())
    names = ("seed", "workers", "pool", "cluster", "checkpoint", "simulator_timeout", "engine")
    return {name: getattr(options, name) for name in names} | {"progress": "json" if wanted == "json" else live}


def _has_truth(options: argparse.Namespace, model: GenerativeModel) -> None:
    if not isinstance(model, TabularModel):
        raise ValueError(f"--exact needs a table of states, and model {options.model} is none")


def _plan_unregularised(options: argparse.Namespace, console: Console) -> None:
    for name in ("backup", "graph"):
        if getattr(options, name) is not None:
            raise ValueError(f"--bias chooses the backup and plans for values: it does not go with --{name}")
    model = specs.build_model(options.model)
    truth = None
    state = None if options.state is None else _state(options.state)
    if options.exact:
        _has_truth(options, model)
        values = exact.solve(model, smoothplan.HardMax()).values  # type: ignore[arg-type]
        truth = float(values[model.initial_state if state is None else state])
    found = smoothplan.plan_unregularised(
        model,
        state,
        bias=options.bias,
        planner=None if options.planner is None else partial(specs.build_planner, options.planner),
        max_calls=options.max_calls,
        max_seconds=options.max_seconds,
        **_run_options(options),
    )
    if options.json:
        print(json.dumps(json.loads(found.to_json()) | ({} if truth is None else {"exact": truth})))
        return
    console.width = max(console.width, WIDE)
    low, high = found.interval
    regularised = "the regularised value"
    sure = f"with probability at least {1 - found.regularised.delta:g}"
    lines = [("value", f"{found.value:.6g}, in [{low:.6g}, {high:.6g}] {sure}: the ordinary optimal value")]
    if truth is not None:
        lines.append(("exact", f"{truth:.6g}, {'inside' if low <= truth <= high else 'OUTSIDE'} the interval"))
    lines.append(("backup", f"lse:temperature={found.backup.temperature:.3g}, for a bias of at most {found.bias:g}"))
    lines.append(("bias", f"{regularised} is too large by {found.gap.low:.4g} to {found.gap.high:.4g}, for certain"))
    reasons = {} if found.choice is None else found.choice.reasons
    lines += [(name, f"{text} (chosen)") for name, text in reasons.items()]
    for name, text in lines:
        console.print(f"[bold]{name:<8}[/]{text}", highlight=False)
    console.print(f"What was planned, {regularised}:", highlight=False)
    for name, text in _findings(model, found.regularised, None, None):
        console.print(f"  [bold]{name:<8}[/]{text}", highlight=False)


def _findings(
    model: GenerativeModel, result: PlanResult, price: int | None, truth: float | None
) -> Iterator[tuple[str, str]]:
    """What a run found, line by line: a name and a text."""
    low, high = result.interval
    found = result.identification
    sure = f"with probability at least {1 - result.delta:g}"
    if found is not None and not found.certified:
        sure = "(estimate: thresholds do not cover delta)"
    around = result.diagnosis
    if around is not None and not around.certified:
        yield (
            "value",
            f"{result.value:.6g} (estimate); at least {low:.6g} {sure}; at most {high:.6g}, by what is declared",
        )
    elif result.truncation is not None:
        noise = "" if result.standard_error is None else f" ± {result.standard_error:.2g} (one standard error)"
        cut = f"truncated at depth {result.truncation.depth}: bias at most {result.truncation.bias:.2g}"
        yield "value", f"estimate {result.value:.6g}{noise}, {cut}; in [{low:.6g}, {high:.6g}], by what is declared"
    elif result.delta == 0.0 and low < high:  # no sample stands behind the interval
        yield "value", f"{result.value:.6g} (estimate); in [{low:.6g}, {high:.6g}], by what is declared"
    else:
        yield "value", f"{result.value:.6g}, in [{low:.6g}, {high:.6g}] {sure}"
    if truth is not None:
        yield "exact", f"{truth:.6g}, {'inside' if low <= truth <= high else 'OUTSIDE'} the interval"
    yield "action", "none, the state is terminal" if result.action is None else _choice(model, result)
    if around is not None:
        worst, best = around.policy_interval
        yield "policy", f"of the reference: worth between {worst:.6g} and {best:.6g} {sure}"
        yield "means", around.summary()
    if found is not None:
        within = f"within {found.gap:.4g} of the best" if found.gap > 0.0 else "the best"
        yield "gap", f"action {_names(model)[result.action or 0]} is {within} {sure}"
    promised = "" if price is None else f", forecast {price:,} at most"
    yield "calls", f"{result.calls:,}{promised}, {result.seconds:.2f} s"
    yield "status", STATUS[result.status]


def _actions(model: GenerativeModel, result: PlanResult, found: Identification, truth: Floats | None) -> Table:
    """The interval of every root action, what it cost, and where it is known, the exact value."""
    table = Table("root action", box=None, pad_edge=False)
    for title in ("at least", "at most", "calls", *([] if truth is None else ["exact"])):
        table.add_column(title, justify="right")
    assert result.q_intervals is not None
    for action, (name, (low, high)) in enumerate(zip(_names(model), result.q_intervals, strict=True)):
        cells = [name, f"{low:.6g}", f"{high:.6g}", f"{found.action_calls[action]:,}"]
        table.add_row(*cells, *([] if truth is None else [f"{truth[action]:.6g}"]))
    return table


STATUS = {
    "converged": "converged: within epsilon",
    "completed": "completed: the planner came to its own end, which promises no epsilon",
    "max_calls": "stopped by the limit on calls",
    "max_seconds": "stopped by the limit on time",
    "interrupted": "interrupted",
    "terminal": "terminal: the state is worth 0",
}


def _names(model: GenerativeModel) -> Sequence[str]:
    return getattr(model, "action_names", None) or [str(action) for action in range(model.actions)]


def _choice(model: GenerativeModel, result: PlanResult) -> str:
    """The chosen action, and how the policy would play. Without an identification neither is certified."""
    names = _names(model)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(names, result.policy, strict=True))
    estimate = " (estimate)" if result.identification is None else ""
    return f"{names[result.action or 0]}{estimate}; policy {shares}"


def _state(text: str) -> Any:
    """A number, or numbers between commas."""
    try:
        state = json.loads(text if "," not in text or text.startswith("[") else f"[{text}]")
    except (ValueError, RecursionError):
        raise ValueError(f"--state must be a number or numbers between commas, got {shown(text)}") from None
    return state


def _solve(options: argparse.Namespace, console: Console) -> None:
    model = specs.build_model(options.model)
    if not isinstance(model, TabularModel):
        raise ValueError(f"model {options.model} is not a table of states, and only a table has an exact solution")
    names = options.backup or ["hard-max"]
    backups = [specs.build_backup(name, model.actions) for name in names]
    states = options.state or range(model.states)
    for state in states:
        if not 0 <= state < model.states:
            raise ValueError(f"--state must be in 0..{model.states - 1}, got {state}")
    solutions = [exact.solve(model, backup, options.tolerance) for backup in backups]
    if options.json:
        print(json.dumps(_solution_object(options.model, model, names, solutions, states)))
    else:
        _print_solutions(console, model, names, solutions, states, everything=bool(options.state))


def _solution_object(
    name: str, model: TabularModel, names: Sequence[str], solutions: Sequence[Solution], states: Sequence[int]
) -> dict[str, Any]:
    chosen = np.array(states)
    return {
        "model": name,
        "discount": model.discount,
        "states": chosen.tolist(),
        "solutions": [
            {
                "backup": backup,
                "values": solution.values[chosen].tolist(),
                "q": solution.q[chosen].tolist(),
                "policy": solution.policy[chosen].tolist(),
                "error": solution.error,
                "iterations": solution.iterations,
            }
            for backup, solution in zip(names, solutions, strict=True)
        ],
    }


def _print_solutions(
    console: Console,
    model: TabularModel,
    names: Sequence[str],
    solutions: Sequence[Solution],
    states: Sequence[int],
    *,
    everything: bool,
) -> None:
    shown = list(states) if everything else list(states)[:ROWS]
    actions = model.action_names or [f"action {action}" for action in range(model.actions)]
    console.width = max(console.width, WIDE)  # a line that is too long wraps; no digit is left out
    console.print(f"{model!r}", highlight=False)
    for number, name in enumerate(names, start=1):
        console.print(f"  ({number}) {name}", highlight=False, markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("state")
    for number in range(1, len(names) + 1):
        table.add_column(f"({number}) value", justify="right")
        table.add_column(f"({number}) best action")
    for state in shown:
        cells = [f"{state}: {model.state_names[state]}" if model.state_names else str(state)]
        for solution in solutions:
            if model.terminal[state]:
                cells += ["0", "[dim]terminal[/]"]
                continue
            best = int(solution.policy[state].argmax())
            cells += [f"{solution.values[state]:.6f}", f"{actions[best]} {solution.policy[state, best]:.0%}"]
        table.add_row(*cells)
    console.print(table)
    if len(shown) < len(states):
        console.print(f"… and {len(states) - len(shown)} more states: choose with --state N, or take all with --json")
    largest = max(solution.error for solution in solutions)
    console.print(f"Every value is exact to within {largest:.1e}.", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
