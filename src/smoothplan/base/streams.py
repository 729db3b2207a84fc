"""Random streams: chunk c of a role draws from the stream of (seed, role, c), on any worker.

Python code draws from a NumPy generator, compiled code from xoshiro256++ (Blackman and Vigna, 2021), five words of
which the last counts simulator calls: compiled code cannot draw a transition without being counted.
"""

from functools import partial
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.compiling import compiled

Stream = NDArray[np.uint64]

CALLS = 4
"""Index of the word of a `Stream` that counts simulator calls."""


Role = Literal["samples", "reference", "race", "walk", "world", "probe", "contest"]
"""The purpose of draws: the samples of a planner; making and improving a reference; a race between actions; walks that
see whether states recur; episodes of a simulated world; calls that tell whether a checkpoint is of this simulator; and
contests between policies.
A reference made with the seed of a planner must not depend on the samples of that planner."""


def _seed_sequence(seed: int, chunk: int, role: Role) -> np.random.SeedSequence:
    number = get_args(Role).index(role)
    # A spawn key is made of words of 32 bits: a larger chunk could be taken for a role and a chunk.
    chunk = arguments.whole("chunk", chunk, least=0, most=2**32 - 1)
    key = (chunk,) if number == 0 else (number, chunk)
    return np.random.SeedSequence(arguments.whole("seed", seed, least=0), spawn_key=key)


def generator(seed: int, chunk: int = 0, role: Role = "samples") -> np.random.Generator:
    """The NumPy generator of a chunk."""
    return np.random.Generator(np.random.SFC64(_seed_sequence(seed, chunk, role)))


def generator_words(rng: np.random.Generator) -> Stream:
    """The state of such a generator, [6]: `generator_from` makes another from it that draws the same numbers."""
    state = cast(dict[str, Any], rng.bit_generator.state)
    if state["bit_generator"] != "SFC64":
        raise TypeError(f"rng must be a generator of a stream, with SFC64, got {state['bit_generator']}")
    return np.array([*state["state"]["state"], state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def generator_from(words: Stream) -> np.random.Generator:
    """A generator in a given state, [6]."""
    if words.shape != (6,) or words.dtype != np.uint64 or words[4] > 1 or words[5] >= 1 << 32:
        raise ValueError(f"words must be the state of a generator, got {words.tolist()}")
    bits = np.random.SFC64(0)
    bits.state = {
        "bit_generator": "SFC64",
        "state": {"state": words[:4].copy()},
        "has_uint32": int(words[4]),
        "uinteger": int(words[5]),
    }
    return np.random.Generator(bits)


def stream(seed: int, chunk: int = 0, role: Role = "samples") -> Stream:
    """The xoshiro256++ state [5] of a chunk, with a count of zero calls."""
    words = np.zeros(5, dtype=np.uint64)
    words[:CALLS] = _seed_sequence(seed, chunk, role).generate_state(4, np.uint64)
    return words


@partial(compiled, inner=True)
def advance(s0: Any, s1: Any, s2: Any, s3: Any) -> tuple[Any, Any, Any, Any, Any]:
    """One step of xoshiro256++: a random word, and the next four words of the state.

    For loops that keep the state in registers; `next_word` is the same for the rest.
    """
    summed = s0 + s3
    result = ((summed << np.uint64(23)) | (summed >> np.uint64(41))) + s0
    shifted = s1 << np.uint64(17)
    s2 ^= s0
    s3 ^= s1
    s1 ^= s2
    s0 ^= s3
    s2 ^= shifted
    return result, s0, s1, s2, (s3 << np.uint64(45)) | (s3 >> np.uint64(19))


@partial(compiled, merged=True)
def next_word(state: Stream) -> Any:
    """The next random word of a stream, uniform on 64 bits."""
    word, state[0], state[1], state[2], state[3] = advance(state[0], state[1], state[2], state[3])
    return word


@partial(compiled, merged=True)
def fraction(word: Any) -> float:
    """A random word as a multiple of 2⁻⁵³ in [0, 1)."""
    return float(np.int64(word >> np.uint64(11))) * 2.0**-53


@partial(compiled, inner=True)
def uniform(state: Stream) -> float:
    """The next number of a stream, uniform on the multiples of 2⁻⁵³ in [0, 1)."""
    return fraction(next_word(state))
