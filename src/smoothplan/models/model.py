"""The interface of a model, its declarations, and the oracle: the counted and checked way to call a simulator."""

import copy
import json
import math
import signal
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base import arguments, stopping, streams
from smoothplan.base.arguments import Floats
from smoothplan.base.records import Arrays, Readable

States = NDArray[Any]
"""A batch of states, [n, ...]: integers [n] for a table, vectors [n, d] for most simulators."""

Actions = NDArray[Any]
"""A batch of actions: whole numbers [n] from 0 to K − 1; of a `Box`, numbers [n] or vectors [n, d]."""

RewardKind = Literal["deterministic", "bernoulli", "transition", "bounded"]
"""The reward given (s, a): a fixed number; 0 or 1; a number fixed by the next state and by whether the episode ends
there; or any number in the declared range."""

Legal = Callable[[States], ArrayLike]
"""Which actions are legal: states [n, ...] to booleans [n, K]."""

ROW = "smoothplan_row"  # the attribute of an error that tells which row failed, if a simulator makes one call at a time

ROUNDING = 1e-9
"""Rounding error of a value, relative to the largest number it is computed from."""


@dataclass(frozen=True, eq=False, init=False)
class Box:
    """Actions that are numbers or vectors between two finite ends.

    Args:
        low, high: the ends, numbers or vectors [d]. `step` gets actions [n] for numbers, [n, d] for vectors.

    >>> Box(-2.0, 2.0)
    Box(-2.0, 2.0)
    """

    low: Floats
    high: Floats

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        low, high = arguments.numbers("low", low), arguments.numbers("high", high)
        if low.shape != high.shape or low.ndim > 1 or low.size == 0:
            shapes = f"{low.shape} and {high.shape}"
            raise ValueError(f"low and high must be two numbers, or vectors of one length, got shapes {shapes}")
        for name, end in (("low", low), ("high", high)):
            if not np.isfinite(end).all():
                raise ValueError(f"{name} must be finite, so that actions can be compared, got {end.tolist()}")
        if not (low < high).all():
            raise ValueError(f"low must be below high, got {low.tolist()} and {high.tolist()}")
        vars(self).update(low=arguments.frozen(low), high=arguments.frozen(high))

    def grid(self, points: int) -> Floats:
        """Evenly spaced actions, `points` of each side, ends included: [K] or [K, d]."""
        points = arguments.whole("points", points, least=2)
        arguments.whole("points of each side, together", points**self.low.size, most=10**5)
        sides = [np.linspace(*ends, points) for ends in zip(self.low.reshape(-1), self.high.reshape(-1), strict=True)]
        return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, *self.low.shape)

    def required(self, name: str, actions: ArrayLike) -> Floats:
        """Actions [n] or [n, d] in the box, or an error that names the first that is not."""
        found = arguments.numbers(name, actions)
        if found.shape[1:] != self.low.shape or found.ndim == 0 or len(found) == 0:
            raise ValueError(f"{name} must have shape {('n', *self.low.shape)} for {self!r}, got {found.shape}")
        inside = ((found >= self.low) & (found <= self.high)).reshape(len(found), -1).all(axis=1)
        if not inside.all():
            raise ValueError(f"{name} must be in {self!r}, got {found[int(np.argmin(inside))].tolist()}")
        return found

    def __repr__(self) -> str:
        return f"Box({self.low.tolist()}, {self.high.tolist()})"


class ModelError(ValueError):
    """A simulator or a table contradicts its declarations.

    Attributes:
        partial: the result so far of the run, if there was one. It is certified only if the simulator's declarations
            are true, which the failure may refute.
    """

    partial: Any = None


class Transition(NamedTuple):
    """The outcomes of n simulator calls."""

    next_states: States  # [n, ...], of the shape and dtype of the states
    rewards: Floats  # [n]
    terminals: NDArray[np.bool_]  # [n], whether the next state is terminal: worth 0, and never stepped from


class GenerativeModel(Protocol):
    """A simulator and its declarations: all that a planner needs and all that a user must write.

    Most simulators fit `VectorModel`, `JitModel`, `TabularModel` or `from_gymnasium`; any other class with these
    attributes works too. It may also have the attributes `value_range`, `horizon`, `legal`, `features` and
    `action_names` of `Declarations`. `check_model` tests whether a model keeps its promises.
    """

    @property
    def actions(self) -> int:
        """K, the number of actions; they are numbered from 0."""

    @property
    def discount(self) -> float:
        """γ in [0, 1); 1 is allowed with a horizon."""

    @property
    def reward_range(self) -> tuple[float, float]:
        """The smallest and the largest possible reward; (−∞, ∞) if they are not known."""

    @property
    def reward_kind(self) -> RewardKind:
        """The kind of reward given state and action."""

    @property
    def max_successors(self) -> int | None:
        """A bound on the number of different next states of one (s, a), or None if there is none."""

    @property
    def terminates(self) -> bool:
        """Whether any state may be terminal."""

    @property
    def initial_state(self) -> Any:
        """The state in which an episode starts, or None if not declared."""

    @property
    def step(self) -> Callable[[States, Actions, np.random.Generator], tuple[Any, ...]]:
        """Simulates n independent calls: states [n, ...] and actions [n] to a `Transition`.

        It draws from the given generator only, keeps nothing between calls, and does not change its arguments. It may
        return a plain tuple (next_states, rewards, terminals), or (next_states, rewards) if nothing is terminal. A
        fourth entry, discounts [n] of at most γ, takes the place of γ: a step then ends the episode with probability
        1 − d/γ, which has the same expectation.
        """


def required_model(model: GenerativeModel, boxes: bool = False) -> GenerativeModel:
    """The model, if it is one, with finitely many actions unless boxes are allowed; otherwise an error with advice."""
    given: Any = model
    name = getattr(given, "__name__", type(given).__name__)
    if isinstance(given, type):
        raise TypeError(f"model must be an object, such as {name}(...), got the class {name} itself")
    if isinstance(given, str):
        raise TypeError(f"model must be a simulator, got {given!r}: use sp.models.from_gymnasium({given!r})")
    if hasattr(given, "observation_space") and hasattr(given, "action_space"):
        raise TypeError("model must be a simulator, got a Gymnasium environment: use sp.models.from_gymnasium(env)")
    if hasattr(given, "start") and hasattr(given, "backup"):
        raise TypeError(f"model must be a simulator, got the planner {name}: are planner and model swapped?")
    declared = [part for part in vars(GenerativeModel) if not part.startswith("_")]
    missing = next((part for part in declared if not hasattr(given, part)), None)
    if missing and callable(given):
        raise TypeError(f"model must be a simulator, got the function {name}: wrap a step, VectorModel({name}, ...)")
    if missing:
        raise TypeError(f"model must have {', '.join(declared)}, and {arguments.shown(given)} has no {missing}")
    episodes(given.discount, horizon_of(given), given.terminates)
    if isinstance(given.actions, Box) and not boxes:
        raise ValueError(
            f"model must have finitely many actions here, got {given.actions!r}: plan on one of "
            "model, cost = sp.models.discretise(model, points), or use decide, Agent or act"
        )
    return model


@dataclass(frozen=True, kw_only=True, eq=False)
class Declarations:
    """The declarations of a user's simulator.

    Args:
        actions: K, the number of actions; or their names, which outputs then use; or a `Box` of numbers or vectors,
            ours or one of Gymnasium.
        discount: γ in [0, 1); with a horizon 1 is allowed, too.
        horizon: an episode ends after at most that many steps from any state, a promise that a run checks. If states do
            not know the time, `finite_horizon` cuts episodes off.
        reward_range: smallest and largest reward. Without it nothing can be proved: `decide` and `Agent` estimate, and
            planners ask for it.
        reward_kind: "deterministic" given (s, a), "bernoulli" (0 or 1), "transition" (fixed by (s, a), the next state
            and whether the episode ends there), or "bounded" (only the range is known).
        value_range: bounds of the unregularised optimal value, the largest expected discounted return, of every state
            that is not terminal, if they are narrower than the rewards allow. Single returns and the values of poor
            policies may lie outside. For a smooth backup the library adds the bounds of the regulariser.
        max_successors: a bound on the number of different next states of one (s, a), if there is one. A next state
            that sometimes ends the episode and sometimes does not counts twice.
        terminates: whether any state may be terminal. True is always sound; False makes value intervals narrower.
        initial_state: the state in which an episode starts; `check_model` and the command line begin there, too.
        legal: which actions a state has, a function of states [n, ...] to booleans [n, K]; by default all. Every state
            that is not terminal must have one; others are not asked about.
        features: what fits see of states, such as the cosine and the sine of an angle: a function of states [n, ...] to
            vectors [n, d]; by default all numbers of a state.
        action_names: the names of the actions, if `actions` is their number.
        stationary: the model that `finite_horizon` cut off; set by it.
    """

    actions: Any
    discount: float
    horizon: int | None = None
    reward_range: tuple[float, float] = (-math.inf, math.inf)
    reward_kind: RewardKind = "bounded"
    value_range: tuple[float, float] | None = None
    max_successors: int | None = None
    terminates: bool = True
    initial_state: Any = None
    legal: Legal | None = None
    features: Callable[[States], ArrayLike] | None = None
    action_names: Sequence[str] | None = None
    stationary: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        start, successors = self.initial_state, self.max_successors
        actions, names = named_actions(self.actions, self.action_names)
        for name, values in {"legal": "booleans [n, K]", "features": "vectors [n, d]"}.items():
            if (given := getattr(self, name)) is not None and not callable(given):
                raise TypeError(f"{name} must be a function of states [n, ...] to {values}, got {given!r}")
        if self.legal is not None and isinstance(actions, Box):
            raise ValueError(f"legal needs finitely many actions, got {actions!r}")
        vars(self).update(
            actions=actions,
            action_names=names,
            reward_range=reward_range(self.reward_kind, self.reward_range),
            max_successors=None if successors is None else arguments.whole("max_successors", successors),
            terminates=arguments.flag("terminates", self.terminates),
            initial_state=None if start is None else arguments.frozen(np.array(start)),
            **episodes(self.discount, self.horizon, self.terminates),
        )
        vars(self).update(value_range=declared_values(self))
        if not callable(step := getattr(self, "step", callable)):
            raise TypeError(f"step must be a function of (states, actions, rng), got {step!r}")


def named_actions(actions: Any, names: Sequence[str] | None = None) -> tuple[Any, tuple[str, ...] | None]:
    """The number of actions, or their box, and their names, if they have any. A box may be one of Gymnasium's."""
    if type(actions).__name__ == "Box" and not isinstance(actions, Box):
        if actions.low.dtype.kind != "f":
            raise ValueError(f"actions must be a Box of real numbers, or a number of actions, got {actions!r}")
        actions = Box(actions.low, actions.high)
    if isinstance(actions, Box):
        if names is not None:
            raise ValueError(f"action_names must not be given for {actions!r}, got {names!r}")
        return actions, None
    if isinstance(names, str):
        raise TypeError(f"action_names must be a list of names, got {names!r}")
    if isinstance(actions, Sequence | np.ndarray) and not isinstance(actions, str | bytes) and np.ndim(actions) == 1:
        if names is not None and tuple(map(str, names)) != tuple(map(str, actions)):
            raise ValueError(f"action_names must not contradict actions={actions!r}, got {names!r}")
        names, actions = list(actions), len(actions)
    actions = arguments.whole("actions", actions)
    if names is None:
        return actions, None
    if len(found := tuple(map(str, names))) != actions:
        raise ValueError(f"action_names must have {actions} entries, got {len(found)}")
    printable = all(name is not None and str(name).strip() and str(name).isprintable() for name in names)
    if len(set(found)) < actions or not printable:
        raise ValueError(f"the names of actions must differ, and be printable, got {found}")
    return actions, found


def episodes(discount: float, horizon: int | None, terminates: bool) -> dict[str, Any]:
    """The discount and the horizon, if they are possible together."""
    discount = arguments.number("discount", discount, least=0.0, most=1.0)
    if horizon is not None:
        horizon = arguments.whole("horizon", horizon, most=10**9)
        if not terminates:
            raise ValueError(f"terminates must be True with horizon={horizon}: episodes end by then, got False")
    elif discount == 1.0:
        raise ValueError(
            f"discount must be below 1 unless episodes end after a known number of steps, got {discount}: declare "
            "horizon=N if an episode has at most N steps from any state, or cut episodes off, "
            "sp.models.finite_horizon(model, N, discount=1.0)"
        )
    return {"discount": discount, "horizon": horizon}


def reward_range(kind: RewardKind, value: tuple[float, float] | None) -> tuple[float, float]:
    """A pair (low, high) with low ≤ high, (−∞, ∞) if there is none, and (0, 1) for rewards of 0 or 1."""
    arguments.one_of("reward_kind", kind, *get_args(RewardKind))
    if value is None or value == (-math.inf, math.inf):
        return (0.0, 1.0) if kind == "bernoulli" else (-math.inf, math.inf)
    found = arguments.interval("reward_range", value)
    if kind == "bernoulli" and found != (0.0, 1.0):
        raise ValueError(f"reward_range must be (0, 1) for bernoulli rewards, got {value!r}")
    return found


def declares_rewards(model: GenerativeModel | Declarations) -> bool:
    """Whether the range of rewards is known; without it nothing can be proved."""
    return math.isfinite(model.reward_range[1] - model.reward_range[0])


def horizon_of(model: GenerativeModel | Declarations) -> int | None:
    """The most steps that an episode may have from any state, or None: a class of one's own need not declare it."""
    return cast("int | None", getattr(model, "horizon", None))


def total_weight(discount: float, steps: float | None) -> float:
    """Σ γ^t over that many steps, 1/(1 − γ) without an end: the most that values grow beyond rewards.

    >>> total_weight(0.5, None), total_weight(1.0, 3), total_weight(0.5, 2)
    (2.0, 3.0, 1.5)
    """
    if steps is None or math.isinf(steps):
        return 1.0 / (1.0 - discount)
    if discount == 1.0:
        return float(steps)
    return -math.expm1(steps * math.log(discount)) / (1.0 - discount) if discount > 0.0 else float(min(steps, 1))


def summed(each: float, discount: float, steps: float | None) -> float:
    """x·Σ γ^t over that many steps."""
    return each / (1.0 - discount) if steps is None else each * total_weight(discount, steps)


def effective_horizon(model: GenerativeModel | Declarations) -> float:
    """Σ γ^t over the steps that an episode may have."""
    return total_weight(model.discount, horizon_of(model))


def too_long(model: GenerativeModel, steps: int, state: Any) -> ModelError:
    """The error of an episode that has gone on for more steps than the horizon."""
    place = f"after {steps} steps, at state {np.asarray(state).tolist()}"
    return ModelError(f"horizon={horizon_of(model)} is exceeded: an episode has not ended {place}")


def possible_returns(model: GenerativeModel | Declarations) -> tuple[float, float]:
    """An interval that contains every discounted sum of rewards."""
    low, high = (summed(end, model.discount, horizon_of(model)) for end in model.reward_range)
    return (min(low, 0.0), max(high, 0.0)) if model.terminates else (low, high)


def declared_values(model: GenerativeModel | Declarations) -> tuple[float, float] | None:
    """The model's `value_range`, if rewards allow it, or None: a class of one's own need not have the attribute."""
    declared = getattr(model, "value_range", None)
    if declared is None:
        return None
    low, high = arguments.interval("value_range", declared)
    least, most = possible_returns(model)
    slack = ROUNDING * max(abs(least), abs(most)) if declares_rewards(model) else 0.0
    if low > most + slack or high < least - slack:
        allowed = f"reward_range={model.reward_range} and discount={model.discount:g} allow"
        raise ValueError(f"value_range must overlap [{least:g}, {most:g}], the values that {allowed}, got {declared!r}")
    return low, high


def rewards_are_known(model: GenerativeModel) -> bool:
    """Whether the reward is a fixed number given (s, a)."""
    kind = model.reward_kind
    return kind == "deterministic" or (kind == "transition" and model.max_successors == 1)


def is_deterministic(model: GenerativeModel) -> bool:
    """Whether nothing is random: next states and rewards are fixed by (s, a)."""
    return model.max_successors == 1 and rewards_are_known(model)


def action_names(model: GenerativeModel) -> tuple[str, ...]:
    """The names of the actions, if the model has them, or their numbers."""
    return tuple(getattr(model, "action_names", None) or map(str, range(model.actions)))


def legal_actions(model: GenerativeModel, states: States) -> NDArray[np.bool_] | None:
    """Which actions are legal at states [n, ...] that are not terminal, [n, K]; None if all are, everywhere."""
    legal = getattr(model, "legal", None)
    if legal is None:
        return None
    if isinstance(legal, np.ndarray):
        return np.asarray(legal[states])
    try:
        mask = np.asarray(legal(arguments.frozen(states)))
    except Exception as error:
        state = "" if len(states) == 0 else f", the first of them {np.asarray(states[0]).tolist()}"
        text = f"legal raised {type(error).__name__}: {error} (for {len(states)} states{state})"
        raise ModelError(text) from error
    if mask.shape != (wanted := (len(states), model.actions)) or mask.dtype.kind != "b":
        text = f"legal must return booleans of shape {wanted} for {len(states)} states, got"
        raise ModelError(f"{text} {mask.dtype} of shape {mask.shape}")
    if not (some := mask.any(axis=1)).all():
        state = np.asarray(states[int(np.argmin(some))]).tolist()
        raise ModelError(f"legal leaves no action at state {state}, which is not terminal")
    return mask


def masked(q: Floats, mask: NDArray[np.bool_] | None) -> Floats:
    """Action values [n, K] with −∞ for illegal actions: no backup chooses these."""
    return q if mask is None else np.where(mask, q, -np.inf)


def random_actions(model: GenerativeModel, states: States, rng: np.random.Generator) -> Actions:
    """Uniformly drawn legal actions at states [n, ...]."""
    if isinstance(box := cast(Any, model).actions, Box):
        return rng.uniform(box.low, box.high, (len(states), *box.low.shape))
    mask = legal_actions(model, states)
    if mask is None:
        return rng.integers(model.actions, size=len(states))
    chosen = rng.integers(mask.sum(axis=1))  # drawn as without illegal actions
    return np.asarray((np.cumsum(mask, axis=1) > chosen[:, None]).argmax(axis=1))


def required_actions(model: GenerativeModel, states: States, actions: ArrayLike) -> Actions:
    """The actions at states [n, ...], if the model has them there; otherwise an error that names the first it lacks."""
    actions, box = np.asarray(actions), cast(Any, model).actions
    if isinstance(box, Box):
        actions = box.required("actions", actions) if len(states) else actions
        if len(states) != len(actions):
            raise ValueError(f"states and actions must match, got shapes {states.shape} and {actions.shape}")
        return actions
    if actions.ndim != 1 or actions.dtype.kind not in "iu" or states.shape[:1] != actions.shape:
        found = f"shapes {states.shape} and {actions.shape}, actions of dtype {actions.dtype}"
        raise ValueError(f"states [n, ...] and whole-numbered actions [n] must match, got {found}")
    if (unknown := (actions < 0) | (actions >= model.actions)).any():
        raise ValueError(f"actions must be in 0..{model.actions - 1}, got {actions[unknown][0]}")
    if len(actions) and (mask := legal_actions(model, states)) is not None:
        allowed = mask[np.arange(len(actions)), actions]
        if not allowed.all():
            row = int(np.argmin(allowed))
            name, state = action_names(model)[actions[row]], np.asarray(states[row]).tolist()
            raise ValueError(f"actions must be legal, got {name} at state {state}")
    return actions.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a model's step: for a batch of states, with the random generator as it was before."""

    states: States
    actions: Actions
    generator: NDArray[np.uint64]  # see `streams.generator_words`
    seed: int | None = None
    chunk: int | None = None
    row: int | None = None  # the row of the batch that is to blame, if known

    @property
    def rng(self) -> np.random.Generator:
        """A generator in the state before the call."""
        return streams.generator_from(self.generator)

    def place(self, outcome: str = "", model: "GenerativeModel | None" = None) -> str:
        """State, action, outcome and stream, in words."""
        stream = "" if self.seed is None else f", seed {self.seed}, chunk {self.chunk}"
        if self.row is None and len(self.actions) > 1:  # the row is unknown: naming one would blame it
            return f"in a batch of {len(self.actions):,} states{stream}"
        row = self.row or 0
        if len(state := str(self.states[row].tolist())) > 200:
            state = f"{state[:200]}…"
        action = self.actions[row].tolist()
        if model is not None and not isinstance(cast(Any, model).actions, Box):
            action = action_names(model)[action]
        return f"state {state}, action {action}{outcome}{stream}"

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(vars(self) | {"dtype": self.states.dtype.str}, default=np.ndarray.tolist)

    @classmethod
    def from_json(cls, text: str) -> "Call":
        """The call that an object describes. Nothing in it is evaluated."""
        try:
            fields = json.loads(text)
            dtype = np.dtype(str(fields["dtype"]))
            if dtype.kind not in "biuf":
                raise ValueError(f"states of dtype {dtype}")
            states, actions = np.array(fields["states"], dtype=dtype), np.array(fields["actions"])
            if actions.dtype.kind not in "if" or 0 in (actions.ndim, actions.size) or len(states) != len(actions):
                raise ValueError(f"states of shape {states.shape}, actions of shape {actions.shape}")
            words = np.array(fields["generator"], dtype=np.uint64)
            streams.generator_from(words)
            for name, most in {"seed": np.inf, "chunk": np.inf, "row": len(actions) - 1}.items():
                if fields[name] is not None:
                    arguments.whole(name, fields[name], least=0, most=most)
            return cls(states, actions, words, fields["seed"], fields["chunk"], fields["row"])
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"call must be one that an error of a simulator has written down: {error}") from error

    def part(self, first: int, last: int) -> "Call":
        """The call of some rows, with the generator of the whole batch."""
        return replace(self, states=self.states[first:last], actions=self.actions[first:last])

    def narrowed(self, model: "GenerativeModel") -> "Call":
        """The call of the row to blame, if the simulator makes one call at a time; otherwise the whole batch."""
        if self.row is None or len(self.actions) == 1 or not getattr(model.step, "one_at_a_time", False):
            return self
        rng = self.rng
        if self.row > 0:
            try:
                model.step(self.states[: self.row], self.actions[: self.row], rng)
            except Exception:  # it does not repeat itself: the generator's state at the row is unknown
                return self
        return replace(self.part(self.row, self.row + 1), generator=streams.generator_words(rng), row=0)

    def isolated(self, model: "GenerativeModel", kind: type[BaseException]) -> "Call":
        """The smallest part of the batch that is found to raise the same kind of error by itself: one row, if possible.

        Halves are stepped with the same generator for as long as one of them fails, together about twice the rows of
        the batch at most. A run does not count these calls.
        """
        count = len(self.actions)
        if count == 1:
            return replace(self, row=0)
        for half in (self.part(0, count // 2), self.part(count // 2, count)):
            try:
                model.step(arguments.frozen(half.states), arguments.frozen(half.actions), self.rng)
            except kind:
                return half.isolated(model, kind)
            except (Exception, SystemExit):
                continue
        return self


class SimulatorError(ModelError):
    """A simulator failed in the middle of a run, or contradicts its declarations.

    Attributes:
        call: the call that went wrong: `reproduce(model, error.call)` makes it again.
        partial: see `ModelError`.
        reward: a number outside of the declared range, if that is what was wrong.
    """

    reward: float | None = None

    def __init__(self, message: str, call: Call) -> None:
        super().__init__(message)
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.call), {"__notes__": getattr(self, "__notes__", [])}


watcher: ContextVar[Any] = ContextVar("watcher", default=None)
"""Watches this thread: is called with (states, actions, rng) before each batch is stepped, and its method `row` with a
row of the batch before that row is, if the simulator makes one call at a time."""


class Oracle:
    """The paper's ORACLE(s, a): the only way from a planner to a simulator. It counts and checks every call.

    A planner is given an oracle, not a model. Chunk c of a role has the oracle of (seed, role, c), so its draws do not
    depend on which worker runs it. Compiled code draws from `stream`, in which every compiled call counts itself.
    Whatever else a planner draws, such as actions, comes from `rng` or `stream` too. A call raises `Stopped` once the
    run is to stop. Different roles, the purposes of draws, are independent of each other.
    """

    def __init__(self, model: GenerativeModel, seed: int, chunk: int = 0, role: streams.Role = "samples") -> None:
        self.model = model
        self.seed, self.chunk, self.role = seed, chunk, role
        self.rng = streams.generator(seed, chunk, role)
        self.stream = streams.stream(seed, chunk, role)

    def of_chunk(self, chunk: int) -> "Oracle":
        """The oracle of another chunk of the same role."""
        return Oracle(self.model, self.seed, chunk, self.role)

    @property
    def calls(self) -> int:
        """Simulator calls made so far, compiled ones included."""
        return int(self.stream[streams.CALLS])

    def of_model(self, model: GenerativeModel) -> "Oracle":
        """The same draws and the same count of calls, of another model."""
        other = copy.copy(self)
        other.model = model
        return other

    def sample(self, states: States, actions: ArrayLike) -> Transition:
        """One simulator call per row: states [n, ...] and actions [n], or of the model's box."""
        states = np.asarray(states)
        actions = required_actions(self.model, states, actions)
        running, entered = stopping.current.get(), False
        try:
            entered = running is not None and running.enter_simulator()
            self.stream[streams.CALLS] += np.uint64(len(actions))
            return checked_step(self.model, states, actions, self.rng, (self.seed, self.chunk))
        except stopping.Stopped as stopped:
            self.stream[streams.CALLS] -= np.uint64(stopped.unmade)
            raise
        finally:
            if running is not None and entered:
                running.in_simulator = False
                if running.call_seconds is not None:
                    signal.setitimer(signal.ITIMER_REAL, 0.0)

    def sample_alike(self, batches: Iterable[tuple[States, ArrayLike]], start: Any = None) -> list[Transition]:
        """Samples batches (states [n, ...], actions [n]) in turn, with the same random numbers: row i sees the same.

        That holds as far as the simulator draws the same way from different states. Each batch begins with the
        generator in the state `start`, by default the present one, and the last one leaves it in the state after it.
        """
        bits, answers = self.rng.bit_generator, []
        start = bits.state if start is None else start
        for states, actions in batches:
            bits.state = start
            answers.append(self.sample(states, actions))
        return answers

    def saved(self) -> Arrays:
        """The state of its generators and the number of its calls, for `restore`."""
        return {"generator": streams.generator_words(self.rng), "stream": self.stream.copy()}

    def restore(self, arrays: Readable) -> None:
        """Continues a saved oracle."""
        self.stream[:] = arrays["stream"]
        self.rng.bit_generator.state = streams.generator_from(arrays["generator"]).bit_generator.state


def checked_step(
    model: GenerativeModel, states: States, actions: Actions, rng: np.random.Generator, origin: Any = (None, None)
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

    # Annotations of inner functions are evaluated at every call, unless they are strings.
    def failed_call(row: "int | None") -> Call:
        rng.bit_generator.state = before
        words, (seed, chunk) = streams.generator_words(rng), origin
        return Call(states.copy(), actions.copy(), words, seed, chunk, row).narrowed(model)

    try:
        given, chosen = np.asarray(states, order="C").view(), np.asarray(actions, order="C").view()
        given.flags.writeable = chosen.flags.writeable = False
        answer = model.step(given, chosen, rng)
    except (Exception, SystemExit) as error:
        if (row := vars(error).get(ROW)) is None and isinstance(error, ModelError):
            raise
        call = failed_call(row) if row is not None else failed_call(None).isolated(model, type(error))
        text = f"the simulator raised {type(error).__name__}: {error}"
        # NumPy's words if code for one number is given many.
        signs = ("truth value of a", "only length-1 arrays", "only 0-dimensional arrays", "only integer scalar arrays")
        if isinstance(error, ModelError):
            text = str(error)
        elif isinstance(error, ValueError) and "read-only" in str(error):
            text = "the simulator changes a state in place: it must not change its arguments"
        elif any(sign in str(error) for sign in signs):
            text += _scalar_hint(model)
        raise SimulatorError(f"{text} ({call.place(model=model)})", call) from error

    def wrong(text: str, rows: "NDArray[np.bool_] | None" = None) -> SimulatorError:
        row = None if rows is None else int(np.argmax(rows))
        call = failed_call(row)
        outcome = "" if row is None else f", reward {rewards[row]!s}, next state {next_states[row].tolist()}"
        return SimulatorError(f"{text} ({call.place(outcome, model)})", call)

    if not isinstance(answer, tuple) or len(answer) not in (2, 3, 4):
        raise wrong(f"step must return (next_states, rewards, terminals), got {type(answer).__name__}: {answer!r}")
    count = len(actions)
    next_states, rewards = np.asarray(answer[0]), np.asarray(answer[1])
    terminals = np.asarray(answer[2]) if len(answer) > 2 else np.zeros(count, dtype=np.bool_)
    if next_states.shape != states.shape:
        text = f"next_states must have the shape of states, {states.shape}, got {next_states.shape}"
        raise wrong(text + _scalar_hint(model))
    if next_states.dtype != states.dtype:
        hint = ""
        if states.dtype.kind in "iu" and next_states.dtype.kind == "f":
            start = states[0].astype(next_states.dtype).tolist()
            hint = f"; write the first state with decimal points, as {start}, if states are real numbers"
        raise wrong(f"next_states must have the dtype of states, {states.dtype}, got {next_states.dtype}{hint}")
    for name, values, kinds in (("rewards", rewards, "fiu"), ("terminals", terminals, "b")):
        if values.shape != (count,):
            raise wrong(f"{name} must have shape ({count},), got {values.shape}{_scalar_hint(model)}")
        if values.dtype.kind not in kinds:
            raise wrong(f"{name} must be {'numbers' if name == 'rewards' else 'booleans'}, got {values.dtype}")

    if len(answer) == 4:
        discounts = np.asarray(answer[3])
        if discounts.shape != (count,) or discounts.dtype.kind not in "fiu":
            raise wrong(f"discounts must be numbers of shape ({count},), got {discounts.dtype} of {discounts.shape}")
        if (rows := ~((discounts >= 0.0) & (discounts <= model.discount))).any():
            raise wrong(f"discount {discounts[rows][0]} is not between 0 and the declared {model.discount:g}", rows)
        if (discounts < model.discount).any() and (model.max_successors == 1 or not model.terminates):
            declared = f"terminates={model.terminates}, max_successors={model.max_successors}"
            raise wrong(f"a discount below {model.discount:g} ends episodes at random, which {declared} excludes")
        terminals = terminals | _killed(discounts, model.discount, rng)

    # Declared ends are exact numbers, so rewards are compared as the float64 that planners use: NumPy would round the
    # ends to the precision of the simulator.
    precision, rewards = rewards.dtype, rewards.astype(np.float64, copy=False)
    low, high = model.reward_range
    # A NaN fails both comparisons, so the bounds alone catch it.
    if not (rewards.min() >= low and rewards.max() <= high and np.isfinite(rewards).all()):
        rows = ~((rewards >= low) & (rewards <= high) & np.isfinite(rewards))
        rounds = precision.kind == "f" and precision.itemsize < 8
        hint = f"; {precision} rounds: declare the ends as float(np.{precision}(...))" if rounds else ""
        outside = wrong(f"reward {rewards[rows][0]} is outside the declared range [{low:g}, {high:g}]{hint}", rows)
        outside.reward = float(rewards[rows][0]) if np.isfinite(rewards[rows][0]) else None
        raise outside
    if model.reward_kind == "bernoulli" and (rows := (rewards != 0) & (rewards != 1)).any():
        raise wrong(f"reward {rewards[rows][0]} of a bernoulli model is neither 0 nor 1", rows)
    if next_states.dtype.kind in "fc" and not np.isfinite(next_states).all():
        raise wrong("the next state is not finite", ~np.isfinite(next_states).reshape(count, -1).all(axis=1))
    if not model.terminates and terminals.any():
        raise wrong("the next state is terminal in a model declared with terminates=False", terminals)
    return Transition(next_states, rewards, terminals)


def _killed(discounts: Floats, most: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which episodes end so that the rest are discounted by the declared γ, [n].

    E[R + d·V] = E[R + γ·1{U < d/γ}·V] for a uniform U: a discount d below γ is a survival with probability d/γ.
    """
    return (rng.random(len(discounts)) * most >= discounts) & (discounts < most)


def _scalar_hint(model: GenerativeModel) -> str:
    """Advice for a step that may be written for one state at a time, and is given many."""
    if not hasattr(model, "from_scalar") or getattr(model.step, "one_at_a_time", False):
        return ""
    return "; if step is written for one state at a time, use VectorModel.from_scalar(step, ...)"


def reproduce(model: GenerativeModel, call: Call | str) -> Transition:
    """Repeats a simulator call that failed, `SimulatorError.call` or its JSON, with the same random numbers.

    Raises:
        SimulatorError: it failed again.
    """
    if isinstance(call, str):
        call = Call.from_json(call)
    return checked_step(model, call.states, call.actions, call.rng, (call.seed, call.chunk))
