"""Random streams: the generator is the published one, and every chunk has its own. Functions compiled on first use."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any, get_args

import numba
import numpy as np
import pytest

from smoothplan.base import streams
from smoothplan.base.compiling import Compiled, compiled, pointer_to

MASK = 2**64 - 1


def xoshiro256_plus_plus(words: list[int], count: int) -> list[int]:
    """Blackman and Vigna's next(), in Python's integers; changes `words`."""

    def rotate(word: int, bits: int) -> int:
        return ((word << bits) | (word >> (64 - bits))) & MASK

    results = []
    for _ in range(count):
        results.append((rotate((words[0] + words[3]) & MASK, 23) + words[0]) & MASK)
        shifted = (words[1] << 17) & MASK
        words[2] ^= words[0]
        words[3] ^= words[1]
        words[1] ^= words[2]
        words[0] ^= words[3]
        words[2] ^= shifted
        words[3] = rotate(words[3], 45)
    return results


@pytest.mark.parametrize(("seed", "chunk"), [(0, 0), (0, 1), (7, 0), (2**70, 10**6)])
def test_uniform_is_xoshiro_bit_for_bit(seed: int, chunk: int) -> None:
    state = streams.stream(seed, chunk)
    words = [int(word) for word in state[: streams.CALLS]]
    expected = [(word >> 11) * 2.0**-53 for word in xoshiro256_plus_plus(words, 1000)]
    assert [streams.uniform(state) for _ in range(1000)] == expected
    assert [int(word) for word in state] == [*words, 0]


def test_uniform_follows_the_published_first_outputs() -> None:
    """From the state (1, 2, 3, 4) the reference implementation in C starts like this."""
    published = [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205]
    assert xoshiro256_plus_plus([1, 2, 3, 4], 5) == published
    state = np.array([1, 2, 3, 4, 0], dtype=np.uint64)
    assert [streams.uniform(state) for _ in range(5)] == [(word >> 11) * 2.0**-53 for word in published]


def test_uniform_stays_below_one_at_the_largest_word() -> None:
    state = np.array([0, 0, 0, MASK, 0], dtype=np.uint64)
    assert streams.uniform(state) == 1.0 - 2.0**-53


@pytest.mark.parametrize("source", [streams.stream, lambda *key: streams.generator(*key).integers(2**63, size=5)])
def test_streams_differ_between_seeds_roles_and_chunks_and_are_reproducible(source: Any) -> None:
    keys = [(seed, chunk, role) for seed in range(3) for chunk in range(4) for role in get_args(streams.Role)]
    drawn = {key: source(*key) for key in keys}
    for one, two in combinations(keys, 2):
        assert not (drawn[one] == drawn[two])[: streams.CALLS].any()
    for key in keys:
        np.testing.assert_array_equal(source(*key), drawn[key])


@pytest.mark.parametrize("make", [streams.stream, streams.generator])
@pytest.mark.parametrize(
    ("seed", "chunk", "message"),
    [
        (-1, 0, "seed must be at least 0"),
        (0, -2, "chunk must be at least 0"),
        (0, 2**32, "chunk must be at most"),  # whose words are those of a role and a chunk
        (0.5, 0, "seed must be a whole number"),
    ],
)
def test_a_wrong_seed_or_chunk_is_refused(make: Any, seed: Any, chunk: int, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make(seed, chunk)


# Functions that are compiled on first use


def in_another_process(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def test_an_import_loads_neither_numba_nor_what_only_some_need() -> None:
    heavy = ["numba", "rich", "plotly", "gymnasium", "distributed"]
    code = f"import sys, smoothplan; print([name for name in {heavy} if name in sys.modules])"
    assert in_another_process(code) == "[]\n"


def test_cached_code_loads_in_another_process() -> None:
    """A second process loads what the first compiled; a recursion compiled wrongly would crash there."""
    code = (
        "import smoothplan as sp; model = sp.models.garnet(states=5, actions=2, branching=2, discount=0.2, seed=1);"
        "print(sp.plan(sp.SmoothCruiser(sp.LogSumExp(1.0), 0.05), model, engine='compiled').status)"
    )
    for _ in range(2):
        assert in_another_process(code) == "converged\n"


def test_threads_compile_a_function_once() -> None:
    """It calls itself, so that a second version would be compiled where it is used before it is ready."""
    made: list[object] = []

    def signature() -> Any:
        made.append(None)
        return numba.int64(numba.int64)

    function = Compiled(_fibonacci, lambda: numba.njit, signature)
    globals()["_fibonacci"] = function
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(function, [20] * 8)) == [6765] * 8
    assert len(made) == len(function.dispatcher.signatures) == 1
    with pytest.raises(TypeError, match="No matching definition"):
        function("twenty")


def _fibonacci(number: int) -> int:
    return number if number < 2 else _fibonacci(number - 1) + _fibonacci(number - 2)


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


def test_a_compiled_function_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(streams.uniform)) is streams.uniform
