"""Which action now, and how sure: one call for any simulator.

If states recur, bounds may prove the action (`OTGapE`). In any case, a reference made from the simulator chooses the
actions after the first step, and a race between the actions compares returns that follow it.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, amount
from smoothplan.base.records import Record
from smoothplan.bounds.gape import OTGapE, SearchRun
from smoothplan.chains.maker import ReferenceMaker, recurs, spend, trial_calls, walks_recur
from smoothplan.chains.reference import Reference
from smoothplan.chains.shared import SharedReference
from smoothplan.decide.race import Difference, Race
from smoothplan.models.model import GenerativeModel, Oracle, action_names, is_deterministic, required_model
from smoothplan.models.tabular import TabularModel
from smoothplan.run.plan import drive, root_state, session
from smoothplan.run.progress import Display, Shown
from smoothplan.run.records import GapDetails, Root, Snapshot, Status, within
from smoothplan.run.workers import Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import HardMax

PREPARATION_SHARE = 0.5  # the share of the budget for a reference, search included


@dataclass(frozen=True, eq=False, repr=False)
class Decision(Record):
    """An action for a state, and how sure it is.

    Estimates are means of returns that take an action and then follow the policy of a reference. Intervals and the gap
    are proved, if there are any.
    """

    action: int | None  # to take; None at a terminal state
    q: Floats  # estimated action values, [K]
    q_errors: Floats  # their standard errors, [K]; infinite for fewer than two returns
    q_intervals: Floats | None  # [K, 2], if bounds are proved: all hold at once with probability 1 − δ
    gap: float  # proved with probability 1 − δ: no action is better by more than this; inf if nothing is proved
    regret: float  # estimated, one-sided at level δ: how much better the best rival may be, under the policy followed
    certified: bool  # whether the gap is within ε
    method: str  # how the action was found, in a sentence
    warnings: tuple[str, ...]  # sentences that a user must read
    calls: int  # simulator calls, everything included
    seconds: float
    status: Status  # why it stopped
    returns: Ints  # numbers of returns, [K]
    differences: Floats  # how much better each action is than the one chosen, by paired returns, estimated, [K]
    difference_errors: Floats  # their standard errors, [K]; much smaller than those of q if randomness is shared
    epsilon: float  # the gap that was asked for
    delta: float
    seed: int
    names: tuple[str, ...]  # of the actions, [K]
    reference: Any = None  # whose policy returns follow; None if there is none

    def __repr__(self) -> str:
        gap = f", gap={self.gap:.4g}" if math.isfinite(self.gap) else ""
        warned = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"Decision(action={self.action}{gap}, regret={self.regret:.4g}, calls={self.calls}{warned})"

    def to_dict(self) -> dict[str, Any]:
        """The fields, with the reference in words."""
        return super().to_dict() | {"reference": None if self.reference is None else repr(self.reference)}


def signed(difference: float) -> str:
    """How much better or worse an action is, in words."""
    return f"{'worse' if difference <= 0.0 else 'better'} by {abs(difference):.3g}"


def decide(
    model: GenerativeModel,
    state: Any = None,
    *,
    calls: int | None = None,
    seconds: float | None = None,
    epsilon: float | None = None,
    delta: float = 0.1,
    seed: int = 0,
    reference: Reference | None = None,
    workers: Any = 1,
    progress: Shown = False,
) -> Decision:
    """Which action to take at a state, and how sure that is. Ctrl-C and SIGTERM end it with a valid decision.

    At most half of the budget goes into a reference and, if states recur, into bounds on the action values; the rest
    into returns of every action that follow the reference's best actions. With a reference of yours nothing is proved.

    Args:
        model: the simulator.
        state: where to decide; the model's initial state by default.
        calls: simulator calls, at most; 100,000 if no limit is given.
        seconds: time, instead of calls. Compiling and loading code do not count. The result then depends on the
            machine.
        epsilon: the gap that counts as certified, in units of value; by default a thousandth of the width of the
            interval of all values.
        delta: the probability that a proved gap or interval fails, at most, and the level of the estimated regret.
        seed: the same seed gives the same decision, under the conditions of `plan`, if time is not limited.
        reference: Q̂, whose best actions are followed after the first step; by default it is made from the simulator.
        workers: as for `plan`.
        progress: as for `plan`.

    Raises:
        SimulatorError: the simulator failed or broke its declarations. It names the call, which `reproduce` makes
            again, and has the decision so far as `partial`.

    >>> from smoothplan import models
    >>> decision = decide(models.river_swim(discount=0.9), 0, calls=20_000, epsilon=0.2)
    >>> decision.action, decision.certified
    (1, True)
    """
    started = time.perf_counter()
    required_model(model)
    calls, seconds = either_limit(calls, seconds, usual=100_000, least=1)
    epsilon = usual_epsilon(model) if epsilon is None else arguments.bounded("epsilon", epsilon)
    delta, seed = arguments.failure(delta), arguments.whole("seed", seed, least=0)
    root = Root(model, root_state(model, state), seed, calls, seconds, "auto", started)
    run = DecisionRun(root, epsilon, delta, reference)
    if run.is_over:
        return run.decision("terminal")
    display = Display(progress, title="deciding", max_calls=calls, max_seconds=seconds)
    with session(display, workers, deadline=root.deadline) as force:

        def work() -> Status:
            run.prepare(force, display)
            with display.polling(lambda: run.calls):
                run.compare(force)
            return "completed"

        status = drive(work, lambda: run.decision("interrupted"))
        display.update(run.calls, run.interval)
        display.end(status)
    return run.decision(status)


def either_limit(
    calls: int | None, seconds: float | None, *, usual: int, least: int
) -> tuple[int | None, float | None]:
    """A limit on calls or on seconds, of which at most one is given; on the usual number of calls by default."""
    if seconds is None:
        return usual if calls is None else arguments.whole("calls", calls, least=least), None
    if calls is not None:
        raise ValueError(f"calls and seconds cannot both be given, got {calls!r} and {seconds!r}")
    return None, arguments.positive("seconds", seconds)


def usual_epsilon(model: GenerativeModel) -> float:
    """The gap that counts as certified by default: a thousandth of the width of the interval of all values."""
    low, high = curvature.value_interval(model, HardMax())
    return 0.001 * (high - low)


class DecisionRun:
    """A decision in the making, valid whatever ends it.

    Args:
        root: where to decide, with its limits.
        epsilon, delta: as for `decide`.
        reference: Q̂; None for one that is made.
        first_chunk: of the race.
    """

    def __init__(
        self, root: Root, epsilon: float, delta: float, reference: Reference | None, first_chunk: int = 0
    ) -> None:
        self.root, self._epsilon, self._delta, self._first_chunk = root, epsilon, delta, first_chunk
        self._maker = ReferenceMaker(root.model, HardMax(), reference, root.seed)
        self._walker = Oracle(root.model, root.seed, role="walk")  # of walks before that
        self._search: SearchRun | None = None
        self.race: Race | None = None

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self._maker.calls + self._walker.calls + (0 if self.race is None else self.race.calls)

    @property
    def is_over(self) -> bool:
        """Whether the state is known to be terminal: there is nothing to decide."""
        model = self.root.model
        return isinstance(model, TabularModel) and bool(model.terminal[self.root.state])

    @property
    def interval(self) -> tuple[float, float]:
        """Contains the value of the state."""
        if self._search is not None:
            return self._search.interval
        return curvature.value_interval(self.root.model, HardMax())

    def prepare(self, workers: Workers, display: Display) -> None:
        """Makes a reference by its part of the budget, if none was given; by a search for a certificate, if it can be.

        Raises:
            Stopped: time is up.
        """
        root, model = self.root, self.root.model
        limit = None if root.max_calls is None else int(PREPARATION_SHARE * root.max_calls)
        if self._maker.reference is not None or limit == 0:
            return
        kind = np.asarray(root.state).dtype.kind
        may_recur = kind in "iub"  # whole numbers may be met again, others hardly ever are
        if kind == "f" and limit is not None and not is_deterministic(model):
            may_recur = walks_recur(model, self._walker, root.state, min(512, limit // 20))
        if may_recur:
            oracle = self._maker.oracle
            shared = SharedReference(model, HardMax(), root=root.state, delta=self._delta, oracle=oracle)
            search = OTGapE(HardMax(), self._epsilon, self._delta).start(
                replace(root, max_calls=limit), shared.explorer
            )

            def look(calls: int) -> bool:
                return search.search(oracle.calls + calls, workers, display)

            spend(look, lambda: self.calls, **self._budget(limit, trial=True))
            if recurs(shared):
                self._search, self._maker.reference = search, shared
                # The first estimates of the calls that a proof takes are often ten times too high.
                price, hopeless = search.progress.price, 100.0 * (root.max_calls or math.inf)
                if not self._proved and (price is None or price <= hopeless):
                    spend(look, lambda: self.calls, **self._budget(limit))
                if not self._proved:
                    spend(shared.improve, lambda: self.calls, **self._budget(limit))
                return
        with display.polling(lambda: self.calls):
            self._maker.make(root.state, **self._budget(limit))

    @property
    def _proved(self) -> bool:
        return self._search is not None and within(self._search.proved.gap, self._epsilon)

    def _budget(self, limit: int | None, trial: bool = False) -> dict[str, Any]:
        """The calls left of a limit for the reference, or of about a tenth for a trial; or its part of the time."""
        if limit is not None:
            return {"calls": (trial_calls(limit) if trial else limit) - self.calls}
        assert self.root.max_seconds is not None
        return {"until": self.root.begun + PREPARATION_SHARE * (0.1 if trial else 1.0) * self.root.max_seconds}

    def compare(self, workers: Workers) -> None:
        """Races the actions with the rest of the budget, if there is a reference.

        Raises:
            Stopped: time is up.
        """
        root = self.root
        if self._maker.reference is None:
            return
        self.race = Race(root, self._maker.reference, self._first_chunk)
        if root.max_calls is None:
            assert root.max_seconds is not None
            self.race.run_for(root.begun + root.max_seconds, workers)
            return
        left = root.max_calls - self.calls
        # A proved action needs estimates only beside it.
        self.race.run(min(left, self.calls) if self._proved else left, workers)

    def decision(self, status: Status) -> Decision:
        """The decision by everything found so far."""
        root, model, race, terminal = self.root, self.root.model, self.race, status == "terminal"
        q, returns = np.zeros(model.actions), np.zeros(model.actions, np.int64)
        errors = np.full(model.actions, 0.0 if terminal else np.inf)
        apart = [Difference(0.0, math.inf, 0)] * model.actions
        action, gap, regret = 0, (0.0 if terminal else math.inf), (0.0 if terminal else math.inf)
        if race is not None:
            q, errors, returns = race.estimates()
            action = race.choice()
        found = None if self._search is None else self._search.result()
        if found is not None:
            action, gap = self._proved_gap(found, action)
        if race is not None:
            apart = [race.difference(other, action) for other in range(model.actions)]
            rivals = [found for rival, found in enumerate(apart) if rival != action]
            level = 1.0 - self._delta / max(len(rivals), 1)  # for all rivals together
            regret = max([0.0, *(found.at_most(level) for found in rivals)])
        certified = within(gap, self._epsilon)
        if status == "completed" and certified:
            status = "converged"
        if status == "completed" and (race is None or len(race.active) > 1):
            status = "max_calls" if root.max_calls is not None else "max_seconds"
        return Decision(
            action=None if terminal else action,
            q=q,
            q_errors=errors,
            q_intervals=None if found is None else found.q_intervals,
            gap=gap,
            regret=regret,
            certified=certified,
            method="the state is terminal" if terminal else self._method(found, certified),
            warnings=() if certified else tuple(self._warnings(action, (q, errors, returns), apart)),
            calls=self.calls,
            seconds=time.perf_counter() - root.started,
            status=status,
            returns=returns,
            differences=np.array([found.mean for found in apart]),
            difference_errors=np.array([found.error for found in apart]),
            epsilon=self._epsilon,
            delta=self._delta,
            seed=root.seed,
            names=action_names(model),
            reference=self._maker.reference,
        )

    def _proved_gap(self, found: Snapshot, estimated: int) -> tuple[int, float]:
        """The action that is proved, unless another is clearly better by estimates, and its proved gap."""
        assert isinstance(found.details, GapDetails)
        assert found.action is not None
        assert found.q_intervals is not None
        low, high = found.q_intervals.T
        if self.race is None or estimated == found.action or high[estimated] < low.max():
            return found.action, found.details.gap
        better = self.race.difference(estimated, found.action)
        if within(found.details.gap, self._epsilon) and not (better.mean > 0.0 and better.is_clear):
            return found.action, found.details.gap
        return estimated, float(np.delete(high, estimated).max() - low[estimated])

    def _method(self, found: Snapshot | None, certified: bool) -> str:
        parts = []
        if found is not None:
            assert isinstance(found.details, GapDetails)
            proved = "proved it" if certified else "did not prove it"
            parts.append(f"bounds on {found.details.states:,} recurring states {proved}")
        if self.race is not None:
            _, late, full = self.race.horizons
            kind = type(self._maker.reference).__name__
            cut = "" if late >= full else ", and the reference's value beyond"
            parts.append(f"returns of {late} steps that follow the best actions of a {kind}{cut}")
        return ", and ".join(parts) or "nothing was tried"

    def _warnings(
        self, action: int, estimates: tuple[Floats, Floats, Ints], apart: Sequence[Difference]
    ) -> Iterator[str]:
        """Sentences that a reader of an action that is not proved must know, the worst first."""
        means, errors, counts = estimates
        race, names, most = self.race, action_names(self.root.model), self.root.max_calls
        limit = "the calls that the time allows" if most is None else "1 call" if most == 1 else f"{most:,} calls"
        if len(names) == 1:
            return
        if race is None or counts.max() == 0:
            guess = "arbitrary" if race is None else "the best guess of a poor reference"
            yield f"{limit} did not suffice for a single return of every action: the action is {guess}"
            return
        if getattr(self._maker.reference, "is_blank", False):
            yield (
                "the reference has learnt nothing, for all rewards that it saw were alike: returns follow action "
                f"{names[race.best]} everywhere"
            )
        if counts[action] < race.enough:
            yield f"{limit} sufficed for only {counts[action]} returns of every action: the estimates are rough"
        claimed, earned, noise = race.claim, means[race.best], errors[race.best]
        if abs(claimed - earned) > max(3.0 * noise, 0.1 * max(abs(claimed), abs(earned))):
            yield (
                f"the reference is poor: it claims {claimed:.4g} for action {names[race.best]}, and its policy earns "
                f"{earned:.4g} ± {noise:.2g}; more calls would improve it"
            )
        _, late, full = race.horizons
        if 4 * late < full:
            yield (
                f"returns are cut after {late} of about {full} steps, so that estimates rest on the reference, whose "
                "errors their standard errors do not show"
            )
        close = [rival for rival in range(len(names)) if rival != action and not apart[rival].is_clear]
        if close:
            rival = max(close, key=lambda other: apart[other].mean + 2.0 * apart[other].error)
            found, advice = apart[rival], ""
            if math.isfinite(found.error) and found.error > 0.0:
                more = 4.0 * late * found.rows_to_tell  # half of a race's calls are for late returns, of two actions
                enough = f"about {amount(round(more))} calls for returns alone would tell"
                advice = "; they may be equally good" if more > 1e12 else f"; {enough}"
            yield (
                f"actions {names[action]} and {names[rival]} cannot be told apart for sure: {names[rival]} is "
                f"{signed(found.mean)} ± {found.error:.2g} (estimate){advice}"
            )
