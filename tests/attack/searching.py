"""Attacks on the bounds of a search: confidence sets that just contain the truth, and what follows from them.

The adversary chooses a model, and which outcomes were seen how often. Each pair has the smallest radius at which what
is proved with high probability holds: the true mean of the next value is in its set. Then all bounds must contain the
truth.
"""

import math
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from scipy.optimize import minimize_scalar

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.bounds import converge as converging
from smoothplan.confidence import kl
from smoothplan.graph.explorer import Explorer
from smoothplan.graph.graph import ENDED
from smoothplan.models import finite_horizon
from tests.attack.climbing import Draw, Target
from tests.attack.curvatures import chains, seasons
from tests.common import begun

COUNT = 1000


def smallest_radius(shares: Floats, values: Floats, mean: float, top: float) -> float:
    """K_inf: the least divergence from a distribution on values [m] of one on values up to `top`, of at least a mean.

    By its dual, max over 0 ≤ λ ≤ 1/(top − mean) of Σ share·log(1 − λ(value − mean)).
    """
    if shares @ values >= mean:
        return 0.0
    if mean >= top:
        return math.inf

    def loss(part: float) -> float:
        return -float(shares @ np.log1p(-part * (1.0 - 1e-12) * (values - mean) / (top - mean)))

    found = minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-12})
    return max(-float(found.fun), -loss(1.0), 0.0)


class Truth(NamedTuple):
    """A search whose sets just contain the truth, and the optimal values of its n states at H stages."""

    explorer: Explorer
    values: Floats  # [n, H]
    q: Floats  # [n, H, K], −∞ for illegal actions


def search(kind: Literal["endless", "episodes", "stages"], draw: Draw) -> Truth:
    """Of a model without a horizon, of one with a horizon, or of one that is cut off after some steps."""
    means, optimal, _ = seasons(draw) if kind == "episodes" else chains(draw)
    model, given, root = means.model, means.model, 0
    if kind == "stages":
        discount = draw.pick([1.0, model.discount])
        given = cast(sp.TabularModel, finite_horizon(model, draw.pick([1, 2, 3], "N"), discount=discount))
        tolerance = 1e-13 * (given.horizon or 1) ** 2 * (1.0 + float(np.abs(model.expected_rewards).max()))
        optimal = sp.exact.solve(given, means.backup, tolerance).values
    stages = optimal.reshape(-1, model.states)  # of the states that the search tells apart, [H + 1, S], or [1, S]
    ahead = stages[1:] if kind == "stages" else stages
    explorer = begun(sp.OTGapE(means.backup, 0.0, successors=draw.pick([None, model.states + 1])), given, state=root)
    rules, alive = explorer.rules, np.flatnonzero(~model.terminal)
    keys, numbers = np.full((2, model.states), ENDED)
    keys[alive], numbers[alive] = alive, [explorer.number(state) for state in alive]
    ends = list(zip(rules.span_low[-len(ahead) :], rules.span_high[-len(ahead) :], strict=True))
    for state, action in np.ndindex(len(alive), model.actions):
        if model.legal is not None and not model.legal[state, action]:
            continue
        chances, after = model.probabilities[state, action], model.successors[state, action]
        times = np.floor(COUNT * draw.law(len(chances)) * (chances > 0.0)).astype(np.int64)
        times[np.argmax(chances)] += COUNT - times.sum()
        seen = np.flatnonzero(times)
        entry = numbers[state] * model.actions + action
        rewards, entries = np.full(len(seen), model.expected_rewards[state, action]), np.full(len(seen), entry)
        explorer.record(entries, keys[after[seen]], rewards, times[seen])
        pair, shares = explorer.graph.pairs[entry], times[seen] / COUNT
        if rules.bound == 1:
            continue
        if rules.bound == 2:  # the interval of the first one's probability, which is that of all values
            first = explorer.graph.successors[pair["start"]]
            share, chance = (float(law[numbers[after] == first].sum()) for law in (times / COUNT, chances))
            level = kl.bernoulli_divergence(share, chance)
            pair["first_low"] = kl.bernoulli_lower(share, level * (1.0 + 1e-9) + 1e-12)
            pair["first_high"] = kl.bernoulli_upper(share, level * (1.0 + 1e-9) + 1e-12)
        else:
            level, all_seen = 0.0, len(seen) == rules.bound
            for values, (least, most) in zip(ahead[:, after], ends, strict=True):
                mean = float(chances @ values)
                up = smallest_radius(shares, values[seen], mean, values[seen].max() if all_seen else most)
                down = smallest_radius(shares, -values[seen], -mean, -values[seen].min() if all_seen else -least)
                level = max(level, up, down)
        pair["level"] = level * (1.0 + 1e-9) + 1e-12
    for _ in range(100 if rules.endless else 1):
        explorer.sweep()
    states = np.asarray(explorer.states)
    future = np.einsum("skb,hskb->hsk", model.continuation, ahead[:, model.successors])
    q = model.expected_rewards + rules.discount * future
    q = q if model.legal is None else np.where(model.legal, q, -np.inf)
    return Truth(explorer, stages[: len(ahead), states].T, np.swapaxes(q[:, states], 0, 1))


def contained(low: Floats, truth: Floats, high: Floats) -> float:
    """The largest distance from the middle of an interval over half of its width, of intervals that are no points."""
    known = truth > -np.inf
    if not (high[~known] == -np.inf).all():  # of illegal actions
        return math.inf
    low, truth, high = low[known], truth[known], high[known]
    half = (high - low) / 2.0
    distance = np.abs(truth - (low + high) / 2.0) - 1e-8
    return float(np.max(distance / np.maximum(half, 1e-3)))


def swept(kind: Any, draw: Draw) -> float:
    """Values and action values after sweeps."""
    (graph, values, q) = ((found := search(kind, draw)).explorer.graph, found.values.reshape(-1), found.q.reshape(-1))
    pairs = (graph.low, graph.q_low), (graph.high, graph.q_high)
    low, high = (np.append(ends[: len(values)], of_q[: len(q)]) for ends, of_q in pairs)
    return contained(low, np.append(values, q), high)


def converged(kind: Any, relative: bool, draw: Draw) -> float:
    """The same by bounds that have converged; relative ones are of V − V(anchor) and of Q − γ·V(anchor)."""
    explorer, values, q = search(kind, draw)
    graph, rules, anchor = explorer.graph, explorer.rules, draw.pick([0, 1]) % len(values) if relative else -1
    ends = []
    for side, value in ((-1, graph.high[anchor]), (1, graph.low[anchor])):
        found = converging.new_side(graph, rules, side, anchor, float(value), explorer.order())
        converging.converge(graph, rules, found, explorer.work.frames, explorer.work.room, 1e-6)
        ends.append(side * np.append(found.values, found.q + (1.0 - rules.discount) * found.base))
    base = values[anchor, 0] if relative else 0.0
    return contained(ends[0], np.append(values - base, q - rules.discount * base), ends[1])


CONVERGE = "smoothplan.bounds.converge.converge"

SWEEP = "smoothplan.graph.sets.sweep"

TARGETS = [
    Target("search: values by sweeps", SWEEP, partial(swept, "endless"), starts=4, steps=25),
    Target("search: values by convergence", CONVERGE, partial(converged, "endless", False), starts=4, steps=25),
    Target("search: relative values", CONVERGE, partial(converged, "endless", True), starts=4, steps=25),
    Target("search: values by sweeps, episodes", SWEEP, partial(swept, "episodes"), starts=4, steps=25),
    Target("search: values by convergence, episodes", CONVERGE, partial(converged, "episodes", False), 4, 25),
    Target("search: values by sweeps, stages", SWEEP, partial(swept, "stages"), starts=4, steps=25),
    Target("search: values by convergence, stages", CONVERGE, partial(converged, "stages", False), 4, 25),
]
