"""The state of a search as named arrays, for a checkpoint, and back: a restored search goes on with the same bits.

Only what is used is saved: the states that were discovered and the pairs that were sampled. A checkpoint returns the
bytes that were written into it or an error; here it is checked only that the arrays fit the search.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from smoothplan.arguments import Floats, Ints
from smoothplan.models.base import Oracle
from smoothplan.search.graph import (
    BY_OUTCOME,
    NOWHERE,
    NUMBERS,
    OUTCOMES,
    PAIR,
    STATES,
    Graph,
    Rules,
    discover_all,
    enter_all,
    new_graph,
    records_of,
)
from smoothplan.streams import CALLS, Stream, generator_from, generator_words

Arrays = dict[str, NDArray[Any]]
"""Arrays by name, none of them of Python objects."""

Readable = Mapping[str, NDArray[Any]]
"""The same, from a file. Other names than those that are looked for do not matter."""


def require(condition: Any, what: str) -> None:
    """Refuses saved arrays of which something is not true."""
    if not condition:
        raise ValueError(f"the saved arrays do not fit: {what}")


def piece(arrays: Readable, name: str, dtype: DTypeLike, *shape: int | None) -> NDArray[Any]:
    """The array of that name, which must have this dtype and shape; None for any length."""
    array = arrays.get(name)
    if not isinstance(array, np.ndarray):
        raise ValueError(f"the saved arrays do not fit: {name!r} is missing")
    fits = array.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    wanted = "[" + ", ".join("any" if length is None else str(length) for length in shape) + "]"
    require(fits, f"{name!r} must have shape {wanted}, got {list(array.shape)}")
    require(array.dtype == dtype, f"{name!r} must have dtype {np.dtype(dtype)}, got {array.dtype}")
    return array


def finite(arrays: Readable, name: str, *shape: int | None) -> Floats:
    """The array of that name, of finite numbers."""
    array = piece(arrays, name, np.float64, *shape)
    require(np.isfinite(array).all(), f"{name!r} must be finite")
    return array


# Random streams


def oracle_arrays(oracle: Oracle) -> Arrays:
    """What an oracle draws next, and how many calls it has made."""
    return {"generator": generator_words(oracle.rng), "stream": oracle.stream.copy()}


def read_streams(arrays: Readable) -> tuple[np.random.Generator, Stream]:
    """The generator and the stream of an oracle."""
    return generator_from(piece(arrays, "generator", np.uint64, 6)), piece(arrays, "stream", np.uint64, CALLS + 1)


def set_streams(oracle: Oracle, streams: tuple[np.random.Generator, Stream]) -> None:
    """Lets an oracle go on from there."""
    generator, stream = streams
    oracle.rng.bit_generator.state = generator.bit_generator.state
    oracle.stream[:] = stream


# Graphs


def graph_arrays(graph: Graph, rules: Rules) -> Arrays:
    """What was discovered, except for what the states are: n states, and m pairs that were sampled."""
    states = int(graph.totals[STATES])
    entries = np.flatnonzero(graph.pairs["count"][: states * records_of(rules) * rules.actions])
    pairs = graph.pairs[entries]
    outcomes = outcomes_of(pairs)
    totals = graph.totals.copy()
    totals[OUTCOMES] = len(outcomes)
    pairs["start"] = pairs["room"] = 0  # where outcomes are does not matter
    return {
        "room": np.array([len(graph.keys)]),
        "totals": totals,
        "spent": graph.spent.copy(),
        "stake": graph.stake.copy(),
        "low": graph.low[: states * rules.stages].copy(),  # [n·H]
        "high": graph.high[: states * rules.stages].copy(),
        "entries": entries,  # [m], where the pairs are
        "pairs": pairs,  # [m] of PAIR
        "successors": graph.successors[outcomes],  # of all outcomes, pair by pair
        "hits": graph.hits[outcomes],
        "rewards": graph.rewards[outcomes] if rules.kind == BY_OUTCOME else np.zeros(0),
        "q_low": _by_pair(graph.q_low, rules, states)[entries],  # [m, H/R]
        "q_high": _by_pair(graph.q_high, rules, states)[entries],
    }


def outcomes_of(pairs: NDArray[np.void]) -> Ints:
    """Where the outcomes of pairs [m] are, pair by pair."""
    seen = pairs["seen"]
    behind = np.cumsum(seen)
    return np.asarray(np.arange(int(seen.sum())) + np.repeat(pairs["start"] - (behind - seen), seen))


def read_graph(arrays: Readable, rules: Rules, keys: Ints) -> Graph:
    """The graph of states with these keys, all of them different."""
    states, size = len(keys), records_of(rules) * rules.actions
    room = int(piece(arrays, "room", np.int64, 1)[0])
    totals = piece(arrays, "totals", np.int64, NUMBERS)
    require(totals[STATES] == states <= room, f"'totals' and 'room' must be those of {states} states")
    entries = piece(arrays, "entries", np.int64, None)
    require(((entries >= 0) & (entries < states * size)).all(), "'entries' must be pairs of the states that there are")
    pairs = piece(arrays, "pairs", PAIR, len(entries)).copy()
    seen = pairs["seen"]
    require(((seen > 0) & (seen <= rules.bound)).all(), "'pairs' must have outcomes, and no more than there can be")
    outcomes = int(seen.sum())
    require(totals[OUTCOMES] == outcomes, "'totals' must be those of the outcomes of 'pairs'")
    successors = piece(arrays, "successors", np.int32, outcomes)
    require(((successors < states) & (successors != NOWHERE)).all(), "'successors' must be known states")
    pairs["start"], pairs["room"] = np.cumsum(seen) - seen, seen

    fresh = new_graph(rules, 1, 1)  # what is known of a state at its discovery
    discover_all(fresh, rules, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), 0)
    graph = new_graph(rules, room, max(outcomes, 1))
    graph.keys[:states] = keys
    enter_all(graph.slots, graph.keys, states)
    graph.totals[:] = totals
    graph.spent[:] = piece(arrays, "spent", np.int64, rules.actions)
    graph.stake[:] = finite(arrays, "stake", 1)
    graph.pairs[: states * size] = np.tile(fresh.pairs, states)
    graph.pairs[entries] = pairs
    graph.successors[:outcomes] = successors
    graph.hits[:outcomes] = piece(arrays, "hits", np.int64, outcomes)
    if rules.kind == BY_OUTCOME:
        graph.rewards[:outcomes] = finite(arrays, "rewards", outcomes)
    for name in ("low", "high"):
        getattr(graph, name)[: states * rules.stages] = finite(arrays, name, states * rules.stages)
        q = np.tile(_by_pair(getattr(fresh, f"q_{name}"), rules, 1), (states, 1))
        q[entries] = finite(arrays, f"q_{name}", len(entries), q.shape[1])
        by_action = q.reshape(states, records_of(rules), rules.actions, -1)  # the inverse of `_by_pair`
        getattr(graph, f"q_{name}")[: q.size] = np.swapaxes(by_action, 2, 3).reshape(-1)
    return graph


def _by_pair(q: Floats, rules: Rules, states: int) -> Floats:
    """Bounds [N·H·K] of action values, those of a pair together: [N·R·K, H/R]."""
    count, records = states * rules.stages * rules.actions, records_of(rules)
    by_stage = q[:count].reshape(states, records, -1, rules.actions)
    return np.swapaxes(by_stage, 2, 3).reshape(states * records * rules.actions, -1)
