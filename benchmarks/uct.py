"""UCT beside a public implementation: simple regret at equal simulator calls, and calls per second.

The rival is POUCT of pomdp-py (`pip install pomdp-py`), of which every observation is the state: a UCT whose nodes are
histories. Both have the same depth, discount, random rollouts and states to plan at; both stop at the same number of
simulator calls, and what is under way then counts for nothing. The rival has two exploration constants: √2, its
default, and the range of the returns of random rollouts, as its documentation quotes from POMCP (Silver and Veness,
2010); these rollouts are a gift. The regret is that of the recommended action in the problem of that depth, solved
exactly.
"""

import argparse
import importlib
import itertools
import math
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats

try:
    pomdp_py: Any = importlib.import_module("pomdp_py")
except ImportError:
    raise SystemExit("the rival is missing: pip install pomdp-py") from None

BUDGETS = (100, 1_000, 10_000, 100_000)
ROLLOUTS = 1_000
"""From which the range of returns is known."""

ENDED = -1
"""The state after the end of an episode."""

MANY = 1_000
"""Steps beyond any depth."""

MACHINES = 5
"""Of the ring to be administrated: 32 states, 6 actions."""


def ring() -> sp.TabularModel:
    """The ring of `sp.models.sysadmin` as a table, whose probabilities are known and whose rewards are its own."""
    simulator = sp.models.sysadmin(MACHINES)
    states = np.array(list(itertools.product((0, 1), repeat=MACHINES)))
    connected = (1 + np.roll(states, 1, axis=1) + np.roll(states, -1, axis=1)) / 3
    survival = np.where(states == 1, 0.45 + 0.5 * connected, 0.05 * connected)
    actions = np.arange(simulator.actions)
    running = np.where(np.arange(1, MACHINES + 1) == actions[:, None], 1.0, survival[:, None])  # [S, K, machines]
    probabilities = np.where(states == 1, running[:, :, None], 1 - running[:, :, None]).prod(axis=-1)
    everywhere = np.repeat(states, len(actions), axis=0)
    rewards = simulator.step(everywhere, np.tile(actions, len(states)), np.random.default_rng(0))[1]
    return sp.TabularModel.from_dense(probabilities, rewards.reshape(len(states), -1), discount=simulator.discount)


MODELS: dict[str, tuple[Callable[[int], sp.TabularModel], int]] = {
    "garnet": (lambda seed: sp.models.garnet(states=200, actions=5, branching=3, discount=0.9, seed=seed), 20),
    "sailing": (lambda seed: sp.models.sailing(size=5), 30),
    "frozen-lake": (lambda seed: sp.models.frozen_lake("4x4"), 30),
    "sysadmin": (lambda seed: ring(), 20),
}
"""Models, a new one for each seed where there are many, and the depth of the tree."""


class Case(NamedTuple):
    """Where to plan, and the truth there."""

    model: sp.TabularModel
    depth: int
    state: int
    q: Floats  # [K], of the problem of that depth
    spread: float  # the range of the returns of random rollouts


def finite_q(model: sp.TabularModel, depth: int) -> Floats:
    """The action values [S, K] of the problem with `depth` steps, by backward induction."""
    q = np.zeros((model.states, model.actions))
    for _ in range(depth):
        q = sp.exact.action_values(model, q.max(axis=1))
    return q


def random_returns(model: sp.TabularModel, state: int, depth: int, seed: int) -> Floats:
    """Returns of random rollouts, [n]."""
    rng = np.random.default_rng(seed)
    states, alive, total = np.full(ROLLOUTS, state), np.ones(ROLLOUTS, dtype=bool), np.zeros(ROLLOUTS)
    for step in range(depth):
        answer = model.step(states[alive], rng.integers(model.actions, size=int(alive.sum())), rng)
        total[alive] += model.discount**step * answer.rewards
        states[alive] = answer.next_states
        alive[alive] = ~answer.terminals
    return total


def case(name: str, seed: int) -> Case:
    """A model and a random state where the actions differ."""
    make, depth = MODELS[name]
    model = make(seed)
    q = finite_q(model, depth)
    matters = np.flatnonzero(~model.terminal & (np.ptp(q, axis=1) > 1e-9))
    state = int(np.random.default_rng(seed).choice(matters))
    return Case(model, depth, state, q[state], float(np.ptp(random_returns(model, state, depth, seed))))


# The rival


class Thing:
    """Something with a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and self.number == other.number


class State(Thing, pomdp_py.State):  # type: ignore[misc]
    """A state of a table."""


class Action(Thing, pomdp_py.Action):  # type: ignore[misc]
    """An action."""


class Observation(Thing, pomdp_py.Observation):  # type: ignore[misc]
    """The state that is seen."""


class BudgetError(Exception):
    """No more calls may be made."""


class Simulator(pomdp_py.BlackboxModel):  # type: ignore[misc]
    """A table as the rival calls it, with a limit on calls."""

    def __init__(self, model: sp.TabularModel, budget: int, seed: int) -> None:
        self.calls, self._budget = 0, budget
        self._draw = random.Random(seed).random
        self._cumulative = np.cumsum(model.probabilities, axis=-1).tolist()
        self._rewards = np.broadcast_to(
            model.rewards if model.rewards.ndim == 3 else model.rewards[..., None], model.probabilities.shape
        ).tolist()
        self._next = np.where(model.ends, ENDED, model.successors).tolist()

    def sample(self, state: State, action: Action) -> tuple[State, Observation, float, int]:
        """Next state, observation, reward and steps.

        What follows the end is worth nothing, is no call, and takes so many steps that the rival stops there.
        """
        if state.number == ENDED:
            return state, Observation(ENDED), 0.0, MANY
        if self.calls == self._budget:
            raise BudgetError
        self.calls += 1
        level, cumulative = self._draw(), self._cumulative[state.number][action.number]
        branch = next((number for number, most in enumerate(cumulative) if level < most), len(cumulative) - 1)
        number = self._next[state.number][action.number][branch]
        return State(number), Observation(number), self._rewards[state.number][action.number][branch], 1


class Uniform(pomdp_py.RolloutPolicy):  # type: ignore[misc]
    """All actions, one like the other."""

    def __init__(self, actions: int) -> None:
        self._actions = [Action(number) for number in range(actions)]

    def rollout(self, state: State, history: Any = None) -> Action:
        """One of them."""
        return random.choice(self._actions)

    def get_all_actions(self, state: Any = None, history: Any = None) -> list[Action]:
        """All of them."""
        return self._actions


def rival(exploration: Callable[[Case], float]) -> Callable[[Case, int, int], tuple[int, int]]:
    """The rival with an exploration constant: from a case, a budget and a seed to an action and the calls."""

    def run(where: Case, budget: int, seed: int) -> tuple[int, int]:
        random.seed(seed)
        simulator, policy = Simulator(where.model, budget, seed), Uniform(where.model.actions)
        agent = pomdp_py.Agent(pomdp_py.Histogram({State(where.state): 1.0}), policy, blackbox_model=simulator)
        planner = pomdp_py.POUCT(
            max_depth=where.depth - 1,  # it counts from 0; its rollouts end a step earlier
            discount_factor=where.model.discount,
            num_sims=2**31 - 1,
            exploration_const=exploration(where),
            rollout_policy=policy,
        )
        try:
            planner.plan(agent)
        except BudgetError:
            return int(agent.tree.argmax().number), simulator.calls
        raise RuntimeError("the rival ended before its budget")

    return run


def ours(**options: Any) -> Callable[[Case, int, int], tuple[int, int]]:
    """UCT of this library."""

    def run(where: Case, budget: int, seed: int) -> tuple[int, int]:
        planner = sp.UCT(depth=where.depth, **options)
        result = sp.plan(planner, where.model, where.state, seed=seed, max_calls=budget)
        assert result.action is not None
        return result.action, result.calls

    return run


PLANNERS = {
    "smoothplan, default": ours(),
    "smoothplan, c = √2": ours(exploration=math.sqrt(2)),
    "smoothplan, no rollout": ours(rollout="none"),
    "smoothplan, open loop": ours(loop="open"),
    "pomdp-py, c = √2": rival(lambda where: math.sqrt(2)),
    "pomdp-py, c = range": rival(lambda where: where.spread),
}
OURS, RIVALS = "smoothplan, default", ("pomdp-py, c = √2", "pomdp-py, c = range")


def compare(name: str, seeds: int, budgets: list[int]) -> None:
    """Mean regrets of one model, with standard errors, and the differences to the rival, case by case."""
    cases = [case(name, seed) for seed in range(seeds)]
    chance = np.array([where.q.max() - where.q.mean() for where in cases])
    print(f"{name}, depth {MODELS[name][1]}: a random action has a regret of {shown(chance)}")
    regrets: dict[tuple[str, int], Floats] = {}
    for planner, run in PLANNERS.items():
        started, made = time.perf_counter(), 0
        for budget in budgets:
            found = []
            for seed, where in enumerate(cases):
                action, calls = run(where, budget, seed)
                assert calls == budget
                found.append(where.q.max() - where.q[action])
                made += calls
            regrets[planner, budget] = np.array(found)
        pace = made / (time.perf_counter() - started)
        row = "".join(f"{shown(regrets[planner, budget]):>20}" for budget in budgets)
        print(f"  {planner:<24}{row}   {pace:10,.0f} calls/s", flush=True)
    for other in RIVALS:
        row = "".join(f"{shown(regrets[OURS, budget] - regrets[other, budget]):>20}" for budget in budgets)
        print(f"  {'default less ' + other.removeprefix('pomdp-py, '):<24}{row}", flush=True)


def shown(values: Floats) -> str:
    """A mean and its standard error."""
    return f"{values.mean():.4f} ± {values.std(ddof=1) / math.sqrt(len(values)):.4f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30, help="cases of each model")
    parser.add_argument("--most", type=int, default=BUDGETS[-1], help="the largest budget")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    ours()(case("garnet", 0), BUDGETS[0], 0)  # compiles
    ours(loop="open")(case("garnet", 0), BUDGETS[0], 0)
    chosen = [budget for budget in BUDGETS if budget <= options.most]
    print(f"{'regret after n calls, n =':<26}" + "".join(f"{budget:>20,}" for budget in chosen))
    for model in options.models:
        compare(model, options.seeds, chosen)
