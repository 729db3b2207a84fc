"""A race between the actions at a state: returns that follow the policy π of a reference, compared in pairs.

A return takes one action and then the best action of a reference Q̂ at every state, for H steps or to the end of the
episode. The reference values the state that is reached; see `chains.returns`. Means of returns estimate Q^π(s, a), and
an action that is better under Q^π than π's own improves on π. Late returns, over a long horizon, are noisy, because
trajectories diverge after the first step. Early returns, over a few steps, have little noise, but the reference's
errors. The choice combines both: early estimates, and as much of the correction by late ones as stands out from its
noise. Everything here is estimated; nothing is proved.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import working_time
from smoothplan.chains.batched import BatchedChains, compiles
from smoothplan.chains.grid import GridReference
from smoothplan.chains.reference import QFunction, Reference, values_of
from smoothplan.chains.returns import PairedReturns, paired_returns, quantile
from smoothplan.chains.shared import SharedReference
from smoothplan.decide.plans import Plan
from smoothplan.decide.policies import full_horizon
from smoothplan.models.model import (
    GenerativeModel,
    Oracle,
    States,
    declares_rewards,
    effective_horizon,
    horizon_of,
    is_deterministic,
    summed,
)
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import JitModel
from smoothplan.run.chunks import Chunk, Work, repeated
from smoothplan.run.records import Root
from smoothplan.run.workers import Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import HardMax

LATE_ROWS = 32  # late returns of every action that the horizon is shortened for, if calls are few
EARLY = 0.15  # the horizon of early returns, as a share of the effective one
LEAST = 8  # rows before the first elimination, and before the reference's best action is left
PIECES = 4  # chunks of a round for workers to share, at least, if the simulator steps one state at a time
UNUSED = 0.03  # the share of the calls that may be left
SEARCH = 0.5  # what search may have missed, at least, as a share of what it has gained
CLEAR = 3.0  # standard errors by which a difference is clear: no action is chosen that is clearly worse


class Horizons(NamedTuple):
    """The lengths of returns, in steps."""

    early: int
    late: int
    full: int  # of late returns if calls are unlimited


class Difference(NamedTuple):
    """How much better one action is than another, estimated."""

    mean: float
    error: float  # standard; infinite if there are too few returns
    rows: int

    @property
    def is_clear(self) -> bool:
        """Whether one of the two actions is clearly better."""
        return abs(self.mean) > CLEAR * self.error

    @property
    def rows_to_tell(self) -> float:
        """Returns of each that would make it clear, estimated: the error falls like 1/√n."""
        return self.rows * (CLEAR * self.error / max(abs(self.mean), 1e-12)) ** 2

    def at_most(self, level: float) -> float:
        """A one-sided bound at a level."""
        return self.mean + (NormalDist().inv_cdf(level) * self.error if self.error > 0.0 else 0.0)

    def chance(self, margin: float) -> float:
        """The probability that the difference exceeds a margin, as far as the noise tells."""
        if not math.isfinite(self.error):
            return 1.0
        if self.error == 0.0:
            return float(self.mean > margin)
        return 1.0 - NormalDist().cdf((margin - self.mean) / self.error)


class Lead(NamedTuple):
    """How much more plans earn than a return of the race's choice does, if nothing is random."""

    action: int  # that the best plan begins with
    choice: int
    courses: dict[int, tuple[Plan, Plan]]  # of an action, the first that begins with it and the best one
    missed: float  # what outcomes may change that were never seen

    @property
    def best(self) -> Plan:
        """The plan that is followed."""
        return self.courses[self.action][1]

    def apart(self, one: int, other: int) -> tuple[float, float]:
        """How much better one action is than another by their best courses, and its standard error.

        Half of the part of V̂ may be wrong; and where search has gained less, it may have missed as much.
        """
        (first, best), (begun, ahead) = self.courses[one], self.courses[other]
        gains = best.value - first.value, ahead.value - begun.value
        missed = max(abs(gains[0] - gains[1]), SEARCH * max(gains))
        return best.value - ahead.value, math.hypot(missed, abs(best.tail - ahead.tail) / 2.0)


class Race:
    """A race at a state between returns that follow a reference. Its estimates are valid whenever it is stopped.

    Args:
        root: where to decide.
        reference: Q̂.
        delta: the probability that the reference's best action is left for one that is no better, at most; None if it
            is left for any action that leads by a standard error, because the reference is no better than the race.
        first_chunk: the number of the first chunk of samples.

    Attributes:
        model: the simulator, with all actions that took part.
        claim: the value of the state by the reference.
        legal: the actions that the state has; others have no returns, and NaN for their estimates.
        best: the reference's best action.
        active: the actions that are not eliminated.
        enough: rows that make an estimate: one suffices if nothing is random.
        next_chunk: the number of the next chunk of samples.
        engine: samples the returns.
        plan: that is followed instead of the reference, if one earns more.
    """

    def __init__(
        self,
        root: Root,
        reference: Reference,
        delta: float | None = 0.1,
        first_chunk: int = 0,
    ) -> None:
        self._root, self._delta = root, delta
        self._follow(root.model, reference)
        self.claim, self.best = float(self._claims.max()), int(self._claims.argmax())
        self._stays = self.best  # left only for an action that leads
        self._links = np.full(root.model.actions, -1)
        self._table = None
        if isinstance(reference, SharedReference) and not self._exact:
            self._table = reference.claims(root.state)
        self.next_chunk, self.calls = first_chunk, 0
        self.plan: Lead | None = None
        self.enough = 1 if self._exact else LEAST
        self._begin()

    def _follow(self, model: GenerativeModel, reference: Reference) -> None:
        """Takes on a simulator and a reference."""
        root, self.model = self._root, model
        self._claims = values_of(reference.q, np.asarray(root.state)[None], model)[0]
        self.legal = np.flatnonzero(self._claims > -np.inf)
        low, high = curvature.value_interval(model, HardMax())
        self._exact, chains = is_deterministic(model), None
        if self._exact and isinstance(reference, GridReference) and compiles(model) and declares_rewards(model):
            chains = BatchedChains(model, HardMax(), reference.grid, min(max(float(self._claims.max()), low), high))
        self.engine = ReturnsEngine(model, reference.q, (low, high), chains)
        self._work = Work(self.engine, model, root.state, root.seed, kept=False, role="race")

    def _begin(self) -> None:
        """Forgets all returns."""
        model = self.model
        self.active = self.legal
        full = full_horizon(model)
        self.horizons = Horizons(1, full, full)
        self._ready = False  # whether a pilot has set the horizons
        nothing = np.zeros((0, model.actions))
        # Returns valued early and late, the weights of Q̂ in these, and its part of the latter (or of the former, if
        # returns end early), [n, K] each; NaN if an action has no such return.
        self._early, self._late, self._early_weights, self._late_weights, self._tails = (nothing,) * 5
        self._longest = np.zeros(model.actions, dtype=np.int64)  # steps of the longest return
        self._rounding = 1e-9  # the largest difference that may come from rounding
        self._missing: dict[bool, Floats] = {}  # of late and of early returns, see `_missed`

    def price(self, actions: int) -> float:
        """Calls that suffice to estimate so many further actions: half are for late returns, if these differ."""
        early, late, _ = self.horizons
        both = late > early and not self._exact
        return (1 + both) * self.enough * late * actions if self._ready else math.inf

    def widen(self, model: GenerativeModel, reference: Reference, link: int, again: Ints) -> None:
        """Goes on between the further actions of a model, which come last, and some of those before, the link too.

        All returns so far count. The link pairs the new actions with those before. It is left for any action that leads
        by a standard error: the reference told nothing of the new ones.
        """
        more, self._delta, self._table, self._stays = model.actions - self.model.actions, None, None, link
        self._missing.clear()
        self._follow(model, reference)
        self.active = np.union1d(again, np.arange(len(self._links), model.actions))
        self._links = np.append(self._links, [link] * more)
        self._longest = np.append(self._longest, [0] * more)
        kept = self._early, self._late, self._early_weights, self._late_weights, self._tails
        self._early, self._late, self._early_weights, self._late_weights, self._tails = (
            np.pad(rows, ((0, 0), (0, more)), constant_values=np.nan) for rows in kept
        )

    def run(self, calls: int, workers: Workers) -> None:
        """Races in rounds, with at most that many calls, until one action is left.

        Raises:
            Stopped: time is up; all samples before count.
        """
        limit, rounds, before = self.calls + calls, 1 if self._exact else 3, -1
        if not self._ready:
            self._pilot(calls, workers)
        # Rounds take time, so that the last few calls may be left: episodes that end early leave some of every round.
        while self._ready and self.calls > before and limit - self.calls > UNUSED * calls:
            before = self.calls
            left, row = limit - self.calls, self.horizons.early * len(self.active)
            if self._round(max(left // max(rounds, 1), min(left, row)), workers):
                return
            rounds -= 1

    def run_for(self, until: float, workers: Workers) -> None:
        """Races until a time on the clock of `working_time`: the speed of earlier rounds sets the size of the next.

        A pilot for a few calls chooses short horizons. So the race starts again if many more calls turn out possible.
        """
        started, least = working_time(), 2 * LEAST * len(self.active)
        portion = least
        while (left := until - working_time()) > 0.02 * (until - started):
            before, begun = self.calls, working_time()
            self.run(portion, workers)
            taken, made = working_time() - begun, self.calls - before
            possible = int(0.4 * made * left / max(taken, 1e-9))
            following = possible if taken > 0.02 * left else 4 * portion
            fresh = bool((self._links < 0).all())
            if fresh and self.horizons.late < self.horizons.full and min(following, possible) >= 4 * portion:
                self._begin()
            elif len(self.active) == 1 or (self._exact and self._ready) or made == 0:
                return
            portion = max(following, least)

    def _pilot(self, calls: int, workers: Workers) -> None:
        """Sets the horizons, by the lengths of a few returns: episodes may end long before the discount ends them."""
        model, full, each = self.model, self.horizons.full, len(self.active)
        if self._exact:
            self.horizons, self._ready = Horizons(1, max(1, min(full, calls // each)), full), True
            return
        # At least so many rows come first, and their length second.
        wanted = max(1, min(full, round(summed(EARLY, model.discount, horizon_of(model))), calls // (LEAST * each)))
        rows = min(LEAST, calls // each, max(2, calls // 2 // (wanted * each)))
        if rows == 0:
            return
        reach = max(min(wanted, calls // 2 // (rows * each)), min(full, calls // 4 // (rows * each)), 1)
        marks = sorted({*(1 << power for power in range(reach.bit_length())), min(wanted, reach), reach})
        (found,) = self._sampled(rows, marks, workers, most=rows)
        steps, going = found.steps, found.weights[-1] > 0.0

        def cost(horizon: int) -> float:
            """Calls of a return, on average."""
            return float(np.minimum(steps, horizon).mean() + going.mean() * max(horizon - reach, 0))

        effective = min(effective_horizon(model), cost(full))
        early = max(mark for mark in marks if mark <= max(1.0, EARLY * effective))
        late = full if going.any() else min(full, math.ceil(1.5 * int(steps.max())))
        while late > early and LATE_ROWS * each * cost(late) > calls / 2.0:
            late = max(early, int(0.8 * late))
        self.horizons, self._ready = Horizons(early, late, full), True
        complete = reach >= late or not going.any()
        self._add(found, marks.index(early), len(marks) - 1 if complete else None)

    def _round(self, calls: int, workers: Workers) -> bool:
        """Samples by at most that many calls, and eliminates the actions that are clearly worse; whether all is told.

        Half of the calls are for late returns, if they differ from early ones.
        """
        early, late, _ = self.horizons
        each, before = len(self.active), self.calls
        rows = calls // (late * each)
        if self._exact:
            rows = min(rows, 1)
        elif late > early:
            rows = max(2 * rows // 3, min(rows, 1))
        self._sample(rows, late, workers)
        if late > early and not self._exact:
            # As many as late returns have really taken, which may end early.
            left = min(before + calls - self.calls, max(self.calls - before, early * each))
            self._sample(left // (early * each), early, workers)
        if self.estimates()[2][self.active].min() >= self.enough:
            # About one in a thousand actions that are as good as the leader is eliminated. It suits few returns, too.
            kept = [found.at_most(1e-3) <= self._rounding for found in self._behind()]
            self.active = self.active[kept]
        return len(self.active) == 1 or self._exact

    def _sample(self, rows: int, horizon: int, workers: Workers) -> None:
        """Samples rows of returns of the active actions, which end early or late."""
        early, late, _ = self.horizons
        marks = [early] if horizon == early else [early, late]
        for found in self._sampled(rows, marks, workers):
            self._add(found, 0, len(marks) - 1 if horizon == late else None)

    def _sampled(
        self, rows: int, marks: list[int], workers: Workers, most: int | None = None
    ) -> Iterator[PairedReturns]:
        """Samples rows of returns of the active actions, in chunks of so many rows at most."""
        size = most or max(1, self.engine.chunk_calls // (marks[-1] * len(self.active)))
        if most is None and getattr(self.model.step, "one_at_a_time", False):
            size = min(size, max(1, math.ceil(rows / PIECES)))

        def chunks() -> Iterator[Chunk[PairedReturns]]:
            for start in range(0, rows, size):
                count = min(size, rows - start)
                yield Chunk(self.next_chunk, ReturnsEngine.sample, (self.active, count, marks), count)
                self.next_chunk += 1

        before = workers.abandoned
        try:
            for _, outcome in workers.in_order(self._work, chunks()):
                self.calls += outcome.calls
                yield outcome.sums
        finally:
            self.calls += workers.abandoned - before

    def _add(self, found: PairedReturns, early: int, late: int | None) -> None:
        """Takes returns into account, by the marks of their valuations."""
        wide = np.full((5, len(found.steps), self.model.actions), np.nan)
        wide[0][:, self.active], wide[2][:, self.active] = found.valued[early], found.weights[early]
        wide[4][:, self.active] = found.tails[early if late is None else late]
        if late is not None:
            wide[1][:, self.active], wide[3][:, self.active] = found.valued[late], found.weights[late]
        self._longest[self.active] = np.maximum(self._longest[self.active], found.steps.max(axis=0))
        kept = self._early, self._late, self._early_weights, self._late_weights, self._tails
        self._early, self._late, self._early_weights, self._late_weights, self._tails = (
            np.concatenate(pair) for pair in zip(kept, wide, strict=True)
        )
        self._rounding = max(self._rounding, 1e-9 * float(np.nanmax(np.abs(wide[:2]))))
        self._missing.clear()

    def _behind(self) -> list[Difference]:
        """The lead of the best active action over each."""
        leader = int(self.active[self.estimates()[0][self.active].argmax()])
        return [self.difference(leader, int(action)) for action in self.active]

    @property
    def contenders(self) -> Ints:
        """The active actions that paired returns do not show to be clearly worse than the best.

        Outcomes that so many returns may have missed do not count here, as they do before an action is eliminated.
        """
        rows = self._returns[:, self.active]
        rows = rows[~np.isnan(rows).any(axis=1)]
        if len(rows) < self.enough:
            return self.active
        behind = rows[:, [int(rows.mean(axis=0).argmax())]] - rows
        close = behind.mean(axis=0) <= CLEAR * np.sqrt(self._variances(behind)) + self._rounding
        return np.asarray(self.active[close])

    @property
    def samples(self) -> Floats:
        """Late returns, [n, K]; early ones if there are no others. Rows are paired; NaN if an action has none."""
        return self._returns[~np.isnan(self._returns).all(axis=1)]

    @property
    def _returns(self) -> Floats:
        return self._early if np.isnan(self._late).all() else self._late

    @property
    def _weights(self) -> Floats:
        return self._early_weights if np.isnan(self._late).all() else self._late_weights

    @property
    def cut_weight(self) -> float:
        """The mean weight of the reference's values in returns: the discount where they are cut, 0 if episodes end."""
        weights = self._weights
        return float(np.nanmean(weights)) if (~np.isnan(weights)).any() else 0.0

    def estimates(self) -> tuple[Floats, Floats, Ints]:
        """Action values, their standard errors and the numbers of returns, [K] each.

        If V̂ is off by e at the states where returns are cut, a return with the weight w there is off by we. Returns
        that are valued twice tell e; the values are corrected, and the correction is part of the error.
        """
        returns, weights = self._returns, self._weights
        counts = (~np.isnan(returns)).sum(axis=0)
        many = np.maximum(counts, 1)
        means = np.nansum(returns, axis=0) / many
        squares = np.nansum((returns - means) ** 2, axis=0)
        noise = np.sqrt(squares / np.maximum(counts - 1, 1) / many) * [_small_sample(count) for count in counts]
        offset, doubt = self._offset()
        correction = np.nansum(weights, axis=0) / many * offset
        tail = np.nansum(weights, axis=0) / many * (abs(offset) + doubt)
        errors = np.sqrt(noise**2 + self._missed() ** 2 + tail**2)
        errors[counts < (1 if self._exact else 2)] = np.inf
        means = np.where(counts == 0, self.claim, means + correction)
        if self._table is not None:
            means, errors = _combined((means, errors), (self._table.q, self._table.errors))
        means, errors = (np.where(self._claims > -np.inf, each, np.nan) for each in (means, errors))
        if self.plan is not None:
            best = self.plan.best
            for action in self.legal:
                behind = self.difference(int(action), self.plan.action)
                means[action] = best.value + behind.mean
                errors[action] = math.hypot(abs(best.tail) / 2.0, behind.error)  # half of V̂ may be wrong
            means = np.clip(means, *self.engine.values)
        return means, errors, counts

    def _offset(self) -> tuple[float, float]:
        """The mean of V − V̂ where returns are cut, estimated, and its standard error."""
        apart, moved = self._late - self._early, self._early_weights - self._late_weights
        rows = ~np.isnan(apart).all(axis=1)
        if rows.sum() < 2 or np.nansum(moved) <= 1e-3 * np.nansum(self._early_weights[rows]):
            # Valued once: the reference's own claim is a valuation at the start, of weight 1.
            apart = self._returns[:, [self.best]] - self.claim
            moved = 1.0 - self._weights[:, [self.best]]
            rows = ~np.isnan(apart).all(axis=1)
        weight = float(np.nanmean(moved[rows])) if rows.any() else 0.0
        if weight <= 1e-9:
            return 0.0, 0.0
        sums = np.nanmean(apart[rows], axis=1)
        noise = float(sums.std(ddof=1)) / math.sqrt(len(sums)) if len(sums) > 1 else 0.0
        return float(sums.mean()) / weight, noise / weight

    def _missed(self, early: bool = False) -> Floats:
        """What an outcome that was missed may add to the standard errors of the means of late or early returns, [K].

        Among n returns an outcome of probability 1/n may be missing. If all are alike, it may change a reward of every
        step; by as much as the returns seen differ from each other and from 0, if the range of rewards is not known.
        Otherwise it counts as far as standard errors do not tell: beyond four standard deviations, and at most as far
        as outcomes that were seen.
        """
        returns = self._early if early else self._returns
        if self._exact or len(returns) == 0:
            return np.zeros(returns.shape[1])
        if early in self._missing:
            return self._missing[early]
        low, high = self.model.reward_range
        if declares_rewards(self.model):
            unseen = (high - low) * self._longest
        else:
            seen = np.nan_to_num(returns)
            unseen = np.full(returns.shape[1], seen.max(initial=0.0) - seen.min(initial=0.0))
        known = ~np.isnan(returns)
        counts = np.maximum(known.sum(axis=0), 1)
        apart = np.where(known, returns - np.where(known, returns, 0.0).sum(axis=0) / counts, 0.0)
        surprise = np.abs(apart).max() - 4.0 * math.sqrt((apart**2).sum() / max(known.sum(), 1))
        alike = np.ptp(apart, axis=0) <= self._rounding
        self._missing[early] = np.where(alike, unseen, max(surprise, 0.0)) / counts
        return self._missing[early]

    def difference(self, one: int, other: int, early: bool = False) -> Difference:
        """How much better one action is than another, by the rows that have returns of both, late or early ones."""
        plan = self.plan
        if plan is None or one == other or not {one, other} & plan.courses.keys():
            return self._difference(one, other, early)
        if {one, other} <= plan.courses.keys():
            mean, error = plan.apart(one, other)
            return Difference(mean, math.hypot(error, plan.missed), self.enough)
        sign, planned, rest = (1.0, one, other) if one in plan.courses else (-1.0, other, one)
        lead, doubt = plan.apart(planned, plan.choice)
        found = self._difference(plan.choice, rest, early)
        return Difference(sign * (found.mean + lead), math.hypot(found.error, doubt, plan.missed), found.rows)

    def _difference(self, one: int, other: int, early: bool) -> Difference:
        """The same without a plan."""
        if one == other:
            return Difference(0.0, 0.0, int((~np.isnan(self._returns[:, one])).sum()))
        found, link = self._by_returns(one, other, early), int(self._links[max(one, other)])
        if found.rows == 0 and link not in (-1, one, other):
            parts = self._difference(one, link, early), self._difference(link, other, early)
            error = math.hypot(*(part.error for part in parts))
            return Difference(sum(part.mean for part in parts), error, min(part.rows for part in parts))
        if self._table is None:
            return found
        # Returns visit pairs less often than the table has sampled them: they have missed what it has missed.
        returns = found.mean, math.hypot(found.error, self._table.missed[one, other])
        table = self._table.q[one] - self._table.q[other], self._table.apart[one, other]
        mean, error = _combined(returns, table)
        return Difference(float(mean), float(error), found.rows)

    def _by_returns(self, one: int, other: int, early: bool) -> Difference:
        """The same, by returns alone."""
        returns, weights = (self._early, self._early_weights) if early else (self._returns, self._weights)
        both = returns[:, one] - returns[:, other]
        known = ~np.isnan(both)
        both, count = both[known], int(known.sum())
        if count < (1 if self._exact else 2):
            return Difference(0.0, math.inf, count)
        if self._exact:
            return Difference(float(both.mean()), 0.0, count)
        noise = float(both.std(ddof=1)) / math.sqrt(count) * _small_sample(count)
        missed = float(self._missed(early)[[one, other]].max())
        if np.ptp(both) <= self._rounding:  # the same outcomes for both, and a missed one may be as far as they are
            missed = max(missed, float(np.ptp(returns[known][:, [one, other]], axis=0).max()) / count)
        tail = 0.0
        weight = float(weights[known][:, [one, other]].mean())
        if not early and weight > 0.0:
            soon = (self._early[:, one] - self._early[:, other])[known]
            moved = float(self._early_weights[known][:, [one, other]].mean()) - weight
            if moved <= 1e-3:  # valued once: the reference's own claims are valuations at the start, of weight 1
                soon, moved = np.full(count, self._claims[one] - self._claims[other]), 1.0 - weight
            tail = min(weight / max(moved, 1e-9), 1.0) * abs(float(both.mean() - soon.mean()))
            # A slope of V̂ that is off stays off from mark to mark: half of what it contributes may be wrong.
            parts = self._tails[known]
            tail = max(tail, 0.5 * abs(float((parts[:, one] - parts[:, other]).mean())))
        return Difference(float(both.mean()), math.hypot(noise, missed, tail), count)

    def choice(self) -> int:
        """The best active action by early estimates and a part of the correction by late ones.

        The mean of a row is subtracted, because all actions have it in common. With the correction c of early estimates
        by late ones, and its variance v, the part is (1 − 3Σv/Σc²)₊, as James and Stein shrink: nothing if the
        correction may be noise, all of it if it clearly is not. (Unbiasedness would have 1 in place of 3, but then half
        of all corrections that are pure noise count.) Only an action that leads the reference's best replaces it, by a
        standard error, or at the level 1 − δ for all rivals together: changing between equals gains nothing. Or it is
        the first action of a plan.
        """
        if self.plan is not None:
            return self.plan.action
        if (~np.isnan(self._early[:, self.active])).all(axis=1).sum() < self.enough:
            return self._stays
        if self._table is not None:
            found = [self.difference(int(action), self.best) for action in self.legal]
            first = int(np.argmax([each.mean for each in found]))
            ahead = int(self.legal[first])
            needed = 1.0  # standard errors, of many samples if they are tested
            if self._delta is not None:
                needed = NormalDist().inv_cdf(1.0 - self._delta / max(len(found) - 1, 1))
            return ahead if found[first].mean > needed * found[first].error else self.best
        left = self.active[[found.mean <= CLEAR * found.error + self._rounding for found in self._behind()]]
        early, late = self._early[:, left], self._late[:, left]
        corrections = _centred(late - early)
        corrections = corrections[~np.isnan(corrections).any(axis=1)]
        early = early[~np.isnan(early).any(axis=1)]
        estimates, part = _centred(early).mean(axis=0), 0.0
        if len(corrections) >= self.enough:
            mean = corrections.mean(axis=0)
            noise, square = float(self._variances(corrections).sum()), float(mean @ mean)
            part = max(0.0, 1.0 - 3.0 * noise / square) if square > 0.0 else 0.0
            estimates = estimates + part * mean
        ahead = int(estimates.argmax())
        if self._stays not in left:
            return int(left[ahead])
        stays = int(np.flatnonzero(left == self._stays)[0])
        apart = [rows[:, [ahead]] - rows[:, [stays]] for rows in (early, corrections)]
        error = math.sqrt(float(self._variances(apart[0])[0] + part**2 * self._variances(apart[1])[0]))
        fewest = len(early) if part == 0.0 else min(len(early), len(corrections))
        needed = 0.0 if self._exact else error
        if self._delta is not None and not self._exact:
            needed *= quantile(1.0 - self._delta / max(len(self.legal) - 1, 1), fewest - 1)
        leads = estimates[ahead] - estimates[stays] > needed + self._rounding
        return int(left[ahead]) if leads else self._stays

    def _variances(self, rows: Floats) -> Floats:
        """The variances of the means of rows [n, A], [A]; 0 if nothing is random or there are fewer than two rows."""
        if self._exact or len(rows) < 2:
            return np.zeros(rows.shape[1])
        return np.asarray(rows.var(axis=0, ddof=1) / len(rows))


def _combined(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    """The mean of two independent estimates, by returns and by a table, weighted by accuracy; and its standard error.

    If they contradict each other, the few returns have missed an outcome that the table knows, and are off by as much.
    """
    apart, error = np.abs(np.asarray(one[0]) - other[0]), np.hypot(one[1], other[1])
    one = one[0], np.where(apart > CLEAR * error, np.maximum(one[1], apart), one[1])
    first, second = (np.maximum(np.asarray(error, dtype=np.float64), 1e-150) ** -2.0 for _, error in (one, other))
    total = first + second
    mean = np.where(first > 0.0, first * one[0], 0.0) + np.where(second > 0.0, second * other[0], 0.0)
    return mean / total, total**-0.5


def _centred(rows: Floats) -> Floats:
    """Rows [n, A] less their means."""
    return np.asarray(rows - rows.mean(axis=1, keepdims=True))


def _small_sample(count: int) -> float:
    """The factor by which Student's 90 % interval of n samples is wider than the normal one."""
    return quantile(0.95, count - 1) / NormalDist().inv_cdf(0.95) if count > 2 else 4.0


@dataclass(frozen=True, eq=False)
class ReturnsEngine:
    """Samples paired returns around one reference. It keeps nothing between calls."""

    model: GenerativeModel
    reference: QFunction  # Q̂: states [n, ...] to [n, K]
    values: tuple[float, float]  # bounds of the values of states, to which the reference's values are clipped
    chains: BatchedChains | None  # if nothing is random: one return tells everything, and compiled chains are fastest

    @property
    def compiled(self) -> bool:
        """Whether threads may share it: a simulator in Python needs processes."""
        return isinstance(self.model, TabularModel | JitModel)

    @property
    def chunk_calls(self) -> int:
        """Simulator calls of a chunk: fewer if the simulator steps one state at a time."""
        if self.chains is not None:
            return self.chains.chunk_calls
        return 1 << 12 if getattr(self.model.step, "one_at_a_time", False) else 1 << 17

    def sample(self, oracle: Oracle, state: States, actions: Ints, count: int, marks: list[int]) -> PairedReturns:
        """Returns of some actions [A] at a state."""
        if self.chains is not None:
            sums = [self.chains.returns(oracle, state, int(action), 1, marks[-1]).total for action in actions]
            alike = np.tile(np.array(sums), (len(marks), count, 1))
            none = np.zeros_like(alike)
            return PairedReturns(alike, none, none, np.full((count, len(actions)), marks[-1]))
        return paired_returns(oracle, repeated(state, count), [self.policy], self.value, marks, actions)

    def policy(self, states: States) -> Ints:
        """The reference's best actions at states [n, ...], [n]."""
        return np.asarray(values_of(self.reference, states, self.model).argmax(axis=1))

    def value(self, states: States) -> Floats:
        """The reference's values of states [n, ...], as far as they are possible, [n]."""
        return np.asarray(np.clip(values_of(self.reference, states, self.model).max(axis=1), *self.values))
