"""Planners by others, for the study `peers`: KL-OLOP in Python, and the Gumbel search of mctx, if it is installed.

Both draw transitions of a table one by one, as from a simulator.
"""

import math
from bisect import bisect_right
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats
from smoothplan.models.tabular import TabularModel
from smoothplan.theory import curvature
from smoothplan.theory.backups import HardMax


class Drawn(NamedTuple):
    """A table to draw from: the entry of a pair whose running sum is the first to exceed a uniform number."""

    sums: Floats  # [S, K, B]; the last ones are above 1
    successors: Any  # [S, K, B]
    rewards: Floats  # [S, K, B]
    ends: Any  # [S, K, B]

    @classmethod
    def of(cls, model: TabularModel) -> "Drawn":
        """The table of a model whose rewards are not drawn."""
        assert model.reward_kind != "bernoulli", "rewards are drawn with their transitions"
        sums = np.cumsum(model.probabilities, axis=2)
        sums[:, :, -1] = 2.0
        rewards = model.rewards if model.rewards.ndim == 3 else model.rewards[:, :, None]
        return cls(sums, model.successors, np.broadcast_to(rewards, sums.shape), model.ends)


def lengths(calls: int, discount: float) -> tuple[int, int]:
    """The most episodes M that calls pay for, and their length L = ⌈log M / (2 log 1/γ)⌉ (Bubeck and Munos, 2010)."""
    for length in range(1, calls + 1):
        episodes = calls // length
        if length >= math.log(episodes) / (2.0 * math.log(1.0 / discount)):
            return episodes, length
    raise ValueError(f"calls must be at least 1, got {calls}")


def kl_bounds(means: Floats, counts: Floats, evidence: float) -> Floats:
    """The largest q with count · kl(mean, q) ≤ evidence, for means [n] of numbers in [0, 1], by bisection."""
    low, high = means.copy(), np.ones(len(means))
    for _ in range(20):
        q = 0.5 * (low + high)
        with np.errstate(divide="ignore", invalid="ignore"):
            kl = np.nan_to_num(means * np.log(means / q)) + np.nan_to_num((1 - means) * np.log((1 - means) / (1 - q)))
        inside = counts * kl <= evidence
        low, high = np.where(inside, q, low), np.where(inside, high, q)
    return high


def kl_olop(model: TabularModel, state: int, calls: int, rng: np.random.Generator) -> int:
    """The action of KL-OLOP (Leurent and Maillard, 2020): the first one of the sequence that is played most.

    A node is a sequence of actions. Its bound is that of its discounted mean reward, plus the least of what its best
    continuation and all later rewards can be worth. An episode follows the largest bounds, and then
    renews those on its way.
    """
    sums_of, successors, rewards, ends = (array.tolist() for array in Drawn.of(model))
    actions, discount = model.actions, model.discount
    low, high = min(model.reward_range[0], 0.0), max(model.reward_range[1], 0.0)  # after an end rewards are 0
    episodes, length = lengths(calls, discount)
    evidence = 2.0 * math.log(episodes) + 2.0 * math.log(max(math.log(episodes), 1.0))
    weights = discount ** np.arange(length)
    tails = discount * weights / (1.0 - discount)
    children: list[list[int]] = [[0] * actions]  # 0: not played yet
    sums, counts, bounds = [0.0], [0], [math.inf]
    for _ in range(episodes):
        node, place, over, path = 0, state, False, []
        for _ in range(length):
            options = [bounds[child] if child else math.inf for child in children[node]]
            best = max(options)
            tied = [a for a, bound in enumerate(options) if bound == best]
            action = tied[int(len(tied) * rng.random())]
            if not children[node][action]:
                children[node][action] = len(children)
                children.append([0] * actions)
                sums.append(0.0)
                counts.append(0)
                bounds.append(math.inf)
            node, reward = children[node][action], 0.0
            if not over:
                branch = bisect_right(sums_of[place][action], rng.random())
                reward, over = rewards[place][action][branch], ends[place][action][branch]
                place = successors[place][action][branch]
            sums[node] += (reward - low) / (high - low)
            counts[node] += 1
            path.append(node)
        played = np.array([counts[node] for node in path], dtype=float)
        upper = weights * kl_bounds(np.array([sums[node] for node in path]) / played, played, evidence)
        for depth in range(length - 1, -1, -1):
            later = [bounds[child] if child else math.inf for child in children[path[depth]]]
            bounds[path[depth]] = float(upper[depth]) + min(float(tails[depth]), max(later))
    return int(np.argmax([counts[child] if child else 0 for child in children[0]]))


HAS_MCTX = find_spec("mctx") is not None


@cache
def _search() -> Any:
    """A compiled search of mctx: (table, discount, value of a new node), key, state, simulations, trees → action."""
    jax, mctx = import_module("jax"), import_module("mctx")
    jnp = jax.numpy

    def step(known: Any, key: Any, action: Any, place: Any) -> Any:
        (sums, successors, rewards, ends), discount, leaf = known
        state, over = place
        branch = (jax.random.uniform(key, action.shape)[:, None] >= sums[state, action]).sum(axis=1)
        ended = over | ends[state, action, branch]
        found = mctx.RecurrentFnOutput(
            reward=jnp.where(over, 0.0, rewards[state, action, branch]),
            discount=jnp.where(ended, 0.0, discount),
            prior_logits=jnp.zeros((len(action), sums.shape[1])),
            value=jnp.where(ended, 0.0, leaf),
        )
        return found, (successors[state, action, branch], ended)

    def search(known: Any, key: Any, state: Any, simulations: int, trees: int) -> Any:
        root = mctx.RootFnOutput(
            prior_logits=jnp.zeros((trees, known[0].sums.shape[1])),
            value=jnp.full(trees, known[2]),
            embedding=(jnp.full(trees, state), jnp.zeros(trees, dtype=bool)),
        )
        found = mctx.gumbel_muzero_policy(known, key, root, step, simulations, gumbel_scale=0.0)
        # Every action is played in every tree: there are at most 16.
        return found.action[0] if trees == 1 else found.search_tree.summary().qvalues.mean(axis=0).argmax()

    return jax.jit(search, static_argnames=("simulations", "trees"))


def gumbel(model: TabularModel, state: int, calls: int, trees: int, seed: int) -> int:
    """The action of mctx's Gumbel search (Danihelka et al., 2022), of a number of trees that share the calls.

    A node has the transition that was drawn when it was added, once and for all: one tree plans for these draws, and
    many trees average their action values. Priors are uniform, and a new node has the middle of the possible values.
    A simulation counts as one call, even after an end.
    """
    jax = import_module("jax")
    middle = sum(curvature.value_interval(model, HardMax())) / 2.0
    table = Drawn(*map(jax.numpy.asarray, Drawn.of(model)))
    known = table, model.discount, middle
    return int(_search()(known, jax.random.key(seed), state, simulations=calls // trees, trees=trees))
