"""Models of every kind for decisions, and what counts their calls."""

from collections.abc import Callable
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.models.model import States
from tests.common import Counter, vectorised

TABLE = sp.models.garnet(states=12, actions=3, branching=3, discount=0.8, seed=3)
JITTED = sp.models.cart_pole(discount=0.9)

DECLARED: dict[str, Any] = {"actions": 3, "discount": 0.8, "reward_range": (0, 1), "terminates": False}


def walk(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
    """Steps in the plane; it pays to be at its centre."""
    moved = states + 0.3 * (actions - 1)[:, None] + 0.1 * rng.standard_normal(states.shape)
    return np.clip(moved, -2.0, 2.0), np.exp(-(states**2).sum(axis=1))


def serve(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
    """Three queues, of which one is served faster."""
    arrivals, served = rng.integers(0, 3, states.shape), 1 + 3 * (np.arange(3) == actions[:, None])
    return np.clip(states + arrivals - served, 0, 99), -states.sum(axis=1).astype(np.float64)


class Drift:
    """A walk on a line that steps one state at a time, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float]:
        self.calls += 1
        return state + 0.3 * (action - 1) + 0.1 * rng.standard_normal(), float(np.exp(-state * state))


def plane(step: Any = walk) -> sp.VectorModel:
    return sp.VectorModel(step, **DECLARED, initial_state=np.array([1.0, -1.0]))


def queues(step: Any = serve) -> sp.VectorModel:
    return sp.VectorModel(step, **DECLARED | {"reward_range": (-300, 0)}, initial_state=np.array([5, 50, 20]))


def line(step: Any = None) -> sp.VectorModel:
    return sp.VectorModel.from_scalar(Drift() if step is None else step, **DECLARED, initial_state=0.5)


MODELS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "floats": plane,
    "whole numbers": queues,
    "scalar": line,
    "compiled": lambda: JITTED,
}


def counted(name: str) -> tuple[Any, Any]:
    """A model, and what counts its calls; a table is counted as a simulator without a table."""
    if name == "scalar":
        single = Drift()
        return line(single), single
    made: Callable[[Any], Any] = {"table": lambda step: vectorised(TABLE, step), "floats": plane}.get(name, queues)
    counter = Counter(MODELS[name]())
    return made(counter), counter


def critic(*q: float) -> sp.CriticReference:
    """The same action values everywhere."""
    return sp.CriticReference(lambda states: np.tile(q, (len(states), 1)))
