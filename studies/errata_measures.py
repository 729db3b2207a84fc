"""The measurements behind the errata: prices, clipped samples, value bounds, Taylor remainders, centrings."""

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from smoothplan.base.arguments import Floats
from smoothplan.models.model import Oracle
from smoothplan.models.tabular import TabularModel
from smoothplan.models.zoo import garnet
from smoothplan.recursive.compiled import CompiledEngine
from smoothplan.recursive.level import Level
from smoothplan.recursive.planners import DebiasedCruiser, SecondOrderSmoothCruiser, SmoothCruiser
from smoothplan.recursive.schedule import Schedule, forecast
from smoothplan.theory import curvature, exact
from smoothplan.theory.backups import Backup, LogSumExp, OptimalTransport
from smoothplan.theory.curvature import Problem

Variant = Literal["printed", "mended", "pairs", "debiased"]
Clipping = Literal["none", "values", "printed"]

# Prices: what the accuracy of the pairs does to the exponent


def price(variant: Variant, discount: float, epsilon: float, temperature: float, delta: float) -> dict[str, float]:
    """log of the simulator calls of the second order, with two actions and rewards in [0, 1].

    Of certified schedules, which have "pairs" of returns or "debiased" levels, also the widest support of a level below
    the root, in units of the width of the value interval.
    """
    # A forecast depends on what the model declares, not on its table.
    model = garnet(states=10, actions=2, branching=2, discount=discount, reward_kind="bernoulli")
    backup = LogSumExp(temperature)
    problem = Problem.of(model, backup)
    if variant == "mended":
        return {"log_calls": ladder_price(problem, epsilon, delta, coarse_pairs=True)}
    if variant == "printed":
        return {"log_calls": math.log(forecast(SecondOrderSmoothCruiser(backup, epsilon, delta, "paper"), model).calls)}
    planner = {"pairs": SecondOrderSmoothCruiser, "debiased": DebiasedCruiser}[variant]
    schedule = planner(backup, epsilon, delta).schedule(model)
    widest = max(float(level.high - level.low) for level in schedule.certificates[:-1])
    return {"log_calls": math.log(schedule.calls), "support": widest / problem.width}


def predicted_exponent(discount: float) -> float:
    """Of the printed price: T(ε) ≥ 5·T(ε/√γ) makes a sample cost ε^(−2·log 5/log(1/γ)), if not ε^−1; the root, ε^−2.

    A printed second-order sample has five children at accuracy ε/√γ: one for the linear term, four for the quadratic.
    """
    return 2.0 + max(1.0, 2.0 * math.log(5.0) / math.log(1.0 / discount))


def printed_epsilons(discount: float, finest: float) -> list[float]:
    """About one for each factor of ten, from 0.01 on. Their ratio is a power of √γ, for prices rise in such steps."""
    steps = max(1, round(2.0 * math.log(10.0) / math.log(1.0 / discount)))
    ratio = discount ** (steps / 2.0)
    return [0.01 * ratio**k for k in range(math.floor(math.log(finest / 0.01) / math.log(ratio)) + 1)]


def ladder_price(problem: Problem, epsilon: float, delta: float, *, coarse_pairs: bool) -> float:
    """log of the calls of the printed algorithm; with coarse pairs if its quadratic term is given what it tolerates.

    T(a) = K·N(ρ)·(1 + T(ρ/√γ)) + 1 + T(a/√γ) + 4·(1 + T(b)), with b = a/√γ as printed. What a bias b of the pairs does
    is (γb/η)(ρ/√2 + γb): coarse pairs have the b at which that is a. Only prices are followed, so ε may be tiny.
    """
    bound = (1.0 + problem.at_zero[1] - problem.at_zero[0]) / (1.0 - problem.discount)
    spread, log_actions = 1.0 + problem.discount * bound, math.log(problem.actions)
    threshold = math.sqrt(6.0 / curvature.hessian_lipschitz(problem.temperature))
    step = -math.log(problem.discount) / 2.0  # of log accuracy, from a level to its linear child
    # Accuracies are rounded down to a grid of ratio e^−0.1 or finer: up to 10 % of an accuracy.
    parts = max(1, math.ceil(step / 0.1))
    grid = step / parts

    def place(accuracy: float) -> int:
        """The first place on the grid that is no coarser."""
        return max(0, math.ceil(math.log(bound / accuracy) / grid - 1e-9))

    def price(log_share: float) -> float:
        log_count = math.log(spread**2 * (math.log(2.0 * problem.actions) - log_share) / 2.0)
        logs = [-math.inf]  # log T, at places 0, 1, …

        def child(row: int) -> float:
            return _log_sum(0.0, logs[max(row, 0)])

        for row in range(1, place(epsilon) - parts + 1):
            accuracy = bound * math.exp(-grid * row)
            if accuracy >= threshold:
                logs.append(log_actions + log_count - 2.0 * math.log(accuracy) + child(row - parts))
                continue
            radius = curvature.tolerance(accuracy, 3, problem.temperature, "euclidean")
            around = log_actions + log_count - 2.0 * math.log(radius) + child(place(radius) - parts)
            pairs = row - parts
            if coarse_pairs:
                pairs = min(pairs, place(_tolerated(accuracy, radius, problem.temperature) / problem.discount))
            logs.append(_log_sum(around, child(row - parts), math.log(4.0) + child(pairs)))
        return log_actions + log_count - 2.0 * math.log(epsilon) + child(place(epsilon) - parts)

    # δ′ is δ divided by the number of calls that it leads to: repeat until it has settled.
    found = price(math.log(delta))
    while abs((better := price(math.log(delta) - found)) - found) > 1e-9 * abs(found):
        found = better
    return better


def _log_sum(*logs: float) -> float:
    """log Σ e^x."""
    largest = max(logs)
    return largest + math.log(sum(math.exp(log - largest) for log in logs))


def _tolerated(accuracy: float, radius: float, temperature: float) -> float:
    """γb with (γb/η)(ρ/√2 + γb) = a."""
    half = radius / math.sqrt(8.0)
    return temperature * accuracy / (math.sqrt(half**2 + temperature * accuracy) + half)


# Samples: what clipping them to the value range does to their mean


def level_field(rewards: Floats, discount: float, states: int, seed: int) -> TabularModel:
    """A model whose states all have the same mean rewards [K], so that they all have the same, known value."""
    table = garnet(states, len(rewards), branching=4, discount=discount, seed=seed)
    means = np.tile(rewards, (states, 1))
    return TabularModel(
        table.probabilities,
        table.successors,
        means,
        discount=discount,
        reward_kind="bernoulli",
        reward_range=(0.0, 1.0),
    )


def clipping_bias(
    clipping: Clipping, error: float, rewards: Floats, temperature: float, discount: float, samples: int, seed: int
) -> dict[str, float]:
    """The bias of printed second-order samples of two actions around Q̂ = Q ± error/2, measured and computed.

    Their children know the value: all of the bias is the sample's own.
    """
    model, backup = level_field(rewards, discount, states=10, seed=seed), LogSumExp(temperature)
    problem = Problem.of(model, backup)
    value = float(backup.value(rewards)) / (1.0 - discount)
    q = rewards + discount * value
    reference = q + error * np.array([0.5, -0.5])
    bounds: dict[str, tuple[float, float] | None] = {
        "none": None,
        "values": problem.values,
        "printed": (0.0, 1.0 / (1.0 - discount)),
    }
    clip = bounds[clipping]
    levels = (
        Level("constant", shift=value - problem.middle),
        Level(
            "order-2",
            samples=1,
            reference=0,
            linear=0,
            quadratic=0,
            pairs=2,
            printed=True,
            clip=clip,
        ),
    )
    engine = CompiledEngine(Schedule(problem, levels, 1, epsilon=1.0, delta=0.1), backup, model)
    sums = engine.values(Oracle(model, seed), 0, reference, samples)
    mean = sums.total / samples
    deviation = math.sqrt(max(sums.squares / samples - mean**2, 0.0) / samples)
    expected = _clipped_mean(backup, rewards, discount * value, reference, clip or (-math.inf, math.inf))
    return {"bias": mean - value, "standard_error": deviation, "exact": expected - value}


def _clipped_mean(
    backup: LogSumExp, rewards: Floats, future: float, reference: Floats, clip: tuple[float, float]
) -> float:
    """The mean of a printed sample, by listing all outcomes: A₀, its reward, A and A′, and their two rewards each."""
    policy = backup.policy(reference)
    chances = np.stack([1.0 - rewards, rewards], axis=1)  # of rewards 0 and 1, [K, 2]
    returns = np.array([0.0, 1.0]) + future
    linear = returns - policy @ reference
    linear_weights = policy @ chances
    quadratic, weights = [], []
    for first, p in enumerate(policy):
        for second, q in enumerate(policy):
            # Differences of returns around those of the references, and their chances, [4].
            gap = (returns[:, None] - returns - (reference[first] - reference[second])).ravel()
            chance = np.outer(chances[first], chances[second]).ravel()
            quadratic.append(np.outer(gap, gap).ravel() / (4.0 * backup.temperature))
            weights.append(p * q * np.outer(chance, chance).ravel())
    sums = backup.value(reference) + linear[:, None] + np.concatenate(quadratic)
    return float((linear_weights[:, None] * np.concatenate(weights) * np.clip(sums, *clip)).sum())


# Values: where they lie


def value_bounds(actions: int, discount: float, temperature: float, seed: int) -> dict[str, float]:
    """Exact values of a random model beside the printed bound B and our interval."""
    model, backup = garnet(50, actions, 4, discount, seed, reward_kind="bernoulli"), LogSumExp(temperature)
    values = exact.solve(model, backup).values
    low, high = curvature.value_interval(model, backup)
    zero = backup.at_zero_range(actions)
    return {
        "printed": (1.0 + zero[1] - zero[0]) / (1.0 - discount),
        "least": float(values.min()),
        "largest": float(values.max()),
        "low": low,
        "high": high,
    }


# Remainders: how much of the bounds is attained


def attained_remainders(kind: str, actions: int, size: float, count: int, seed: int) -> dict[str, float]:
    """The largest Taylor remainders over random references and errors, in units of their bounds.

    Args:
        kind: "entropy", or "transport" with random costs and a random μ.
        actions: K.
        size: range(Δ)/η.
        count: random instances; half of the errors Δ have two values only, where the extremes are.
        seed: of the instances.
    """
    rng = np.random.default_rng(seed)
    eta = 0.5
    backup: Backup = LogSumExp(eta)
    if kind == "transport":
        weights = rng.dirichlet(np.ones(actions))
        backup = OptimalTransport(cost=rng.random((actions, actions)), tau=1.0, lam=eta, reference=weights)
    around = eta * rng.uniform(-2.0, 2.0, (count, actions))
    delta = np.where(
        np.arange(count)[:, None] % 2 == 0, rng.integers(0, 2, (count, actions)), rng.random((count, actions))
    )
    ranges = np.ptp(delta, axis=1, keepdims=True)
    delta = (delta / np.where(ranges > 0.0, ranges, 1.0) * size * eta)[ranges[:, 0] > 0.0]
    around = around[ranges[:, 0] > 0.0]
    q = around + delta
    first = backup.value(q) - curvature.taylor(backup, q, around, 1)
    second = np.abs(backup.value(q) - curvature.taylor(backup, q, around, 2))
    norms = np.linalg.norm(delta, axis=1)
    return {
        "first": float(first.max()) / curvature.remainder(size * eta, 2, eta),
        "first_least": float(first.min()) / curvature.remainder(size * eta, 2, eta),
        "second": float(second.max()) / curvature.remainder(size * eta, 3, eta),
        "printed_second": float((second / norms**3).max()) / curvature.remainder_constant(3, eta, "euclidean"),
    }


# Centrings: what the linear term subtracts


def centring_variance(
    centring: Literal["action", "policy"],
    rewards: Any,
    error: float,
    actions: int,
    discount: float,
    temperature: float,
    samples: int,
    seed: int,
) -> dict[str, float]:
    """The variance of a first-order sample around Q̂ = Q + error·u, and by how much the centrings should differ."""
    model = garnet(50, actions, 4, discount, seed, reward_kind=rewards)
    backup = LogSumExp(temperature)
    rng = np.random.default_rng(seed)
    direction = rng.random(actions)
    q = exact.solve(model, backup).q[0]
    reference = q + error * (direction - direction.min()) / np.ptp(direction)
    schedule = SmoothCruiser(backup, epsilon=0.01).schedule(model)  # returns are biased by less than ε
    # One reward for each return: means of several would hide what a centring does to the noise between actions.
    below = [replace(level, rewards=1) for level in schedule.levels[:-1]]
    schedule = replace(schedule, levels=(*below, replace(schedule.root, printed=centring == "policy")))
    sums = CompiledEngine(schedule, backup, model).values(Oracle(model, seed), 0, reference, samples)
    policy = backup.policy(reference)
    drop = _variance(policy, q) - _variance(policy, q - reference)
    return {"variance": sums.squares / samples - (sums.total / samples) ** 2, "predicted_drop": drop}


def _variance(policy: Floats, values: Floats) -> float:
    return float(policy @ values**2 - (policy @ values) ** 2)
