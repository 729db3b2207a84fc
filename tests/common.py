"""What several test files share: models, a counting simulator, and views of a result."""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.arguments import Floats
from smoothplan.models.base import States
from smoothplan.running.run import Diagnosis, Identification


def ending(actions: int, discount: float, seed: int, rewards: tuple[float, float] = (-1.0, 2.0)) -> sp.TabularModel:
    """Rewards of either sign that depend on the next state, and every fourth state terminal."""
    rng = np.random.default_rng(seed)
    shape = (12, actions, 3)
    return sp.TabularModel(
        rng.dirichlet(np.ones(3), size=shape[:2]),
        rng.integers(12, size=shape),
        rng.uniform(*rewards, size=shape),
        discount=discount,
        reward_kind="bounded",
        reward_range=rewards,
        terminal=np.arange(12) % 4 == 3,
    )


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
    assert isinstance(result.details, Identification)
    return result.details


def diagnosed(result: sp.PlanResult) -> Diagnosis:
    """What chains say of a reference, where there is one."""
    assert isinstance(result.details, Diagnosis)
    return result.details


def content(result: sp.PlanResult) -> dict[str, Any]:
    """Everything that a run found; not how long it took."""
    fields: dict[str, Any] = json.loads(result.to_json())
    del fields["seconds"]
    return fields
