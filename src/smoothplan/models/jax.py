"""Models given by a simulator of one state in JAX; environments of gymnax, and functional environments of Gymnasium."""

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base import arguments
from smoothplan.base.compiling import paused_clock
from smoothplan.base.streams import generator
from smoothplan.models.model import Box, Declarations, ModelError, States

if TYPE_CHECKING:
    import gymnasium

SMALL, LARGEST = 4**6, 4**8
"""Rows that are computed at a time are padded to a power of 4, the largest at most. More than the small number are
divided where padding would more than double them."""


@cache
def load_jax() -> Any:
    """JAX, whose import `working_time` leaves out."""
    try:
        with paused_clock():
            import jax
    except ImportError:
        raise ImportError('a model in JAX needs it: pip install "smoothplan[jax]"') from None
    return jax


@dataclass(frozen=True, eq=False)
class JaxModel(Declarations):
    """A simulator of one state, written in JAX. It is compiled, and computes many states at a time.

    Outside, states are NumPy arrays of JAX's precision: float32 unless `jax_enable_x64` is set. The state of `step` may
    also be a tuple, a dictionary or another pytree of numbers and arrays, with the structure of `initial_state`.
    Outside, it is then a vector that holds all its numbers exactly; if NumPy has no type for that, it is refused.
    `ravel` and `unravel` convert one state.

    A reward equal to an end of `reward_range` rounded to the reward's own precision counts as that end, so that (-0.1,
    1) means what it says in float32. This changes a reward by one rounding at most. Any other reward outside the range
    is an error. The same holds for a discount.

    Args:
        step: step(state, action, key) returns (next_state, reward, terminal, discount) of one state; the last, or the
            last two, may be omitted. An action is an int32, or of JAX's precision if actions are a `Box`. A step must
            be pure. It is traced and run twice to see that, at the `initial_state` or else at the first call.
        **declarations: see `Declarations`. `legal` is a function of many states, such as `jax.vmap` of a function of
            one. Its argument has the structure of `step`'s state, with leaves [n, ...].

    >>> import jax
    >>> def drift(state, action, key):
    ...     moved = state + 0.1 * (2 * action - 1) + 0.01 * jax.random.normal(key)
    ...     return moved, jax.numpy.exp(-(moved**2))
    >>> model = JaxModel(drift, actions=2, discount=0.9, reward_range=(0, 1), terminates=False, initial_state=0.0)
    """

    step: Any

    def __post_init__(self) -> None:
        load_jax()
        step, start, legal = self.step, self.initial_state, self.legal
        if not callable(step):
            raise TypeError(f"step must be a function of (state, action, key), got {step!r}")
        if not isinstance(step, _Step):  # it is one if `dataclasses.replace` made this model of another
            form = None if start is None else _Form.of(start)
            start = None if form is None else form.ravel(start)
            # JAX remembers what a compiled function was traced to: without its wrapper, it can be traced again.
            step = _Step(step.__wrapped__ if hasattr(step, "lower") else step, form)
        if callable(legal) and not isinstance(legal, _Legal):
            legal = _Legal(legal, step.form)
        vars(self).update(initial_state=start, legal=legal)
        super().__post_init__()
        vars(self).update(step=replace(step, reward_range=self.reward_range, discount=self.discount))
        if start is not None:
            self._try(self.initial_state)

    def _try(self, state: NDArray[Any]) -> Any:
        """The outcomes [1] of an action."""
        action = self.actions.low if isinstance(self.actions, Box) else np.array(0)
        return self.step(state[None], action[None], generator(0))

    def ravel(self, state: Any) -> NDArray[Any]:
        """A state of `step` as it is outside, a NumPy array."""
        return (self.step.form or _Form.of(state)).ravel(state)

    def unravel(self, state: ArrayLike) -> Any:
        """A state from outside as it is in `step`, but with NumPy's arrays."""
        found = np.asarray(state)
        return (self.step.form or _Form.of(found)).unravel(found)


@dataclass(frozen=True)
class _Form:
    """The structure of a state: an array, or a pytree of arrays that is a vector outside."""

    example: Any

    @classmethod
    def of(cls, state: Any) -> "_Form":
        """The form of a state: numbers, arrays and lists of numbers are arrays."""
        tree = load_jax().tree_util
        if isinstance(state, list) or np.isscalar(state):
            state = np.asarray(state)
        example = tree.tree_map_with_path(lambda path, leaf: _of_jax(f"initial_state{tree.keystr(path)}", leaf), state)
        kinds = [leaf.dtype for leaf in tree.tree_leaves(example)]
        if not kinds:
            raise TypeError(f"initial_state must have a number, got {state!r}")
        if np.result_type(*kinds).kind == "f" and any(kind.kind in "iu" and kind.itemsize == 8 for kind in kinds):
            raise TypeError(f"initial_state must fit into one type of NumPy, got {' and '.join(map(str, kinds))}")
        return cls(example)

    @property
    def is_array(self) -> bool:
        return isinstance(self.example, np.ndarray)

    def leaves(self, states: States) -> list[NDArray[Any]]:
        """The leaves [n, ...] of states [n, ...]."""
        parts = load_jax().tree.leaves(self.example)
        if self.is_array:
            return [_exact(states, parts[0].dtype)]
        columns = np.split(states, np.cumsum([part.size for part in parts])[:-1], axis=1)
        return [_exact(found, part.dtype).reshape(-1, *part.shape) for found, part in zip(columns, parts, strict=True)]

    def states(self, leaves: list[NDArray[Any]]) -> States:
        """States [n, ...] with leaves [n, ...]."""
        if self.is_array:
            return leaves[0]
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    def tree(self, leaves: list[Any]) -> Any:
        """The pytree with such leaves."""
        tree = load_jax().tree
        return tree.unflatten(tree.structure(self.example), leaves)

    def ravel(self, state: Any) -> NDArray[Any]:
        """One state as it is outside."""
        tree = load_jax().tree
        if self.is_array:
            return _exact(np.asarray(state), self.example.dtype)
        if tree.structure(state) != tree.structure(self.example):
            raise TypeError(f"state must have the structure of {self.example!r}, got {state!r}")
        pairs = zip(tree.leaves(state), tree.leaves(self.example), strict=True)
        return self.states([_exact(np.asarray(leaf), part.dtype)[None] for leaf, part in pairs])[0]

    def unravel(self, state: NDArray[Any]) -> Any:
        """One state as it is in the step."""
        return self.tree([leaf[0] for leaf in self.leaves(state[None])])


def _of_jax(name: str, value: Any) -> NDArray[Any]:
    """A number or an array with the type that JAX would give it."""
    try:
        found = np.asarray(value)
    except (TypeError, ValueError):  # keys of JAX, lists of several lengths
        found = np.empty(0, dtype=object)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be numbers that NumPy has a type for, got {value!r}")
    return _exact(found, load_jax().dtypes.canonicalize_dtype(found.dtype))


def _exact(values: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Values of a type; real numbers may be rounded, whole ones may not."""
    found = values.astype(kind, copy=False)
    if kind.kind in "biu" and values.dtype != kind and not np.array_equal(found, values):
        wrong = values[found != values][0] if values.ndim else values
        raise ModelError(f"states must be of JAX's type {kind} there, got {wrong}")
    return found


def _padded(rows: NDArray[Any], size: int) -> NDArray[Any]:
    """Rows [size, ...], of which the last is repeated."""
    return rows if len(rows) == size else np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])


def _pieces(count: int) -> Iterator[tuple[int, int, int]]:
    """Pieces (first, last, size) of so many rows, to be padded to a size, of which there are few."""
    first = 0
    while first < count:
        size = min(4 ** ((count - first - 1).bit_length() + 1 >> 1), LARGEST)
        if count - first <= size // 2 and size > SMALL:
            size //= 4
        yield first, min(first + size, count), size
        first += size


def _joined(pieces: Sequence[Any], count: int) -> NDArray[Any]:
    """The rows of pieces, [count, ...], without what they were padded with."""
    found = [np.asarray(piece) for piece in pieces]
    return np.concatenate(found)[:count] if len(found) > 1 else found[0][:count]


@dataclass(frozen=True)
class _Legal:
    """A function of states, with batches of few sizes."""

    function: Any
    form: _Form | None

    def __call__(self, states: States) -> NDArray[Any]:
        form = self.form or _Form.of(states[0])
        pieces = [form.leaves(_padded(states[first:last], size)) for first, last, size in _pieces(len(states))]
        return _joined([self.function(form.tree(leaves)) for leaves in pieces], len(states))


@dataclass(frozen=True, eq=False)
class _Step:
    """The step of n states by that of one, compiled when it is first called, in every process."""

    function: Any
    form: _Form | None
    reward_range: tuple[float, float] = (-np.inf, np.inf)
    discount: float = 1.0
    compiled: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # by the types of rows

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"compiled": {}}

    def __call__(self, states: States, actions: NDArray[Any], rng: np.random.Generator) -> tuple[Any, ...]:
        form, kind = self.form or _Form.of(states[0]), load_jax().dtypes.canonicalize_dtype(actions.dtype)
        rows, seed = [*form.leaves(states), actions.astype(kind)], rng.integers(2**32, size=2, dtype=np.uint32)
        types = tuple([(each.dtype, each.shape[1:]) for each in rows])
        if types not in self.compiled:
            with paused_clock():
                self.compiled[types] = self._checked(form, [each[:1] for each in rows])
        pieces = []  # JAX computes one while we prepare the next
        for first, last, size in _pieces(len(states)):
            given = np.append(seed, np.uint32(first)), *[_padded(each[first:last], size) for each in rows]
            with nullcontext() if (types, size) in self.compiled else paused_clock():
                pieces.append(self.compiled[types](*given))
            self.compiled[types, size] = None
        parts = [_joined(part, len(states)) for part in zip(*pieces, strict=True)]
        next_states, outcome = form.states(parts[: len(rows) - 1]), parts[len(rows) - 1 :]
        if np.can_cast(
            next_states.dtype, states.dtype, "same_kind"
        ):  # a state from elsewhere may be of higher precision
            next_states = next_states.astype(states.dtype, copy=False)
        ends = [self.reward_range, (), (0.0, self.discount)]
        return next_states, *[_snapped(each, end) for each, end in zip(outcome, ends, strict=False)]

    def _checked(self, form: _Form, row: list[NDArray[Any]]) -> Any:
        """The compiled function of a seed, the number of the first row, and rows; an error if the step is not pure."""
        jax = load_jax()

        def one(key: Any, *row: Any) -> list[Any]:
            answer = self.function(form.tree(row[:-1]), row[-1], key)
            if not isinstance(answer, tuple) or len(answer) not in (2, 3, 4):
                raise ModelError(f"step must return (next_state, reward, terminal), got {arguments.shown(answer)}")
            wanted, found = [_types(state) for state in (form.tree(list(row[:-1])), answer[0])]
            if wanted != found:
                hint = "; write an initial_state of real numbers with decimal points" if "int" in wanted else ""
                raise ModelError(f"next_state must have the form of state, {wanted}, got {found}{hint}")
            for name, value in zip(("reward", "terminal", "discount"), answer[1:], strict=False):
                if jax.numpy.shape(value) != ():
                    raise ModelError(f"{name} must be one number, got shape {jax.numpy.shape(value)}")
            return [*jax.tree.leaves(answer[0]), *answer[1:]]

        def many(*given: Any) -> Any:
            (*seed, first), *rows = given
            key = jax.random.wrap_key_data(jax.numpy.stack(seed), impl="threefry2x32")
            numbers = first + jax.numpy.arange(len(rows[-1]), dtype=np.uint32)
            return jax.vmap(one)(jax.vmap(jax.random.fold_in, (None, 0))(key, numbers), *rows)

        given = [np.zeros(3, dtype=np.uint32), *row]
        place = f"state {form.states(row[:-1])[0].tolist()}, action {row[-1][0]}"
        compiled = [jax.jit(lambda *given: many(*given)) for _ in range(2)]
        try:
            traced = [each.trace(*given).jaxpr for each in compiled]
            texts = [re.sub("0x[0-9a-fX]+", "", str(each)) for each in traced]
            same = texts[0] == texts[1] and all(map(np.array_equal, traced[0].consts, traced[1].consts))
            outcomes = [jax.device_get(compiled[number](*given)) for number in (0, 0 if same else 1)]
        except ModelError:
            raise
        except Exception as error:  # whatever JAX, or the step, raises
            reason = str(error).partition("\n")[0]
            raise ModelError(f"JAX cannot run step: {type(error).__name__}: {reason} ({place})") from error
        if not same or not all(np.array_equal(*pair, equal_nan=True) for pair in zip(*outcomes, strict=True)):
            (ahead, paid), (other_ahead, other_paid) = (
                (form.states(each[: len(row) - 1])[0].tolist(), each[len(row) - 1][0]) for each in outcomes
            )
            raise ModelError(
                "step must be pure, and it gave two different results for the same state, action and key: reward "
                f"{paid} and next state {ahead}, then {other_paid} and {other_ahead} ({place})"
            )
        return compiled[0]


def _types(state: Any) -> str:
    """The structure of a state and the types of its leaves, in words."""
    jax = load_jax()
    return str(jax.tree.map(lambda leaf: jax.typeof(jax.numpy.asarray(leaf)).str_short(), state))


def _snapped(numbers: Any, ends: tuple[float, ...]) -> NDArray[Any]:
    """Numbers [n] in float64; one that is a declared end, rounded to its own precision, becomes that end."""
    if not ends or numbers.dtype.kind in "biu":
        return np.asarray(numbers)
    found = numbers.astype(np.float64)
    for end in ends:
        found[numbers == np.asarray(end).astype(numbers.dtype)] = end
    return found


def from_gymnax(
    environment: Any, params: Any = None, *, discount: float, seed: int = 0, **declarations: Any
) -> JaxModel:
    """A generative model of an environment of gymnax.

    A state is the whole state of the environment, so a planner sees more than an observation may tell. The time is a
    part of it, and an episode that reaches the time limit ends: what comes after is worth 0. If the environment has
    such a limit, `horizon` is declared, so that `discount=1.0` is allowed.

    Args:
        environment: an id such as "CartPole-v1", or an environment.
        params: its parameters; the default ones by default.
        discount: γ.
        seed: of the reset whose state is the `initial_state`. `model.ravel(state)` makes one of any other state.
        **declarations: see `Declarations`. The range of the rewards is unknown unless `reward_range` is given.
    """
    jax = load_jax()
    if isinstance(environment, str):
        try:
            import gymnax
        except ImportError:
            raise ImportError("gymnax makes environments of ids, and it is missing: pip install gymnax") from None
        environment, defaults = gymnax.make(environment)
    else:
        defaults = environment.default_params
    params = defaults if params is None else params
    _, state = jax.jit(environment.reset_env)(jax.random.key(seed), params)
    limit = int(params.max_steps_in_episode)
    declared = {"actions": _actions(environment.name, environment.action_space(params)), "initial_state": state}
    declared |= {"discount": discount, "horizon": limit} | declarations
    model = JaxModel(_Gymnax(environment, params), **declared)
    if "horizon" not in declarations:
        late = model.ravel(state.replace(time=jax.numpy.full_like(state.time, limit - 1)))
        _, _, ended = model._try(late)
        model = model if ended[0] else replace(model, horizon=None)
    return model


@dataclass(frozen=True)
class _Gymnax:
    """The step of an environment of gymnax, without its resets."""

    environment: Any
    params: Any

    def __call__(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any]:
        _, state, reward, done, _ = self.environment.step_env(key, state, action, self.params)
        return state, reward * 1.0, done  # some rewards are truth values


def from_functional(environment: "gymnasium.Env[Any, Any]", name: str, **declared: Any) -> JaxModel:
    """A generative model of a functional environment of Gymnasium. The reward range is unknown unless declared."""
    functional: Any = environment.unwrapped.func_env  # type: ignore[attr-defined]
    actions, start = _actions(name, functional.action_space), functional.initial(load_jax().random.key(0))
    return JaxModel(_Functional(functional), actions=actions, initial_state=start, **declared)


@dataclass(frozen=True)
class _Functional:
    """The step of a functional environment of Gymnasium, whose functions share one key."""

    functional: Any

    def __call__(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any]:
        action = action + getattr(self.functional.action_space, "start", 0)
        following = self.functional.transition(state, action, key)
        reward = self.functional.reward(state, action, following, key)
        return following, reward, self.functional.terminal(following, key)


def _actions(name: str, space: Any) -> Any:
    """The number of actions of a space, or their box."""
    if hasattr(space, "n"):
        return int(space.n)
    if hasattr(space, "low") and np.issubdtype(space.dtype, np.floating):
        return Box(
            *(np.broadcast_to(np.asarray(end, dtype=np.float64), space.shape) for end in (space.low, space.high))
        )
    raise ValueError(f"{name} must have numbered actions, or actions in a box of real numbers, got {space}")
