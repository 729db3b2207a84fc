"""Compiling on first use: one version of every kernel, a clock that stands still, and a cache that is never stale."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import smoothplan as sp
from smoothplan.base import compiling
from smoothplan.base.compiling import Compiled, announcing, compiled, load_numba, paused_clock, working_time
from smoothplan.base.stopping import StopSignal
from smoothplan.chains import grid as grids
from smoothplan.chains import jitted as jitted_chains
from smoothplan.recursive import compiled as recursion
from smoothplan.run.progress import COMPILING, Display
from smoothplan.run.records import Root
from smoothplan.theory import softmaxes


class FakeTime:
    """A stand-in for the module `time` that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """A clock that the test sets, with nothing left out yet."""
    clock = FakeTime()
    monkeypatch.setattr(compiling, "time", clock)
    monkeypatch.setattr(compiling, "_standstills", compiling._Standstills())
    return clock


def _elsewhere(function: Callable[[], object]) -> None:
    """Calls a function in another thread."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


# The clock


def test_working_time_stands_still(fake: FakeTime) -> None:
    """Within nested standstills, which count once; seen from another thread, as while one compiles."""
    seen: list[float] = []
    fake.now += 1.0
    with paused_clock():
        fake.now += 10.0
        with paused_clock():
            fake.now += 10.0
        _elsewhere(lambda: seen.append(working_time()))
        fake.now += 10.0
    fake.now += 1.0
    assert seen == [1001.0]
    assert working_time() == 1002.0


def test_standstills_of_threads_count_once(fake: FakeTime) -> None:
    first, second = threading.Event(), threading.Event()

    def wait() -> None:
        with paused_clock():
            first.set()
            second.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    first.wait()
    with paused_clock():
        fake.now += 5.0
    assert working_time() == 1000.0
    fake.now += 5.0
    second.set()
    thread.join()
    assert working_time() == 1000.0


def test_a_standstill_without_an_end_is_over_when_its_thread_goes_on(fake: FakeTime) -> None:
    """An interrupt may keep Numba from reporting the end."""
    compiling._standstills.begin()
    fake.now += 3.0
    assert working_time() == 1000.0
    fake.now += 2.0
    assert working_time() == 1002.0
    compiling._standstills.end()  # too late, and without effect
    assert working_time() == 1002.0


def test_limits_on_time_do_not_count_compiling(fake: FakeTime) -> None:
    model = sp.models.garnet(states=5, actions=2, discount=0.2, seed=1)
    root, brake = Root(model, 0, 0, None, 10.0, "auto", 0.0), StopSignal(working_time() + 10.0)
    with paused_clock():
        fake.now += 100.0
    fake.now += 9.0
    assert not brake.is_pulled
    assert root.late(0.8)
    assert not root.late(1.0)
    fake.now += 2.0
    assert brake.is_pulled
    assert root.late(1.0)


def test_numba_makes_the_clock_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a simulator's function is compiled by Numba directly, and where a plan has started already."""
    began: list[None] = []
    monkeypatch.setattr(compiling._standstills, "begin", lambda: began.append(None))
    load_numba().njit(lambda number: number + 1)(1)
    assert began


# What is told


def test_a_display_says_that_code_is_compiled(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Once, however much is compiled, and not for what is compiled afterwards."""
    monkeypatch.setattr(compiling, "NOTICEABLE", 0.0)
    display = Display("json")
    with display, announcing(partial(display.note, COMPILING)):
        for shift in range(2):
            load_numba().njit(lambda number, shift=shift: number + shift)(1)
    load_numba().njit(lambda number: number - 1)(1)
    notes = [line for line in map(json.loads, capsys.readouterr().err.splitlines()) if "note" in line]
    assert notes == [{"note": COMPILING}]


def test_nothing_is_told_of_what_is_compiled_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "NOTICEABLE", 1e9)
    told: list[None] = []
    with announcing(lambda: told.append(None)):
        load_numba().njit(lambda number: number + 2)(1)
    assert not told
    assert not compiling._listeners


# What is compiled


@partial(compiled, inner=True)
def _shifted(number: int, shift: int) -> int:
    return number + shift


@compiled
def _calling(number: int) -> int:
    return _shifted(_shifted(number, 1), 2)


def _uncached(function: Callable[..., Any], merged: bool = False) -> Compiled:
    return Compiled(function, lambda: load_numba().njit, merged=merged)


def test_a_literal_argument_makes_no_version_of_its_own() -> None:
    added = _uncached(lambda number, shift: number + shift)
    assert _uncached(lambda number: added(added(number, 1), 2))(5) == 8
    assert [[str(kind) for kind in kinds] for kinds in added.dispatcher.signatures] == [["int64", "int64"]]


def test_a_merged_function_is_not_compiled_by_itself() -> None:
    doubled = _uncached(lambda number: 2 * number if number > 0 else 0, merged=True)
    assert _uncached(lambda number: doubled(number) + doubled(-number))(5) == 10
    assert not doubled.dispatcher.signatures
    assert doubled(4) == 8


def test_python_may_call_an_inner_function() -> None:
    """Without a wrapper of its own it would crash, so another version is made for Python."""
    assert _shifted(1, 2) == 3
    assert _calling(0) == 3
    assert _shifted(1, 2) == 3


def _as_compiled(function: Any) -> Compiled:
    assert isinstance(function, Compiled)
    return function


def _versions(*modules: Any) -> dict[str, int]:
    """How many versions there are of the compiled functions of modules."""
    functions = {thing for module in modules for thing in vars(module).values() if isinstance(thing, Compiled)}
    return {f.py_func.__qualname__: len(f.dispatcher.signatures) for f in functions if f._ready}


@pytest.mark.full
def test_every_kernel_has_one_version(tmp_path: Path) -> None:
    """After plans on a table and with a compiled simulator; from a cache, inner functions would not be seen."""
    code = "import json; from tests.base.test_compiling import several_plans; print(json.dumps(several_plans()))"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    versions = json.loads(done.stdout)
    for name in ("_sample", "_sum_samples", "_advance", "_sum_chains", "_sum_corrections", "interpolate"):
        assert versions[name] == 1
    assert {name: count for name, count in versions.items() if count > 1} == {}  # merged functions have none


def several_plans() -> dict[str, int]:
    """Plans that use the engines' kernels, and how many versions of these there are afterwards."""
    backup = sp.LogSumExp(0.5)
    table = sp.models.garnet(states=5, actions=2, discount=0.2, seed=1)
    sp.plan(sp.DebiasedCruiser(backup, epsilon=0.1), table, 0)
    sp.plan(sp.ReferenceCruiser(backup, order=2, epsilon=0.1), sp.models.cart_pole(), max_calls=500_000)
    return _versions(recursion, grids, jitted_chains, softmaxes)


# The cache


def test_the_cache_depends_on_all_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba's own stamp is that of one file, so that a change of a function called from another file goes unnoticed."""

    def cache_of(sources: str) -> Any:
        monkeypatch.setattr(compiling, "_sources", lambda: sources)
        function = _as_compiled(compiled(_calling.__wrapped__))  # type: ignore[attr-defined]
        function(1)
        return function.dispatcher.stats

    assert len(compiling._sources()) == 32
    cache_of("some")
    assert sum(cache_of("some").cache_hits.values()) == 1
    assert sum(cache_of("others").cache_hits.values()) == 0
