"""Tables: what they draw, what they are, and what they refuse."""

import re
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.models.tabular import LAST, Tables, draw
from tests import common

SEEDS = range(4)
SAMPLERS = ("batch", "compiled")
FALSE_ALARM = 1e-6 / (len(SEEDS) * len(SAMPLERS))
"""Of one run of a statistical test, so that all its runs together raise a false alarm with probability 1e-6."""


def _draw_many(tables: Tables, states: Ints, actions: Ints, stream: NDArray[np.uint64]) -> tuple[Any, Any, Any]:
    next_states, rewards, terminals = np.empty_like(states), np.empty(len(states)), np.zeros(len(states), np.bool_)
    for row in range(len(states)):
        next_states[row], rewards[row], terminals[row] = draw(tables, states[row], actions[row], stream)
    return next_states, rewards, terminals


# Not cached on disk: a cached caller would not notice a changed `draw`.
draw_many: Any = numba.njit(_draw_many)


def sample(sampler: str, model: sp.TabularModel, seed: int, states: Ints, actions: Ints) -> tuple[Any, Any, Any]:
    """Draws by either door, after checking that each call is counted."""
    oracle = sp.Oracle(model, seed)
    if sampler == "batch":
        drawn: tuple[Any, Any, Any] = oracle.sample(states, actions)
    else:
        drawn = draw_many(model.tables, states, actions, oracle.stream)
    assert oracle.calls == len(states)
    return drawn


def random_table(branches: int, states: int = 40, actions: int = 3) -> tuple[Floats, Ints]:
    """Probabilities of at least 0.4/B on B different successors, and one of zero at a random place of each pair."""
    rng = np.random.default_rng(0)
    probabilities = 0.4 / branches + 0.6 * rng.dirichlet(np.ones(branches), size=(states, actions))
    padded = np.concatenate([probabilities, np.zeros((states, actions, 1))], axis=-1)
    successors = rng.permuted(np.broadcast_to(np.arange(states), (states, actions, states)), axis=-1)
    return rng.permuted(padded, axis=-1), successors[..., : branches + 1].astype(np.int64)


def everywhere(states: int, actions: int, repeats: int) -> tuple[Ints, Ints]:
    """Every pair, `repeats` times: states and actions [S·K·repeats]."""
    pairs = np.repeat(np.arange(states * actions), repeats)
    return pairs // actions, pairs % actions


def chi_square(counts: Ints, probabilities: Floats, repeats: int) -> tuple[float, float]:
    """Pearson's statistic of counts [..., B] over all possible cells, and its quantile at the false-alarm rate."""
    possible = probabilities > 0
    expected = (repeats * probabilities)[possible]
    freedom = int(possible.sum()) - int(np.prod(probabilities.shape[:2]))
    return float(((counts[possible] - expected) ** 2 / expected).sum()), float(stats.chi2.isf(FALSE_ALARM, freedom))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("rewards", ["of entries", "bernoulli by pair", "bernoulli by successor"])
@pytest.mark.parametrize("branches", [4, 30])  # the compiled draw skips blocks of 16 outcomes
def test_draws_have_the_distribution_of_the_table(sampler: str, seed: int, rewards: str, branches: int) -> None:
    """Pearson's test of successor and reward over all pairs at once; false-alarm rate 1e-6 for all runs of a parameter.

    Jointly, so that a reward drawn with the same number as the successor is rejected too: its mean would be right. The
    same counts, moved by one successor, are rejected.
    """
    probabilities, successors = random_table(branches)
    states, actions, width = probabilities.shape
    numbers = np.arange(probabilities.size).reshape(probabilities.shape)
    means = np.random.default_rng(1).uniform(0.2, 0.8, size=probabilities.shape)
    means[0], means[1] = 0.0, 1.0
    table: Any = {"of entries": numbers, "bernoulli by pair": means[..., 0]}.get(rewards, means)
    kind: Any = "deterministic" if rewards == "of entries" else "bernoulli"
    ends = numbers % 3 == 0
    model = sp.TabularModel(probabilities, successors, table, discount=0.9, terminal=ends, reward_kind=kind)
    assert not model.terminal.any()
    means = np.repeat(means[..., :1], width, axis=-1) if rewards == "bernoulli by pair" else means
    expected = numbers if rewards == "of entries" else means
    np.testing.assert_allclose(model.expected_rewards, (probabilities * expected).sum(axis=-1), rtol=1e-14)

    s, a = everywhere(states, actions, 2000)
    next_states, drawn, terminals = sample(sampler, model, seed, s, a)
    match = successors[s, a] == next_states[:, None]
    assert (match.sum(axis=1) == 1).all()
    entries = match.argmax(axis=1)
    np.testing.assert_array_equal(terminals, ends[s, a, entries])
    joint = probabilities[..., None] * np.stack([1 - means, means], axis=-1)
    if rewards == "of entries":
        np.testing.assert_array_equal(drawn, numbers[s, a, entries])
        joint, drawn = probabilities[..., None], np.zeros(len(drawn))
    assert np.isin(drawn, (0.0, 1.0)).all()
    counts: Any = np.zeros(joint.shape, dtype=np.int64)
    np.add.at(counts, (s, a, entries, drawn.astype(int)), 1)
    assert (counts[joint == 0] == 0).all()
    counts, joint = counts.reshape(states, actions, -1), joint.reshape(states, actions, -1)
    statistic, limit = chi_square(counts, joint, 2000)
    assert statistic < limit
    assert chi_square(np.roll(counts, 1, axis=-1), joint, 2000)[0] > limit


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_draw_beyond_a_rounded_sum_belongs_to_the_last_possible_successor(sampler: str) -> None:
    """The sum is 1 − 9e-10, within tolerance; a padding entry after it must stay out of reach."""
    model = sp.TabularModel([[[0.5, 0.5 - 9e-10, 0.0]]] * 3, [[[0, 1, 2]]] * 3, [[0.0]] * 3, discount=0.5)
    assert (model.tables.outcomes["threshold"].reshape(3, 1, -1)[..., 1:] == LAST).all()
    next_states, _, _ = sample(sampler, model, 0, *everywhere(2, 1, 1000))
    assert set(next_states.tolist()) == {0, 1}


def test_compiled_and_batched_calls_share_one_count_but_no_draws() -> None:
    model = sp.models.garnet(10, 2, 3)
    states, actions = everywhere(10, 2, 1)
    mixed, plain = sp.Oracle(model, 1), sp.Oracle(model, 1)
    first = mixed.sample(states, actions)
    compiled = draw_many(model.tables, states, actions, mixed.stream)
    again = mixed.sample(states, actions)
    assert mixed.calls == 60
    np.testing.assert_equal([first, again], [plain.sample(states, actions) for _ in range(2)])
    np.testing.assert_equal(compiled, draw_many(model.tables, states, actions, sp.Oracle(model, 1).stream))


PAIR: dict[str, Any] = {
    "probabilities": [[[0.5, 0.5], [1.0, 0.0]], [[1.0, 0.0], [0.25, 0.75]]],
    "successors": [[[0, 1], [1, 0]], [[0, 0], [0, 1]]],
    "rewards": [[0.0, 0.5], [1.0, 0.25]],
    "discount": 0.5,
}
"""A model with two states, two actions and two successors."""


def by_successor(*entries: tuple[int, int, int, float]) -> Floats:
    """The rewards of `PAIR` as [S, K, B], with the entries (s, a, b, reward) changed."""
    rewards = np.repeat(np.array(PAIR["rewards"])[..., None], 2, axis=-1)
    for *place, value in entries:
        rewards[tuple(place)] = value
    return rewards


def test_facts_of_a_table() -> None:
    model = sp.TabularModel(**PAIR)
    assert (model.states, model.actions, model.max_successors, model.initial_state) == (2, 2, 2, 0)
    assert (model.reward_kind, model.reward_range, model.terminates) == ("deterministic", (0.0, 1.0), False)
    np.testing.assert_array_equal(model.expected_rewards, PAIR["rewards"])
    np.testing.assert_array_equal(model.continuation, PAIR["probabilities"])
    for change, range_ in (((0, 1, 1, 9.0), (0.0, 1.0)), ((0, 0, 1, 7.0), (0.0, 7.0))):  # the first has probability 0
        assert sp.TabularModel(**{**PAIR, "rewards": by_successor(change)}).reward_range == range_
    declared = sp.TabularModel(**PAIR, reward_range=(-1, 2), initial_state=1, state_names="ab", action_names=["x", "y"])
    assert (declared.reward_range, declared.initial_state) == ((-1.0, 2.0), 1)
    assert (declared.state_names, declared.action_names) == (("a", "b"), ("x", "y"))


def test_a_reward_is_fixed_by_the_transition_where_no_successor_has_two() -> None:
    def kind(*outcomes: tuple[float, int, float, bool], **declared: Any) -> str:
        table: Any = [[outcomes], [[(1.0, 0, 0.0, False)]]]
        return sp.TabularModel.from_outcomes(table, discount=0.5, **declared).reward_kind

    assert kind((0.5, 0, 1.0, False), (0.25, 1, 2.0, False), (0.25, 0, 1.0, False)) == "transition"
    assert kind((0.5, 0, 1.0, False), (0.5, 0, 2.0, True)) == "transition"  # the end tells them apart
    assert kind((0.5, 0, 1.0, False), (0.5, 0, 2.0, False)) == "bounded"
    assert kind((0.5, 0, 1.0, False), (0.5, 1, 1.0, False), (0.0, 0, 2.0, False)) == "deterministic"
    for declared in ("transition", "bounded"):
        assert kind((0.5, 0, 1.0, False), (0.5, 1, 2.0, False), reward_kind=declared) == declared
    with pytest.raises(sp.ModelError, match=r"next state, got 1.0 and 2.0 of state 0, action 0, next state 1"):
        kind((0.25, 1, 1.0, False), (0.5, 0, 1.0, False), (0.25, 1, 2.0, False), reward_kind="transition")


def test_rows_of_a_terminal_state_have_no_say() -> None:
    model = sp.TabularModel(**{**PAIR, "rewards": by_successor((1, 1, 0, 7.0))}, terminal=[False, True])
    assert (model.reward_kind, model.reward_range, model.terminates) == ("deterministic", (0.0, 0.5), True)
    np.testing.assert_array_equal(model.ends, np.array(PAIR["successors"]) == 1)
    np.testing.assert_array_equal(model.continuation, np.array(PAIR["probabilities"]) * ~model.ends)
    assert model.max_successors == 2
    wild = {**PAIR, "rewards": by_successor((1, 1, 0, -(2.0**63))), "reward_kind": "bernoulli"}
    assert sp.TabularModel(**wild, terminal=[False, True]).reward_range == (0.0, 1.0)
    assert sp.Oracle(model, 0).sample(np.array([0, 0]), [1, 1]).terminals.all()


def test_terminal_transitions_make_the_states_terminal_that_are_entered_in_no_other_way() -> None:
    successors = np.array(PAIR["successors"])
    some = np.array([[[False, True], [False, False]], [[False, False], [False, False]]])
    model = sp.TabularModel(**PAIR, terminal=some)
    assert model.terminates
    assert not model.terminal.any()
    np.testing.assert_array_equal(model.ends, some)

    # State 1 is entered by ending transitions only; a padding entry does not count as an end.
    model = sp.TabularModel(**PAIR, terminal=(successors == 1) | (np.array(PAIR["probabilities"]) == 0))
    assert model.terminal.tolist() == [False, True]
    np.testing.assert_array_equal(model.ends, successors == 1)


def test_arrays_are_read_only_copies() -> None:
    given: dict[str, Any] = {key: np.array(value) for key, value in PAIR.items()}
    model = sp.TabularModel(**given)
    for key in ("probabilities", "successors", "rewards"):
        given[key][:] = 0
        np.testing.assert_array_equal(getattr(model, key), PAIR[key])
    for name in (*given, "terminal", "ends", "continuation", "expected_rewards"):
        assert name == "discount" or not getattr(model, name).flags.writeable
    assert not model.tables.outcomes.flags.writeable


def test_from_dense_equals_the_full_matrices() -> None:
    rng, shape = np.random.default_rng(0), (5, 3, 5)
    dense = rng.random(shape) * (rng.random(shape) < 0.5)
    dense[..., 0] += (dense.sum(axis=-1) == 0) * 1.0
    dense[0, 0] = 1.0  # one full row, so that the table is as wide as the matrix
    dense /= dense.sum(axis=-1, keepdims=True)
    rewards, ends = rng.random(shape), rng.random(shape) < 0.2
    model = sp.TabularModel.from_dense(dense, rewards, discount=0.9, terminal=ends)

    for found, expected in zip(common.dense(model), (dense, dense * rewards, dense * ends), strict=True):
        np.testing.assert_array_equal(found, expected)


def changed(name: str, place: tuple[int, ...], value: float) -> dict[str, Any]:
    """A table of `PAIR` with one other entry."""
    table = np.array(PAIR[name])
    table[place] = value
    return {name: table}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (changed("probabilities", (1, 1, 0), 0.2), sp.ModelError, "sum of probabilities 0.95 of state 1, action 1"),
        (changed("probabilities", (1, 1, 0), -0.25), sp.ModelError, "probability -0.25 of state 1, action 1 is not a"),
        (changed("probabilities", (1, 0, 0), np.nan), sp.ModelError, "probability nan of state 1, action 0 is not a"),
        (changed("successors", (1, 0, 0), 2), sp.ModelError, "successor 2 of state 1, action 0 is not one of the s"),
        (changed("rewards", (0, 1), np.nan), sp.ModelError, "reward nan of state 0, action 1 is not finite"),
        ({"probabilities": [[1.0]]}, ValueError, "probabilities must have shape [S, K, B], got (1, 1)"),
        ({"probabilities": [[[1.0], [0.5, 0.5]]]}, TypeError, "probabilities must be an array of numbers, got [[[1.0]"),
        ({"successors": [[[0]]]}, ValueError, "successors must have the shape of probabilities, (2, 2, 2), got (1, 1"),
        ({"successors": np.zeros((2, 2, 2))}, TypeError, "successors must be whole numbers, got dtype float64"),
        ({"rewards": [0.0, 1.0]}, ValueError, "rewards must have shape (2, 2) or (2, 2, 2), got (2,)"),
        ({"terminal": [0, 1]}, ValueError, "terminal must be booleans of shape (2,) or (2, 2, 2), got shape (2,)"),
        ({"reward_range": (0, 0.9)}, sp.ModelError, "reward 1 of state 1, action 0 is outside the range [0, 0.9]"),
        ({"reward_kind": "bernoulli", "rewards": [[0, 1.5], [1, 1]]}, sp.ModelError, "mean reward 1.5 of state 0"),
        ({"initial_state": 2}, ValueError, "initial_state must be at most 1, got 2"),
        ({"state_names": ["a"]}, ValueError, "state_names must have 2 entries, got 1"),
    ],
)
def test_a_wrong_table_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        sp.TabularModel(**{**PAIR, **changes})


def test_a_wrong_dense_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"probability -0.5 of state 0, action 0 is not a probability"):
        sp.TabularModel.from_dense([[[1.0, -0.5]], [[0.0, 1.0]]], [[0.0], [0.0]], discount=0.5)
    with pytest.raises(ValueError, match=re.escape("probabilities must have shape [S, K, S], got (2, 1, 1)")):
        sp.TabularModel.from_dense([[[1.0]], [[1.0]]], [[0.0], [0.0]], discount=0.5)


@pytest.mark.parametrize(
    ("states", "actions", "message"),
    [
        ([0, 2], [0, 0], "state 2 is not one of the model's states 0..1"),
        ([0, 1], [0, 0], "state 1 is terminal and cannot be stepped from"),
        ([0.0], [0], "states must be int64 [n], got dtype float64 and shape (1,)"),
        ([0, 0], [0, 2], "actions must be in 0..1, got 2"),
        ([0], [0.0], "whole-numbered actions [n] must match, got shapes (1,) and (1,), actions of dtype float64"),
    ],
)
def test_the_oracle_refuses_unknown_states_and_actions(states: Any, actions: Any, message: str) -> None:
    model = sp.TabularModel(**PAIR, terminal=[False, True])
    with pytest.raises(ValueError, match=re.escape(message)):
        sp.Oracle(model, 0).sample(states, actions)
