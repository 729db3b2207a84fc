"""Compiling on first use: one version of every kernel, a clock that stands still, and a cache that is never stale."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base import compiling
from smoothplan.base.compiling import Compiled, announcing, compiled, load_numba, paused_clock, pointer_to, working_time
from smoothplan.base.stopping import StopSignal
from smoothplan.run.records import Root


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test sets, with nothing left out yet."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(compiling, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(compiling, "_clock", compiling._Clock())
    return clock


# The clock


def test_working_time_stands_still(fake: SimpleNamespace) -> None:
    """Within nested pauses, which count once; seen from another thread, as while one compiles."""
    fake.now += 1.0
    with paused_clock():
        fake.now += 10.0
        with paused_clock():
            fake.now += 10.0
        with ThreadPoolExecutor(1) as other:
            assert other.submit(working_time).result() == 1001.0
        fake.now += 10.0
    fake.now += 1.0
    assert working_time() == 1002.0


def test_pauses_of_threads_count_once(fake: SimpleNamespace) -> None:
    with ThreadPoolExecutor(1) as other:
        first, second = paused_clock(), paused_clock()
        other.submit(first.__enter__).result()
        with second:
            fake.now += 5.0
        assert working_time() == 1000.0
        fake.now += 5.0
        other.submit(first.__exit__, None, None, None).result()
    assert working_time() == 1000.0


def test_a_pause_without_an_end_is_over_when_its_thread_goes_on(fake: SimpleNamespace) -> None:
    """An interrupt may keep Numba from reporting the end."""
    compiling._clock.pause(+1)
    fake.now += 3.0
    assert working_time() == 1000.0
    fake.now += 2.0
    assert working_time() == 1002.0
    compiling._clock.pause(-1)  # too late, and without effect
    assert working_time() == 1002.0


def test_limits_on_time_do_not_count_compiling(fake: SimpleNamespace) -> None:
    model = sp.models.garnet(states=5, actions=2, discount=0.2, seed=1)
    root, stop = Root(model, 0, 0, None, 10.0, "auto", 0.0), StopSignal(working_time() + 10.0)
    with paused_clock():
        fake.now += 100.0
    fake.now += 9.0
    assert not stop.is_pulled
    assert root.late(0.8)
    assert not root.late(1.0)
    fake.now += 2.0
    assert stop.is_pulled
    assert root.late(1.0)


def test_compiling_pauses_the_clock_and_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if Numba compiles a simulator's function directly, but not after the announcement is over."""
    pauses: list[int] = []
    told: list[None] = []
    monkeypatch.setattr(compiling._clock, "pause", pauses.append)
    with announcing(lambda: told.append(None)):
        for shift in range(2):
            load_numba().njit(lambda number, shift=shift: number + shift)(1)
    with announcing(lambda: told.append(None)):
        pass
    load_numba().njit(lambda number: number - 1)(1)
    assert told == [None]
    assert not compiling._listeners
    assert sum(pauses) == 0 < len(pauses)


# What is compiled


@partial(compiled, inner=True)
def _shifted(number: int, shift: int) -> int:
    return number + shift


@compiled
def _calling(number: int) -> int:
    return _shifted(_shifted(number, 1), 2)


def _uncached(function: Callable[..., Any], merged: bool = False) -> Compiled:
    return Compiled(function, merged=merged, allocates=True, cached=False)


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


@compiled
def _through_a_pointer(number: float, numbers: Any) -> float:
    pointer = pointer_to((number, numbers))
    numbers[0] = 3.0
    return float(pointer[0][0] + pointer[0][1][0])


def test_a_pointer_leads_to_its_value() -> None:
    """To numbers as they were, and to arrays as they are."""
    assert _through_a_pointer(0.5, np.zeros(1)) == 3.5
    with pytest.raises(NotImplementedError, match="compiled code"):
        pointer_to(1)


def test_threads_compile_a_function_once() -> None:
    """It calls itself, so that a second version would be compiled if it were used before it is ready."""
    made: list[object] = []

    def signature() -> Any:
        made.append(None)
        return numba.int64(numba.int64)

    function = Compiled(_fibonacci, signature=signature, cached=False)
    globals()["_fibonacci"] = function
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(function, [20] * 8)) == [6765] * 8
    assert len(made) == len(function.dispatcher.signatures) == 1
    with pytest.raises(TypeError, match="No matching definition"):
        function("twenty")


def _fibonacci(number: int) -> int:
    return number if number < 2 else _fibonacci(number - 1) + _fibonacci(number - 2)


# Other processes, and the cache


def in_another_process(code: str, **environment: str) -> str:
    """The output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=os.environ | environment
    )
    return done.stdout


def test_an_import_loads_neither_numba_nor_what_only_some_need() -> None:
    heavy = ["numba", "rich", "plotly", "gymnasium", "distributed"]
    code = f"import sys, smoothplan; print([name for name in {heavy} if name in sys.modules])"
    assert in_another_process(code) == "[]\n"


@pytest.mark.full
def test_every_kernel_has_one_version(tmp_path: Path) -> None:
    """After plans on a table and with a compiled simulator; from a cache, inner functions would not be seen."""
    code = "import json; from tests.base.test_compiling import several_plans; print(json.dumps(several_plans()))"
    versions = json.loads(in_another_process(code, NUMBA_CACHE_DIR=str(tmp_path)))
    kernels = ("compiled._sample", "compiled._sum_samples", "batched._advance", "grid.interpolate")
    for name in (*kernels, "table._advance", "table._sum_chains", "table._sum_corrections"):
        assert versions[name] == 1
    assert {name: count for name, count in versions.items() if count > 1} == {}  # merged functions have none


def several_plans() -> dict[str, int]:
    """Plans that use the engines' kernels, and the number of versions of every compiled function afterwards."""
    backup = sp.LogSumExp(0.5)
    table = sp.models.garnet(states=5, actions=2, discount=0.2, seed=1)
    sp.plan(sp.DebiasedCruiser(backup, epsilon=0.1), table, 0)
    for model, state in ((sp.models.cart_pole(), None), (table, 0)):
        sp.plan(sp.ReferenceCruiser(backup, order=2, epsilon=0.1), model, state, max_calls=500_000)
    modules = [module for name, module in sys.modules.items() if name.startswith("smoothplan.")]
    functions = {thing for module in modules for thing in vars(module).values() if isinstance(thing, Compiled)}
    names = {f: f"{f.py_func.__module__.rpartition('.')[2]}.{f.py_func.__qualname__}" for f in functions if f._ready}
    return {name: len(f.dispatcher.signatures) for f, name in names.items()}


def test_cached_code_loads_in_another_process(tmp_path: Path) -> None:
    """A second process loads what the first compiled; a recursion compiled wrongly would crash there."""
    code = (
        "import smoothplan as sp; model = sp.models.garnet(states=5, actions=2, branching=2, discount=0.2, seed=1);"
        "print(sp.plan(sp.SmoothCruiser(sp.LogSumExp(1.0), 0.05), model, engine='compiled').status)"
    )
    for _ in range(2):
        assert in_another_process(code, NUMBA_CACHE_DIR=str(tmp_path)) == "converged\n"


def test_the_cache_depends_on_the_sources_of_all_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba's own stamp is that of one file, so that a change of a function called from another file goes unnoticed."""

    def hits(sources: str) -> int:
        monkeypatch.setattr(compiling, "_stamp", lambda file: sources)
        function: Any = compiled(_calling.__wrapped__)  # type: ignore[attr-defined]
        function(1)
        paths.add(Path(function.dispatcher._cache._cache_file._index_path))
        return sum(function.dispatcher.stats.cache_hits.values())

    paths: set[Path] = set()
    hits("some")
    assert hits("some") == 1
    assert hits("others") == 0
    # An index of other sources may refer to modules that no longer exist: it is not read.
    (index,) = paths
    index.write_bytes(pickle.dumps(load_numba().__version__) + b"not to be read")
    assert hits("others") == 0


def test_the_stamp_of_a_kernel_covers_the_modules_that_it_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Editing the command line keeps compiled code; editing a module that a kernel imports, however far, does not."""
    kernel, read = str(Path(compiling.__file__).parents[1] / "recursive" / "compiled.py"), Path.read_text

    def stamp(edited: str) -> str:
        def text(path: Path, encoding: str) -> str:
            return read(path, encoding) + "#" * path.as_posix().endswith(edited)

        monkeypatch.setattr(Path, "read_text", text)
        compiling._stamp.cache_clear()
        return compiling._stamp(kernel)

    try:
        plain = stamp("nothing")
        assert stamp("smoothplan/cli.py") == plain
        assert len({plain, *map(stamp, ("recursive/compiled.py", "base/streams.py", "theory/softmaxes.py"))}) == 4
    finally:
        compiling._stamp.cache_clear()
