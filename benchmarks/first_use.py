"""First use: how long it takes, and what Numba compiles, with an empty cache.

    python benchmarks/first_use.py [--path NAME ...] [--functions]

Every path is a process of its own with a cache directory of its own. A second process measures the same with that
cache filled. CPU seconds are those of the whole process, imports included.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

DEMO = (
    "plan --model garnet:states=50,actions=2,branching=4,discount=0.2,seed=1,reward_kind=bernoulli "
    "--backup lse:temperature=1 --planner debiased:epsilon=0.01,delta=0.1 --json"
)
SEARCH = (
    "plan --model garnet:states=1000,actions=5,branching=2,discount=0.7,sparsity=0.5,seed=1 "
    "--backup hard-max --planner ot-gape:epsilon=0.2,delta=0.1 --json"
)


def _command(line: str) -> None:
    from smoothplan.cli import main

    with contextlib.redirect_stdout(None):
        main(line.split())


def table() -> None:
    """A schedule on a table, as in `make demo`."""
    _command(DEMO)


def act() -> None:
    """Acting on a compiled simulator."""
    _command("act --env CartPole-v1 --json")


def jitted() -> None:
    """A reference and chains around it on a compiled simulator."""
    import smoothplan as sp

    backup = sp.LogSumExp(0.1)
    sp.plan(sp.ReferenceCruiser(backup, epsilon=0.1), sp.models.cart_pole(), max_calls=500_000)


def search() -> None:
    """A search by bounds on a table."""
    _command(SEARCH)


PATHS: dict[str, Callable[[], None]] = {function.__name__: function for function in (table, act, jitted, search)}


class Compilations:
    """Numba's compilations: the function, its arguments, and the seconds without those of functions it calls."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str, float]] = []
        self._open: list[list[float]] = []  # for each under way, when it began and the seconds of its callees

    def listen(self) -> None:
        """Starts to record."""
        from numba.core import event

        listener = type("Recorder", (event.Listener,), {"on_start": self._start, "on_end": self._end})
        event.register("numba:compile", listener())

    def _start(self, event: Any) -> None:
        self._open.append([time.process_time(), 0.0])

    def _end(self, event: Any) -> None:
        began, callees = self._open.pop()
        taken = time.process_time() - began
        if self._open:
            self._open[-1][1] += taken
        function = event.data["dispatcher"].py_func
        name = f"{function.__module__.removeprefix('smoothplan.')}.{function.__qualname__}"
        self.done.append((name, ", ".join(str(kind) for kind in event.data["args"]), taken - callees))


def measured(path: str) -> dict[str, Any]:
    """Runs a path in this process."""
    started, compilations = time.perf_counter(), Compilations()
    compilations.listen()
    PATHS[path]()
    seconds = {"seconds": time.perf_counter() - started, "cpu": time.process_time()}
    return seconds | {"compilations": compilations.done}


def _in_process(path: str, cache: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", path]
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--path", action="append", choices=PATHS, help="measure only this one; may be repeated")
    parser.add_argument("--functions", action="store_true", help="list every compilation")
    parser.add_argument("--measure", choices=PATHS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure)))
        return
    print(f"{'path':<8} {'first use: s':>12} {'CPU s':>6} {'compilations':>13} {'functions':>10} {'again: s':>9}")
    for path in options.path or PATHS:
        with tempfile.TemporaryDirectory() as cache:
            first, again = (_in_process(path, cache) for _ in range(2))
        compilations = first["compilations"]
        functions = len({name for name, _, _ in compilations})
        print(
            f"{path:<8} {first['seconds']:12.1f} {first['cpu']:6.1f} {len(compilations):13} {functions:10} "
            f"{again['seconds']:9.1f}",
            flush=True,
        )
        if options.functions:
            for name, kinds, seconds in sorted(compilations, key=lambda one: -one[2]):
                print(f"    {seconds:6.2f} {name}({kinds if len(kinds) < 60 else kinds[:57] + '...'})")


if __name__ == "__main__":
    main()
