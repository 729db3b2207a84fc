"""A race between the actions at a state: returns that follow the policy π of a reference, compared in pairs.

The means of returns estimate Q^π(s, a), and an action that is better under Q^π than π's own improves on π. Returns over
a long horizon are noisy, for trajectories diverge after the first step; returns that the reference values after a few
steps have little noise, and the reference's errors. The choice takes the best of both: early estimates, and as much of
the late ones' correction as stands out from its noise. All of this is estimated; nothing is proved.
"""

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.compiling import working_time
from smoothplan.engines.chains import values_of
from smoothplan.engines.returns import Paired
from smoothplan.models.base import GenerativeModel, is_deterministic
from smoothplan.planners.engines import returns_for
from smoothplan.references import Reference, SharedReference
from smoothplan.running.run import Root
from smoothplan.running.work import Chunk, Work
from smoothplan.running.workers import Workers

EARLY, LATE = 0.15, 0.02
"""When the reference values early returns, as a fraction of the effective horizon 1/(1−γ); and late ones: where the
discount has fallen to this."""

ROWS = 32
"""Late returns of every action that the horizon is made short for, if calls are few."""

ROUNDS = 3
"""Rounds of a race, between which actions are eliminated; two where late returns are few, for rounds take time."""

FALSE_ALARMS = 1e-3
"""How often an action is eliminated that is as good as the leader, for each comparison, about."""

STANDS_OUT = 3.0
"""How many times its variance the square of a correction must be before any of it counts. With 1, as unbiasedness would
have it, half of all corrections by pure noise count."""

DEVIATION = 1.0
"""Standard errors by which an action must be ahead of the reference's best to be taken in its place."""

COUNTED = 2.0
"""The same where the reference counts what follows every action, from more calls than a race makes. With 1, chance left
good actions so often that agents on a frozen lake did worse than the reference alone."""

DOMINATED = 3.0
"""Standard errors by which an action must not be worse than another to be chosen."""

RACES = 1 << 31
"""The number of the first chunk of a race: those of searches and references are smaller."""

LEAST = 8
"""Rows before which nothing is eliminated."""


class Horizons(NamedTuple):
    """How long returns are."""

    early: int
    late: int
    full: int  # what late ones would be if calls were no object

    @classmethod
    def of(cls, model: GenerativeModel, calls: float) -> "Horizons":
        """For a number of calls."""
        discount = model.discount
        full = 1 if discount <= LATE else math.ceil(math.log(LATE) / math.log(discount))
        early = min(full, max(1, round(EARLY / (1.0 - discount))))
        if is_deterministic(model):
            return cls(early, max(1, int(min(full, calls / model.actions))), full)
        return cls(early, max(early, int(min(full, calls / 2.0 / (ROWS * model.actions)))), full)


class Difference(NamedTuple):
    """How much better one action is than another, estimated."""

    mean: float
    error: float  # standard; infinite where there are too few returns
    rows: int

    def at_most(self, level: float) -> float:
        """A one-sided bound at a level, by Student's distribution."""
        return self.mean + (quantile(level, self.rows - 1) * self.error if self.error > 0.0 else 0.0)


class Race:
    """A race at a state. Its estimates can be asked for at any time, whatever ended it.

    Args:
        root: where it takes place; chunks of its seed are drawn from.
        reference: Q̂.
        first: the number of its first chunk.
    """

    def __init__(self, root: Root, reference: Reference, first: int = RACES) -> None:
        self._root, model = root, root.model
        here = values_of(reference.q, frozen(np.asarray(root.state)[None]), model.actions)[0]
        self.claim = float(here.max())  # what the reference says of the state
        self.best = int(here.argmax())  # and which action it would take
        self._lead = COUNTED if isinstance(reference, SharedReference) else DEVIATION  # in standard errors
        self._engine = returns_for(model, reference, self.claim)
        self._work = Work(self._engine, model, root.state, root.seed, kept=False)
        self.active = np.arange(model.actions)  # actions that are left
        self.next_chunk, self.calls = first, 0
        self.horizons = Horizons.of(model, math.inf)
        self._exact = is_deterministic(model)
        nothing = np.zeros((0, model.actions))
        self._early, self._late = nothing, nothing  # [n, K] each, NaN where an action has no such return in that row

    def run(self, calls: int, workers: Workers) -> None:
        """Races by at most that many calls, in rounds, until one action is left.

        Raises:
            Stopped: time is up; what was sampled before counts.
        """
        self.horizons = Horizons.of(self._root.model, calls)
        limit = self.calls + calls
        few = calls < 4 * ROWS * self.horizons.late * len(self.active)
        rounds = ROUNDS - 1 if few else ROUNDS
        for number in range(rounds):
            self._round((limit - self.calls) // (rounds - number), workers)
            self._eliminate()
            if len(self.active) == 1 or self._exact:
                return

    def run_for(self, until: float, workers: Workers) -> None:
        """Races until a time on the clock of `working_time`: rounds are sized by the speed of those before."""
        started, before, share = working_time(), self.calls, LEAST * len(self.active)
        early = self.horizons.early
        while working_time() < started + 0.1 * (until - started) and share < 1 << 20:  # a pilot, in batches that grow
            self._sample(share // len(self.active), early, workers)
            share *= 2
        speed = (self.calls - before) / max(working_time() - started, 1e-9)
        self.horizons = Horizons.of(self._root.model, speed * (until - working_time()))
        while (left := until - working_time()) > 0.02 * (until - started):
            before = self.calls
            self._round(max(int(0.5 * speed * left), LEAST * len(self.active) * self.horizons.late), workers)
            self._eliminate()
            if len(self.active) == 1 or self._exact or self.calls == before:
                return

    def _round(self, calls: int, workers: Workers) -> None:
        """Samples by at most that many calls: half on late returns, where they differ from early ones."""
        early, late, _ = self.horizons
        each, before = len(self.active), self.calls
        rows = calls // (late * each)
        if self._exact:
            rows = min(rows, 1)
        elif late > early:
            rows //= 2
        self._sample(rows, late, workers)
        if late > early and not self._exact:
            self._sample((before + calls - self.calls) // (early * each), early, workers)

    def _sample(self, rows: int, horizon: int, workers: Workers) -> None:
        """Rows of returns of the actions that are left."""
        size = max(1, self._engine.chunk_calls // (horizon * len(self.active)))

        def chunks() -> Iterator[Chunk]:
            for start in range(0, rows, size):
                count = min(size, rows - start)
                shape = self.active, count, self.horizons.early, horizon
                yield Chunk(self.next_chunk, "paired", shape, count)
                self.next_chunk += 1

        before = workers.abandoned
        try:
            for chunk, outcome in workers.in_order(self._work, chunks()):
                self.calls += outcome.calls
                assert isinstance(outcome.sums, Paired)
                wide = np.full((2, chunk.samples, self._root.model.actions), np.nan)
                wide[0, :, self.active] = outcome.sums.early.T
                if horizon == self.horizons.late:
                    wide[1, :, self.active] = outcome.sums.returns.T
                self._early, self._late = np.concatenate([[self._early, self._late], wide], axis=1)
        finally:
            self.calls += workers.abandoned - before

    def _eliminate(self) -> None:
        """Leaves out the actions that are clearly worse than the leader: the level suits few returns, too."""
        _, _, counts = self.estimates()
        if counts[self.active].min() >= (1 if self._exact else LEAST):
            kept = [found.at_most(FALSE_ALARMS) <= self._rounding for found in self._behind()]
            self.active = self.active[kept]

    def _behind(self) -> list[Difference]:
        """How far the actions that are left are behind the best of them."""
        leader = int(self.active[self.estimates()[0][self.active].argmax()])
        return [self.difference(leader, int(action)) for action in self.active]

    @property
    def _returns(self) -> Floats:
        """Late returns, [n, K]; early ones where there are no others."""
        return self._early if np.isnan(self._late).all() else self._late

    @property
    def _rounding(self) -> float:
        """A difference that may be one of rounding."""
        return 1e-9 * max(1.0, float(np.abs(np.nan_to_num(self._returns)).max(initial=0.0)))

    def estimates(self) -> tuple[Floats, Floats, Ints]:
        """Action values, their standard errors and the numbers of returns, [K] each.

        A leader is found among actions that took part in the same rows.
        """
        returns = self._returns
        counts = (~np.isnan(returns)).sum(axis=0)
        means = np.nansum(returns, axis=0) / np.maximum(counts, 1)
        squares = np.nansum((returns - means) ** 2, axis=0)
        errors = np.sqrt(squares / np.maximum(counts - 1, 1) / np.maximum(counts, 1))
        errors[counts < (1 if self._exact else 2)] = np.inf
        means[counts == 0] = self.claim
        return means, errors, counts

    def difference(self, one: int, other: int) -> Difference:
        """How much better one action is than another, by the rows that have returns of both."""
        both = self._returns[:, one] - self._returns[:, other]
        both = both[~np.isnan(both)]
        if len(both) < (1 if self._exact else 2):
            return Difference(0.0, math.inf, len(both))
        error = 0.0 if self._exact else float(both.std(ddof=1)) / math.sqrt(len(both))
        return Difference(float(both.mean()), error, len(both))

    def choice(self) -> int:
        """The action to take: of those that are left, the best by early estimates and a part of the correction.

        What all actions of a row have in common is taken off. With the correction c of early estimates by late ones,
        and its variance v, the part is (1 − 3Σv/Σc²)₊, as James and Stein shrink: nothing where the correction may be
        noise, all of it where it clearly is not. The reference's best action is left only for one that is ahead by a
        standard error, or by two of a reference that counts: where two are alike, changing between them gains nothing.
        """
        if len(self._early) == 0:
            return self.best
        left = self.active[[found.mean <= DOMINATED * found.error + self._rounding for found in self._behind()]]
        early, late = self._early[:, left], self._late[:, left]
        corrections = _centred(late - early)
        corrections = corrections[~np.isnan(corrections).any(axis=1)]
        estimates, part = _centred(early).mean(axis=0), 0.0
        if len(corrections) >= (1 if self._exact else LEAST):
            mean = corrections.mean(axis=0)
            noise, square = float(self._variances(corrections).sum()), float(mean @ mean)
            part = max(0.0, 1.0 - STANDS_OUT * noise / square) if square > 0.0 else 0.0
            estimates = estimates + part * mean
        ahead = int(estimates.argmax())
        if self.best not in left:
            return int(left[ahead])
        stays = int(np.flatnonzero(left == self.best)[0])
        apart = [rows[:, [ahead]] - rows[:, [stays]] for rows in (early, corrections)]
        error = math.sqrt(float(self._variances(apart[0])[0] + part**2 * self._variances(apart[1])[0]))
        leads = estimates[ahead] - estimates[stays] > self._lead * error + self._rounding
        return int(left[ahead]) if leads else self.best

    def _variances(self, rows: Floats) -> Floats:
        """The variances of the means of rows [n, A], [A]; none where nothing is random, or too few rows tell."""
        if self._exact or len(rows) < 2:
            return np.zeros(rows.shape[1])
        return np.asarray(rows.var(axis=0, ddof=1) / len(rows))


def _centred(rows: Floats) -> Floats:
    """Rows [n, A] less their means."""
    return np.asarray(rows - rows.mean(axis=1, keepdims=True))


def quantile(level: float, freedom: int) -> float:
    """The quantile of Student's distribution at a level, by its expansion around the normal one (Fisher, Cornish).

    >>> [round(quantile(0.95, freedom), 2) for freedom in (10, 30, 1000)]  # 1.81, 1.70 and 1.65 in tables
    [1.81, 1.7, 1.65]
    """
    z = NormalDist().inv_cdf(level)
    if freedom < 1:
        return math.inf if level > 0.5 else -math.inf
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
