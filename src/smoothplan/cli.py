"""The command line. The options of a command are the parameters of a function here, and of the one that it calls.

A command returns a record, or a JSON object and a text; `main` prints one of them.
"""

import argparse
import inspect
import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast, get_args, get_origin

import numpy as np

import smoothplan
from smoothplan import specs
from smoothplan.base.arguments import shown
from smoothplan.base.records import Record, to_json
from smoothplan.decide.unregularised import choose_planner, is_long
from smoothplan.models import GenerativeModel, SimulatorError, TabularModel
from smoothplan.recursive.schedule import Scheduled
from smoothplan.report import aligned, listed, plan_summary
from smoothplan.run.chunks import ClusterError
from smoothplan.run.plan import PlanResult
from smoothplan.run.records import GapDetails, Planner
from smoothplan.theory.backups import HardMax

GUIDE = """\
A model, a backup or a planner is named by a spec, name:key=value,... Specs are parsed, and run nothing. To plan with a
simulator of your own, write --simulator my_file.py:make_model,key=value,... in place of --model: it runs that file.

  smoothplan decide --model river-swim --calls 20000   which action now, and how sure
  smoothplan plan --model garnet:states=50,actions=2,branching=4,discount=0.2,seed=1 \\
                  --backup lse:temperature=1 --planner debiased:epsilon=0.01,delta=0.1 --state 0 --exact
                                                       the value of a state, with an interval
  smoothplan forecast --model garnet:discount=0.2 --planner smooth-cruiser:epsilon=0.05
                                                       an upper bound on calls, before any simulator call
  smoothplan plan --model river-swim:discount=0.7 --backup hard-max --planner ot-gape:epsilon=0.1 --graph seen.dot
                                                       the best action, with an interval for each
  smoothplan plan --model gym:CartPole-v1              a long horizon: planner and backup are chosen for it
  smoothplan plan --model river-swim --bias 0.5        the unregularised value, by smooth planning
  smoothplan check --model cart-pole                   whether a simulator keeps its declarations
  smoothplan compare --model river-swim --planner uct --planner mdp-gape:epsilon=0.1 --calls 1000,2000 --seeds 2
  smoothplan act --env FrozenLake-v1,map_name=8x8 --calls 2000
                                                       plays an episode, planning at every step
  smoothplan planners ot-gape                          a planner's options, with explanations
  smoothplan solve --model river-swim --backup hard-max --backup lse:temperature=0.1 \\
                   --backup ot:tau=1,lam=0.1,cost=line exact values under three backups, side by side
"""

Answer = Record | tuple[Record | dict[str, Any], str]
"""A record, whose summary is printed; or a JSON object and a text."""


class Command(NamedTuple):
    """A command: a function, and the library function that takes the options it does not name itself."""

    run: Callable[..., Answer]
    calls: Callable[..., Any] | None = None

    def parameters(self) -> dict[str, tuple[inspect.Parameter, str]]:
        """The parameters that are options, each with its documentation."""
        found: dict[str, inspect.Parameter] = {}
        texts: dict[str, str] = {}
        for function in (self.run, self.calls):
            for name, parameter in {} if function is None else inspect.signature(function).parameters.items():
                if function is self.run or parameter.kind is parameter.KEYWORD_ONLY:
                    found.setdefault(name, parameter)
            texts = ({} if function is None else specs.documented(function)[1]) | texts
        hidden = ("reference", "options", "snapshot", "restore")  # not to be written on a command line
        return {name: (each, texts.get(name, "")) for name, each in found.items() if name not in hidden}


# Commands


def plan(
    model: GenerativeModel,
    state: Any = None,
    *,
    planner: str | None = None,
    backup: str | None = None,
    bias: float | None = None,
    exact: bool = False,
    graph: str | None = None,
    **options: Any,
) -> Answer:
    """The value of a state, with an interval, or its best action.

    The value is regularised; its interval holds with probability 1 − delta. At long horizons the upper end may rest on
    the model's declarations alone. `smoothplan forecast` bounds the simulator calls of a value at short horizons.

    Args:
        planner: planner and accuracy, such as debiased:epsilon=0.1, the default. For a long horizon a planner and a
            limit on calls are chosen, with reasons.
        backup: the Bellman backup, lse:temperature=1 by default; hard-max for planners of the maximum. For a long
            horizon its temperature is chosen.
        bias: plan for the unregularised value, with a backup that changes no value by more than this.
        exact: show the exact value for comparison; the model must be a table.
        graph: save the graph explored by ot-gape or mdp-gape to this file, .json or .dot.
    """
    run: Callable[..., PlanResult]
    made: Planner | None = None
    chosen: dict[str, str] = {}
    if bias is not None:
        if backup is not None or graph is not None:
            raise ValueError("--bias chooses the backup and plans for values: it excludes --backup and --graph")
        make = None if planner is None else partial(specs.build_planner, planner)
        run = partial(smoothplan.plan_unregularised, model, state, bias=bias, planner=make)
    else:
        if planner is None and is_long(model):
            given = None if backup is None else specs.build_backup(backup, model.actions)
            limits = options["max_calls"], options["max_seconds"]
            made, options["max_calls"], chosen = choose_planner(model, given, *limits)
        else:
            made = _planner(planner or specs.DEFAULT_PLANNER, backup, model)
        if exact and getattr(made, "tail", "honest") == "zero":
            raise ValueError("--exact is the discounted value, which a planner with tail=zero does not estimate")
        run = partial(smoothplan.plan, made, model, state)
    if graph is not None:  # fails before the run, not after it
        if not isinstance(made, smoothplan.OTGapE):
            raise ValueError("--graph needs a planner that explores a graph: ot-gape or mdp-gape")
        if Path(graph).suffix not in (".json", ".dot") or not Path(graph).parent.is_dir():
            raise ValueError(f"--graph must end in .json or .dot and be in a folder that exists, got {graph!r}")
    table = cast(TabularModel, model)  # `exact.solve` refuses any other
    truth = smoothplan.exact.solve(table, HardMax() if made is None else made.backup) if exact else None
    result = run(**options)
    result = replace(result, chosen=chosen or result.chosen)
    if graph is not None and isinstance(result.details, GapDetails):
        explored = result.details.graph
        text = explored.to_json() if graph.endswith(".json") else explored.to_dot()
        Path(graph).write_text(f"{text}\n", encoding="utf-8", errors="replace")
    root = model.initial_state if state is None else state
    price = made.schedule(model).calls if isinstance(made, Scheduled) else None
    value, q = (None, None) if truth is None else (float(truth.values[root]), truth.q[root].tolist())
    extra = {name: number for name, number in {"forecast": price, "exact": value}.items() if number is not None}
    return result.to_dict() | extra, plan_summary(result, price, value, q)


def decide(model: GenerativeModel, state: Any = None, **options: Any) -> Answer:
    """Which action now, and how sure, within a budget of simulator calls or seconds.

    It prints estimates with standard errors, proved intervals if there are any, and warnings.
    """
    return smoothplan.decide(model, state, **options)


def forecast(model: GenerativeModel, *, planner: str = specs.DEFAULT_PLANNER, backup: str | None = None) -> Answer:
    """An upper bound on the simulator calls of a plan, without any call.

    Args:
        planner: planner and accuracy.
        backup: the Bellman backup, lse:temperature=1 by default.
    """
    found = smoothplan.forecast(_planner(planner, backup, model), model)
    return found, f"{found.table()}\n{found.summary()}"


def compare(
    model: GenerativeModel,
    state: Any = None,
    *,
    planner: list[str],
    backup: str | None = None,
    csv: str | None = None,
    **options: Any,
) -> Answer:
    """Planners side by side, for several budgets and seeds.

    Args:
        planner: a planner; repeat the option for each.
        backup: the backup of all planners; by default as in `plan`.
        csv: save one row per run to this file.
    """
    named = {each: _planner(each, backup, model) for each in planner}
    comparison = smoothplan.compare(named, model, state, **options)
    if csv is not None:
        comparison.to_csv(csv)
    return comparison, comparison.table()


def check(model: GenerativeModel, state: Any = None, **options: Any) -> Answer:
    """Whether a simulator keeps its declarations.

    Calls it in ways that reveal wrong shapes, ranges, hidden state, and random numbers of its own. It stops at the
    first violation, and names the state and the action.

    Args:
        state: where to start; the model's initial state by default.
    """
    report = smoothplan.check_model(model, None if state is None else np.asarray(state)[None], **options)
    (low, high), (least, most) = report.rewards, model.reward_range
    bound = "no bound declared" if model.max_successors is None else f"declared {model.max_successors} at most"
    ends = "" if model.terminates else ", as declared"
    lines = [
        ("passed", f"{report.calls:,} simulator calls at {report.states:,} states: evidence, not proof"),
        (
            "rewards",
            f"from {low:g} to {high:g}; {report.note or f'declared [{least:g}, {most:g}], {model.reward_kind}'}",
        ),
        ("next", f"at most {report.successors} different states after one state and action; {bound}"),
        ("ends", f"{report.terminal:.1%} of the transitions end in a terminal state{ends}"),
    ]
    return report._asdict(), listed(lines)


def reproduce(file: str, /, model: GenerativeModel | None) -> Answer:
    """Repeats a simulator call that failed, with the same random numbers.

    Args:
        file: the file that the failing command wrote.
    """
    try:
        failure = json.loads(Path(file).read_text("utf-8"))
        spec, call, simulator = failure["model"], failure["call"], failure.get("simulator")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{file} is not a failing simulator call saved by a plan") from None
    if model is None:
        if simulator is not None:  # a file of data never says what code to run
            again = f"--simulator {shlex.quote(str(simulator))}"
            raise ValueError(f"{file} is about a simulator of your own, which you must name: add {again}")
        model = specs.build_model(str(spec))
    found = smoothplan.reproduce(model, json.dumps(call))
    text = f"the call did not fail this time: next states {found.next_states.tolist()}\n"
    text += f"rewards {found.rewards.tolist()}, terminal {found.terminals.tolist()}"
    return found._asdict(), text


def act(env: str, **options: Any) -> Answer:
    """Plays a Gymnasium environment, planning at every step.

    Args:
        env: an id and options, such as FrozenLake-v1,map_name=8x8. Its options come before those of the command.
    """
    name, keywords = specs.parse_environment(env)
    return smoothplan.act(name, **options | keywords)


def solve(
    model: GenerativeModel,
    *,
    backup: list[str] | None = None,
    state: list[int] | None = None,
    tolerance: float = 1e-8,
) -> Answer:
    """Exact values of a table, by value iteration with a bound on the error, rounding included.

    Args:
        backup: hard-max (the default), lse:temperature=0.1 or ot:tau=1,lam=0.1,cost=ring; repeat to compare.
        state: show this state only; repeat for more.
        tolerance: the largest error of a value.
    """
    names, most = backup or ["hard-max"], 20  # rows that fit on a screen; --json has all of them
    table = cast(TabularModel, model)  # `exact.solve` refuses any other
    solutions = [smoothplan.exact.solve(table, specs.build_backup(name, model.actions), tolerance) for name in names]
    states = list(range(table.states)) if state is None else state
    for each in states:
        if not isinstance(each, int) or not 0 <= each < table.states:
            raise ValueError(f"--state must be in 0..{table.states - 1}, got {shown(each)}")
    fields = [
        {"backup": name, "error": solution.error, "iterations": solution.iterations}
        | {field: getattr(solution, field)[states] for field in ("values", "q", "policy")}
        for name, solution in zip(names, solutions, strict=True)
    ]
    actions = table.action_names or [f"action {action}" for action in range(model.actions)]
    rows = [["state"]]
    for number in range(1, len(names) + 1):
        rows[0] += [f"({number}) value", f"({number}) best action"]
    for each in states[:most] if state is None else states:
        rows.append([f"{each}: {table.state_names[each]}" if table.state_names else str(each)])
        for solution in solutions:
            best = int(solution.policy[each].argmax())
            action = f"{actions[best]} {solution.policy[each, best]:.0%}"
            rows[-1] += ["0", "terminal"] if table.terminal[each] else [f"{solution.values[each]:.6f}", action]
    lines = [repr(model), *(f"  ({number}) {name}" for number, name in enumerate(names, start=1)), aligned(rows)]
    if state is None and len(states) > most:
        lines.append(f"… and {len(states) - most} more states: choose with --state N; --json prints all")
    largest = max(solution.error for solution in solutions)
    lines.append(f"No value is off by more than {largest:.1e}, rounding included.")
    about = {
        "model": repr(model),
        "discount": model.discount,
        "states": states,
        "names": list(table.action_names or map(str, range(model.actions))),
    }
    return about | {"solutions": fields}, "\n".join(lines)


def _listing(kind: str, name: str | None = None, /) -> Answer:
    """The names, options and defaults for specs.

    Args:
        name: explain the options of this one only.
    """
    entries: dict[str, Any] = {}
    lines: list[str] = []
    for each, factory in specs.REGISTRIES[kind].items() if name is None else [(name, specs.entry(kind, name))]:
        words, texts = specs.documented(factory)
        options = specs.options_of(kind, factory)
        required = {key for key, default in options.items() if default is inspect.Parameter.empty}
        written = {key: "required" if key in required else default for key, default in options.items()}
        entries[each] = {"description": " ".join(words.partition("\n\n")[0].split()), "options": written}
        lines += ["", f"{each}: {entries[each]['description']}"]
        signs = {key: f"{key}={str(default).lower()}" for key, default in written.items()}
        if name is None:
            lines += [f"    {', '.join(signs.values())}"] if signs else []
        else:
            lines += [f"    {signs[key]}: {texts.get(key, '')}" for key in options]
    return {f"{kind}s": entries}, "\n".join(lines[1:])


def _planner(planner: str, backup: str | None, model: GenerativeModel) -> Planner:
    """The planner of a spec, with the backup of another, or its own."""
    given = None if backup is None else specs.build_backup(backup, model.actions)
    return specs.build_planner(planner, given, model.actions)


COMMANDS = {
    "plan": Command(plan, smoothplan.plan),
    "decide": Command(decide, smoothplan.decide),
    "forecast": Command(forecast),
    "compare": Command(compare, smoothplan.compare),
    "check": Command(check, smoothplan.check_model),
    "reproduce": Command(reproduce),
    "act": Command(act, smoothplan.act),
    "solve": Command(solve),
    **{f"{kind}s": Command(partial(_listing, kind)) for kind in specs.REGISTRIES},
}


# Options


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, complaint(message, self.prog))


def complaint(message: str, program: str = "smoothplan") -> str:
    """An error in one line of at most 2,000 letters."""
    line = " ".join(message.split())
    return f"{program}: error: {line if len(line) <= 2_000 else f'{line[:1_000]} … {line[-900:]}'}\n"


def command_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `command` is the name of the command, or None."""
    layout = argparse.RawDescriptionHelpFormatter
    about = "Plan with a simulator: which action now, and how sure."
    parser = _Parser(prog="smoothplan", description=about, epilog=GUIDE, formatter_class=layout)
    parser.add_argument("--version", action="version", version=f"smoothplan {smoothplan.__version__}")
    parser.set_defaults(command=None)
    added = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        text = specs.documented(command.run)[0]
        first = text.partition("\n")[0].rstrip(".")
        one: argparse.ArgumentParser = added.add_parser(
            name, help=first[0].lower() + first[1:], description=text, epilog=GUIDE, formatter_class=layout
        )
        one.set_defaults(command=name)
        for parameter, said in command.parameters().values():
            _add_option(one, parameter, said.replace("%", "%%"))
        if "model" in command.parameters() and command.calls is not None:
            text = "where a failing simulator call is saved, for `smoothplan reproduce` (default: %(default)s)"
            one.add_argument("--failure", metavar="FILE", default="smoothplan-failure.json", help=text)
        one.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _add_option(parser: argparse.ArgumentParser, parameter: inspect.Parameter, text: str) -> None:
    """An option for a parameter.

    Its value is written as in a spec, and checked by the function that takes it; paths and specs are texts.
    """
    name, default = parameter.name, parameter.default
    required = default is parameter.empty
    if name == "model":
        which = parser.add_mutually_exclusive_group(required=parameter.annotation is GenerativeModel)
        which.add_argument("--model", metavar="SPEC", help="such as garnet:states=50,discount=0.2,seed=1")
        run = "your own: my_file.py:make_model,key=value,... or package.module:make_model; it is run"
        which.add_argument("--simulator", metavar="FILE:NAME", help=run)
        return
    if name == "progress":
        ways = ["auto", "live", "none"] if parameter.annotation is bool else ["auto", "live", "json", "none"]
        text = "on standard error; auto, the default, is live on a terminal"
        parser.add_argument("--progress", choices=ways, default="auto", help=text)
        parser.add_argument("--quiet", action="store_const", dest="progress", const="none", help="no progress display")
        return
    told = "" if required or default is None or isinstance(default, bool) else f" (default: {default})"
    options: dict[str, Any] = {"help": f"{text.rstrip('.')}{told}", "default": None if required else default}
    if isinstance(default, bool):
        parser.add_argument(f"--{name.replace('_', '-')}", action=argparse.BooleanOptionalAction, **options)
        return
    kinds = [parameter.annotation, *get_args(parameter.annotation)]
    kinds += [part for kind in kinds for part in get_args(kind)]
    options["type"] = str if str in kinds else _value
    if parameter.kind is parameter.POSITIONAL_ONLY:
        parser.add_argument(name, metavar=name.upper(), nargs=None if required else "?", **options)
        return
    if any(get_origin(kind) is list for kind in kinds):
        options["action"] = "append"
    metavar = name.rpartition("_")[2].upper()
    parser.add_argument(f"--{name.replace('_', '-')}", required=required, metavar=metavar, **options)


def _value(text: str) -> Any:
    """A value as in a spec; numbers between commas are a list."""
    try:
        return specs.value(f"[{text}]" if "," in text and not text.startswith("[") else text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number or numbers between commas, got {shown(text)}") from None


def _call(command: Command, options: dict[str, Any]) -> Answer:
    """Calls a command with parsed options."""
    known = command.parameters()
    given = {name: options[name] for name in known if name in options}
    if "model" in known:
        spec, file = options["model"], options["simulator"]
        given["model"] = specs.load(file) if file is not None else None if spec is None else specs.build_model(spec)
    if "progress" in known:
        wanted = options["progress"]
        live = wanted == "live" or (wanted == "auto" and sys.stderr.isatty())
        given["progress"] = "json" if wanted == "json" else live
    positional = [given.pop(name) for name, (each, _) in known.items() if each.kind is each.POSITIONAL_ONLY]
    return command.run(*positional, **given)


# Running


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0, 2 if it fails, 130 if it is interrupted."""
    parser = command_parser()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal or pipe can encode an ε
    try:
        try:
            options = vars(parser.parse_args(arguments))
            if options["command"] is None:
                parser.print_help()
                return 0
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: print(
                    f"smoothplan: warning: {' '.join(str(message).split())}", file=sys.stderr
                )
                answer = _call(COMMANDS[options["command"]], options)
            found, text = answer if isinstance(answer, tuple) else (answer, answer.summary())
            print(to_json(found) if options["json"] else text)
        finally:
            print(end="", flush=True)  # raises here, not at exit, if the output cannot be written
        return 0
    except KeyboardInterrupt:
        message, status = "interrupted", 130
    except SimulatorError as error:
        message, status = _failed_call(error, options), 2
    except (ValueError, TypeError, ArithmeticError, ImportError, MemoryError, OSError, ClusterError) as error:
        if isinstance(error, OSError):  # standard output may be closed: lets Python's own flush at exit succeed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader closed the pipe, as `head` does: not an error
            return 0
        message, status = _with_partial(error) or type(error).__name__, 2
    print(complaint(message), end="", file=sys.stderr)
    return status


def _with_partial(error: Exception) -> str:
    """An error with the result before it."""
    partial = getattr(error, "partial", None)
    return str(error) if partial is None else f"{error}; so far, {partial!r}"


def _failed_call(error: SimulatorError, options: dict[str, Any]) -> str:
    """The result before the simulator failed, and how to repeat the failing call."""
    message = _with_partial(error)
    file, simulator = options.get("failure"), options.get("simulator")
    if not file:
        return message
    failure = {"model": options["model"], "call": json.loads(error.call.to_json())}
    again = shlex.quote(file)
    if simulator is not None:
        failure["simulator"] = simulator
        again += f" --simulator {shlex.quote(simulator)}"
    try:
        Path(file).write_text(json.dumps(failure) + "\n", encoding="utf-8")
    except OSError as reason:
        return f"{message}; the call could not be saved: {reason}"
    return f"{message}; repeat the call with: smoothplan reproduce {again}"


if __name__ == "__main__":
    sys.exit(main())
