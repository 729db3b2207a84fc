"""Checkpoints: what was written is found again, bit for bit, or not at all, whatever happens to the file."""

import base64
import errno
import hashlib
import io
import json
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import textwrap
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smoothplan.running import checkpoint
from smoothplan.running.checkpoint import CheckpointError, CheckpointWarning, Journal
from smoothplan.running.locks import lock
from smoothplan.running.records import Fact

IDENTITY = {"version": "0.1.0", "planner": "SmoothCruiser(epsilon=0.1)", "model": "chain", "seed": "0"}

FACTS = {
    0: Fact("a1", (100, 0.1, -0.0), 4096),
    1: Fact("a1", (), 0),
    7: Fact("b2", (5e-324, -1.7976931348623157e308, 1 / 3), 2**63 - 1),
    8: Fact("ä", (-(2**100), 1, 1.0), 1),
}

RECORD = np.dtype([("count", np.int8), ("seen", np.bool_), ("mean", np.float64)], align=True)

ONCE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def line(content: Any) -> bytes:
    """A line as a checkpoint has it, made independently; bytes are taken as they are."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest().encode() + b" " + text + b"\n"


def header(identity: dict[str, str] = IDENTITY) -> bytes:
    return line({"smoothplan checkpoint": 1} | identity)


def bits(fact: Fact | None) -> Any:
    """A fact such that equal means equal in every bit and type."""
    if fact is None:
        return None
    numbers = [(type(n), struct.pack("<d", n) if isinstance(n, float) else n) for n in fact.numbers]
    return fact.asked, numbers, fact.calls, type(fact.calls)


def write(path: Path, facts: dict[int, Fact] = FACTS, identity: dict[str, str] = IDENTITY) -> None:
    with Journal.open(path, identity) as journal:
        journal.add(facts.items())


@contextmanager
def opened(path: Path, identity: dict[str, str] = IDENTITY) -> Iterator[Journal]:
    """A journal whose damage is expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        journal = Journal.open(path, identity)
    with journal:
        yield journal


def records() -> Any:
    array = np.zeros((2, 2), dtype=RECORD)
    array["mean"] = [[0.5, -0.0], [np.nan, np.inf]]
    array["seen"][0] = True
    array["count"] = -3
    return array


ARRAYS: dict[str, Any] = {
    "floats": np.array([[0.1, -0.0, np.nan], [np.inf, 5e-324, 1.0]]),
    "halves": np.array([0.5, 1.5], dtype=np.float16),
    "small": np.arange(6, dtype=np.uint8).reshape(1, 2, 3),
    "large": np.array([2**63], dtype=np.uint64),
    "foreign": np.array([1, -2], dtype=">i4"),
    "flags": np.array([True, False]),
    "one": np.array(3),
    "none": np.zeros((0, 4)),
    "strided": np.arange(12.0).reshape(3, 4)[:, ::2],
    "records": records(),
}


def alike(one: dict[str, Any] | None, two: dict[str, Any]) -> bool:
    assert one is not None
    assert one.keys() == two.keys()
    return all(
        one[name].dtype == two[name].dtype.newbyteorder("=")
        and one[name].dtype.isalignedstruct == two[name].dtype.isalignedstruct
        and one[name].shape == two[name].shape
        and one[name].astype(two[name].dtype).tolist().__repr__() == two[name].tolist().__repr__()
        for name in two
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


quickly = pytest.mark.usefixtures("quick")


# Round trips


def test_facts_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    with Journal.open(path, IDENTITY) as journal:
        assert (journal.facts, journal.recovered) == (0, 0)
        journal.add(iter(FACTS.items()))
        assert (journal.facts, journal.recovered) == (len(FACTS), 0)
    with Journal.open(str(path), IDENTITY) as journal:
        for chunk, fact in FACTS.items():
            assert bits(journal.find(chunk, fact.asked)) == bits(fact)
        assert journal.find(2, "a1") is None
        assert journal.recovered == len(FACTS)
        journal.add([(2, Fact("c", (1.5,), 3))])
        assert (journal.facts, journal.recovered) == (len(FACTS) + 1, len(FACTS))
    with Journal.open(path, IDENTITY) as journal:
        assert journal.find(2, "c") == Fact("c", (1.5,), 3)


@quickly
@ONCE
@given(
    st.dictionaries(
        st.integers(0, 2**63 - 1),
        st.builds(
            Fact,
            st.text(max_size=20),
            st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(), max_size=5).map(tuple),
            st.integers(0, 2**63 - 1),
        ),
        max_size=5,
    )
)
def test_any_finite_number_survives(tmp_path: Path, facts: dict[int, Fact]) -> None:
    path = tmp_path / "run.ckpt"
    path.unlink(missing_ok=True)
    write(path, facts)
    with Journal.open(path, IDENTITY) as journal:
        assert journal.facts == len(facts)
        for chunk, fact in facts.items():
            assert bits(journal.find(chunk, fact.asked)) == bits(fact)


def test_numbers_of_numpy_become_numbers_of_python(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "run.ckpt", IDENTITY) as journal:
        numbers: Any = (np.int64(3), np.float64(0.1))
        journal.add([(0, Fact("a", numbers, np.int64(4)))])  # type: ignore[arg-type]
    with Journal.open(tmp_path / "run.ckpt", IDENTITY) as journal:
        assert bits(journal.find(0, "a")) == bits(Fact("a", (3, 0.1), 4))


@pytest.mark.parametrize(
    ("chunk", "fact", "complaint"),
    [
        (-1, Fact("a", (), 0), "chunk must be in 0.."),
        (True, Fact("a", (), 0), "chunk must be a whole number, got True"),
        (2**63, Fact("a", (), 0), "chunk must be in 0.."),
        (0, Fact("a", (float("nan"),), 0), "numbers must be finite, got nan"),
        (0, Fact("a", (float("-inf"),), 0), "numbers must be finite, got -inf"),
        (0, Fact("a", (True,), 0), "floats, got True"),
        (0, Fact("a", ("1",), 0), "floats, got '1'"),  # type: ignore[arg-type]
        (0, Fact("a", (2**1024,), 0), "one of 1025 bits"),
        (0, Fact("a", (0.0,) * 70_000, 0), "65536 numbers at most"),
        (0, Fact("a", (), -1), "calls must be in 0.."),
        (0, Fact("a", (), 1.0), "calls must be a whole number, got 1.0"),  # type: ignore[arg-type]
        (0, Fact("a" * 300, (), 1), "asked must have 256 characters at most, got 300"),
        (0, Fact(3, (), 1), "asked must be a string, got 3"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_fact_is_refused_and_nothing_is_written(tmp_path: Path, chunk: int, fact: Fact, complaint: str) -> None:
    path = tmp_path / "run.ckpt"
    with Journal.open(path, IDENTITY) as journal:
        before = path.read_bytes()
        with pytest.raises((TypeError, ValueError), match=complaint):
            journal.add([(1, Fact("a", (), 0)), (chunk, fact)])
        assert path.read_bytes() == before
        assert journal.facts == 0


def test_a_chunk_brings_one_thing_only(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "run.ckpt", IDENTITY) as journal:
        journal.add([*FACTS.items(), *FACTS.items()])
    with Journal.open(tmp_path / "run.ckpt", IDENTITY) as journal:
        journal.add(FACTS.items())
        for other in (Fact("a1", (100, 0.1, 0.0), 4096), Fact("a1", (100.0, 0.1, -0.0), 4096), Fact("x", (), 0)):
            with pytest.raises(CheckpointError, match="chunk 0 brought"):
                journal.add([(0, other)])
        with pytest.raises(CheckpointError, match="chunk 0 was asked a1 there, zz here"):
            journal.find(0, "zz")
        assert len((tmp_path / "run.ckpt").read_bytes().splitlines()) == 1 + len(FACTS)


def test_the_format_is_as_documented(tmp_path: Path) -> None:
    """Files of this format must be readable for ever."""
    path = tmp_path / "run.ckpt"
    fact = line({"chunk": 3, "asked": "ab", "numbers": [1, 0.25], "calls": 9})
    data = base64.b64encode(zlib.compress(struct.pack("<2d", 1.5, -2.0))).decode()
    snapshot = line({"snapshot": "q", "arrays": {"low": {"dtype": "<f8", "shape": [2], "data": data}}})
    path.write_bytes(header() + snapshot + fact)
    with Journal.open(path, IDENTITY) as journal:
        assert bits(journal.find(3, "ab")) == bits(Fact("ab", (1, 0.25), 9))
        found = journal.snapshot("q")
        assert found is not None
        assert found["low"].tolist() == [1.5, -2.0]


# Whose it is


def test_a_foreign_identity_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    write(path)
    before = path.read_bytes()
    for identity, complaint in [
        (IDENTITY | {"model": "garnet"}, "run.ckpt is of another model: there chain, here garnet$"),
        (
            IDENTITY | {"seed": "1", "model": "x" * 50 + "y" * 50},
            "of another model: there chain, here x{40}…y{20}; of another seed: there 0, here 1$",
        ),
        ({"seed": "0"}, "of another version: there 0.1.0, here nothing; of another planner"),
        (IDENTITY | {"engine": "auto"}, "of another engine: there nothing, here auto"),
    ]:
        with pytest.raises(CheckpointError, match=complaint):
            Journal.open(path, identity)
    assert path.read_bytes() == before
    with Journal.open(path, dict(reversed(IDENTITY.items()))) as journal:
        assert journal.facts == len(FACTS)


@pytest.mark.parametrize(
    "content",
    [
        b"my thesis\n",
        b"\n",
        b"\0",
        b"0123456789abcdef {}\n",
        b"a" * 3_000_000,
        bytes(range(256)) * 20,
        pickle.dumps({"a": 1}),
        b'{"smoothplan": 1}\n',
        line([1, 2]),
        line({"chunk": 3, "asked": "ab", "numbers": [1, 0.25], "calls": 9}),
        line({"smoothplan checkpoint": 2} | IDENTITY),
        line({"smoothplan checkpoint": True} | IDENTITY),
        line({"smoothplan checkpoint": 1, "seed": [0]}),
        header()[1:],
        header()[:-1] + b" ",
        b"x" + header(),
        header({"seed": "1"})[:30],
    ],
)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        Journal.open(path, IDENTITY)
    assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_a_damaged_header_is_told_from_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    write(path)
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="nobody can tell which run it is of"):
        Journal.open(path, IDENTITY)
    path.write_bytes(b"garbage\n" + b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(CheckpointError, match="nobody can tell which run it is of"):
        Journal.open(path, IDENTITY)
    path.write_bytes(b"Dear Sir,\n")
    with pytest.raises(CheckpointError, match="not a checkpoint of smoothplan"):
        Journal.open(path, IDENTITY)


@quickly
def test_an_empty_file_or_a_torn_header_is_a_new_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    write(path, {})
    whole = path.read_bytes()
    assert whole.count(b"\n") == 1
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        write(path)
        with Journal.open(path, IDENTITY) as journal:
            assert journal.recovered == len(FACTS)


@pytest.mark.skipif(sys.platform == "win32", reason="special files are of Unix")
def test_directories_and_special_files_are_refused(tmp_path: Path) -> None:
    if sys.platform == "win32":
        return
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe, Path("/dev/zero"), tmp_path / "no" / "such" / "folder", tmp_path / "a\0b"):
        with pytest.raises(CheckpointError, match="cannot be opened") as caught:
            Journal.open(path, IDENTITY)
        assert path.name.replace("\0", "\\x00") in str(caught.value)


def test_a_wrong_identity_is_an_error(tmp_path: Path) -> None:
    for identity in ({"seed": 0}, {1: "a"}, {"smoothplan checkpoint": "1"}):
        with pytest.raises(TypeError, match="identity must map names"):
            Journal.open(tmp_path / "run.ckpt", identity)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="identity must fit"):
        Journal.open(tmp_path / "run.ckpt", {"model": "x" * 2**21})
    assert not list(tmp_path.iterdir())


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "run.ckpt"
    link.symlink_to(tmp_path / "there" / "real.ckpt")
    with Journal.open(link, IDENTITY) as journal:
        journal.keep("q", ARRAYS)
        journal.add(FACTS.items())
    assert link.is_symlink()
    with Journal.open(tmp_path / "there" / "real.ckpt", IDENTITY) as journal:
        assert journal.facts == len(FACTS)


# Damage


def recovered(path: Path, content: bytes, identity: dict[str, str] = IDENTITY) -> int:
    """Opens a damaged file twice, adds to it in between; no fact may be wrong. The number of facts found at first."""
    path.write_bytes(content)
    extra = Fact("new", (0.5,), 1)
    with opened(path, identity) as journal:
        count = journal.recovered
        found = {chunk: journal.find(chunk, fact.asked) for chunk, fact in FACTS.items()}
        assert all(fact is None or bits(fact) == bits(FACTS[chunk]) for chunk, fact in found.items())
        assert count == sum(fact is not None for fact in found.values())
        journal.add([(99, extra)])
    with opened(path, identity) as journal:
        assert journal.recovered == count + 1
        assert journal.find(99, "new") == extra
    return count


@quickly
def test_every_truncation(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    write(path)
    content = path.read_bytes()
    for length in range(len(content) + 1):
        whole = max(content[:length].count(b"\n") - 1, 0)
        assert recovered(path, content[:length]) == whole


@quickly
def test_every_flip_of_a_bit(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    identity = {"seed": "0"}
    write(path, {chunk: FACTS[chunk] for chunk in (0, 8)}, identity)
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    counts = set()
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        if place < 8 * first:
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError):
                Journal.open(path, identity)
            assert path.read_bytes() == damaged
        else:
            counts.add(recovered(path, bytes(damaged), identity))
    assert counts == {0, 1}  # two lines are lost where the end of one is


def test_damage_is_reported_once_and_not_destroyed(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    write(path)
    first, *facts = path.read_bytes().splitlines(keepends=True)
    rubbish = [b"rubbish\n", facts[0][5:], b"\xff\0\n", facts[1][:20]]
    path.write_bytes(first + rubbish[0] + facts[0] + rubbish[1] + facts[0] + facts[2] + rubbish[2] + rubbish[3])
    size = sum(map(len, rubbish))
    with pytest.warns(CheckpointWarning) as caught:
        journal = Journal.open(path, IDENTITY)
    journal.close()
    (warning,) = caught
    assert str(warning.message) == f"checkpoint {path}: 4 damaged lines ({size} bytes) left out; 2 chunks are kept"
    assert warning.filename == __file__
    assert path.read_bytes() == first + rubbish[0] + facts[0] + rubbish[1] + facts[0] + facts[2] + rubbish[2]


def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    write(path)
    content = path.read_bytes()
    path.write_bytes(content + line({"chunk": 0, "asked": "a1", "numbers": [100, 0.1, 0.0], "calls": 4096}))
    with pytest.raises(CheckpointError, match="contradicts itself: chunk 0"):
        Journal.open(path, IDENTITY)
    path.write_bytes(content + header(IDENTITY | {"seed": "1"}) + line({"chunk": 5}))
    with pytest.raises(CheckpointError, match="another seed"):
        Journal.open(path, IDENTITY)
    path.write_bytes(content + content)
    with Journal.open(path, IDENTITY) as journal:
        assert journal.facts == len(FACTS)


@quickly
@ONCE
@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_any_bytes(tmp_path: Path, content: bytes, headed: bool, ended: bool) -> None:
    path = tmp_path / "run.ckpt"
    before = header() * headed + content + b"\n" * ended
    path.write_bytes(before)
    if not headed and before:
        with pytest.raises(CheckpointError):
            Journal.open(path, IDENTITY)
        assert path.read_bytes() == before
    else:
        assert recovered(path, before) == 0


ZIPPED = base64.b64encode(zlib.compress(bytes(16))).decode()
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([ZIPPED, "<f8", "|b1", "<O8", "|O", "<M8[s]", "|V16", "__reduce__", 2**62, 1e400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "names": st.lists(st.sampled_from(["a", "b", ""]) | JUNK, max_size=2),
        "formats": st.lists(st.sampled_from(["<f8", "|b1", "<i4"]) | JUNK, max_size=2),
        "offsets": st.lists(st.integers(-1, 9) | JUNK, max_size=2),
        "itemsize": st.integers(-1, 20) | JUNK,
        "aligned": st.booleans() | JUNK,
        "more": JUNK,
    },
)
PACKED = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["<f8", "|b1", "<i4"]) | RECORDS | JUNK,
        "shape": st.lists(st.integers(-1, 5) | JUNK, max_size=3) | JUNK,
        "data": st.just(ZIPPED) | JUNK,
        "more": JUNK,
    },
)
NONSENSE = (
    JUNK
    | st.fixed_dictionaries(
        {},
        optional={
            "chunk": st.integers(200, 202) | JUNK,
            "asked": JUNK,
            "numbers": st.lists(JUNK, max_size=3) | JUNK,
            "calls": JUNK,
            "more": JUNK,
        },
    )
    | st.fixed_dictionaries({"snapshot": st.just("q") | JUNK, "arrays": st.dictionaries(st.text(max_size=2), PACKED)})
    | st.fixed_dictionaries({"smoothplan checkpoint": JUNK})
)


@quickly
@settings(ONCE, max_examples=200)
@given(st.lists(NONSENSE, max_size=3))
def test_nonsense_with_correct_digests(tmp_path: Path, contents: list[Any]) -> None:
    path = tmp_path / "run.ckpt"
    path.write_bytes(header() + b"".join(map(line, contents)))
    try:
        with opened(path) as journal:
            for name in [
                content["snapshot"] for content in contents if isinstance(content, dict) and "snapshot" in content
            ]:
                if isinstance(name, str):
                    journal.snapshot(name)
            assert journal.facts <= len(contents)
    except CheckpointError:
        pass


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"chunk":' + b"[" * 900 + b"]" * 900 + b',"asked":"a","numbers":[],"calls":1}',
        b'{"chunk":1,"asked":"a","numbers":[' + b"[" * 900 + b"]" * 900 + b'],"calls":1}',
        b'{"chunk":1,"asked":"a","numbers":[NaN],"calls":1}',
        b'{"chunk":1,"asked":"a","numbers":[1e999],"calls":1}',
        b'{"chunk":1,"asked":"a","numbers":[' + b"9" * 5000 + b'],"calls":1}',
        b'{"chunk":1,"asked":"a","numbers":[true],"calls":1}',
        b'{"chunk":1,"asked":"a","numbers":[1],"calls":1.0}',
        b'{"chunk":1,"asked":"\xff","numbers":[1],"calls":1}',
        b'{"chunk":1,"asked":"a","numbers":[1],"calls":1,"__reduce__":["os.system",["exit"]]}',
        b"\x80\x04\x95",
        b"",
    ],
)
def test_wicked_lines_are_left_out(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.ckpt"
    path.write_bytes(header() + line(content) + line({"chunk": 5, "asked": "a", "numbers": [], "calls": 2}))
    with pytest.warns(CheckpointWarning, match="1 damaged line .* left out; 1 chunk is kept"):
        journal = Journal.open(path, IDENTITY)
    with journal:
        assert journal.find(5, "a") == Fact("a", (), 2)


def packed(dtype: Any, shape: Any, data: bytes) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": base64.b64encode(zlib.compress(data)).decode()}


RECORD_FIELDS = {"names": ["a", "b"], "formats": ["<f8", "|b1"], "offsets": [0, 8], "itemsize": 16, "aligned": True}


@pytest.mark.parametrize(
    "arrays",
    [
        packed("<f8", [3], bytes(16)),
        packed("<f8", [1], bytes(16)),
        packed("<f8", [-2], bytes(16)),
        packed("<f8", [True, 2], bytes(16)),
        packed("<f8", [0, 2**62, 2**62], b""),
        packed("<f8", [1] * 100, bytes(8)),
        packed("<f8", [2**40], bytes(8)),
        packed("|b1", [1], b"\2"),
        packed("|O", [1], bytes(8)),
        packed("O", [1], bytes(8)),
        packed("<M8[s]", [1], bytes(8)),
        packed("|V8", [1], bytes(8)),
        packed("f8,O", [1], bytes(16)),
        packed(RECORD_FIELDS | {"formats": ["<f8", "|O"]}, [1], bytes(16)),
        packed(RECORD_FIELDS | {"offsets": [0, 7]}, [1], bytes(16)),
        packed(RECORD_FIELDS | {"offsets": [1, 9]}, [1], bytes(16)),
        packed(RECORD_FIELDS | {"itemsize": 8}, [1], bytes(8)),
        packed(RECORD_FIELDS | {"names": ["a", "a"]}, [1], bytes(16)),
        packed(RECORD_FIELDS | {"names": ["a"]}, [1], bytes(16)),
        packed(RECORD_FIELDS, [1], bytes(8) + b"\2" + bytes(7)),
        packed("<f8", [2], bytes(16)) | {"data": base64.b64encode(zlib.compress(bytes(16))[:-1]).decode()},
        packed("<f8", [2], bytes(16)) | {"data": base64.b64encode(zlib.compress(bytes(16)) + b"x").decode()},
        packed("<f8", [2], bytes(16)) | {"data": "AAAA"},
        packed("<f8", [2], bytes(16)) | {"data": "%%%%"},
        packed("<f8", [2], bytes(16)) | {"more": 1},
    ],
)
def test_wicked_arrays_are_left_out(tmp_path: Path, arrays: dict[str, Any]) -> None:
    path = tmp_path / "run.ckpt"
    good = {"snapshot": "q", "arrays": {"a": packed(RECORD_FIELDS, [1], bytes(16))}}
    path.write_bytes(header() + line(good) + line({"snapshot": "q", "arrays": {"a": arrays}}))
    with pytest.warns(CheckpointWarning, match="1 damaged line "):
        journal = Journal.open(path, IDENTITY)
    with journal:
        found = journal.snapshot("q")
        assert found is not None
        assert found["a"].tolist() == [(0.0, False)]


def test_a_bomb_is_not_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.ckpt"
    arrays = {name: packed("|u1", [60_000], bytes(60_000)) for name in "ab"}
    path.write_bytes(header() + line({"snapshot": "q", "arrays": arrays}))
    with Journal.open(path, IDENTITY) as journal:
        assert journal.snapshot("q") is not None
    monkeypatch.setattr("smoothplan.running.records.ARRAYS_LIMIT", 100_000)
    with opened(path) as journal:
        assert journal.snapshot("q") is None
        with pytest.raises(ValueError, match="100000 bytes at most"):
            journal.keep("q", {"a": np.zeros(20_000)})


def test_long_lines_that_are_not_ours_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "PIECE", 256)
    path = tmp_path / "run.ckpt"
    write(path)
    with Journal.open(path, IDENTITY) as journal:
        journal.keep("q", ARRAYS)
    first, *rest = path.read_bytes().splitlines(keepends=True)
    assert len(rest[0]) < 256 < len(rest[-1])
    hidden = b"x" * 256 + rest[0]  # a line that begins where a piece does
    path.write_bytes(first + b"x" * 1000 + b"\n" + hidden + b"".join(rest[1:]) + b"y" * 1000)
    with pytest.warns(CheckpointWarning, match="3 damaged lines"):
        journal = Journal.open(path, IDENTITY)
    with journal:
        assert journal.facts == len(FACTS) - 1
        assert alike(journal.snapshot("q"), ARRAYS)
    assert path.read_bytes().endswith(rest[-1])


class _Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_nothing_is_executed(tmp_path: Path) -> None:
    path, target = tmp_path / "run.ckpt", tmp_path / "trapped"
    trap = pickle.dumps(_Trap(target))
    objects = np.array([_Trap(target)], dtype=object)
    stored = io.BytesIO()
    np.save(stored, objects)
    for payload in (trap, stored.getvalue()):
        encoded = base64.b64encode(zlib.compress(payload)).decode()
        wicked = {"dtype": "|O", "shape": [1], "data": encoded}
        path.write_bytes(
            header()
            + payload
            + b"\n"
            + line(payload)
            + line({"snapshot": "q", "arrays": {"a": wicked}})
            + line({"__reduce__": ["pathlib.Path.touch", [str(target)]], "py/object": "pathlib.Path"})
        )
        with opened(path) as journal:
            assert journal.facts == 0
            assert journal.snapshot("q") is None
        with pytest.raises(TypeError, match="array 'a' must be of numbers"), opened(path) as journal:
            journal.keep("q", {"a": objects})
    assert not target.exists()


# Snapshots


def test_snapshots_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    with Journal.open(path, IDENTITY) as journal:
        journal.add([(0, FACTS[0])])
        assert journal.snapshot("graph") is None
        journal.keep("graph", {"old": np.zeros(100)})
        journal.keep("other", {"small": np.arange(3)})
        journal.add([(1, FACTS[1])])
        journal.keep("graph", ARRAYS)
        journal.keep("third", {})
        journal.add([(7, FACTS[7])])
        for _ in range(2):
            assert alike(journal.snapshot("graph"), ARRAYS)
            assert alike(journal.snapshot("other"), {"small": np.arange(3)})
            assert journal.snapshot("third") == {}
    content = path.read_bytes()
    assert content.count(b'"snapshot"') == 3
    with Journal.open(path, IDENTITY) as journal:
        found = journal.snapshot("graph")
        assert found is not None
        assert alike(found, ARRAYS)
        found["floats"][:] = 0.0  # it belongs to whoever asked
        assert alike(journal.snapshot("graph"), ARRAYS)
        assert journal.facts == 3
        journal.keep("other", {})
        assert alike(journal.snapshot("graph"), ARRAYS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.ckpt"]


def test_the_gaps_of_records_hold_no_memory_of_others(tmp_path: Path) -> None:
    contents = []
    for filling in (0, 255):
        array = np.full(4 * RECORD.itemsize, filling, dtype=np.uint8).view(RECORD)
        array["count"], array["seen"], array["mean"] = 1, True, 0.5
        with Journal.open(tmp_path / f"{filling}.ckpt", IDENTITY) as journal:
            journal.keep("q", {"a": array})
        contents.append((tmp_path / f"{filling}.ckpt").read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a"]),
        np.array([1j]),
        np.array([None]),
        np.array(["2020"], dtype="M8[Y]"),
        np.zeros(2, dtype=[("a", "f8", 3)]),
        np.zeros(2, dtype=[("a", [("b", "f8")])]),
    ],
)
def test_arrays_of_other_things_are_refused(tmp_path: Path, array: Any) -> None:
    path = tmp_path / "run.ckpt"
    with Journal.open(path, IDENTITY) as journal:
        before = path.read_bytes()
        with pytest.raises(TypeError, match="array 'a' must"):
            journal.keep("q", {"a": array})
        assert path.read_bytes() == before


def test_keeping_leaves_damaged_lines_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    write(path)
    path.write_bytes(path.read_bytes() + b"rubbish\n")
    with opened(path) as journal:
        journal.keep("q", ARRAYS)
        journal.keep("q", ARRAYS)
    with pytest.warns(CheckpointWarning, match="1 damaged line "):
        journal = Journal.open(path, IDENTITY)
    with journal:
        assert journal.facts == len(FACTS)


# The disk


def _full(room: int) -> Any:
    """A write to a disk with room for so many bytes."""
    left = [room]

    def write(file: io.FileIO, data: bytes) -> None:
        os.write(file.fileno(), data[: left[0]])
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    return write


def test_a_full_disk_leaves_the_journal_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.ckpt"
    with Journal.open(path, IDENTITY) as journal:
        journal.add([(0, FACTS[0])])
        journal.keep("q", {"a": np.arange(3)})
        before = path.read_bytes()
        for room in range(0, 400, 7):
            with monkeypatch.context() as patch:
                patch.setattr(checkpoint, "_write", _full(room))
                with pytest.raises(CheckpointError, match="cannot be written: No space left"):
                    journal.keep("q", ARRAYS)
                patch.setattr(checkpoint, "_write", _full(room // 2))
                with pytest.raises(CheckpointError, match="cannot be written: No space left"):
                    journal.add(FACTS.items())
                assert path.read_bytes() == before
                assert journal.facts == 1
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "_write", _full(10))
            patch.setattr(Journal, "_cut", lambda journal: None)  # the disk does not let us cut either
            with pytest.raises(CheckpointError):
                journal.add([(1, FACTS[1])])
        assert len(path.read_bytes()) == len(before) + 10
        journal.add([(1, FACTS[1])])
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.ckpt"]
    with Journal.open(path, IDENTITY) as journal:
        assert journal.facts == 2
        assert alike(journal.snapshot("q"), {"a": np.arange(3)})


@pytest.mark.skipif(sys.platform == "win32", reason="limits are of Unix")
def test_a_limit_of_the_system_is_met_half_way(tmp_path: Path) -> None:
    """Unlike above, it is the system itself that writes a part and then refuses."""
    path = tmp_path / "run.ckpt"
    code = """
        import os, resource
        with Journal.open(sys.argv[1], IDENTITY) as journal:
            before, (_, most) = os.path.getsize(sys.argv[1]), resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (before + 100, most))
            try:
                journal.add([(c, Fact("a", (c / 3,), c)) for c in range(100)])
            except CheckpointError as error:
                print(error, flush=True)
            print(os.path.getsize(sys.argv[1]) - before, journal.facts, flush=True)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            journal.add([(7, Fact("a", (7,), 7))])
    """
    with child(code, str(path)) as process:
        assert said(process) == f"checkpoint {path} cannot be written: File too large"
        assert said(process) == "0 0"
    with Journal.open(path, IDENTITY) as journal:
        assert (journal.facts, journal.find(7, "a")) == (1, Fact("a", (7,), 7))


def test_a_write_in_parts_is_completed() -> None:
    class Slow:
        def __init__(self) -> None:
            self.data = b""

        def write(self, view: memoryview) -> int:
            self.data += bytes(view[:3])
            return len(view[:3])

    slow = Slow()
    checkpoint._write(slow, b"0123456789")  # type: ignore[arg-type]
    assert slow.data == b"0123456789"


def test_the_disk_is_waited_for_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with Journal.open(tmp_path / "run.ckpt", IDENTITY) as journal:
        synced.clear()
        started = time.monotonic()
        for chunk in range(1000):
            journal.add([(chunk, FACTS[0])])
        assert len(synced) <= (time.monotonic() - started) / checkpoint.SYNC_SECONDS
        monkeypatch.setattr(checkpoint, "SYNC_SECONDS", 0.0)
        journal.add([(1000, FACTS[0])])
        assert synced
        synced.clear()
    assert len(synced) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only to root")
def test_what_is_read_only_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    write(path)
    path.chmod(0o400)
    with pytest.raises(CheckpointError, match=r"run\.ckpt cannot be opened: Permission denied"):
        Journal.open(path, IDENTITY)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match=r"new\.ckpt cannot be opened: Permission denied"):
            Journal.open(tmp_path / "new.ckpt", IDENTITY)
    finally:
        tmp_path.chmod(0o700)


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "run.ckpt", IDENTITY)
    journal.close()
    journal.close()
    with pytest.raises(CheckpointError, match=r"run\.ckpt is closed"):
        journal.add([(0, FACTS[0])])
    with pytest.raises(CheckpointError, match=r"run\.ckpt is closed"):
        journal.keep("q", {})
    with pytest.raises(CheckpointError, match=r"run\.ckpt is closed"):
        journal.snapshot("q")


# Other processes


def child(code: str, *arguments: str) -> "subprocess.Popen[str]":
    """A Python process that knows the names of this file. It imports the one module, which takes less time."""
    text = f"import sys, time\nsys.path.insert(0, {str(Path(checkpoint.__file__).parent)!r})\nimport numpy as np\n"
    text += f"from checkpoint import *\nIDENTITY = {IDENTITY!r}\n" + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", text, *arguments], stdout=subprocess.PIPE, text=True)


def kill(process: "subprocess.Popen[str]") -> str:
    """Kills a process without warning; what it said."""
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    return said


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def refused(path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"^checkpoint {path} is in use by another run$"):
        Journal.open(path, IDENTITY)


unix = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of Unix")


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    with Journal.open(path, IDENTITY) as journal:
        refused(path)
        journal.add(FACTS.items())
        journal.keep("q", ARRAYS)
        refused(path)
        journal.keep("q", {})
        refused(path)
    write(path)


@unix
def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    code = """
        journal = Journal.open(sys.argv[1], IDENTITY)
        journal.keep("q", {"a": np.arange(3)})
        print("ready", flush=True)
        time.sleep(20)
    """
    with child(code, str(path)) as process:
        assert said(process) == "ready"
        refused(path)
        kill(process)
    with Journal.open(path, IDENTITY) as journal:
        assert alike(journal.snapshot("q"), {"a": np.arange(3)})
        other = "\ntry:\n    Journal.open(sys.argv[1], IDENTITY)\nexcept CheckpointError as error:\n    print(error)\n"
        with child(other, str(path)) as process:
            assert said(process) == f"checkpoint {path} is in use by another run"


@unix
def test_a_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Workers that outlive a run that was killed must not lock its checkpoint; nor may they write to it."""
    path = tmp_path / "run.ckpt"
    code = """
        import os
        journal = Journal.open(sys.argv[1], IDENTITY)
        if os.fork() == 0:
            try:
                journal.add([(0, Fact("a", (), 1))])
                print(os.getpid(), "added", flush=True)
            except CheckpointError as error:
                print(os.getpid(), error, flush=True)
        time.sleep(20)
    """
    with child(code, str(path)) as process:
        orphan, _, error = said(process).partition(" ")
        try:
            assert error == f"checkpoint {path} is closed"
            refused(path)
            process.kill()
            process.wait()
            write(path)
        finally:
            process.kill()
            os.kill(int(orphan), signal.SIGKILL)


@unix
def test_a_killed_run_loses_nothing_that_it_announced(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    code = """
        with Journal.open(sys.argv[1], IDENTITY) as journal:
            chunk = journal.recovered
            print(chunk, flush=True)
            while True:
                journal.add([(c, Fact(str(c), (c, c / 3), c)) for c in range(chunk, chunk + 3)])
                chunk += 3
                print(chunk, flush=True)
    """
    rng = random.Random(0)
    count = 0
    for _ in range(5):
        with child(code, str(path)) as process:
            said(process)
            time.sleep(rng.uniform(0.0, 0.1))
            whole = kill(process).rpartition("\n")[0].split()
        announced = int(whole[-1]) if whole else count
        with opened(path) as journal:
            assert journal.recovered >= announced >= count
            for chunk in range(announced):
                assert journal.find(chunk, str(chunk)) == Fact(str(chunk), (chunk, chunk / 3), chunk)
            count = journal.recovered
    assert count > 0


@unix
@pytest.mark.full
def test_a_run_killed_while_it_keeps_has_the_old_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    write(path)
    code = """
        with Journal.open(sys.argv[1], IDENTITY) as journal:
            found = journal.snapshot("q")
            number = 0 if found is None else int(found["number"])
            print(number, flush=True)
            while True:
                number += 1
                journal.keep("q", {"number": np.array(number), "bulk": np.random.default_rng(number).random(30_000)})
                print(number, flush=True)
    """
    rng = random.Random(1)
    number = 0
    for _ in range(5):
        with child(code, str(path)) as process:
            said(process)
            time.sleep(rng.uniform(0.0, 0.1))
            whole = kill(process).rpartition("\n")[0].split()
        announced = int(whole[-1]) if whole else number
        with Journal.open(path, IDENTITY) as journal:  # without any damage
            assert journal.facts == len(FACTS)
            found = journal.snapshot("q")
            if found is not None:
                number = int(found["number"])
                assert announced <= number <= announced + 1
                assert (found["bulk"] == np.random.default_rng(number).random(30_000)).all()
    assert number > 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.ckpt"]


@unix
def test_a_file_that_is_replaced_while_another_waits_at_the_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that opened the old file before the new one took its place must not believe that it has the lock."""
    path = tmp_path / "run.ckpt"
    journal = Journal.open(path, IDENTITY)
    calls = []

    def late(file: io.FileIO) -> None:
        calls.append(file)
        if len(calls) == 1:  # the other opened the old file; now ours is replaced, and the old one is free
            monkeypatch.setattr(checkpoint, "lock", lock)
            journal.keep("q", {})
            monkeypatch.setattr(checkpoint, "lock", late)
        lock(file)

    monkeypatch.setattr(checkpoint, "lock", late)
    with journal:
        refused(path)
    assert len(calls) == 2
