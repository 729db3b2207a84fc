"""Samples of many pairs at once: their probabilities, their streams, their grouping."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

import smoothplan as sp
from smoothplan.base import streams
from smoothplan.bounds import sampling
from smoothplan.bounds.gape import OTGapE
from smoothplan.confidence.kl import share
from tests.common import alone, begun, bounded, recurrent, vectorised

HARD = sp.HardMax()


def test_chunks_cover_all_counts_once() -> None:
    rng = np.random.default_rng(0)
    for calls in (0, 50, 5_000, 10**9):
        most = min(max(64, calls // 16), 1 << 17)
        for _ in range(50):
            counts = rng.integers(1, rng.choice([2, 5, 300, 3000]), size=rng.integers(1, 40), endpoint=True)
            found, sizes, ends = np.zeros_like(counts), [], []
            for piece, part in sampling.chunked(counts, calls):
                assert len(counts[piece]) == len(part)
                assert (part > 0).all()
                found[piece] += part
                sizes.append(int(part.sum()))
                ends.append((piece.start, piece.stop))
            np.testing.assert_array_equal(found, counts)
            assert all(size == most for size in sizes[:-1])
            assert 0 < sizes[-1] <= most
            assert all(second[0] in (first[1], first[1] - 1) for first, second in pairwise(ends))


def test_draws_from_a_table_have_its_probabilities() -> None:
    """Chi-square over the outcomes of every pair, at a level of 1e-6 in all."""
    model = recurrent(3, "transition", states=6, branching=4)
    rows = np.array([0, 3, 4, 11])
    counts = np.array([20_000, 1, 5_000, 100_000])
    keys, rewards, times = sampling.drawn(model.tables, rows, counts, streams.generator(5, 7))
    np.testing.assert_array_equal(times.sum(axis=1), counts)
    again = sampling.drawn(model.tables, rows, counts, streams.generator(5, 7))
    np.testing.assert_array_equal(times, again[2])
    assert (times != sampling.drawn(model.tables, rows, counts, streams.generator(5, 8))[2]).any()
    for i, row in enumerate(rows):
        state, action = divmod(int(row), model.actions)
        observed: dict[tuple[int, float], int] = {}
        for key, reward, number in zip(keys[i].tolist(), rewards[i].tolist(), times[i].tolist(), strict=True):
            place = -1 if key < 0 else key, reward
            observed[place] = observed.get(place, 0) + number
        expected: dict[tuple[int, float], float] = {}
        table = model.rewards[state, action]
        for b, chance in enumerate(model.probabilities[state, action]):
            end = bool(model.ends[state, action, b])
            place = -1 if end else int(model.successors[state, action, b]), float(table[b])
            expected[place] = expected.get(place, 0.0) + float(chance)
        assert {place for place, number in observed.items() if number} <= set(expected)
        if counts[i] > 1:
            statistic = sum(
                (observed.get(place, 0) - counts[i] * chance) ** 2 / (counts[i] * chance)
                for place, chance in expected.items()
            )
            assert chi2.sf(statistic, len(expected) - 1) > 1e-6 / 3


def test_what_pads_a_table_is_never_drawn() -> None:
    """Among 10¹⁶ calls rounding would leave some to a place without an outcome: about one in 3·10¹⁵."""
    chances = np.random.default_rng(0).dirichlet(np.full(10, 0.5))
    model = sp.TabularModel(chances[None, None], np.zeros((1, 1, 10), dtype=np.int64), [[5.0]], discount=0.5)
    for rng in map(streams.generator, range(5)):
        _, _, times = sampling.drawn(model.tables, np.zeros(1, dtype=np.int64), np.array([10**16]), rng)
        assert times.shape == (1, 12)
        assert times.sum() == 10**16
        assert (times >= 0).all()
        assert not times[0, 10:].any()


@pytest.mark.parametrize("simulator", [False, True])
@pytest.mark.parametrize(("kind", "sets"), [("deterministic", 1), ("bernoulli", 2)])
def test_the_order_in_which_pairs_spend_is_fixed_before_their_outcomes(kind: Any, sets: int, simulator: bool) -> None:
    """Pairs that a round samples for the first time spend δ in the order of their entries, whatever they bring."""
    table = sp.models.garnet(states=6, actions=2, branching=3, discount=0.5, seed=1, reward_kind=kind)
    table = table if sets == 1 else bounded(table)
    counts = np.random.default_rng(0).integers(1, 60, size=12)  # several chunks
    for seed in range(4):
        search = begun(OTGapE(HARD, 0.0, 0.2), vectorised(table) if simulator else table, seed=seed)
        for state in np.arange(table.states):
            search.number(state)
        order = np.array([1, 4, 6, 7, 0, 2, 3, 5, 8, 9, 10, 11])
        for entries in (order[:4], np.arange(12)):
            sampling.sample_pairs(search, entries, counts[entries], (0, 1), alone(search))
        spent = [0.2 * share(index) / sets for index in range(12)]
        np.testing.assert_allclose(np.exp(-search.graph.pairs["log_odds"][order]), spent, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_rows_are_grouped_as_by_sorting(dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    for count in (1, 2, 17, 1000):
        states = rng.integers(0, 2, size=(count, *shape)).astype(dtype)
        if np.dtype(dtype).kind == "f":
            states = np.where(rng.random(states.shape) < 0.5, states, -states).astype(dtype)  # −0.0 too
        pairs, ends = rng.integers(0, 3, size=count), rng.random(count) < 0.3
        groups, first = sampling._grouped(sampling._words(states), pairs, ends)
        flat = states.reshape(count, -1).astype(np.float64) + 0.0
        table = np.concatenate([flat, pairs[:, None], ends[:, None]], axis=1)
        _, firsts, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
        np.testing.assert_array_equal(np.sort(first), np.sort(firsts))
        np.testing.assert_array_equal(first[groups], firsts[inverse.reshape(-1)])
