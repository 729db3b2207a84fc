"""What the experiment `smoothing` measures: gaps of values, gaps that a search finds, a limit, a sailor's turns."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from smoothplan import curvature, exact
from smoothplan.arguments import Floats
from smoothplan.backups import HardMax, LogSumExp, OptimalTransport, discrete_cost, line_cost, ring_cost
from smoothplan.models.tabular import TabularModel
from smoothplan.models.zoo import COMPASS, garnet, sailing

COSTS: dict[str, Callable[[int], Floats]] = {
    "zero": lambda actions: np.zeros((actions, actions)),
    "discrete": discrete_cost,
    "line": line_cost,
    "ring": ring_cost,
}
MODEL: dict[str, Any] = {"states": 20, "actions": 6, "branching": 4, "discount": 0.9}
TOLERANCE = 1e-9
"""Of the exact solver."""

LIMITS = {
    "alike": "entropy, all actions alike",
    "generic": "entropy, random model",
    "line": "line costs, random model",
}
"""How the hard maximum is approached: C ≡ 0 where the actions are alike, or not; and C ≠ 0."""

LIMIT_LAM = 0.2
STARTS, ROUNDS = 24, 300
"""Of the search for the worst action values: random steps from several places, kept where they make a gap wider."""

GOAL_PRIOR, EXPLORATION = 0.9, 0.3
"""Of the sailor's reference: the odds of heading for the goal, mixed with a share ξ of the uniform distribution."""

SAILING_SIZE, SAILING_TEMPERATURE = 4, 0.5
TURNS = ("0°", "45°", "90°", "135°", "180°")


def transport(costs: str, tau: float, lam: float, reference: Floats | None = None) -> OptimalTransport:
    """A backup over the actions of the random models."""
    return OptimalTransport(cost=COSTS[costs](MODEL["actions"]), tau=tau, lam=lam, reference=reference)


@cache
def _model(seed: int) -> TabularModel:
    return garnet(**MODEL, seed=seed)


@cache
def _solved(seed: int, temperature: float) -> exact.Solution:
    """With the entropy backup, or with the hard maximum at temperature 0."""
    return exact.solve(_model(seed), LogSumExp(temperature) if temperature > 0.0 else HardMax(), TOLERANCE)


def value_gaps(backup: OptimalTransport, seed: int) -> dict[str, float]:
    """Gaps of optimal values over all states, and the bounds at the level of values."""
    model = _model(seed)
    values = exact.solve(model, backup, TOLERANCE).values
    entropy = values - _solved(seed, backup.temperature).values
    hard = values - _solved(seed, 0.0).values
    return _gaps(backup, entropy, hard, model.discount)


def _gaps(backup: OptimalTransport, entropy: Floats, hard: Floats, discount: float) -> dict[str, float]:
    """Extremes of V − V_entropy and V − V_max, beside the paper's bounds and the exact ranges."""
    bounds = {
        "entropy_bound": curvature.transfer_to_entropy(backup),
        "hard_bound": curvature.transfer_to_hard_max(backup, backup.actions),
    }
    low, high = curvature.gap_to_hard_max(backup, backup.actions)
    bounds |= {"range_low": low, "range_high": high}
    return {
        "entropy_gap": float(np.abs(entropy).max()),
        "hard_low": float(hard.min()),
        "hard_high": float(hard.max()),
        **{name: curvature.at_value_level(bound, discount) for name, bound in bounds.items()},
    }


def searched_gaps(s: Mapping[str, Any], rng: np.random.Generator) -> dict[str, float]:
    """The widest gaps of backups over action values that a search finds."""
    actions = MODEL["actions"]
    reference = None if s["reference"] == "uniform" else rng.dirichlet(np.full(actions, 0.1))
    backup = transport(s["costs"], s["tau"], s["lam"], reference)
    entropy = LogSumExp(backup.temperature)

    def widest(gap: Callable[[Floats], Floats]) -> float:
        return _climb(gap, backup.temperature, rng)

    apart = widest(lambda q: np.abs(backup.value(q) - entropy.value(q)))
    below = -widest(lambda q: q.max(axis=-1) - backup.value(q))
    above = widest(lambda q: backup.value(q) - q.max(axis=-1))
    return _gaps(backup, np.array([apart]), np.array([below, above]), discount=0.0)


def _climb(gap: Callable[[Floats], Floats], scale: float, rng: np.random.Generator) -> float:
    """The widest gap found: steps of one action's value, longer after a success, shorter after a failure."""
    actions = MODEL["actions"]
    q = scale * rng.normal(size=(STARTS, actions))
    found, length, starts = gap(q), np.full(q.shape, scale), np.arange(STARTS)
    for _ in range(ROUNDS):
        action = rng.integers(actions, size=STARTS)
        candidates = q.copy()
        candidates[starts, action] += length[starts, action] * rng.normal(size=STARTS)
        gaps = gap(candidates)
        better = gaps > found
        q[better], found[better] = candidates[better], gaps[better]
        length[starts, action] *= np.where(better, 2.0, 0.8)  # about one success in four keeps the length
    return float(found.max())


def limit_error(case: str, tau: float, lam: float, seed: int) -> dict[str, float]:
    """How far the smooth optimal values are from the unregularised ones."""
    model = _model(seed)
    if case == "alike":  # every action as the first one is
        first = (model.probabilities[:, :1], model.successors[:, :1], model.rewards[:, :1])
        shapes = (model.probabilities.shape, model.successors.shape, model.rewards.shape)
        tables = [np.broadcast_to(table, shape) for table, shape in zip(first, shapes, strict=True)]
        model = TabularModel(*tables, discount=model.discount, reward_range=model.reward_range)
    backup = transport("line" if case == "line" else "zero", tau, lam)
    hard = exact.solve(model, HardMax(), TOLERANCE).values
    error = float(np.abs(exact.solve(model, backup, TOLERANCE).values - hard).max())
    bound = curvature.transfer_to_hard_max(backup, model.actions)
    return {"temperature": backup.temperature, "error": error, "bound": bound / (1.0 - model.discount)}


def sailor_reference(model: TabularModel, size: int) -> Floats:
    """μ, [S, K]: most of it heads for the goal, the opposite corner, whatever the wind."""
    steps = np.array(COMPASS)
    prior = np.full((model.states, len(COMPASS)), (1.0 - GOAL_PRIOR) / (len(COMPASS) - 1))
    for state in range(model.states):
        row, column = divmod(state // len(COMPASS), size)
        way = np.sign([size - 1 - row, size - 1 - column])
        prior[state, int((steps @ way / np.linalg.norm(steps, axis=1)).argmax())] = GOAL_PRIOR
    return prior


@cache
def _lake() -> tuple[TabularModel, exact.Solution, Floats]:
    model = sailing(SAILING_SIZE)
    return model, exact.solve(model, HardMax(), TOLERANCE), sailor_reference(model, SAILING_SIZE)


def sailor(costs: str, tau: float) -> dict[str, Any]:
    """Turns from the reference's heading at the unregularised action values; and what the optimal policy loses."""
    model, best, prior = _lake()
    cost = COSTS[costs](model.actions)
    backup = OptimalTransport.from_prior(prior, EXPLORATION, cost=cost, tau=tau, lam=SAILING_TEMPERATURE / tau)
    alive = np.flatnonzero(~model.terminal)
    coupling = backup.coupling(best.q[alive], alive)  # [s, i, j]
    turn = (ring_cost(model.actions) * (model.actions // 2)).round().astype(int)  # [i, j]
    masses = [float(coupling[:, turn == angle].sum() / len(alive)) for angle in range(len(TURNS))]
    local = backup.local_policies(best.q[alive], alive)
    moved = np.where(turn > 0, local, 0.0).sum(axis=1)
    near = np.where(turn == 1, local, 0.0).sum(axis=1)
    share = float((backup.reference_at(alive) * near / moved).sum(axis=1).mean())
    followed = exact.evaluate(model, exact.solve(model, backup, TOLERANCE).policy, tolerance=TOLERANCE)
    return {"turns": masses, "near_share": share, "loss": float((best.values - followed.values)[alive].mean())}
