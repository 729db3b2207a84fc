"""The zoo: every model keeps its promises and is the problem that it claims to be."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from scipy import stats

import smoothplan as sp
from smoothplan.models import zoo
from tests.common import dense

SEEDS = range(3)
FALSE_ALARM = 1e-6 / len(SEEDS)
"""Of one run of a statistical test, so that its runs for all seeds together raise a false alarm with rate 1e-6."""

MODELS: dict[str, Callable[[], sp.GenerativeModel]] = {
    "garnet": zoo.garnet,
    "garnet, bernoulli": lambda: zoo.garnet(reward_kind="bernoulli", sparsity=0.5),
    "chain": zoo.chain,
    "river_swim": zoo.river_swim,
    "two_room": zoo.two_room,
    "two_room, smallest": lambda: zoo.two_room(size=1, slip=0.0),
    "frozen_lake": zoo.frozen_lake,
    "frozen_lake, 8x8": lambda: zoo.frozen_lake("8x8", slippery=False),
    "sailing": zoo.sailing,
    "inventory": zoo.inventory,
    "sysadmin": zoo.sysadmin,
    "cart_pole": zoo.cart_pole,
    "mountain_car": zoo.mountain_car,
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_passes_the_check(name: str) -> None:
    assert sp.check_model(MODELS[name]()).calls > 0


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: zoo.garnet(3, branching=4), ValueError, "branching must be at most 3, got 4"),
        (lambda: zoo.garnet(sparsity=1.5), ValueError, "sparsity must be at least 0 and at most 1, got 1.5"),
        (lambda: zoo.frozen_lake("9x9"), ValueError, "map_name must be one of 4x4, 8x8, got '9x9'"),
        (lambda: zoo.frozen_lake(slippery="no"), TypeError, "slippery must be true or false, got 'no'"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_named(build: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        build()


def test_a_garnet_belongs_to_its_seed() -> None:
    model, same, other = (zoo.garnet(10, 3, 4, seed=seed) for seed in (1, 1, 2))
    assert all(len(set(entry)) == 4 for entry in model.successors.reshape(-1, 4).tolist())
    for name in ("probabilities", "successors", "rewards"):
        np.testing.assert_array_equal(getattr(model, name), getattr(same, name))
        assert not np.array_equal(getattr(model, name), getattr(other, name))


@pytest.mark.parametrize("seed", SEEDS)
def test_subsets_are_uniform(seed: int) -> None:
    """Pearson's test over all ten pairs of five; false-alarm rate 1e-6 for all seeds together."""
    drawn = Counter(frozenset(pair) for pair in zoo._subsets(5, 2, 20_000, np.random.default_rng(seed)).tolist())
    counts = [drawn[frozenset(pair)] for pair in combinations(range(5), 2)]
    assert sum(counts) == 20_000
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize("seed", SEEDS)
def test_garnet_rewards_and_probabilities_have_their_distributions(seed: int) -> None:
    """A binomial and two Kolmogorov tests; false-alarm rate 1e-6 for all three and all seeds together."""
    model = zoo.garnet(2000, 5, 4, seed=seed, sparsity=0.3)
    zero = model.rewards == 0
    assert stats.binomtest(int(zero.sum()), zero.size, 0.3).pvalue > FALSE_ALARM / 3
    assert stats.kstest(model.rewards[~zero], "uniform").pvalue > FALSE_ALARM / 3
    # The gap between neighbours of three sorted uniform numbers is Beta(1, 3); one gap of each pair is independent.
    assert stats.kstest(model.probabilities[..., 1].ravel(), stats.beta(1, 3).cdf).pvalue > FALSE_ALARM / 3


LEFT, DOWN, RIGHT, UP = range(4)
CHAIN, RIVER = zoo.chain(states=3, slip=0.2), zoo.river_swim(states=4)
ROOMS = zoo.two_room(size=2, slip=0.2)
"""The map  S.#..  over  ....G : states 0 1 # 2 3 over 4 5 6 7 8, the door being 6."""


@pytest.mark.parametrize(
    ("model", "state", "action", "outcomes"),
    [
        (CHAIN, 0, 0, {0: (0.2, 2.0), 1: (0.8, 0.0)}),
        (CHAIN, 2, 0, {0: (0.2, 2.0), 2: (0.8, 10.0)}),
        (CHAIN, 2, 1, {0: (0.8, 2.0), 2: (0.2, 10.0)}),
        (RIVER, 0, 0, {0: (1.0, 0.005)}),
        (RIVER, 0, 1, {0: (0.4, 0.0), 1: (0.6, 0.0)}),
        (RIVER, 2, 1, {1: (0.05, 0.0), 2: (0.6, 0.0), 3: (0.35, 0.0)}),
        (RIVER, 3, 1, {2: (0.4, 1.0), 3: (0.6, 1.0)}),
        (ROOMS, 1, RIGHT, {1: (0.9, 0.0), 5: (0.1, 0.0)}),
        (ROOMS, 6, UP, {5: (0.1, 0.0), 6: (0.8, 0.0), 7: (0.1, 0.0)}),
        (ROOMS, 7, RIGHT, {2: (0.1, 0.0), 7: (0.1, 0.0), 8: (0.8, 1.0)}),
        (ROOMS, 3, DOWN, {2: (0.1, 0.0), 3: (0.1, 0.0), 8: (0.8, 1.0)}),
    ],
)
def test_rows_by_hand(
    model: sp.TabularModel, state: int, action: int, outcomes: dict[int, tuple[float, float]]
) -> None:
    """The possible next states: {next state: (probability, expected reward there)}."""
    probabilities, rewards, _ = (table[state, action] for table in dense(model))
    possible = np.flatnonzero(probabilities).tolist()
    found = {s: (round(float(probabilities[s]), 12), round(float(rewards[s] / probabilities[s]), 12)) for s in possible}
    assert found == outcomes


@pytest.mark.parametrize(("map_name", "slippery"), [("4x4", True), ("8x8", False)])
def test_frozen_lake_equals_gymnasiums(map_name: str, slippery: bool) -> None:
    ours = zoo.frozen_lake(map_name, slippery)
    theirs = sp.models.from_gymnasium("FrozenLake-v1", map_name=map_name, is_slippery=slippery)
    assert isinstance(theirs, sp.TabularModel)
    np.testing.assert_array_equal(ours.terminal, theirs.terminal)
    for one, two in zip(dense(ours), dense(theirs), strict=True):
        np.testing.assert_allclose(one[~ours.terminal], two[~ours.terminal], atol=1e-15)
    assert (ours.initial_state, ours.reward_kind) == (theirs.initial_state, theirs.reward_kind)
    assert ours.reward_range == theirs.reward_range == (0.0, 1.0)


def test_sailing_by_angles() -> None:
    """Every row against angles between vectors, which the model does not use."""
    size = 4
    model = zoo.sailing(size)
    compass = np.array([(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)])
    probabilities, rewards, ends = dense(model)
    for r, c, wind, heading in product(range(size), range(size), range(8), range(8)):
        state = (r * size + c) * 8 + wind
        assert model.terminal[state] == (r == c == size - 1)
        if model.terminal[state]:
            continue
        one, two = compass[wind], compass[heading]
        cosine = np.clip(one @ two / np.linalg.norm(one) / np.linalg.norm(two), -1.0, 1.0)
        octants = round(float(np.degrees(np.arccos(cosine))) / 45.0)
        target = np.array([r, c]) + two
        if octants == 4 or target.min() < 0 or target.max() >= size:
            target = np.array([r, c])
        expected = np.zeros(model.states)
        for turn, probability in ((-1, 0.3), (0, 0.4), (1, 0.3)):
            expected[(target[0] * size + target[1]) * 8 + (wind + turn) % 8] = probability
        np.testing.assert_allclose(probabilities[state, heading], expected, atol=1e-15)
        np.testing.assert_allclose(rewards[state, heading], -(1.0 + octants) * expected, atol=1e-15)
        np.testing.assert_array_equal(ends[state, heading], expected * (target.tolist() == [size - 1, size - 1]))
    assert (model.reward_kind, model.reward_range) == ("deterministic", (-5.0, -1.0))


def test_inventory_equals_the_sum_over_demands() -> None:
    capacity, max_order, mean, price, cost, holding = 3, 6, 0.5, 2.0, 1.0, 0.3
    model = zoo.inventory(capacity, max_order, mean, price, cost, holding)
    demands = np.arange(300)
    weights = stats.poisson(mean).pmf(demands)
    probabilities, rewards, _ = dense(model)
    for stock, order in product(range(capacity + 1), range(max_order + 1)):
        filled = min(stock + order, capacity)
        sold = np.minimum(demands, filled)
        earned = price * sold - cost * (filled - stock) - holding * (filled - sold)
        expected = np.bincount(filled - sold, weights, minlength=capacity + 1)
        np.testing.assert_allclose(probabilities[stock, order], expected, atol=1e-13)
        np.testing.assert_allclose(rewards[stock, order].sum(), weights @ earned, atol=1e-11)
    assert model.reward_kind == "transition"


@pytest.mark.parametrize("seed", SEEDS)
def test_sysadmin_has_the_distribution_of_its_definition(seed: int) -> None:
    """Pearson's test over the joint outcomes of four machines; rate 1e-6 for all seeds and 16·5 pairs together."""
    repeats, machines = 20_000, 4
    model = zoo.sysadmin(machines)
    outcomes = np.array(list(product((0, 1), repeat=machines)))
    for state, action in product(outcomes.tolist(), range(machines + 1)):
        states = np.repeat(np.array([state], dtype=np.int8), repeats, axis=0)
        found = sp.Oracle(model, seed).sample(states, np.full(repeats, action))
        neighbours = np.array([1 + state[machine - 1] + state[(machine + 1) % machines] for machine in range(machines)])
        chances = np.where(state, 0.45 + 0.5 * neighbours / 3, 0.05 * neighbours / 3)
        chances[action - 1 : action] = 1.0
        expected = repeats * np.where(outcomes, chances, 1.0 - chances).prod(axis=1)
        counts = np.bincount(found.next_states @ (1 << np.arange(machines)[::-1]), minlength=len(outcomes))
        likely = expected > 50.0  # the others count as one outcome
        counts, expected = (np.append(each[likely], each[~likely].sum()) for each in (counts, expected))
        statistic = ((counts - expected) ** 2 / np.maximum(expected, 1.0)).sum()
        assert statistic < stats.chi2.isf(FALSE_ALARM / 80, likely.sum())
        np.testing.assert_allclose(found.rewards, np.mean(state) - (action > 0) * 0.75 / machines, atol=1e-15)
