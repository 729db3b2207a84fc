"""Models and references that the tests of chains share, and exact numbers for them."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.chains.cruiser import ReferenceCruiser, ReferenceRun
from smoothplan.chains.reference import Reference
from smoothplan.models.model import GenerativeModel, States
from smoothplan.run.records import EngineName, Root
from smoothplan.theory.backups import HardMax, LogSumExp, OptimalTransport, SoftmaxMixture, line_cost
from tests import common

SLACK = 1e-8
"""For rounding, in comparisons with exact solutions."""

TRANSPORT = sp.OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.4)


CORNER = np.array([2.4, 3.0, 0.21, 3.0])
"""The states of a cart with a pole lie between this and its opposite, for most of the time."""


def garnet(seed: int = 1, states: int = 12, actions: int = 3, discount: float = 0.7) -> sp.TabularModel:
    return sp.models.garnet(
        states=states, actions=actions, branching=3, discount=discount, seed=seed, reward_kind="bernoulli"
    )


def ending(seed: int = 1, discount: float = 0.7, actions: int = 3) -> sp.TabularModel:
    return common.ending(actions, discount, seed, (-3.0, 1.0))


def begun(planner: ReferenceCruiser, model: GenerativeModel, state: Any = 0) -> ReferenceRun:
    """A run that has made no call."""
    return cast(ReferenceRun, planner.start(root_of(model, state)))


def root_of(model: GenerativeModel, state: Any = 0, engine: EngineName = "auto") -> Root:
    return Root(model, state, 0, None, None, engine, 0.0)


@cache
def solved(model: Any, backup: Any) -> sp.exact.Solution:
    """The exact solution, found once."""
    return sp.exact.solve(model, backup, 1e-9)


def ranged(noise: Floats) -> Floats:
    """Errors [S, K] scaled so that max − min = 1 at every state."""
    return np.asarray((noise - noise.min(axis=1, keepdims=True)) / np.ptp(noise, axis=1)[:, None] - 0.5)


def policy_values(model: sp.TabularModel, backup: SoftmaxMixture, reference: Reference) -> Floats:
    """The exact values of ∇F(Q̂), for the reference as it was given, [S]."""
    policy = backup.policy(reference.q(np.arange(model.states)), np.arange(model.states))
    return sp.exact.evaluate(model, policy, backup, 1e-9).values


def hostile(model: sp.TabularModel, backup: SoftmaxMixture, seed: int) -> Iterator[Floats]:
    """Tables that nobody should plan by."""
    rng = np.random.default_rng(seed)
    q = solved(model, backup).q
    yield rng.normal(size=q.shape)
    yield np.full(q.shape, 3.0)
    yield -q
    yield -1e6 * q + 1e6
    yield 1e6 * rng.normal(size=q.shape)
    yield (1e15 + rng.integers(2, size=q.shape)).astype(np.float64)
    yield 50.0 * q
    yield q + 0.1 * rng.normal(size=q.shape)


World = tuple[sp.TabularModel, SoftmaxMixture]

WORLDS: list[World] = [
    (sp.models.garnet(states=12, actions=3, branching=2, discount=0.8, seed=1, sparsity=0.8), sp.LogSumExp(1.0)),
    (garnet(discount=0.8), sp.LogSumExp(0.2)),
    (garnet(2, discount=0.6), sp.LogSumExp(2.0)),
    (garnet(3, discount=0.7), TRANSPORT),
    (ending(discount=0.8), sp.LogSumExp(0.5)),
    (ending(2, discount=0.7), TRANSPORT),
]


def declared_worlds() -> list[World]:
    """The worlds with the narrowest range of ordinary values declared."""
    return [(common.declaring(model, value_range=common.ordinary_values(model)), backup) for model, backup in WORLDS]


def line(terminates: bool = True) -> sp.VectorModel:
    """A point on a line with two actions, which may fall off its left end."""

    def step(states: States, actions: Any, rng: Any) -> tuple[Any, Any, Any]:
        moved = states + 0.2 * (2.0 * actions - 1.0)[:, None] + 0.1 * rng.random(len(states))[:, None]
        moved = np.minimum(moved, 1.0)
        ends = moved[:, 0] < -0.5
        if not terminates:
            moved, ends = np.maximum(moved, -0.5), np.zeros(len(moved), dtype=np.bool_)
        return moved, np.where(moved[:, 0] > 0.0, 0.5, -1.0), ends

    declared: dict[str, Any] = {"reward_range": (-1.0, 0.5), "terminates": terminates, "initial_state": np.zeros(1)}
    return sp.VectorModel(step, actions=2, discount=0.8, **declared)


def signs(states: States) -> Floats:
    """A reference of any size that changes its mind."""
    flat = np.asarray(states, dtype=np.float64).reshape(len(states), -1).sum(axis=1)
    return np.stack([np.sin(50.0 * flat), np.cos(70.0 * flat)], axis=1)


BACKUPS: list[SoftmaxMixture] = [
    HardMax(),
    LogSumExp(0.3),
    OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.25, reference=[0.5, 0.3, 0.2]),
]


def simulated(step: Callable[..., tuple[Any, ...]], **declared: Any) -> sp.VectorModel:
    """A simulator of one number, with one action and one successor, unless other things are declared."""
    usual: dict[str, Any] = {"actions": 1, "discount": 0.5, "reward_range": (0, 1), "initial_state": [0.0]}
    return sp.VectorModel(step, **usual | {"max_successors": 1, "terminates": False} | declared)


def small(seed: int = 0, branching: int = 2) -> sp.TabularModel:
    return sp.models.garnet(states=5, actions=3, branching=branching, discount=0.6, seed=seed, reward_kind="bernoulli")


def counted(dimensions: int, single: bool, fail_at: float = np.inf) -> tuple[sp.VectorModel, list[int]]:
    """A walk in a cube, and a list of the sizes of its calls; after `fail_at` of them in all it raises."""
    made: list[int] = []

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        made.append(len(actions))
        if sum(made) > fail_at:
            raise KeyboardInterrupt
        noise = 0.0 if single else rng.normal(scale=0.2, size=states.shape)
        return np.clip(0.9 * states + 0.2 * (actions[:, None] - 1) + noise, -1.0, 1.0), np.abs(states).mean(axis=1)

    successors = 1 if single else None
    return simulated(step, actions=3, discount=0.9, max_successors=successors, initial_state=np.zeros(dimensions)), made


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
