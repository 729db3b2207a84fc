"""UCT: estimates that converge to what they estimate, exact calls, the same bits again, and no claim of a guarantee."""

import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan import specs
from smoothplan.base.arguments import Floats
from smoothplan.bounds.uct import FIRST_NODES, MOST_DEPTH, UCTRun
from smoothplan.models.tabular import draw
from smoothplan.run.records import EngineName, Root
from smoothplan.theory import curvature
from tests.common import ending, vectorised
from tests.saving import copied, equal

FALSE_ALARM = 1e-7
"""The probability that a statistical check complains without reason: a few dozen of them make a few in a million."""

HARD = sp.HardMax()
LOOPS = ("closed", "open")
ENGINES: tuple[EngineName, ...] = ("compiled", "batched")


def begun(planner: sp.UCT, model: Any, engine: EngineName = "auto", state: Any = 0, seed: int = 1) -> UCTRun:
    """A search at its start."""
    return planner.start(Root(model, state, seed, 1, None, engine, time.perf_counter()))


def finite_q(model: sp.TabularModel, depth: int) -> Floats:
    """The action values [S, K] of the problem with `depth` steps, by backward induction."""
    q = np.zeros((model.states, model.actions))
    for _ in range(depth):
        q = sp.exact.action_values(model, np.where(model.terminal, 0.0, q.max(axis=1)))
    return q


def open_loop_q(model: sp.TabularModel, depth: int) -> Floats:
    """The value [K] of each first action with the best rest of a sequence of actions, by enumeration from state 0."""
    best = np.full(model.actions, -np.inf)
    for sequence in itertools.product(range(model.actions), repeat=depth):
        weights, total = np.zeros(model.states), 0.0
        weights[0] = 1.0
        for step, action in enumerate(sequence):
            total += model.discount**step * float(weights @ model.expected_rewards[:, action])
            flow = weights[:, None] * model.probabilities[:, action] * ~model.ends[:, action]
            weights = np.zeros(model.states)
            np.add.at(weights, model.successors[:, action], flow)
            weights[model.terminal] = 0.0
        best[sequence[0]] = max(best[sequence[0]], total)
    return best


# What it converges to


@pytest.mark.parametrize("rollout", ["random", "none"])
@pytest.mark.parametrize("loop", LOOPS)
def test_action_values_converge(loop: Any, rollout: Any) -> None:
    """To those of the problem of that depth, or of the best sequences of actions; errors shrink along the way.

    Means lag behind: what rounds paid for exploration below a node stays in its mean, a part of log(n)/n of it.
    """
    model, depth = ending(2, 0.8, 5), 4
    closed, opened = finite_q(model, depth)[0], open_loop_q(model, depth)
    assert closed.max() - opened.max() > 0.1  # one loop is not to be taken for the other
    truth = closed if loop == "closed" else opened
    planner = sp.UCT(depth=depth, loop=loop, rollout=rollout)

    def error(calls: int, seeds: int) -> float:
        results = [sp.plan(planner, model, 0, seed=seed, max_calls=calls) for seed in range(seeds)]
        return float(np.mean([abs(result.value - truth.max()) for result in results]))

    assert error(600_000, 1) < 0.02 < error(6_000, 5) < error(60, 20)
    result = sp.plan(planner, model, 0, max_calls=600_000)
    assert result.action == truth.argmax()
    assert np.abs(result.q - truth).max() < 0.3  # the other action was not tried often


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("loop", LOOPS)
def test_one_action_makes_a_plain_mean(loop: Any, engine: EngineName) -> None:
    """Of independent returns, discounted, with rewards of either sign and ends: within Hoeffding's bound."""
    model, depth = ending(1, 0.75, 2), 5
    result = sp.plan(
        sp.UCT(depth=depth, loop=loop), model, 0, max_calls=400_000 if engine == "compiled" else 3_000, engine=engine
    )
    low, high = model.reward_range
    width = (high - low) * (1 - 0.75**depth) / (1 - 0.75)
    radius = width * math.sqrt(math.log(2 / FALSE_ALARM) / (2 * result.samples))
    assert abs(result.q[0] - finite_q(model, depth)[0, 0]) < radius
    assert result.samples >= result.calls / depth - 1


@pytest.mark.parametrize("loop", LOOPS)
def test_actions_that_are_alike_get_their_turns(loop: Any) -> None:
    """Nothing tells them apart, so none is tried more often than another."""
    model = sp.TabularModel(np.ones((1, 3, 1)), np.zeros((1, 3, 1), dtype=int), np.zeros((1, 3)), discount=0.9)
    search = begun(sp.UCT(depth=4, loop=loop), model)
    search.explore(4 * 100, 4 * 100)
    assert np.ptp(search.tree.counts[0]) <= 1


def test_rewards_of_another_size_change_nothing() -> None:
    """The scale of the bounds is that of the returns."""
    model = sp.models.garnet(20, 3, 2, 0.7, 1)
    larger = sp.TabularModel(model.probabilities, model.successors, 1024.0 * model.rewards - 512.0, discount=0.7)
    one, two = (sp.plan(sp.UCT(depth=8), each, 0, max_calls=20_000) for each in (model, larger))
    shift = 512.0 * (1 - 0.7**8) / (1 - 0.7)
    np.testing.assert_allclose(two.q, 1024.0 * one.q - shift, rtol=1e-9)


# Compiled and not


class Twin(UCTRun):
    """The search in Python, with the draws of the compiled one."""

    tables: Any = None

    def _step(self, states: Any, action: int) -> tuple[Any, float, bool]:
        number, reward, end = draw(self.tables, int(states[0]), action, self.oracle.stream)
        return np.array([number]), reward, end


@pytest.mark.parametrize("rollout", ["random", "none"])
@pytest.mark.parametrize("loop", LOOPS)
def test_compiled_and_python_grow_the_same_tree(loop: Any, rollout: Any) -> None:
    model = ending(4, 0.9, 4)
    planner = sp.UCT(depth=7, loop=loop, rollout=rollout)
    table = begun(planner, model)
    twin = Twin(planner, Root(model, 0, 1, 1, None, "batched", time.perf_counter()))
    twin.tables = model.tables
    for until in (1, 50, 5_000):
        for search in (table, twin):
            search.explore(until, 5_000)
        size = int(table.tree.size[0])
        assert twin.tree.size[0] == size
        for name in ("counts", "means", "least", "most"):
            assert np.array_equal(getattr(table.tree, name)[:size], getattr(twin.tree, name)[:size]), name
        assert np.array_equal(table.oracle.stream, twin.oracle.stream)
    assert size > FIRST_NODES or loop == "closed"  # there are no more than 12 · 6 + 1 of them


def test_a_round_that_is_cut_short_counts_for_nothing() -> None:
    model = sp.models.garnet(10, 2, 2, 0.9, 1)
    for calls, rounds in ((9, 0), (10, 1), (19, 1), (20, 2)):
        for engine in ENGINES:
            result = sp.plan(sp.UCT(depth=10), model, 0, max_calls=calls, engine=engine)
            assert (result.calls, result.samples) == (calls, rounds)


# The same bits


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_restored_search_goes_on_with_the_same_bits(loop: Any, engine: EngineName) -> None:
    undisturbed, restored = (begun(sp.UCT(depth=5, loop=loop), ending(3, 0.8, 2), engine) for _ in range(2))
    for until in (1, 40, 600, 1_000):
        restored.restore(copied(undisturbed.saved()))
        for search in (undisturbed, restored):
            search.explore(until, until)
        assert equal(restored.saved(), undisturbed.saved())


# Other simulators, and the edges


def test_simulators_whose_states_are_vectors() -> None:
    """Equal states share their statistics; a key says which are equal."""
    model = sp.models.sysadmin(machines=3)
    nodes = []
    for options in ({}, {"key": lambda state: int(state.sum())}, {"loop": "open"}):
        search = begun(sp.UCT(depth=4, **options), model, state=model.initial_state)
        search.explore(1_000, 1_000)
        nodes.append(int(search.tree.size[0]))
    assert nodes[0] <= 1 + 3 * 8
    assert nodes[1] <= 1 + 3 * 4 < nodes[0]
    assert nodes[2] > nodes[0]


# What it claims


def test_it_claims_nothing() -> None:
    model = sp.models.garnet(10, 2, 2, 0.8, 1)
    result = sp.plan(sp.UCT(), model, 0, max_calls=1_000)
    assert result.interval == pytest.approx(curvature.value_interval(model, HARD), rel=1e-14)  # rounded outward
    assert (result.delta, result.q_intervals, result.details) == (0.0, None, None)
    assert result.value == result.q[result.action]
    with pytest.raises(TypeError, match="UCT has no forecast: it goes on until a limit"):
        sp.forecast(sp.UCT(), model)
    few = sp.plan(sp.UCT(), model, 0, max_calls=0)
    assert few.value == pytest.approx(sum(few.interval) / 2, rel=0.05)


def test_the_value_is_inside_the_interval() -> None:
    """A short depth leaves out rewards that are sure to come."""
    model = sp.TabularModel(np.ones((1, 1, 1)), np.zeros((1, 1, 1), dtype=int), np.ones((1, 1)), discount=0.9)
    result = sp.plan(sp.UCT(depth=2), model, 0, max_calls=100)
    assert result.q == pytest.approx([1.9])
    assert result.value == pytest.approx(result.interval[0], rel=1e-14) == pytest.approx(10.0)


def test_a_spec_names_it() -> None:
    planner = specs.build_planner("uct:depth=5,loop=open,rollout=none", HARD)
    assert planner == sp.UCT(depth=5, loop="open", rollout=None)  # a spec has no other word for it


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"backup": sp.LogSumExp(0.5)}, r"UCT is for the hard maximum, got LogSumExp\(temperature=0\.5"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"depth": MOST_DEPTH + 1}, "depth must be at most 10,000, got 10001"),
        ({"loop": "half"}, "loop must be 'closed' or 'open', got 'half'"),
        ({"key": 3}, "key must be a function"),
        ({"key": bytes, "loop": "open"}, "key is for loop='closed'"),
    ],
)
def test_wrong_options(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        sp.UCT(**options)


def test_the_depth_follows_from_epsilon() -> None:
    model = sp.models.garnet(10, 2, 2, 0.6, 3)
    largest = curvature.value_interval(model, HARD)[1]
    assert sp.UCT(epsilon=0.01).depth_for(model) == math.ceil(math.log(0.01 / largest) / math.log(0.6))
    assert sp.UCT(epsilon=1e6).depth_for(model) == sp.UCT().depth_for(ending(3, 0.0, 1)) == 1
    assert sp.UCT(epsilon=1e6, depth=7).depth_for(model) == 7


def test_wrong_runs() -> None:
    model = sp.models.garnet(5, 2, 2, 0.5, 1)
    with pytest.raises(ValueError, match="UCT needs a limit, max_calls or max_seconds"):
        sp.plan(sp.UCT(), model, 0)
    with pytest.raises(ValueError, match="engine 'compiled' needs a TabularModel and no key, got VectorModel"):
        sp.plan(sp.UCT(), vectorised(model), 0, max_calls=1, engine="compiled")
    with pytest.raises(ValueError, match=r"epsilon must be larger, got 0\.1: rewards beyond .* 10,000"):
        sp.plan(sp.UCT(), sp.models.garnet(5, 2, 2, 0.9999, 1), 0, max_calls=1)


def test_states_that_are_not_numbers(tmp_path: Path) -> None:
    """The bytes of objects are addresses. What cannot be saved is refused."""

    def still(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        return states, np.zeros(len(actions))

    def model(state: Any) -> sp.VectorModel:
        return sp.VectorModel(still, actions=2, discount=0.5, reward_range=(0.0, 1.0), initial_state=state)

    things = np.array([1, None], dtype=object)
    with pytest.raises(TypeError, match="key must be given for states of objects"):
        sp.plan(sp.UCT(depth=3), model(things), max_calls=30)
    assert sp.plan(sp.UCT(depth=3, key=lambda state: state[0]), model(things), max_calls=30).samples == 10
    with pytest.raises(ValueError, match="a checkpoint of a search needs states made of numbers"):
        sp.plan(sp.UCT(depth=3), model(np.array(["a"])), max_calls=30, checkpoint=tmp_path / "run")
