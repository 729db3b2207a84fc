"""The engines of chains against exact linear algebra, against each other, and what they refuse."""

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
import pytest
from scipy import stats
from scipy.interpolate import RegularGridInterpolator

import smoothplan as sp
from smoothplan.arguments import Floats
from smoothplan.backups import Backup, HardMax, LogSumExp, NoCurvatureError, OptimalTransport, line_cost
from smoothplan.engines.base import Sums
from smoothplan.engines.chains import LIMIT, BatchedChains, Chains, PairSums
from smoothplan.engines.compiled_chains import LANES, TableChains
from smoothplan.engines.grids import Grid, grid_nodes, make_grid
from smoothplan.engines.jitted_chains import BLOCK, JittedChains
from smoothplan.engines.kernels import choose, choose_pairs, draw_stops, paired, paired_sums, softmaxes, stop_weight
from smoothplan.models.base import GenerativeModel, Oracle
from tests.naive import Built, built, random_model, transport

DEVIATIONS = 7.0
"""Standard errors between a mean and its expectation: 3e-12 for a normal mean, and there are fewer than 300 here. The
samples are bounded or nearly so and tens of thousands, so that the file's false-alarm rate is well below 1e-6."""

TAIL = 1.7


# --- Cases and their exact means ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A tabular model, a backup, and a reference that is wrong."""

    model: sp.TabularModel
    backup: Backup
    table: Floats  # [S, K]

    def action_values(self, values: Floats) -> Floats:
        """E[R + γV(Z)], [S, K]."""
        future = np.einsum("skb,skb->sk", self.model.continuation, values[self.model.successors])
        return np.asarray(self.model.expected_rewards + self.model.discount * future)

    def means(self, horizon: int) -> tuple[Floats, Floats, Floats]:
        """E Y [S], E X [S, K] and, for a smooth backup, the mean of a correction [S]."""
        states = np.arange(self.model.states)
        policy, top = self.backup.policy(self.table, states), self.backup.value(self.table, states)
        gain = top - (policy * self.table).sum(axis=1)
        values = np.full(self.model.states, TAIL)
        for _ in range(horizon):
            returns = self.action_values(values)
            values = gain + (policy * returns).sum(axis=1)
        corrections = np.zeros(self.model.states)
        if self.backup.temperature > 0.0:
            error = returns - self.table
            quadratic = 0.5 * np.einsum("si,sij,sj->s", error, self.backup.hessian(self.table, states), error)
            moved = np.einsum("sk,skb->skb", policy, self.model.continuation)
            for _ in range(horizon):
                future = np.einsum("skb,skb->s", moved, corrections[self.model.successors])
                corrections = quadratic + self.model.discount * future
        return values, returns, corrections


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
def case(name: str) -> Case:
    model, backup = CASES[name]()
    values = sp.exact.solve(model, backup).q
    return Case(model, backup, values + 0.3 * np.random.default_rng(9).normal(size=values.shape))


def table_chains(case: Case) -> TableChains:
    return TableChains(case.model, case.backup, case.table, TAIL)


def batched_chains(case: Case) -> BatchedChains:
    return BatchedChains(case.model, case.backup, lambda states: case.table[states], TAIL)


@numba.njit(nogil=True)
def table_step(states: Any, actions: Any, rng: Any) -> Any:
    """A table of three states and two actions as a simulator; state 2 with action 1 may end the episode."""
    next_states, rewards = np.empty_like(states), np.empty(len(actions))
    terminals = np.zeros(len(actions), dtype=np.bool_)
    for row in range(len(actions)):
        state, action = int(states[row, 0]), actions[row]
        next_states[row, 0] = (state + 1 + action) % 3 if rng.random() < 0.7 else state
        rewards[row] = 1.0 if rng.random() < 0.2 + 0.25 * state + 0.1 * action else 0.0
        terminals[row] = action == 1 and state == 2 and rng.random() < 0.5
    return next_states, rewards, terminals


@cache
def small_case(backup: str) -> tuple[Case, sp.JitModel, Grid]:
    """The table of `table_step`, its simulator, and a grid whose nodes are the states."""

    def rewarded(mean: float) -> list[tuple[float, float]]:
        return [(1.0, mean), (0.0, 1.0 - mean)]

    outcomes = [
        [
            [
                (chance * share * half, successor, reward, ends)
                for chance, successor in ((0.7, (state + 1 + action) % 3), (0.3, state))
                for reward, share in rewarded(0.2 + 0.25 * state + 0.1 * action)
                for ends, half in (((True, 0.5), (False, 0.5)) if (state, action) == (2, 1) else ((False, 1.0),))
            ]
            for action in range(2)
        ]
        for state in range(3)
    ]
    model = sp.TabularModel.from_outcomes(outcomes, discount=0.95)
    backups: dict[str, Backup] = {
        "entropy": LogSumExp(0.5),
        "transport": OptimalTransport(cost=line_cost(2), tau=0.5, lam=0.6, reference=[0.3, 0.7]),
        "hard": HardMax(),
    }
    table = np.array([[4.0, 4.5], [5.0, 4.4], [5.5, 5.0]])
    jitted = sp.JitModel(table_step, actions=2, discount=0.95, reward_range=(0, 1), initial_state=[0.0])
    return Case(model, backups[backup], table), jitted, make_grid([0.0], [2.0], [3], table)


def near(sums: Sums | PairSums, expected: float) -> None:
    mean = sums.total / sums.samples
    variance = max(sums.squares / sums.samples - mean**2, 0.0)
    assert abs(mean - expected) <= DEVIATIONS * math.sqrt(variance / sums.samples) + 1e-9 * (1.0 + abs(expected))


# --- Means ----------------------------------------------------------------------------------------------------------

COUNTS = {"table": 100_001, "batched": LIMIT + 11}
ENGINES: dict[str, Callable[[Case], Chains]] = {"table": table_chains, "batched": batched_chains}


@pytest.mark.parametrize("horizon", [1, 9, 60])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_means_are_exact(name: str, engine: str, horizon: int) -> None:
    """Chains, returns and corrections have the means that linear algebra gives; see `DEVIATIONS` for false alarms."""
    chosen = case(name)
    chains, count = ENGINES[engine](chosen), COUNTS[engine]
    values, returns, corrections = chosen.means(horizon)
    state = horizon % chosen.model.states
    oracle = Oracle(chosen.model, 3)
    near(chains.values(oracle, state, count, horizon), values[state])
    for action in range(chosen.model.actions):
        near(chains.returns(oracle, state, action, count // 5, horizon), returns[state, action])
    if chosen.backup.temperature > 0.0:
        for pairs in (2, 3):
            near(chains.corrections(oracle, state, count // 3, pairs, horizon), corrections[state])


@pytest.mark.parametrize("horizon", [1, 7, 40])
@pytest.mark.parametrize("backup", ["entropy", "transport", "hard"])
def test_means_are_exact_for_compiled_simulators(backup: str, horizon: int) -> None:
    """A table as a simulator with a grid through its states: the same linear algebra."""
    chosen, model, grid = small_case(backup)
    assert chosen.model.reward_range == (0.0, 1.0)
    chains = JittedChains(model, chosen.backup, grid, TAIL)
    values, returns, corrections = chosen.means(horizon)
    oracle = Oracle(model, 4)
    for state in range(3):
        near(chains.values(oracle, [float(state)], 20_003, horizon), values[state])
        near(chains.returns(oracle, [float(state)], 1, 20_003, horizon), returns[state, 1])
        if chosen.backup.temperature > 0.0:
            near(chains.corrections(oracle, [float(state)], 20_003, 3, horizon), corrections[state])


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
def test_engines_agree_between_the_nodes(backup: Backup) -> None:
    model, grid = plane()
    engines: tuple[Chains, ...] = (
        JittedChains(model, backup, grid, TAIL),
        BatchedChains(model, backup, grid.at, TAIL),
    )
    found = []
    for engine in engines:
        oracle, state = Oracle(model, 5), model.initial_state
        found.append(
            [
                engine.values(oracle, state, 20_000, 30),
                engine.returns(oracle, state, 2, 20_000, 30),
                Sums(*engine.corrections(oracle, state, 20_000, 4, 30)[:3]),
            ]
        )
    for one, two in zip(*found, strict=True):
        spread = sum(sums.squares / sums.samples - (sums.total / sums.samples) ** 2 for sums in (one, two))
        assert abs(one.total - two.total) / 20_000 <= DEVIATIONS * math.sqrt(spread / 20_000)


# --- Variance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_right_reference_leaves_no_variance_where_nothing_is_random(engine: str) -> None:
    """Each step is centred by the action taken: with Q̂ = Q and certain transitions the chain telescopes."""
    model = random_model(1, actions=3, discount=0.8, branching=1)
    backup = LogSumExp(0.5)
    solution = sp.exact.solve(model, backup, tolerance=1e-11)
    chains = ENGINES[engine](Case(model, backup, solution.q))
    sums = chains.values(Oracle(model, 0), 0, 1000, 150)
    mean = sums.total / sums.samples
    assert mean == pytest.approx(solution.values[0], abs=1e-9)
    assert sums.squares / sums.samples - mean**2 < 1e-12
    corrections = chains.corrections(Oracle(model, 0), 0, 100, 5, 150)
    assert abs(corrections.total) < 1e-9
    assert corrections.noise < 1e-12
    assert 0 < corrections.differing < 100


@pytest.mark.parametrize("engine", ENGINES)
def test_noise_is_the_variance_of_a_difference(engine: str) -> None:
    """Two Bernoulli rewards and nothing behind them. Estimates of the variance are below 2, so that Hoeffding holds."""
    model = random_model(3, actions=2, discount=0.0, kind="bernoulli")
    means = model.rewards[0]
    chains = ENGINES[engine](Case(model, LogSumExp(1.0), np.zeros((model.states, 2))))
    found = chains.corrections(Oracle(model, 0), 0, 20_000, 3, 1)
    expected = float((means * (1.0 - means)).sum())
    assert abs(found.noise / found.differing - expected) <= 2.0 * math.sqrt(math.log(2e8) / 2.0 / found.differing)
    assert abs(found.differing / found.samples - 0.5) <= math.sqrt(math.log(2e8) / 2.0 / found.samples)


def test_the_statistic_of_pairs() -> None:
    rng = np.random.default_rng(0)
    for pairs in (2, 3, 7):
        x = rng.normal(size=pairs)
        products = [x[i] * x[j] for i in range(pairs) for j in range(pairs) if i != j]
        square, variance = paired(x.sum(), (x**2).sum(), pairs)
        assert square == pytest.approx(np.mean(products))
        assert variance == pytest.approx(x.var(ddof=1))
        doubled = paired_sums(np.full(2, x.sum()), np.full(2, (x**2).sum()), pairs, 3.0)
        assert doubled == pytest.approx((6.0 * square, 18.0 * square**2, 2.0 * variance))


# --- The parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("discount", "horizon"), [(0.9, 20), (0.99, 1000), (0.5, 1), (0.0, 5), (1e-9, 3)])
def test_stops_are_geometric(discount: float, horizon: int) -> None:
    """By Massart's inequality, false-alarm rate 1e-8 for each."""
    count = 50_000
    stops = draw_stops(count, discount, horizon, Oracle(case("hard").model, 0).stream)
    chances = discount ** np.arange(horizon, dtype=float)
    assert stop_weight(discount, horizon) == pytest.approx(chances.sum())
    assert stops.min() >= 0
    assert stops.max() < horizon
    found = np.bincount(stops, minlength=horizon).cumsum() / count
    assert np.abs(found - chances.cumsum() / chances.sum()).max() <= math.sqrt(math.log(2e8) / 2.0 / count)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_aliases_are_the_model_under_the_policy(name: str) -> None:
    """Summed over columns, each row gives back the chances of all gains and next states."""
    chosen = case(name)
    policy = table_chains(chosen).policy
    states = np.arange(chosen.model.states)
    chances = chosen.backup.policy(chosen.table, states)
    advantages = chosen.backup.value(chosen.table, states)[:, None] - chosen.table
    rows = policy.entries.reshape(-1, policy.width)
    keeps = rows["limit"] - np.arange(policy.width)
    assert (keeps >= -1e-12).all()
    assert (keeps <= 1.0 + 1e-12).all()
    for state in states:
        row, keep = rows[state], keeps[state]
        found = (keep @ row["gain"] + (1.0 - keep) @ row["other_gain"]) / policy.width
        expected = chances[state] @ (chosen.model.expected_rewards[state] + advantages[state])
        assert found == pytest.approx(expected, abs=1e-12)
        arrivals = np.bincount(
            np.concatenate([row["row"], row["other_row"]]) // policy.width,
            np.concatenate([keep, 1.0 - keep]) / policy.width,
            minlength=chosen.model.states + 1,
        )
        wanted = np.zeros(chosen.model.states + 1)
        leaving = chances[state][:, None] * chosen.model.probabilities[state]
        targets = np.where(chosen.model.ends[state], chosen.model.states, chosen.model.successors[state])
        np.add.at(wanted, targets, leaving)
        assert arrivals == pytest.approx(wanted, abs=1e-12)
    assert (rows[-1]["row"] == policy.end).all()
    assert (rows[-1]["gain"] == 0.0).all()


def test_actions_are_drawn_from_the_policy() -> None:
    """Single actions from ∇F, pairs from the weighted products of softmaxes; χ², false-alarm rate 1e-8 for each."""
    count, q = 50_000, np.array([[0.3, 1.0, -0.2, 0.9]])
    model = random_model(1, actions=4, discount=0.5)
    backups: tuple[Backup, ...] = (LogSumExp(0.4), transport(model, "fixed"))
    for backup in backups:
        soft, stream = softmaxes(backup, 4, None), Oracle(model, 1).stream
        many = np.repeat(q, count, axis=0)
        actions, advantages = choose(many, soft, stream)
        assert advantages == pytest.approx(backup.value(q)[0] - q[0, actions])
        expected = backup.policy(q)[0] * count
        assert stats.chisquare(np.bincount(actions, minlength=4), expected).pvalue > 1e-8
        first, second = choose_pairs(many, soft, stream)
        local = backup.local_policies(q)[0]
        joint = np.einsum("ij,kj,j->ik", local, local, backup.weights(None)).ravel() * count
        assert stats.chisquare(np.bincount(4 * first + second, minlength=16), joint).pvalue > 1e-8
    actions, advantages = choose(np.array([[1.0, 2.0, 2.0, 0.0]]), softmaxes(HardMax(), 4, None), stream)
    assert (actions.tolist(), advantages.tolist()) == ([1], [0.0])


@pytest.mark.parametrize("dimensions", range(1, 7))
def test_grids_interpolate(dimensions: int) -> None:
    rng = np.random.default_rng(dimensions)
    shape = rng.integers(2, 6 if dimensions < 5 else 4, size=dimensions)
    low = rng.normal(size=dimensions)
    high = low + rng.uniform(0.5, 2.0, size=dimensions)
    table = rng.normal(size=(*shape, 3))
    grid = make_grid(low, high, shape, table)
    states = rng.uniform(low - 0.3, high + 0.3, size=(200, dimensions))
    known = RegularGridInterpolator([np.linspace(*axis) for axis in zip(low, high, shape, strict=True)], table)
    assert grid.at(states) == pytest.approx(known(np.clip(states, low, high)), abs=1e-12)
    nodes = grid_nodes(grid.low, grid.high, grid.shape)
    assert grid.at(nodes) == pytest.approx(grid.table, abs=1e-12)
    assert (grid.at(np.array([low - 1.0, high + 1.0])) == grid.table[[0, -1]]).all()
    slopes = rng.normal(size=(dimensions, 3))
    linear = make_grid(low, high, shape, nodes @ slopes)
    inside = np.clip(states, low, high)
    assert linear.at(inside) == pytest.approx(inside @ slopes, abs=1e-12)


# --- Calls, randomness and memory -----------------------------------------------------------------------------------


@numba.njit(nogil=True)
def countdown(states: Any, actions: Any, rng: Any) -> Any:
    """Ends when the state reaches 0."""
    return states - 1.0, np.ones(len(actions)), states[:, 0] <= 1.0


def four_engines(steps: int) -> list[tuple[GenerativeModel, Chains, Any]]:
    """A model whose episodes last exactly that many steps: as a table, a simulator, and both with NumPy."""
    outcomes = [[[(1.0, max(left - 1, 0), 1.0, left <= 1)]] * 2 for left in range(steps + 1)]
    tabular = sp.TabularModel.from_outcomes(outcomes, discount=0.9)
    jitted = sp.JitModel(countdown, actions=2, discount=0.9, reward_range=(1, 1), initial_state=[float(steps)])
    table = np.zeros((steps + 1, 2))
    backup, grid = LogSumExp(1.0), make_grid([0.0], [float(steps)], [steps + 1], table)
    return [
        (tabular, TableChains(tabular, backup, table), steps),
        (tabular, BatchedChains(tabular, backup, lambda states: table[states]), steps),
        (jitted, JittedChains(jitted, backup, grid), jitted.initial_state),
        (jitted, BatchedChains(jitted, backup, grid.at), jitted.initial_state),
    ]


@pytest.mark.parametrize("count", [1, 7, LANES + 1, BLOCK + 3])
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
        assert found.noise == pytest.approx(0.0, abs=1e-9)
        assert 0 <= found.differing <= count
        if horizon == 1:
            assert oracle.calls == 2 * pairs * found.differing
        assert oracle.calls <= count * (horizon - 1 + 2 * pairs * length)


def test_the_same_oracle_gives_the_same_samples() -> None:
    table = case("table")
    model, grid = plane()
    engines: list[tuple[GenerativeModel, Chains, Any]] = [
        (table.model, table_chains(table), 0),
        (table.model, batched_chains(table), 0),
        (model, JittedChains(model, LogSumExp(0.3), grid, TAIL), model.initial_state),
    ]
    for simulator, chains, state in engines:

        def drawn(
            seed: int, chunk: int, model: GenerativeModel = simulator, chains: Chains = chains, state: Any = state
        ) -> list[Any]:
            oracle = Oracle(model, seed, chunk)
            return [
                chains.values(oracle, state, 300, 20),
                chains.returns(oracle, state, 1, 300, 20),
                chains.corrections(oracle, state, 100, 3, 20),
                oracle.calls,
            ]

        assert drawn(1, 2) == drawn(1, 2)
        for other in (drawn(1, 3), drawn(2, 2)):
            assert all(one != two for one, two in zip(drawn(1, 2)[:3], other[:3], strict=True))


def test_memory_does_not_grow() -> None:
    """Neither with the horizon nor with the number of samples or pairs."""
    chosen = case("entropy")
    chains = batched_chains(chosen)

    def peak(run: Callable[[Oracle], Any]) -> int:
        oracle = Oracle(chosen.model, 0)
        tracemalloc.start()
        run(oracle)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    chains.corrections(Oracle(chosen.model, 0), 0, 10, 2, 3)
    small = peak(lambda oracle: chains.values(oracle, 0, LIMIT, 3))
    assert peak(lambda oracle: chains.values(oracle, 0, LIMIT, 100)) < 1.2 * small
    assert peak(lambda oracle: chains.values(oracle, 0, 10 * LIMIT, 3)) < 1.2 * small
    small = peak(lambda oracle: chains.corrections(oracle, 0, LIMIT, 2, 3))
    assert peak(lambda oracle: chains.corrections(oracle, 0, LIMIT, 2, 60)) < 1.2 * small
    assert peak(lambda oracle: chains.corrections(oracle, 0, 4 * LIMIT, 10, 3)) < 1.2 * small


def test_nothing_is_drawn_for_nothing() -> None:
    for model, chains, state in four_engines(3):
        oracle = Oracle(model, 0)
        assert chains.values(oracle, state, 0, 5) == (0, 0.0, 0.0)
        assert chains.returns(oracle, state, 0, 0, 5) == (0, 0.0, 0.0)
        assert chains.corrections(oracle, state, 0, 2, 5) == (0, 0.0, 0.0, 0, 0.0)
        assert oracle.calls == 0
        assert chains.chunk_calls > 0


# --- Errors ---------------------------------------------------------------------------------------------------------


def test_a_hard_maximum_has_no_corrections() -> None:
    chosen = case("hard")
    model, grid = plane()
    engines: tuple[tuple[GenerativeModel, Chains, Any], ...] = (
        (chosen.model, table_chains(chosen), 0),
        (chosen.model, batched_chains(chosen), 0),
        (model, JittedChains(model, HardMax(), grid), model.initial_state),
    )
    for simulator, chains, state in engines:
        with pytest.raises(NoCurvatureError, match="HardMax has no curvature"):
            chains.corrections(Oracle(simulator, 0), state, 1, 2, 3)


def test_a_wrong_state_or_action_is_refused() -> None:
    chosen = case("entropy")
    model, grid = plane()
    jitted = JittedChains(model, LogSumExp(0.3), grid)
    for wrong, complaint in ((6, "state must be at most 5, got 6"), (-1, "state must be at least 0, got -1")):
        with pytest.raises(ValueError, match=complaint):
            table_chains(chosen).values(Oracle(chosen.model, 0), wrong, 1, 1)
    for chains, here in ((table_chains(chosen), 0), (jitted, [0.0, 0.0])):
        with pytest.raises(ValueError, match="action must be at most"):
            chains.returns(Oracle(model, 0), here, 3, 1, 1)
    with pytest.raises(ValueError, match=r"actions must be in 0..1, got 3"):
        batched_chains(chosen).returns(Oracle(chosen.model, 0), 0, 3, 1, 1)
    with pytest.raises(ValueError, match=r"state must have shape \(2,\), got \(3,\)"):
        jitted.values(Oracle(model, 0), [0.0, 0.0, 0.0], 1, 1)
    ones = np.ones((2, 1, 1), dtype=np.int64)
    ends = sp.TabularModel(ones, ones, [[1.0], [0.0]], discount=0.5, terminal=[False, True])
    with pytest.raises(sp.ModelError, match="state 1 is terminal"):
        TableChains(ends, LogSumExp(1.0), np.array([[0.0], [np.nan]])).values(Oracle(ends, 0), 1, 1, 1)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_reference_that_is_not_finite_is_named(number: float) -> None:
    chosen = case("entropy")
    broken = chosen.table.copy()
    broken[3, 1] = number
    complaint = rf"finite, got {number} \(state 3, action 1\)"
    with pytest.raises(ValueError, match=complaint):
        TableChains(chosen.model, chosen.backup, broken)
    chains = BatchedChains(chosen.model, chosen.backup, lambda states: broken[states])
    with pytest.raises(ValueError, match=complaint):
        chains.values(Oracle(chosen.model, 0), 3, 10, 5)


def test_a_reference_of_the_wrong_shape_is_refused() -> None:
    chosen = case("entropy")
    with pytest.raises(ValueError, match=r"of 6 states must have shape \(6, 2\), got \(2, 6\)"):
        TableChains(chosen.model, chosen.backup, chosen.table.T)
    for wrong in (lambda states: chosen.table[states].T, lambda states: np.zeros((len(states), 3))):
        chains = BatchedChains(chosen.model, chosen.backup, wrong)
        with pytest.raises(ValueError, match=r"of 10 states must have shape \(10, 2\), got"):
            chains.values(Oracle(chosen.model, 0), 3, 10, 5)


def test_a_grid_of_other_states_or_actions_is_refused() -> None:
    model, grid = plane()
    with pytest.raises(ValueError, match=r"states must have shape \[n, 2\], got \(3, 1\)"):
        grid.at(np.zeros((3, 1)))
    with pytest.raises(ValueError, match=r"3 actions, the grid states \[1\] and 2 actions"):
        JittedChains(model, LogSumExp(1.0), make_grid([0.0], [1.0], [2], np.zeros((2, 2))))


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
    chains = JittedChains(model, LogSumExp(0.3), grid)
    with pytest.raises(sp.ModelError, match=complaint):
        chains.values(Oracle(model, 0), [1.0, 0.0], 100, 50)
    with pytest.raises(sp.ModelError, match=complaint):
        chains.corrections(Oracle(model, 0), [1.0, 0.0], 100, 2, 50)
