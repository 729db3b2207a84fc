"""A few kills of every kind, on small runs: `python -m tests.faults` makes many."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .faults import Harness, facts, harness, line, run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
    pytest.mark.xdist_group("faults"),  # one harness serves all
]


@pytest.fixture(scope="module")
def small() -> Iterator[Harness]:
    with harness(seed=int.from_bytes(os.urandom(4)), size=0.1) as found:
        yield found


@pytest.mark.parametrize(
    "scenario",
    [
        "workers of a process pool",
        pytest.param("workers with their nannies", marks=pytest.mark.full),
        pytest.param("client, threads", marks=pytest.mark.full),
        "client, checkpoint cut",
        pytest.param("SIGTERM, threads", marks=pytest.mark.full),
    ],
)
def test_the_bits_of_an_undisturbed_run(small: Harness, scenario: str) -> None:
    """Whoever is killed; nothing that is in a checkpoint is done again, and no process is left behind."""
    row = run(small, scenario, 1)
    print(line(row))
    assert row.good, line(row)


def test_chunks_in_a_checkpoint_are_counted(tmp_path: Path) -> None:
    """Lines that are torn or of another kind are none."""
    file = tmp_path / "some"
    assert facts(file) == {}
    file.write_text('0 {"smoothplan checkpoint":1}\n1 {"chunk":3,"calls":5}\n2 {"snapshot":"a"}\n3 {"chunk":4,"cal')
    assert facts(file) == {3: 5}
