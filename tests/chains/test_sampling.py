"""Inequalities behind samples around a reference, against exact numbers: biases, horizons, supports, clamping."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains import cruiser
from smoothplan.chains.batched import BatchedChains, chains_for, conditioned, largest_gap
from smoothplan.chains.cruiser import ReferenceCruiser, support
from smoothplan.chains.grid import GridReference
from smoothplan.chains.reference import CriticReference, Reference, TabularReference
from smoothplan.chains.table import TableChains
from smoothplan.confidence import ConfidenceSequence
from smoothplan.models.model import GenerativeModel, Oracle, States
from smoothplan.theory.backups import SoftmaxMixture, line_cost
from smoothplan.theory.curvature import Problem, reference_bias
from tests.chains.worlds import (
    CORNER,
    SLACK,
    TRANSPORT,
    begun,
    ending,
    garnet,
    line,
    ranged,
    root_of,
    signs,
    solved,
    walk,
)
from tests.naive import ChainMeans

# Biases


def exact_errors(
    model: sp.TabularModel, backup: SoftmaxMixture, noise: Floats, size: float
) -> tuple[Floats, Floats, Floats]:
    """V less what Q̂ = Q + size·noise says itself, and at orders 1 and 2, [S] each."""
    solution = solved(model, backup)
    table = solution.q + size * noise
    first, second = ChainMeans(model, backup, table).orders()
    claim = np.where(model.terminal, 0.0, backup.value(table, np.arange(model.states)))
    return solution.values - claim, solution.values - first, solution.values - second


@pytest.mark.parametrize("discount", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_bias_is_linear_quadratic_cubic(discount: float, seed: int) -> None:
    model = garnet(seed, states=60, actions=4, discount=discount)
    noise = ranged(np.random.default_rng(seed).uniform(size=(60, 4)))
    wide, narrow = (
        [np.abs(errors).max() for errors in exact_errors(model, sp.LogSumExp(0.3), noise, size)]
        for size in (0.02, 0.005)
    )
    rates = np.log(np.divide(wide, narrow)) / math.log(4.0)
    np.testing.assert_allclose(rates[:2], [1.0, 2.0], atol=0.05)
    # At order 2 a term of fourth order adds, for values of the policy err by r²/(8η(1−γ)) themselves.
    assert 2.9 < rates[2] < 3.5


def telescoped(discount: float, steps: Floats, losses: Floats, largest: float) -> tuple[Floats, Floats]:
    """The discounted variances of γ·U(Z) along a chain with transitions [S, S], and γU(b − U), [S] each."""
    inverse = np.linalg.inv(np.eye(len(losses)) - discount * steps)
    loss = inverse @ losses
    variances = discount**2 * (steps @ loss**2 - (steps @ loss) ** 2)
    return inverse @ variances, discount * loss * (largest - loss)


def test_discounted_variances_of_losses_telescope() -> None:
    rng = np.random.default_rng(1)
    for discount in (0.3, 0.9, 0.99):
        for _ in range(300):
            size = int(rng.integers(2, 6))
            alive = rng.choice([0.0, 0.1, 1.0], size=size)  # what is missing ends the chain
            steps = alive[:, None] * rng.dirichlet(np.full(size, 0.2), size=size)
            losses = (1.0 - discount) * rng.choice([0.0, 1.0, rng.random()], size=size)
            found, bound = telescoped(discount, steps, losses, 1.0)
            assert (found <= bound + 1e-12).all()
            assert found.max() <= discount / 4.0 + 1e-12
    # Nearly attained: even chances of losing always and never.
    even = np.array([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    found, bound = telescoped(0.99, even, np.array([0.0, 0.01, 0.0]), 1.0)
    assert found[0] > 0.98 * bound[0]
    assert found[0] > 0.98 * 0.99 / 4.0


def test_each_part_of_the_bias_of_order_2_is_needed() -> None:
    """Without a future the cubic term is all, and reached; on a long walk what pairs miss is ten times as much."""
    backup, size, discount = sp.LogSumExp(1.0), 0.02, 0.99
    cubic = reference_bias(2, size, 1.0, 0.0)[1]
    for sign in (1.0, -1.0):
        skew = math.log((1.0 + 1.0 / math.sqrt(3.0)) / (1.0 - 1.0 / math.sqrt(3.0)))
        table = np.array([[0.0, skew]])
        rewards = table + sign * np.array([[size, 0.0]])
        one = sp.TabularModel(
            np.ones((1, 2, 1)), np.zeros((1, 2, 1), dtype=int), rewards, discount=0.0, reward_range=(-2.0, 2.0)
        )
        error = sign * float(backup.value(rewards)[0] - ChainMeans(one, backup, table).orders()[1][0])
        assert 0.97 * cubic < error <= cubic * (1.0 + 1e-6)
    low, high = reference_bias(2, size, 1.0, discount)
    model, _ = walk(discount, size, 1)
    most = float(-ChainMeans(model, backup, np.zeros((31, 2))).orders()[1].min())
    assert 9.0 * cubic / (1.0 - discount) < most <= high
    assert most > 0.45 * high
    model, _ = walk(discount, size, -1)
    least = float(-ChainMeans(model, backup, np.zeros((31, 2))).orders()[1].max())
    assert low <= least < 0.45 * low


# Horizons


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99, 0.9999])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("error_range", [None, 0.1])
def test_the_default_horizon_costs_a_small_part_of_epsilon(
    discount: float, order: int, error_range: float | None
) -> None:
    """And is about the shortest that does."""
    model, backup = garnet(discount=discount), sp.LogSumExp(0.3)
    problem = Problem.of(model, backup)
    planner = ReferenceCruiser(backup, epsilon=0.2, order=order, error_range=error_range)
    cut = planner.truncation(problem)
    assert cut.optimal <= 0.05 * 0.2
    assert discount == 0.0 or cut.horizon >= math.log(0.01 * 2.0 / problem.width) / math.log(discount) - 1e-9
    if order == 2 and error_range is not None:
        tail = cut.below + cut.above
        wide, narrow = (reference_bias(2, error_range, 0.3, discount, end) for end in (tail, 0.0))
        assert max(narrow[0] - wide[0], wide[1] - narrow[1]) <= 2.0 * 0.05 * 0.2


# Clamping


def test_actions_may_be_worth_more_than_any_state() -> None:
    """Where the regulariser costs more than it gives: the largest reward for ever, and costs at every step."""
    backup = sp.OptimalTransport(cost=np.ones((2, 2)), tau=1.0, lam=0.5)
    model = sp.TabularModel(np.ones((1, 2, 1)), np.zeros((1, 2, 1), dtype=int), [[1.0, 1.0]], discount=0.8)
    problem, solution = Problem.of(model, backup), sp.exact.solve(model, backup, 1e-10)
    assert solution.values[0] == pytest.approx(problem.values[1])
    assert problem.values[1] + 0.5 < solution.q.max() <= problem.action_values[1] + SLACK


def test_references_are_clamped_as_far_as_is_safe_and_no_further() -> None:
    """References near Q, whose range is the gap: a smaller gap would widen the error of some."""
    rng, wider, model = np.random.default_rng(6), {1.0: 0, 0.9: 0}, garnet(states=3, actions=3)
    for _ in range(200):
        q = rng.uniform(0.0, 2.0, size=(1, 3))
        reference = q + 0.1 * rng.normal(size=q.shape)
        for share in wider:
            after, _ = conditioned(TabularReference(reference).q, np.array([0]), share * float(np.ptp(q)), model)
            wider[share] += int(np.ptp(after - q) > np.ptp(reference - q) + 1e-12)
    assert wider[1.0] == 0
    assert wider[0.9] > 0


def test_a_reference_of_known_error_is_not_clamped_where_actions_may_be_that_far_apart() -> None:
    """An action that is worth as much less as any can be: with an error range, chains follow the reference as it is."""
    model = sp.TabularModel(np.ones((1, 2, 1)), np.zeros((1, 2, 1), dtype=int), [[0.0, 1.0]], discount=0.0)
    backup, exact, here = sp.LogSumExp(0.01), TabularReference([[0.0, 1.0]]), np.array([0])
    problem = Problem.of(model, backup)
    assert largest_gap(backup, problem, None, made=False) < 0.5 < problem.action_gap == 1.0
    gap = largest_gap(backup, problem, 0.0, made=False)
    table, _ = chains_for(root_of(model), backup, exact, problem, gap)
    batched, _ = chains_for(root_of(model, engine="batched"), backup, exact, problem, gap)
    assert isinstance(table, TableChains)
    assert isinstance(batched, BatchedChains)
    assert table.table.tolist() == batched._references(here).tolist() == [[-1.0, 0.0]]


@pytest.mark.parametrize("backup", [sp.LogSumExp(0.05), replace(TRANSPORT, lam=0.05)])
def test_unlikely_actions_are_told_apart_as_far_as_it_matters(backup: SoftmaxMixture) -> None:
    table, problem = np.array([[0.0, -0.5, -15.0]]), Problem.of(garnet(discount=0.95), backup)
    gap = largest_gap(backup, problem, None, made=False)
    after, _ = conditioned(TabularReference(table).q, np.arange(1), gap, garnet(states=3, actions=3))
    np.testing.assert_allclose(backup.policy(after), backup.policy(table), atol=1e-12)
    assert after.min() == -gap > -15.0


@pytest.mark.parametrize("made", [False, True])
def test_supports_around_a_made_reference_reach_as_far_as_actions_differ(made: bool) -> None:
    model, backup = garnet(discount=0.2), sp.LogSumExp(1.0)
    problem = Problem.of(model, backup)
    far = TabularReference(np.tile([0.0, -15.0, -20.0], (model.states, 1)))
    gap = largest_gap(backup, problem, None, made)
    chains, (_, highest) = chains_for(root_of(model, engine="batched"), backup, far, problem, gap)
    assert isinstance(chains, BatchedChains)
    lowest = float(chains._references(np.arange(1)).min())
    assert lowest == (-problem.action_gap if made else -20.0)
    assert highest >= -lowest


def test_what_is_common_to_all_actions_does_not_matter() -> None:
    """Not even where rounding would swallow the rest."""
    model, backup = garnet(), sp.LogSumExp(0.3)
    table = np.random.default_rng(0).integers(8, size=(12, 3)) / 8.0
    values = [
        sp.plan(ReferenceCruiser(backup, TabularReference(table + shift), epsilon=0.1), model, 0, engine=engine).value
        for shift in (0.0, 2.0**49)
        for engine in ("auto", "batched")
    ]
    assert values[0] == values[2]
    assert values[1] == values[3]


def test_an_error_range_of_a_grid_survives_conditioning() -> None:
    """A grid that is exact where it is asked, though actions at its nodes are far apart: raising those would spoil it.

    With a probability of 1 − 1e-6 an interval that rests on the error range contains the value. If the nodes were
    raised, all runs would miss it by far.
    """

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
        return states.copy(), actions.astype(np.float64), np.zeros(len(actions), dtype=np.bool_)

    backup, far = sp.LogSumExp(0.5), 1e4
    model = sp.JitModel(step, actions=2, discount=0.9, reward_range=(0, 1), initial_state=[0.5], terminates=False)
    reference = GridReference.build(model, backup, low=np.array([0.0]), high=np.array([1.0]), cells=1)
    reference.grid = reference.grid._replace(table=np.array([[0.0, 2.0 + far], [0.0, -far]]))
    value = float(backup.value([0.0, 1.0])) / (1.0 - 0.9)
    assert np.ptp(reference.q(np.array([[0.5]]))) == pytest.approx(1.0)
    planner = sp.ReferenceCruiser(backup, reference, order=1, epsilon=0.5, delta=1e-6, error_range=1e-9)
    result = sp.plan(planner, model, max_calls=100_000)
    assert result.interval[0] <= value <= result.interval[1]
    assert result.interval[1] - result.interval[0] < 5.0  # of 10 that are possible


def test_grids_that_compiled_chains_do_not_know_are_batched() -> None:
    model = sp.models.cart_pole()
    backup = sp.OptimalTransport(
        cost=line_cost(2), tau=1.0, lam=0.1, reference=lambda states: np.full((len(states), 2), 0.5)
    )
    reference = GridReference.build(model, backup, low=-CORNER, high=CORNER, cells=2)
    planner = ReferenceCruiser(backup, reference, epsilon=1.0)
    assert not begun(planner, model, model.initial_state).sampling.engine.compiled
    with pytest.raises(ValueError, match="engine 'compiled' needs"):
        sp.plan(planner, model, engine="compiled")


# Supports


def test_samples_lie_in_the_supports() -> None:
    """Chains, returns and corrections one by one, around references of all sizes. No false alarms."""
    cart = sp.models.cart_pole(discount=0.8)
    box = GridReference.build(cart, sp.LogSumExp(0.3), low=-CORNER, high=CORNER, cells=2)
    transport = sp.OptimalTransport(cost=line_cost(2), tau=2.0, lam=0.2)
    worlds: list[tuple[GenerativeModel, Any]] = [
        (ending(actions=2), 0),
        (garnet(actions=2, discount=0.9), 0),
        (line(), np.zeros(1)),
        (line(terminates=False), np.zeros(1)),
        (cart, cart.initial_state),
    ]
    seen = set()
    for (model, state), size, horizon in product(worlds, (0.0, 1.0, 1e6), (1, 9)):
        reference: Reference = CriticReference(lambda states, size=size: size * signs(states))  # type: ignore[misc]
        if model is cart:
            box.grid = box.grid._replace(table=size * signs(np.arange(box.nodes)))
            reference = box
        for backup in (sp.LogSumExp(0.3), transport):
            problem = Problem.of(model, backup)
            planner = ReferenceCruiser(backup, reference, epsilon=0.1, horizon=horizon, pairs=2)
            samples = begun(planner, model, state).sampling
            chains = samples.engine
            seen.add((type(chains), chains.compiled))
            low, high = support(problem, samples._advantages, horizon)
            if isinstance(chains, BatchedChains) and not chains.compiled:
                # Also those of actions that are too unlikely to be drawn.
                points = np.linspace(-0.5, 1.0, 50)[:, None]
                q = chains._references(points)
                ends = backup.value(q)[:, None] - q
                assert samples._advantages[0] <= ends.min() <= ends.max() <= samples._advantages[1] + 1e-9
            assert samples.correction is not None
            least, most = samples.correction.sequence.low, samples.correction.sequence.high
            slack = 1e-9 * max(1.0, high - low)
            for chunk in range(6):
                oracle = Oracle(model, 7, chunk)
                for sample in (
                    chains.values(oracle, state, 1, horizon).total,
                    chains.returns(oracle, state, chunk % 2, 1, horizon).total,
                ):
                    assert low - slack <= sample <= high + slack
                corrected = chains.corrections(oracle, state, 1, 2, horizon).total
                assert least - slack <= corrected <= most + slack
    assert seen == {(TableChains, True), (BatchedChains, False), (BatchedChains, True)}


def test_the_parts_of_delta_add_up_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all confidence sequences of a run; where the pilot chooses another number of pairs, there is one more."""
    parts: list[float] = []

    def recorded(low: float, high: float, delta: float, target: float) -> ConfidenceSequence:
        parts.append(delta)
        return ConfidenceSequence(low, high, delta, target)

    monkeypatch.setattr(cruiser, "ConfidenceSequence", recorded)
    model = sp.models.garnet(10, 3, branching=3, discount=0.8, seed=0, reward_kind="bernoulli")
    table = TabularReference(np.random.default_rng(0).normal(size=(10, 3)))
    for options, sequences in (({"order": 1}, 4), ({"pairs": 2}, 5), ({}, 6)):
        parts.clear()
        planner = sp.ReferenceCruiser(sp.LogSumExp(0.3), table, epsilon=0.1, delta=0.2, **options)  # type: ignore[arg-type]
        sp.plan(planner, model, 0, max_calls=1_000_000)
        assert len(parts) == sequences
        assert sum(parts) == pytest.approx(0.2)
