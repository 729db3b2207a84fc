"""RandomizedMultilevel: no bias at a finite depth, the price that it expects, the same bits whoever does the work."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import smoothplan as sp
from smoothplan.base import streams
from smoothplan.base.arguments import Floats, Ints
from smoothplan.models.model import Oracle
from smoothplan.run.chunks import Chunk, Sums
from smoothplan.run.records import Root, TooExpensiveError
from smoothplan.theory.backups import Backup, line_cost
from studies import multilevel
from studies.multilevel import (
    HIGHEST,
    Estimate,
    LevelLaw,
    MultilevelEngine,
    MultilevelRun,
    RandomizedMultilevel,
)
from tests.common import ending

FALSE_ALARM = 1e-6

LSE = sp.LogSumExp(0.2)
BATCHES = 64


def bernoulli(actions: int = 2, discount: float = 0.5, seed: int = 3) -> sp.TabularModel:
    """Rewards of 0 and 1, so that returns vary at every depth."""
    return sp.models.garnet(8, actions, branching=3, discount=discount, seed=seed, reward_kind="bernoulli")


def transport(actions: int) -> sp.OptimalTransport:
    return sp.OptimalTransport(cost=line_cost(actions), reference=np.full(actions, 1 / actions), tau=0.5, lam=0.4)


def truncated_value(model: sp.TabularModel, backup: Backup, depth: int, state: int) -> float:
    """V_depth(state) by enumeration, from V_0, the middle of the value interval."""
    middle = sum(sp.curvature.value_interval(model, backup)) / 2.0
    values = np.where(model.terminal, 0.0, middle)
    for _ in range(depth):
        future = np.einsum("skb,skb->sk", model.continuation, values[model.successors])
        values = backup.value(model.expected_rewards + model.discount * future, np.arange(model.states))
        values[model.terminal] = 0.0
    return float(values[state])


def engine_of(model: sp.GenerativeModel, backup: Backup, depth: int, **options: Any) -> MultilevelEngine:
    return RandomizedMultilevel(backup, 0.1, depth=depth, **options).engine(model, depth)


def distance(engine: MultilevelEngine, model: sp.TabularModel, samples: int, state: int = 0, seed: int = 0) -> float:
    """How many standard errors the mean is from the value at that depth, by the means of 64 batches."""
    means = np.empty(BATCHES)
    for chunk in range(BATCHES):
        sums = engine.roots(Oracle(model, seed, chunk), state, samples // BATCHES)
        means[chunk] = engine.problem.middle + sums.total / sums.samples
    exact = truncated_value(model, engine.backup, engine.depth, state)
    return float((means.mean() - exact) / (means.std(ddof=1) / math.sqrt(BATCHES)))


class Uncorrected(LevelLaw):
    """Level 0 only: what is left is the plug-in F(mean of n₀ returns)."""

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        return np.zeros(count, dtype=np.int64)


T_LIMIT = float(stats.t.isf(FALSE_ALARM / 2.0, BATCHES - 1))

CASES = [
    ("lse", 1, 32_000),
    ("lse", 2, 6_400),
    ("lse", 3, 1_280),
    ("ot", 1, 16_000),
    ("ot", 2, 3_200),
    ("ending", 2, 6_400),
]


def case(name: str, depth: int) -> tuple[sp.TabularModel, MultilevelEngine]:
    model = ending(2, 0.5, 4) if name == "ending" else bernoulli(3 if name == "ot" else 2)
    return model, engine_of(model, transport(3) if name == "ot" else LSE, depth)


@pytest.mark.parametrize(("name", "depth", "samples"), CASES)
def test_there_is_no_bias_at_a_finite_depth(name: str, depth: int, samples: int) -> None:
    """Student's test of 64 means of batches, at 1e-6.

    Samples have heavy tails but all moments; each batch mean is over 20 to 500 of them. With 60 other seeds each, the
    statistics of these cases had root mean squares of 0.9 to 1.15 and the largest of all 360 was 3.6, as of normal
    means (limit 5.4). The plug-in, of the lowest level alone, is caught in every case: by 12 standard errors and more.
    """
    model, engine = case(name, depth)
    assert abs(distance(engine, model, samples)) < T_LIMIT
    assert abs(distance(replace(engine, law=Uncorrected(2.0)), model, samples)) > T_LIMIT


@pytest.mark.parametrize("limit", [8, 32, 1 << 15])
def test_a_sample_is_the_sum_of_its_differences(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From given returns, by the formula: B_0 + Σ (B_l − B_{l−1})/P(L ≥ l)."""
    monkeypatch.setattr(multilevel, "CALLS_AT_ONCE", limit)
    model, level, base = bernoulli(), 5, 2
    engine = engine_of(model, LSE, 1, base=base)
    drawn: list[Floats] = []

    class Watched(multilevel._Draws):
        def _returns(self, depth: int, states: Any) -> Floats:
            # Of normal returns no two means of blocks are alike.
            drawn.append(np.random.default_rng(len(drawn)).normal(size=(2, len(states))))
            return drawn[-1]

    found = Watched(engine, Oracle(model, 0))._one(1, np.zeros(1, dtype=np.int64), np.array([level]))
    assert len(drawn) == max(1, 2 * base * 2**level // limit)
    # Each slice holds n₀ rows of blocks, of which one is paired with that half a slice away.
    means = [part.reshape(2, base, -1).mean(axis=1) for part in drawn]
    within = means[0].shape[1]
    order = [0]
    while len(order) < within:
        order += [place + within // (2 * len(order)) for place in order]
    blocks = np.concatenate([part[:, order] for part in means], axis=1)
    averages = []
    for _ in range(level + 1):
        averages.append(float(LSE.value(blocks.T).mean()))
        blocks = (blocks[:, 0::2] + blocks[:, 1::2]) / 2.0 if blocks.shape[1] > 1 else blocks
    chances = [2.0**-k * (k + 1.0) ** -2.0 for k in range(level + 1)]
    expected = averages[0] + sum((averages[k] - averages[k - 1]) / chances[k] for k in range(1, level + 1))
    assert found[0] == pytest.approx(expected, rel=1e-9)


def test_levels_have_the_law_that_the_weights_say() -> None:
    """Pearson's test at 1e-6."""
    law, count = LevelLaw(2.0), 1_000_000
    levels = law.draw(np.random.default_rng(5), count)
    exact = 2.0 ** -np.arange(14.0) * np.arange(1, 15.0) ** -2.0
    np.testing.assert_allclose(law.tails[:14], exact, rtol=1e-9)
    expected = count * np.append(exact[:10] - exact[1:11], exact[10])
    seen = np.bincount(np.minimum(levels, 10), minlength=11)
    assert ((seen - expected) ** 2 / expected).sum() < stats.chi2.isf(FALSE_ALARM, 10)


@pytest.mark.parametrize("decay", [1.5, 2.0, 3.0])
def test_the_law_of_levels_is_one(decay: float) -> None:
    law = LevelLaw(decay)
    assert law.probabilities.min() >= 0.0
    assert law.probabilities.sum() == 1.0
    # A uniform number of zero is drawn as often as the highest level is likely.
    assert law.tails[-1] >= 2.0**-53
    finite = 1.0 + sum((k + 1.0) ** -decay for k in range(1, HIGHEST + 1)) / 2.0
    assert law.mean_size == pytest.approx(finite, rel=1e-2 if decay > 2.0 else 1e-4)
    assert law.mean_size < (1.0 + special.zeta(decay)) / 2.0 * 1.01


@pytest.mark.parametrize(("actions", "depth", "base"), [(2, 1, 4), (2, 3, 1), (3, 2, 3), (5, 2, 4)])
def test_calls_are_those_of_the_levels(actions: int, depth: int, base: int) -> None:
    """To the digit: K·n₀·Σ2^L at each depth, the levels of a depth being those of its stream."""
    model = bernoulli(actions)
    engine = engine_of(model, LSE, depth, base=base)
    oracle = Oracle(model, 11, 4)
    sums = engine.roots(oracle, 0, 37)
    streams = Oracle(model, 11, 4).rng.spawn(depth)
    nodes, calls = 37, 0
    for stream in streams[::-1]:
        levels = engine.law.draw(stream, nodes)
        nodes = actions * base * int((2**levels).sum())
        calls += nodes
        if stream is streams[-1]:
            assert sums.more[0] == nodes // actions
    assert oracle.calls == calls == engine.planned_calls(11, 4, 37, 10**15)
    assert engine.planned_calls(11, 4, 37, calls) == calls <= engine.planned_calls(11, 4, 37, calls - 1)
    factor = actions * base * engine.law.mean_size
    analytic = sum(factor**k for k in range(1, depth + 1))
    assert engine.expected_calls == pytest.approx(analytic, rel=1e-12)
    planner = RandomizedMultilevel(LSE, 0.1, depth=depth, base=base)
    assert planner.expected_calls(model) == engine.expected_calls


def test_what_does_not_vary_is_drawn_once() -> None:
    """Rewards that are fixed make returns onto V_0 so; one next state, all returns. Both say so to the price."""
    model = sp.models.garnet(states=8, actions=2, branching=3, discount=0.5, seed=3)
    engine = engine_of(model, LSE, 2)
    factor = 2 * 4 * engine.law.mean_size
    assert engine.expected_calls == pytest.approx(factor * 3.0)
    assert abs(distance(engine, model, 6_400)) < T_LIMIT
    fixed = sp.models.garnet(states=8, actions=2, branching=1, discount=0.5, seed=3)
    result = sp.plan(RandomizedMultilevel(LSE, 0.1, depth=3), fixed, 0)
    assert result.calls == result.samples * (2 + 4 + 8)
    assert result.value == pytest.approx(truncated_value(fixed, LSE, 3, 0))
    # An end of the episode is worth 0, not V_0: then returns vary, though rewards do not.
    table = ending(2, 0.5, 4)
    ends = sp.TabularModel(
        table.probabilities, table.successors, table.rewards[..., 0], discount=0.5, terminal=table.terminal
    )
    assert engine_of(ends, LSE, 2).certain == 0


def test_a_run_ends_when_noise_and_bias_are_within_epsilon() -> None:
    model = bernoulli(discount=0.2)
    planner = RandomizedMultilevel(LSE, 0.1)
    result = sp.plan(planner, model, 0, seed=1)
    found = result.details
    assert isinstance(found, Estimate)
    assert (error := found.standard_error) is not None
    width = np.ptp(sp.curvature.value_interval(model, LSE))
    assert found.depth == planner.depth_for(model) == 2
    assert found.bias == pytest.approx(0.2**2 * width / 2.0)
    assert 0.2 * width / 2.0 > 0.05 >= found.bias
    assert found.bias + stats.norm.ppf(0.95) * error <= 0.1
    assert result.status == "completed"
    assert result.samples >= 256
    assert result.interval == pytest.approx(sp.curvature.value_interval(model, LSE))
    assert result.q_intervals is None
    exact = sp.exact.solve(model, LSE)
    assert abs(result.value - exact.values[0]) < found.bias + 6.0 * error
    assert np.abs(result.q - exact.q[0]).max() < found.bias + 0.1
    fields = json.loads(result.to_json())
    assert fields["details"] == {"standard_error": error, "depth": 2, "bias": found.bias}


def test_a_limit_on_calls_lowers_a_depth_that_nobody_asked_for() -> None:
    model = bernoulli(discount=0.9)
    with pytest.raises(TooExpensiveError, match=r"depth \d+ needs .*e\d\d simulator calls on average"):
        sp.plan(RandomizedMultilevel(LSE, 0.1), model, 0)
    result = sp.plan(RandomizedMultilevel(LSE, 0.1), model, 0, max_calls=30_000)
    assert isinstance(result.details, Estimate)
    assert (result.details.depth, result.status) == (2, "max_calls")
    assert result.samples > 0
    deep = sp.plan(RandomizedMultilevel(LSE, 0.1, depth=8), model, 0, max_calls=30_000)
    assert (deep.calls, deep.samples, deep.status) == (0, 0, "max_calls")
    assert deep.value == pytest.approx(sum(deep.interval) / 2.0)


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a smooth backup, got HardMax"):
        RandomizedMultilevel(sp.HardMax(), 0.1)
    for wrong in ({"decay": 1.0}, {"base": 0}, {"depth": 0}, {"epsilon": 0.0}, {"delta": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RandomizedMultilevel(LSE, **({"epsilon": 0.1} | wrong))
    with pytest.raises(TypeError, match="has no forecast: its price depends on the variance"):
        sp.forecast(RandomizedMultilevel(LSE, 0.1), bernoulli())
    assert sp.plan(RandomizedMultilevel(LSE, 0.1), ending(2, 0.5, 4), 3).status == "terminal"


def law_of_means(returns: int) -> tuple[Floats, Floats]:
    """Of means of coins with heads at 0.4: their chances, and F there beside an action worth 0.5."""
    means = np.arange(returns + 1) / returns
    chances = stats.binom.pmf(np.arange(returns + 1), returns, 0.4)
    return chances, LSE.value(np.stack([means, np.full_like(means, 0.5)], axis=-1))


def test_antithetic_differences_are_negative_and_fall_like_the_number_of_returns() -> None:
    """F at a mean, less the average of F at the means of its halves; one action varies, so that sums are exact."""
    rng = np.random.default_rng(4)
    backups: list[Backup] = [LSE, sp.Tsallis(0.2), transport(3)]
    for backup in backups:
        middle, half = rng.normal(size=(2, 1000, 3))
        difference = backup.value(middle) - (backup.value(middle + half) + backup.value(middle - half)) / 2.0
        bound = backup.derivatives(3)[0] / 2.0 * np.ptp(half, axis=1) ** 2
        assert (difference <= 1e-12).all()
        assert (difference >= -bound - 1e-12).all()
    norms = []
    for returns in (32, 64):
        chances, halves = law_of_means(returns)
        whole = law_of_means(2 * returns)[1][np.add.outer(np.arange(returns + 1), np.arange(returns + 1))]
        differences = whole - np.add.outer(halves, halves) / 2.0
        norms.append((np.outer(chances, chances) * differences**4).sum() ** 0.25)
    assert norms[1] / norms[0] == pytest.approx(0.5, abs=0.03)


def test_differences_of_levels_fall_no_faster_than_the_number_of_returns() -> None:
    """Exact sums: n(E F(mean of n returns) − F(q)) → ½F″(q)·Var X, so that b_{l−1} − b_l is of the order 2^−l."""
    limit = 0.5 * float(LSE.hessian([0.4, 0.5])[0, 0]) * 0.4 * 0.6
    for returns in (512, 2048):
        (chances, values), (its_chances, its_values) = law_of_means(returns // 2), law_of_means(returns)
        assert returns * (chances @ values - its_chances @ its_values) == pytest.approx(limit, rel=0.03)


def test_a_limit_on_calls_leaves_the_mean_of_the_samples_that_it_can_pay() -> None:
    """E[Ȳ; N ≥ 1] = E[Y; T ≤ M] for Y = 2^L, where a limit can pay levels 0 to 2: at 5 standard errors (6e-7)."""
    model, limit, means = bernoulli(), 12, []
    planner = RandomizedMultilevel(LSE, 0.1, depth=1, base=1)
    engine = planner.engine(model, 1)

    def size(seed: int, chunk: int) -> float:
        return float(np.exp2(engine.levels(1, streams.generator(seed, chunk).spawn(1)[0], 1)[0]))

    def chunks(seed: int, limit: int) -> list[Chunk[Sums]]:
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
