"""The recursion as one would first write it down: one state at a time, in plain Python.

It interprets a table of levels on a tabular model and draws through one function, `choose`, that picks an index from a
list of probabilities. With a random one it samples; `outcomes` tries all choices instead, which gives the exact
distribution of a sample of a small table. The backups are written out here too.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from smoothplan.base.arguments import Floats
from smoothplan.models.tabular import TabularModel
from smoothplan.recursive import level as arithmetic
from smoothplan.recursive.debias import DEBIASING
from smoothplan.recursive.level import Level, certify
from smoothplan.recursive.schedule import Schedule
from smoothplan.theory.backups import OptimalTransport, SoftmaxMixture, line_cost
from smoothplan.theory.curvature import Problem

Choose = Callable[[Sequence[float]], int]
"""An index, given the probability of each."""

DIGITS = 9
"""Samples are rounded to this many digits before they are compared: rounding errors must not tell equal ones apart."""


def randomly(seed: int) -> Choose:
    rng = np.random.default_rng(seed)

    def choose(probabilities: Sequence[float]) -> int:
        level = rng.random()
        for index, probability in enumerate(probabilities):
            level -= probability
            if level < 0.0:
                return index
        return max(index for index, probability in enumerate(probabilities) if probability > 0.0)

    return choose


@dataclass(frozen=True)
class Mixture:
    """A backup at one state: Σ_j μ_j·η·log Σ_i exp((q_i − c_ij)/η)."""

    temperature: float  # η
    weights: list[float]  # μ, [J]
    shifts: list[list[float]]  # c, [K][J]

    @classmethod
    def at(cls, backup: SoftmaxMixture, state: int, actions: int) -> "Mixture":
        if isinstance(backup, OptimalTransport):
            weights = np.broadcast_to(backup.weights(np.array([state])), (1, actions))[0].tolist()
            shifts = [[backup.tau * float(cost) for cost in row] for row in backup.cost]
            return cls(backup.tau * backup.lam, weights, shifts)
        return cls(backup.temperature, [1.0], [[0.0] for _ in range(actions)])

    def column(self, q: Sequence[float], j: int) -> list[float]:
        """exp((q_i − c_ij)/η) over i, up to a factor that `top` takes out."""
        top = self.top(q, j)
        return [math.exp((q[i] - self.shifts[i][j] - top) / self.temperature) for i in range(len(q))]

    def top(self, q: Sequence[float], j: int) -> float:
        return max(q[i] - self.shifts[i][j] for i in range(len(q)))

    def value(self, q: Sequence[float]) -> float:
        if self.temperature == 0.0:
            return max(q)
        return sum(
            weight * (self.top(q, j) + self.temperature * math.log(sum(self.column(q, j))))
            for j, weight in enumerate(self.weights)
        )

    def local(self, q: Sequence[float], j: int) -> list[float]:
        """The softmax p_·j."""
        odds = self.column(q, j)
        return [entry / sum(odds) for entry in odds]

    def policy(self, q: Sequence[float]) -> list[float]:
        columns = [self.local(q, j) for j in range(len(self.weights))]
        return [sum(w * column[i] for w, column in zip(self.weights, columns, strict=True)) for i in range(len(q))]


@dataclass
class Naive:
    """The recursion. `calls` counts the simulator calls that each level makes itself, without its children's."""

    problem: Problem
    levels: Sequence[Level]
    backup: SoftmaxMixture
    model: TabularModel
    choose: Choose
    children: Callable[[int, int], float] | None = None  # another way to a sample of a child, given row and state
    softmaxes: dict[int, Mixture] = field(default_factory=dict)  # the backup at the states seen so far
    calls: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.calls = [0] * len(self.levels)

    def sample(self, row: int, state: int) -> float:
        level = self.levels[row]
        if level.kind == "constant":
            return self.problem.at(level.left).middle + level.shift
        returns = self.returns(row, state)
        value = self.debiased(row, state, returns) if level.debias > 0 else None
        return self.around(row, state, self.reference(row, returns), value)

    def simulate(self, state: int, action: int) -> tuple[int, float, bool]:
        """Next state, reward, and whether the episode ends."""
        branch = self.choose(self.model.probabilities[state, action].tolist())
        table = self.model.rewards[state, action]
        reward = float(table if table.ndim == 0 else table[branch])
        if self.model.reward_kind == "bernoulli":
            reward = float(self.choose([1.0 - reward, reward]))
        return int(self.model.successors[state, action, branch]), reward, bool(self.model.ends[state, action, branch])

    def one_return(self, row: int, child: int, state: int, action: int) -> float:
        """(R_1 + … + R_M)/M + γ·Y(Z_1), asked for by level `row`, through level `child`."""
        calls = [self.simulate(state, action) for _ in range(self.levels[child].rewards)]
        self.calls[row] += len(calls)
        reward = sum(reward for _, reward, _ in calls) / len(calls)
        successor, _, end = calls[0]
        if end:
            return reward
        sample = self.children or self.sample
        return reward + self.model.discount * sample(child, successor)

    def returns(self, row: int, state: int) -> list[list[float]]:
        """The returns of each action that a level averages, in the order in which they are drawn, [K][N]."""
        level, legal = self.levels[row], self.model.legal
        allowed = [True] * self.model.actions if legal is None else legal[state].tolist()
        if level.samples == 0:
            return [[0.0 if each else -math.inf] for each in allowed]
        child = level.reference
        assert child is not None
        return [
            [self.one_return(row, child, state, action) if each else -math.inf for _ in range(level.samples)]
            for action, each in enumerate(allowed)
        ]

    def reference(self, row: int, returns: Sequence[Sequence[float]]) -> list[float]:
        """Q̂, of returns [K][N]."""
        clip = self.levels[row].clip
        q = [sum(each) / len(each) for each in returns]
        return q if clip is None else [min(max(mean, clip[0]), clip[1]) if mean > -math.inf else mean for mean in q]

    def softmax(self, state: int) -> Mixture:
        if state not in self.softmaxes:
            self.softmaxes[state] = Mixture.at(self.backup, state, self.model.actions)
        return self.softmaxes[state]

    def debiased(self, row: int, state: int, returns: Sequence[Sequence[float]]) -> float:
        """What a level has in place of F(Q̂), of returns [K][N]."""
        level, soft, result = self.levels[row], self.softmax(state), 0.0
        assert level.kind in ("plug-in", "order-1")
        assert level.clip is None
        weights = DEBIASING[level.kind, level.debias]
        for k, weight in enumerate(weights.values):
            blocks = halved(returns, k)
            result += weight * sum(soft.value(block) for block in blocks) / len(blocks)
        for k, weight in enumerate(weights.slopes[1:], start=1):  # the whole has no sibling
            blocks = halved(returns, k)
            slopes = [
                sum(p * (x - y) for p, x, y in zip(soft.policy(one), one, two, strict=True) if p > 0.0)
                for first, second in zip(blocks[::2], blocks[1::2], strict=True)
                for one, two in ((first, second), (second, first))
            ]
            result += weight * sum(slopes) / len(slopes)
        return result

    def around(self, row: int, state: int, q: Sequence[float], value: float | None = None) -> float:
        """A sample of a level around a given reference, with F at it unless another value takes its place."""
        level = self.levels[row]
        soft = self.softmax(state)
        result = (soft.value(q) if value is None else value) + level.shift
        if level.kind in ("order-1", "order-2"):
            assert level.linear is not None
            action = self.choose(soft.local(q, self.choose(soft.weights)))
            result += self.one_return(row, level.linear, state, action)
            if level.printed:
                result -= sum(p * entry for p, entry in zip(soft.policy(q), q, strict=True) if p > 0.0)
            else:
                result -= q[action]
        if level.kind == "order-2":
            assert level.quadratic is not None
            column = self.choose(soft.weights)
            one, two = self.choose(soft.local(q, column)), self.choose(soft.local(q, column))
            if one != two or level.printed:
                differences = []
                for _ in range(level.pairs):
                    first = self.one_return(row, level.quadratic, state, one)
                    second = self.one_return(row, level.quadratic, state, two)
                    differences.append(first - q[one] - (second - q[two]))
                products = [
                    x * y for i, x in enumerate(differences) for j, y in enumerate(differences) if i != j
                ]  # the U-statistic as it is defined
                result += sum(products) / len(products) / (4.0 * soft.temperature)
        return result if level.clip is None else min(max(result, level.clip[0]), level.clip[1])


def halved(returns: Sequence[Sequence[float]], times: int) -> list[list[float]]:
    """The means of every action over each block, where returns [K][N] are halved so many times: [2^k][K]."""
    if times == 0:
        return [[sum(each) / len(each) for each in returns]]
    half = len(returns[0]) // 2
    first, second = [each[:half] for each in returns], [each[half:] for each in returns]
    return halved(first, times - 1) + halved(second, times - 1)


def outcomes(program: Callable[[Choose], float]) -> Iterator[tuple[float, float]]:
    """Every value that a program of random choices can return, with its probability, by trying all choices."""
    pending: list[list[int]] = [[]]
    while pending:
        trail = pending.pop()
        probability, position = 1.0, 0

        def choose(probabilities: Sequence[float], trail: list[int] = trail) -> int:
            nonlocal probability, position
            if position == len(trail):
                possible = [index for index, chance in enumerate(probabilities) if chance > 0.0]
                pending.extend([*trail, index] for index in possible[1:])
                trail.append(possible[0])
            index = trail[position]
            position += 1
            probability *= probabilities[index]
            return index

        value = program(choose)
        yield value, probability


@dataclass(frozen=True)
class Distribution:
    """A distribution on finitely many numbers, in increasing order."""

    values: list[float]
    probabilities: list[float]

    @classmethod
    def of(cls, program: Callable[[Choose], float]) -> "Distribution":
        merged: dict[float, tuple[float, float]] = {}
        for value, probability in outcomes(program):
            key = round(value, DIGITS + 3)
            # The first of equal values, not the key: what is rounded twice may end up one digit off.
            first, before = merged.get(key, (value, 0.0))
            merged[key] = first, before + probability
        values, probabilities = zip(*sorted(merged.values()), strict=True)
        return cls(list(values), list(probabilities))

    @property
    def mean(self) -> float:
        return self.moment(lambda value: value)

    @property
    def variance(self) -> float:
        mean = self.mean
        return self.moment(lambda value: (value - mean) ** 2)

    def moment(self, function: Callable[[float], float]) -> float:
        """E f(Y)."""
        return math.fsum(p * function(value) for value, p in zip(self.values, self.probabilities, strict=True))

    def scaled(self, offset: float, factor: float) -> "Distribution":
        """Of offset + factor·Y, with a positive factor."""
        return Distribution([offset + factor * value for value in self.values], self.probabilities)

    def below(self, numbers: Floats) -> Floats:
        """P(Y ≤ x) for every x."""
        sums = np.concatenate([[0.0], np.cumsum(self.probabilities)])
        return np.asarray(sums[np.searchsorted(np.round(self.values, DIGITS), numbers, side="right")])


@dataclass
class Exact:
    """The exact distributions of the levels of a small table, each found once from those of its children."""

    problem: Problem
    levels: Sequence[Level]
    backup: SoftmaxMixture
    model: TabularModel
    found: dict[tuple[int, int], Distribution] = field(default_factory=dict)
    softmaxes: dict[int, Mixture] = field(default_factory=dict)

    def naive(self, choose: Choose) -> Naive:
        """The recursion whose children are drawn from their distributions, one choice each."""

        def child(row: int, state: int) -> float:
            known = self.level(row, state)
            return known.values[choose(known.probabilities)]

        return Naive(self.problem, self.levels, self.backup, self.model, choose, child, self.softmaxes)

    def level(self, row: int, state: int) -> Distribution:
        """Of a sample of a level at a state."""
        if (row, state) not in self.found:
            self.found[row, state] = Distribution.of(lambda choose: self.naive(choose).sample(row, state))
        return self.found[row, state]

    def around(self, row: int, state: int, q: Sequence[float]) -> Distribution:
        """Of a sample of a level around a given reference."""
        return Distribution.of(lambda choose: self.naive(choose).around(row, state, q))


# --- Chains around a reference, by linear algebra ---------------------------------------------------------------------


@dataclass(eq=False)
class ChainMeans:
    """What chains around a table have for means, without sampling."""

    model: TabularModel
    backup: SoftmaxMixture
    table: Floats  # the reference, [S, K]

    def __post_init__(self) -> None:
        states = np.arange(self.model.states)
        self.policy = self.backup.policy(self.table, states)
        self.steps = np.zeros((len(states), len(states)))
        moves = self.policy[:, :, None] * self.model.continuation
        np.add.at(self.steps, (states[:, None, None], self.model.successors), moves)
        self.steps[self.model.terminal] = 0.0
        known = np.where(self.table > -np.inf, self.table, 0.0)  # illegal actions are never taken
        advantage = self.backup.value(self.table, states) - (self.policy * known).sum(axis=1)
        self.gain = self._alive((self.policy * self.model.expected_rewards).sum(axis=1) + advantage)

    def _alive(self, values: Floats) -> Floats:
        return np.where(self.model.terminal, 0.0, values)

    def summed(self, each: Floats, horizon: int | None = None, tail: float = 0.0) -> Floats:
        """Σ γ^t each(s_t) along chains, of infinite or of given length."""
        discount = self.model.discount
        if horizon is None:
            return np.asarray(np.linalg.solve(np.eye(len(each)) - discount * self.steps, each), dtype=np.float64)
        result = self._alive(np.full(len(each), tail))
        for _ in range(horizon):
            result = each + discount * self.steps @ result
        return result

    def action_values(self, values: Floats) -> Floats:
        future = np.einsum("skb,skb->sk", self.model.continuation, values[self.model.successors])
        return np.asarray(self.model.expected_rewards + self.model.discount * future)

    def at_horizon(self, horizon: int, tail: float) -> tuple[Floats, Floats, Floats]:
        """Of chains [S], of returns of every action [S, K], and of corrections [S]."""
        returns = self.action_values(self.summed(self.gain, horizon - 1, tail))
        return self.summed(self.gain, horizon, tail), returns, self._corrections(returns, horizon)

    def orders(self, horizon: int | None = None, tail: float = 0.0) -> tuple[Floats, Floats]:
        """Means of orders 1 and 2: the value of the policy, and with quadratic terms of returns through such values."""
        if horizon is None:
            first = self.summed(self.gain)
            return first, first + self._corrections(self.action_values(first), None)
        first, _, corrections = self.at_horizon(horizon, tail)
        return first, first + corrections

    def _corrections(self, returns: Floats, horizon: int | None) -> Floats:
        if self.backup.temperature == 0.0:
            return np.zeros(self.model.states)
        error = np.where(self.table > -np.inf, returns - self.table, 0.0)
        hessian = self.backup.hessian(self.table, np.arange(self.model.states))
        return self.summed(self._alive(0.5 * np.einsum("si,sij,sj->s", error, hessian, error)), horizon)


# --- Models and tables to try it on -----------------------------------------------------------------------------------


def entrance(model: TabularModel) -> int:
    """The last state of a `random_model`, whose action a leads for sure to state a."""
    return model.states - 1


def random_model(
    seed: int,
    *,
    actions: int,
    discount: float,
    states: int = 5,
    branching: int = 3,
    kind: str = "deterministic",
    low: float = 0.0,
    high: float = 1.0,
    terminal: float = 0.0,
    legal: float = 1.0,
) -> TabularModel:
    """A random model with an entrance: through it, a return R + γ·Y(a) is a sample at state a.

    `states` does not count the entrance. The `kind` of rewards is "deterministic", "bernoulli", or "successor" if they
    depend on the next state; both `low` and `high` occur. Transitions end with probability `terminal`. A share of the
    pairs is `legal`, one action of each state at least; all are if it is 1, and at the entrance.
    """
    rng = np.random.default_rng(seed)
    shape = (states + 1, actions, branching)
    probabilities = rng.dirichlet(np.ones(branching), size=shape[:2])
    successors = rng.integers(states, size=shape)
    rewards = rng.uniform(low, high, size=shape if kind == "successor" else shape[:2])
    rewards.flat[0], rewards.flat[1] = high, low
    ends = rng.random(shape) < terminal
    probabilities[-1], successors[-1], ends[-1] = 0.0, np.arange(actions)[:, None] % states, False
    probabilities[-1, :, 0], rewards[-1] = 1.0, low
    allowed = rng.random(shape[:2]) < legal
    allowed[np.arange(states), np.arange(states) % actions] = allowed[-1] = True
    return TabularModel(
        probabilities,
        successors,
        rewards,
        discount=discount,
        reward_kind="bernoulli" if kind == "bernoulli" else "deterministic",
        reward_range=None if kind == "bernoulli" else (low, high),
        terminal=ends,
        legal=None if legal == 1.0 else allowed,
    )


Built = Callable[[], tuple[TabularModel, SoftmaxMixture]]


def transport(model: TabularModel, kind: str) -> OptimalTransport:
    """Skewed costs of either sign; a reference distribution that is fixed, a table, or a function of the state."""
    rng = np.random.default_rng(model.actions)
    table = rng.dirichlet(np.ones(model.actions), size=model.states)
    references: dict[str, Any] = {"fixed": table[0], "table": table, "function": lambda states: table[states]}
    cost = line_cost(model.actions) + 0.3 * rng.normal(size=(model.actions, model.actions))
    return OptimalTransport(cost=cost, tau=0.8, lam=0.5, reference=references[kind])


def built(backup: SoftmaxMixture | str, seed: int, **settings: Any) -> Built:
    """Makes a `random_model`, and a backup for it; a kind of `transport` where that is a word."""

    def make() -> tuple[TabularModel, SoftmaxMixture]:
        model = random_model(seed, **settings)
        return model, transport(model, backup) if isinstance(backup, str) else backup

    return make


def rooted(problem: Problem, levels: Sequence[Level], row: int) -> Schedule:
    """A schedule whose root asks for returns through a level."""
    root = Level("plug-in", samples=1, reference=row)
    return Schedule(problem, (*levels[: row + 1], root), 1, 1.0, 0.1, early_stopping=False)


def with_own_shifts(problem: Problem, levels: Sequence[Level]) -> tuple[Level, ...]:
    """The levels with the shifts that their arithmetic asks for, unless they have shifts of their own."""
    result: list[Level] = []
    for level in levels:
        result.append(replace(level, shift=level.shift or _own_shift(problem, result, level)))
    return tuple(result)


def _own_shift(problem: Problem, above: Sequence[Level], level: Level) -> float:
    """What the arithmetic adds to a level, before any clipping."""
    returns = [
        arithmetic.one_step(problem.at(child.left), proved, child.rewards)
        for proved, child in zip(certify(problem, above), above, strict=True)
    ]
    around = arithmetic.constant_reference(problem)
    if level.reference is not None:
        around = arithmetic.reference(problem, returns[level.reference], level.samples)
    if level.kind == "plug-in":
        assert level.reference is not None
        return float(arithmetic.plug_in(problem, returns[level.reference], around, level.debias).shift)
    if level.kind == "order-1":
        assert level.linear is not None
        return float(arithmetic.first_order(problem, around, returns[level.linear], level.debias).shift)
    return 0.0
