"""Gymnasium environments as generative models: by tables, by assigning their state, by snapshots or by copies.

`Player` steps the real environment, for `act`.
"""

import copy
import enum
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, frozen
from smoothplan.models.copies import CannotCopyError, Copies, Store, actions_of, layers, library
from smoothplan.models.derived import at_stage, finite_horizon
from smoothplan.models.jax import JaxModel, from_functional
from smoothplan.models.model import GenerativeModel, ModelError, States, horizon_of, legal_actions, random_actions
from smoothplan.models.snapshots import Restore, Snapshot, Snapshots, Ways, known_ways
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import JitModel, Step, VectorModel
from smoothplan.models.zoo import cart_pole_step, mountain_car_step

if TYPE_CHECKING:
    import gymnasium

Legal = Callable[[Any], Any]
"""legal(environment) → which actions are legal in its present state, booleans [K]."""


def from_gymnasium(
    environment: "str | gymnasium.Env[Any, Any]",
    *,
    discount: float = 0.99,
    horizon: int | None = None,
    legal: bool | Legal = True,
    reward_range: tuple[float, float] | None = None,
    value_range: tuple[float, float] | None = None,
    snapshot: Snapshot | None = None,
    restore: Restore | None = None,
    state_bytes: int | None = None,
    **options: Any,
) -> GenerativeModel:
    """A generative model of a Gymnasium environment. Its actions are finitely many, or a `Box` of finite ends.

    An environment with a transition table (`env.unwrapped.P`) becomes a `TabularModel` with the same state numbers. One
    whose whole state is `env.unwrapped.state` becomes a `VectorModel` that assigns it; CartPole and MountainCar with
    default parameters are compiled, and differ in the last digits only. A functional one, "phys2d/CartPole-v1",
    becomes a `JaxModel`. MuJoCo's, Atari's, and any with `snapshot` and `restore`, take their saved state back. Any
    other is copied: a state is its content in bytes. `state_of` gives the state of a real environment.

    Wrappers that translate actions or rewards go with an assigned or saved state; with others the environment is copied
    as a whole. The environment passed is not changed. Time limits of Gymnasium's wrapper are dropped unless there is a
    horizon; one of the environment's own ends an episode if states are copies or snapshots, which know when.

    Args:
        environment: an id such as "FrozenLake-v1", or an environment.
        discount: γ. With 1, episodes end at the environment's time limit, or after `horizon` steps.
        horizon: an episode ends after that many steps, and its state has the steps left, see `finite_horizon`. By
            default none, or the time limit with discount=1.
        legal: whether the model has only the actions that a method of the environment, such as action_masks, calls
            legal; or a function of the environment to booleans [K].
        reward_range: smallest and largest reward; without it nothing can be proved. It is known for tables, classic
            control, Blackjack, and environments with an attribute of this name.
        value_range: bounds of the unregularised optimal values, see `Declarations`: (0, 1) for FrozenLake.
        snapshot: a function of an environment to its whole state, in bytes or in an array of fixed shape.
        restore: a function of an environment and what `snapshot` returned, which puts it into that state.
        state_bytes: of a state by copies or by snapshots in bytes; by default twice what random play needs, or 256.
        **options: passed to `gymnasium.make` with an id, such as map_name="8x8".

    Raises:
        ValueError: the environment cannot be made a generative model; the message says why.
    """
    given, name = _opened(environment, options)
    if (snapshot is None) != (restore is None) or not all(callable(way) or way is None for way in (snapshot, restore)):
        raise ValueError(f"snapshot and restore must be two functions, or neither, got {snapshot!r} and {restore!r}")
    steps = _steps(given, name, discount, horizon)
    # The model without a horizon needs a discount below 1, which plays no part in the one with a horizon.
    declared: dict[str, Any] = {"discount": min(discount, 0.99)} if steps else {"discount": discount}
    declared |= {"value_range": None if steps else value_range, "action_names": _action_names(given)}
    # A wrapper that translates single actions or rewards, and nothing else, goes with an assigned state.
    translating: Any = (library().ActionWrapper, library().RewardWrapper)
    wrappers: list[Any] = [type(layer) for layer in layers(given)[:-1]]
    simple = all(any(issubclass(kind, base) and kind.step is base.step for base in translating) for kind in wrappers)
    model: GenerativeModel | None = None
    try:
        declared["actions"] = actions_of(given.action_space)
        if len(wrappers) == 0 and hasattr(given.unwrapped, "func_env"):
            model = from_functional(given, reward_range=reward_range, **declared)
        ask = legal if callable(legal) else None
        told = ask is None and arguments.flag("legal", legal) and _told(given) and isinstance(declared["actions"], int)
        mask = _Masked(ask, declared["actions"]) if ask or told else None
        ways = known_ways(given, simple) if snapshot is None or restore is None else Ways(snapshot, restore)
        held = (value for layer in layers(given) for value in vars(layer).values())
        if ways is None and any(type(value).__module__.partition(".")[0] == "Box2D" for value in held):
            raise CannotCopyError(
                "it is a simulation by Box2D, whose contacts and impulses can be neither copied nor saved from Python. "
                "If you can save and restore its state, give snapshot= and restore="
            )
        if model is None and ways is None and simple:
            model = _without_copies(given, name, mask, legal, reward_range, **declared)
        if model is None:
            declared |= _rewards(given, reward_range)
            model = _by_store(given, name, ways, state_bytes, mask, legal, **declared)
    except CannotCopyError as error:
        advice = "A simulator of your own can be wrapped in VectorModel"
        raise ValueError(f"{name} cannot be made a generative model: {error}. {advice}") from error
    return model if steps is None else finite_horizon(model, steps, discount=discount, value_range=value_range)


def state_of(model: GenerativeModel, environment: "gymnasium.Env[Any, Any]", steps_left: int | None = None) -> Any:
    """The state of a real environment, as its model from `from_gymnasium` knows it.

    Args:
        model: from `from_gymnasium`.
        environment: of the same kind.
        steps_left: of a model with a horizon; by default as the environment's `TimeLimit` wrapper counts.

    >>> import gymnasium
    >>> lake = gymnasium.make("FrozenLake-v1")
    >>> _ = lake.reset(seed=0)
    >>> state_of(from_gymnasium(lake), lake)
    0
    """
    before, horizon = getattr(model, "stationary", None), horizon_of(model) or 0
    if before is not None:
        clock = _time_limit(environment)
        if steps_left is None and clock is None:
            raise ValueError("steps_left must be given for an environment without a TimeLimit wrapper, got None")
        given = horizon - (clock._elapsed_steps or 0) if steps_left is None else steps_left
        left = arguments.whole("steps_left", given, least=0, most=horizon)
        return at_stage(model, np.asarray(state_of(before, environment))[None], left)[0]
    bare: Any = environment.unwrapped
    if isinstance(model, TabularModel):
        return int(bare.s)
    if isinstance(model, JaxModel):
        return model.ravel(bare.state)
    store = store_of(model)
    found = np.array(bare.state) if store is None else store.state_of(environment)
    return found.astype(np.asarray(model.initial_state).dtype, copy=False)


def store_of(model: GenerativeModel) -> Store | None:
    """What a model simulates an environment by; None if it is a table or compiled."""
    step: Any = (getattr(model, "stationary", None) or model).step
    step = getattr(getattr(step, "step", step), "scalar", None)  # also below the actions out of a box
    return step.store if isinstance(step, EnvironmentStep) else None


def notes(model: GenerativeModel) -> tuple[str, ...]:
    """Sentences that a user of a model must read."""
    found, store = [], store_of(model)
    if store is not None and store.means:
        found.append(f"{store.name} is simulated by {store.means}, even if observations hide it")
    if isinstance(store, Snapshots) and store.ways.note:
        found.append(f"{store.name}: {store.ways.note}")
    if getattr(model, "stationary", None) is not None:
        limit = f"{horizon_of(model)}, by the environment's time limit or as horizon= says"
        found.append(f"Planning knows the steps left of {limit}")
    return tuple(found)


def _opened(environment: Any, options: dict[str, Any]) -> tuple[Any, str]:
    """An environment, which an id may stand for, and its name."""
    gymnasium = library()
    if isinstance(environment, str):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # an old version is still a version
                return gymnasium.make(environment, **options), environment
        except Exception as error:  # an environment may refuse its options in any way
            raise ValueError(f"gymnasium cannot make {environment!r} with {options}: {error}") from error
    if not isinstance(environment, gymnasium.Env):
        raise TypeError(f"environment must be an id or a gymnasium.Env, got {environment!r}")
    if options:
        raise TypeError(f"options {sorted(options)} go with an id, not with an environment that is already made")
    return environment, type(environment.unwrapped).__name__ if environment.spec is None else environment.spec.id


def _time_limit(environment: Any) -> Any:
    """The wrapper that limits the steps of an environment; None if there is none."""
    while isinstance(environment, library().Wrapper) and not isinstance(environment, library().wrappers.TimeLimit):
        environment = environment.env
    return environment if isinstance(environment, library().Wrapper) else None


def _steps(given: Any, name: str, discount: float, horizon: int | None) -> int | None:
    """The steps after which episodes end; None if they need not."""
    if horizon is not None or discount != 1.0:
        return None if horizon is None else arguments.whole("horizon", horizon, most=10**9)
    clock = _time_limit(given)
    steps = getattr(given.spec, "max_episode_steps", None) if clock is None else clock._max_episode_steps
    if steps is None:
        raise ValueError(f"horizon must be given with discount=1: {name} has no time limit of its own")
    return int(steps)


def native(space: Any, action: Any) -> Any:
    """An action of a model as the environment takes it: counted from the start of the space, or of its dtype."""
    return int(space.start) + int(action) if hasattr(space, "start") else np.asarray(action, dtype=space.dtype)


KNOWN_NAMES = {
    "CartPoleEnv": "left, right",
    "MountainCarEnv": "left, coast, right",
    "AcrobotEnv": "torque -1, torque 0, torque 1",
    "FrozenLakeEnv": "left, down, right, up",
    "TaxiEnv": "south, north, east, west, pick up, drop off",
    "CliffWalkingEnv": "up, right, down, left",
    "BlackjackEnv": "stick, hit",
    "LunarLander": "nothing, left engine, main engine, right engine",
}
"""Actions of Gymnasium's own environments, as their documentation names them."""


def _action_names(given: Any) -> tuple[str, ...] | None:
    """The names of actions, if the environment or its documentation tells them and no wrapper changes them."""
    bare, space = given.unwrapped, given.action_space
    rewarding = (isinstance(each, library().RewardWrapper) for each in layers(given)[:-1])
    if space != bare.action_space or not all(rewarding) or type(space).__name__ != "Discrete":
        return None
    names: list[str] = []
    kinds = getattr(getattr(bare, "action_type", bare), "actions", None)  # highway-env has an action_type
    numbers = {each.value: each.name for each in kinds} if isinstance(kinds, enum.EnumMeta) else kinds  # type: ignore[var-annotated]
    if callable(getattr(bare, "get_action_meanings", None)):
        names = [str(each).lower() for each in bare.get_action_meanings()]
    elif isinstance(numbers, dict):
        wanted = range(int(space.start), int(space.start + space.n))
        names = [found.lower() for number in wanted if isinstance(found := numbers.get(number), str)]
    elif type(bare).__module__.startswith("gymnasium.envs.") and type(bare).__name__ in KNOWN_NAMES:
        names = KNOWN_NAMES[type(bare).__name__].split(", ")
    return tuple(names) if len(set(names)) == len(names) == space.n else None


def _rewards(given: Any, declared: tuple[float, float] | None) -> dict[str, Any]:
    """The range of the rewards, as declared or as Gymnasium's sources tell, their kind, and features of angles."""
    environment = layers(given)[0]
    own = getattr(environment, "reward_range", None)  # as many environments of older libraries say
    known, kind, features = tuple(own) if own is not None and np.isfinite(own).all() else None, "bounded", None
    if type(environment).__module__.startswith("gymnasium.envs."):
        match type(environment).__name__:
            case "CartPoleEnv":
                known, kind = (-1.0, 0.0) if environment._sutton_barto_reward else (1.0, 1.0), "deterministic"
            case "MountainCarEnv":
                known, kind = (-1.0, -1.0), "deterministic"
            case "Continuous_MountainCarEnv":
                known, kind = (-0.1, 100.0), "deterministic"
            case "AcrobotEnv" if environment.torque_noise_max == 0.0:
                known, kind, features = (-1.0, 0.0), "deterministic", partial(_turned, 2)
            case "PendulumEnv":  # at the bottom, at full speed and torque; in the order of its own sum
                worst = np.pi**2 + 0.1 * environment.max_speed**2 + 0.001 * environment.max_torque**2
                known, kind, features = (-float(worst), 0.0), "deterministic", partial(_turned, 1)
            case "TaxiEnv":
                known = (-10.0, 20.0)
            case "BlackjackEnv":
                known, kind = (-1.0, 1.5 if environment.natural and not environment.sab else 1.0), "transition"
    return {"reward_range": known if declared is None else declared, "reward_kind": kind, "features": features}


def _turned(angles: int, states: States) -> Floats:
    """Features of states [n, d] whose first numbers are angles: their cosines and sines, and the others."""
    turned, others = np.split(states, [angles], axis=1)
    return np.concatenate([np.cos(turned), np.sin(turned), others], axis=1)


MASKS = ("action_masks", "get_action_mask", "valid_action_mask", "action_mask")
"""Methods by which environments tell their legal actions. Taxi's takes the state."""


@dataclass(frozen=True)
class _Masked:
    """Asks an environment for its legal actions, by a function or by its own method."""

    ask: Legal | None
    actions: int

    def __call__(self, environment: Any) -> NDArray[np.bool_]:
        given: list[Any] = [environment]
        if (ask := self.ask) is None:
            ask, parameters = _told(environment), inspect.signature(_told(environment)).parameters.values()
            given = [environment.unwrapped.s] if any(each.default is each.empty for each in parameters) else []
        mask = np.asarray(ask(*given))
        if mask.shape != (self.actions,) or not np.isin(mask, (0, 1)).all():
            raise ModelError(f"legal must be a function of the environment to booleans [{self.actions}], got {mask!r}")
        return mask.astype(np.bool_)


def _told(environment: Any) -> Any:
    """The method of an environment or a wrapper that tells its legal actions; None if there is none."""
    found = (getattr(layer, name, None) for layer in layers(environment) for name in MASKS)
    return next(filter(callable, found), None)


@dataclass(frozen=True, eq=False)
class EnvironmentStep:
    """Steps an environment from any state, see `VectorModel.from_scalar`."""

    store: Store
    mask: _Masked | None

    def __call__(self, state: Any, action: Any, rng: np.random.Generator) -> tuple[Any, float, bool]:
        """Next state, reward, and whether it is terminal."""
        with self.store.lock:
            environment = self.store.at(state, rng)
            try:
                _, reward, terminated, truncated, _ = environment.step(native(environment.action_space, action))
            except Exception as error:  # any error of an environment; the bytes of the state would say nothing
                if isinstance(self.store, Copies):
                    before = self.store.at(state, rng).unwrapped
                    error.add_note(f"{self.store.name} was in the state {arguments.shown(vars(before))}")
                raise
            ends = terminated or (truncated and self.store.has_clock)
            return self.store.state_of(environment), float(reward), bool(ends)

    def legal(self, states: States) -> NDArray[np.bool_]:
        """The legal actions at states [n, ...], [n, K]."""
        assert self.mask is not None
        rng = np.random.default_rng(0)
        with self.store.lock:
            found = [self.mask(self.store.at(state, rng)) for state in states]
        return np.array(found, dtype=np.bool_).reshape(len(states), self.mask.actions)

    def model(self, **declared: Any) -> VectorModel:
        """The model by this step."""
        return VectorModel.from_scalar(self, legal=None if self.mask is None else self.legal, **declared)


def _own(given: Any) -> Any:
    """An environment like the one given, for a model to change, without wrappers that do not affect it."""
    chain = layers(copy.deepcopy(given))
    for outer, inner in pairwise(chain):
        outer.env = inner
    if "render_mode" in vars(chain[-1]):
        chain[-1].render_mode = None
    return chain[0]


def _without_copies(
    given: Any, name: str, mask: _Masked | None, legal: Any, reward_range: tuple[float, float] | None, **declared: Any
) -> GenerativeModel | None:
    """A model by the table or the assignable state of an environment; None if neither is all there is to it."""
    try:
        real = _own(given)
        real.reset(seed=0)
        start = _numbers(real, 0 if mask is None else int(mask(real).argmax()))
    except Exception:  # whatever an environment does; `Copies` may know how to copy it, or names the reason
        return None
    models: list[GenerativeModel] = []
    if hasattr(real, "P") and hasattr(real, "s") and isinstance(declared["actions"], int):
        # {s: {a: [(probability, next state, reward, terminated), ...]}}, in which a fickle passenger's mood is missing.
        if getattr(real, "fickle_passenger", False):
            return None
        numbers, actions = range(len(real.P)), range(declared.pop("actions"))
        try:
            outcomes = [[real.P[state][action] for action in actions] for state in numbers]
        except LookupError:  # states or actions are not numbered from 0
            return None
        declared |= {"reward_range": reward_range, "initial_state": int(real.s)}
        if mask is not None:
            declared["legal"] = [mask(real) for real.s in numbers]
        models.append(TabularModel.from_outcomes(outcomes, **declared))
    elif start is not None:
        declared |= {"initial_state": start, **_rewards(given, reward_range)}
        declared["max_successors"] = 1 if declared["reward_kind"] == "deterministic" else None
        if mask is None and (compiled_step := _twin(real)) is not None:
            models.append(JitModel(compiled_step, **declared))
        models.append(EnvironmentStep(_AssignedState(name, copy.deepcopy(real)), mask).model(**declared))
    return next((model for model in models if _agrees(model, real, legal is True)), None)


def _numbers(real: Any, action: int) -> NDArray[Any] | None:
    """The state of an environment after a reset, if it is an attribute of numbers. An action is tried."""
    if getattr(real.unwrapped, "state", None) is None:
        return None
    # Some environments start at whole numbers and continue with fractions: the first step reveals them.
    trial, space = copy.deepcopy(real), real.action_space
    trial.step(native(space, space.low if hasattr(space, "low") else action))
    try:
        start, later = (np.asarray(each.unwrapped.state) for each in (real, trial))
    except ValueError:  # parts of several lengths
        return None
    return start.astype(np.result_type(start, later)) if {start.dtype.kind, later.dtype.kind} <= set("fiu") else None


class _AssignedState(Store):
    """Assigns the state of an environment, whose other attributes are as they were after a reset."""

    has_clock = False

    def __init__(self, name: str, environment: Any) -> None:
        super().__init__(name)
        self._given, self._environment = environment, copy.deepcopy(environment)
        self._attributes = dict(vars(self._environment.unwrapped))

    def __reduce__(self) -> Any:
        return type(self), (self.name, self._given)

    def at(self, state: Any, rng: np.random.Generator) -> Any:
        bare = self._environment.unwrapped
        vars(bare).clear()
        vars(bare).update(self._attributes)
        bare.state, bare.np_random = state.copy(), rng
        return self._environment

    def state_of(self, environment: Any) -> Any:
        return np.array(environment.unwrapped.state)


def _twin(real: Any) -> Step | None:
    """The step of a compiled simulator of the environment, if there is one and no parameter was changed."""
    twins: dict[str, Step] = {"CartPoleEnv": cart_pole_step, "MountainCarEnv": mountain_car_step}
    kind = type(real)
    if not kind.__module__.startswith("gymnasium.envs.") or kind.__name__ not in twins:
        return None
    usual = kind()
    names = {*vars(kind), *vars(usual), *vars(real)} - {"render_mode", "_np_random_seed"}
    pairs = ((getattr(real, name), getattr(usual, name, None)) for name in names)
    changed = any(isinstance(value, int | float | str) and value != other for value, other in pairs)
    return None if changed else twins[kind.__name__]


def _by_store(
    given: Any, name: str, ways: Ways | None, state_bytes: int | None, mask: _Masked | None, legal: Any, **declared: Any
) -> VectorModel:
    """A model that steps copies of an environment, wrappers included, or restores its snapshots."""
    size = 0 if state_bytes is None else arguments.whole("state_bytes", state_bytes)
    try:
        if ways is None:
            store: Copies | Snapshots = Copies(given, name, size)
            real = store.at(store.initial, np.random.default_rng(0))
        else:
            store, real = Snapshots(_own(given), name, ways, size), _own(given)
            ways.prepare(real)
            declared["features"] = None if ways.features is None else ways.features(real)
            if ways.constants is not None and ways.constants(real) != ways.constants(given):
                text = "its constants were changed after it was made"
                raise CannotCopyError(f"{text}, and a copy is made by its arguments")
        model = EnvironmentStep(store, mask).model(initial_state=store.initial, **declared)
        agrees = _agrees(model, real, legal is True)
    except ModelError:
        raise
    except Exception as error:  # whatever an environment does
        raise CannotCopyError(f"it raised {type(error).__name__} in random play: {error}") from error
    if not agrees:
        raise CannotCopyError(
            "a copy does not repeat its steps: it keeps state outside of the object, in a global or an attribute "
            "of its class, or draws from another generator than its own self.np_random"
            if ways is None
            else "an environment that takes back a snapshot does not repeat its steps: a snapshot must hold all that "
            "they depend on, attributes included, and steps must draw from its own self.np_random only"
        )
    store.settle()
    return replace(model, initial_state=store.initial)


def _agrees(model: GenerativeModel, real: Any, reports: bool) -> bool:
    """Whether 300 random steps of environment and model, with the same draws, have the same results.

    They are in at most 50 episodes of at most 100 steps. If the environment reports legal actions beside its
    observations, they must be those of the model.
    """
    error = 1e-12 if isinstance(model, JitModel) else 0.0  # the operations of a compiled twin are in another order
    store, choices, steps = store_of(model), np.random.default_rng(0), iter(range(300))
    for episode in range(50):
        _, info = real.reset(seed=episode)
        for _ in islice(steps, 100):
            state = np.asarray(state_of(model, real))[None]
            if reports and "action_mask" in info:
                mask = legal_actions(model, state)
                if not np.array_equal(info["action_mask"], np.ones(model.actions) if mask is None else mask[0]):
                    raise CannotCopyError(
                        "the legal actions that it reports as info['action_mask'] are not told for any state by a "
                        "method action_masks(): give legal=, a function of the environment to booleans [K], or False"
                    )
            chosen, seed = random_actions(model, state, choices), int(choices.integers(2**32))
            (store or Store("")).reseed(real, np.random.default_rng(seed))
            _, reward, terminated, truncated, info = real.step(native(real.action_space, chosen[0]))
            ends = bool(terminated or (truncated and store is not None and store.has_clock))
            reached = state_of(model, real)
            if not model.reward_range[0] <= reward <= model.reward_range[1]:
                paid = f"action {chosen[0]} paid {reward:g}, got {model.reward_range}"
                raise ModelError(f"reward_range must contain all rewards: {paid}")
            # Twice, so that a hidden state which both change at every step does not go unnoticed.
            for _ in range(2):
                found = model.step(frozen(state), frozen(chosen), np.random.default_rng(seed))
                next_state, *outcome = (part[0] for part in found)
                same = outcome == [reward, ends] and np.shape(next_state) == np.shape(reached)
                if not same or not (np.abs(next_state - reached) <= error).all():
                    return False
            if terminated or truncated:
                break
    return True


Look = Callable[[NDArray[np.uint8], float], None]
"""Is given a picture, [height, width, 3], and how many of them a second is meant to have."""


class Player:
    """A real environment, with its own randomness and time limit; one that is passed is stepped itself.

    `model` is of this environment; `look` is given a picture of every state.
    """

    def __init__(self, environment: Any, model: GenerativeModel, look: Look | None = None, **options: Any) -> None:
        if look is not None and isinstance(environment, str):
            options["render_mode"] = "rgb_array"
        self._environment, self.name = _opened(environment, options)
        self._model, self.look, self._moves = model, look, 0
        self._drawn: dict[str, Any] = {}  # leftovers of drawing, such as a canvas: no part of the state
        if look is not None:  # a library may be missing, so a first picture is drawn
            needed, mode = f"record needs pictures of {self.name}", self._environment.render_mode
            if mode != "rgb_array":
                raise ValueError(f"{needed}: make it with render_mode='rgb_array', got {mode!r}")
            try:
                self._environment.reset(seed=0)
                picture = self._draw()
            except Exception as error:  # whatever an environment does
                raise ValueError(f"{needed}, and it cannot draw them: {error}") from error
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise ValueError(f"{needed}, [height, width, 3] of uint8, got {picture.dtype} of shape {picture.shape}")

    @property
    def state(self) -> Any:
        """The state as the model knows it."""
        horizon = horizon_of(self._model)
        return state_of(self._model, self._environment, None if horizon is None else horizon - self._moves)

    def reset(self, seed: int) -> None:
        """Starts an episode."""
        self._environment.reset(seed=seed)
        self._moves = 0
        self._look()

    def move(self, action: Any) -> tuple[float, bool, bool]:
        """Takes an action of the model: reward, terminated, and truncated by the time limit or the horizon."""
        model = self._model
        steps: list[Any] = [getattr(each, "step", None) for each in (model, getattr(model, "stationary", None))]
        # The actions out of a box that `discretise` chose.
        action = next((step.points[action] for step in steps if hasattr(step, "points")), action)
        given = native(self._environment.action_space, action)
        _, reward, terminated, truncated, _ = self._environment.step(given)
        self._moves += 1
        self._look()
        return float(reward), bool(terminated), bool(truncated) or self._moves == horizon_of(self._model)

    def _look(self) -> None:
        if self.look is not None:
            self.look(self._draw(), float(self._environment.metadata.get("render_fps", 30)))

    def _draw(self) -> NDArray[Any]:
        attributes = vars(self._environment.unwrapped)
        before = dict(attributes)
        attributes.update(self._drawn)
        try:
            return np.asarray(self._environment.render())
        finally:
            self._drawn = {name: value for name, value in attributes.items() if before.get(name, self) is not value}
            attributes.clear()
            attributes.update(before)
