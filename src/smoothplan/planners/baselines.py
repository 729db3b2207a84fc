"""Baselines: planners of others, to compare with, that run through the same driver. What they find are estimates."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from smoothplan import arguments, curvature
from smoothplan.arguments import amount, scientific
from smoothplan.backups import Backup, HardMax
from smoothplan.engines.multilevel import LevelLaw, MultilevelEngine
from smoothplan.models.base import GenerativeModel, Oracle
from smoothplan.models.tabular import TabularModel
from smoothplan.planners.multilevel_run import FEWEST, TRUNCATION_SHARE, MultilevelRun
from smoothplan.planners.uct_run import UCTRun
from smoothplan.recursion import REFUSED_CALLS, ROUNDING, HopelessError
from smoothplan.running.run import Root, Run
from smoothplan.schedules.level import Problem
from smoothplan.search.explorer import Key
from smoothplan.search.rules import spans
from smoothplan.search.tree import TreeRules, TreeSearch

MOST_DEPTH = 10_000
"""Of a tree: what lies beyond does not matter at any discount below 0.999."""

EXPLORATION = 1.0
"""c of UCT. UCB1 has √2 for returns whose range is 1 (Auer, Cesa-Bianchi and Fischer, 2002), and so has UCT: 2·C_p with
C_p = 1/√2. Regrets on nine models hardly differed between 0.5 and √2; below, a search may settle on a wrong action."""

BASE, DECAY = 4, 2.0
"""n₀ and a: near the least cost × variance on models with discounts of 0.2 to 0.9 and temperatures of 0.1 and 0.5; a
smaller n₀ or a larger a is cheaper where returns vary little, and far dearer elsewhere. See docs/baselines.md."""

MOST_BASE, MOST_DECAY = 1 << 16, 16.0
"""Of n₀ and a: more than anyone can pay for."""

MOST_NESTED = 200
"""Of H. A depth takes three calls of functions inside each other, of which Python allows 1,000; and only where one
action leads to one state can anybody pay for more."""

AFFORDED = 64
"""Samples that a limit on calls must pay for on average, or the depth is lowered."""


@dataclass(frozen=True)
class UCT:
    """Upper confidence bounds applied to trees (Kocsis and Szepesvári, 2006): a baseline, without a guarantee.

    Every round goes down a tree of what was seen, by the action with the largest Q + c·w·√(log N / n), untried ones
    first and in random order; adds a node where it leaves the tree; finds out what that is worth; and puts its
    discounted return into the mean Q of every pair on its way. The scale w is the range of the returns that were seen
    from that node on: what a model declares is often many times wider than what happens (the values of a lake that pays
    1 at its end are declared to be in [0, 20]), and a range that is seen needs no tuning for rewards of another size.

    It has no end of its own, so that `plan` needs `max_calls` or `max_seconds`. A round that is cut short by the limit
    counts for nothing. Values and action are estimates. The interval of the result is what the model declares.

    Args:
        backup: the hard maximum.
        epsilon: how deep the tree is where no depth is given: what lies beyond is worth ε at most. It then counts as 0.
        depth: D, steps of a round, at most.
        loop: "closed": a node is a state at a depth, and equal states share their statistics; "open": a node is a
            sequence of actions, for simulators whose states never repeat. An open loop converges to the best such
            sequence, which may be worse than reacting to what happens.
        exploration: c.
        rollout: what a new node is worth: "random", the return of random actions to the depth; "none", the middle of
            what is possible from there on. A rollout takes calls, but the middle may be far off: "none" is better
            where calls are few for the depth, and bad where an episode ends at its goal.
        recommendation: "value", the action with the best mean; "visits", the one that was tried most.
        key: what identifies a state of a closed loop, a function from a state to something hashable; by default the
            state itself.
    """

    backup: Backup = field(default_factory=HardMax)
    epsilon: float = 0.1
    depth: int | None = None
    loop: Literal["closed", "open"] = "closed"
    exploration: float = EXPLORATION
    rollout: Literal["random", "none"] | None = "random"
    recommendation: Literal["value", "visits"] = "value"
    key: Key | None = None

    delta: ClassVar[float] = 0.0
    no_forecast: ClassVar[str] = "it goes on until a limit is reached: it never knows how close it is"

    def __post_init__(self) -> None:
        if self.backup.temperature != 0.0:
            raise ValueError(f"UCT is for the hard maximum, got {self.backup!r}: use OTGapE")
        object.__setattr__(self, "epsilon", arguments.accuracy(self.epsilon))
        if self.depth is not None:
            object.__setattr__(self, "depth", arguments.whole("depth", self.depth, most=MOST_DEPTH))
        object.__setattr__(self, "exploration", arguments.bounded("exploration", self.exploration))
        if self.rollout is None:  # as a spec says it
            object.__setattr__(self, "rollout", "none")
        for name, choices in (
            ("loop", ("closed", "open")),
            ("rollout", ("random", "none")),
            ("recommendation", ("value", "visits")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be {choices[0]!r} or {choices[1]!r}, got {getattr(self, name)!r}")
        if self.key is not None and not callable(self.key):
            raise TypeError(f"key must be a function from a state to something hashable, got {self.key!r}")
        if self.key is not None and self.loop == "open":
            raise ValueError(f"key is for loop='closed': an open loop tells no states apart, got {self.key!r}")

    def begin(self, root: Root) -> Run:
        """A search that knows nothing but the root."""
        if root.max_calls is None and root.max_seconds is None:
            raise ValueError("UCT needs a limit, max_calls or max_seconds, for it has no end of its own: got neither")
        return UCTRun(self, root, self._search(root), by_visits=self.recommendation == "visits")

    def depth_for(self, model: GenerativeModel) -> int:
        """The depth of the tree: as given, or such that what lies beyond is worth ε at most, either way."""
        if self.depth is not None:
            return self.depth
        largest = max(map(abs, curvature.value_interval(model, self.backup)))
        if model.discount == 0.0 or model.discount * largest <= self.epsilon:
            return 1
        depth = math.ceil((math.log(self.epsilon) - math.log(largest)) / math.log(model.discount))
        if depth > MOST_DEPTH:
            raise ValueError(
                f"epsilon must be larger, got {self.epsilon:g}: beyond a depth of {MOST_DEPTH:,}, the most there is, "
                f"may lie {model.discount**MOST_DEPTH * largest:.2g}; or give the depth that you want"
            )
        return depth

    def _search(self, root: Root) -> TreeSearch:
        oracle, rules = Oracle(root.model, root.seed), self._rules(root.model)
        if isinstance(root.model, TabularModel) and root.engine != "batched" and self.key is None:
            return TreeSearch(rules, oracle, root.state, root.model)
        if root.engine == "compiled":
            raise ValueError(
                f"engine 'compiled' needs a TabularModel and no key, got {type(root.model).__name__}: use 'batched'"
            )
        return TreeSearch(rules, oracle, root.state, key=self.key)

    def _rules(self, model: GenerativeModel) -> TreeRules:
        depth = self.depth_for(model)
        possible = spans(model, self.backup, depth, "zero")
        return TreeRules(
            actions=model.actions,
            depth=depth,
            discount=model.discount,
            open_loop=self.loop == "open",
            exploration=self.exploration,
            rollout=self.rollout == "random",
            middle=arguments.frozen(possible.mean(axis=1)),
        )


@dataclass(frozen=True)
class RandomizedMultilevel:
    """Unbiased samples of the value at a finite depth, by multilevel differences at random levels: an estimate.

    A sample is unbounded and no theorem with usable constants bounds its mean, so nothing is certified: the interval
    is what the model declares, and `result.standard_error` is that of the value. Samples are drawn until the bias of
    the depth, at most γ^H·W/2, and the noise, z_{1−δ/2} standard errors, are within ε together; or the noise alone
    within ε/2, where a depth of your own has a larger bias than that.

    A sample's cost has a finite mean, which grows exponentially with the depth, and an infinite variance. Under
    `max_calls` chunks of samples are drawn in order up to the first that does not fit; docs/baselines.md says what that
    does to the estimate. Where no depth is given, the limit may lower it.

    Args:
        backup: F, smooth.
        epsilon: the accuracy wanted.
        delta: how often the estimate may be further away, if its error were normal.
        depth: H; by default the least with a bias of at most ε/2.
        base: n₀, the returns per action at the lowest level.
        decay: a > 1 in P(L ≥ l) = 2^−l·(l+1)^−a, the law of the levels.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    depth: int | None = None
    base: int = BASE
    decay: float = DECAY

    no_forecast: ClassVar[str] = "its price depends on the variance of its samples, which only the run reveals"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", arguments.accuracy(self.epsilon))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        if self.backup.temperature == 0.0:
            raise ValueError(f"RandomizedMultilevel needs a smooth backup, got {self.backup!r}: use SparseSampling")
        if self.depth is not None:
            object.__setattr__(self, "depth", arguments.whole("depth", self.depth, most=MOST_NESTED))
        object.__setattr__(self, "base", arguments.whole("base", self.base, most=MOST_BASE))
        object.__setattr__(self, "decay", arguments.number("decay", self.decay, above=1.0, below=MOST_DECAY))

    def depth_for(self, model: GenerativeModel) -> int:
        """The depth: as given, or the least at which what lies beyond is worth ε/2 at most; 200 if that is less."""
        return min(self._wanted(model), MOST_NESTED)

    def _wanted(self, model: GenerativeModel) -> int:
        """The depth that ε asks for, which may be more than there is."""
        if self.depth is not None:
            return self.depth
        problem = Problem.of(model, self.backup)
        if problem.discount * problem.width / 2.0 <= TRUNCATION_SHARE * self.epsilon:
            return 1
        # A sum of logarithms: the quotient may be too small for a float.
        logarithm = math.log(2.0 * TRUNCATION_SHARE) + math.log(self.epsilon) - math.log(problem.width)
        return math.ceil(logarithm / math.log(problem.discount) * (1.0 - ROUNDING))

    def engine(self, model: GenerativeModel, depth: int) -> MultilevelEngine:
        """What draws samples of a depth."""
        problem = Problem.of(model, self.backup)
        certain = 0
        if problem.reward_noise == 0.0:
            # With one next state nothing varies. Otherwise returns onto V_0 do not, unless that state may be worth 0.
            certain = depth if problem.single_successor else int(not problem.terminates)
        return MultilevelEngine(
            backup=self.backup,
            actions=problem.actions,
            discount=problem.discount,
            middle=problem.middle,
            depth=depth,
            base=self.base,
            law=LevelLaw(self.decay),
            certain=certain,
        )

    def expected_calls(self, model: GenerativeModel) -> float:
        """Simulator calls of one sample at the root on average, if no state is terminal; fewer if some are."""
        return self.engine(model, self.depth_for(model)).expected_calls

    def begin(self, root: Root) -> "MultilevelRun":
        """A run that has not made any simulator call yet.

        Raises:
            HopelessError: the fewest samples may need more than `REFUSED_CALLS`, or ε a depth of more than
                `MOST_NESTED`, and there is no limit on calls.
        """
        if root.engine == "compiled":
            raise ValueError("engine must be 'auto' or 'batched' for RandomizedMultilevel, got 'compiled'")
        depth = self._wanted(root.model)
        engine = self.engine(root.model, min(depth, MOST_NESTED))
        if root.max_calls is None and FEWEST * engine.expected_calls > REFUSED_CALLS:
            raise HopelessError(_refusal(self, engine))
        if root.max_calls is None and depth > MOST_NESTED:
            raise HopelessError(
                f"epsilon must be larger, got {self.epsilon:g}: it needs a depth of {depth:,}, and {MOST_NESTED} is "
                "the most there is; or give the depth that you want, or max_calls, which may lower it"
            )
        if root.max_calls is not None and self.depth is None:
            while engine.depth > 1 and AFFORDED * engine.expected_calls > root.max_calls:
                engine = self.engine(root.model, engine.depth - 1)
        return MultilevelRun(self, root, engine, lowered=engine.depth < depth)


def _refusal(planner: RandomizedMultilevel, engine: MultilevelEngine) -> str:
    """Why a run is not started."""
    calls = engine.expected_calls
    price = "more than 1e300" if calls > 1e300 else amount(math.ceil(calls))
    return (
        f"a sample of depth {engine.depth} needs {price} simulator calls on average, and {FEWEST:,} samples more than "
        f"{scientific(REFUSED_CALLS)}. The price is exponential in the depth: a smaller discount, a larger epsilon "
        f"than {planner.epsilon:g} or a depth of your own would help; max_calls=N plans as deep as N calls allow"
    )
