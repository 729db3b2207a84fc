"""Inequalities behind chains around a reference and behind multilevel samples, against exact numbers."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import smoothplan as sp
from smoothplan import streams
from smoothplan.arguments import Floats, Ints
from smoothplan.backups import Backup, SoftmaxMixture, line_cost
from smoothplan.confidence import ConfidenceSequence
from smoothplan.curvature import gap_of_values, reference_bias
from smoothplan.defaults import smooth_backup
from smoothplan.models.base import States
from smoothplan.planners import sampling
from smoothplan.planners.engines import conditioned
from smoothplan.planners.multilevel import MultilevelRun
from smoothplan.planners.proving import Proof, Prover
from smoothplan.planners.sampling import Cut
from smoothplan.references import GridReference, TabularReference
from smoothplan.running.run import Root
from smoothplan.running.work import Chunk
from smoothplan.schedules.level import Problem
from tests import common
from tests.naive import ChainMeans

SLACK = 1e-8

TRANSPORT = sp.OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.4)


def worlds() -> Iterator[sp.TabularModel]:
    """Without an end, with ends and rewards of either sign, and the same with the values that they have declared."""
    for seed in range(3):
        garnet = sp.models.garnet(10, 3, branching=3, discount=0.8, seed=seed, reward_kind="bernoulli")
        for model in (garnet, common.ending(3, 0.7, seed, (-3.0, 1.0))):
            yield model
            yield common.declaring(model, value_range=common.ordinary_values(model))


# Policies


def test_no_policy_is_worth_more_or_less_than_any_can_be() -> None:
    """Random policies and those that always take one action, regulariser included."""
    rng = np.random.default_rng(0)
    for model in (*worlds(), common.ending(3, 0.7, 0, (1.0, 2.0))):  # to go on may be worth more than to end
        shape = model.states, model.actions
        policies = [rng.dirichlet(np.ones(3), size=shape[0]) for _ in range(3)]
        policies += [np.broadcast_to(row, shape) for row in np.eye(3)]
        backups: list[Backup] = [sp.LogSumExp(0.4), sp.Tsallis(0.5), TRANSPORT]
        for backup in backups:
            low, high = Problem.of(model, backup).policy_values
            for policy in policies:
                values = sp.exact.evaluate(model, policy, backup, 1e-9).values[~model.terminal]
                assert low - SLACK <= values.min() <= values.max() <= high + SLACK


def test_the_worst_policy_takes_the_dearest_action_for_the_least_reward() -> None:
    model = sp.TabularModel(
        np.ones((1, 3, 1)), np.zeros((1, 3, 1), dtype=int), [[-1.0] * 3], discount=0.8, reward_range=(-1.0, 1.0)
    )
    low = Problem.of(model, TRANSPORT).policy_values[0]
    values = [sp.exact.evaluate(model, row[None], TRANSPORT, 1e-9).values[0] for row in np.eye(3)]
    assert min(values) == pytest.approx(low, abs=1e-6)


def test_actions_may_be_worth_more_than_any_state() -> None:
    """Where the regulariser costs more than it gives: the largest reward for ever, and costs at every step."""
    backup = sp.OptimalTransport(cost=np.ones((2, 2)), tau=1.0, lam=0.5)
    model = sp.TabularModel(np.ones((1, 2, 1)), np.zeros((1, 2, 1), dtype=int), [[1.0, 1.0]], discount=0.8)
    problem, solution = Problem.of(model, backup), sp.exact.solve(model, backup, 1e-10)
    assert solution.values[0] == pytest.approx(problem.values[1])
    assert problem.values[1] + 0.5 < solution.q.max() <= problem.action_values[1] + SLACK


def test_references_are_clamped_as_far_as_is_safe_and_no_further() -> None:
    """References near Q, whose range is the gap: a smaller gap would widen the error of some."""
    rng, wider = np.random.default_rng(6), {1.0: 0, 0.9: 0}
    for _ in range(200):
        q = rng.uniform(0.0, 2.0, size=(1, 3))
        reference = q + 0.1 * rng.normal(size=q.shape)
        for share in wider:
            after = conditioned(TabularReference(reference), share * float(np.ptp(q)), 3)(np.array([0])).shifted
            wider[share] += int(np.ptp(after - q) > np.ptp(reference - q) + 1e-12)
    assert wider[1.0] == 0
    assert wider[0.9] > 0


# Losses


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


def cut_errors(
    model: sp.TabularModel, backup: SoftmaxMixture, size: float, horizon: int, seed: int
) -> tuple[Floats, Floats, Floats]:
    """What chains of orders 1 and 2 that are cut off miss of V, and returns of Q, around Q̂ with range(Q̂ − Q) = size."""
    solution = sp.exact.solve(model, backup, 1e-10)
    noise = np.random.default_rng(seed).normal(size=solution.q.shape)
    noise *= size / np.ptp(noise, axis=1, keepdims=True)
    exact = ChainMeans(model, backup, solution.q + noise)
    first, returns, corrections = exact.at_horizon(horizon, Problem.of(model, backup).middle)
    missed = solution.values - first, solution.q - returns, solution.values - first - corrections
    values, actions, corrected = (errors[~model.terminal] for errors in missed)
    return values, actions, corrected


def test_chains_that_are_cut_off_keep_to_the_bounds_of_both_orders() -> None:
    """Exact means. Without what is booked for the cut the bounds of order 2 break, and those of order 1."""
    broken = {"cut": 0, "tail": 0}
    for model in worlds():
        backups: tuple[SoftmaxMixture, ...] = (sp.LogSumExp(0.3), TRANSPORT)
        for backup in backups:
            problem = Problem.of(model, backup)
            for horizon in (1, 2, 6):
                cut = Cut.at(problem, horizon)
                for size in (0.001, 0.1, 1.0):
                    first, actions, second = cut_errors(model, backup, size, horizon, seed=horizon)
                    loss = reference_bias(1, size, backup.temperature, model.discount)[1]
                    assert -cut.optimal - SLACK <= first.min() <= first.max() <= cut.optimal + loss + SLACK
                    above = model.discount * loss + cut.optimal
                    assert -cut.optimal - SLACK <= actions.min() <= actions.max() <= above + SLACK
                    tail = cut.below + cut.above
                    low, high = reference_bias(2, size, backup.temperature, model.discount, tail)
                    assert low - cut.optimal - SLACK <= second.min()
                    assert second.max() <= high + cut.optimal + SLACK
                    broken["cut"] += first.max() > loss + SLACK
                    low = reference_bias(2, size, backup.temperature, model.discount)[0]
                    broken["tail"] += second.min() < low - cut.optimal - SLACK
    assert min(broken.values()) > 0


def walk(discount: float, size: float, better: int) -> tuple[sp.TabularModel, Floats]:
    """A walk on a line under `LogSumExp(1)` with V = 0 everywhere, and its Q.

    The better of two actions leads up (1) or down (−1). Action values differ by `size`, but at the lower end, and both
    ends are for ever. The reference 0 takes either with even chances, so it loses most where it is far from that end.
    """
    states = np.arange(31)
    gaps = np.where(states == 0, 0.0, size)
    q = gaps[:, None] / 2.0 * np.array([1.0, -1.0]) - np.log(2.0 * np.cosh(gaps / 2.0))[:, None]
    inner = (states > 0) & (states < 30)
    successors = states[:, None] + inner[:, None] * better * np.array([1, -1])
    ends = float(q.min()), float(q.max())
    return sp.TabularModel(np.ones((31, 2, 1)), successors[..., None], q, discount=discount, reward_range=ends), q


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


# Proofs at the root


def proved(
    model: sp.TabularModel, backup: SoftmaxMixture, table: Floats, state: int, order: int, horizon: int, size: float
) -> Proof:
    """What would be proved if every mean were known exactly: all that is left are biases."""
    planner = sp.ReferenceCruiser(
        backup, TabularReference(table), order=order, epsilon=0.1, horizon=horizon, error_range=size
    )
    problem = Problem.of(model, backup)
    first, returns, corrections = ChainMeans(model, backup, table).at_horizon(horizon, problem.middle)

    def known(mean: float) -> Any:
        return SimpleNamespace(sequence=SimpleNamespace(interval=(mean - 1e-9, mean + 1e-9)))

    samples: Any = SimpleNamespace(
        value=known(first[state]),
        actions=[known(mean) for mean in returns[state]],
        correction=known(corrections[state]) if order == 2 else None,
    )
    return Prover(planner, Root(model, state, 0, None, None, "auto", 0.0), problem, Cut.of(planner, problem)).proof(
        samples
    )


def unproved(horizon: int) -> dict[str, int]:
    """How often V or Q is outside of what exact means around a reference of known error prove."""
    missed = {"low": 0, "high": 0, "q low": 0, "q high": 0, "not certified": 0}
    backup, size = sp.LogSumExp(1.0), 0.05
    for better in (1, -1):
        model, q = walk(0.9, size, better)
        for state in range(0, 31, 5):
            for order in (1, 2):
                (low, high), actions, certified = proved(model, backup, np.zeros_like(q), state, order, horizon, size)
                missed["low"] += low > SLACK
                missed["high"] += high < -SLACK
                missed["q low"] += bool((actions[:, 0] > q[state] + SLACK).any())
                missed["q high"] += bool((actions[:, 1] < q[state] - SLACK).any())
                missed["not certified"] += not certified
    return missed


def test_what_exact_means_prove_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a horizon that matters and without. If no bias, or half of it, were booked, values would be missed."""
    for horizon in (1, 3, 300):
        assert sum(unproved(horizon).values()) == 0
    bias = Prover._bias
    monkeypatch.setattr(Prover, "_bias", lambda prover, order: (0.0, 0.0) if order == 2 else bias(prover, order))
    found = unproved(300)
    assert found["low"] > 0
    assert found["high"] > 0
    monkeypatch.setattr(Prover, "_bias", lambda prover, order: tuple(end / 2.0 for end in bias(prover, order)))
    found = unproved(300)
    assert found["high"] > 0
    assert found["q high"] > 0


def cut_proofs() -> Iterator[tuple[Proof, float, Floats]]:
    """What exact means of chains that are cut off prove around Q̂ = Q, and the exact value and action values.

    Where the least or the largest reward is for ever, a chain is wrong by all that is booked for its cut. Where the
    best first reward leads to the worst for ever, two actions are worth the same, and pairs that are cut off see only
    the first reward.
    """
    for reward in (0.0, 1.0):
        model = sp.TabularModel(
            np.ones((1, 2, 1)), np.zeros((1, 2, 1), dtype=int), [[reward] * 2], discount=0.8, reward_range=(0.0, 1.0)
        )
        value = (reward + math.log(2.0)) / (1.0 - 0.8)
        q = np.full((1, 2), reward + 0.8 * value)
        for order, horizon in product((1, 2), (1, 3)):
            yield proved(model, sp.LogSumExp(1.0), q, 0, order, horizon, 0.0), value, q[0]
    successors = np.array([[1, 2], [1, 1], [2, 2]])[..., None]
    rewards = np.array([[1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]])
    model = sp.TabularModel(np.ones((3, 2, 1)), successors, rewards, discount=0.5)
    bonus = 0.1 * math.log(2.0)
    values = np.array([0.0, -2.0, 2.0]) + 2.0 * bonus
    q = rewards + 0.5 * values[successors[..., 0]]
    yield proved(model, sp.LogSumExp(0.1), q, 0, 2, 1, 0.0), float(values[0]), q[0]


def missed_by_cuts() -> dict[str, int]:
    """How often V or Q is outside of what such means prove."""
    missed = {"low": 0, "high": 0, "q low": 0, "q high": 0, "not certified": 0}
    for ((low, high), actions, certified), value, q in cut_proofs():
        missed["low"] += low > value + SLACK
        missed["high"] += high < value - SLACK
        missed["q low"] += bool((actions[:, 0] > q + SLACK).any())
        missed["q high"] += bool((actions[:, 1] < q - SLACK).any())
        missed["not certified"] += not certified
    return missed


def test_what_exact_means_of_short_chains_prove_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values would be missed if a little less were booked for the cut, or half for what it does to pairs."""
    assert sum(missed_by_cuts().values()) == 0
    original = Cut.at
    with monkeypatch.context() as patch:

        def narrower(problem: Problem, horizon: int) -> Cut:
            cut = original(problem, horizon)
            return cut._replace(optimal=0.99 * cut.optimal)

        patch.setattr(Cut, "at", narrower)
        assert missed_by_cuts()["low"] > 0
    for share, enough in ((1.0, True), (0.5, False)):

        def booked(prover: Prover, order: int, share: float = share) -> tuple[float, float]:
            return sampling.bias(order, 0.0, prover._problem, share * (prover._cut.below + prover._cut.above))

        monkeypatch.setattr(Prover, "_bias", booked)
        assert (sum(missed_by_cuts().values()) == 0) == enough


def test_the_parts_of_delta_add_up_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all confidence sequences of a run; where the pilot chooses another number of pairs, there is one more."""
    parts: list[float] = []

    def recorded(low: float, high: float, delta: float, target: float) -> ConfidenceSequence:
        parts.append(delta)
        return ConfidenceSequence(low, high, delta, target)

    monkeypatch.setattr(sampling, "ConfidenceSequence", recorded)
    model = sp.models.garnet(10, 3, branching=3, discount=0.8, seed=0, reward_kind="bernoulli")
    table = TabularReference(np.random.default_rng(0).normal(size=(10, 3)))
    for options, sequences in (({"order": 1}, 4), ({"pairs": 2}, 5), ({}, 6)):
        parts.clear()
        planner = sp.ReferenceCruiser(sp.LogSumExp(0.3), table, epsilon=0.1, delta=0.2, **options)  # type: ignore[arg-type]
        sp.plan(planner, model, 0, max_calls=1_000_000)
        assert len(parts) == sequences
        assert sum(parts) == pytest.approx(0.2)


# Transfer


def test_costs_of_either_sign_move_no_value_further_than_the_bias() -> None:
    model = sp.models.garnet(10, 3, discount=0.9, seed=2)
    rng = np.random.default_rng(3)
    hard = sp.exact.solve(model, sp.HardMax(), 1e-10).values
    for bias, most in product((0.1, 1.0), (0.1, 1.0)):  # the largest cost may be less than the size of the least
        for _ in range(5):
            backup = smooth_backup(model, bias, rng.uniform(-1.0, most, (3, 3)))
            low, high = gap_of_values(model, backup)
            assert -bias * (1.0 + 1e-9) <= low <= high <= bias * (1.0 + 1e-9)
            moved = sp.exact.solve(model, backup, 1e-10).values - hard
            assert low - SLACK <= moved.min() <= moved.max() <= high + SLACK


# Multilevel samples


def test_antithetic_differences_are_negative_and_fall_like_the_number_of_returns() -> None:
    """F at a mean, less the average of F at the means of its halves; one action varies, so that sums are exact."""
    rng = np.random.default_rng(4)
    backups: list[Backup] = [sp.LogSumExp(0.2), sp.Tsallis(0.2), replace(TRANSPORT, lam=0.2)]
    for backup in backups:
        middle, half = rng.normal(size=(2, 1000, 3))
        difference = backup.value(middle) - (backup.value(middle + half) + backup.value(middle - half)) / 2.0
        bound = backup.derivatives(3)[0] / 2.0 * np.ptp(half, axis=1) ** 2
        assert (difference <= 1e-12).all()
        assert (difference >= -bound - 1e-12).all()
    norms = []
    for level in (6, 7):
        returns = 2 ** (level - 1)
        chances = stats.binom.pmf(np.arange(returns + 1), returns, 0.4)
        means = np.arange(returns + 1) / returns
        one, two = np.meshgrid(means, means)

        def at(mean: Floats) -> Floats:
            return sp.LogSumExp(0.2).value(np.stack([mean, np.full_like(mean, 0.5)], axis=-1))

        differences = at((one + two) / 2.0) - (at(one) + at(two)) / 2.0
        norms.append((np.outer(chances, chances) * differences**4).sum() ** 0.25)
    assert norms[1] / norms[0] == pytest.approx(0.5, abs=0.03)


def test_differences_of_levels_fall_no_faster_than_the_number_of_returns() -> None:
    """Exact sums: n(E F(mean of n returns) − F(q)) → ½F″(q)·Var X, so that b_{l−1} − b_l is of the order 2^−l."""
    backup, chance, other = sp.LogSumExp(0.2), 0.4, 0.5

    def level(returns: int) -> float:
        means = np.arange(returns + 1) / returns
        values = backup.value(np.stack([means, np.full(returns + 1, other)], axis=-1))
        return float(stats.binom.pmf(np.arange(returns + 1), returns, chance) @ values)

    limit = 0.5 * float(backup.hessian([chance, other])[0, 0]) * chance * (1.0 - chance)
    for returns in (512, 2048):
        assert returns * (level(returns // 2) - level(returns)) == pytest.approx(limit, rel=0.03)


def test_a_limit_on_calls_leaves_the_mean_of_the_samples_that_it_can_pay() -> None:
    """E[Ȳ; N ≥ 1] = E[Y; T ≤ M] for Y = 2^L, where a limit can pay levels 0 to 2: at 5 standard errors (6e-7)."""
    model = sp.models.garnet(8, 2, branching=3, discount=0.5, seed=3, reward_kind="bernoulli")
    planner, limit, means = sp.RandomizedMultilevel(sp.LogSumExp(0.2), 0.1, depth=1, base=1), 12, []
    engine = planner.engine(model, 1)

    def size(seed: int, chunk: int) -> float:
        return float(np.exp2(engine.levels(1, streams.generator(seed, chunk).spawn(1)[0], 1)[0]))

    def chunks(seed: int, limit: int) -> list[Chunk]:
        run = MultilevelRun(planner, Root(model, 0, seed, limit, None, "auto", 0.0), engine, lowered=False)
        return list(run._tasks(10_000, lambda: None))

    for seed in range(1_500):
        numbers = [chunk.number for chunk in chunks(seed, limit)]
        assert numbers == list(range(len(numbers)))  # none is left out but the first that does not fit, with all others
        sizes = [size(seed, number) for number in numbers]
        assert 2.0 * sum(sizes) <= limit < 2.0 * (sum(sizes) + size(seed, len(sizes)))
        means.append(sum(sizes) / max(len(sizes), 1))
    expected = float(np.array([1.0, 2.0, 4.0]) @ engine.law.probabilities[:3])
    error = float(np.std(means, ddof=1)) / math.sqrt(len(means))
    assert abs(float(np.mean(means)) - expected) < 5.0 * error
    assert 5.0 * error < 0.3 * (engine.law.mean_size - expected)  # the mean of all samples is another
    assert len({chunk.samples for chunk in chunks(0, 100_000)}) == 1  # chunks are of one size


def test_an_error_range_of_a_grid_survives_conditioning() -> None:
    """A grid that is exact where it is asked, though its nodes are far apart: raising them would spoil it.

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
