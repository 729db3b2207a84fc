"""Models given by a table of transition probabilities, which the exact solver reads and compiled code samples from."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.base.streams import CALLS, Stream, next_word
from smoothplan.models import model as base
from smoothplan.models.model import ModelError, RewardKind, States, Transition

OUTCOME = np.dtype([("threshold", np.uint64), ("reward", np.float64), ("successor", np.int64)], align=True)
"""A possible outcome of a state and an action. A random word w selects the first outcome with w ≤ threshold; the
successor is negative, −1 − state, if the episode ends."""

LAST = np.uint64(2**64 - 1)
"""The threshold of a pair's last possible outcome."""

UNROLLED = 4
"""Outcomes per pair are padded to a multiple of this number, which `select` compares without a branch."""

Outcome = tuple[float, int, float, bool]
"""(probability, next state, reward, whether the episode ends)."""


class Tables(NamedTuple):
    """A tabular model as compiled code sees it. Outcomes that pad a pair are never selected."""

    outcomes: NDArray[np.void]  # [S·K·B′] of OUTCOME, pair by pair, the most probable first; read-only
    actions: int  # K
    width: int  # B′


@partial(compiled, inner=True)
def select(outcomes: NDArray[np.void], start: Any, width: int, word: Any) -> Any:
    """The entry, from `start` on, that a random word selects: inversion of the distribution function.

    It counts the thresholds below the word instead of stopping at the first one above it: a branch that depends on a
    random number costs more than a few comparisons. Unsigned numbers spare Numba the test for negative indices.
    """
    end = start + np.uint64(width)
    block = 16  # outcomes that are skipped at once, a multiple of `UNROLLED`
    if width > block:
        while start + np.uint64(block) < end and word > outcomes[start + np.uint64(block - 1)].threshold:
            start += np.uint64(block)
        end = min(end, start + np.uint64(block))
    # Count the thresholds passed in the remaining block, `UNROLLED` at a time.
    entry = start
    while start < end:
        entry += np.uint64(word > outcomes[start].threshold)
        entry += np.uint64(word > outcomes[start + np.uint64(1)].threshold)
        entry += np.uint64(word > outcomes[start + np.uint64(2)].threshold)
        entry += np.uint64(word > outcomes[start + np.uint64(3)].threshold)
        start += np.uint64(UNROLLED)
    return entry


@partial(compiled, merged=True)
def first_outcome(tables: Tables, state: int, action: int) -> Any:
    """The index of a pair's first outcome."""
    return np.uint64(state * tables.actions + action) * np.uint64(tables.width)


@partial(compiled, inner=True)
def draw(tables: Tables, state: int, action: int, stream: Stream) -> tuple[int, float, bool]:
    """One simulator call from compiled code: (next state, reward, whether it is terminal). Counted in the stream."""
    stream[CALLS] += np.uint64(1)
    start = first_outcome(tables, state, action)
    outcome = tables.outcomes[select(tables.outcomes, start, tables.width, next_word(stream))]
    end = outcome.successor < 0
    return ~outcome.successor if end else outcome.successor, outcome.reward, end


@partial(compiled, allocates=True)
def _branches(cumulative: Floats, pairs: Ints, levels: Floats) -> Ints:
    """The successors that uniform numbers [n] select, by inversion of rows of running sums [S·K, B], [n]."""
    result = np.empty(len(pairs), dtype=np.int64)
    for row in range(len(pairs)):
        branch = 0
        while levels[row] >= cumulative[pairs[row], branch]:
            branch += 1
        result[row] = branch
    return result


@dataclass(frozen=True, eq=False, repr=False)
class TabularModel:
    """A model with S states, K actions and at most B successors of each pair.

    Args:
        probabilities: [S, K, B], summing to one along the last axis. Zeros pad.
        successors: [S, K, B], the state that each probability leads to.
        rewards: [S, K], or [S, K, B] if the reward depends on the next state.
        discount: γ in [0, 1); with a horizon 1 is allowed, too.
        horizon: an episode ends after at most that many steps from any state, which is checked.
        legal: which actions each state has, booleans [S, K]; by default all. Entries of other pairs have no effect.
        reward_kind: "deterministic": the rewards as given; "bernoulli": they are means in [0, 1] of rewards 0 or 1.
            Rewards that depend on the next state are random given (s, a): such a model declares "transition"; or
            "bounded" if a pair has a successor twice, with different rewards.
        reward_range: smallest and largest reward; read from the table by default.
        value_range: bounds of the unregularised optimal values, see `Declarations`.
        terminal: [S], which states are terminal: worth 0 and never stepped from, so their rows have no effect. Or
            [S, K, B], which transitions end the episode; states that are entered in no other way are terminal.
        initial_state: the state in which an episode starts.
        state_names, action_names: for printing. `actions=[...]` does the same as `action_names=[...]`.
        stationary: the model that `finite_horizon` cut off; set by it.

    >>> model = TabularModel([[[1.0]], [[1.0]]], [[[1]], [[0]]], [[0.0], [1.0]], discount=0.5)
    >>> model
    TabularModel(states=2, actions=1, successors=1, discount=0.5, rewards=deterministic in [0, 1])
    """

    probabilities: Floats
    successors: Ints
    rewards: Floats
    discount: float
    horizon: int | None
    legal: NDArray[np.bool_] | None  # [S, K]
    reward_kind: RewardKind
    reward_range: tuple[float, float]
    value_range: tuple[float, float] | None
    terminal: NDArray[np.bool_]  # [S]
    ends: NDArray[np.bool_]  # [S, K, B]
    initial_state: int
    state_names: tuple[str, ...] | None
    action_names: tuple[str, ...] | None
    stationary: "TabularModel | None"

    def __init__(
        self,
        probabilities: ArrayLike,
        successors: ArrayLike,
        rewards: ArrayLike,
        *,
        discount: float,
        horizon: int | None = None,
        legal: ArrayLike | None = None,
        reward_kind: RewardKind = "deterministic",
        reward_range: tuple[float, float] | None = None,
        value_range: tuple[float, float] | None = None,
        terminal: ArrayLike | None = None,
        initial_state: int = 0,
        state_names: Sequence[str] | None = None,
        action_names: Sequence[str] | None = None,
        actions: Sequence[str] | int | None = None,
        stationary: "TabularModel | None" = None,
    ) -> None:
        table, paid = _numbers("probabilities", probabilities), _numbers("rewards", rewards)
        targets = _array("successors", successors, "whole numbers")
        if table.ndim != 3 or table.size == 0:
            raise ValueError(f"probabilities must have shape [S, K, B], got {table.shape}")
        states, count, _ = table.shape
        if targets.shape != table.shape:
            raise ValueError(f"successors must have the shape of probabilities, {table.shape}, got {targets.shape}")
        if targets.dtype.kind not in "iu":
            raise TypeError(f"successors must be whole numbers, got dtype {targets.dtype}")
        if paid.shape not in (table.shape, table.shape[:2]):
            raise ValueError(f"rewards must have shape {table.shape[:2]} or {table.shape}, got {paid.shape}")
        mask = None if legal is None else _booleans("legal", legal, table.shape[:2])
        if mask is not None:  # rows of illegal pairs stay where they are
            table[~mask], targets[~mask], paid[~mask] = np.eye(1, table.shape[2])[0], 0, 0.0
        _refuse("probability", table, ~((table >= 0) & (table < np.inf)), "is not a probability")
        with np.errstate(over="ignore"):
            sums = table.sum(axis=-1)
        _refuse("the sum of probabilities", sums, np.abs(sums - 1.0) > arguments.SUM_TOLERANCE, "is not one")
        _refuse("successor", targets, (targets < 0) | (targets >= states), f"is not one of the states 0..{states - 1}")
        _refuse("reward", paid, ~np.isfinite(paid), "is not finite")
        targets = targets.astype(np.int64)
        # Entries that cannot be drawn do not affect the range and kind of rewards.
        possible = (table > 0) if mask is None else (table > 0) & mask[:, :, None]
        ended, ends = _terminal(terminal, targets, possible)
        possible &= ~ended[:, None, None]
        if mask is not None and not (sound := ended | mask.any(axis=1)).all():
            raise ModelError(f"legal leaves no action at state {np.argmin(sound)}, which is not terminal")
        arguments.one_of("reward_kind", reward_kind, *get_args(RewardKind))
        kind = _kind(reward_kind, paid, targets, ends, possible)
        vars(self).update(
            probabilities=arguments.frozen(table),
            successors=arguments.frozen(targets),
            rewards=arguments.frozen(paid),
            **base.episodes(discount, horizon, True),
            legal=None if mask is None or mask[~ended].all() else arguments.frozen(mask),
            reward_kind=kind,
            reward_range=_range(paid, possible, kind, reward_range),
            value_range=value_range,
            terminal=arguments.frozen(ended),
            ends=arguments.frozen(ends),
            initial_state=arguments.whole("initial_state", initial_state, least=0, most=states - 1),
            state_names=None if state_names is None else tuple(map(str, state_names)),
            stationary=stationary,
        )
        if self.state_names is not None and len(self.state_names) != states:
            raise ValueError(f"state_names must have {states} entries, got {len(self.state_names)}")
        named, names = base.named_actions(count if actions is None else actions, action_names)
        if named != count:
            raise ValueError(f"actions must be {count}, the second length of probabilities, got {actions!r}")
        vars(self).update(action_names=names, value_range=base.declared_values(self))
        if self.horizon is not None:
            self.depths.max()  # raises if an episode may be longer

    @classmethod
    def from_dense(
        cls, probabilities: ArrayLike, rewards: ArrayLike, *, terminal: ArrayLike | None = None, **declarations: Any
    ) -> "TabularModel":
        """A model from full matrices: probabilities [S, K, S]; rewards [S, K] or [S, K, S]; terminal [S] or [S, K, S].

        The rest as above.
        """
        dense, table = _numbers("probabilities", probabilities), _numbers("rewards", rewards)
        if dense.ndim != 3 or dense.shape[0] != dense.shape[2] or dense.size == 0:
            raise ValueError(f"probabilities must have shape [S, K, S], got {dense.shape}")
        if table.shape not in (dense.shape, dense.shape[:2]):
            raise ValueError(f"rewards must have shape {dense.shape[:2]} or {dense.shape}, got {table.shape}")
        # A wrong entry, negative or NaN, counts as present, so that the table is refused.
        absent = dense == 0
        width = max(1, int((~absent).sum(axis=-1).max()))
        # A stable sort puts the possible successors first, in the order of their numbers.
        order = np.argsort(absent, axis=-1, kind="stable")[..., :width]

        def possible(array: NDArray[Any]) -> NDArray[Any]:
            return np.take_along_axis(array, order, axis=-1) if array.shape == dense.shape else array

        if terminal is not None:
            terminal = possible(_array("terminal", terminal, "booleans"))
        return cls(possible(dense), order, possible(table), terminal=terminal, **declarations)

    @classmethod
    def from_outcomes(cls, outcomes: Sequence[Sequence[Sequence[Outcome]]], **declarations: Any) -> "TabularModel":
        """A model from lists: outcomes[s][a] has a tuple (probability, next state, reward, whether it ends) for each.

        The rest as above; a `terminal` replaces the last entries of the outcomes.

        >>> TabularModel.from_outcomes([[[(0.5, 0, 1.0, False), (0.5, 0, 0.0, True)]]], discount=0.9).max_successors
        2
        """
        try:
            counts = np.array([[len(entries) for entries in row] for row in outcomes])
            flat = _numbers("outcomes", [entry for row in outcomes for entries in row for entry in entries])
            if counts.ndim != 2 or flat.shape != (counts.sum(), 4):
                raise ValueError
        except (TypeError, ValueError):
            form = "a list of (probability, next state, reward, end), for the same actions of every state"
            raise ValueError(f"outcomes[s][a] must be {form}, got {arguments.shown(outcomes)}") from None
        for name, column, most in (("next state", flat[:, 1], len(counts) - 1), ("end", flat[:, 3], 1)):
            wrong = column != np.round(np.clip(column, 0, most))
            if wrong.any():
                entry = tuple(flat[wrong][0].tolist())
                raise ValueError(f"the {name} of an outcome must be one of 0..{most}, got {entry}")
        # The outcomes of a pair fill its first places in the table [S, K, B].
        places = np.arange(counts.max()) < counts[..., None]
        table = np.zeros((*places.shape, 4))
        table[places] = flat
        tables = {"successors": table[..., 1].astype(np.int64), "terminal": table[..., 3].astype(np.bool_)}
        tables |= {"probabilities": table[..., 0], "rewards": table[..., 2]}
        return cls(**tables | declarations)

    @property
    def states(self) -> int:
        """S."""
        return len(self.probabilities)

    @property
    def actions(self) -> int:
        """K."""
        return int(self.probabilities.shape[1])

    @cached_property
    def max_successors(self) -> int:
        """The largest number of possible successors of one pair."""
        return int((self.probabilities[~self.terminal] > 0).sum(axis=-1).max(initial=1))

    @cached_property
    def depths(self) -> Ints:
        """The most steps that an episode may have from each state, [S]; 0 at terminal states.

        Raises:
            ModelError: an episode may be longer than the horizon, or endless if there is none.
        """
        pairs = ~self.terminal[:, None] if self.legal is None else self.legal & ~self.terminal[:, None]
        goes_on = (self.probabilities > 0) & ~self.ends & pairs[:, :, None]
        before, after = np.nonzero(goes_on)[0], self.successors[goes_on]
        # States are settled once all of their successors are: one layer for each number of steps.
        waiting = np.bincount(before, minlength=self.states)
        order = np.argsort(after, kind="stable")
        before, starts = before[order], np.searchsorted(after[order], np.arange(self.states + 1))
        depths, layer, steps = np.zeros(self.states, dtype=np.int64), np.flatnonzero(waiting == 0), 0
        settled = self.terminal.copy()
        while len(layer):
            steps += 1
            settled[layer], depths[layer] = True, np.where(self.terminal[layer], 0, steps)
            if self.horizon is not None and not self.terminal[layer].all() and steps > self.horizon:
                raise base.too_long(self, self.horizon, int(layer[~self.terminal[layer]][0]))
            counts = starts[layer + 1] - starts[layer]
            places = np.repeat(starts[layer] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            np.subtract.at(waiting, before[places], 1)
            layer = np.unique(before[places][waiting[before[places]] == 0])
        if not settled.all():
            state = int(np.argmin(settled))
            name = "" if self.state_names is None else f" ({self.state_names[state]})"
            text = f"horizon={self.horizon} is exceeded: an episode may go on for ever at state {state}{name}"
            raise ModelError(f"{text}; a state that ends episodes must be declared terminal")
        return np.asarray(arguments.frozen(depths))

    @cached_property
    def terminates(self) -> bool:
        """Whether any state is terminal or any transition ends the episode."""
        return bool(self.terminal.any() or self.ends.any())

    @cached_property
    def expected_rewards(self) -> Floats:
        """E[R | s, a], [S, K]."""
        if self.rewards.ndim == 2:
            return self.rewards
        return np.asarray(arguments.frozen(np.einsum("skb,skb->sk", self.probabilities, self.rewards)))

    @cached_property
    def continuation(self) -> Floats:
        """The probabilities of transitions that do not end the episode, [S, K, B]."""
        return arguments.frozen(self.probabilities * ~self.ends) if self.terminates else self.probabilities

    @cached_property
    def tables(self) -> Tables:
        """The model for compiled code: see `draw`."""
        rewards = np.broadcast_to(self.rewards if self.rewards.ndim == 3 else self.rewards[..., None], self.ends.shape)
        parts = [self.probabilities, rewards, np.where(self.ends, ~self.successors, self.successors)]
        if self.reward_kind == "bernoulli":
            # A successor with a reward of 0 or 1 is two outcomes, so that one random word decides both.
            means = np.clip(rewards, 0.0, 1.0)  # at terminal states they may be out of range
            chances = [self.probabilities * means, self.probabilities * (1.0 - means)]
            parts = [np.concatenate(chances, axis=-1), np.repeat([1.0, 0.0], rewards.shape[-1]), np.tile(parts[2], 2)]
        parts = list(np.broadcast_arrays(*parts))
        order = np.argsort(-parts[0], axis=-1, kind="stable")
        probabilities, rewards, successors = (np.take_along_axis(part, order, axis=-1) for part in parts)
        count = order.shape[-1]
        outcomes = np.zeros((*order.shape[:2], -(-count // UNROLLED) * UNROLLED), dtype=OUTCOME)
        outcomes["reward"][..., :count], outcomes["successor"][..., :count] = rewards, successors
        # Rounding leaves sums just off one; a word beyond the sum belongs to the last possible outcome.
        cumulative = np.minimum(np.cumsum(probabilities, axis=-1), 1.0 - 2.0**-53)
        last = (probabilities > 0.0).sum(axis=-1, keepdims=True) - 1
        outcomes["threshold"][..., :count] = np.ldexp(cumulative, 64).astype(np.uint64) - np.uint64(1)
        outcomes["threshold"][np.arange(outcomes.shape[-1]) >= last] = LAST
        return Tables(arguments.frozen(outcomes.reshape(-1)), self.actions, outcomes.shape[-1])

    def step(self, states: States, actions: Ints, rng: np.random.Generator) -> Transition:
        """Simulates n calls: one uniform number each selects the successor, a second one each a Bernoulli reward.

        A single call draws as Gymnasium's environments do.
        """
        # Compiled code does not check indices.
        for name, values, count in (("states", states, self.states), ("actions", actions, self.actions)):
            if values.dtype != np.int64 or values.ndim != 1 or len(values) != len(states):
                raise ModelError(f"{name} must be int64 [n], got dtype {values.dtype} and shape {values.shape}")
            if values.min(initial=0) < 0 or values.max(initial=0) >= count:
                unknown = values[(values < 0) | (values >= count)][0]
                raise ModelError(f"{name[:-1]} {unknown} is not one of the model's {name} 0..{count - 1}")
        if self.terminates and self.terminal[states].any():
            raise ModelError(f"state {states[self.terminal[states]][0]} is terminal and cannot be stepped from")
        if self.legal is not None and not self.legal[states, actions].all():
            row = int(np.argmin(self.legal[states, actions]))
            name = base.action_names(cast(Any, self))[actions[row]]
            raise ModelError(f"action {name} is not legal at state {states[row]}")
        pairs = states * self.actions + actions
        entries = pairs * self._cumulative.shape[1] + _branches(self._cumulative, pairs, rng.random(len(pairs)))
        rewards = self.rewards.reshape(-1)[pairs if self.rewards.ndim == 2 else entries]
        if self.reward_kind == "bernoulli":
            rewards = (rng.random(len(pairs)) < rewards).astype(np.float64)
        return Transition(self.successors.reshape(-1)[entries], rewards, self.ends.reshape(-1)[entries])

    @cached_property
    def _cumulative(self) -> Floats:
        """Running sums of the probabilities, [S·K, B]; 1 from the last possible successor on."""
        table = self.probabilities.reshape(-1, self.probabilities.shape[-1])
        cumulative = np.cumsum(table, axis=1)
        last = table.shape[1] - 1 - np.argmax(table[:, ::-1] > 0, axis=1)
        # Rounding leaves sums just off one; a draw beyond the sum belongs to the last possible successor.
        cumulative[np.arange(table.shape[1]) >= last[:, None]] = 1.0
        return cumulative

    def __getstate__(self) -> dict[str, Any]:
        """The declared fields; derived ones are computed again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        frozen = arguments.frozen
        vars(self).update({n: frozen(value) if isinstance(value, np.ndarray) else value for n, value in state.items()})

    def __repr__(self) -> str:
        low, high = self.reward_range
        ends = f", terminal={int(self.terminal.sum())}" if self.terminates else ""
        ends += "" if self.horizon is None else f", horizon={self.horizon}"
        values = "" if self.value_range is None else ", values in [{:g}, {:g}]".format(*self.value_range)
        return (
            f"TabularModel(states={self.states}, actions={self.actions}, successors={self.max_successors}, "
            f"discount={self.discount:g}, rewards={self.reward_kind} in [{low:g}, {high:g}]{values}{ends})"
        )


def _numbers(name: str, values: ArrayLike) -> Floats:
    """A float64 array of its own, which may hold infinities and NaNs."""
    return np.array(arguments.numbers(name, values), order="C")


def _array(name: str, values: ArrayLike, of: str) -> NDArray[Any]:
    try:
        return np.array(values)
    except ValueError:
        raise TypeError(f"{name} must be an array of {of}, got {arguments.shown(values)}") from None


def _refuse(name: str, values: NDArray[Any], wrong: NDArray[np.bool_], reason: str) -> None:
    """Raises if any entry is wrong, naming the first one, its state and its action."""
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0])
        raise ModelError(f"{name} {values[where]:.12g} of state {where[0]}, action {where[1]} {reason}")


def _booleans(name: str, values: ArrayLike, *shapes: tuple[int, ...]) -> NDArray[np.bool_]:
    """A mask of one of the shapes."""
    mask = _array(name, values, "booleans")
    if mask.dtype.kind != "b" or mask.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{name} must be booleans of shape {wanted}, got shape {mask.shape} of dtype {mask.dtype}")
    return mask


def _terminal(
    terminal: ArrayLike | None, successors: Ints, possible: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which states are terminal [S], and which transitions end the episode [S, K, B]."""
    states = len(successors)
    given = np.zeros(states, dtype=np.bool_) if terminal is None else terminal
    mask = _booleans("terminal", given, (states,), successors.shape)
    if mask.ndim == 1:
        return mask, mask[successors]
    inside, ending = (np.isin(np.arange(states), successors[possible & part]) for part in (~mask, mask))
    return ending & ~inside, mask & possible


def _kind(
    declared: RewardKind, rewards: Floats, successors: Ints, ends: NDArray[np.bool_], possible: NDArray[np.bool_]
) -> RewardKind:
    """The kind of the rewards, after checking the declared one against rewards [S, K, B]."""
    if declared not in ("deterministic", "transition") or rewards.ndim == 2:
        return declared
    low, high = (np.where(possible, rewards, end) for end in (np.inf, -np.inf))
    if not (high.max(axis=-1) > low.min(axis=-1)).any():  # they do not depend on the successor
        return declared
    # Entries of a pair that lead to the same outcome become neighbours; those that pad are like no other.
    outcomes = np.where(possible, 2 * successors + ends, -1 - np.arange(successors.shape[-1]))
    order = np.argsort(outcomes, axis=-1, kind="stable")
    outcomes, sorted_rewards = (np.take_along_axis(table, order, axis=-1) for table in (outcomes, rewards))
    wrong = (np.diff(outcomes, axis=-1) == 0) & (np.diff(sorted_rewards, axis=-1) != 0.0)
    if not wrong.any():
        return "transition"
    if declared == "transition":
        state, action, place = np.argwhere(wrong)[0]
        one, two = sorted_rewards[state, action, place : place + 2]
        found = f"{one} and {two} of state {state}, action {action}, next state {outcomes[state, action, place] // 2}"
        raise ModelError(f"reward_kind='transition' allows one reward for each next state, got {found}")
    return "bounded"


def _range(
    rewards: Floats, possible: NDArray[np.bool_], kind: RewardKind, declared: tuple[float, float] | None
) -> tuple[float, float]:
    """The declared reward range, or the one of the table, after checking every possible entry against it."""
    counts = possible if rewards.ndim == 3 else possible.any(axis=-1)
    if declared is None and kind != "bernoulli":
        drawn = rewards[counts]
        return (float(drawn.min()), float(drawn.max())) if drawn.size else (0.0, 0.0)
    low, high = base.reward_range(kind, declared)
    wrong, name = counts & ~((rewards >= low) & (rewards <= high)), "mean reward" if kind == "bernoulli" else "reward"
    _refuse(name, rewards, wrong, f"is outside the range [{low:g}, {high:g}]")
    return low, high
