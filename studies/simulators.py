"""Simulators as engineers write them, with float states: what `decide`, `Agent` and references are measured on.

Each has a heuristic with a few parameters, which `tuned` chooses by simulation.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.models.model import States

Policy = Callable[[States], Ints]
"""From states [n, d] to actions [n]."""


@dataclass(frozen=True)
class Problem:
    """A simulator and a family of heuristics for it."""

    name: str
    model: sp.VectorModel
    heuristic: Callable[..., Policy]
    parameters: tuple[tuple[Any, ...], ...]  # candidates of each parameter


def inventory(products: int, discount: float = 0.97, seed: int = 0) -> Problem:
    """Stocks of products that share one supplier: an order fills up one product, or none (K = products + 1).

    Demand is Poisson, unmet demand is lost. Ordering has a fixed cost, stock a holding cost, lost sales a penalty.
    """
    chosen = np.random.default_rng(seed)
    rates = chosen.uniform(1.0, 4.0, products) * 3.0 / products  # three quarters of what the supplier can deliver
    holding, lost = chosen.uniform(0.05, 0.15, products), chosen.uniform(2.0, 6.0, products)
    capacity, batch, fixed = 20.0, 10.0, 2.0

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        stock = states.copy()
        orders = actions > 0
        rows = np.flatnonzero(orders)
        which = actions[rows] - 1
        stock[rows, which] = np.minimum(stock[rows, which] + batch, capacity)
        demand = rng.poisson(rates, stock.shape)
        left = np.maximum(stock - demand, 0.0)
        costs = fixed * orders + left @ holding + np.maximum(demand - stock, 0.0) @ lost
        return left, -np.minimum(costs, 60.0 * products)

    model = sp.VectorModel(
        step,
        actions=products + 1,
        discount=discount,
        reward_range=(-60.0 * products, 0.0),
        terminates=False,
        initial_state=np.full(products, 8.0),
    )

    def order_up_to(days: float) -> Policy:
        """Orders the product that lasts for the fewest days, if that is less than a number of them."""

        def policy(states: States) -> Ints:
            lasting = states / rates
            least = lasting.argmin(axis=1)
            return np.where(lasting[np.arange(len(states)), least] < days, least + 1, 0)

        return policy

    return Problem(f"inventory of {products}", model, order_up_to, (tuple(np.arange(0.5, 6.1, 0.5)),))


def epidemic(discount: float = 0.97) -> Problem:
    """Shares of susceptible and infected people, S + I ≤ 1, under four measures. Other states are refused."""
    contact = np.array([1.0, 0.75, 0.5, 0.25])
    price = np.array([0.0, 0.3, 1.0, 2.5])

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        susceptible, infected = states.T
        if (states < -1e-9).any() or (states.sum(axis=1) > 1.0 + 1e-6).any():
            raise ValueError("shares of people must not be negative or exceed 1 together")
        noise = np.exp(0.2 * rng.standard_normal(len(states)))
        new = np.minimum(0.45 * contact[actions] * noise * susceptible * infected, susceptible)
        back = 0.01 * (1.0 - susceptible - infected)
        infected_next = np.clip(infected + new - 0.2 * infected + 2e-4, 0.0, 1.0)
        susceptible_next = np.clip(susceptible - new + back, 0.0, 1.0 - infected_next)
        rewards = -price[actions] - 40.0 * infected - 200.0 * np.maximum(infected - 0.1, 0.0)
        return np.stack([susceptible_next, infected_next], axis=1), rewards

    model = sp.VectorModel(
        step,
        actions=4,
        discount=discount,
        reward_range=(-230.0, 0.0),
        terminates=False,
        initial_state=np.array([0.95, 0.02]),
    )

    def thresholds(first: float, second: float, third: float) -> Policy:
        return lambda states: np.searchsorted([first, first * second, first * second * third], states[:, 1])

    candidates = ((0.002, 0.005, 0.01, 0.02, 0.04, 0.08), (1.5, 3.0, 6.0, 100.0), (1.5, 3.0, 100.0))
    return Problem("epidemic", model, thresholds, candidates)


def queues(discount: float = 0.97) -> Problem:
    """Admission to two queues with servers of different speeds: to the first, to the second, or a refusal."""
    speeds, wait, refusal = np.array([0.45, 0.25]), np.array([0.06, 0.06]), 2.5

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        draws = rng.random((len(states), 3))
        arrival = draws[:, 0] < 0.65
        lengths = states.copy()
        full = lengths[np.arange(len(states)), np.minimum(actions, 1)] >= 20.0
        refused = arrival & ((actions == 2) | full)
        taken = np.flatnonzero(arrival & ~refused)
        lengths[taken, actions[taken]] += 1.0
        lengths -= (draws[:, 1:] < speeds) & (lengths > 0.0)
        return lengths, -(states @ wait) - refusal * refused

    model = sp.VectorModel(
        step,
        actions=3,
        discount=discount,
        reward_range=(-6.0, 0.0),
        terminates=False,
        initial_state=np.array([0.0, 0.0]),
    )

    def join(ratio: float, limit: float) -> Policy:
        """Joins the queue with the shorter wait, times a ratio, unless both are longer than a limit."""

        def policy(states: States) -> Ints:
            waits = (states + 1.0) / speeds * [1.0, ratio]
            return np.where(waits.min(axis=1) > limit, 2, waits.argmin(axis=1))

        return policy

    return Problem("queues", model, join, ((0.6, 0.8, 1.0, 1.3), (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0)))


def value(model: sp.VectorModel, policy: Policy, count: int = 2_000, seed: int = 1) -> tuple[float, float]:
    """The mean discounted return of a policy from the initial state, and its standard error."""
    rng, states = np.random.default_rng(seed), np.repeat(np.asarray(model.initial_state)[None], count, axis=0)
    totals, scale = np.zeros(count), 1.0
    while scale > 1e-4:
        states, rewards, *_ = model.step(states, policy(states), rng)
        totals += scale * rewards
        scale *= model.discount
    return float(totals.mean()), float(totals.std(ddof=1) / np.sqrt(count))


def tuned(problem: Problem) -> tuple[Policy, tuple[Any, ...]]:
    """The best heuristic of the family, and its parameters."""
    best = max(
        itertools.product(*problem.parameters),
        key=lambda chosen: value(problem.model, problem.heuristic(*chosen), 1_000, seed=2)[0],
    )
    return problem.heuristic(*best), best


def problems() -> list[Problem]:
    """All of them."""
    return [inventory(3), inventory(5), inventory(10), epidemic(), queues()]
