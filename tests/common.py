"""What several test files share: models, a counting simulator, and views of a result."""

import json
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.arguments import Floats
from smoothplan.backups import line_cost
from smoothplan.models.base import States
from smoothplan.running.run import EngineName, Identification, Root
from smoothplan.search.explorer import Explorer


def ending(actions: int, discount: float, seed: int) -> sp.TabularModel:
    """Rewards of either sign that depend on the next state, and every fourth state terminal."""
    rng = np.random.default_rng(seed)
    shape = (12, actions, 3)
    return sp.TabularModel(
        rng.dirichlet(np.ones(3), size=shape[:2]),
        rng.integers(12, size=shape),
        rng.uniform(-1.0, 2.0, size=shape),
        discount=discount,
        reward_kind="bounded",
        reward_range=(-1.0, 2.0),
        terminal=np.arange(12) % 4 == 3,
    )


def by_state(model: sp.TabularModel) -> sp.OptimalTransport:
    """Optimal transport whose reference depends on the state."""
    reference = np.random.default_rng(0).dirichlet(np.ones(model.actions), size=model.states)
    return sp.OptimalTransport(cost=line_cost(model.actions), tau=1.0, lam=0.3, reference=reference)


def begun(planner: sp.OTGapE, model: Any, engine: EngineName = "auto", state: Any = 0, seed: int = 1) -> Explorer:
    """A search by bounds at its start."""
    return planner._explorer(Root(model, state, seed, None, None, engine, time.perf_counter()))


def vectorised(model: sp.TabularModel, step: Any = None) -> sp.VectorModel:
    """The same simulator, of which no table is known; or another step with the same declarations."""
    return sp.VectorModel(
        step or model.step,
        actions=model.actions,
        discount=model.discount,
        reward_range=model.reward_range,
        reward_kind=model.reward_kind,
        max_successors=model.max_successors,
        terminates=model.terminates,
        initial_state=0,
    )


@dataclass
class Counter:
    """A simulator that counts its calls, threads and all, a whole batch at a time; and is interrupted after many."""

    model: sp.TabularModel
    calls: int = 0
    interrupted_after: float = math.inf

    def __call__(self, states: States, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        if self.calls >= self.interrupted_after:
            raise KeyboardInterrupt
        self.calls += len(actions)
        return self.model.step(states, actions, rng)


def intervals_of(result: sp.PlanResult) -> Floats:
    """The intervals of the root's actions, which must be there."""
    assert result.q_intervals is not None
    return result.q_intervals


def identified(result: sp.PlanResult) -> Identification:
    """How the best action was found, where one was looked for."""
    assert result.identification is not None
    return result.identification


def content(result: sp.PlanResult) -> dict[str, Any]:
    """Everything that a run found; not how long it took."""
    fields: dict[str, Any] = json.loads(result.to_json())
    del fields["seconds"]
    return fields
