"""Decision problems of the textbooks, with exact answers: what `decide` and `Agent` are measured on.

Every problem is a function of a state of whole numbers, an action and a noise of finitely many values. So the simulator
and the exact answer, by dynamic programming over all states, come from the same lines. Each kind has two instances:
constants of the library were chosen on those of `CHOSEN_ON`, and results are reported on `REPORTED_ON`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import exp, factorial
from typing import Any, NamedTuple

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.models.model import States

Move = Callable[[Ints, Ints, Ints], tuple[Ints, Floats, Any]]
"""From states [n, d], actions [n] and noise [n] to next states, rewards and ends."""

Rule = Callable[[States], Ints]
"""From states [n, d] to actions [n]."""


class Law(NamedTuple):
    """What follows on each pair of a state and an action, for each value of the noise."""

    following: Ints  # numbers of next states, [W, S·K]
    weights: Floats  # discounted probabilities, 0 after an end, [W, S·K]
    mean: Floats  # mean rewards, [S·K]
    rewards: tuple[float, float]  # the smallest and largest


@dataclass(frozen=True, eq=False)
class Textbook:
    """A problem whose states are the vectors of whole numbers in a box."""

    name: str
    actions: int
    discount: float
    high: tuple[int, ...]  # states have coordinates 0..high
    start: tuple[int, ...]
    noise: Floats  # probabilities of the values of the noise, [W]
    move: Move
    rule: Rule  # what is in use: a rule that somebody would write in a minute

    @cached_property
    def states(self) -> Ints:
        """All states, [S, d]."""
        axes = [np.arange(most + 1) for most in self.high]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))

    def number(self, states: States) -> Ints:
        """The rows of states [n, d] in `states`."""
        places = tuple(np.asarray(states).astype(np.int64).T)
        return np.asarray(np.ravel_multi_index(places, tuple(most + 1 for most in self.high)))

    @cached_property
    def law(self) -> Law:
        """What follows on every state and action; pairs are in the order of states, then of actions."""
        pairs, chosen = np.repeat(self.states, self.actions, axis=0), np.tile(np.arange(self.actions), len(self.states))
        following, weights, rewards = [], [], []
        for value, chance in enumerate(self.noise):
            found, earned, ends = self.move(pairs, chosen, np.full(len(pairs), value))
            following.append(self.number(found))
            weights.append(self.discount * chance * ~np.broadcast_to(ends, len(pairs)))
            rewards.append(earned)
        span = float(np.min(rewards)), float(np.max(rewards))
        return Law(np.stack(following), np.stack(weights), self.noise @ np.stack(rewards), span)

    @property
    def rewards(self) -> tuple[float, float]:
        """The smallest and largest reward."""
        return self.law.rewards

    def _sweep(self, values: Floats) -> Floats:
        q = self.law.mean.copy()
        for found, weight in zip(self.law.following, self.law.weights, strict=True):
            q += weight * values[found]
        return q.reshape(-1, self.actions)

    def evaluated(self, policy: Ints | None, accuracy: float = 1e-7) -> Floats:
        """Action values [S, K] under the actions of a policy [S] afterwards; the best ones for None."""
        values, rows = np.zeros(len(self.states)), np.arange(len(self.states))
        while True:
            q = self._sweep(values)
            found = q.max(axis=1) if policy is None else q[rows, policy]
            change, values = float(np.abs(found - values).max()), found
            if change <= accuracy * (1.0 - self.discount) * max(1.0, float(np.abs(values).max())):
                return q

    @cached_property
    def q(self) -> Floats:
        """Optimal action values, [S, K]."""
        return self.evaluated(None)

    def model(self, dtype: Any = np.float64) -> sp.VectorModel:
        """The simulator, as an engineer would write it: states of one dtype."""
        upto = np.cumsum(self.noise)[:-1]

        def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats, Any]:
            noise = np.searchsorted(upto, rng.random(len(actions)), side="right")
            found, rewards, ends = self.move(states.astype(np.int64), actions, noise)
            return found.astype(states.dtype), rewards, np.broadcast_to(ends, len(actions))

        return sp.VectorModel(
            step,
            actions=self.actions,
            discount=self.discount,
            reward_range=self.rewards,
            initial_state=np.array(self.start, dtype=dtype),
        )

    def met(self, count: int, seed: int = 0) -> Ints:
        """States with a decision to make that optimal play meets, now and then at random, [n, d]."""
        rng, model = np.random.default_rng(seed), self.model(np.int64)
        span = np.ptp(self.q, axis=1)
        large = 0.05 * span[self.number(np.array([self.start]))[0]]
        found: list[Ints] = []
        while len(found) < count:
            state = np.array([self.start])
            for _ in range(int(rng.integers(0, 25))):
                best = self.q[self.number(state)].argmax(axis=1)
                action = rng.integers(self.actions, size=1) if rng.random() < 0.2 else best
                following, _, ends = model.step(state, action, rng)
                if ends.any():
                    break
                state = following
            if span[self.number(state)[0]] > large:
                found.append(state[0])
        return np.array(found)

    def regret(self, state: Ints, action: int) -> float:
        """How much worse than the best action one is, as a fraction of the span of all actions."""
        q = self.q[self.number(np.asarray(state)[None])[0]]
        return float((q.max() - q[action]) / np.ptp(q))


def poisson(rate: float, most: int) -> Floats:
    """Probabilities of 0..most; the last one has the rest."""
    found = np.array([exp(-rate) * rate**value / factorial(value) for value in range(most + 1)])
    found[-1] += 1.0 - found.sum()
    return found


def lost_sales(name: str, lead: int, rate: float, penalty: float, orders: int, discount: float) -> Textbook:
    """Stock on hand and the orders under way; an order arrives after `lead` periods, unmet demand is lost."""
    room = 3 * orders

    def move(states: Ints, actions: Ints, noise: Ints) -> tuple[Ints, Floats, Any]:
        stock = states[:, 0]
        left = np.maximum(stock - noise, 0)
        costs = 1.0 * left + penalty * np.maximum(noise - stock, 0)
        pipeline = np.concatenate([states[:, 1:], actions[:, None]], axis=1)
        arrived = np.minimum(left + pipeline[:, 0], room)
        return np.concatenate([arrived[:, None], pipeline[:, 1:]], axis=1), -costs, False

    return Textbook(
        name,
        orders + 1,
        discount,
        (room, *(orders,) * (lead - 1)),
        (int(2 * rate), *(int(rate),) * (lead - 1)),
        poisson(rate, 4 * int(rate) + 4),
        move,
        lambda states: np.clip(int((lead + 1) * rate) - states.sum(axis=1), 0, orders).astype(np.int64),
    )


def backlog(name: str, rate: float, fixed: float, penalty: float, orders: int, discount: float) -> Textbook:
    """(s, S): orders have a fixed cost, unmet demand waits. States are shifted by `orders`."""

    def move(states: Ints, actions: Ints, noise: Ints) -> tuple[Ints, Floats, Any]:
        stock = np.minimum(states[:, 0] - orders + actions, orders)
        left = np.maximum(stock - noise, -orders)
        costs = fixed * (actions > 0) + 1.0 * np.maximum(left, 0) + penalty * np.maximum(-left, 0)
        return (left + orders)[:, None], -costs, False

    def rule(states: States) -> Ints:
        stock = states[:, 0] - orders
        return np.where(stock < rate, np.clip(3 * rate - stock, 0, orders), 0).astype(np.int64)

    return Textbook(
        name, orders + 1, discount, (2 * orders,), (orders + 2,), poisson(rate, 3 * int(rate) + 4), move, rule
    )


def put(name: str, strike: float, volatility: float, rate: float, periods: int) -> Textbook:
    """An American put on a binomial tree: price level and time left; hold, or exercise and end."""
    factor, middle = exp(volatility), periods

    def price(level: Any) -> Any:
        return 100.0 * factor ** (level - middle)

    up = (exp(rate) - 1.0 / factor) / (factor - 1.0 / factor)

    def move(states: Ints, actions: Ints, noise: Ints) -> tuple[Ints, Floats, Any]:
        level, left = states.T
        paid = np.where(actions == 1, np.maximum(strike - price(level), 0.0), 0.0)
        following = np.stack([np.clip(level + 2 * noise - 1, 0, 2 * periods), np.maximum(left - 1, 0)], axis=1)
        return following, paid, (actions == 1) | (left <= 1)

    return Textbook(
        name,
        2,
        exp(-rate),
        (2 * periods, periods),
        (middle - 6, periods),  # in the money: whether to wait is the question
        np.array([1.0 - up, up]),
        move,
        lambda states: (price(states[:, 0]) < 0.9 * strike).astype(np.int64),
    )


def seats(name: str, fares: tuple[float, ...], chances: tuple[float, ...], capacity: int, periods: int) -> Textbook:
    """Seats left and time left; an action is the number of fare classes that are open, cheapest last."""
    worth = np.array([*fares, 0.0])

    def move(states: Ints, actions: Ints, noise: Ints) -> tuple[Ints, Floats, Any]:
        left, time = states.T
        sold = (noise < len(fares)) & (noise <= actions) & (left > 0)
        following = np.stack([left - sold, np.maximum(time - 1, 0)], axis=1)
        return following, worth[noise] * sold, (time <= 1) | (following[:, 0] == 0)

    return Textbook(
        name,
        len(fares),
        0.9999,
        (capacity, periods),
        (capacity, periods),
        np.array([*chances, 1.0 - sum(chances)]),
        move,
        lambda states: np.full(len(states), len(fares) - 1),
    )


def pricing(name: str, prices: int, sensitivity: float, traffic: float, stock: int, periods: int) -> Textbook:
    """Stock left and time left; a customer may come, and buys if the price is below what she would pay."""
    offered = np.linspace(0.2, 2.0, prices)
    grades = 40  # of what customers would pay
    limits = -np.log(1.0 - (np.arange(grades) + 0.5) / grades) / sensitivity

    def move(states: Ints, actions: Ints, noise: Ints) -> tuple[Ints, Floats, Any]:
        left, time = states.T
        buys = (noise < grades) & (left > 0) & (limits[np.minimum(noise, grades - 1)] >= offered[actions])
        following = np.stack([left - buys, np.maximum(time - 1, 0)], axis=1)
        return following, offered[actions] * buys, (time <= 1) | (following[:, 0] == 0)

    return Textbook(
        name,
        prices,
        0.9999,
        (stock, periods),
        (stock, periods),
        np.array([traffic / grades] * grades + [1.0 - traffic]),
        move,
        lambda states: np.full(len(states), prices // 2),
    )


def admission(name: str, capacity: int, rewards: tuple[float, ...], service: float, discount: float) -> Textbook:
    """A queue and the class of who is at the door: admit or not; waiting costs."""
    classes = len(rewards)
    worth = np.array(rewards)

    def move(states: Ints, actions: Ints, noise: Ints) -> tuple[Ints, Floats, Any]:
        queue, door = states.T
        admitted = (actions == 1) & (queue < capacity)
        length = queue + admitted - ((noise % 2 == 1) & (queue + admitted > 0))
        return np.stack([length, noise // 2], axis=1), worth[door] * admitted - 0.1 * queue, False

    both = np.outer(np.full(classes, 1.0 / classes), [1.0 - service, service]).ravel()
    return Textbook(
        name, 2, discount, (capacity, classes - 1), (2, 0), both, move, lambda states: np.ones(len(states), np.int64)
    )


def machine(name: str, wear: int, repair: float, replace: float, slope: float, discount: float) -> Textbook:
    """Wear of a machine: run, repair (halves the wear) or replace."""

    def move(states: Ints, actions: Ints, noise: Ints) -> tuple[Ints, Floats, Any]:
        now = states[:, 0]
        after = np.where(actions == 2, 0, np.where(actions == 1, now // 2, now))
        costs = np.where(actions == 2, replace, np.where(actions == 1, repair, 0.0)) + slope * after**2
        return np.minimum(after + noise, wear)[:, None], 10.0 - costs, False

    return Textbook(
        name,
        3,
        discount,
        (wear,),
        (wear // 3,),
        np.array([0.3, 0.4, 0.2, 0.1]),
        move,
        lambda states: np.where(states[:, 0] > wear // 2, 2, 0),
    )


def battery(name: str, capacity: int, power: int, efficiency: float, discount: float, step: float) -> Textbook:
    """Charge, price of electricity and time of the day; an action charges or discharges."""
    levels, hours = 12, 8

    def move(states: Ints, actions: Ints, noise: Ints) -> tuple[Ints, Floats, Any]:
        charge, price, hour = states.T
        amount = np.clip(actions - power, -charge, capacity - charge)
        paid = (5.0 + step * price + 10.0 * np.sin(2 * np.pi * hour / hours)) * np.where(
            amount > 0, amount / efficiency, amount * efficiency
        )
        drift = np.where(price > levels // 2, -1, 0) * (noise % 2)
        moved = np.clip(price + noise // 2 - 1 + drift, 0, levels)
        return np.stack([charge + amount, moved, (hour + 1) % hours], axis=1), -paid, False

    def rule(states: States) -> Ints:
        cost = step * states[:, 1] + 10.0 * np.sin(2 * np.pi * states[:, 2] / hours)
        return np.where(cost < 0.4 * step * levels, 2 * power, 0).astype(np.int64)

    law = np.outer([0.3, 0.4, 0.3], [0.5, 0.5]).ravel()
    return Textbook(
        name, 2 * power + 1, discount, (capacity, levels, hours - 1), (capacity // 2, levels // 2, 0), law, move, rule
    )


def dispatch(name: str, rates: tuple[float, ...], arrival: float, room: int, discount: float) -> Textbook:
    """Queues before servers of different speed: where does the next job go?"""
    servers = len(rates)

    def move(states: Ints, actions: Ints, noise: Ints) -> tuple[Ints, Floats, Any]:
        queues = states.copy()
        rows = np.flatnonzero(noise & 1)
        full = queues[rows, actions[rows]] >= room
        queues[rows, actions[rows]] += ~full
        refused = np.zeros(len(states))
        refused[rows] = 5.0 * full
        served = (noise[:, None] >> np.arange(1, servers + 1)) & 1
        return np.maximum(queues - served, 0), -(states.sum(axis=1) + refused), False

    chances = [arrival, *rates]
    law = np.array(
        [
            np.prod([chance if value >> bit & 1 else 1.0 - chance for bit, chance in enumerate(chances)])
            for value in range(2 ** (servers + 1))
        ]
    )
    return Textbook(
        name,
        servers,
        discount,
        (room,) * servers,
        (2,) * servers,
        law,
        move,
        lambda states: np.asarray(states).argmin(axis=1),
    )


def fishery(name: str, room: int, growth: float, price: float, discount: float) -> Textbook:
    """A stock of fish that grows; an action is the harvest, whose price falls with its size."""
    luck = np.array([0.6, 0.8, 1.0, 1.2, 1.4])

    def move(states: Ints, actions: Ints, noise: Ints) -> tuple[Ints, Floats, Any]:
        stock = states[:, 0]
        caught = np.minimum(actions * room // 12, stock)
        left = stock - caught
        grown = left + luck[noise] * growth * left * (1.0 - left / room)
        return np.clip(np.rint(grown), 0, room).astype(np.int64)[:, None], caught * (price - caught / room), False

    return Textbook(
        name,
        7,
        discount,
        (room,),
        (room // 2,),
        np.full(5, 0.2),
        move,
        lambda states: np.minimum(states[:, 0] * 12 // (5 * room), 6).astype(np.int64),
    )


CHOSEN_ON: dict[str, Callable[[], Textbook]] = {
    "lost sales": lambda: lost_sales("lost sales", 3, 4.0, 9.0, 10, 0.97),
    "(s, S)": lambda: backlog("(s, S)", 8.0, 30.0, 8.0, 50, 0.97),
    "put": lambda: put("put", 100.0, 0.04, 0.002, 40),
    "seats": lambda: seats("seats", (200.0, 130.0, 80.0, 50.0), (0.1, 0.15, 0.25, 0.3), 25, 60),
    "pricing": lambda: pricing("pricing", 15, 1.2, 0.8, 12, 30),
    "admission": lambda: admission("admission", 15, (5.0, 2.0, 1.0), 0.55, 0.98),
    "machine": lambda: machine("machine", 12, 3.0, 9.0, 0.12, 0.95),
    "battery": lambda: battery("battery", 10, 3, 0.9, 0.98, 1.5),
    "dispatch": lambda: dispatch("dispatch", (0.5, 0.3, 0.2), 0.8, 9, 0.97),
}
"""Problems on which constants were chosen."""

REPORTED_ON: dict[str, Callable[[], Textbook]] = {
    "lost sales": lambda: lost_sales("lost sales", 2, 6.0, 19.0, 20, 0.95),
    "(s, S)": lambda: backlog("(s, S)", 5.0, 60.0, 4.0, 40, 0.95),
    "put": lambda: put("put", 110.0, 0.06, 0.004, 30),
    "seats": lambda: seats("seats", (300.0, 220.0, 100.0), (0.08, 0.2, 0.4), 15, 50),
    "pricing": lambda: pricing("pricing", 11, 0.8, 0.6, 8, 40),
    "admission": lambda: admission("admission", 20, (8.0, 1.0), 0.45, 0.95),
    "machine": lambda: machine("machine", 20, 5.0, 12.0, 0.05, 0.97),
    "battery": lambda: battery("battery", 8, 2, 0.85, 0.95, 2.5),
    "dispatch": lambda: dispatch("dispatch", (0.45, 0.45, 0.1), 0.75, 9, 0.95),
    "fishery": lambda: fishery("fishery", 60, 0.8, 2.0, 0.95),
}
"""Problems on which results are reported: other parameters, and a kind that the first list does not have."""
