"""OT-GapE (the paper, section 8) and MDP-GapE (Jonsson et al., 2020): the best action by confidence bounds.

They keep an interval for the value of every discovered state, and look for the root action that is ε-optimal with
probability 1 − δ. `SearchRun` is such a search at work.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from smoothplan.base import arguments
from smoothplan.bounds.search import SearchRun
from smoothplan.graph.explorer import Explorer, Key, searched_table
from smoothplan.graph.graph import MOST_SUCCESSORS, Rules, rules_of, spans
from smoothplan.models.model import GenerativeModel, Oracle
from smoothplan.run.records import Root
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, is_mixture, required_backup


@dataclass(frozen=True)
class OTGapE:
    """Best-action identification by bounds that are propagated through a monotone backup.

    Every state that is discovered keeps an interval for its value. While many pairs are new, UGapE chooses a root
    action, and a walk by ∇F of the upper bounds leads from there to where a sample helps most. Where states recur, a
    round samples many pairs at once. Whenever the run stops, all intervals are valid at once, and so is the gap of the
    result's details, which may be smaller than that between the intervals: differences may be known better than values.

    Args:
        backup: F.
        epsilon: the action returned is this close to optimal; 0 for a run until the best action is proved or a limit
            is reached.
        delta: the probability that any interval fails.
        sampling: "focused" walks on the empirical model and samples the pair whose own uncertainty matters most, with
            some trajectories in between, and samples many pairs in rounds where states recur; "trajectories" samples
            along the way only, as printed.
        walk: "soft" by ∇F(U), "greedy" by argmax U, or ζ in [0, 1]: soft with probability ζ.
        horizon: None for the discounted value of the model; a number of stages, which are then told apart as printed.
        tail: what follows the last stage: "honest", anything that the discounted value may be, or "zero", as printed:
            the value is then that of the finite problem.
        counts: "pooled" over stages, or "stage-wise", as printed.
        thresholds: "valid" cover δ; "published" are those of MDP-GapE's public implementation, which do not.
        rewards: "declared" uses what the model declares of its rewards, "bounded" nothing but their range.
        successors: a bound on the different next states of one (s, a); the model's own by default. None is needed: it
            helps where it is 1 or 2, and once all next states of a pair were seen.
        key: what identifies a state, a function from a state to something hashable; by default the state itself. States
            with the same key must behave alike, or nothing is proved.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    sampling: Literal["focused", "trajectories"] = "focused"
    walk: Literal["soft", "greedy"] | float = "soft"
    horizon: int | None = None
    tail: Literal["honest", "zero"] = "honest"
    counts: Literal["pooled", "stage-wise"] = "pooled"
    thresholds: Literal["valid", "published"] = "valid"
    rewards: Literal["declared", "bounded"] = "declared"
    successors: int | None = None
    key: Key | None = None

    no_forecast: ClassVar[str] = "its price depends on the gaps between the actions, which only the run reveals"

    def __post_init__(self) -> None:
        required_backup(self.backup)
        object.__setattr__(self, "epsilon", arguments.bounded("epsilon", self.epsilon))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        for name, choices in (
            ("sampling", ("focused", "trajectories")),
            ("tail", ("honest", "zero")),
            ("counts", ("pooled", "stage-wise")),
            ("thresholds", ("valid", "published")),
            ("rewards", ("declared", "bounded")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be {choices[0]!r} or {choices[1]!r}, got {getattr(self, name)!r}")
        if isinstance(self.walk, str):
            if self.walk not in ("soft", "greedy"):
                raise ValueError(f"walk must be 'soft', 'greedy' or a number in [0, 1], got {self.walk!r}")
        else:
            arguments.probability("walk", self.walk)
        if self.horizon is not None:
            object.__setattr__(
                self, "horizon", arguments.whole("horizon", self.horizon, most=100_000)
            )  # every state has bounds at each stage
        elif self.tail == "zero" or self.counts == "stage-wise":
            name = "tail" if self.tail == "zero" else "counts"
            raise ValueError(f"{name}={getattr(self, name)!r} needs a horizon, got horizon=None")
        if self.successors is not None:
            successors = arguments.whole("successors", self.successors, most=MOST_SUCCESSORS)
            object.__setattr__(self, "successors", successors)
        if self.key is not None and not callable(self.key):
            raise TypeError(f"key must be a function from a state to something hashable, got {self.key!r}")

    def start(self, root: Root, explorer: Explorer | None = None) -> SearchRun:
        """A search that knows nothing but the root; or one that goes on with a graph.

        Args:
            root: where it starts, and its limits.
            explorer: owns the graph to go on with, such as that of a `SharedReference` of the same model, backup and δ.
        """
        if root.max_calls is None and root.max_seconds is None:
            self._require_end(root.model)
        if explorer is None:
            table, oracle = searched_table(root, self.key, self.backup), Oracle(root.model, root.seed)
            explorer = Explorer(self._rules(root.model), oracle, self.backup, root.state, table, self.key)
        elif explorer.oracle.model is not root.model or explorer.rules.log_odds != -math.log(self.delta):
            raise ValueError(f"explorer must be of the model of the root, and of delta={self.delta:g}")
        return SearchRun(explorer, root, self.epsilon, self.delta, self.thresholds == "valid")

    def _require_end(self, model: GenerativeModel) -> None:
        """Refuses a run without limits that might go on for ever."""
        if self.epsilon == 0.0:
            raise ValueError("epsilon must be greater than 0 where neither max_calls nor max_seconds is given, got 0")
        curvature.resolvable(self.epsilon, curvature.value_interval(model, self.backup))
        if self.horizon is not None:
            low, high = spans(model, self.backup, self.horizon, self.tail)[-1]
            beyond = model.discount**self.horizon * (high - low)
            if beyond >= self.epsilon:
                raise ValueError(
                    f"horizon must be longer where neither max_calls nor max_seconds is given, got {self.horizon}: "
                    f"what lies beyond may be worth {beyond:.2g}, and epsilon={self.epsilon:g} may never be reached"
                )

    def _rules(self, model: GenerativeModel) -> Rules:
        rules = rules_of(model, self.backup, self.delta, self.successors, self.horizon, self.tail, self.rewards)
        published = -1.0
        if self.thresholds == "published":
            published = math.log(model.actions) * (self.horizon or published_horizon(self.epsilon, model.discount))
        return rules._replace(
            stage_wise=self.counts == "stage-wise",
            published=published,
            soft_share={"soft": 1.0, "greedy": 0.0}[self.walk] if isinstance(self.walk, str) else float(self.walk),
            focused=self.sampling == "focused",
        )


@dataclass(frozen=True)
class MDPGapE(OTGapE):
    """The hard-max case of `OTGapE`, whose walk is greedy (Jonsson et al., 2020).

    Args:
        backup: the hard maximum.
        epsilon, delta, sampling, horizon, tail, counts, thresholds, rewards, successors, key: as for `OTGapE`.
    """

    backup: Backup = field(default_factory=HardMax)
    epsilon: float = field(kw_only=True)
    walk: Literal["soft", "greedy"] | float = "greedy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_mixture(self.backup) or self.backup.temperature != 0.0:
            raise ValueError(f"MDPGapE is for the hard maximum, got {self.backup!r}: use OTGapE")

    @classmethod
    def as_published(cls, model: GenerativeModel, *, epsilon: float, delta: float = 0.1) -> "MDPGapE":
        """The algorithm as its public implementation runs it, for comparison: its intervals do not cover δ."""
        return cls(
            epsilon=epsilon,
            delta=delta,
            sampling="trajectories",
            horizon=published_horizon(epsilon, model.discount),
            tail="zero",
            counts="stage-wise",
            thresholds="published",
            rewards="bounded",
        )


def published_horizon(epsilon: float, discount: float) -> int:
    """Beyond it lies less than ε/2: the horizon of MDP-GapE's public implementation, for rewards in [0, 1]."""
    if arguments.positive("epsilon", epsilon) * (1.0 - discount) / 2.0 >= 1.0 or discount == 0.0:
        return 1
    return max(1, math.ceil(math.log(epsilon * (1.0 - discount) / 2.0) / math.log(discount)))
