"""Paired returns and tournaments: exact means, common random numbers past the end of episodes, and who wins."""

from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains.returns import paired_returns, tournament
from smoothplan.models.model import Oracle, States


def walk(states: States, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
    """A walk down a ladder that ends at 0; action 1 may take two rungs, and every step pays what is drawn."""
    draws = rng.random((len(states), 2))
    after = states - 1.0 - ((actions == 1) & (draws[:, 0] < 0.5))[:, None]
    return np.maximum(after, 0.0), draws[:, 1], after[:, 0] <= 0.0


MODEL = sp.VectorModel(walk, actions=2, discount=0.9, reward_range=(0, 1), initial_state=np.array([6.0]))


def always(action: int) -> Any:
    return lambda states: np.full(len(states), action)


def rungs(states: States) -> Floats:
    return np.asarray(states[:, 0])


@pytest.mark.parametrize("marks", [[1], [2, 4], [1, 3, 20]])
def test_returns_have_their_exact_means(marks: list[int]) -> None:
    """Within five standard errors: a false alarm has a probability of 6e-7 for each of the numbers."""
    found = paired_returns(Oracle(MODEL, 0), np.full((4_000, 1), 6.0), [always(0)], rungs, marks, np.array([0, 1]))
    assert found.valued.shape == found.weights.shape == found.tails.shape == (len(marks), 4_000, 2)
    for number, mark in enumerate(marks):
        exact = []
        for first in ([6.0 - 1.0], [6.0 - 1.0, 6.0 - 2.0]):  # the rungs after the first step
            kinds = []
            for left in first:
                steps = min(mark, 1 + int(left))
                tail = 0.9**mark * max(left - (mark - 1), 0.0)
                kinds.append(0.5 * sum(0.9**step for step in range(steps)) + tail)
            exact.append(np.mean(kinds))
        errors = found.valued[number].std(axis=0) / np.sqrt(4_000)
        assert (np.abs(found.valued[number].mean(axis=0) - exact) <= 5.0 * errors + 1e-9).all()
    assert (found.weights[-1][found.steps < marks[-1]] == 0.0).all()
    assert found.steps.max() <= marks[-1]


def test_rows_stay_paired_after_other_rows_have_ended() -> None:
    """Rows in which nothing has ended draw alike: rewards do not depend on actions, so neither do such returns."""
    starts = np.concatenate([np.full((50, 1), 3.0), np.full((50, 1), 40.0)])
    found = paired_returns(
        Oracle(MODEL, 1), starts, [always(0)], lambda states: np.zeros(len(states)), [20], np.arange(2)
    )
    apart = found.valued[0][:, 0] - found.valued[0][:, 1]
    assert (np.abs(apart[50:]) < 1e-12).all()
    assert (np.abs(apart[:50]) > 1e-3).any()


def test_the_better_policy_wins_and_a_favourite_is_left_only_for_a_better_one() -> None:
    """Rewards are paid for every step, so the slower way down is better, by much more than the noise."""

    def starts(rows: int) -> States:
        return np.full((rows, 1), 6.0)

    def outcome(policies: list[Any], calls: int = 4_000, **options: Any) -> Any:
        oracle = Oracle(MODEL, 2)
        found = tournament(oracle, starts, policies, lambda states: np.zeros(len(states)), 20, calls, **options)
        assert oracle.calls <= calls
        return found

    slow, fast = always(0), always(1)
    assert outcome([fast, slow]).winner == 1
    assert outcome([fast, slow]).lead > 3.0 * outcome([fast, slow]).error > 0.0
    assert outcome([fast, slow], favourite=0).winner == 1
    assert outcome([fast, fast, slow, fast, fast]).winner == 2
    same = outcome([slow, slow], favourite=1)
    assert (same.winner, same.lead) == (1, 0.0)
    assert outcome([slow, fast], calls=50) is None
    assert outcome([slow]) is None


def test_returns_are_cut_when_the_calls_are_used_up() -> None:
    """Every row makes three steps of the ten, because a fourth would exceed the calls; the value is that of the cut."""
    oracle = Oracle(MODEL, 2)
    found = paired_returns(oracle, np.full((5, 1), 50.0), [always(0)], rungs, [2, 10], np.arange(2), until=39)
    assert oracle.calls == 30
    assert (found.steps == 3).all()
    assert (found.weights[0] == 0.9**2).all()
    assert np.allclose(found.weights[1], 0.9**3)
    assert np.allclose(found.tails[1][:, 0], 0.9**3 * 47.0)


def test_a_tournament_of_short_episodes_needs_few_batches() -> None:
    """Its calls are used up, and no more, though episodes end long before the horizon."""
    oracle, batches = Oracle(MODEL, 3), []

    def starts(rows: int) -> States:
        batches.append(rows)
        return np.full((rows, 1), 2.0)

    assert tournament(oracle, starts, [always(0), always(1)], rungs, 100, 10_000) is not None
    assert 9_900 <= oracle.calls <= 10_000
    assert len(batches) <= 10
