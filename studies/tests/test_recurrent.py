"""The recurrent models of benchmarks and tests are what they say."""

import numpy as np
import pytest

import smoothplan as sp
from studies.recurrent import CAPACITY, mixed, redeclared, two_queues, two_queues_simulator, warehouse
from tests.common import dense


@pytest.mark.parametrize("place", [(0, 0), (5, 0), (15, 3), (15, 15)])
@pytest.mark.parametrize("action", range(4))
def test_the_simulator_of_two_queues_is_their_table(place: tuple[int, int], action: int) -> None:
    """Frequencies of n draws are off by more than 6 standard errors, at most 3/√n, with probability below 1e-8."""
    n, side = 20_000, CAPACITY + 1
    table, simulator = two_queues(0.9), two_queues_simulator(0.9)
    state = place[0] * side + place[1]
    drawn, rewards = simulator.step(np.tile(place, (n, 1)), np.full(n, action), np.random.default_rng(state))
    counts = np.bincount(drawn @ [side, 1], minlength=side * side)
    np.testing.assert_allclose(counts / n, dense(table)[0][state, action], atol=3.0 / np.sqrt(n))
    np.testing.assert_array_equal(rewards, table.rewards[state, action])
    assert (table.states, table.actions, table.max_successors, table.reward_kind) == (256, 4, 5, "deterministic")


def test_a_tree_leads_into_a_loop() -> None:
    """Nodes of the tree have one way in; the loop is never left."""
    model = mixed(3, depth=2, states=7)
    nodes = 1 + 6 + 36
    assert model.states == nodes + 7
    inside = model.successors[:7]
    np.testing.assert_array_equal(np.sort(inside, axis=None), np.arange(1, nodes))
    assert model.successors[7:].min() >= nodes
    assert not np.array_equal(mixed(4, depth=2, states=7).rewards, model.rewards)


def test_a_warehouse_keeps_count() -> None:
    """What is sold and what is left are what there was; an empty one that orders nothing earns nothing."""
    model = warehouse(0.9)
    assert model.max_successors == 25
    assert model.expected_rewards[0, 0] == 0.0
    assert model.successors[0, 0, model.probabilities[0, 0] > 0].tolist() == [0]
    np.testing.assert_allclose(model.expected_rewards[100, 0], 12.0 - 0.01 * 88.0, rtol=1e-12)  # mean demand is 12
    np.testing.assert_allclose(model.expected_rewards[30, 3], 12.0 - 2.0 - 16.0 - 0.01 * 58.0, rtol=1e-12)


def test_other_declarations_of_the_same_table() -> None:
    lake = sp.models.frozen_lake(discount=0.9)
    other = redeclared(lake, discount=0.5, reward_range=(0.0, 2.0))
    assert (other.discount, other.reward_range, other.reward_kind) == (0.5, (0.0, 2.0), lake.reward_kind)
    np.testing.assert_array_equal(other.terminal, lake.terminal)
