"""How far one call walks through the library: files and functions entered, and switches between packages.

    python benchmarks/walk.py

A switch is a call from a function of one package of smoothplan to a function of another. Functions outside smoothplan
between the two, such as those of NumPy, do not count. Each case runs once before it is measured, to compile its code.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import smoothplan as sp

PACKAGE = Path(sp.__file__).parent


class Walk:
    """What a call enters, as seen by the interpreter's profiler."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[Any] = set()
        self.switches = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Counts a call, if it is one of smoothplan's functions."""
        room = _room(frame)
        if event != "call" or room is None:
            return
        self.files.add(frame.f_code.co_filename)
        self.functions.add(frame.f_code)
        caller = frame.f_back
        while caller is not None and _room(caller) is None:
            caller = caller.f_back
        self.switches += caller is not None and _room(caller) != room


def _room(frame: FrameType) -> str | None:
    """The package below smoothplan that a function belongs to."""
    path = Path(frame.f_code.co_filename)
    return path.relative_to(PACKAGE).parts[0] if path.is_relative_to(PACKAGE) else None


def _cases() -> dict[str, Callable[[], Any]]:
    table = sp.models.garnet(states=20, actions=2, branching=2, discount=0.7, seed=1)
    simulator = sp.VectorModel(table.step, actions=2, discount=0.7, reward_range=(0.0, 1.0), initial_state=0)
    gape = sp.OTGapE(sp.HardMax(), epsilon=0.01, delta=0.1)
    cruiser = sp.ReferenceCruiser(sp.LogSumExp(0.5), epsilon=0.05, delta=0.1)
    return {
        "plan(OTGapE), Python simulator, 334 calls": lambda: sp.plan(gape, simulator, 0, max_calls=334),
        "plan(ReferenceCruiser), table": lambda: sp.plan(cruiser, table, 0, max_calls=100_000),
        "decide, Python simulator": lambda: sp.decide(simulator, 0, calls=10_000),
    }


def main() -> None:
    """Prints a table."""
    print(f"{'call':45}{'files':>8}{'functions':>11}{'switches':>10}")
    for name, case in _cases().items():
        case()
        walk = Walk()
        sys.setprofile(walk)
        try:
            case()
        finally:
            sys.setprofile(None)
        print(f"{name:45}{len(walk.files):8}{len(walk.functions):11}{walk.switches:10,}")


if __name__ == "__main__":
    main()
