"""Races: estimates of the policy that is followed, paired returns, and choices that noise does not spoil."""

import re
from dataclasses import replace
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from scipy import stats

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.decide import race
from smoothplan.models.model import States
from studies.textbook import REPORTED_ON, Textbook
from tests.common import dense, vectorised
from tests.decide.simulators import TABLE, critic, plane


def bounded_value(model: sp.TabularModel, reference: Floats, steps: int) -> Floats:
    """E[X_a] of returns at state 0, [K], by recursion: action a, the reference's best actions, then its value."""
    probabilities, rewards, ends = dense(model)
    rows, chosen = np.arange(model.states), reference.argmax(axis=1)
    low, high = sp.curvature.value_interval(model, sp.HardMax())
    values = np.clip(reference.max(axis=1), low, high)
    for _ in range(steps):
        q = rewards.sum(axis=2) + model.discount * (probabilities - ends) @ values
        values = q[rows, chosen]
    return np.asarray(q[0])


@pytest.mark.parametrize("seed", range(3))
def test_estimates_are_those_of_the_policy_that_is_followed(seed: int) -> None:
    """18 estimates within five standard errors, each with probability 1 − 6e-7."""
    truth = sp.exact.solve(TABLE, sp.HardMax()).q
    wrong = truth + np.random.default_rng(seed).normal(scale=0.8, size=truth.shape)
    for model in (TABLE, vectorised(TABLE)):
        found = sp.decide(model, 0, calls=30_000, seed=seed, reference=sp.TabularReference(wrong))
        horizon = re.search(r"returns of (\d+) steps", found.method)
        assert horizon is not None
        expected = bounded_value(TABLE, wrong, int(horizon[1]))
        assert (np.abs(found.q - expected) <= 5.0 * found.q_errors).all()
        assert (found.returns >= 30).all()
        differences = expected - expected[found.action]
        assert (np.abs(found.differences - differences) <= 5.0 * found.difference_errors + 1e-9).all()
        assert (np.abs(found.q - truth[0]) > 5.0 * found.q_errors).any()  # a negative control: the policy is poor


def test_common_random_numbers_make_differences_precise() -> None:
    def noisy(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        shared, own = rng.random(len(states)), rng.random(len(states))
        return states, 0.8 * shared + 0.1 * own * actions

    def apart(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        rng.random(int(actions[0]))  # so that actions draw different numbers
        return noisy(states, actions, rng)

    rivals: dict[Any, Floats] = {}
    for step in (noisy, apart):
        model = replace(plane(step), reward_range=(0.0, 1.0))
        found = sp.decide(model, calls=3_000, reference=critic(0.0, 0.1, 0.0))
        assert found.action == 2
        rivals[step] = found.difference_errors[:2]
    assert (rivals[noisy] < 0.5 * rivals[apart]).all()


def lottery(rng: np.random.Generator) -> sp.VectorModel:
    """Two stages: an action buys a ticket, a second one cashes it."""
    actions, kinds = int(rng.integers(2, 6)), 4
    means, spread = rng.random(actions), rng.random(actions) * rng.choice([0.01, 0.3])
    prizes, weights = rng.random((kinds, actions)), rng.dirichlet(np.ones(kinds), size=actions)

    def step(states: States, chosen: Ints, draws: np.random.Generator) -> tuple[Any, ...]:
        first, luck = states[:, 0] == 0.0, draws.random((3, len(states)))
        kind = (luck[0] > weights[chosen].cumsum(axis=1).T[:-1]).sum(axis=0)
        prize = prizes[states[:, 1].astype(int), chosen] * (luck[1] < 0.5)
        rewards = np.where(first, means[chosen] + spread[chosen] * (luck[2] - 0.5), prize)
        return np.stack([np.ones(len(states)), np.where(first, kind, states[:, 1])], axis=1), rewards, ~first

    return sp.VectorModel(
        step, actions=actions, discount=0.9, reward_range=(-1, 2), terminates=True, initial_state=[0.0, 0.0]
    )


def nonsense(weights: Floats, states: States) -> Floats:
    return np.cos(9.0 * states @ weights)


def test_no_dominated_action_is_chosen() -> None:
    """By three standard errors of the decision's own numbers, for any reference."""
    rng = np.random.default_rng(1)
    for seed in range(80):
        model = lottery(rng)
        reference = sp.CriticReference(partial(nonsense, rng.random((2, model.actions))))
        found = sp.decide(model, calls=int(rng.choice([60, 400, 3_000])), seed=seed, reference=reference)
        assert (found.differences <= 3.0 * found.difference_errors + 1e-9).all(), seed


def test_chance_does_not_spoil_a_good_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference of 50,000 calls on a lake; by exact action values, decisions around it lose next to nothing."""
    model = sp.models.frozen_lake(discount=0.99)
    learnt = sp.SharedReference(model, sp.HardMax())
    learnt.improve(50_000)
    reference = sp.TabularReference(learnt.q(np.arange(model.states)))  # without the table's own standard errors
    q = sp.exact.solve(model, sp.HardMax(), 1e-9).q
    own = reference.table.argmax(axis=1)

    def lost() -> float:
        return sum(
            float(
                q[state, own[state]]
                - q[state, sp.decide(model, state, reference=reference, calls=4_000, seed=seed).action]
            )
            for seed in range(8)
            for state in np.flatnonzero(~model.terminal).tolist()
        )

    assert lost() <= 0.005
    monkeypatch.setattr(race, "quantile", lambda level, freedom: 0.0)  # any lead counts
    assert lost() > 0.03


def test_a_certain_difference_has_a_small_error_and_no_warning() -> None:
    """Action 1 does what action 0 does, and wastes 2."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        wear = np.where(actions == 2, 0.0, states[:, 0])
        earned = 10.0 - wear - np.array([0.0, 2.0, 12.0])[actions]
        return (wear + rng.gamma(2.0, 0.2, size=len(wear)))[:, None] % 10.0, earned

    model = sp.VectorModel(step, actions=3, discount=0.9, reward_range=(-22, 10), terminates=False, initial_state=[1.0])
    for calls in (2_000, 20_000):
        found = sp.decide(model, calls=calls)
        assert found.action == 0
        assert abs(found.differences[1] + 2.0) <= 3.0 * found.difference_errors[1] < 3.0
        assert found.warnings == ()


def levee(declared: tuple[float, float] = (-310.0, 0.0)) -> sp.VectorModel:
    """A levee wears; low ones may breach, which is rare and costs 300. Repair it a little, build it anew, or wait."""
    breach = 0.0005 * 3.0 ** (6 - np.arange(7))

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        height, (luck, wear, flood) = states[:, 0], rng.random((3, len(states)))
        built = np.where(actions == 2, 6, np.where((actions == 1) & (luck < 0.7), np.minimum(height + 1, 6), height))
        lost = flood < breach[built]
        after = np.where(lost, 3, np.maximum(built - (wear < 0.3), 0))
        return after[:, None], -np.array([0.0, 1.0, 4.0])[actions] - 300.0 * lost

    options: dict[str, Any] = {"reward_range": declared, "terminates": False, "initial_state": [2]}
    return sp.VectorModel(step, actions=3, discount=0.98, **options)


def test_rare_losses_are_told_by_the_table_and_not_overruled_by_few_returns() -> None:
    """At height 2, building anew is better than repairing by 6.8, and than waiting by 11.4 (policy iteration)."""
    for seed in range(8):
        found = sp.decide(levee(), calls=20_000, seed=seed)
        assert isinstance(found.reference, sp.SharedReference)
        assert (found.action == 2) or found.warnings
        assert 0.3 < found.difference_errors[1] < 6.0, seed


def test_few_returns_that_contradict_the_table_have_missed_something() -> None:
    """Of 20 returns none is lost at sea, which happens to three in twenty: 35.8 ± 0.1, and 29.4 in truth."""
    lost, catch = np.array([0.0, 0.05, 0.15, 0.4]), np.array([1.0, 2.0, 4.0, 9.0])

    def step(states: States, actions: Ints, rng: np.random.Generator) -> Any:
        zone = np.clip(states[:, 0] + actions - 1, 0, 3)
        calm = rng.random(len(states)) < 0.9
        ends = np.zeros(len(states), dtype=bool)
        after = np.where(calm, zone, states[:, 0])
        return after[:, None], catch[zone] * np.where(calm, 1.0, 0.5), ends, 0.97 * (1.0 - lost[zone])

    sea = sp.VectorModel(step, actions=["in", "stay", "out"], discount=0.97, reward_range=(0, 9), initial_state=[1])
    found = sp.decide(sea, calls=100_000)
    assert (np.abs(found.q - [31.667, 31.081, 29.430]) <= 4.0 * found.q_errors).all()
    assert found.names[found.action] == "in"


def leaves(reference: Any, problem: Textbook, calls: int, runs: int) -> int:
    """How often another action is chosen than the best one of a reference, at the start of a problem."""
    model, start = problem.model(), np.array(problem.start)
    best = int(reference.q(start[None].astype(float))[0].argmax())
    found = [sp.decide(model, calls=calls, seed=seed, reference=reference) for seed in range(runs)]
    return sum(decision.action != best for decision in found)


@pytest.mark.parametrize("calls", [100, 4_000])
@pytest.mark.parametrize("name", ["(s, S)", "pricing"])
def test_the_best_policy_is_not_left_for_noise(name: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Q* as the reference at most δ = 0.1 of the decisions leave it: false alarms have probability 1e-6."""
    problem, runs = REPORTED_ON[name](), 60
    truth = sp.CriticReference(lambda states: problem.q[problem.number(states)])
    assert leaves(truth, problem, calls, runs) <= stats.binom.isf(1e-6, runs, 0.1)
    if calls == 4_000 and name == "pricing":
        monkeypatch.setattr(race, "quantile", lambda level, freedom: 0.0)  # any lead counts
        assert leaves(truth, problem, calls, runs) > stats.binom.isf(1e-6, runs, 0.1)


def test_returns_that_are_all_alike_are_not_certain() -> None:
    """A loss of 1 in one of 1,000 steps is rarely seen in 100 returns: the error allows for it."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
        lost = (rng.random(len(states)) < 1e-3) & (actions == 1)
        return states, np.where(lost, 0.0, 1.0), np.ones(len(states), dtype=bool)

    model = sp.VectorModel(step, actions=2, discount=0.9, reward_range=(0, 1), initial_state=np.zeros(2))
    for seed in range(5):
        found = sp.decide(model, calls=200, seed=seed, reference=sp.CriticReference(lambda s: np.zeros((len(s), 2))))
        assert (found.q_errors > 0.001).all()
        assert found.difference_errors.max() > 0.001


def test_samples_are_the_paired_returns() -> None:
    found = sp.decide(TABLE, 0, calls=4_000, reference=sp.TabularReference(np.zeros((TABLE.states, TABLE.actions))))
    assert found.samples is not None
    assert found.action is not None
    assert found.samples.shape[1] == TABLE.actions
    assert ((~np.isnan(found.samples)).sum(axis=0) == found.returns).all()
    for action in range(TABLE.actions):
        apart = found.samples[:, action] - found.samples[:, found.action]
        assert np.nanmean(apart) == pytest.approx(found.differences[action])
    assert "samples" not in found.to_dict()


def test_equal_actions_cannot_be_told_apart() -> None:
    """Actions 0 and 1 do the same; the third is worse."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        draws = rng.random((2, len(states)))
        return states, np.where(actions == 2, 0.1, draws[np.minimum(actions, 1), np.arange(len(states))])

    found = sp.decide(plane(step), calls=5_000, reference=critic(0.0, 0.0, 0.0))
    (warning,) = [text for text in found.warnings if "told apart" in text]
    assert re.search(r"actions [01] and [01] cannot be told apart.* by .* ± .* \(estimate\)", warning)
    assert found.action in (0, 1)
    # One-sided at level δ for both rivals together: Student's quantile is a little above the normal one.
    rival = 1 - found.action
    margin = (found.regret - found.differences[rival]) / found.difference_errors[rival]
    assert margin == pytest.approx(NormalDist().inv_cdf(1.0 - found.delta / 2.0), rel=0.05)
