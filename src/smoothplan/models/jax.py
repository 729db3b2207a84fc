"""Models given by a simulator of one state in JAX; environments of gymnax, and functional environments of Gymnasium."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base import arguments
from smoothplan.base.compiling import paused_clock
from smoothplan.base.streams import generator
from smoothplan.models.copies import actions_of
from smoothplan.models.model import Box, Declarations, ModelError, States

LARGEST = 4**7
"""Rows that are computed at a time, at most. They are padded to a power of 4, so that few sizes are compiled."""


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
    also be a tuple, a dictionary or another pytree, with the structure of `initial_state`. Outside, it is a vector that
    holds all its numbers exactly, or an error. `ravel` and `unravel` convert one state.

    A reward or a discount equal to a declared end, rounded to its own precision, counts as that end: (-0.1, 1) means
    what it says in float32. If the outcome cannot depend on the key, by JAX's trace of the step at the `initial_state`,
    transitions and rewards are declared deterministic.

    Args:
        step: step(state, action, key) returns (next_state, reward, terminal, discount) of one state; the last, or the
            last two, may be omitted. An action is an int32, or of JAX's precision if actions are a `Box`. A step must
            be pure: it is traced and run twice, at the `initial_state` or else at the first call, and traced again
            before a new size of batches.
        **declarations: see `Declarations`. `legal` and `features` are functions of many states, such as `jax.vmap` of
            functions of one. Their argument has the structure of `step`'s state, with leaves [n, ...].

    >>> import jax
    >>> def drift(state, action, key):
    ...     moved = state + 0.1 * (2 * action - 1) + 0.01 * jax.random.normal(key)
    ...     return moved, jax.numpy.exp(-(moved**2))
    >>> model = JaxModel(drift, actions=2, discount=0.9, reward_range=(0, 1), terminates=False, initial_state=0.0)
    """

    step: Any

    def __post_init__(self) -> None:
        load_jax()
        step, start = self.step, self.initial_state
        if not callable(step):
            raise TypeError(f"step must be a function of (state, action, key), got {step!r}")
        if not isinstance(step, _Step):  # it is one if `dataclasses.replace` made this model of another
            form = None if start is None else _Form.of(start)
            start = None if form is None else form.ravel(start)
            # JAX remembers what a compiled function was traced to: without its wrapper, it can be traced again.
            step = _Step(step.__wrapped__ if hasattr(step, "lower") else step, form)
        vars(self).update(initial_state=start)
        for name in ("legal", "features"):
            if callable(given := getattr(self, name)) and not isinstance(given, _OfStates):
                vars(self)[name] = _OfStates(given, step.form)
        super().__post_init__()
        vars(self).update(step=replace(step, reward_range=self.reward_range, discount=self.discount))
        if start is not None:
            self._try(self.initial_state)
            if self.reward_kind == "bounded" and not self.step.draws:
                vars(self).update(reward_kind="deterministic", max_successors=1)

    def _try(self, state: NDArray[Any]) -> Any:
        action = self.actions.low if isinstance(self.actions, Box) else np.array(0)
        return self.step(state[None], action[None], generator(0))

    def ravel(self, state: Any) -> NDArray[Any]:
        """A state of `step` as it is outside, a NumPy array."""
        return (self.step.form or _Form.of(state)).ravel(state)

    def unravel(self, state: ArrayLike) -> Any:
        """A state from outside as it is in `step`, but with NumPy's arrays."""
        states = np.asarray(state)[None]
        form = self.step.form or _Form.of(states[0])
        return form.tree([leaf[0] for leaf in form.leaves(states)])


@dataclass(frozen=True)
class _Form:
    """The structure of a state: an array, or a pytree of arrays that is a vector outside."""

    example: Any

    @classmethod
    def of(cls, state: Any) -> "_Form":
        """The form of a state: numbers, arrays and lists of numbers are arrays."""
        tree = load_jax().tree_util
        state = np.asarray(state) if isinstance(state, list) else state
        form = cls(tree.tree_map_with_path(lambda path, leaf: _of_jax(tree.keystr(path), leaf), state))
        kinds = [leaf.dtype for leaf in form.parts]
        if not kinds:
            raise TypeError(f"initial_state must have a number, got {state!r}")
        if np.result_type(*kinds).kind == "f" and any(kind in (np.int64, np.uint64) for kind in kinds):
            raise TypeError(f"initial_state must fit into one type of NumPy, got {' and '.join(map(str, kinds))}")
        return form

    @property
    def parts(self) -> list[NDArray[Any]]:
        return list(load_jax().tree.leaves(self.example))

    def leaves(self, states: States) -> list[NDArray[Any]]:
        """The leaves [n, ...] of states [n, ...]."""
        parts = self.parts
        if parts[0] is self.example:
            return [_exact(states, parts[0].dtype)]
        columns = np.split(states, np.cumsum([part.size for part in parts])[:-1], axis=1)
        return [_exact(found, part.dtype).reshape(-1, *part.shape) for found, part in zip(columns, parts, strict=True)]

    def states(self, leaves: Sequence[NDArray[Any]]) -> States:
        """States [n, ...] with leaves [n, ...]."""
        if self.parts[0] is self.example:
            return leaves[0]
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    def tree(self, leaves: Sequence[Any]) -> Any:
        tree = load_jax().tree
        return tree.unflatten(tree.structure(self.example), leaves)

    def ravel(self, state: Any) -> NDArray[Any]:
        tree = load_jax().tree
        state = np.asarray(state) if isinstance(state, list) else state
        if tree.structure(state) != tree.structure(self.example):
            raise TypeError(f"state must have the structure of {self.example!r}, got {state!r}")
        pairs = zip(tree.leaves(state), self.parts, strict=True)
        return np.asarray(self.states([_exact(np.asarray(leaf), part.dtype)[None] for leaf, part in pairs])[0])


def _of_jax(place: str, value: Any) -> NDArray[Any]:
    """A number or an array with the type that JAX would give it."""
    jax = load_jax()
    kind = getattr(value, "dtype", None) or np.asarray(value).dtype  # keys of JAX have a type that NumPy lacks
    if getattr(kind, "kind", "") not in ("b", "i", "u", "f"):
        raise TypeError(f"initial_state{place} must be numbers of a type that NumPy has, got {value!r}")
    return _exact(np.asarray(value), jax.dtypes.canonicalize_dtype(kind))


def _exact(values: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Values of a type; real numbers may be rounded, whole ones may not."""
    found = values.astype(kind, copy=False)
    if kind.kind != "f" and values.dtype != kind and (wrong := found != values).any():
        raise ModelError(f"states must have {kind} for JAX here, got {values[wrong].reshape(-1)[0]}")
    return found


def _in_pieces(function: Callable[..., Any], rows: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The results [n, ...] of function(first, *rows) for rows [n, ...], in pieces of few sizes; last rows repeat."""
    count, pieces = len(rows[0]), []  # JAX computes one piece while we prepare the next
    for first in range(0, count, LARGEST):
        given = [each[first : first + LARGEST] for each in rows]
        missing = 4 ** ((len(given[0]) - 1).bit_length() + 1 >> 1) - len(given[0])
        if missing > 0:
            given = [np.concatenate([each, np.repeat(each[-1:], missing, axis=0)]) for each in given]
        pieces.append(function(first, *given))
    parts = [[np.asarray(each) for each in part] for part in zip(*pieces, strict=True)]
    return [(part[0] if len(part) == 1 else np.concatenate(part))[:count] for part in parts]


@dataclass(frozen=True)
class _OfStates:
    """A function of a batch of states as they are outside, by one of states as they are in the step."""

    function: Any
    form: _Form | None

    def __call__(self, states: States) -> NDArray[Any]:
        form = self.form or _Form.of(states[0])
        return _in_pieces(lambda _, *leaves: [self.function(form.tree(leaves))], form.leaves(states))[0]


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

        def run(first: int, *rows: NDArray[Any]) -> Any:
            size = types, len(rows[0])
            if size in self.compiled:
                return self.compiled[types].many(np.append(seed, np.uint32(first)), *rows)
            with paused_clock():
                self._checked(types, form, [each[:1] for each in rows])
                found = self.compiled[types].many(np.append(seed, np.uint32(first)), *rows)
            self.compiled[size] = None
            return found

        results = _in_pieces(run, rows)
        next_states, outcome = form.states(results[: len(rows) - 1]), results[len(rows) - 1 :]
        if np.can_cast(next_states.dtype, states.dtype, "same_kind"):  # states of a user may be float64
            next_states = next_states.astype(states.dtype, copy=False)
        ends = [self.reward_range, (), (0.0, self.discount)]
        return next_states, *[_snapped(each, end) for each, end in zip(outcome, ends, strict=False)]

    def _one(self, form: _Form, key: Any, *row: Any) -> list[Any]:
        """Leaves of the next state, reward and so on, of a row: the leaves of a state and an action."""
        jax = load_jax()
        state = form.tree(row[:-1])
        answer = self.function(state, row[-1], key)
        if not isinstance(answer, tuple) or len(answer) not in (2, 3, 4):
            raise ModelError(f"step must return (next_state, reward, terminal), got {arguments.shown(answer)}")
        wanted, found, *single = (
            str(jax.tree.map(lambda leaf: jax.typeof(jax.numpy.asarray(leaf)).str_short(), each))
            for each in (state, *answer)
        )
        if wanted != found:
            hint = "; write an initial_state of real numbers with decimal points" if "int" in wanted else ""
            raise ModelError(f"next_state must have the form of state, {wanted}, got {found}{hint}")
        for name, kind in zip(("reward", "terminal", "discount"), single, strict=False):
            if not kind.endswith("[]"):
                raise ModelError(f"{name} must be one number, got {kind}")
        return [*jax.tree.leaves(answer[0]), *answer[1:]]

    @property
    def draws(self) -> bool:
        """Whether the outcome may be random: it depends on the key, or a discount may end the episode."""
        from jax.interpreters.partial_eval import dce_jaxpr

        (traced,) = filter(None, self.compiled.values())
        outcomes = len(traced.jaxpr.outvars)
        return outcomes == len(traced.jaxpr.invars) + 1 or dce_jaxpr(traced.jaxpr, [True] * outcomes)[1][0]

    def _checked(self, types: Any, form: _Form, row: list[NDArray[Any]]) -> None:
        """Traces the step for rows like this one; an error if it is not pure.

        Batches of all sizes are computed by the first trace. Before a new one, the step must still give it.
        """
        jax, place = load_jax(), f"state {form.states(row[:-1])[0].tolist()}, action {row[-1][0]}"
        given, before = (np.zeros(3, dtype=np.uint32), *row), self.compiled.get(types)
        try:
            traced = [_Traced.of(partial(self._one, form), row) for _ in range(2 if before is None else 1)]
            first, second = [before or traced[0], traced[-1]]
            same = first.agrees(second)
            # A function of Python that JAX calls back is no part of a trace, so its results are compared, too.
            twice = () if same and before else (first, first if same else second)
            outcomes = [jax.device_get(each.many(*given)) for each in twice]
        except ModelError:
            raise
        except Exception as error:  # whatever JAX, or the step, raises
            reason = str(error).partition("\n")[0]
            raise ModelError(f"JAX cannot run step: {type(error).__name__}: {reason} ({place})") from error
        if not same or (outcomes and not all(map(partial(np.array_equal, equal_nan=True), *outcomes))):
            ends = [(form.states(each[: len(row) - 1])[0].tolist(), float(each[len(row) - 1][0])) for each in outcomes]
            results = f"two different results: (next state, reward) {ends[0]} and {ends[1]} ({place})"
            raise ModelError(f"step must be pure, but the same state, action and key gave {results}")
        self.compiled[types] = first


class _Traced(NamedTuple):
    """What a step of one row computes, and the compiled function of a seed, the first row's number, and rows."""

    jaxpr: Any
    consts: Any
    many: Any

    @classmethod
    def of(cls, one: Callable[..., Any], row: list[NDArray[Any]]) -> "_Traced":
        from jax.extend.core import jaxpr_as_fun

        jax = load_jax()
        words = partial(jax.random.wrap_key_data, impl="threefry2x32")
        traced = jax.make_jaxpr(lambda *given: one(*given))(words(np.zeros(2, np.uint32)), *(each[0] for each in row))

        def many(seed: Any, *rows: Any) -> Any:
            numbers = seed[2] + jax.numpy.arange(len(rows[-1]), dtype=np.uint32)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(words(seed[:2]), numbers)
            return jax.vmap(jaxpr_as_fun(traced))(keys, *rows)

        return cls(traced.jaxpr, traced.consts, jax.jit(many))

    def agrees(self, other: "_Traced") -> bool:
        texts = {re.sub("0x[0-9a-fX]+", "", str(each.jaxpr)) for each in (self, other)}
        return len(texts) == 1 and all(map(np.array_equal, self.consts, other.consts))


def _snapped(numbers: NDArray[Any], ends: tuple[float, ...]) -> NDArray[Any]:
    """Numbers [n] in float64; one that is a declared end, rounded to its own precision, becomes that end."""
    if not ends or numbers.dtype.kind in "biu":
        return numbers
    found = numbers.astype(np.float64)
    for end in ends:
        rounded = float(np.asarray(end).astype(numbers.dtype))
        if rounded != end:
            found[found == rounded] = end
    return found


def from_gymnax(
    environment: Any,
    params: Any = None,
    *,
    discount: float,
    time_limit: bool = True,
    seed: int = 0,
    **declarations: Any,
) -> JaxModel:
    """A generative model of an environment of gymnax.

    A state is the whole state, the time included: planners may see more than an observation tells, and an episode ends
    at the environment's time limit. The limit is declared as `horizon`, so that `discount=1.0` is allowed.

    Args:
        environment: an id such as "CartPole-v1", or an environment.
        params: its parameters; the default ones by default.
        discount: γ.
        time_limit: False takes the time out of the state, `state.replace(time=None)`: values are those of the endless
            problem. It is right only if the environment uses the time for its limit alone.
        seed: of the reset whose state is the `initial_state`. `model.ravel(state)` makes one of any other state.
        **declarations: see `Declarations`. The range of the rewards is unknown unless `reward_range` is given.
    """
    jax = load_jax()
    if isinstance(environment, str):
        try:
            import gymnax  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError as error:
            raise ImportError(f"gymnax makes environments of ids: pip install gymnax ({error})") from None
        environment, defaults = gymnax.make(environment)
    else:
        defaults = environment.default_params
    params = defaults if params is None else params
    _, state = jax.jit(environment.reset_env)(jax.random.key(seed), params)
    step = partial(_gymnax_step, environment, params, None if time_limit else state.time)
    limit = int(params.max_steps_in_episode)
    declared = {"actions": actions_of(environment.action_space(params)), "discount": discount}
    if not arguments.flag("time_limit", time_limit):
        return JaxModel(step, initial_state=state.replace(time=None), **declared | declarations)
    model = JaxModel(step, initial_state=state, **declared | {"horizon": limit} | declarations)
    late = state.replace(time=jax.numpy.full_like(state.time, limit - 1))
    kept = "horizon" in declarations or model._try(model.ravel(late))[2][0]
    return model if kept else replace(model, horizon=None)


def _gymnax_step(environment: Any, params: Any, clock: Any, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any]:
    """A step of gymnax, without resets. The clock is the time of every step, or None if it is a part of the state."""
    given = state if clock is None else state.replace(time=clock)
    _, following, reward, done, _ = environment.step_env(key, given, action, params)
    if clock is not None:
        following = following.replace(time=None)
    elif hasattr(environment, "is_truncated"):  # newer versions tell apart what ends an episode
        done = done | environment.is_truncated(following, params)
    return following, reward * 1.0, done  # some rewards are truth values


def from_functional(environment: Any, **declared: Any) -> JaxModel:
    """A generative model of a functional environment of Gymnasium. The reward range is unknown unless declared."""
    functional = environment.unwrapped.func_env
    start = functional.initial(load_jax().random.key(0))
    return JaxModel(partial(_functional_step, functional), initial_state=start, **declared)


def _functional_step(functional: Any, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any]:
    """The step of a functional environment of Gymnasium, whose functions share one key."""
    action = action + getattr(functional.action_space, "start", 0)
    following = functional.transition(state, action, key)
    return following, functional.reward(state, action, following, key), functional.terminal(following, key)
