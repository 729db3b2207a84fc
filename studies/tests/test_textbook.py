"""The problems of the textbooks: simulators and exact answers come from the same law."""

from typing import Any

import numpy as np
import pytest
import scipy.stats

import smoothplan as sp
from studies.textbook import CHOSEN_ON, REPORTED_ON, poisson

FALSE_ALARM = 1e-6

NAMES = ["machine", "seats"]  # one that goes on for ever, one that ends


@pytest.mark.parametrize("name", NAMES)
def test_the_simulator_has_the_law(name: str) -> None:
    """A χ² test of next states for each of some pairs; together they raise a false alarm with probability 1e-6."""
    problem, samples, pairs = REPORTED_ON[name](), 10_000, 8
    rng = np.random.default_rng(0)
    for place in rng.choice(len(problem.states) * problem.actions, size=pairs, replace=False):
        state, action = problem.states[place // problem.actions], int(place % problem.actions)
        drawn = sp.Oracle(problem.model(np.int64), 0).sample(np.tile(state, (samples, 1)), np.full(samples, action))
        counts = np.bincount(problem.number(drawn.next_states), minlength=len(problem.states))
        chances = np.bincount(problem.law.following[:, place], problem.noise, minlength=len(problem.states))
        assert chances.sum() == pytest.approx(1.0)
        assert not counts[chances == 0.0].any()
        if np.count_nonzero(chances) > 1:  # all are 0.08 or more: χ² needs a few of each
            found, wanted = counts[chances > 0.0], samples * chances[chances > 0.0]
            assert scipy.stats.chisquare(found, wanted).pvalue > FALSE_ALARM / pairs


@pytest.mark.parametrize("name", NAMES)
def test_ends_and_rewards_are_those_of_the_law(name: str) -> None:
    """Means of rewards and of discounted goings-on, within 5.5 standard errors: false alarms are below 1e-6."""
    problem, samples = REPORTED_ON[name](), 200
    pairs = len(problem.states) * problem.actions
    states = np.repeat(problem.states, problem.actions, axis=0)
    actions = np.tile(np.arange(problem.actions), len(problem.states))
    model, rng = problem.model(np.int64), np.random.default_rng(0)
    rewards, going = np.zeros((samples, pairs)), np.zeros((samples, pairs))
    for sample in range(samples):
        _, rewards[sample], ends = model.step(states, actions, rng)
        going[sample] = ~np.asarray(ends)
    assert problem.rewards[0] <= rewards.min() <= rewards.max() <= problem.rewards[1]
    for drawn, wanted in ((rewards, problem.law.mean), (problem.discount * going, problem.law.weights.sum(axis=0))):
        means = drawn.mean(axis=1)  # over all pairs, which are drawn independently
        error = means.std(ddof=1) / np.sqrt(samples)
        assert abs(means.mean() - wanted.mean()) <= 5.5 * error + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_values_satisfy_the_bellman_equation(name: str) -> None:
    problem = REPORTED_ON[name]()
    law, rows = problem.law, np.arange(len(problem.states))
    policies: list[Any] = [None, problem.rule(problem.states), np.zeros(len(rows), np.int64)]
    worth = []
    for policy in policies:
        q = problem.evaluated(policy, 1e-9)
        values = q.max(axis=1) if policy is None else q[rows, policy]
        backup = (law.mean + (law.weights * values[law.following]).sum(axis=0)).reshape(q.shape)
        np.testing.assert_allclose(q, backup, atol=1e-8 * np.abs(q).max())
        worth.append(values)
    for values in worth[1:]:
        assert (worth[0] >= values - 1e-7).all()
        assert (worth[0] > values + 1e-3).any()
    np.testing.assert_allclose(problem.q, problem.evaluated(None, 1e-9), atol=1e-6 * np.abs(problem.q).max())


@pytest.mark.parametrize("name", NAMES)
def test_whole_numbers_and_floats_move_alike(name: str) -> None:
    problem = REPORTED_ON[name]()
    actions = np.random.default_rng(1).integers(problem.actions, size=len(problem.states))
    moved = []
    for dtype in (np.int64, np.float64):
        model = problem.model(dtype)
        assert np.asarray(model.initial_state).dtype == dtype
        moved.append(model.step(problem.states.astype(dtype), actions, np.random.default_rng(2)))
        assert moved[-1][0].dtype == dtype
    for whole, real in zip(*moved, strict=True):
        np.testing.assert_array_equal(whole, real)


@pytest.mark.parametrize("name", NAMES)
def test_states_leave_something_to_decide(name: str) -> None:
    problem = REPORTED_ON[name]()
    found = problem.met(4)
    np.testing.assert_array_equal(found[:2], problem.met(2))  # more of them begin with the same
    assert found.shape == (4, problem.states.shape[1])
    for state in found:
        losses = [problem.regret(state, action) for action in range(problem.actions)]
        assert min(losses) == 0.0
        assert max(losses) == pytest.approx(1.0)


def test_all_problems_are_sound() -> None:
    """Probabilities sum to 1, states have their numbers, and the start and the rule in use are within bounds."""
    for problems in (CHOSEN_ON, REPORTED_ON):
        for name, make in problems.items():
            problem = make()
            assert problem.name == name
            assert problem.noise.sum() == pytest.approx(1.0)
            assert (problem.noise > 0.0).all()
            np.testing.assert_array_equal(problem.number(problem.states), np.arange(len(problem.states)))
            assert (np.array(problem.start) <= problem.high).all()
            chosen = problem.rule(problem.states)
            assert chosen.shape == (len(problem.states),)
            assert 0 <= chosen.min() <= chosen.max() < problem.actions


def test_a_truncated_poisson_law() -> None:
    found = poisson(2.0, 3)
    assert found[:3] == pytest.approx(scipy.stats.poisson.pmf([0, 1, 2], 2.0))
    assert found[3] == pytest.approx(scipy.stats.poisson.sf(2, 2.0))
