"""Models given by a simulator of one state in JAX; environments of gymnax, and functional environments of Gymnasium."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base import arguments
from smoothplan.base.compiling import paused_clock
from smoothplan.base.streams import generator
from smoothplan.models.model import Box, Declarations, ModelError, States

if TYPE_CHECKING:
    import gymnasium

LARGEST = 4_096
"""Rows that are computed at a time. Fewer are padded to a power of 4, so that only seven sizes are compiled."""


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
            action = self.actions.low if isinstance(self.actions, Box) else np.array(0)
            self.step(self.initial_state[None], action[None], generator(0))

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
        return [
            _exact(found, part.dtype).reshape(-1, *part.shape) for found, part in zip(columns, parts, strict=True)
        ]

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


def _size(count: int) -> int:
    """The least power of 4 that is not smaller."""
    return 1 << 2 * ((count - 1).bit_length() + 1 >> 1)


@dataclass(frozen=True)
class _Legal:
    """A function of states, with batches of few sizes."""

    function: Any
    form: _Form | None

    def __call__(self, states: States) -> NDArray[Any]:
        form = self.form or _Form.of(states[0])
        leaves = form.leaves(_padded(states, _size(len(states))))
        return np.asarray(self.function(form.tree(leaves)))[: len(states)]


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
        types = tuple((each.dtype, each.shape[1:]) for each in rows)
        if types not in self.compiled:
            with paused_clock():
                self.compiled[types] = self._checked(form, seed, [each[:1] for each in rows])
        pieces = []  # JAX computes one while we prepare the next
        for first in range(0, len(states), LARGEST):
            piece = [each[first : first + LARGEST] for each in rows]
            size = _size(len(piece[0]))
            with nullcontext() if (types, size) in self.compiled else paused_clock():
                found = self.compiled[types](seed, np.uint32(first), *[_padded(each, size) for each in piece])
            self.compiled[types, size] = True
            pieces.append([each[: len(piece[0])] for each in found])
        parts = [np.concatenate(part) if len(part) > 1 else np.asarray(part[0]) for part in zip(*pieces, strict=True)]
        next_states, outcome = form.states(parts[: len(rows) - 1]), parts[len(rows) - 1 :]
        if np.can_cast(next_states.dtype, states.dtype, "same_kind"):  # a state from elsewhere may be of higher precision
            next_states = next_states.astype(states.dtype, copy=False)
        ends = [self.reward_range, (), (0.0, self.discount)]
        return next_states, *[_snapped(each, end) for each, end in zip(outcome, ends, strict=False)]

    def _checked(self, form: _Form, seed: NDArray[Any], row: list[NDArray[Any]]) -> Any:
        """The compiled function of a seed, the number of the first row, and rows; an error if the step is not pure."""
        jax = load_jax()

        def one(key: Any, *row: Any) -> list[Any]:
            answer = self.function(form.tree(row[:-1]), row[-1], key)
            if not isinstance(answer, tuple) or len(answer) not in (2, 3, 4):
                raise ModelError(f"step must return (next_state, reward, terminal), got {arguments.shown(answer)}")
            wanted, found = ([_types(state) for state in (form.tree(list(row[:-1])), answer[0])])
            if wanted != found:
                raise ModelError(f"next_state must have the form of state, {wanted}, got {found}")
            for name, value in zip(("reward", "terminal", "discount"), answer[1:], strict=False):
                if jax.numpy.shape(value) != ():
                    raise ModelError(f"{name} must be one number, got shape {jax.numpy.shape(value)}")
            return [*jax.tree.leaves(answer[0]), *answer[1:]]

        def many(*given: Any) -> Any:
            seed, first, *rows = given
            key, numbers = jax.random.wrap_key_data(seed, impl="threefry2x32"), jax.numpy.arange(len(rows[-1]))
            keys = jax.vmap(lambda number: jax.random.fold_in(key, first + number.astype(np.uint32)))(numbers)
            return jax.vmap(one)(keys, *rows)

        given = [seed, np.uint32(0), *row]
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
            raise ModelError(f"JAX cannot run step: {type(error).__name__}: {error} ({place})") from error
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
