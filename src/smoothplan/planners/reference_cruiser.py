"""ReferenceCruiser: long horizons, by chains around a reference, an estimate Q̂ of the action values at any state.

Order-1 chains follow the policy ∇F(Q̂) and evaluate exactly that policy, so that they bound the optimal value from below
whatever Q̂ is. Order 2 adds the quadratic term of the Taylor model, estimated from pairs of such chains at one random
step; what remains is cubic in the reference's error. There is no branching, so the price of a chain
grows with the horizon only linearly; its variance grows, too.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from smoothplan import arguments
from smoothplan.backups import Backup, required_backup, required_mixture
from smoothplan.planners.preparing import Preparation
from smoothplan.planners.proving import Prover
from smoothplan.planners.sampling import Cut, Sampling
from smoothplan.references import Improvable, Reference
from smoothplan.running.run import Display, Found, Root, Run, Status
from smoothplan.running.workers import Workers
from smoothplan.schedules.level import Problem

LONGEST_CHAIN, MOST_PAIRS = 10**8, 10**6
"""Steps of a chain, which take the fastest engine seconds; and pairs of chains in a correction."""


@dataclass(frozen=True, eq=False)
class ReferenceCruiser:
    """Plans around a reference, along chains that do not branch.

    What is proved: the lower end of the interval bounds the optimal regularised value from below, for any reference
    whatever, and the policy's interval in `result.details` contains the value of the policy ∇F(Q̂). With `error_range`
    the interval bounds the optimal value from both sides. Without it, the value at order 2 is an estimate.

    A run has converged where the interval is within ε of the value, if `error_range` is given; else, where the policy's
    interval is (order 1), or where the noise of the estimate is, at the level δ (order 2). Where a short horizon or a
    large error range puts ε out of reach, it is completed when the noise alone is within ε.

    Args:
        backup: F, smooth.
        reference: Q̂: an object with a method q(states [n, ...]) → [n, K]; see `smoothplan.references`. By default it is
            made from the simulator, and the calls for it count. An action that is further below the best than any
            action can be, or than matters to a probability of 1e-12, is taken to be just so far below.
        order: 1 or 2.
        epsilon: the accuracy wanted.
        delta: the probability that an interval fails.
        horizon: steps of a chain; by default what lies beyond matters little. The rest is valued at the middle of the
            value interval, and what that may be wrong is booked.
        pairs: pairs of chains in a correction; chosen from a pilot by default.
        error_range: a bound on range(Q̂_s − Q_s) = max_a − min_a at every state, where one is known; of the improved
            reference, if it is improved. Where chains refute it, the result is as if it had not been given, and
            `details.certified` is False. A range that a `SharedReference` bounds holds with a probability of its own,
            1 − δ_ref; the result's delta is then δ + δ_ref.
        improve: whether a part of the calls goes into improving the reference first, which changes it.
    """

    backup: Backup
    reference: Reference | None = None
    order: int = field(default=2, kw_only=True)
    epsilon: float = field(kw_only=True)
    delta: float = field(default=0.1, kw_only=True)
    horizon: int | None = field(default=None, kw_only=True)
    pairs: int | None = field(default=None, kw_only=True)
    error_range: float | None = field(default=None, kw_only=True)
    improve: bool = field(default=False, kw_only=True)

    no_forecast: ClassVar[str] = "its price depends on the variance of the chains, which a pilot measures"

    def __post_init__(self) -> None:
        required_backup(self.backup)
        object.__setattr__(self, "epsilon", arguments.accuracy(self.epsilon))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        if self.backup.temperature == 0.0:
            raise ValueError(f"ReferenceCruiser needs a smooth backup, got {self.backup!r}")
        if self.reference is not None and not callable(getattr(self.reference, "q", None)):
            raise TypeError(f"reference must have a method q(states), got {self.reference!r}: see CriticReference")
        if arguments.flag("improve", self.improve) and not isinstance(self.reference, Improvable | None):
            raise TypeError(f"improve=True needs a reference with a method improve(calls), got {self.reference!r}")
        if self.error_range is not None:
            object.__setattr__(self, "error_range", arguments.bounded("error_range", self.error_range))
        # People write 1e3 for a count.
        object.__setattr__(self, "order", arguments.whole("order", self.order, least=1, most=2))
        if self.order == 2:
            required_mixture(self.backup, "ReferenceCruiser of order 2", "use order=1")
        if self.horizon is not None:
            object.__setattr__(self, "horizon", arguments.whole("horizon", self.horizon, most=LONGEST_CHAIN))
        if self.pairs is not None:
            object.__setattr__(self, "pairs", arguments.whole("pairs", self.pairs, least=2, most=MOST_PAIRS))

    def begin(self, root: Root) -> Run:
        """A run that has not made any simulator call yet."""
        problem = Problem.of(root.model, self.backup)
        problem.resolvable(self.epsilon)
        cut = Cut.of(self, problem)
        if cut.horizon > LONGEST_CHAIN:
            raise ValueError(
                f"discount must be smaller where no horizon is given, got {problem.discount!r}: for "
                f"epsilon={self.epsilon:g} chains would have {cut.horizon:.2g} steps, more than {LONGEST_CHAIN:,}"
            )
        return ReferenceRun(self, root, problem, cut)


class ReferenceRun:
    """A run around a reference: it is prepared, samples are drawn around it, and they prove something."""

    def __init__(self, planner: ReferenceCruiser, root: Root, problem: Problem, cut: Cut) -> None:
        self._setting = planner, root, problem, cut
        self._prover = Prover(*self._setting)
        self.preparation = Preparation(root, planner.backup, planner.reference, planner.improve)
        # Chunk 0 is for references: what a chain draws must not depend on what made its reference.
        self.sampling = Sampling(*self._setting, self.preparation.reference, first=1)

    def go(self, workers: Workers, display: Display) -> Status:
        """Samples until the interval or the standard error is within ε, or a limit is reached."""

        def around(reference: Reference) -> Sampling:
            """Begins to sample around another reference, or around one that has changed."""
            self.sampling = Sampling(*self._setting, reference, first=self.sampling.next_chunk)
            display.update(self.preparation.calls, self._prover.proof(self.sampling).interval)
            return self.sampling

        self.preparation.make(workers)
        if self.preparation.makes:
            around(self.preparation.reference)
        self.preparation.improve(workers, around)
        workers.brake.check()
        spent = self.preparation.calls
        while chunks := self.sampling.next(spent):
            for chunk, outcome in workers.in_order(self.sampling.work, chunks):
                self.sampling.book(chunk, outcome)
                display.update(spent + self.sampling.calls, self._prover.proof(self.sampling).interval)
            if not self.sampling.budgets:
                self.sampling.split(spent)
            elif (status := self._prover.reached(self.sampling)) is not None:
                return status
        return "max_calls"

    def found(self) -> Found:
        """What the samples prove so far."""
        return self._prover.found(self.sampling, self.preparation)
