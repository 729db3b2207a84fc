"""The engines of chains against exact linear algebra, against each other, and what they refuse."""

import math
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
import pytest

import smoothplan as sp
from smoothplan.chains.batched import LIMIT, BatchedChains
from smoothplan.chains.grid import Grid, make_grid
from smoothplan.chains.table import LANES, TableChains
from smoothplan.models.model import GenerativeModel, Oracle
from smoothplan.run.chunks import Sums
from smoothplan.theory.backups import HardMax, LogSumExp, OptimalTransport, SoftmaxMixture, line_cost
from tests.naive import Built, ChainMeans, built, random_model

DEVIATIONS = 7.0
"""Standard errors between a mean and its expectation: 3e-12 for a normal mean, and there are fewer than 300 here. The
samples are bounded or nearly so and tens of thousands, so that the file's false-alarm rate is well below 1e-6."""

TAIL = 1.7
SOFT = LogSumExp(1.0)


# --- Cases ------------------------------------------------------------------------------------


CASES: dict[str, Built] = {
    "entropy": built(LogSumExp(0.4), 1, actions=2, discount=0.99),
    "entropy bernoulli ends": built(LogSumExp(0.8), 2, actions=4, discount=0.99, kind="bernoulli", terminal=0.1),
    "fixed": built("fixed", 3, actions=3, discount=0.6, kind="successor", low=-1.0),
    "table": built("table", 4, actions=3, discount=0.9, kind="bernoulli"),
    "function ends": built("function", 5, actions=3, discount=0.9, terminal=0.2),
    "hard": built(HardMax(), 6, actions=3, discount=0.9, terminal=0.1, kind="successor"),
    "myopic": built(LogSumExp(0.4), 7, actions=2, discount=0.0, kind="bernoulli"),
}


@cache
def case(name: str) -> ChainMeans:
    model, backup = CASES[name]()
    values = sp.exact.solve(model, backup).q
    return ChainMeans(model, backup, values + 0.3 * np.random.default_rng(9).normal(size=values.shape))


def simulator(model: sp.TabularModel) -> sp.JitModel:
    """A table as a compiled simulator, whose states are vectors of one number."""
    levels, successors, ends = model.probabilities.cumsum(axis=2), model.successors, model.ends
    means = np.broadcast_to(model.rewards if model.rewards.ndim == 3 else model.rewards[..., None], levels.shape).copy()
    coins = model.reward_kind == "bernoulli"

    @numba.njit(nogil=True)
    def step(states: Any, actions: Any, rng: Any) -> Any:
        next_states, rewards = np.empty_like(states), np.empty(len(actions))
        terminals = np.zeros(len(actions), dtype=np.bool_)
        for row in range(len(actions)):
            state, action, level, branch = int(states[row, 0]), actions[row], rng.random(), 0
            while branch < levels.shape[2] - 1 and level >= levels[state, action, branch]:
                branch += 1
            next_states[row, 0] = successors[state, action, branch]
            rewards[row], terminals[row] = means[state, action, branch], ends[state, action, branch]
            if coins:
                rewards[row] = 1.0 if rng.random() < rewards[row] else 0.0
        return next_states, rewards, terminals

    declared: dict[str, Any] = {"discount": model.discount, "reward_range": model.reward_range}
    return sp.JitModel(step, actions=model.actions, initial_state=[0.0], **declared)


@cache
def engine_of(chosen: ChainMeans, kind: str) -> tuple[GenerativeModel, TableChains | BatchedChains]:
    """An engine for a case, and its model: a compiled simulator has a grid through its states."""
    model, backup, table = chosen.model, chosen.backup, chosen.table
    if kind == "table":
        return model, TableChains(model, backup, table, TAIL)
    if kind == "batched":
        return model, BatchedChains(model, backup, lambda states: table[states], TAIL)
    jitted, grid = simulator(model), make_grid([0.0], [model.states - 1.0], [model.states], table)
    return jitted, BatchedChains(jitted, backup, grid, TAIL)


def near(sums: Sums, expected: float) -> None:
    mean = sums.total / sums.samples
    variance = max(sums.squares / sums.samples - mean**2, 0.0)
    assert abs(mean - expected) <= DEVIATIONS * math.sqrt(variance / sums.samples) + 1e-9 * (1.0 + abs(expected))


# --- Means ----------------------------------------------------------------------------------------------------------

COUNTS = {"table": 100_001, "batched": LIMIT + 11, "compiled": 20_003}
BY_STATE = ("table", "function ends")  # backups that compiled simulators cannot have


@pytest.mark.parametrize("horizon", [1, 9, 60])
@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in CASES for kind in COUNTS if kind != "compiled" or name not in BY_STATE]
)
def test_means_are_exact(name: str, kind: str, horizon: int) -> None:
    """Chains, returns and corrections have the means that linear algebra gives; see `DEVIATIONS` for false alarms."""
    chosen, count = case(name), COUNTS[kind]
    model, chains = engine_of(chosen, kind)
    values, returns, corrections = chosen.at_horizon(horizon, TAIL)
    number, oracle = horizon % chosen.model.states, Oracle(model, 3)
    state: Any = [float(number)] if kind == "compiled" else number
    near(chains.values(oracle, state, count, horizon), values[number])
    for action in range(model.actions):
        near(chains.returns(oracle, state, action, count // 5, horizon), returns[number, action])
    if chosen.backup.temperature > 0.0:
        for pairs in (2, 3):
            near(chains.corrections(oracle, state, count // 3, pairs, horizon), corrections[number])


@pytest.mark.parametrize("reward", [0.1, 0.7, 0.93])
def test_sums_of_a_large_chunk_are_rounded_by_less_than_confidence_sequences_allow_for(reward: float) -> None:
    """Samples that are all alike: every addition rounds in the same direction for long stretches."""
    count, model = 1 << 20, sp.TabularModel([[[1.0]]], [[[0]]], [[reward]], discount=0.0)
    chains, oracle = TableChains(model, SOFT, np.zeros((1, 1))), Oracle(model, 0)
    for sums in (chains.values(oracle, 0, count, 1), chains.returns(oracle, 0, 0, count, 1)):
        assert sums.total == pytest.approx(count * reward, rel=1e-12)
        assert sums.squares == pytest.approx(count * reward**2, rel=1e-12)


@numba.njit(nogil=True)
def drift(states: Any, actions: Any, rng: Any) -> Any:
    """A noisy walk in the plane that ends far out."""
    next_states, rewards = np.empty_like(states), np.empty(len(actions))
    terminals = np.zeros(len(actions), dtype=np.bool_)
    for row in range(len(actions)):
        next_states[row, 0] = 0.9 * states[row, 0] + 0.5 * (actions[row] - 1) + rng.random() - 0.5
        next_states[row, 1] = states[row, 0]
        rewards[row] = np.exp(-((next_states[row, 0] - 1.0) ** 2)) * rng.random()
        terminals[row] = abs(next_states[row, 0]) > 2.0
    return next_states, rewards, terminals


def plane(**changes: Any) -> tuple[sp.JitModel, Grid]:
    declared: dict[str, Any] = {"actions": 3, "discount": 0.9, "reward_range": (0, 1), "initial_state": [1.0, 0.0]}
    table = np.random.default_rng(0).normal(size=(6, 5, 3))
    return sp.JitModel(drift, **(declared | changes)), make_grid([-1.5, -2.0], [1.5, 2.0], [6, 5], table)


@pytest.mark.parametrize(
    "backup", [LogSumExp(0.3), OptimalTransport(cost=line_cost(3), tau=0.5, lam=0.6, reference=[0.2, 0.5, 0.3])]
)
@pytest.mark.parametrize("gap", [math.inf, 0.2])
def test_engines_agree_between_the_nodes(backup: SoftmaxMixture, gap: float) -> None:
    model, grid = plane()

    found = []
    for reference in (grid, grid.at):
        engine = BatchedChains(model, backup, reference, TAIL, gap)
        oracle, state = Oracle(model, 5), model.initial_state
        corrections = engine.corrections(oracle, state, 20_000, 4, 30)
        returns = engine.returns(oracle, state, 2, 20_000, 30)
        found.append([engine.values(oracle, state, 20_000, 30), returns, corrections])
    for one, two in zip(*found, strict=True):
        spread = sum(sums.squares / sums.samples - (sums.total / sums.samples) ** 2 for sums in (one, two))
        assert abs(one.total - two.total) / 20_000 <= DEVIATIONS * math.sqrt(spread / 20_000)


# --- Variance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COUNTS)
def test_a_right_reference_leaves_no_variance_where_nothing_is_random(kind: str) -> None:
    """Each step is centred by the action taken: with Q̂ = Q and certain transitions the chain telescopes."""
    table = random_model(1, actions=3, discount=0.8, branching=1)
    solution = sp.exact.solve(table, SOFT, tolerance=1e-11)
    model, chains = engine_of(ChainMeans(table, SOFT, solution.q), kind)
    sums = chains.values(Oracle(model, 0), [0.0] if kind == "compiled" else 0, 1000, 150)
    mean = sums.total / sums.samples
    assert mean == pytest.approx(solution.values[0], abs=1e-9)
    assert sums.squares / sums.samples - mean**2 < 1e-12


@pytest.mark.parametrize("kind", COUNTS)
def test_noise_is_the_variance_of_a_difference(kind: str) -> None:
    """Two Bernoulli rewards and nothing behind them. Estimates of the variance are below 2, so that Hoeffding holds."""
    table = random_model(3, actions=2, discount=0.0, kind="bernoulli")
    model, chains = engine_of(ChainMeans(table, SOFT, np.zeros((table.states, 2))), kind)
    found = chains.corrections(Oracle(model, 0), [0.0] if kind == "compiled" else 0, 20_000, 3, 1)
    differing, noise = found.more
    expected = float((table.rewards[0] * (1.0 - table.rewards[0])).sum())
    assert abs(noise / differing - expected) <= 2.0 * math.sqrt(math.log(2e8) / 2.0 / differing)
    assert abs(differing / found.samples - 0.5) <= math.sqrt(math.log(2e8) / 2.0 / found.samples)


# --- Calls, randomness and memory -----------------------------------------------------------------------------------


@numba.njit(nogil=True)
def countdown(states: Any, actions: Any, rng: Any) -> Any:
    """Ends when the state reaches 0."""
    return states - 1.0, np.ones(len(actions)), states[:, 0] <= 1.0


def four_engines(steps: int) -> list[tuple[GenerativeModel, TableChains | BatchedChains, Any]]:
    """A model whose episodes last exactly that many steps: as a table, a simulator, and both with NumPy."""
    outcomes = [[[(1.0, max(left - 1, 0), 1.0, left <= 1)]] * 2 for left in range(steps + 1)]
    tabular = sp.TabularModel.from_outcomes(outcomes, discount=0.9)
    jitted = sp.JitModel(countdown, actions=2, discount=0.9, reward_range=(1, 1), initial_state=[float(steps)])
    table = np.zeros((steps + 1, 2))
    grid = make_grid([0.0], [float(steps)], [steps + 1], table)
    return [
        (tabular, TableChains(tabular, SOFT, table), steps),
        (tabular, BatchedChains(tabular, SOFT, lambda states: table[states]), steps),
        (jitted, BatchedChains(jitted, SOFT, grid), jitted.initial_state),
        (jitted, BatchedChains(jitted, SOFT, grid.at), jitted.initial_state),
    ]


@pytest.mark.parametrize("count", [0, 1, 7, LANES + 1, 259])
@pytest.mark.parametrize("horizon", [1, 4, 12])
def test_every_call_is_counted(count: int, horizon: int) -> None:
    steps, pairs = 6, 5
    for model, chains, state in four_engines(steps):
        length = min(horizon, steps)
        for action in (None, 1):
            oracle = Oracle(model, 0)
            if action is None:
                sums = chains.values(oracle, state, count, horizon)
            else:
                sums = chains.returns(oracle, state, action, count, horizon)
            assert oracle.calls == count * length
            assert sums.samples == count
            # F(0) = log 2 at every step, but not at the first step of a return.
            value = sum(0.9**step * (1.0 + math.log(2.0)) for step in range(length)) - (action or 0) * math.log(2.0)
            assert sums.total == pytest.approx(count * value)
            assert sums.squares == pytest.approx(count * value**2)
        oracle = Oracle(model, 0)
        found = chains.corrections(oracle, state, count, pairs, horizon)
        assert found.samples == count
        differing, noise = found.more
        assert noise == pytest.approx(0.0, abs=1e-9)
        assert 0 <= differing <= count
        if horizon == 1:
            assert oracle.calls == 2 * pairs * differing
        assert oracle.calls <= count * (horizon - 1 + 2 * pairs * length)


@pytest.mark.parametrize("kind", ["batched", "compiled"])
def test_memory_does_not_grow(kind: str) -> None:
    """Neither with the horizon nor with the number of samples or pairs."""
    model, chains = engine_of(case("entropy"), kind)

    def peak(draw: Callable[..., Sums], *sizes: int) -> int:
        tracemalloc.start()
        draw(Oracle(model, 0), [0.0] if kind == "compiled" else 0, *sizes)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(chains.corrections, 10, 2, 3)  # compiles
    for draw, few, long, many in (
        (chains.values, (3,), (100,), (3,)),
        (chains.corrections, (2, 3), (2, 60), (10, 3)),
    ):
        most = 1.2 * peak(draw, 2 * LIMIT, *few)
        assert max(peak(draw, 2 * LIMIT, *long), peak(draw, 6 * LIMIT, *many)) < most


# --- Errors ---------------------------------------------------------------------------------------------------------


@numba.njit(nogil=True)
def explode(states: Any, actions: Any, rng: Any) -> Any:
    return states * 0.0 / 0.0, np.full(len(actions), 0.5), np.zeros(len(actions), dtype=np.bool_)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (lambda: plane(reward_range=(0, 0.1))[0], r"rewards in \[0, 0.1\].*state \[.*\], action \d, reward 0\.\d+"),
        (lambda: plane(terminates=False)[0], "terminates=False"),
        (
            lambda: sp.JitModel(explode, actions=3, discount=0.9, reward_range=(0, 1), initial_state=[1.0, 0.0]),
            r"state \[1.0, 0.0\], action \d, reward 0.5, next state \[nan, nan\]",
        ),
    ],
)
def test_a_broken_promise_is_named(broken: Callable[[], sp.JitModel], complaint: str) -> None:
    model, grid = broken(), plane()[1]
    chains = BatchedChains(model, LogSumExp(0.3), grid)
    with pytest.raises(sp.ModelError, match=complaint):
        chains.values(Oracle(model, 0), [1.0, 0.0], 100, 50)
    with pytest.raises(sp.ModelError, match=complaint):
        chains.corrections(Oracle(model, 0), [1.0, 0.0], 100, 2, 50)


def test_a_grid_of_another_model_is_named() -> None:
    (model, grid), other = plane(), make_grid([0.0], [1.0], [2], np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"states \[2\] and 3 actions, the grid states \[1\] and 2 actions"):
        BatchedChains(model, SOFT, other).values(Oracle(model, 0), model.initial_state, 1, 1)
    with pytest.raises(ValueError, match=r"states must have shape \[n, 2\], got \(3, 1\)"):
        grid.at(np.zeros((3, 1)))
