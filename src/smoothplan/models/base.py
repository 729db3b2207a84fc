"""The interface of a model, the counted and checked way to call it, and a check of a simulator's promises."""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan import arguments, brake, streams
from smoothplan.arguments import Floats, Ints
from smoothplan.models.calls import Call, ModelError, RowError, SimulatorError, watcher

States = NDArray[Any]
"""A batch of states, [n, ...]: integers [n] for a table, vectors [n, d] for most simulators."""

RewardKind = Literal["deterministic", "bernoulli", "transition", "bounded"]
"""What is known of a reward given (s, a): a fixed number; 0 or 1; a number that is fixed by the next state, and by
whether the episode ends there; or only that it lies in the declared range."""

ROUNDING = 1e-9
"""What rounding may do to a value, relative to the largest that the rewards allow."""


class Transition(NamedTuple):
    """What n simulator calls return."""

    next_states: States  # [n, ...], of the shape and dtype of the states
    rewards: Floats  # [n]
    terminals: NDArray[np.bool_]  # [n], whether the next state is terminal: worth 0, and never stepped from


class GenerativeModel(Protocol):
    """A simulator and what is known of it: all that a planner needs and all that a user must write.

    Most simulators fit `VectorModel`, `JitModel`, `TabularModel` or `from_gymnasium`; any other class with these
    attributes works too. It may also have the attribute `value_range`, as in `Declarations`: `declared_values` reads
    it. `check_model` tests whether a model keeps its promises.
    """

    @property
    def actions(self) -> int:
        """K, the number of actions; they are numbered from 0."""

    @property
    def discount(self) -> float:
        """γ in [0, 1)."""

    @property
    def reward_range(self) -> tuple[float, float]:
        """The smallest and the largest possible reward."""

    @property
    def reward_kind(self) -> RewardKind:
        """What is known of the reward given state and action."""

    @property
    def max_successors(self) -> int | None:
        """A bound on the number of different next states of one (s, a), or None if there is none.

        A next state that sometimes ends the episode and sometimes does not counts twice.
        """

    @property
    def terminates(self) -> bool:
        """Whether any state may be terminal."""

    @property
    def initial_state(self) -> Any:
        """Where an episode starts, or None if not declared."""

    @property
    def step(self) -> Callable[[States, Ints, np.random.Generator], tuple[Any, ...]]:
        """Simulates n independent calls: states [n, ...] and actions [n] to a `Transition`.

        It draws from the given generator only, keeps nothing between calls, and does not change its arguments. It may
        return a plain tuple (next_states, rewards, terminals), or (next_states, rewards) if nothing is terminal.
        """


def required_model(model: GenerativeModel) -> GenerativeModel:
    """The model, if it is one; an error that says what to write otherwise."""
    given: Any = model
    name = getattr(given, "__name__", type(given).__name__)
    if isinstance(given, type):
        raise TypeError(f"model must be an object, such as {name}(...), got the class {name} itself")
    if isinstance(given, str):
        raise TypeError(f"model must be a simulator, got {given!r}: use sp.models.from_gymnasium({given!r})")
    if hasattr(given, "observation_space") and hasattr(given, "action_space"):
        raise TypeError("model must be a simulator, got a Gymnasium environment: use sp.models.from_gymnasium(env)")
    if hasattr(given, "begin") and hasattr(given, "backup"):
        raise TypeError(f"model must be a simulator, got the planner {name}: are planner and model swapped?")
    declared = [part for part in vars(GenerativeModel) if not part.startswith("_")]
    missing = [part for part in declared if not hasattr(given, part)]
    if missing and callable(given):
        raise TypeError(f"model must be a simulator, got the function {name}: wrap a step, VectorModel({name}, ...)")
    if missing:
        raise TypeError(f"model must have {', '.join(declared)}, and {arguments.shown(given)} has no {missing[0]}")
    return model


@dataclass(frozen=True, kw_only=True, eq=False)
class Declarations:
    """What a user's simulator declares.

    Args:
        actions: K, the number of actions.
        discount: γ in [0, 1).
        reward_range: smallest and largest reward.
        reward_kind: "deterministic" given (s, a), "bernoulli" (0 or 1), "transition" (fixed by (s, a), the next state
            and whether the episode ends there), or "bounded" (only the range is known).
        value_range: bounds of the ordinary optimal value, the largest expected discounted return, of every state that
            is not terminal, where you know more than the rewards tell. Single returns may lie outside, and so may
            the values of poor policies. For a smooth backup the library adds what the regulariser can add.
        max_successors: a bound on the number of different next states of one (s, a), if there is one. A next state
            that sometimes ends the episode and sometimes does not counts twice.
        terminates: whether any state may be terminal. True is always sound; False makes value intervals narrower.
        initial_state: where an episode starts; also an example of a state, for `check_model` and the command line.
    """

    actions: int
    discount: float
    reward_range: tuple[float, float]
    reward_kind: RewardKind = "bounded"
    value_range: tuple[float, float] | None = None
    max_successors: int | None = None
    terminates: bool = True
    initial_state: Any = None

    def __post_init__(self) -> None:
        reward_kind(self.reward_kind)
        values = {
            "actions": arguments.whole("actions", self.actions),
            "discount": arguments.discount_factor(self.discount),
            "reward_range": reward_range(self.reward_range),
            "terminates": arguments.flag("terminates", self.terminates),
        }
        if self.reward_kind == "bernoulli" and values["reward_range"] != (0.0, 1.0):
            raise ValueError(f"reward_range must be (0, 1) for bernoulli rewards, got {self.reward_range!r}")
        if self.max_successors is not None:
            values["max_successors"] = arguments.whole("max_successors", self.max_successors)
        if self.initial_state is not None:
            values["initial_state"] = arguments.frozen(np.array(self.initial_state))
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "value_range", declared_values(self))


def reward_kind(value: str) -> RewardKind:
    """The kind of reward that a string names."""
    if not isinstance(value, str) or value not in get_args(RewardKind):
        raise ValueError(f"reward_kind must be one of {', '.join(get_args(RewardKind))}, got {value!r}")
    return cast(RewardKind, value)


def reward_range(value: tuple[float, float]) -> tuple[float, float]:
    """A pair of finite numbers (low, high) with low ≤ high."""
    return arguments.interval("reward_range", value)


def possible_returns(model: GenerativeModel | Declarations) -> tuple[float, float]:
    """An interval that contains every discounted sum of rewards, and so the ordinary value of every policy."""
    low, high = (end / (1.0 - model.discount) for end in model.reward_range)
    return (min(low, 0.0), max(high, 0.0)) if model.terminates else (low, high)


def declared_values(model: GenerativeModel | Declarations) -> tuple[float, float] | None:
    """The model's `value_range`, or None where it has none: a class of one's own need not have the attribute.

    Raises:
        ValueError: it is no pair of finite numbers low ≤ high, or contradicts the reward range.
    """
    declared = getattr(model, "value_range", None)
    if declared is None:
        return None
    low, high = arguments.interval("value_range", declared)
    least, most = possible_returns(model)
    slack = ROUNDING * max(abs(least), abs(most))
    if low > most + slack or high < least - slack:
        raise ValueError(
            f"value_range must overlap [{least:g}, {most:g}], the values that reward_range={model.reward_range} and "
            f"discount={model.discount:g} allow, got {declared!r}"
        )
    return low, high


def rewards_are_known(model: GenerativeModel) -> bool:
    """Whether the reward is a fixed number given (s, a)."""
    kind = model.reward_kind
    return kind == "deterministic" or (kind == "transition" and model.max_successors == 1)


def is_deterministic(model: GenerativeModel) -> bool:
    """Whether nothing is random: next states and rewards are fixed by (s, a)."""
    return model.max_successors == 1 and rewards_are_known(model)


def action_names(model: GenerativeModel) -> tuple[str, ...]:
    """The names of the actions, where the model has any, or their numbers."""
    return tuple(getattr(model, "action_names", None) or map(str, range(model.actions)))


NO_BRAKE = brake.Brake()
"""Of simulator calls outside of any run."""


class Oracle:
    """The paper's ORACLE(s, a): the only way from a planner to a simulator. It counts and checks every call.

    A planner is given an oracle, not a model. Chunk c of a run has the oracle of (seed, c), so its draws do not depend
    on which worker runs it. Compiled code draws from `stream`, in which every compiled simulator call counts itself.
    Whatever else a planner draws, such as actions, comes from `rng` or `stream` too. A call raises `brake.Stopped` once
    the run is to stop.

    Args:
        model: the simulator.
        seed: the seed of the run.
        chunk: the number of the chunk.
    """

    def __init__(self, model: GenerativeModel, seed: int, chunk: int = 0) -> None:
        self.model = model
        self.seed, self.chunk = seed, chunk
        self.rng = streams.generator(seed, chunk)
        self.stream = streams.stream(seed, chunk)

    @property
    def calls(self) -> int:
        """Simulator calls made so far, compiled ones included."""
        return int(self.stream[streams.CALLS])

    def sample(self, states: States, actions: ArrayLike) -> Transition:
        """One simulator call per row: states [n, ...] and actions [n]."""
        states = np.asarray(states)
        actions = np.asarray(actions)
        if actions.ndim != 1 or actions.dtype.kind not in "iu" or states.shape[:1] != actions.shape:
            raise ValueError(
                f"states [n, ...] and whole-numbered actions [n] must match, got shapes {states.shape} and "
                f"{actions.shape}, actions of dtype {actions.dtype}"
            )
        unknown = (actions < 0) | (actions >= self.model.actions)
        if unknown.any():
            raise ValueError(f"actions must be in 0..{self.model.actions - 1}, got {actions[unknown][0]}")
        with (brake.current.get() or NO_BRAKE).around_simulator():
            self.stream[streams.CALLS] += np.uint64(len(actions))
            origin = self.seed, self.chunk
            return checked_step(self.model, states, actions.astype(np.int64, copy=False), self.rng, origin)

    def sample_alike(self, batches: Iterable[tuple[States, ArrayLike]], start: Any = None) -> list[Transition]:
        """Samples batches one after the other, all with the same random numbers: row i of each sees the same.

        That holds as far as the simulator draws the same way from different states.

        Args:
            batches: states [n, ...] and actions [n] each.
            start: the state of the generator that each begins with; by default the present one. In the end the
                generator is where the last batch has left it.
        """
        bits, answers = self.rng.bit_generator, []
        start = bits.state if start is None else start
        for states, actions in batches:
            bits.state = start
            answers.append(self.sample(states, actions))
        return answers


def checked_step(
    model: GenerativeModel,
    states: States,
    actions: Ints,
    rng: np.random.Generator,
    origin: tuple[int | None, int | None] = (None, None),
) -> Transition:
    """The model's answer to n calls, or an error that names the state, the action and the wrong number.

    The simulator gets read-only arguments, so that it cannot change a state in place. An error carries the call, for
    `reproduce`; its origin is the seed and the chunk.
    """
    if len(actions) == 0:
        return Transition(states, np.zeros(0), np.zeros(0, dtype=np.bool_))
    if (watching := watcher.get()) is not None:
        watching(states, actions, rng)
    before: Any = rng.bit_generator.state

    def call(row: int | None) -> Call:
        rng.bit_generator.state = before
        found = Call(states.copy(), actions.copy(), streams.generator_words(rng), *origin, row)
        return found.narrowed(model)

    try:
        answer = model.step(arguments.frozen(states), arguments.frozen(actions), rng)
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        cause = error.__cause__ if isinstance(error, RowError) else error
        row = error.row if isinstance(error, RowError) else 0 if len(actions) == 1 else None
        found = call(row)
        raise _failure(model, cause, found.isolated(model, type(error)) if row is None else found) from cause
    return _checked(model, states, actions, answer, call)


AMBIGUOUS = ("truth value of a", "only length-1 arrays", "only 0-dimensional arrays", "only integer scalar arrays")
"""What NumPy says where code for one number is given many."""


def _scalar_hint(model: GenerativeModel) -> str:
    """What to say where a step may be written for one state at a time, and is given many."""
    if not hasattr(model, "from_scalar") or getattr(model.step, "one_at_a_time", False):
        return ""
    return "; if step is written for one state at a time, use VectorModel.from_scalar(step, ...)"


def _failure(model: GenerativeModel, cause: BaseException | None, call: Call) -> SimulatorError:
    """The error of a simulator that raised one."""
    if isinstance(cause, ValueError) and "read-only" in str(cause):
        what = "the simulator changes a state in place: it must not change its arguments"
    elif isinstance(cause, ModelError):
        what = str(cause)
    else:
        what = f"the simulator raised {type(cause).__name__}: {cause}"
        if any(sign in str(cause) for sign in AMBIGUOUS):
            what += _scalar_hint(model)
    return SimulatorError(f"{what} ({call.place()})", call)


def reproduce(model: GenerativeModel, call: Call | str) -> Transition:
    """Repeats a simulator call that failed, with the same random numbers.

    Args:
        model: the simulator.
        call: `SimulatorError.call`, or its JSON.

    Raises:
        SimulatorError: it failed again.
    """
    if isinstance(call, str):
        call = Call.from_json(call)
    return checked_step(model, call.states, call.actions, call.rng, (call.seed, call.chunk))


def _checked(
    model: GenerativeModel, states: States, actions: Ints, answer: Any, call: Callable[[int | None], Call]
) -> Transition:
    def complaint(text: str) -> SimulatorError:
        found = call(None)
        return SimulatorError(f"{text} ({found.place()})", found)

    if not isinstance(answer, tuple) or len(answer) not in (2, 3):
        raise complaint(f"step must return (next_states, rewards, terminals), got {type(answer).__name__}: {answer!r}")
    count = len(actions)
    next_states, rewards = np.asarray(answer[0]), np.asarray(answer[1])
    terminals = np.asarray(answer[2]) if len(answer) == 3 else np.zeros(count, dtype=np.bool_)

    if next_states.shape != states.shape:
        text = f"next_states must have the shape of states, {states.shape}, got {next_states.shape}"
        raise complaint(text + _scalar_hint(model))
    if next_states.dtype != states.dtype:
        raise complaint(f"next_states must have the dtype of states, {states.dtype}, got {next_states.dtype}")
    for name, values, kinds in (("rewards", rewards, "fiu"), ("terminals", terminals, "b")):
        if values.shape != (count,):
            raise complaint(f"{name} must have shape ({count},), got {values.shape}{_scalar_hint(model)}")
        if values.dtype.kind not in kinds:
            raise complaint(f"{name} must be {'numbers' if name == 'rewards' else 'booleans'}, got {values.dtype}")

    def blame(wrong: NDArray[np.bool_], what: str) -> ModelError:
        row = int(np.argmax(wrong))
        found = call(row)
        return SimulatorError(
            f"{what} (state {states[row].tolist()}, action {actions[row]}, reward {rewards[row]!s}, "
            f"next state {next_states[row].tolist()}{found.origin()})",
            found,
        )

    low, high = model.reward_range
    # A NaN fails both comparisons, so the bounds alone catch it.
    if not (rewards.min() >= low and rewards.max() <= high):
        wrong = ~((rewards >= low) & (rewards <= high))
        raise blame(wrong, f"reward {rewards[wrong][0]} is outside the declared range [{low:g}, {high:g}]")
    if model.reward_kind == "bernoulli" and not ((rewards == 0) | (rewards == 1)).all():
        wrong = (rewards != 0) & (rewards != 1)
        raise blame(wrong, f"reward {rewards[wrong][0]} of a bernoulli model is neither 0 nor 1")
    if next_states.dtype.kind in "fc" and not np.isfinite(next_states).all():
        raise blame(~np.isfinite(next_states).reshape(count, -1).all(axis=1), "the next state is not finite")
    if not model.terminates and terminals.any():
        raise blame(terminals, "the next state is terminal in a model declared with terminates=False")
    return Transition(next_states, rewards.astype(np.float64, copy=False), terminals)


FALSE_ALARM = 1e-6
"""The probability that `check_model` refutes a `value_range` that is right."""


WALKERS, REPEATS = 16, 32
"""States in each round of the walk of `check_model`, and calls at one of them for its different outcomes."""


class ModelReport(NamedTuple):
    """What `check_model` saw of a simulator that passed."""

    calls: int
    states: int  # different states that were stepped from
    rewards: tuple[float, float]  # smallest and largest reward seen
    successors: int  # most different next states seen of one (s, a)
    terminal: float  # fraction of the transitions that ended in a terminal state


def check_model(
    model: GenerativeModel, states: ArrayLike | None = None, *, seed: int = 0, rounds: int = 50
) -> ModelReport:
    """What `smoothplan.check_model` does, without a display of its progress."""
    required_model(model)
    if states is None and model.initial_state is None:
        raise ValueError("states must be given: this model declares no initial_state")
    first = np.asarray(model.initial_state)[None] if states is None else np.asarray(states)
    if first.ndim == 0 or len(first) == 0:
        raise ValueError(f"states must be a batch [n, ...] of at least one state, got shape {first.shape}")
    return _Examination(model, first, seed, rounds).run()


def most_checked(model: GenerativeModel, rounds: int) -> int:
    """Simulator calls that `check_model` makes, at most."""
    required_model(model)
    walk = arguments.whole("rounds", rounds) * (4 * WALKERS + REPEATS)
    return walk + (0 if declared_values(model) is None else math.prod(_plays(model.discount)))


def _plays(discount: float) -> tuple[int, int]:
    """Steps that leave a twentieth of the value, at most, and how many random plays of them take about a second."""
    steps = 1 if discount == 0.0 else min(math.ceil(math.log(0.05) / math.log(discount)), 600)
    return steps, max(32, min(20_000 // steps, 4_000))


@dataclass
class _Examination:
    """A random walk through a model that tests its promises at every step."""

    model: GenerativeModel
    first: States
    seed: int
    rounds: int
    calls: int = 0

    def run(self) -> ModelReport:
        walk = streams.generator(self.seed)
        low, high, most, ended, total = np.inf, -np.inf, 0, 0, 0
        seen: set[bytes] = set()
        states = self.first
        previous: States | None = None
        for round_number in range(arguments.whole("rounds", self.rounds)):
            batch = states[walk.integers(len(states), size=min(WALKERS, len(states) * self.model.actions))]
            actions = (np.arange(len(batch)) + round_number) % self.model.actions
            transition = self._examine(batch, actions, round_number, previous)
            most = max(most, self._repeat(batch[:1], actions[:1], round_number))
            seen.update(state.tobytes() for state in batch)
            low, high = min(low, transition.rewards.min()), max(high, transition.rewards.max())
            ended, total = ended + int(transition.terminals.sum()), total + len(batch)
            previous = batch
            states = np.concatenate([self.first, transition.next_states[~transition.terminals]])
        self._play()
        return ModelReport(self.calls, len(seen), (float(low), float(high)), most, ended / total)

    def _step(self, states: States, actions: Ints, draw: int) -> Transition:
        self.calls += len(actions)
        return checked_step(self.model, states, actions, streams.generator(self.seed, 1 + draw))

    def _examine(self, states: States, actions: Ints, draw: int, previous: States | None) -> Transition:
        """Steps a batch, twice in a row and once after a step elsewhere: all three must agree."""
        before = states.copy()
        first = self._step(states, actions, draw)
        if not np.array_equal(states, before):
            raise ModelError(f"the simulator changed a state in place: {before.tolist()} became {states.tolist()}")
        if not _same(first, again := self._step(states, actions, draw)):
            unused = _global_state()
            self._step(states, actions, draw)
            if _global_state() != unused:
                raise ModelError(
                    "the simulator draws from a global random generator, not only from the one it is given"
                )
            raise self._differs("was called a second time", states, actions, first, again)
        if previous is not None:
            elsewhere = np.arange(len(previous)) % self.model.actions
            self._step(previous, elsewhere, draw + self.rounds)
            if not _same(first, again := self._step(states, actions, draw)):
                raise self._differs("was called elsewhere in between", states, actions, first, again)
        return first

    def _differs(self, when: str, states: States, actions: Ints, one: Transition, two: Transition) -> ModelError:
        differ = [(a != b).reshape(len(actions), -1).any(axis=1) for a, b in zip(one, two, strict=True)]
        row = int(np.argmax(np.any(differ, axis=0)))
        return ModelError(
            "the same states, actions and generator gave two different results after the simulator "
            f"{when}: it keeps a hidden state, or draws from a source of its own (state "
            f"{states[row].tolist()}, action {actions[row]})"
        )

    def _repeat(self, state: States, action: Ints, draw: int) -> int:
        """Steps one (s, a) many times; the number of different next states, after checking declarations against it."""
        states, actions = np.repeat(state, REPEATS, axis=0), np.repeat(action, REPEATS)
        transition = self._step(states, actions, draw)
        where = f"state {state[0].tolist()}, action {action[0]}"
        rewards = np.unique(transition.rewards)
        if self.model.reward_kind == "deterministic" and len(rewards) > 1:
            raise ModelError(f"rewards declared deterministic took values {rewards[0]} and {rewards[1]} at {where}")
        outcomes: dict[tuple[bytes, bool], float] = {}
        for row, reward, end in zip(*transition, strict=True):
            known = outcomes.setdefault((row.tobytes(), bool(end)), reward)
            if self.model.reward_kind == "transition" and reward != known:
                raise ModelError(
                    f"rewards declared fixed by the transition took values {known} and {reward} at {where}, next state "
                    f"{row.tolist()}"
                )
        successors = len(outcomes)
        bound = self.model.max_successors
        if bound is not None and successors > bound:
            raise ModelError(f"{successors} different next states, more than max_successors={bound}, at {where}")
        return successors

    def _play(self) -> None:
        """Takes random actions: where they earn more than `value_range` allows, the best policy does, too.

        The mean of n returns exceeds its expectation by w·√(log(1/α)/2n) with probability α at most (Hoeffding), for
        their width w. What follows the last step counts as the least possible.
        """
        declared = declared_values(self.model)
        if declared is None:
            return
        discount, (least, most) = self.model.discount, possible_returns(self.model)
        steps, count = _plays(discount)
        choices = streams.generator(self.seed, 1 + 2 * self.rounds)
        states, going_on, totals = self.first[np.arange(count) % len(self.first)], np.arange(count), np.zeros(count)
        for step in range(steps):
            actions = choices.integers(self.model.actions, size=len(going_on))
            found = self._step(states, actions, 1 + 2 * self.rounds + step)
            totals[going_on] += discount**step * found.rewards
            going_on, states = going_on[~found.terminals], found.next_states[~found.terminals]
        totals[going_on] += discount**steps * least
        sure = float(totals.mean()) - (most - least) * math.sqrt(math.log(1.0 / FALSE_ALARM) / (2.0 * count))
        if sure > declared[1] + ROUNDING * max(abs(least), abs(most)):
            raise ModelError(
                f"value_range={declared} is too low: random actions earn {totals.mean():.6g} on average from state "
                f"{self.first[0].tolist()}{' and others' if len(self.first) > 1 else ''}, and surely {sure:.6g}"
            )


def _same(one: Transition, two: Transition) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def _global_state() -> tuple[Any, ...]:
    """The state of the global generators of Python and NumPy."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return (random.getstate(), numpy[1].tobytes(), *numpy[2:])
