"""A few kills of every kind, on small runs: `python -m tests.faults` makes many."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.faults.harness import SCENARIOS, Harness, harness, line, run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
    pytest.mark.xdist_group("faults"),  # one harness serves all
]

EVERY_DAY = {"workers on this machine", "client, checkpoint damaged"}


@pytest.fixture(scope="module")
def small() -> Iterator[Harness]:
    with harness(seed=int.from_bytes(os.urandom(4)), size=0.1) as found:
        yield found


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=() if name in EVERY_DAY else pytest.mark.full) for name in SCENARIOS]
)
def test_the_bits_of_an_undisturbed_run(small: Harness, scenario: str) -> None:
    """Whatever is killed; nothing that is in a checkpoint is done again, and no process is left behind."""
    row = run(small, scenario, 1)
    print(line(row))
    assert row.good, line(row)
