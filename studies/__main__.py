"""The command line of the studies: `python -m studies`."""

import argparse
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import studies
from studies import report
from studies.base import Scale, run
from studies.findings import Findings


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(_complain(message, status=2))


def _complain(message: str, status: int) -> int:
    print(f"studies: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m studies",
        description="Checks the claims of the theory: each study makes runs, and compares what it measured with "
        "intervals that were stated in advance.",
        epilog="examples: `python -m studies run all --quick --out evidence` takes ten minutes; then `python -m "
        "studies report evidence` makes one page of what was found",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    running = commands.add_parser(
        "run",
        help="run studies",
        description="Each study writes DIR/NAME/rows.jsonl, one JSON object per run, and findings.json. An interrupted "
        "one goes on where it stopped, when the same command is given again. The exit status is 0 if all claims hold, "
        "1 if one fails (everything is written then, too), 2 if a study could not be run, 130 if it is interrupted.",
    )
    running.add_argument("names", nargs="+", metavar="NAME", help=f"one or more of {', '.join(studies.NAMES)}; or all")
    scale = running.add_mutually_exclusive_group()
    scale.add_argument("--quick", dest="scale", action="store_const", const="quick", help="minutes (the default)")
    scale.add_argument("--full", dest="scale", action="store_const", const="full", help="hours: for a night")
    running.add_argument("--out", metavar="DIR", required=True, help="where rows and findings go")
    running.add_argument("--quiet", action="store_true", help="no progress on standard error")
    running.add_argument("--json", action="store_true", help="print one JSON object")
    running.set_defaults(scale="quick")
    page = commands.add_parser(
        "report", help="make one page", description="Writes what the studies in DIR found as one HTML page."
    )
    page.add_argument("folder", metavar="DIR", help="where `run --out DIR` wrote")
    page.add_argument("--out", metavar="FILE", help="the page (default: DIR/report.html)")
    listing = commands.add_parser("list", help="list the studies and their questions")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit status: 1 if a claim fails, 2 after an error, 130 if interrupted, else 0."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal or pipe knows an ε
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    try:
        match options.command:
            case "run":
                return _run(options, console)
            case "report":
                file = report.write(Path(options.folder), None if options.out is None else Path(options.out))
                console.print(f"wrote {escape(str(file))}: open it in any browser")
            case _:
                _list(options, console)
    except KeyboardInterrupt:
        return _complain("interrupted; the same command goes on from here", status=130)
    except (ValueError, TypeError, ArithmeticError, RuntimeError, ImportError, MemoryError, OSError) as error:
        return _complain(str(error) or type(error).__name__, status=2)
    return 0


def _list(options: argparse.Namespace, console: Console) -> None:
    questions = {name: studies.load(name).question for name in studies.NAMES}
    if options.json:
        print(json.dumps(questions))
        return
    for name, question in questions.items():
        console.print(f"[bold]{name:<12}[/]{escape(question)}")


def _run(options: argparse.Namespace, console: Console) -> int:
    for name in options.names:
        if name not in (*studies.NAMES, "all"):
            raise ValueError(f"unknown study {name!r}: choose from {', '.join(studies.NAMES)}, or all")
    if not options.out:
        raise ValueError("--out must name a folder, got ''")
    names = studies.NAMES if "all" in options.names else tuple(dict.fromkeys(options.names))
    found = []
    for name in names:
        missing = ", ".join(studies.load(name).missing)
        if missing and name not in options.names:
            print(f"studies: {name} is skipped: it needs {missing}, not installed", file=sys.stderr)
            continue
        if missing:
            raise ImportError(f"the study {name} needs {missing}: pip install {missing.replace(',', '')}")
        found.append(_shown_run(name, options.scale, Path(options.out), options.quiet or not sys.stderr.isatty()))
        if not options.json:
            _print_claims(console, found[-1], Path(options.out) / name)
    claims = [claim for findings in found for claim in findings.evidence.claims]
    failing = sum(not claim.holds for claim in claims)
    if options.json:
        print(json.dumps({"failing": failing, "studies": [json.loads(findings.to_json()) for findings in found]}))
    elif failing:
        console.print(f"[red]FAILS[/]: {failing} of {len(claims)} claims")
    return 1 if failing else 0


def _shown_run(name: str, scale: Scale, out: Path, quiet: bool) -> Findings:
    """Runs a study, with a progress bar on standard error."""
    study = studies.load(name)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    texts = TextColumn("{task.fields[settings]}")
    with Progress(*columns, texts, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task(name, total=None, settings="")

        def update(done: int, total: int, settings: Mapping[str, Any]) -> None:
            now = ", ".join(str(value) for value in settings.values())
            bar.update(task, completed=done, total=total, settings=escape(now[:36]))

        return run(study, scale, out, update)


def _print_claims(console: Console, findings: Findings, folder: Path) -> None:
    console.print(f"[bold]{findings.study}[/]  {escape(findings.title)}")
    for claim in findings.evidence.claims:
        console.print(f"  {'[green]holds[/]' if claim.holds else '[red]FAILS[/]'}  {escape(claim.verdict)}")
    console.print(f"  {findings.rows} runs, {findings.seconds:.0f} s; rows and findings are in {escape(str(folder))}")


if __name__ == "__main__":
    sys.exit(main())
