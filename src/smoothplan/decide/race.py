"""A race between the actions at a state: returns that follow the policy π of a reference, compared in pairs.

A return takes one action and then the best action of a reference Q̂ at every state, for H steps. The reference values
the state that is reached:

    X_a(H) = Σ_{t<H} γ^t R_t + γ^H max_b Q̂(s_H, b),    A_0 = a,    A_t = argmax_b Q̂(s_t, b).

Means of returns estimate Q^π(s, a), and an action that is better under Q^π than π's own improves on π. Late returns,
over a long horizon, are noisy, because trajectories diverge after the first step. Early returns, over a few steps, have
little noise, but the reference's errors. The choice combines both: early estimates, and as much of the correction by
late ones as stands out from its noise. Everything here is estimated; nothing is proved.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import working_time
from smoothplan.chains.batched import BatchedChains, QFunction, compiles, values_of
from smoothplan.chains.grid import GridReference
from smoothplan.chains.reference import Reference
from smoothplan.chains.shared import SharedReference
from smoothplan.models.model import GenerativeModel, Oracle, States, is_deterministic
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import JitModel
from smoothplan.run.chunks import Chunk, Work, repeated
from smoothplan.run.records import Root
from smoothplan.run.workers import Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import HardMax

LATE_ROWS = 32  # late returns of every action that the horizon is shortened for, if calls are few
LEAST = 8  # rows before the first elimination
CLEAR = 3.0  # standard errors by which a difference is clear: no action is chosen that is clearly worse


class Horizons(NamedTuple):
    """The lengths of returns, in steps."""

    early: int
    late: int
    full: int  # of late returns if calls are unlimited

    @classmethod
    def of(cls, model: GenerativeModel, calls: float) -> "Horizons":
        """For a number of calls."""
        discount, last = model.discount, 0.02  # the discount at which late returns end: the reference values the rest
        full = 1 if discount <= last else math.ceil(math.log(last) / math.log(discount))
        early = min(full, max(1, round(0.15 / (1.0 - discount))))  # 0.15 of an effective horizon
        if is_deterministic(model):
            return cls(early, max(1, int(min(full, calls / model.actions))), full)
        return cls(early, max(early, int(min(full, calls / 2.0 / (LATE_ROWS * model.actions)))), full)


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
        """A one-sided bound at a level, by Student's distribution."""
        return self.mean + (quantile(level, self.rows - 1) * self.error if self.error > 0.0 else 0.0)


class Race:
    """A race at a state between returns that follow a reference. Its estimates are valid whenever it is stopped.

    Attributes:
        claim: the value of the state by the reference.
        best: the reference's best action.
        active: the actions that are not eliminated.
        enough: rows that make an estimate: one suffices if nothing is random.
        next_chunk: the number of the next chunk of samples.
    """

    def __init__(self, root: Root, reference: Reference, first_chunk: int = 0) -> None:
        self._root, model = root, root.model
        here = values_of(reference.q, np.asarray(root.state)[None], model.actions)[0]
        self.claim, self.best = float(here.max()), int(here.argmax())
        # Standard errors by which an action must lead the reference's best to replace it. A reference that counts the
        # outcomes of every action does so in more calls than a race makes. With 1, chance replaced its good actions so
        # often that agents on a frozen lake did worse than the reference alone.
        self._lead = 2.0 if isinstance(reference, SharedReference) else 1.0
        low, high = curvature.value_interval(model, HardMax())
        self._exact, chains = is_deterministic(model), None
        if self._exact and isinstance(reference, GridReference) and compiles(model):
            chains = BatchedChains(model, HardMax(), reference.grid, min(max(self.claim, low), high))
        self._engine = PairedReturns(model, reference.q, (low, high), chains)
        self._work = Work(self._engine, model, root.state, root.seed, kept=False, role="race")
        self.active = np.arange(model.actions)
        self.next_chunk, self.calls = first_chunk, 0
        self.horizons = Horizons.of(model, math.inf)
        self.enough = 1 if self._exact else LEAST
        nothing = np.zeros((0, model.actions))
        self._early, self._late = nothing, nothing  # [n, K] each, NaN if an action has no such return in that row

    def run(self, calls: int, workers: Workers) -> None:
        """Races in rounds, with at most that many calls, until one action is left.

        Raises:
            Stopped: time is up; all samples before count.
        """
        self.horizons = Horizons.of(self._root.model, calls)
        limit = self.calls + calls
        few = calls < 4 * LATE_ROWS * self.horizons.late * len(self.active)
        rounds = 2 if few else 3  # rounds take time
        for number in range(rounds):
            if self._round((limit - self.calls) // (rounds - number), workers):
                return

    def run_for(self, until: float, workers: Workers) -> None:
        """Races until a time on the clock of `working_time`: the speed of earlier rounds sets the size of the next."""
        started, before, share = working_time(), self.calls, LEAST * len(self.active)
        early = self.horizons.early
        while working_time() < started + 0.1 * (until - started) and share < 1 << 20:  # a pilot, in growing batches
            self._sample(share // len(self.active), early, workers)
            share *= 2
        speed = (self.calls - before) / max(working_time() - started, 1e-9)
        self.horizons = Horizons.of(self._root.model, speed * (until - working_time()))
        while (left := until - working_time()) > 0.02 * (until - started):
            before, least = self.calls, LEAST * len(self.active) * self.horizons.late
            if self._round(max(int(0.5 * speed * left), least), workers) or self.calls == before:
                return

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
            rows //= 2
        self._sample(rows, late, workers)
        if late > early and not self._exact:
            self._sample((before + calls - self.calls) // (early * each), early, workers)
        if self.estimates()[2][self.active].min() >= self.enough:
            # About one in a thousand actions that are as good as the leader is eliminated. It suits few returns, too.
            kept = [found.at_most(1e-3) <= self._rounding for found in self._behind()]
            self.active = self.active[kept]
        return len(self.active) == 1 or self._exact

    def _sample(self, rows: int, horizon: int, workers: Workers) -> None:
        """Samples rows of returns of the active actions."""
        size = max(1, self._engine.chunk_calls // (horizon * len(self.active)))

        def chunks() -> Iterator[Chunk[tuple[Floats, Floats]]]:
            for start in range(0, rows, size):
                count = min(size, rows - start)
                shape = self.active, count, self.horizons.early, horizon
                yield Chunk(self.next_chunk, PairedReturns.paired, shape, count)
                self.next_chunk += 1

        before = workers.abandoned
        try:
            for chunk, outcome in workers.in_order(self._work, chunks()):
                self.calls += outcome.calls
                wide = np.full((2, chunk.samples, self._root.model.actions), np.nan)
                early, returns = outcome.sums
                wide[0, :, self.active] = early.T
                if horizon == self.horizons.late:
                    wide[1, :, self.active] = returns.T
                self._early, self._late = np.concatenate([[self._early, self._late], wide], axis=1)
        finally:
            self.calls += workers.abandoned - before

    def _behind(self) -> list[Difference]:
        """The lead of the best active action over each."""
        leader = int(self.active[self.estimates()[0][self.active].argmax()])
        return [self.difference(leader, int(action)) for action in self.active]

    @property
    def _returns(self) -> Floats:
        """Late returns, [n, K]; early ones if there are no others."""
        return self._early if np.isnan(self._late).all() else self._late

    @property
    def _rounding(self) -> float:
        """The largest difference that may come from rounding."""
        return 1e-9 * max(1.0, float(np.abs(np.nan_to_num(self._returns)).max(initial=0.0)))

    def estimates(self) -> tuple[Floats, Floats, Ints]:
        """Action values, their standard errors and the numbers of returns, [K] each."""
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
        """The best active action by early estimates and a part of the correction by late ones.

        The mean of a row is subtracted, because all actions have it in common. With the correction c of early estimates
        by late ones, and its variance v, the part is (1 − 3Σv/Σc²)₊, as James and Stein shrink: nothing if the
        correction may be noise, all of it if it clearly is not. (Unbiasedness would have 1 in place of 3, but then half
        of all corrections that are pure noise count.) Only an action that leads the reference's best by a
        standard error replaces it, or by two for a reference that counts: changing between equals gains nothing.
        """
        if len(self._early) == 0:
            return self.best
        left = self.active[[found.mean <= CLEAR * found.error + self._rounding for found in self._behind()]]
        early, late = self._early[:, left], self._late[:, left]
        corrections = _centred(late - early)
        corrections = corrections[~np.isnan(corrections).any(axis=1)]
        estimates, part = _centred(early).mean(axis=0), 0.0
        if len(corrections) >= self.enough:
            mean = corrections.mean(axis=0)
            noise, square = float(self._variances(corrections).sum()), float(mean @ mean)
            part = max(0.0, 1.0 - 3.0 * noise / square) if square > 0.0 else 0.0
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
        """The variances of the means of rows [n, A], [A]; 0 if nothing is random or there are fewer than two rows."""
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


# Returns


@dataclass(frozen=True, eq=False)
class PairedReturns:
    """Samples returns around one reference. It keeps nothing between calls.

    Row i of every action draws the same random numbers, as far as the simulator draws in the same way at different
    states, so differences between actions are less noisy than their values. After the first episode has ended, the
    remaining rows are simulated together, each with its own random numbers: rows stay independent of each other.
    """

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

    def paired(
        self, oracle: Oracle, state: States, actions: Ints, count: int, early: int, horizon: int
    ) -> tuple[Floats, Floats]:
        """Returns of some actions [A] at a state, valued after an early step and at the horizon, [n, A] each."""
        if self.chains is not None:
            sums = [self.chains.returns(oracle, state, int(action), 1, horizon).total for action in actions]
            alike = np.repeat(np.array([sums]), count, axis=0)
            return alike, alike
        totals = np.zeros(len(actions) * count)  # the rows of an action are together
        soon = totals
        going_on, scale = np.arange(len(totals)), 1.0
        states, chosen = repeated(state, len(totals)), np.repeat(actions, count)
        groups = len(actions)  # row i of every group draws the same random numbers
        for step in range(1, horizon + 1):
            if groups > 1:
                answers = oracle.sample_alike(zip(np.split(states, groups), np.split(chosen, groups), strict=True))
                states, rewards, terminals = (np.concatenate(column) for column in zip(*answers, strict=True))
            else:
                states, rewards, terminals = oracle.sample(states, chosen)
            totals[going_on] += scale * rewards
            scale *= self.model.discount
            if terminals.any():
                going_on, states, groups = going_on[~terminals], states[~terminals], 1
            if len(going_on) == 0:
                break
            q = values_of(self.reference, states, self.model.actions)
            if step in (early, horizon):
                ended = totals.copy()
                ended[going_on] += scale * np.clip(q.max(axis=1), *self.values)
                soon, totals = (ended, totals) if step < horizon else (soon, ended)
            chosen = q.argmax(axis=1)
        if early >= horizon:
            soon = totals
        by_row = [np.ascontiguousarray(sums.reshape(-1, count).T) for sums in (soon, totals)]
        return by_row[0], by_row[1]
