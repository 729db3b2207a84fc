"""Random streams: the generator is the published one, and every chunk of every role has its own."""

from itertools import combinations
from typing import Any, get_args

import numpy as np
import pytest

from smoothplan.base import streams

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


@pytest.mark.parametrize(("seed", "chunk"), [(0, 0), (7, 1), (2**70, 10**6)])
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
    largest = np.array([0, 0, 0, MASK, 0], dtype=np.uint64)
    assert streams.uniform(largest) == 1.0 - 2.0**-53


@pytest.mark.parametrize("source", [streams.stream, lambda *key: streams.generator(*key).integers(2**63, size=5)])
def test_streams_differ_between_seeds_roles_and_chunks_and_are_reproducible(source: Any) -> None:
    keys = [(seed, chunk, role) for seed in range(3) for chunk in range(4) for role in get_args(streams.Role)]
    drawn = {key: source(*key) for key in keys}
    for one, two in combinations(keys, 2):
        assert not (drawn[one] == drawn[two])[: streams.CALLS].any()
    for key in keys:
        np.testing.assert_array_equal(source(*key), drawn[key])


@pytest.mark.parametrize("make", [streams.stream, streams.generator])
def test_a_wrong_seed_or_chunk_is_refused(make: Any) -> None:
    """The words of a chunk of 2³² would be those of a role and a chunk."""
    cases = [((-1, 0), "seed must be at least 0"), ((0.5, 0), "seed must be a whole number")]
    cases += [((0, -2), "chunk must be at least 0"), ((0, 2**32), "chunk must be at most")]
    for given, message in cases:
        with pytest.raises((ValueError, TypeError), match=message):
            make(*given)
