"""A long run with steady memory: a simulator in Python, two processes and a checkpoint, for minutes.

Memory is the resident size of this process and of each worker, now and then. It may grow while things are compiled and
found for the first time; from a third of the time on it must not. Usage: python benchmarks/soak.py [minutes]
"""

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import smoothplan as sp

EVERY = 2.0
"""Seconds from one look at the memory to the next."""

GOAL = 5.0
"""Megabytes by which the memory of a process may grow in the last two thirds of the time: noise of the allocator."""


def walk(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
    """A simulator in plain Python that makes and forgets a little garbage."""
    place = min(max(float(state[0]) + (0.3 if action else -0.3) + 0.1 * rng.standard_normal(), -1.0), 1.0)
    return np.array([place]), float(rng.random() < 0.5 * (1.0 + place)), False


class Watch(threading.Thread):
    """Writes down the memory of this process and of its children."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, dict[int, float]]] = []  # (time, megabytes by process)
        self.over = threading.Event()

    def run(self) -> None:
        """Looks until it is over."""
        me = psutil.Process()
        while not self.over.wait(EVERY):
            sizes = {}
            for process in (me, *me.children(recursive=True)):
                try:
                    sizes[process.pid] = process.memory_info().rss / 1e6
                except psutil.NoSuchProcess:
                    continue
            self.seen.append((time.perf_counter(), sizes))

    def report(self, started: float, minutes: float) -> None:
        """Prints the largest sizes in five parts of the time, and how much the last two thirds added."""
        self.over.set()
        self.join()
        pids = sorted({pid for _, sizes in self.seen for pid in sizes})
        for pid in pids:
            series = [(when - started, sizes[pid]) for when, sizes in self.seen if pid in sizes]
            if len(series) < 10:
                continue
            parts = np.array_split([size for _, size in series], 5)
            late = [size for when, size in series if when > 20.0 * minutes]
            third = max(1, len(late) // 3)
            growth = float(np.median(late[-third:]) - np.median(late[:third]))
            sizes = " ".join(f"{part.max():7.0f}" for part in parts)
            print(f"  process {pid}: {sizes} MB; {growth:+.1f} MB late in the run, goal {GOAL:g}", flush=True)


def main() -> None:
    """Soaks and prints."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    model = sp.VectorModel.from_scalar(
        walk,
        actions=2,
        discount=0.3,
        reward_range=(0, 1),
        reward_kind="bernoulli",
        terminates=False,
        initial_state=[0.2],
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "soak.ckpt"
        watch, started = Watch(), time.perf_counter()
        watch.start()
        planner = sp.SmoothCruiser(sp.LogSumExp(0.5), epsilon=1e-4)
        result = sp.plan(planner, model, workers=2, max_seconds=60.0 * minutes, max_calls=10**10, checkpoint=file)
        print(f"{result.calls:,} calls of a Python simulator in {result.seconds:.0f} s, {result.status};", end=" ")
        print(f"the checkpoint has {file.stat().st_size / 1e6:.2f} MB")
        watch.report(started, minutes)


if __name__ == "__main__":
    main()
