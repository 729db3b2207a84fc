"""The state of a search as named arrays, for a file, and back: a search that is restored goes on with the same bits.

Only what is used is saved: the states that were discovered and the pairs that were sampled. What is read may come from
anywhere, so that everything is checked on which compiled code relies.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from smoothplan.arguments import Floats, Ints
from smoothplan.models.base import Oracle
from smoothplan.search.graph import (
    DEBT,
    ENDED,
    NOWHERE,
    NUMBERS,
    OFFENDER,
    PAIR,
    PAIRS,
    ROUNDS,
    STATES,
    SWEPT,
    Graph,
    Rules,
    discovered,
    new_graph,
    records_of,
    rehash,
)
from smoothplan.search.walk import INSURED
from smoothplan.streams import CALLS, Stream, generator_from, generator_words

Arrays = dict[str, NDArray[Any]]
"""Arrays by name, none of them of Python objects."""

Readable = Mapping[str, NDArray[Any]]
"""The same, from a file. Other names than those that are looked for do not matter."""

MOST = 2**62
"""More calls and rounds than anybody makes."""


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
    generator = generator_from(piece(arrays, "generator", np.uint64, 6))
    stream = piece(arrays, "stream", np.uint64, CALLS + 1)
    require(stream[:CALLS].any(), "'stream' is stuck at zero")
    require(stream[CALLS] <= MOST, "'stream' has made too many calls")
    return generator, stream


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
    return {
        "room": np.array([len(graph.keys)]),
        "totals": graph.totals.copy(),
        "spent": graph.spent.copy(),
        "stake": graph.stake.copy(),
        "low": graph.low[: states * rules.stages].copy(),  # [n·H]
        "high": graph.high[: states * rules.stages].copy(),
        "entries": entries,  # [m], where the pairs are
        "pairs": graph.pairs[entries],  # [m] of PAIR
        "successors": graph.successors[entries],  # [m, B]
        "hits": graph.hits[entries],
        "q_low": _by_pair(graph.q_low, rules, states)[entries],  # [m, H/R]
        "q_high": _by_pair(graph.q_high, rules, states)[entries],
    }


def read_graph(arrays: Readable, rules: Rules, keys: Ints, room: int, calls: int) -> Graph:
    """The graph of states with these keys, which must differ, after so many simulator calls."""
    states, size = len(keys), records_of(rules) * rules.actions
    fresh = new_graph(rules, 1)  # what is known of a state at its discovery
    discovered(fresh, rules, 0)
    graph = new_graph(rules, room)
    graph.keys[:states] = keys

    entries = piece(arrays, "entries", np.int64, None)
    require((np.diff(entries) > 0).all(), "'entries' must grow")
    require(((entries >= 0) & (entries < states * size)).all(), "'entries' must be pairs of the states that there are")
    graph.pairs[: states * size] = np.tile(fresh.pairs, states)
    graph.pairs[entries] = _read_pairs(arrays, rules, len(entries))
    graph.successors[entries], graph.hits[entries] = _read_successors(arrays, rules, graph.pairs[entries], states)

    low, high = (piece(arrays, name, np.float64, states * rules.stages) for name in ("low", "high"))
    least, most = np.tile(fresh.low, states), np.tile(fresh.high, states)
    require(((least <= low) & (low <= high) & (high <= most)).all(), "'low' and 'high' must be intervals of values")
    graph.low[: len(low)], graph.high[: len(high)] = low, high

    q_low, q_high = (_by_pair(q, rules, 1) for q in (fresh.q_low, fresh.q_high))
    shape = len(entries), q_low.shape[1]
    low, high = (piece(arrays, name, np.float64, *shape) for name in ("q_low", "q_high"))
    least, most = q_low[entries % size], q_high[entries % size]
    require(((least <= low) & (low <= high) & (high <= most)).all(), "'q_low' and 'q_high' must be intervals of values")
    for target, before, bounds in ((graph.q_low, q_low, low), (graph.q_high, q_high, high)):
        everything = np.tile(before, (states, 1))
        everything[entries] = bounds
        target[: states * rules.stages * rules.actions] = _by_node(everything, rules, states)

    graph.totals[:] = _read_totals(arrays, states, graph.pairs[: states * size], calls)
    graph.spent[:] = piece(arrays, "spent", np.int64, rules.actions)
    require(graph.spent.min() >= 0 and sum(graph.spent.tolist()) <= calls, "'spent' must be parts of the calls")
    graph.stake[:] = finite(arrays, "stake", 1)
    require(graph.stake[0] >= 0.0, "'stake' must not be negative")
    rehash(graph)
    return graph


def _by_pair(q: Floats, rules: Rules, states: int) -> Floats:
    """Bounds [N·H·K] of action values, those of a pair together: [N·R·K, H/R]."""
    count, records = states * rules.stages * rules.actions, records_of(rules)
    by_stage = q[:count].reshape(states, records, -1, rules.actions)
    return np.swapaxes(by_stage, 2, 3).reshape(states * records * rules.actions, -1)


def _by_node(q: Floats, rules: Rules, states: int) -> Floats:
    """The inverse of `_by_pair`."""
    by_action = q.reshape(states, records_of(rules), rules.actions, -1)
    return np.swapaxes(by_action, 2, 3).reshape(-1)


def _read_pairs(arrays: Readable, rules: Rules, count: int) -> NDArray[np.void]:
    """The statistics of so many pairs that were sampled."""
    pairs = piece(arrays, "pairs", PAIR, count)
    names = [name for name in PAIR.names or () if name not in ("least", "most")]
    require(all(np.isfinite(pairs[name]).all() for name in names), "'pairs' must be finite")
    require((pairs["count"] > 0).all(), "'pairs' must have been sampled")
    require(all((pairs[name] >= 0.0).all() for name in ("total", "squares", "log_odds", "level")), "'pairs' below zero")
    require((pairs["reward_low"] <= pairs["reward_high"]).all(), "the interval of a reward must not be turned over")
    bounded = [("first_low", "first_high")]
    if rules.varying:
        bounded.append(("least", "most"))
    else:
        require((pairs["least"] == np.inf).all() and (pairs["most"] == -np.inf).all(), "rewards must not vary here")
    for low, high in bounded:
        fits = (pairs[low] >= 0.0) & (pairs[low] <= pairs[high]) & (pairs[high] <= 1.0)
        require(fits.all(), f"{low!r} and {high!r} of a pair must be in order, in [0, 1]")
    return pairs


def _read_successors(
    arrays: Readable, rules: Rules, pairs: NDArray[np.void], states: int
) -> tuple[NDArray[np.int32], Ints]:
    """The successors of such pairs and how often each was seen, which is as often as the pair was sampled."""
    shape = len(pairs), rules.bound
    successors, hits = piece(arrays, "successors", np.int32, *shape), piece(arrays, "hits", np.int64, *shape)
    known = (successors >= 0) & (successors < states)
    require((known | (successors == ENDED) | (successors == NOWHERE)).all(), "'successors' must be known states")
    require((hits >= 0).all(), "'hits' must not be negative")
    seen = hits > 0
    require((seen == (successors != NOWHERE)).all(), "'hits' must be those of the successors")
    require((seen[:, 1:] <= seen[:, :-1]).all(), "'successors' must leave no place free")
    require((hits.sum(axis=1) == pairs["count"]).all(), "'hits' must add up to the samples")
    ordered = np.sort(np.where(seen, successors, states + np.arange(rules.bound)), axis=1)
    require((ordered[:, 1:] != ordered[:, :-1]).all(), "'successors' must differ")
    return successors, hits


def _read_totals(arrays: Readable, states: int, pairs: NDArray[np.void], calls: int) -> Ints:
    """The totals of a graph of so many states, with these pairs."""
    totals = piece(arrays, "totals", np.int64, NUMBERS)
    require(totals[STATES] == states, f"'totals' must be those of {states} states")
    require(totals[PAIRS] == (pairs["count"] > 0).sum(), "'totals' must be those of the pairs that were sampled")
    require(pairs["count"].sum(dtype=np.float64) <= calls, "'pairs' must not have more samples than there were calls")
    require(0 <= totals[ROUNDS] <= MOST and 0 <= totals[SWEPT] <= calls, "'totals' must not go beyond the calls")
    require(-INSURED * calls <= int(totals[DEBT]) <= calls, "'totals' must not go beyond the calls")
    require(0 <= totals[OFFENDER] < len(pairs), "'totals' must name a pair")
    return totals
