"""Preparing a reference: made from the simulator where none is given, and improved, within a hard budget of calls."""

from collections.abc import Callable
from typing import Any

from smoothplan.backups import Backup
from smoothplan.compiling import working_time
from smoothplan.models.base import Oracle
from smoothplan.planners.sampling import PILOT, AllAlike, Sampling
from smoothplan.references import (
    Improvable,
    Reference,
    Savable,
    default_reference,
)
from smoothplan.references.default import made_or_improved, usual_calls
from smoothplan.running.run import Lesson, Root
from smoothplan.running.workers import Workers
from smoothplan.search.saved import Readable

PREPARATION_SHARE = 0.5
"""The part of the limit on calls, and of that on time, for making and improving a reference, at most."""

FIRST_PORTION = 64
"""Simulator calls of the first portion of work, where time is limited: a slow simulator makes a hundred in a second."""

IMPROVEMENTS = 5
"""Steps in which a reference is improved, each twice as long as the one before."""


Portion = Callable[[int], Any]
"""Work that takes a number of simulator calls, at most; it returns True where nothing is left to do."""


def in_portions(work: Portion, until: float, made: Callable[[], int]) -> None:
    """Does work until a time on the clock of `working_time`, in portions of calls that double.

    Args:
        work: what is done.
        until: no portion begins that would end later, judged by the one before.
        made: the calls made so far.
    """
    portion, taken = FIRST_PORTION, 0.0
    while (started := working_time()) + 2.0 * taken < until:
        before = made()
        if work(portion) is True or made() == before:
            return
        portion, taken = 2 * portion, working_time() - started


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

    def make(self, workers: Workers) -> None:
        """Makes the reference, if none was given. Where there is nothing to make it from, there is a warning."""
        if not self.makes:
            return
        left, root = self._left(), self._root
        calls = usual_calls(root.model) if left is None else min(usual_calls(root.model), left)

        def restore(saved: Readable) -> None:
            self.reference = default_reference(
                root.model, self._backup, state=root.state, calls=calls, saved=saved, oracle=self._oracle
            )

        def make(portion: int) -> bool:
            portion = min(portion, calls - self._oracle.calls)
            known = None if isinstance(self.reference, AllAlike) else self.reference
            self.reference = made_or_improved(known, root.model, self._backup, root.state, portion, self._oracle)
            return self._oracle.calls >= calls

        if calls < 1:
            self._warn(f"max_calls={root.max_calls} leaves no calls for it")
            return
        if not workers.recall("reference", restore):
            if left is None and root.max_seconds is not None:
                in_portions(make, root.begun + PREPARATION_SHARE * root.max_seconds, lambda: self._oracle.calls)
            else:
                make(calls)
            if isinstance(self.reference, Savable):
                workers.keep("reference", self.reference.saved)
        if self._oracle.calls == 0:
            self._warn(f"max_seconds={root.max_seconds} leaves no time for it")
        elif getattr(self.reference, "is_blank", False):
            self._warn(f"nothing can be learnt from {self._oracle.calls:,} calls")

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
