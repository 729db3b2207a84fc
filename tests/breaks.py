"""Deliberate breaks of the library, each with tests that must notice it: `python -m tests.breaks [--only NAME]`.

A break of breaks.toml replaces one piece of text below src/smoothplan, in a copy of the tree. The text must occur
exactly once, in any module; tests are found by the names of their functions, in any file. So breaks survive moves of
both. Run them after tests were deleted or rewritten: a break that is missed is a hole in the suite. All take an hour.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__)


class Break(NamedTuple):
    name: str
    old: str
    new: str
    tests: list[str]  # names of functions, with or without the [id] of a case; one must fail


def read(path: Path, instead: Path | None = None) -> list[Break]:
    """The breaks of a file. A second one may have other fields for some of them, or none for those to leave out."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    other = {} if instead is None else tomllib.loads(instead.read_text(encoding="utf-8"))
    fields = {name: given | other.get(name, {}) for name, given in found.items() if other.get(name) != {}}
    return [Break(name, given["old"], given["new"], given["tests"]) for name, given in fields.items()]


class Copy:
    """A copy of a tree, in which one break at a time is made and its tests are run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder, self._tree = folder, folder / "tree"
        unneeded = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "site")
        shutil.copytree(root, self._tree, ignore=unneeded)
        self._texts = {path: path.read_text("utf-8") for path in (self._tree / "src" / "smoothplan").rglob("*.py")}
        self._nodes: dict[str, list[str]] = {}  # of pytest, by the name of the function
        for path in sorted((self._tree / "tests").rglob("test_*.py")):
            for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE):
                self._nodes.setdefault(name, []).append(f"{path.relative_to(self._tree)}::{name}")
        # A cache of compiled code depends on all modules that a kernel imports. Here a break in Python code uses it.
        for path, text in self._texts.items():
            self._texts[path] = text.replace("for path in sorted(texts):", "for path in list[Path]():")
            path.write_text(self._texts[path], "utf-8")

    def _found(self, test: str) -> list[str]:
        name, bracket, case = test.partition("[")
        return [f"{node}{bracket}{case}" for node in self._nodes.get(name, ())]

    def failing(self, tests: list[str], seconds: float, cache: str, *options: str) -> tuple[int, list[str]]:
        """Runs tests: the exit status of pytest, and the names of those that fail."""
        nodes = sorted({node for name in tests for node in self._found(name)})
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", *options, *nodes]
        paths = {"PYTHONPATH": f"{self._tree / 'src'}:{self._tree}", "NUMBA_CACHE_DIR": str(self._folder / cache)}
        try:
            done = subprocess.run(
                command, cwd=self._tree, env=os.environ | paths, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return 1, [f"{seconds:g} s without an end"]
        return done.returncode, re.findall(r"^(?:FAILED|ERROR) \S*?(test_\w+)\b(?!\.py)", done.stdout, re.MULTILINE)

    def verdict(self, broken: Break) -> str:
        """Makes a break, runs its tests, and takes it back."""
        places = [path for path, text in self._texts.items() for _ in range(text.count(broken.old))]
        if len(places) != 1:
            return f"UNCLEAR: its text occurs {len(places)} times"
        for name in broken.tests:
            if not self._found(name):
                return f"UNCLEAR: there is no {name}"
        path, text = places[0], self._texts[places[0]]
        # Code that is compiled from broken text must not come from a cache, nor stay in one.
        cache = "broken" if re.search(r"@(partial\()?compiled\b|= compiled\(", text) else "whole"
        path.write_text(text.replace(broken.old, broken.new), "utf-8")
        try:
            status, failing = self.failing(broken.tests, 900.0, cache, "-x")
        finally:
            path.write_text(text, "utf-8")
            shutil.rmtree(self._folder / "broken", ignore_errors=True)
        if status == 1:
            return f"caught by {', '.join(failing)}"
        return "MISSED" if status == 0 else f"UNCLEAR: pytest ended with status {status}"


def verdicts(breaks: list[Break], root: Path) -> Iterator[tuple[Break, str]]:
    """What becomes of each break. Tests that fail without any break tell nothing."""
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        copy = Copy(root, Path(folder))
        _, failing = copy.failing([name for each in breaks for name in each.tests], 7200.0, "whole")
        for each in breaks:
            useless = [name for name in each.tests if name.partition("[")[0] in failing]
            yield each, f"UNCLEAR: {useless[0]} fails without it" if useless else copy.verdict(each)


def main() -> int:
    """Prints a line for each break; the exit status is 0 if all were caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="breaks whose names contain this")
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="the tree to copy")
    parser.add_argument("--instead", type=Path, help="like breaks.toml: other fields of some breaks, for another tree")
    options = parser.parse_args()
    os.nice(10)
    breaks = [each for each in read(HERE.with_suffix(".toml"), options.instead) if options.only in each.name]
    caught, started = 0, time.perf_counter()
    for broken, verdict in verdicts(breaks, options.root):
        caught += verdict.startswith("caught")
        print(f"{time.perf_counter() - started:6.0f} s  {broken.name}: {verdict}", flush=True)
    print(f"{caught} of {len(breaks)} breaks were caught")
    return 0 if caught == len(breaks) else 1


if __name__ == "__main__":
    sys.exit(main())
