"""The command line: argument parsing and printing, nothing else."""

import argparse
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from rich.console import Console
from rich.table import Table

import smoothplan
from smoothplan import exact, specs
from smoothplan.exact import Solution
from smoothplan.models import TabularModel

ROWS = 20
"""States shown when nobody asks for particular ones."""

WIDE = 10_000
"""Columns of a table of values: more than it can need."""

GUIDE = """\
A model, a backup or a planner is named by a spec, name:key=value,...

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
    """Runs one command and returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace, Console], None] = options.command
    try:
        command(options, _Console())
        print(end="", flush=True)
    except KeyboardInterrupt:
        return _complain(parser, "interrupted", status=130)
    except BrokenPipeError:
        # The reader left, as `head` does: not an error. Python's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, TypeError, ArithmeticError, ImportError, MemoryError, OSError) as error:
        return _complain(parser, str(error) or type(error).__name__, status=2)
    return 0


def _complain(parser: argparse.ArgumentParser, message: str, status: int) -> int:
    print(f"{parser.prog}: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="smoothplan",
        description="Plan with a simulator: regularised optimal values and actions.",
        epilog=GUIDE,
        formatter_class=layout,
    )
    parser.add_argument("--version", action="version", version=f"smoothplan {smoothplan.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

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


def _list(options: argparse.Namespace, console: Console) -> None:
    kind: str = options.kind
    registry: Mapping[str, specs.Factory] = options.registry
    entries: dict[str, dict[str, Any]] = {
        name: {
            "description": (inspect.getdoc(factory) or "").partition("\n")[0],
            "options": {
                key: None if default is inspect.Parameter.empty else default
                for key, default in specs.options_of(kind, factory).items()
            },
        }
        for name, factory in registry.items()
    }
    if options.json:
        print(json.dumps({f"{kind}s": entries}))
        return
    if not entries:
        print(f"This version has no {kind}s.")
        return
    table = Table(kind, "options and defaults", "what it is", box=None, pad_edge=False)
    for name, entry in entries.items():
        defaults = ", ".join(f"{key}={_shown(default)}" for key, default in entry["options"].items())
        table.add_row(f"[bold]{name}[/]", defaults, entry["description"])
    console.print(table)


def _shown(default: Any) -> str:
    return "…" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


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
        cells = [model.state_names[state] if model.state_names else str(state)]
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
