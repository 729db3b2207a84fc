"""The options of the command line: what can be written, and the help."""

import argparse
from importlib.metadata import version
from typing import NoReturn

from smoothplan import specs

GUIDE = """\
A model, a backup or a planner is named by a spec, name:key=value,... Specs are parsed, and run nothing. To plan with a
simulator of your own, write --simulator my_file.py:make_model,key=value,... in place of --model: it runs that file.

  smoothplan plan --model garnet:states=50,actions=2,branching=4,discount=0.2,seed=1 \\
                  --backup lse:temperature=1 --planner debiased:epsilon=0.01,delta=0.1 --state 0 --exact
  smoothplan forecast --model garnet:discount=0.2 --planner smooth-cruiser:epsilon=0.05
                                                       the largest price, before any simulator call
  smoothplan plan --model river-swim:discount=0.7 --backup hard-max --planner ot-gape:epsilon=0.1 --graph seen.svg
                                                       the best action, with an interval for each
  smoothplan plan --model gym:CartPole-v1,discount=0.99
                                                       a long horizon: planner and backup are chosen for it
  smoothplan check --model cart-pole                   whether a simulator keeps what it declares
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
        self.exit(2, complaint(self, message))


def complaint(parser: argparse.ArgumentParser, message: str) -> str:
    """An error in one line."""
    return f"{parser.prog}: error: {' '.join(message.split())}\n"


def command_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `command` is the name of the command, or None."""
    parser = _Parser(
        prog="smoothplan",
        description="Plan with a simulator: which action now, and how sure, with certificates where they can be had.",
        epilog=GUIDE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"smoothplan {version('smoothplan')}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, summary: str, description: str = "") -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(
            name,
            help=summary,
            description=description or None,
            epilog=GUIDE if description else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.add_argument("--json", action="store_true", help="print one JSON object")
        added.set_defaults(command=name, model=None, simulator=None)
        return added

    _add_plan(
        add(
            "plan",
            "the value of a state, with an interval, or its best action",
            "Plans at a state: its regularised optimal value, with an interval that holds with probability\n"
            "1 − delta, or its best action. At long horizons the upper end may be only what the model declares.\n"
            "The largest price of a value at short horizons is known in advance: see `smoothplan forecast`.\n"
            "Without --planner, a planner for long horizons is chosen and explained if recursion would be too\n"
            "expensive or the model is a Gymnasium environment.",
        )
    )
    _add_decide(
        add(
            "decide",
            "which action now, and how sure, on any simulator",
            "Finds the action to take at a state within a budget of simulator calls or seconds, and says how sure it\n"
            "is: estimates with standard errors, what is proved if anything is, and what a reader must know.\n\n"
            "  smoothplan decide --simulator my_file.py:make_model --calls 100000",
        )
    )
    _add_specs(
        add(
            "forecast",
            "what a plan will cost at most, without running it",
            "States the largest price of a plan in simulator calls, and how it comes about, without making any.",
        )
    )
    _add_compare(
        add(
            "compare",
            "planners side by side, for several budgets and seeds",
            "Runs planners at a state for budgets of simulator calls and for seeds 0, 1, 2, ..., and compares them.\n\n"
            "  smoothplan compare --model river-swim --planner uct --planner mdp-gape:epsilon=0.1 \\\n"
            "                     --calls 1000,10000 --csv rows.csv --figure figure.html",
        )
    )
    _add_check(
        add(
            "check",
            "whether a simulator keeps what it declares",
            "Calls a simulator in ways that reveal broken promises: shapes, ranges, hidden state, random numbers of\n"
            "its own. It stops at the first one, and names the state and the action.",
        )
    )
    again = add("reproduce", "repeat a simulator call that failed, with the same random numbers")
    again.add_argument("file", metavar="FILE", help="the file that the failing command wrote")
    _add_model(again, required=False)
    _add_act(
        add(
            "act",
            "play a Gymnasium environment, planning at every step",
            "Plays episodes of a Gymnasium environment. At every step it plans with a generative model of the\n"
            "environment, within a budget of simulator calls or seconds. The environment itself is stepped, with its\n"
            "own time limit and randomness.",
        )
    )
    for kind, registry in (("model", specs.MODELS), ("backup", specs.BACKUPS), ("planner", specs.PLANNERS)):
        listing = add(f"{kind}s", f"list the {kind}s, their options and defaults")
        listing.set_defaults(kind=kind, registry=registry)
    _add_solve(
        add(
            "solve",
            "exact values of a tabular model",
            "Solves a tabular model to a tolerance, by value iteration with a bound on the error, rounding included.",
        )
    )
    return parser


def _add_model(command: argparse.ArgumentParser, required: bool = True) -> None:
    which = command.add_mutually_exclusive_group(required=required)
    which.add_argument("--model", metavar="SPEC", help="for example garnet:states=50,discount=0.2,seed=1")
    which.add_argument(
        "--simulator",
        metavar="FILE:NAME",
        help="your own: my_file.py:make_model,key=value,... or package.module:make_model; it is run",
    )


def _add_specs(command: argparse.ArgumentParser, otherwise: str = "") -> None:
    backup, planner = specs.DEFAULT_BACKUP, specs.DEFAULT_PLANNER
    _add_model(command)
    command.add_argument(
        "--backup",
        metavar="SPEC",
        help=f"the Bellman backup (default: {backup}{otherwise}; hard-max for mdp-gape and uct, which plan for it)",
    )
    command.add_argument("--planner", metavar="SPEC", help=f"planner and accuracy (default: {planner}{otherwise})")


def _add_state(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state", metavar="S", help="a number, or 0.1,0,0,0 for a vector; by default the initial state"
    )


def _add_seed(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the same seed gives the same result, unless time is limited or a signal ends it (default: %(default)s)",
    )


def _add_workers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--workers",
        type=lambda text: text if "://" in text else int(text),
        metavar="N",
        help="a number of threads or processes, or tcp://host:port of a Dask scheduler (default: 1)",
    )


def _add_progress(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--progress",
        choices=("auto", "live", "json", "none"),
        default="auto",
        help="on standard error: a live line, JSON lines, or nothing; by default live on a terminal",
    )
    command.add_argument("--quiet", action="store_true", help="the same as --progress none")


def _add_failure(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--failure",
        metavar="FILE",
        default="smoothplan-failure.json",
        help="where a failing simulator call is saved, for `smoothplan reproduce` (default: %(default)s)",
    )


def _add_plan(plan: argparse.ArgumentParser) -> None:
    _add_specs(plan, ", or chosen for a long horizon")
    _add_state(plan)
    _add_seed(plan)
    _add_workers(plan)
    add = plan.add_argument
    add("--bias", type=float, metavar="B", help="plan for the ordinary optimal value, with a backup off by at most B")
    add("--max-calls", type=int, metavar="N", help="stop before more than N simulator calls")
    add("--max-seconds", type=float, metavar="T", help="stop after about T seconds")
    add("--checkpoint", metavar="FILE", help="save progress there, and resume from it")
    add("--chunk-seconds", type=float, metavar="T", help="fail if one chunk of work takes longer than T seconds")
    add("--worker-memory", type=int, metavar="BYTES", help="memory limit of each worker process")
    add("--engine", choices=("auto", "compiled", "batched"), help=argparse.SUPPRESS)
    add("--exact", action="store_true", help="show the exact value for comparison (tabular models)")
    add("--graph", metavar="FILE", help="save the graph explored by ot-gape or mdp-gape: a .svg drawing, .dot or .json")
    _add_progress(plan)
    _add_failure(plan)


def _add_decide(decide: argparse.ArgumentParser) -> None:
    _add_model(decide)
    _add_state(decide)
    budget = decide.add_mutually_exclusive_group()
    budget.add_argument("--calls", type=int, metavar="N", help="simulator calls, at most")
    budget.add_argument("--seconds", type=float, metavar="T", help="time, instead of calls")
    decide.add_argument("--epsilon", type=float, metavar="E", help="the gap to prove, where states recur")
    decide.add_argument("--delta", type=float, metavar="D", help="probability that a proved statement fails, at most")
    _add_seed(decide)
    _add_workers(decide)
    _add_progress(decide)
    _add_failure(decide)


def _add_compare(compare: argparse.ArgumentParser) -> None:
    _add_model(compare)
    _add_state(compare)
    add = compare.add_argument
    add("--planner", metavar="SPEC", action="append", required=True, help="a planner; repeat for each")
    add(
        "--backup",
        metavar="SPEC",
        action="append",
        help=f"of all planners, or repeated for each (default: {specs.DEFAULT_BACKUP}; hard-max for mdp-gape and uct)",
    )
    add("--calls", type=_counts, required=True, metavar="N,N,...", help="budgets of simulator calls")
    add("--seeds", type=int, metavar="N", help="number of seeds (default: 10)")
    add("--checkpoint", metavar="FILE", help="save finished runs there, and resume from it")
    add("--csv", metavar="FILE", help="save one row per run")
    add("--figure", metavar="FILE.html", help="save a figure")
    add("--quiet", action="store_true", help="no progress on standard error")
    _add_workers(compare)
    _add_failure(compare)


def _add_check(check: argparse.ArgumentParser) -> None:
    _add_model(check)
    _add_state(check)
    check.add_argument("--rounds", type=int, metavar="N", help="steps of a random walk through the model (default: 50)")
    _add_seed(check)
    _add_progress(check)
    _add_failure(check)


def _add_solve(solve: argparse.ArgumentParser) -> None:
    _add_model(solve)
    solve.add_argument(
        "--backup",
        action="append",
        metavar="SPEC",
        help="hard-max (the default), lse:temperature=0.1 or ot:tau=1,lam=0.1,cost=ring; repeat to compare",
    )
    solve.add_argument("--state", action="append", type=int, metavar="N", help="show this state only; may be repeated")
    solve.add_argument("--tolerance", type=float, default=1e-8, help="largest error of a value (default: %(default)s)")


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


def _counts(text: str) -> list[int]:
    """Whole numbers between commas; people write 1e6 for a count."""
    try:
        numbers = [float(piece) for piece in text.split(",")]
        counts = [int(number) for number in numbers]
    except (ValueError, OverflowError):
        counts = []
    if not counts or counts != numbers:
        raise argparse.ArgumentTypeError(f"must be whole numbers between commas, such as 1000,10000, got {text!r}")
    return counts
