"""Preparing a reference: made from the simulator where none is given, and improved, within a hard budget of calls."""

from collections.abc import Callable

from smoothplan.backups import Backup
from smoothplan.models.base import Oracle
from smoothplan.planners.sampling import PILOT, AllAlike, Sampling
from smoothplan.references import (
    Improvable,
    Reference,
    Savable,
    TooFewCallsError,
    default_reference,
)
from smoothplan.references.default import usual_calls
from smoothplan.running.run import Lesson, Root
from smoothplan.running.workers import Workers
from smoothplan.search.saved import Readable

PREPARATION_SHARE = 0.5
"""The part of the limit on calls, and of that on time, for making and improving a reference, at most."""

IMPROVEMENTS = 5
"""Steps in which a reference is improved, each twice as long as the one before."""


class Preparation:
    """The reference of a run, and how it came about. Its calls are exact whatever ends the preparation.

    Args:
        root: of the run, with its limits.
        backup: F.
        reference: what was given; None for one that is made from the simulator.
        improve: whether it is improved, where it can be.
    """

    def __init__(self, root: Root, backup: Backup, reference: Reference | None, improve: bool) -> None:
        self._root, self._backup = root, backup
        self._improve = improve
        self.makes = reference is None  # whether the reference comes from this run
        self.reference: Reference = AllAlike(root.model.actions) if reference is None else reference
        self._oracle = Oracle(root.model, root.seed)  # of a reference that is made
        self._before = self._own_calls()
        self._lesson_calls = 0
        self.lessons: list[Lesson] = []
        self.warnings: list[str] = []

    @property
    def calls(self) -> int:
        """Simulator calls made in this run for the reference, and to see what its policy is worth."""
        return self._own_calls() - self._before + self._lesson_calls

    def _own_calls(self) -> int:
        """Simulator calls ever made for the reference, as far as this run may add to them."""
        if self.makes:
            return self._oracle.calls
        return self.reference.calls if self._improve and isinstance(self.reference, Improvable) else 0

    def _left(self) -> int | None:
        """Simulator calls that the preparation may still make; None for no limit."""
        limit = self._root.max_calls
        return None if limit is None else int(PREPARATION_SHARE * limit) - self.calls

    def make(self, workers: Workers, most: int | None = None) -> None:
        """Makes the reference, by at most that many calls, if none was given. Too few calls are a warning."""
        if not self.makes:
            return
        left = self._left()
        calls = usual_calls(self._root.model) if most is None else most
        calls = calls if left is None else min(calls, left)
        root = self._root

        def make(saved: Readable | None = None) -> Savable:
            self.reference = made = default_reference(
                root.model, self._backup, state=root.state, calls=calls, saved=saved, oracle=self._oracle
            )
            return made

        if calls < 1:
            self._warn(f"max_calls={root.max_calls} leaves no calls for it")
        elif not workers.recall("reference", make):
            try:
                workers.keep("reference", make().saved)
            except TooFewCallsError as error:
                self._warn(str(error))

    def _warn(self, reason: str) -> None:
        self.warnings.append(f"no reference was made, so that this is about a uniformly random policy: {reason}")

    def improve(self, workers: Workers, around: Callable[[Reference], Sampling]) -> None:
        """Improves the reference step by step, if that is wanted and possible.

        After each step `around` begins to sample around it, and a few chains show what its policy is worth.
        """
        reference = self.reference
        if not (self._improve and isinstance(reference, Improvable)):
            return
        most = usual_calls(self._root.model)
        left, saved = self._left(), 0
        # A fifth of the calls is for chains that show what each step has brought.
        lesson = None if left is None else int(0.2 * left / IMPROVEMENTS)
        most = most if left is None or lesson is None else min(most, left - IMPROVEMENTS * lesson)
        for step in range(IMPROVEMENTS):
            done, enough = f"reference, improved {step}", f"reference, not improved {step}"
            # A run that is resumed goes the way that it went before, whatever the time is now.
            if workers.has(enough) or (self._root.late(PREPARATION_SHARE) and not workers.has(done)):
                workers.keep(enough, dict)
                return
            saved += most * 2**step // (2**IMPROVEMENTS - 1)
            if saved > 0 and (made := self._step(reference, saved, workers, done)) > 0:
                saved = max(0, saved - made)
                self._learn(around(reference), lesson, workers)

    def _step(self, reference: Improvable, calls: int, workers: Workers, name: str) -> int:
        """Improves the reference by a number of calls, at most; the calls that it made."""
        before = reference.calls
        if not (isinstance(reference, Savable) and workers.recall(name, reference.restore)):
            reference.improve(calls)
            made = reference.calls - before
            if self._root.max_calls is not None and made > calls:
                raise ValueError(
                    f"reference.improve({calls}) must not make more than {calls} simulator calls under a limit on "
                    f"calls, but {reference!r} made {made}"
                )
            workers.keep(name, reference.saved if isinstance(reference, Savable) else dict)
        return reference.calls - before

    def _learn(self, sampling: Sampling, calls: int | None, workers: Workers) -> None:
        """Finds out by a few chains what the policy of the reference is worth now.

        They go into no interval, so that no choice is made between the intervals of several references.
        """
        count = PILOT if calls is None else min(PILOT, calls // sampling.horizon)
        if count < 2:
            return
        chunks, mean = sampling.trial(count)
        for _, outcome in workers.in_order(sampling.work, chunks):
            self._lesson_calls += outcome.calls
            mean.sequence.update(*outcome.sums[:3])
        self.lessons.append(Lesson(self.calls, mean.estimate, mean.error))
