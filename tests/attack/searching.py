"""Attacks on the bounds of a search: confidence sets that just contain the truth, and what follows from them.

The adversary chooses a model, and which outcomes were seen how often. Each pair has the smallest radius at which what
is proved with high probability holds: the true mean of the next value is in its set. Then all bounds must contain the
truth.
"""

import math
from functools import partial

import numpy as np
from scipy.optimize import minimize_scalar

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.bounds import converge as converging
from smoothplan.confidence import kl
from smoothplan.graph.explorer import Explorer
from smoothplan.graph.graph import ENDED
from tests.attack.climbing import Draw, Target
from tests.attack.curvatures import chains
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


def search(draw: Draw) -> tuple[Explorer, Floats, Floats]:
    """A search whose sets just contain the truth, and the optimal values [n] and action values [n, K] of its states."""
    means, values, _ = chains(draw)
    model = means.model
    explorer = begun(sp.OTGapE(means.backup, 0.0, successors=draw.pick([None, model.states + 1])), model)
    alive = np.flatnonzero(~model.terminal)
    keys, numbers = np.full((2, model.states), ENDED)
    keys[alive], numbers[alive] = alive, [explorer.number(state) for state in alive]
    least, most, bound = explorer.rules.span_low[0], explorer.rules.span_high[0], explorer.rules.bound
    for state, action in np.ndindex(len(alive), model.actions):
        chances = model.probabilities[state, action]
        times = np.floor(COUNT * draw.law(len(chances)) * (chances > 0.0)).astype(np.int64)
        times[np.argmax(chances)] += COUNT - times.sum()
        seen = np.flatnonzero(times)
        reward = float(model.expected_rewards[state, action])
        entry = numbers[state] * model.actions + action
        rewards, entries = np.full(len(seen), reward), np.full(len(seen), entry)
        explorer.record(entries, keys[seen], rewards, times[seen])
        pair, shares, mean = explorer.graph.pairs[entry], times[seen] / COUNT, float(chances @ values)
        if bound == 1:
            continue
        if bound == 2:  # the interval of the first one's probability, which is that of all values
            first = explorer.graph.successors[pair["start"]]
            share, chance = (float(law[numbers == first].sum()) for law in (times / COUNT, chances))
            level = kl.bernoulli_divergence(share, chance)
            pair["first_low"] = kl.bernoulli_lower(share, level * (1.0 + 1e-9) + 1e-12)
            pair["first_high"] = kl.bernoulli_upper(share, level * (1.0 + 1e-9) + 1e-12)
        else:
            all_seen = len(seen) == bound
            up = smallest_radius(shares, values[seen], mean, values[seen].max() if all_seen else most)
            down = smallest_radius(shares, -values[seen], -mean, -values[seen].min() if all_seen else -least)
            level = max(up, down)
        pair["level"] = level * (1.0 + 1e-9) + 1e-12
    for _ in range(100):
        explorer.sweep()
    return explorer, values[np.asarray(explorer.states)], means.action_values(values)[np.asarray(explorer.states)]


def contained(low: Floats, truth: Floats, high: Floats) -> float:
    """The largest distance from the middle of an interval over half of its width, of intervals that are no points."""
    half = (high - low) / 2.0
    distance = np.abs(truth - (low + high) / 2.0) - 1e-8
    return float(np.max(distance / np.maximum(half, 1e-3)))


def swept(draw: Draw) -> float:
    """Values and action values after sweeps."""
    explorer, values, q = search(draw)
    graph, count = explorer.graph, len(values)
    low, high = (np.append(v[:count], w[: q.size]) for v, w in ((graph.low, graph.q_low), (graph.high, graph.q_high)))
    return contained(low, np.append(values, q), high)


def converged(relative: bool, draw: Draw) -> float:
    """The same by bounds that have converged; relative ones are of V − V(anchor) and of Q − γ·V(anchor)."""
    explorer, values, q = search(draw)
    graph, rules, anchor = explorer.graph, explorer.rules, draw.pick([0, 1]) % len(values) if relative else -1
    ends = []
    for side, value in ((-1, graph.high[anchor]), (1, graph.low[anchor])):
        found = converging.new_side(graph, rules, side, anchor, float(value))
        converging.converge(graph, rules, found, explorer.work.frames, explorer.work.room, 1e-6)
        ends.append(side * np.append(found.values, found.q + (1.0 - rules.discount) * found.base))
    base = values[anchor] if relative else 0.0
    return contained(ends[0], np.append(values - base, q - rules.discount * base), ends[1])


CONVERGE = "smoothplan.bounds.converge.converge"

TARGETS = [
    Target("search: values by sweeps", "smoothplan.graph.sets.sweep", swept, starts=4, steps=25),
    Target("search: values by convergence", CONVERGE, partial(converged, False), starts=4, steps=25),
    Target("search: relative values", CONVERGE, partial(converged, True), starts=4, steps=25),
]
