"""Explorers that are saved, restored or interrupted go on with the same bits."""

from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

import smoothplan as sp
from smoothplan.base import streams
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.records import Arrays
from smoothplan.bounds.gape import OTGapE, explored
from smoothplan.confidence.kl import share
from smoothplan.graph.explorer import Explorer, PairSampler, chunked, drawn
from smoothplan.models.model import States, Transition
from tests.common import alone, begun, bounded, by_state, ending, recurrent, vectorised
from tests.saving import copied, equal

MANY = 10**9
"""More rounds than any search makes."""


def same(one: Explorer, two: Explorer) -> bool:
    """Whether two searches are the same, the priors of their states included."""
    weights, others = (search.rules.soft.weights[: search.count] for search in (one, two))
    return equal(one.saved(), two.saved()) and np.array_equal(weights, others)


PLANNERS: dict[str, dict[str, Any]] = {
    "focused": {},
    "trajectories": {"sampling": "trajectories", "walk": 0.5},
    "pooled": {"horizon": 4, "tail": "zero"},
    "stage-wise": {"horizon": 3, "counts": "stage-wise"},
    "stage-wise trajectories": {"horizon": 3, "counts": "stage-wise", "sampling": "trajectories"},
}


MODELS: dict[str, sp.TabularModel] = {
    "ending": ending(2, 0.6, 1),
    "large": sp.models.garnet(400, 3, 2, 0.8, 2),  # more states than there is room for at first
    "bernoulli": sp.models.garnet(100, 2, 1, 0.7, 3, reward_kind="bernoulli"),
}


@pytest.mark.parametrize("engine", ["compiled", "batched", "key"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("options", PLANNERS.values(), ids=PLANNERS.keys())
def test_a_restored_search_goes_on_with_the_same_bits(
    options: dict[str, Any], model: sp.TabularModel, engine: Any
) -> None:
    if engine == "key":
        options, engine = options | {"key": lambda state: str(int(state))}, "batched"
    planner = OTGapE(by_state(model), 0.0, **options)
    undisturbed = begun(planner, model, engine)
    restored: list[Explorer] = []
    for until in (0, 1, 9, 60, 300, 303, 500):
        for search in (undisturbed, *restored):
            search.explore(0.0, until, MANY)
            assert same(search, undisturbed)
        fresh = begun(planner, model, engine)
        fresh.restore(copied(undisturbed.saved()))
        assert same(fresh, undisturbed)
        if until in (9, 300):
            restored.append(fresh)
    assert undisturbed.count >= 5


def test_states_of_any_shape_and_a_simulator_that_draws_small_numbers() -> None:
    """Numbers of 32 bits leave half of a word behind in the generator."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        moved = states.copy()
        moved[:, 1, 0] = rng.integers(2, size=len(states), dtype=np.int32)
        moved[:, 0, 0] = np.where(states[:, 0, 0] == 0.0, -0.0, states[:, 0, 0]) + actions
        return moved % np.float32(5.0), np.full(len(states), 0.5)

    start = np.zeros((2, 1), dtype=np.float32)
    model = sp.VectorModel(step, actions=2, discount=0.5, reward_range=(0, 1), max_successors=2, initial_state=start)
    planner = OTGapE(sp.LogSumExp(0.1), 0.0)
    for pause in range(30, 34):
        search, fresh = begun(planner, model, state=start), begun(planner, model, state=start)
        search.explore(0.0, pause, MANY)
        fresh.restore(copied(search.saved()))
        for one in (search, fresh):
            one.explore(0.0, 200, MANY)
        assert same(search, fresh)


def test_the_two_zeros_are_one_state() -> None:
    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        return np.where(rng.random(len(states)) < 0.5, 0.0, -0.0), np.zeros(len(states))

    model = sp.VectorModel(step, actions=2, discount=0.5, reward_range=(0, 1), max_successors=1, initial_state=0.0)
    search = begun(OTGapE(sp.HardMax(), 0.0), model, state=0.0)
    search.explore(0.0, 50, MANY)
    search.sample_pairs(np.arange(2), np.array([20, 20]), (0, 1), alone(search))
    assert search.count == 1


def uncharged(search: Explorer) -> Arrays:
    """All of a search but the random streams, which count calls that were interrupted too."""
    arrays = search.saved()
    for name in ("generator", "stream"):
        del arrays[name]
    return arrays


@pytest.mark.parametrize("options", [PLANNERS["focused"], PLANNERS["stage-wise trajectories"]])
def test_a_search_is_whole_wherever_its_simulator_is_interrupted(options: dict[str, Any]) -> None:
    """What an interrupted call leaves behind is the graph before that call, to the last bit."""
    table = MODELS["ending"]
    planner = OTGapE(by_state(table), 0.0, **options)
    before: list[Arrays] = []

    def recording(states: States, actions: Ints, rng: np.random.Generator) -> Any:
        before.append(uncharged(undisturbed))
        return table.step(states, actions, rng)

    undisturbed = begun(planner, vectorised(table, recording))
    undisturbed.explore(0.0, 600, MANY)
    for last in (*range(60), *range(60, min(len(before), 300), 17)):
        calls = count()

        def step(states: States, actions: Ints, rng: np.random.Generator) -> Any:
            if next(calls) == last:  # noqa: B023
                raise KeyboardInterrupt
            return table.step(states, actions, rng)

        search = begun(planner, vectorised(table, step))
        with pytest.raises(KeyboardInterrupt):
            search.explore(0.0, 600, MANY)
        assert equal(uncharged(search), before[last])
        assert search.oracle.calls > search.graph.spent.sum() == search.graph.pairs["count"].sum()
        graph = explored(search, 0.0).graph
        assert (graph.low <= graph.high).all()
        fresh = begun(planner, vectorised(table))
        fresh.restore(copied(search.saved()))
        if last % 10 == 0:
            for one in (search, fresh):
                one.explore(0.0, 400, MANY)
        assert same(search, fresh)


# Samples of many pairs


def test_chunks_cover_all_counts_once() -> None:
    rng = np.random.default_rng(0)
    for calls in (0, 50, 5_000, 10**9):
        most = min(max(64, calls // 16), 1 << 17)
        for _ in range(50):
            counts = rng.integers(1, rng.choice([2, 5, 300, 3000]), size=rng.integers(1, 40), endpoint=True)
            found, sizes, ends = np.zeros_like(counts), [], []
            for piece, part in chunked(counts, calls):
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
    keys, rewards, times = drawn(model.tables, rows, counts, streams.generator(5, 7))
    np.testing.assert_array_equal(times.sum(axis=1), counts)
    again = drawn(model.tables, rows, counts, streams.generator(5, 7))
    np.testing.assert_array_equal(times, again[2])
    assert (times != drawn(model.tables, rows, counts, streams.generator(5, 8))[2]).any()
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
        _, _, times = drawn(model.tables, np.zeros(1, dtype=np.int64), np.array([10**16]), rng)
        assert times.shape == (1, 12)
        assert times.sum() == 10**16
        assert (times >= 0).all()
        assert not times[0, 10:].any()


def test_a_round_adds_up_rewards_that_vary() -> None:
    """Also those of outcomes that are equal otherwise."""
    drawn_rewards: list[Floats] = []

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        drawn_rewards.append(rng.random(len(states)))
        return rng.integers(2, size=len(states)), drawn_rewards[-1]

    search = begun(
        OTGapE(sp.HardMax(), 0.0),
        sp.VectorModel(step, actions=2, discount=0.5, reward_range=(0, 1), reward_kind="bounded", initial_state=0),
    )
    search.sample_pairs(np.arange(2), np.array([30, 30]), (0, 1), alone(search))
    assert search.graph.pairs["total"].sum() == pytest.approx(np.concatenate(drawn_rewards).sum())


def test_states_of_an_interrupted_round_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sp.models.garnet(states=50, actions=2, branching=4, discount=0.5, seed=1)
    search = begun(OTGapE(sp.HardMax(), 0.0), vectorised(model))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(search, "record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            search.sample_pairs(np.arange(2), np.array([20, 20]), (0, 1), alone(search))
    search.sample_pairs(np.arange(1, 2), np.array([20]), (0, 1), alone(search))
    assert [search.state(number) for number in range(search.count)] == list(search.states)


@pytest.mark.parametrize("simulator", [False, True])
@pytest.mark.parametrize(("kind", "sets"), [("deterministic", 1), ("bernoulli", 2)])
def test_the_order_in_which_pairs_spend_is_fixed_before_their_outcomes(kind: Any, sets: int, simulator: bool) -> None:
    """Pairs that a round samples for the first time spend δ in the order of their entries, whatever they bring."""
    table = sp.models.garnet(states=6, actions=2, branching=3, discount=0.5, seed=1, reward_kind=kind)
    table = table if sets == 1 else bounded(table)
    counts = np.random.default_rng(0).integers(1, 60, size=12)  # several chunks
    for seed in range(4):
        search = begun(OTGapE(sp.HardMax(), 0.0, 0.2), vectorised(table) if simulator else table, seed=seed)
        for state in np.arange(table.states):
            search.number(state)
        order = np.array([1, 4, 6, 7, 0, 2, 3, 5, 8, 9, 10, 11])
        for entries in (order[:4], np.arange(12)):
            search.sample_pairs(entries, counts[entries], (0, 1), alone(search))
        spent = [0.2 * share(index) / sets for index in range(12)]
        np.testing.assert_allclose(np.exp(-search.graph.pairs["log_odds"][order]), spent, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_rows_are_grouped_as_by_sorting(dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    for rows in (1, 2, 17, 1000):
        states = rng.integers(0, 2, size=(rows, *shape)).astype(dtype)
        if np.dtype(dtype).kind == "f":
            states = np.where(rng.random(states.shape) < 0.5, states, -states).astype(dtype)  # −0.0 too
        counts, ends = rng.multinomial(rows, np.full(3, 1 / 3)), rng.random(rows) < 0.3
        oracle: Any = SimpleNamespace(sample=lambda *_: Transition(states, np.zeros(rows), ends))  # noqa: B023
        sampled = PairSampler().pairs(oracle, None, np.zeros(3), np.zeros(3, dtype=np.int64), counts)
        pairs = np.repeat(np.arange(3), counts)
        flat = states.reshape(rows, -1).astype(np.float64) + 0.0
        table = np.concatenate([flat, pairs[:, None], ends[:, None]], axis=1)
        _, firsts, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
        assert len(sampled.states) == len(sampled.terminals) == len(firsts)
        first = np.array([np.flatnonzero(sampled.groups == group)[0] for group in range(len(firsts))])
        np.testing.assert_array_equal(first[sampled.groups], firsts[inverse.reshape(-1)])
        np.testing.assert_array_equal(sampled.states, states[first])
        np.testing.assert_array_equal(sampled.terminals, ends[first])


def test_states_of_objects_are_told_apart_by_their_key() -> None:
    """In walks, in rounds and in lookups: no bytes of theirs are compared."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> Any:
        numbers = (states[:, 0].astype(np.int64) + actions + rng.integers(2, size=len(actions))) % 3
        return numbers.astype(object)[:, None], (numbers == 0).astype(np.float64), np.zeros(len(actions), np.bool_)

    root = np.array([0], dtype=object)
    model = sp.VectorModel(step, actions=2, discount=0.5, reward_range=(0.0, 1.0), initial_state=root)
    search = begun(OTGapE(sp.HardMax(), 0.0, key=lambda state: int(state[0])), model, state=root)
    search.explore(0.0, 50, MANY)
    search.sample_pairs(np.arange(4), np.full(4, 30), (0, 1), alone(search))
    assert search.count == 3
    assert search.graph.pairs["count"].sum() == search.oracle.calls == 50 + 120
    assert sorted(search.numbers(np.array([[0], [1], [2]], dtype=object))) == [0, 1, 2]
