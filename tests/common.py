"""What several test files share: models, a counting simulator, and views of a result."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.bounds.gape import SearchRun
from smoothplan.confidence.kl import ball_extreme
from smoothplan.graph.explorer import Draw, Explorer, PairSampler, Sampled
from smoothplan.models.model import States
from smoothplan.run.chunks import Chunk, Outcome
from smoothplan.run.records import EngineName, GapDetails, ReferenceDetails, Root
from smoothplan.theory.backups import line_cost
from studies.recurrent import redeclared


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


def declaring(model: sp.TabularModel, **declarations: Any) -> sp.TabularModel:
    """The same table with other declarations."""
    by_state = (model.ends == model.terminal[model.successors]).all()
    return redeclared(model, terminal=model.terminal if by_state else model.ends, **declarations)


def bounded(model: sp.TabularModel) -> sp.TabularModel:
    """The same model, which declares no more of its rewards than their range."""
    if model.reward_kind != "bernoulli":
        return declaring(model, reward_kind="bounded")
    wins = model.rewards[..., None] * model.probabilities  # of 1; otherwise the reward is 0
    return sp.TabularModel(
        np.concatenate([model.probabilities - wins, wins], axis=-1),
        np.tile(model.successors, 2),
        np.repeat([0.0, 1.0], wins.shape[-1]) + np.zeros((*model.rewards.shape, 1)),
        discount=model.discount,
        reward_kind="bounded",
        reward_range=(0.0, 1.0),
        terminal=np.tile(model.ends, 2),
    )


def ordinary_values(model: sp.TabularModel) -> tuple[float, float]:
    """The smallest and the largest ordinary optimal value of the states that are not terminal."""
    values = sp.exact.solve(model, sp.HardMax(), 1e-10).values[~model.terminal]
    return float(values.min()), float(values.max())


TABLES: dict[str, Callable[[], sp.TabularModel]] = {
    "garnet, 0.5": lambda: sp.models.garnet(states=20, actions=3, branching=3, discount=0.5, seed=1),
    "garnet, 0.9": lambda: sp.models.garnet(states=40, actions=2, branching=5, discount=0.9, seed=2),
    "garnet, 0.999": lambda: sp.models.garnet(states=15, actions=4, branching=2, discount=0.999, seed=3),
    "bernoulli garnet": lambda: sp.models.garnet(states=15, actions=2, branching=2, seed=4, reward_kind="bernoulli"),
    "ending garnet": lambda: recurrent(0, "transition", states=12, actions=3, branching=4, discount=0.95),
    "chain": lambda: sp.models.chain(),
    "river, 0.999": lambda: sp.models.river_swim(discount=0.999),
    "rooms": lambda: sp.models.two_room(size=3),
    "lake": lambda: sp.models.frozen_lake(discount=0.99),
    "sailing": lambda: sp.models.sailing(size=3),
    "inventory": lambda: sp.models.inventory(),
    "myopic": lambda: sp.models.garnet(states=5, actions=2, branching=2, discount=0.0, seed=5),
    "single action": lambda: sp.models.garnet(states=6, actions=1, branching=3, seed=6),
}
"""Tables of every kind, by name."""


def dense(model: sp.TabularModel) -> tuple[Floats, Floats, Floats]:
    """Probabilities, expected rewards and probabilities of ending, by next state: three arrays [S, K, S]."""
    shape = (model.states, model.actions, model.states)
    probabilities, rewards, ends = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    table = model.rewards if model.rewards.ndim == 3 else model.rewards[..., None].repeat(model.ends.shape[2], axis=2)
    for s, a, b in np.ndindex(model.probabilities.shape):
        place, probability = (s, a, model.successors[s, a, b]), model.probabilities[s, a, b]
        probabilities[place] += probability
        rewards[place] += probability * table[s, a, b]
        ends[place] += probability * model.ends[s, a, b]
    return probabilities, rewards, ends


def by_state(model: sp.TabularModel) -> sp.OptimalTransport:
    """Optimal transport whose reference depends on the state."""
    reference = np.random.default_rng(0).dirichlet(np.ones(model.actions), size=model.states)
    return sp.OptimalTransport(cost=line_cost(model.actions), tau=1.0, lam=0.3, reference=reference)


def begun(planner: sp.OTGapE, model: Any, engine: EngineName = "auto", state: Any = 0, seed: int = 1) -> Explorer:
    """The graph of a search by bounds at its start."""
    return started(planner, model, engine, state, seed).explorer


def started(planner: sp.OTGapE, model: Any, engine: EngineName = "auto", state: Any = 0, seed: int = 1) -> SearchRun:
    """A search by bounds at its start."""
    return planner.start(Root(model, state, seed, 2**62, None, engine, time.perf_counter()))


def alone(search: Explorer) -> Draw:
    """Calls the simulator in this thread."""

    def draw(chunks: Iterable[Chunk[Sampled]]) -> Iterator[tuple[Chunk[Sampled], Outcome[Sampled]]]:
        for chunk in chunks:
            oracle = search.oracle.of_chunk(chunk.number)
            yield chunk, Outcome(PairSampler().pairs(oracle, None, *chunk.arguments), chunk.samples, 0.0)

    return draw


def tied(model: sp.TabularModel) -> sp.TabularModel:
    """The same model, but all actions at state 0 do the same: a search never ends before its limit."""
    tables = [np.array(array) for array in (model.probabilities, model.successors, model.rewards, model.ends)]
    for table in tables:
        table[0] = table[0, :1]
    kept = {name: getattr(model, name) for name in ("discount", "reward_kind", "reward_range")}
    return sp.TabularModel(*tables[:3], **kept, terminal=tables[3])


def recurrent(
    seed: int, kind: Any = "deterministic", states: int = 5, actions: int = 2, branching: int = 3, discount: float = 0.7
) -> sp.TabularModel:
    """A few states that recur; rewards are "deterministic", "bernoulli" or "transition"; some transitions end."""
    rng = np.random.default_rng(seed)
    shape = (states, actions, branching)
    rewards = rng.uniform(0.1, 0.9, size=shape if kind == "transition" else shape[:2])
    return sp.TabularModel(
        rng.dirichlet(np.ones(branching), size=shape[:2]),
        np.argsort(rng.random((states, actions, states)), axis=-1)[..., :branching],
        rewards if kind == "bernoulli" else 4.0 * rewards - 1.0,
        discount=discount,
        reward_kind=kind,
        reward_range=(0.0, 1.0) if kind == "bernoulli" else (-1.0, 3.0),
        terminal=rng.random(shape) < 0.1,
    )


def contain(low: Any, truth: Floats, high: Any, rounding: float = 1e-9) -> bool:
    """Whether all intervals contain what they should, up to rounding."""
    return bool(((low <= truth + rounding) & (truth <= high + rounding)).all())


def vectorised(model: sp.TabularModel, step: Any = None, initial_state: Any = 0) -> sp.VectorModel:
    """The same simulator, of which no table is known; or another step with the same declarations."""
    return sp.VectorModel(
        step or model.step,
        actions=model.actions,
        discount=model.discount,
        reward_range=model.reward_range,
        reward_kind=model.reward_kind,
        value_range=model.value_range,
        max_successors=model.max_successors,
        terminates=model.terminates,
        initial_state=initial_state,
        horizon=model.horizon,
        legal=None if step or model.legal is None else partial(_rows, model.legal),
    )


def _rows(table: Any, states: Any) -> Any:
    return table[states]


def in_the_plane(model: sp.TabularModel) -> sp.VectorModel:
    """The same simulator with states of two numbers: the state of the table, and its parity."""

    def step(states: Floats, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        found = model.step(states[:, 0].astype(np.int64), actions, rng)
        return np.stack([found.next_states, found.next_states % 2.0], axis=1), found.rewards, found.terminals

    return vectorised(model, step, np.zeros(2))


@dataclass
class Counter:
    """A simulator that counts its calls, threads and all, a whole batch at a time; and is interrupted after many."""

    model: sp.TabularModel | sp.VectorModel
    calls: int = 0
    interrupted_after: float = math.inf

    def __call__(self, states: States, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        before, self.calls = self.calls, self.calls + len(actions)
        if before >= self.interrupted_after:
            raise KeyboardInterrupt
        return self.model.step(states, actions, rng)


def intervals_of(result: sp.PlanResult) -> Floats:
    """The intervals of the root's actions, which must be there."""
    assert result.q_intervals is not None
    return result.q_intervals


def identified(result: sp.PlanResult) -> GapDetails:
    """The details of a gap planner's result."""
    assert isinstance(result.details, GapDetails)
    return result.details


def diagnosed(result: sp.PlanResult) -> ReferenceDetails:
    """The details of a result of `ReferenceCruiser`."""
    assert isinstance(result.details, ReferenceDetails)
    return result.details


def content(result: sp.PlanResult) -> dict[str, Any]:
    """Everything that a run found; not how long it took."""
    fields: dict[str, Any] = json.loads(result.to_json())
    del fields["seconds"]
    return fields


def holds(result: sp.PlanResult, model: sp.TabularModel, backup: Any, state: int = 0, scale: float = 1.0) -> bool:
    """Whether the intervals of the value and of the actions, scaled around their middles, contain the truth at once."""
    solution = sp.exact.solve(model, backup, 1e-10)
    bounds = np.vstack([result.interval, *(() if result.q_intervals is None else result.q_intervals)])
    truth = np.append(solution.values[state], solution.q[state])[: len(bounds)]
    bounds, truth = bounds[truth > -np.inf], truth[truth > -np.inf]  # of legal actions
    half = (bounds[:, 1] - bounds[:, 0]) / 2.0
    return bool((np.abs(truth - bounds.mean(axis=1)) <= scale * half + 1e-9).all())


def ball_maximum(shares: Any, values: Any, unseen: float, level: float) -> float:
    """The largest expectation of values [m] over distributions near the shares [m]."""
    shares, values = np.array(shares, dtype=float), np.array(values, dtype=float)
    return ball_extreme(shares, values, float(unseen), float(level), 0.0)[0]


def ball_minimum(shares: Any, values: Any, unseen: float, level: float) -> float:
    """The smallest one; `unseen` is +inf if nothing else can exist."""
    return -ball_maximum(shares, -np.array(values, dtype=float), -unseen, level)
