"""Which action now, and how sure: one call for any simulator.

If states recur, bounds may prove the action (`OTGapE`). In any case, a policy is learnt from the simulator, or given,
and a race between the actions compares returns that follow it after the first step.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, amount
from smoothplan.base.compiling import working_time
from smoothplan.base.records import Record
from smoothplan.bounds.gape import OTGapE, SearchRun
from smoothplan.chains.maker import spend
from smoothplan.chains.reference import Reference, required_reference
from smoothplan.decide.boxes import add_point, coarse_points, refine
from smoothplan.decide.plans import ALIKE, Plans
from smoothplan.decide.policies import Budget, PolicyReference, PolicySearch, Rule, full_horizon
from smoothplan.decide.race import Difference, Lead, Race
from smoothplan.models.derived import chosen_actions, discretise
from smoothplan.models.model import (
    Actions,
    Box,
    GenerativeModel,
    States,
    action_names,
    declares_rewards,
    effective_horizon,
    horizon_of,
    is_deterministic,
    legal_actions,
    required_model,
)
from smoothplan.models.tabular import TabularModel
from smoothplan.run.plan import drive, root_state, session
from smoothplan.run.progress import Display, Shown
from smoothplan.run.records import GapDetails, Root, Snapshot, Status, within
from smoothplan.run.workers import Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import HardMax

PREPARATION_SHARE = 0.5  # the share of the budget for a policy, search included
TABLE_SHARE = 0.8  # the same if a table of recurring states is accurate: it uses every call for all actions
HOPELESS = 100.0, 10.0  # a proof that seems to take more times the budget, at first and later, is not pursued
FIRST_LOOK = (
    4_000  # calls after which that is judged for a simulator in Python, which walks call for one state at a time
)
PLAN_SHARE = 0.8  # the share of what is left after the policy for plans, if nothing is random
WORTH_TELLING = 0.02  # a loss, as a share of the span of all actions, that a reader would act on
DOUBT = 0.2  # the chance of such a loss that a warning tells


@dataclass(frozen=True, eq=False, repr=False)
class Decision(Record):
    """An action for a state, and how sure it is.

    Estimates are means of returns that take an action and then follow the policy of a reference. Intervals and the gap
    are proved, if there are any.
    """

    action: Any  # to take: a whole number; of a box a number, or a vector [d]; None at a terminal state
    q: Floats  # estimated values of each action, followed by the reference's policy, [K]; NaN for illegal actions
    q_errors: Floats  # their standard errors, [K]; infinite for fewer than two returns
    q_intervals: Floats | None  # [K, 2], if bounds are proved: all hold at once with probability 1 − δ
    gap: float  # proved with probability 1 − δ: no action is better by more than this; inf if nothing is proved
    regret: float  # estimated, one-sided at level δ: how much better the best rival may be; inf if not known
    certified: bool  # whether the gap is within ε
    method: str  # how the action was found, in a sentence
    warnings: tuple[str, ...]  # at most one sentence that a user must read
    notes: tuple[str, ...]  # further sentences about the estimates
    calls: int  # simulator calls, everything included
    seconds: float
    status: Status  # why it stopped
    returns: Ints  # numbers of returns, [K]
    differences: Floats  # how much better each action is than the one chosen, by paired returns, estimated, [K]
    difference_errors: Floats  # their standard errors, [K]; much smaller than those of q if randomness is shared
    epsilon: float  # the gap that was asked for; NaN if neither it nor the range of rewards is known
    delta: float
    seed: int
    names: tuple[str, ...]  # of the actions, [K]
    actions: Floats | None = None  # of a box: the actions compared, [K] or [K, d]; None if there are finitely many
    policy_action: int | None = None  # the action of the policy that was given; None without one
    reference: Any = None  # whose policy returns follow; None if there is none
    samples: Floats | None = field(default=None, repr=False)  # paired returns, [n, K]; NaN if an action has none

    def __repr__(self) -> str:
        gap = f", gap={self.gap:.4g}" if math.isfinite(self.gap) else ""
        warned = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"Decision(action={self.action}{gap}, regret={self.regret:.4g}, calls={self.calls}{warned})"

    @property
    def place(self) -> int | None:
        """The action's place among those compared; None at a terminal state."""
        if self.action is None:
            return None
        if self.actions is None:
            return int(self.action)
        same = (self.actions == self.action).reshape(len(self.actions), -1).all(axis=1)
        return int(np.argmax(same))

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
    policy: Rule | None = None,
    workers: Any = 1,
    progress: Shown = False,
) -> Decision:
    """Which action to take at a state, and how sure that is. Ctrl-C and SIGTERM end it with a valid decision.

    At most half of the budget goes into policies to follow and, if states recur, into bounds on the action values; the
    rest into returns of every action that follow the best policy. With a reference of yours nothing is proved, and
    neither is it if actions are a `Box`: a coarse set is compared first, then closer ones around the best.

    Args:
        model: the simulator.
        state: where to decide; the model's initial state by default.
        calls: simulator calls, at most; 100,000 if no limit is given.
        seconds: time, instead of calls. Compiling and loading code do not count. The result then depends on the
            machine.
        epsilon: the gap that counts as certified, in units of value; by default a thousandth of the width of the
            interval of all values. Nothing is proved if the model declares no range of rewards.
        delta: the probability that a proved gap or interval fails, at most, and the level of the estimated regret.
        seed: the same seed gives the same decision, under the conditions of `plan`, if time is not limited.
        reference: Q̂, whose best actions are followed after the first step; by default it is made from the simulator.
        policy: a rule in use, a function from states [n, ...] to actions [n]. The decision follows it unless something
            better is found, at the level 1 − δ, and says how much better it is than the rule's action. Actions in a
            `Box` take neither a rule nor a reference.
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
    planned = with_coarse_actions(model, reference, policy)
    required_reference(reference)
    calls, seconds = either_limit(calls, seconds, usual=100_000, least=1)
    wanted = None if epsilon is None else arguments.bounded("epsilon", epsilon)
    delta, seed = arguments.failure(delta), arguments.whole("seed", seed, least=0)
    root = Root(planned, root_state(planned, state), seed, calls, seconds, "auto", started)
    run = DecisionRun(root, wanted, delta, PolicySearch(planned, seed, reference, policy, delta), model)
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


def with_coarse_actions(
    model: GenerativeModel, reference: Reference | None = None, policy: Rule | None = None
) -> GenerativeModel:
    """The model that policies are learnt on: if actions are a box, with a coarse set of them."""
    box: Any = required_model(model, boxes=True).actions
    if not isinstance(box, Box):
        return model
    for name, given in (("reference", reference), ("policy", policy)):
        if given is not None:
            raise ValueError(
                f"{name} must be None if actions are a box, from which a coarse set is chosen here: use it with one of "
                f"your own, model, cost = sp.models.discretise(model, points), got {given!r}"
            )
    return discretise(model, coarse_points(box))[0]


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
    """The gap that counts as certified by default: a thousandth of the width of the interval of all values; or NaN."""
    if not declares_rewards(model):
        return math.nan
    low, high = curvature.value_interval(model, HardMax())
    return 0.001 * (high - low)


def _span(means: Floats) -> float:
    """The range of the values of the legal actions."""
    return float(np.nanmax(means) - np.nanmin(means))


class DecisionRun:
    """A decision in the making, valid whatever ends it.

    Args:
        root: where to decide, with its limits.
        epsilon: the gap that is asked for; None for the usual one, which may be more than actions are apart.
        delta: as for `decide`.
        policies: finds the policy that returns follow.
        model: the simulator as it was given; that of the root has a coarse set of its actions if they are a box.
        first_chunk: of the race.
    """

    def __init__(
        self,
        root: Root,
        epsilon: float | None,
        delta: float,
        policies: PolicySearch,
        model: GenerativeModel,
        first_chunk: int = 0,
    ) -> None:
        self._model, self._proves = model, declares_rewards(model) and model is root.model
        self.root, self._delta, self._first_chunk, self._asked = root, delta, first_chunk, epsilon is not None
        self._epsilon = (usual_epsilon(root.model) if self._proves else math.nan) if epsilon is None else epsilon
        self._policies, self._before = policies, policies.calls
        self._search: SearchRun | None = None
        self.race: Race | None = None
        self._surprised = False  # whether plans have met something random, and spent calls in vain

    @property
    def calls(self) -> int:
        """Simulator calls made for this decision."""
        return self._policies.calls - self._before + (0 if self.race is None else self.race.calls)

    @property
    def is_over(self) -> bool:
        """Whether the state is known to be terminal: there is nothing to decide."""
        model = self.root.model
        return isinstance(model, TabularModel) and bool(model.terminal[self.root.state])

    @property
    def _has_box(self) -> bool:
        """Whether actions are a box, of which the root's model has a few."""
        return self._model is not self.root.model

    @property
    def interval(self) -> tuple[float, float] | None:
        """Contains the value of the state; None if the range of rewards is not known."""
        if self._search is not None:
            return self._search.interval
        known = declares_rewards(self.root.model)
        return curvature.value_interval(self.root.model, HardMax()) if known else None

    @property
    def _legal(self) -> Ints:
        """The actions that the state has."""
        mask = None if self.is_over else legal_actions(self.root.model, np.asarray(self.root.state)[None])
        return np.arange(len(self._names)) if mask is None else np.flatnonzero(mask[0])

    @property
    def _compared(self) -> GenerativeModel:
        """The model of the actions compared."""
        return self.root.model if self.race is None else self.race.model

    @property
    def _names(self) -> tuple[str, ...]:
        """The names of the actions compared."""
        return action_names(self._compared)

    def prepare(self, workers: Workers, display: Display) -> None:
        """Finds a policy by its part of the budget, unless one was given, and a proof on the way, if it can.

        Raises:
            Stopped: time is up.
        """
        root = self.root

        def prove(policies: PolicySearch, budget: Budget) -> bool:
            table = policies.table
            assert table is not None
            limited = replace(root, max_calls=budget.calls)
            self._search = OTGapE(HardMax(), self._epsilon, self._delta).start(limited, table.explorer)

            def look(calls: int) -> bool:
                assert self._search is not None
                return self._search.search(table.calls + calls, workers, display)

            compiled = isinstance(root.model, TabularModel)
            for share, within_budgets in ((0.15, HOPELESS[not compiled]), (0.4, HOPELESS[1]), (0.9, 0.0)):
                left = budget.upto(share, policies.calls)
                if share == 0.15 and not compiled and "calls" in left:
                    left["calls"] = min(left["calls"], FIRST_LOOK)
                spend(look, lambda: policies.calls, **left)
                price, most = self._search.progress.price, within_budgets * (root.max_calls or math.inf)
                if self._proved or (price is not None and price > most):
                    break
            return self._proved

        with display.polling(lambda: self.calls):
            self._policies.make(root.state, self.budget(PREPARATION_SHARE), prove if self._proves else None)
            if self._policies.knows and not self._proved and not self._has_box:
                self._policies.improve(root.state, **self.budget(TABLE_SHARE).upto(1.0, self.calls))

    def budget(self, share: float) -> Budget:
        """A share of the limit on calls or time."""
        root = self.root
        calls = None if root.max_calls is None else int(share * root.max_calls)
        return Budget(calls, root.begun, None if root.max_seconds is None else share * root.max_seconds)

    @property
    def _proved(self) -> bool:
        return self._search is not None and within(self._search.proved.gap, self._epsilon)

    def compare(self, workers: Workers) -> None:
        """Spends the rest of the budget, if there is a policy to follow: on a race, and on plans if nothing is random.

        Raises:
            Stopped: time is up.
        """
        root, reference = self.root, self._policies.reference
        if reference is None:
            return
        self.race = race = Race(root, reference, self._delta if self._policies.keeps else None, self._first_chunk)
        if self._proved and root.max_calls is not None:  # a proved action needs estimates only beside it
            race.run(min(self._left, self.calls), workers)
        if self._settled:
            return
        plans = self._plans(race)
        self._run_race(race, reference, 1.0 if plans is None else 1.0 - PLAN_SHARE, workers)
        if plans is None:
            return
        usual: Any = race.choice()
        action = chosen_actions(race.model)[usual] if self._has_box else usual
        try:
            while plans.improve(self._left, action):
                pass
        finally:
            if plans.leads:
                assert plans.best is not None
                assert plans.base is not None
                first, found = plans.best.actions[0], plans.firsts
                if self._has_box:
                    first = add_point(race, self._model, reference, first)
                    found = {usual: (plans.base, plans.base), first: (plans.base, plans.best)}
                missed = 0.0
                if not is_deterministic(root.model) and declares_rewards(root.model):  # of probability 1/n, at any step
                    low, high = root.model.reward_range
                    missed = (high - low) * effective_horizon(root.model) / max(plans.repeated, 1)
                race.plan = Lead(int(first), usual, found, missed)
        if plans.random:
            self._surprised = True
            self._run_race(race, reference, 1.0, workers)

    def _plans(self, race: Race) -> Plans | None:
        """Plans from the state, if nothing seems random."""
        model, plans = self.root.model, self._policies.plans_of(self._model)
        if isinstance(model, TabularModel):
            return None
        engine = race.engine

        def course(states: States) -> Actions:
            actions = engine.policy(states)
            return chosen_actions(model)[actions] if self._has_box else actions

        calls = int(PLAN_SHARE * self._left)
        return plans if plans.start(self.root.state, course, engine.value, full_horizon(model), calls) else None

    @property
    def _left(self) -> int:
        """The calls that are left, or that the time that is left allows."""
        root = self.root
        if root.max_seconds is not None and self.calls == 0:  # at the speed of the decision before
            return int(self._policies.speed * (root.begun + root.max_seconds - working_time()))
        return self.budget(1.0).as_calls(1.0, self.calls)

    def _run_race(self, race: Race, reference: Reference, part: float, workers: Workers) -> None:
        """Races by a part of what is left."""
        root = self.root
        limit, now = self.calls + int(part * self._left), working_time()
        until = math.inf if root.max_seconds is None else now + part * (root.begun + root.max_seconds - now)

        def run(share: float = 1.0) -> None:
            if root.max_calls is not None:
                return race.run(int(share * (limit - self.calls)), workers)
            now = working_time()
            return race.run_for(now + share * (until - now), workers)

        if self._has_box and race.calls == 0:
            refine(race, self._model, reference, lambda: int(part * self._left), run)
        else:
            run()

    @property
    def _settled(self) -> bool:
        """Whether a proof is all that a reader would act on: of the gap asked for, or one that is small in the span."""
        if not self._proved or self._asked:
            return self._proved
        assert self._search is not None
        span = 0.0 if self.race is None else _span(self.race.estimates()[0])
        return self._search.proved.gap <= WORTH_TELLING * span

    def decision(self, status: Status) -> Decision:
        """The decision by everything found so far."""
        root, race, terminal, names = self.root, self.race, status == "terminal", self._names
        points = chosen_actions(self._compared) if self._has_box else None
        legal, count = self._legal, len(names)
        returns, (q, errors) = np.zeros(count, np.int64), np.full((2, count), np.nan)
        q[legal], errors[legal] = 0.0, 0.0 if terminal else np.inf
        nothing = Difference(math.nan, math.nan, 0)
        apart = [Difference(0.0, math.inf, 0) if each in legal else nothing for each in range(count)]
        action, gap, regret = int(legal[0]), (0.0 if terminal else math.inf), (0.0 if terminal else math.inf)
        if race is not None:
            q, errors, returns = race.estimates()
            action = race.choice()
            # Many close actions differ by little but the reference's errors, which only the whole standard error has.
            if points is not None and self._policies.keeps and race.plan is None:
                lead = race.difference(action, race.best)
                action = action if lead.at_most(self._delta / max(count - 1, 1)) > 0.0 else race.best
        found = None if self._search is None else self._search.result()
        if found is not None:
            action, gap = self._proved_gap(found, action)
        rivals = [int(rival) for rival in legal if rival != action]
        soon = apart
        if race is not None:
            apart, soon = (
                [race.difference(other, action, early) if other in legal else nothing for other in range(count)]
                for early in (False, True)
            )
            level = 1.0 - self._delta / max(len(rivals), 1)  # for all rivals together
            # Late returns compare under the policy that is followed, early ones under the values of the reference,
            # which may be those of a better policy, unless late returns clearly contradict them.
            soon = [late if late.is_clear else early for late, early in zip(apart, soon, strict=True)]
            regret = max([0.0, *(view[rival].at_most(level) for view in (apart, soon) for rival in rivals)])
            if min([race.enough, *(apart[rival].rows for rival in rivals)]) < race.enough:
                regret = math.inf
        certified = within(gap, self._epsilon)
        if status == "completed" and certified:
            status = "converged"
        if status == "completed" and (race is None or len(race.active) > 1):
            status = "max_calls" if root.max_calls is not None else "max_seconds"
        warnings: tuple[str, ...] = ()
        if not terminal and not (certified and self._settled):
            warnings = tuple(self._warnings(action, rivals, (q, returns), (apart, soon), status))
        return Decision(
            action=None if terminal else action if points is None else points[action],
            q=q,
            q_errors=errors,
            q_intervals=None if found is None else self._intervals(found),
            gap=gap,
            regret=regret,
            certified=certified,
            method="the state is terminal" if terminal else self._method(found, certified),
            warnings=warnings[:1],
            notes=() if terminal else tuple(self._notes(action, (q, errors), apart)),
            calls=self.calls,
            seconds=time.perf_counter() - root.started,
            status=status,
            returns=returns,
            differences=np.array([found.mean for found in apart]),
            difference_errors=np.array([found.error for found in apart]),
            epsilon=self._epsilon,
            delta=self._delta,
            seed=root.seed,
            names=names,
            actions=points,
            policy_action=self._policies.rule_action(root.state),
            reference=self._policies.reference,
            samples=None if race is None else race.samples,
        )

    def _proved_gap(self, found: Snapshot, estimated: int) -> tuple[int, float]:
        """The action that is proved, unless another is clearly better by estimates, and its proved gap."""
        assert isinstance(found.details, GapDetails)
        assert found.action is not None
        low, high = self._intervals(found).T
        if self.race is None or estimated == found.action or high[estimated] < np.nanmax(low):
            return found.action, found.details.gap
        better = self.race.difference(estimated, found.action)
        if self._settled and not (better.mean > 0.0 and better.is_clear):
            return found.action, found.details.gap
        return estimated, float(np.nanmax(np.delete(high, estimated)) - low[estimated])

    def _intervals(self, found: Snapshot) -> Floats:
        """The intervals of the action values, [K, 2]; NaN for illegal actions."""
        assert found.q_intervals is not None
        intervals = np.full(found.q_intervals.shape, np.nan)
        intervals[self._legal] = found.q_intervals[self._legal]
        return intervals

    def _method(self, found: Snapshot | None, certified: bool) -> str:
        parts = []
        if found is not None:
            assert isinstance(found.details, GapDetails)
            proved = "proved it" if certified else "did not prove it"
            parts.append(f"bounds on {found.details.states:,} recurring states {proved}")
        if self._policies.compared:
            parts.append(self._policies.compared)
        if self.race is not None:
            _, late, full = self.race.horizons
            reference = self._policies.reference
            kind = type(reference).__name__ if not isinstance(reference, PolicyReference) else repr(reference)
            ends = horizon_of(self.root.model) is not None and self.race.cut_weight == 0.0
            cut = "" if late >= full or ends else ", and the reference's value beyond"
            if self._has_box:
                parts.append(f"{self.race.model.actions} actions of the box were compared")
            parts.append(f"returns of {late} steps that follow the best actions of a {kind}{cut}")
            if self.race.plan is not None:
                plan = self.race.plan.best
                parts.append(f"nothing random was seen, and a plan of {len(plan.actions)} steps earns {plan.value:.4g}")
        return "; ".join(parts) or "nothing was tried"

    def _warnings(
        self,
        action: int,
        rivals: Sequence[int],
        estimates: tuple[Floats, Ints],
        views: tuple[Sequence[Difference], Sequence[Difference]],
        status: Status,
    ) -> Iterator[str]:
        """What a reader of an action that is not proved must know, the worst first: if he would act on it."""
        means, counts = estimates
        race, names, most = self.race, self._names, self.root.max_calls
        limit = "the calls that the time allows" if most is None else "1 call" if most == 1 else f"{most:,} calls"
        if status == "interrupted":
            limit = f"the {self.calls:,} calls before the end"
        if not rivals:
            return
        if race is None or counts.max() == 0:
            guess = "arbitrary" if race is None else "the best guess of a poor reference"
            yield f"{limit} did not suffice for a single return of every action: the action is {guess}"
            return
        planned = race.plan is not None
        if getattr(self._policies.reference, "is_blank", False) and not planned:
            yield (
                "the reference has learnt nothing, for all rewards that it saw were alike: returns follow action "
                f"{names[race.best]} everywhere"
            )
        if counts[action] < race.enough and not planned:
            yield f"{limit} sufficed for only {counts[action]} returns of every action: the estimates are rough"
            return
        returns = race.samples[~np.isnan(race.samples)]
        if race.cut_weight > 0.0 and np.ptp(returns) <= ALIKE * np.abs(returns).max() and not planned:
            yield (
                f"all returns are alike, {means[action]:.4g}: what tells the actions apart was not met within {limit}, "
                "so the action is arbitrary"
            )
            return
        if self._surprised:
            yield (
                "something is random, which was met so late that few calls were left for returns: they may have missed "
                "what matters. Decide again with more calls"
            )
        worth = WORTH_TELLING * _span(means)
        doubts = [(view[rival].chance(worth), rival, view[rival]) for rival in rivals for view in views]
        chance, rival, found = max(doubts, key=lambda doubt: doubt[0])
        if chance > DOUBT:
            advice = ""
            if math.isfinite(found.error) and found.error > 0.0:
                more = (
                    4.0 * race.horizons.late * found.rows_to_tell
                )  # half of the calls are late returns, of two actions
                enough = f"about {amount(round(more))} calls for returns alone would tell"
                advice = "; they may be equally good" if more > 1e12 else f"; {enough}"
            yield (
                f"actions {names[action]} and {names[rival]} cannot be told apart for sure: {names[rival]} is "
                f"{signed(found.mean)} ± {found.error:.2g} (estimate){advice}"
            )

    def _notes(self, action: int, estimates: tuple[Floats, Floats], apart: Sequence[Difference]) -> Iterator[str]:
        """Sentences about the estimates that change no decision."""
        race, names, (means, errors) = self.race, self._names, estimates
        if not declares_rewards(self.root.model):
            yield "the model declares no range of rewards, without which nothing can be proved"
        usual = self._policies.rule_action(self.root.state)
        if usual is not None and usual == action:
            yield f"the decision is the given policy's own action, {names[usual]}"
        elif usual is not None:
            found = apart[usual]
            yield (
                f"action {names[action]} is better than the given policy's action, {names[usual]}, by "
                f"{-found.mean:.3g} ± {found.error:.2g} (estimate)"
            )
        if race is None or race.plan is not None or not math.isfinite(errors[race.best]):
            return
        claimed, earned, noise = race.claim, means[race.best], errors[race.best]
        if abs(claimed - earned) > max(3.0 * noise, 0.1 * max(abs(claimed), abs(earned))):
            yield (
                f"the reference is poor: it claims {claimed:.4g} for action {names[race.best]}, and its policy earns "
                f"{earned:.4g} ± {noise:.2g}"
            )
        _, late, full = race.horizons
        if 4 * late < full and race.cut_weight > 0.05:
            yield (
                f"returns are cut after {late} of about {full} steps: the reference's value stands for the rest, and "
                "standard errors include an estimate of its error"
            )
