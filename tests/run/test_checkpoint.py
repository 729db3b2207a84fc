"""Checkpoints: what was written is found again, bit for bit, whatever happens to the process; damage is an error."""

import os
import random
import re
import sqlite3
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smoothplan.run import checkpoint
from smoothplan.run.checkpoint import Checkpoint, CheckpointError, ChunkRow

IDENTITY = {"version": "0.1.0", "planner": "SmoothCruiser(epsilon=0.1)", "model": "chain", "seed": "0"}

FACTS = {
    0: ChunkRow("a1", [100, 0.1, -0.0], 4096),
    1: ChunkRow("a1", [], 0),
    7: ChunkRow("b2", [5e-324, -1.7976931348623157e308, 1 / 3], 2**63 - 1),
    8: ChunkRow("ä", [-(2**100), 1, 1.0], 1),
}

RECORD = np.dtype([("count", np.int8), ("seen", np.bool_), ("mean", np.float64)], align=True)

ARRAYS: dict[str, Any] = {
    "floats": np.array([[0.1, -0.0, np.nan], [np.inf, 5e-324, 1.0]]),
    "small": np.arange(6, dtype=np.uint8).reshape(1, 2, 3),
    "large": np.array([2**63], dtype=np.uint64),
    "flags": np.array([True, False]),
    "one": np.array(3),
    "none": np.zeros((0, 4)),
    "strided": np.arange(12.0).reshape(3, 4)[:, ::2],
    "records": np.array([(-3, True, np.nan), (1, False, 0.5)], dtype=RECORD),
}

unix = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits are of Unix")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.ckpt"


def bits(fact: ChunkRow | None) -> Any:
    """A fact such that equal means equal in every bit and type."""
    if fact is None:
        return None
    numbers = [(type(n), struct.pack("<d", n) if isinstance(n, float) else n) for n in fact.numbers]
    return fact.asked, numbers, fact.calls, type(fact.calls)


def write(path: Path, facts: dict[int, ChunkRow] = FACTS, identity: dict[str, str] = IDENTITY) -> None:
    with Checkpoint(path, identity) as found:
        found.add(facts.items())


def check(path: Path, facts: dict[int, ChunkRow] = FACTS) -> None:
    """The file has these facts and no others, and can be added to."""
    with Checkpoint(path, IDENTITY) as found:
        assert len(found.found) == len(facts)
        for number, fact in facts.items():
            assert bits(found.find(number, fact.asked)) == bits(fact)
        found.add([(99, ChunkRow("new", [0.5], 1))])


def alike(one: dict[str, Any] | None, two: dict[str, Any]) -> bool:
    assert one is not None
    assert one.keys() == two.keys()
    return all(one[n].dtype == two[n].dtype and one[n].shape == two[n].shape for n in two) and all(
        repr(one[n].tolist()) == repr(two[n].tolist()) for n in two
    )


def test_everything_is_found_again_and_one_file_remains(path: Path) -> None:
    with Checkpoint(path, IDENTITY) as found:
        assert not found.resumed
        assert found.snapshot("q") is None
        found.add(FACTS.items())
        found.keep("q", ARRAYS)
        found.keep("empty", {})
        found.keep("p", {"a": np.arange(3)})
        found.keep("p", {"a": np.arange(4)})
        assert found.find(3, "a1") is None
    assert [entry.name for entry in path.parent.iterdir()] == ["run.ckpt"]
    check(path)
    with Checkpoint(path, IDENTITY) as found:
        assert found.resumed
        assert alike(found.snapshot("q"), ARRAYS)
        assert alike(found.snapshot("p"), {"a": np.arange(4)})
        assert found.snapshot("empty") == {}
        with pytest.raises(CheckpointError, match="is of another run: chunk 0 was asked a1 there, b2 here"):
            found.find(0, "b2")


def test_wrong_rows_are_refused_and_nothing_is_written(path: Path) -> None:
    """Numbers that JSON does not have, a chunk that is there already, and Python objects."""
    write(path)
    with Checkpoint(path, IDENTITY) as found:
        wrong: Any
        for wrong in (np.nan, np.inf, 1j):
            with pytest.raises((ValueError, TypeError)):
                found.add([(5, FACTS[0]), (6, ChunkRow("a", [wrong], 1))])
        with pytest.raises(CheckpointError, match="UNIQUE"):
            found.add([(5, FACTS[0]), (7, FACTS[0])])
        for array in (np.array([{}]), np.array([(None,)], dtype=[("a", object)])):
            with pytest.raises(TypeError, match="array 'a' must be of numbers, got dtype"):
                found.keep("q", {"a": array})
        assert found.snapshot("q") is None
    check(path)


# Files of others


def test_a_foreign_identity_is_named(path: Path) -> None:
    write(path)
    for changes, message in (
        ({"seed": "1"}, "of another seed: there 0, here 1$"),
        ({"model": "x" * 100}, f"of another model: there chain, here {'x' * 60}$"),
        ({"engine": "batched"}, "of another engine: there nothing, here batched$"),
    ):
        with pytest.raises(CheckpointError, match=rf"run\.ckpt is {message}"):
            Checkpoint(path, IDENTITY | changes)
    check(path)


def database(*statements: str) -> bytes:
    """The bytes of a database of somebody else."""
    found = sqlite3.connect(":memory:", isolation_level=None)
    for statement in statements:
        found.execute(statement)
    return found.serialize()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x", "is not a checkpoint of smoothplan"),
        (b"my diary\n" * 1000, "is not a checkpoint of smoothplan"),
        (b"\0" * 5000, "is not a checkpoint of smoothplan"),
        (database("CREATE TABLE mine (a)"), "is not a checkpoint of smoothplan"),
        (database("CREATE TABLE chunks (a)", "PRAGMA user_version = 2"), "is not a checkpoint of smoothplan"),
        (database(f"PRAGMA application_id = {checkpoint.APPLICATION}", "PRAGMA user_version = 7"), "has format 7, and"),
    ],
)
def test_another_file_is_refused_and_left_alone(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"run\.ckpt {message}"):
        Checkpoint(path, IDENTITY)
    assert path.read_bytes() == content
    assert [entry.name for entry in path.parent.iterdir()] == ["run.ckpt"]


def test_places_where_no_file_can_be(path: Path) -> None:
    for wrong in (path.parent, path / "deeper", "a\0b"):
        with pytest.raises(CheckpointError, match="cannot be read or written"):
            Checkpoint(wrong, IDENTITY)
    path.touch()  # an empty file is a new checkpoint; so is a link to one
    (path.parent / "link").symlink_to(path)
    write(path.parent / "link")
    check(path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only to root")
def test_what_is_read_only_is_refused(path: Path) -> None:
    write(path)
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        for name in ("run.ckpt", "new.ckpt"):
            with pytest.raises(CheckpointError, match=f"{name} cannot be read or written"):
                Checkpoint(path.parent / name, IDENTITY)
    finally:
        path.parent.chmod(0o700)


# Damage


def outcome(path: Path, files: dict[str, bytes]) -> set[int] | None:
    """The chunks that are found in damaged files, each as it was written; None for a clear error."""
    for entry in path.parent.iterdir():
        entry.unlink()
    for name, data in files.items():
        (path.parent / name).write_bytes(data)
    try:
        found = Checkpoint(path, IDENTITY)
    except CheckpointError:
        return None
    with found:
        numbers = set(found.found)
        for number in numbers:
            assert bits(found.find(number, str(number))) == bits(fact(number))
        arrays = found.snapshot("q")
        assert arrays is None or alike(arrays, {"a": np.arange(1000.0)})
        return numbers | ({-1} if arrays is None else set())


def fact(number: int) -> ChunkRow:
    return ChunkRow(str(number), [number, number / 3], number)


def hurt(rng: random.Random, data: bytes) -> bytes:
    """Cut off at a random place, or overwritten there: with zeros, noise, or one bit."""
    place = rng.randrange(len(data))
    end = min(place + rng.choice([1, 16, 512, 4096]), len(data))
    match rng.randrange(4):
        case 0:
            return data[:place]
        case 1:
            return data[: place - place % 512]
        case 2:
            return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    return data[:place] + (rng.randbytes(end - place) if rng.random() < 0.5 else bytes(end - place)) + data[end:]


@pytest.mark.parametrize("rounds", [150, pytest.param(4000, marks=pytest.mark.full)])
def test_damage_is_an_error_or_costs_some_rows(path: Path, tmp_path_factory: Any, rounds: int) -> None:
    """A finished file, and what a killed run leaves behind: the file, and the log of its last second."""
    live = tmp_path_factory.mktemp("live")
    found = Checkpoint(live / "run.ckpt", IDENTITY)
    found.keep("q", {"a": np.arange(1000.0)})
    found.add((number, fact(number)) for number in range(200))
    found._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    found.add((number, fact(number)) for number in range(200, 300))  # not yet moved into the file
    killed = {entry.name: entry.read_bytes() for entry in live.iterdir()}
    found.close()
    whole = {"run.ckpt": (live / "run.ckpt").read_bytes()}
    everything, synced = set(range(300)), set(range(200))
    assert set(killed) == {"run.ckpt", "run.ckpt-wal"}
    assert outcome(path, killed) == outcome(path, whole) == everything
    assert outcome(path, {"run.ckpt": killed["run.ckpt"]}) == synced  # without its log
    rng = random.Random(0)
    seen = set()
    for _ in range(rounds):
        files = dict(rng.choice([killed, whole]))
        victim = rng.choice(list(files))
        files[victim] = hurt(rng, files[victim])
        numbers = outcome(path, files)
        seen.add("error" if numbers is None else "all" if numbers == everything else "some")
    assert seen == {"error", "all", "some"}  # `outcome` has compared every row that is found


@pytest.mark.parametrize("value", ["CAST(replace(value, '100', '101') AS BLOB)", "NULL", "7"])
def test_a_row_with_a_wrong_checksum(path: Path, value: str) -> None:
    """What no check of pages can see."""
    write(path)
    with sqlite3.connect(path) as other:
        other.execute(f"UPDATE rows SET value = {value} WHERE name = 'chunk 0'")
    other.close()
    with pytest.raises(CheckpointError, match=r"is damaged \(the checksum of chunk 0 does not fit"):
        Checkpoint(path, IDENTITY)


# Other processes, and the disk


def child(code: str, *arguments: str) -> "subprocess.Popen[str]":
    """A Python process that knows the names of this file. It imports the one module, which takes less time."""
    text = f"import os, sys, time\nsys.path.insert(0, {str(Path(checkpoint.__file__).parent)!r})\nimport numpy as np\n"
    text += f"from checkpoint import *\nIDENTITY = {IDENTITY!r}\n" + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", text, *arguments], stdout=subprocess.PIPE, text=True)


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def refused(path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"^checkpoint {re.escape(str(path))} is in use by another run$"):
        Checkpoint(path, IDENTITY)


@unix
def test_one_run_at_a_time(path: Path) -> None:
    """In one process and in several; a lock dies with its process, and a fork neither has it nor hurts the file."""
    with Checkpoint(path, IDENTITY) as found:
        refused(path)
        found.add(FACTS.items())
        refused(path)
    code = """
        found = Checkpoint(sys.argv[1], IDENTITY)
        if os.fork() == 0:
            sys.exit()
        os.wait()
        found.keep("q", {"a": np.arange(3)})
        print("ready", flush=True)
        time.sleep(20)
    """
    with child(code, str(path)) as process:
        assert said(process) == "ready"
        refused(path)
        process.kill()
    with Checkpoint(path, IDENTITY) as found:
        assert alike(found.snapshot("q"), {"a": np.arange(3)})
        other = "\ntry:\n    Checkpoint(sys.argv[1], IDENTITY)\nexcept CheckpointError as error:\n    print(error)\n"
        with child(other, str(path)) as process:
            assert said(process) == f"checkpoint {path} is in use by another run"
    check(path)


@unix
@pytest.mark.parametrize("kills", [3, pytest.param(25, marks=pytest.mark.full)])
def test_a_killed_run_loses_nothing_that_it_announced(path: Path, kills: int) -> None:
    code = """
        with Checkpoint(sys.argv[1], IDENTITY) as found:
            chunk = len(found.found)
            print(chunk, flush=True)
            while True:
                found.add([(c, ChunkRow(str(c), [c, c / 3], c)) for c in range(chunk, chunk + 3)])
                chunk += 3
                found.keep("q", {"number": np.array(chunk), "bulk": np.random.default_rng(chunk).random(5_000)})
                print(chunk, flush=True)
    """
    rng, count = random.Random(0), 0
    for _ in range(kills):
        with child(code, str(path)) as process:
            announced = [int(said(process)) for _ in range(rng.randrange(1, 20))][-1]
            process.kill()
        with Checkpoint(path, IDENTITY) as found:
            assert len(found.found) >= announced >= count
            for chunk in range(len(found.found)):
                assert found.find(chunk, str(chunk)) == fact(chunk)
            arrays = found.snapshot("q")
            if arrays is not None:
                number = int(arrays["number"])
                assert announced <= number <= len(found.found)
                assert (arrays["bulk"] == np.random.default_rng(number).random(5_000)).all()
            count = len(found.found)
    assert count > 0


@unix
def test_a_full_disk_leaves_what_was_written(path: Path) -> None:
    """The system refuses to let a file grow, as a full disk does; then there is room again."""
    code = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Checkpoint(sys.argv[1], IDENTITY) as found:
            found.add([(1, ChunkRow("a", [1], 1))])
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, most))
            try:
                found.keep("q", {"a": np.random.default_rng(0).random(100_000)})
            except CheckpointError as error:
                print(error, flush=True)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            found.add([(7, ChunkRow("a", [7], 7))])
    """
    with child(code, str(path)) as process:
        assert said(process).startswith(f"checkpoint {path} cannot be read or written: ")
    with Checkpoint(path, IDENTITY) as found:
        assert found.found == {number: ChunkRow("a", [number], number) for number in (1, 7)}
        assert found.snapshot("q") is None
