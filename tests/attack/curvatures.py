"""Attacks on what curvature bounds: Taylor remainders, cumulants, chains around a reference, and values."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains import cruiser
from smoothplan.models.model import effective_horizon
from smoothplan.recursive import level as arithmetic
from smoothplan.recursive.level import Bounds
from smoothplan.theory import curvature, softmaxes
from smoothplan.theory.backups import LogSumExp, OptimalTransport, SoftmaxMixture, required_mixture, restricted
from smoothplan.theory.curvature import Problem
from tests.attack.climbing import ROUNDING, Draw, Target, quotient
from tests.attack.levels import statistic_ends
from tests.naive import ChainMeans, random_model


def mixture(draw: Draw, actions: int) -> SoftmaxMixture:
    """A mixture of softmaxes of temperature 1."""
    if draw.pick(["entropy", "transport"], "F") == "entropy":
        return LogSumExp(1.0)
    cost, reference = 2.0 * draw.reals(actions**2).reshape(actions, actions), draw.law(actions)
    return OptimalTransport(cost=cost, tau=1.0, lam=1.0, reference=reference)


# --- Taylor remainders ------------------------------------------------------------------------------------------------


def expansion(draw: Draw, order: int, least: float, most: float) -> tuple[SoftmaxMixture, float, float]:
    """A backup of temperature 1, F − T_order somewhere, and the range of Q − Q̂ there."""
    actions = draw.pick([2, 3, 4], "K")
    backup = mixture(draw, actions)
    around, delta = 2.0 * draw.reals(actions), draw.between(0.0, 1.0, actions)
    reach = draw.scale(least, most, "range")
    delta = reach * (delta - delta.min()) / max(float(np.ptp(delta)), 1e-9)
    found = backup.value(around + delta) - curvature.taylor(backup, around + delta, around, order)
    return backup, float(found), float(np.ptp(delta))


def remainder(order: int, power: int, draw: Draw) -> float:
    """|F − T_order| over c·range^power, where the range is large enough for rounding not to count."""
    _, found, size = expansion(draw, order, 0.05, 50.0)
    if order == 1 and found < -ROUNDING:
        return math.inf
    return quotient(abs(found), curvature.remainder_constant(power, 1.0) * size**power)


def first_remainder(draw: Draw) -> float:
    """F − T₁ over the smaller of range and range²/(8η), which order 1 adds half of."""
    backup, found, size = expansion(draw, 1, 0.1, 1e3)
    problem = Problem.of(random_model(0, actions=int(str(draw.said["K"])), discount=0.0), backup)
    exact = arithmetic.ReferenceMoments(size / 2.0, 0.0, 0.0)
    proved = arithmetic.first_order(problem, exact, Bounds(0.0, 0.0, 0.0, 0.0, 0.0))
    return quotient(found, 2.0 * float(proved.shift))


# --- Cumulants --------------------------------------------------------------------------------------------------------


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All partitions of some items into blocks."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for place, block in enumerate(smaller):
            yield [*smaller[:place], [first, *block], *smaller[place + 1 :]]


@cache
def _terms(order: int) -> tuple[Ints, Floats]:
    """The blocks of every partition as bit masks, [terms, order], filled up with empty ones, and its coefficient."""
    found = list(partitions(range(order)))
    masks = [[sum(1 << item for item in block) for block in blocks] for blocks in found]
    coefficients = [(-1.0) ** (len(row) - 1) * math.factorial(len(row) - 1) for row in masks]
    return np.array([row + [0] * (order - len(row)) for row in masks]), np.array(coefficients)


def joint_cumulant(variables: Floats, chances: Floats) -> float:
    """κ(X_1, …, X_k) of variables [atoms, k] with probabilities [atoms], by its definition."""
    order = variables.shape[1]
    variables = variables - chances @ variables if order > 1 else variables
    products = np.ones((len(chances), 2**order))
    for mask in range(1, 2**order):
        lowest = (mask & -mask).bit_length() - 1
        products[:, mask] = products[:, mask & (mask - 1)] * variables[:, lowest]
    masks, coefficients = _terms(order)
    return float(coefficients @ np.prod((chances @ products)[masks], axis=1))


def cumulant(pattern: str, draw: Draw) -> float:
    """|κ| of variables of range 1 at most, one for each letter of a pattern; those in capitals are indicators."""
    atoms = draw.pick([2, 3, 4, 6, 8], "atoms")
    letters = sorted(set(pattern))
    columns = {letter: draw.between(0.0, 1.0, atoms) for letter in letters}
    rounded = {letter: np.round(column) if letter.isupper() else column for letter, column in columns.items()}
    found = abs(joint_cumulant(np.stack([rounded[letter] for letter in pattern], axis=1), draw.law(atoms)))
    order = len(pattern)
    if len(letters) == 1:
        return quotient(found, softmaxes.CUMULANTS[order])
    return quotient(found, softmaxes.cumulant_bounds(1.0)[order - 2])


# --- Chains around a reference ----------------------------------------------------------------------------------------


SHORT, LONG = (0.05, 0.8), (0.8, 0.99)
"""Discounts."""


def chains(draw: Draw, discounts: tuple[float, float] | None = None) -> tuple[ChainMeans, Floats, float]:
    """Chains around a reference, the optimal values [S], and the range of the reference's errors.

    The adversary chooses the optimal action values, and rewards follow: r = Q − γ·P F(Q). The last state may be
    terminal.
    """
    states, actions = draw.pick([2, 3, 4], "S"), draw.pick([2, 3], "K")
    discount = draw.one(*(discounts or draw.pick([SHORT, LONG])), "γ")
    backup = mixture(draw, actions)
    q = draw.scale(0.1, 5.0) * draw.reals(states * actions).reshape(states, actions)
    kernel = np.stack([draw.law(states) for _ in range(states * actions)]).reshape(states, actions, states)
    over = np.arange(states) == (states - 1 if draw.pick([True, False, False]) else states)
    q[over] = q[0]  # which is not used
    values = np.where(over, 0.0, backup.value(q))
    model = sp.TabularModel(
        kernel,
        np.broadcast_to(np.arange(states), kernel.shape),
        np.where(over[:, None], q[0, 0] - discount * kernel[0, 0] @ values, q - discount * kernel @ values),
        discount=discount,
        terminal=over,
    )
    error = draw.scale(0.2, 5.0, "r")
    table = q + error * draw.between(0.0, 1.0, states * actions).reshape(states, actions)
    return ChainMeans(model, backup, table), values, error


Case = Callable[[Draw], tuple[ChainMeans, Floats, float]]
"""Chains, optimal values and the range of errors, as `chains` has them."""


def seasons(draw: Draw) -> tuple[ChainMeans, Floats, float]:
    """The same for episodes of at most N steps, which may end early, with illegal actions; γ may be 1."""
    steps, each, actions = draw.pick([1, 2, 3], "N"), draw.pick([1, 2]), draw.pick([2, 3], "K")
    discount = draw.said["γ"] = draw.pick([1.0, draw.one(0.3, 1.0)])
    backup, alive = mixture(draw, actions), steps * each
    q = draw.scale(0.1, 5.0) * draw.reals(alive * actions).reshape(alive, actions)
    legal = draw.reals(alive * actions).reshape(alive, actions) > -0.3
    legal[np.arange(alive), np.arange(alive) % actions] = True
    kernel = np.stack([draw.law(each + 1) for _ in range(alive * actions)]).reshape(alive, actions, each + 1)
    kernel, q, legal = (np.concatenate([part, part[:1]]) for part in (kernel, q, legal))  # the last state is terminal
    ahead = np.minimum(each * (1 + np.arange(alive + 1) // each)[:, None] + np.arange(each + 1), alive)
    ahead[:, each] = alive
    successors = np.broadcast_to(ahead[:, None], kernel.shape)
    parts: dict[str, Any] = {"discount": discount, "horizon": steps, "terminal": np.arange(alive + 1) == alive}

    def model_of(rewards: Floats) -> sp.TabularModel:
        return sp.TabularModel(kernel, successors, rewards, legal=legal, **parts)

    if isinstance(backup, OptimalTransport):  # some weight on every action, whichever are legal
        backup = OptimalTransport.from_prior(backup.prior, 1e-6, cost=backup.cost, tau=1.0, lam=1.0)
    backup, q = required_mixture(restricted(backup, model_of(q)), "a chain", ""), np.where(legal, q, -np.inf)
    values = np.where(parts["terminal"], 0.0, backup.value(q, np.arange(alive + 1)))
    rewards = np.where(legal, q, 0.0) - discount * np.einsum("skb,skb->sk", kernel, values[successors])
    error = draw.scale(0.2, 5.0, "r")
    table = q + error * draw.between(0.0, 1.0, q.size).reshape(q.shape)
    return ChainMeans(model_of(rewards), backup, table), values, error


def within(errors: Floats, bounds: tuple[float, float]) -> float:
    """The ratio of errors to bounds of either sign; one that is zero must be kept."""
    below, above = -float(errors.min()), float(errors.max())
    if bounds[0] == 0.0 and below > 1e-10:
        return math.inf
    return max(quotient(above, bounds[1]), quotient(below, -bounds[0]) if bounds[0] < 0.0 else 0.0)


def reference_bias(order: int, case: Case, draw: Draw) -> float:
    """V − E Y at every state, with chains that are not cut off."""
    means, values, error = case(draw)
    bounds = curvature.reference_bias(order, error, 1.0, means.model.discount, horizon=means.model.horizon)
    return within(values - means.orders()[order - 1], bounds)


def cut_bias(draw: Draw) -> float:
    """The same with chains that are cut off, less what the end of the chain itself adds."""
    means, values, error = chains(draw)
    problem, horizon = Problem.of(means.model, means.backup), draw.pick([1, 2, 5, 30], "H")
    cut = cruiser.Truncation.at(problem, horizon)
    second = means.orders(horizon, problem.middle)[1]
    beyond = np.where(means.model.terminal, 0.0, values - problem.middle)
    left = means.model.discount**horizon * np.linalg.matrix_power(means.steps, horizon) @ beyond
    return within(values - second - left, cruiser.bias(2, error, problem, cut.below + cut.above))


def cut_value(case: Case, draw: Draw) -> float:
    """What a chain that is cut off leaves out of the value of its policy."""
    means, _, _ = case(draw)
    problem, horizon = Problem.of(means.model, means.backup), draw.pick([1, 2, 5], "H")
    cut = cruiser.Truncation.at(problem, horizon)
    return within(means.orders()[0] - means.orders(horizon, problem.middle)[0], (-cut.below, cut.above))


def cut_returns(case: Case, draw: Draw) -> float:
    """Q − E X for the returns of all actions, by chains of order 1 that are cut off."""
    means, values, error = case(draw)
    problem, horizon = Problem.of(means.model, means.backup), draw.pick([1, 2, 5, 30], "H")
    optimal = cruiser.Truncation.at(problem, horizon).optimal
    above = problem.discount * cruiser.bias(1, error, problem, 0.0)[1]
    missed = means.action_values(values) - means.at_horizon(horizon, problem.middle)[1]
    alive = (means.table > -np.inf) & ~means.model.terminal[:, None]
    return within(missed[alive], (-optimal, optimal + above))


# --- Supports of chains -----------------------------------------------------------------------------------------------


def supports(draw: Draw) -> tuple[ChainMeans, SimpleNamespace, Floats, Floats]:
    """Chains, what the library knows of them, and the extremes of their returns, [S, K] each, less Q̂.

    With F at the reference added, a return is a chain whose first action is given.
    """
    means, _, _ = chains(draw)
    problem, horizon = Problem.of(means.model, means.backup), draw.pick([1, 2, 5, 30], "H")
    own = means.backup.value(means.table)[:, None] - means.table
    alive = ~means.model.terminal
    advantages = min(float(own[alive].min()), 0.0), max(float(own[alive].max()), 0.0)
    known = SimpleNamespace(
        problem=problem,
        _advantages=advantages,
        _support=cruiser.support(problem, advantages, horizon),
        horizon=horizon,
    )
    ends = []
    for sign in (-1.0, 1.0):
        chain = np.where(alive, sign * problem.middle, 0.0)
        for _ in range(horizon):
            future = np.where(means.model.probabilities > 0.0, chain[means.model.successors], -np.inf).max(axis=2)
            returns = sign * means.model.expected_rewards + problem.discount * future
            chain = np.where(alive, (returns + sign * own).max(axis=1), 0.0)
        ends.append(sign * returns[alive] - means.table[alive])
    return means, known, ends[0], ends[1]


def chain_support(draw: Draw) -> float:
    """The farthest that chains and returns come from the middle of their support."""
    means, known, lows, highs = supports(draw)
    low, high = known._support
    table = means.table[~means.model.terminal]
    at = means.backup.value(table)[:, None]
    middle = (low + high) / 2.0
    reached = max(
        float(np.maximum(highs + at, highs + table).max()) - middle,
        middle - float(np.minimum(lows + at, lows + table).min()),
    )
    return quotient(reached, high - middle)


def correction_support(draw: Draw) -> float:
    """The farthest that corrections come from the middle of their support."""
    _, known, lows, highs = supports(draw)
    pairs = draw.pick([2, 3, 10], "n")
    low, high = cruiser.Sampling._correction_support(known, pairs)  # type: ignore[arg-type]
    steps = known.problem.discount ** np.arange(known.horizon)
    ends = steps.sum() / 4.0 * statistic_ends(lows, highs, pairs)
    middle = (low + high) / 2.0
    return quotient(max(float(ends.max()) - middle, middle - float(ends.min())), high - middle)


# --- Values -----------------------------------------------------------------------------------------------------------


def gap_to_maximum(draw: Draw) -> float:
    """F − max at one step."""
    actions = draw.pick([2, 3, 4], "K")
    backup, q = mixture(draw, actions), draw.scale(0.01, 50.0) * draw.reals(actions)
    low, high = curvature.gap_to_hard_max(backup, actions)
    return inside(backup.value(q) - q.max(), (low, high))


def gap_of_values(case: Case, draw: Draw) -> float:
    """V − V_max at every state."""
    means, values, _ = case(draw)
    model, unit = means.model, 1e-13 * (1.0 + float(np.abs(values).max()))
    tolerance = unit * effective_horizon(model) ** 2
    moved = (values - sp.exact.solve(model, sp.HardMax(), tolerance).values)[~model.terminal]
    return inside(moved, curvature.gap_of_values(model, means.backup), tolerance)


def value_interval(kind: Literal["values", "policy_values", "action_values"], case: Case, draw: Draw) -> float:
    """Optimal values, the value of a policy, or optimal action values, in the interval that contains them all."""
    means, values, _ = case(draw)
    found = {"values": values, "policy_values": means.orders()[0], "action_values": means.action_values(values)}[kind]
    alive = ~means.model.terminal
    if kind == "action_values":
        alive = alive[:, None] & (means.table > -np.inf)
    return inside(found[alive], getattr(Problem.of(means.model, means.backup), kind))


def values_with_steps_left(draw: Draw) -> float:
    """Optimal values in the interval for as many steps as are left."""
    means, values, _ = seasons(draw)
    depths = means.model.depths
    return max(
        inside(values[depths == left], curvature.value_interval(means.model, means.backup, left))
        for left in set(depths[depths > 0].tolist())
    )


def inside(numbers: Floats, ends: tuple[float, float], tolerance: float = 1e-10) -> float:
    """The farthest that numbers, known up to a tolerance, come from the middle of an interval, over half its width."""
    middle = (ends[0] + ends[1]) / 2.0
    return quotient(float(np.abs(np.asarray(numbers) - middle).max()) - tolerance, ends[1] - middle)


SHORTLY, AT_LENGTH = (partial(chains, discounts=discounts) for discounts in (SHORT, LONG))

# --- The table --------------------------------------------------------------------------------------------------------

BIAS = "smoothplan.theory.curvature.reference_bias"
CONSTANT = "smoothplan.theory.curvature.remainder_constant"
JOINT = "smoothplan.theory.softmaxes.cumulant_bounds"
PROBLEM, VALUES = "smoothplan.theory.curvature.Problem.", "smoothplan.theory.curvature.value_interval"
EVERY: dict[str, Case] = {"": chains, ", episodes": seasons}

TARGETS = [
    Target("F − T₁ over range²/(8η)", CONSTANT, partial(remainder, 1, 2)),
    Target("F − T₁ over min(range, range²/(8η))", "smoothplan.recursive.level.first_order", first_remainder),
    Target("F − T₂ over range²/(8η)", CONSTANT, partial(remainder, 2, 2)),
    Target("F − T₂ over √3·range³/(108η²)", CONSTANT, partial(remainder, 2, 3)),
    *(
        Target(f"cumulant of order {order}", "smoothplan.theory.softmaxes.CUMULANTS", partial(cumulant, "x" * order))
        for order in range(2, 7)
    ),
    Target("κ(Y, Y, Z), Y an indicator", JOINT, partial(cumulant, "YYz")),
    Target("κ(Y, Z, Z), Y an indicator", JOINT, partial(cumulant, "Yzz")),
    Target("κ(Y, Y, Y, Z, Z), Y an indicator", JOINT, partial(cumulant, "YYYzz")),
    *(
        Target(f"joint cumulant of order {order}", JOINT, partial(cumulant, "abcdef"[:order]), starts=50)
        for order in range(3, 7)
    ),
    *(
        Target(f"bias of chains of order {order}, {horizons} horizons", BIAS, partial(reference_bias, order, case))
        for order in (1, 2)
        for horizons, case in (("short", SHORTLY), ("long", AT_LENGTH), ("finite", seasons))
    ),
    Target("bias of chains of order 2, cut off", "smoothplan.chains.cruiser.bias", cut_bias),
    *(
        Target(f"{name}, cut off{also}", "smoothplan.chains.cruiser.Truncation.at", partial(ratio, case))
        for also, case in EVERY.items()
        for name, ratio in (("value of a policy", cut_value), ("returns of actions", cut_returns))
    ),
    Target("support of chains and returns", "smoothplan.chains.cruiser.support", chain_support),
    Target("support of corrections", "smoothplan.chains.cruiser.Sampling", correction_support),
    Target("F − max", "smoothplan.theory.curvature.gap_to_hard_max", gap_to_maximum),
    *(
        target
        for also, case in EVERY.items()
        for target in (
            Target(f"V − V_max{also}", "smoothplan.theory.curvature.gap_of_values", partial(gap_of_values, case)),
            Target(f"optimal values{also}", VALUES, partial(value_interval, "values", case)),
            Target(
                f"values of policies{also}", PROBLEM + "policy_values", partial(value_interval, "policy_values", case)
            ),
            Target(
                f"optimal action values{also}",
                PROBLEM + "action_values",
                partial(value_interval, "action_values", case),
            ),
        )
    ),
    Target("optimal values, with steps left", VALUES, values_with_steps_left),
]
