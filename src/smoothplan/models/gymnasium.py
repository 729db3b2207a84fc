"""Gymnasium environments as generative models: by their transition tables, by assigning their state, or by copies.

`Player` steps the real environment, for `act`.
"""

import copy
import threading
import warnings
from collections.abc import Callable
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import frozen
from smoothplan.models.copies import CannotCopyError, Copies, layers, library
from smoothplan.models.jax import JaxModel, from_functional
from smoothplan.models.model import GenerativeModel, ModelError, RowError
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import JitModel, Step, VectorModel
from smoothplan.models.zoo import cart_pole_step, mountain_car_step

if TYPE_CHECKING:
    import gymnasium


def from_gymnasium(
    environment: "str | gymnasium.Env[Any, Any]",
    *,
    discount: float = 0.99,
    reward_range: tuple[float, float] | None = None,
    value_range: tuple[float, float] | None = None,
    state_bytes: int | None = None,
    **options: Any,
) -> GenerativeModel:
    """A generative model of a Gymnasium environment with finitely many actions.

    An environment with a transition table (`env.unwrapped.P`) becomes a `TabularModel` with the same state numbers.
    Another whose whole state is `env.unwrapped.state` becomes a `VectorModel` that assigns this attribute and steps.
    CartPole and MountainCar with their default parameters become compiled models of the same states, which differ from
    the environment in the last digits only. A functional environment, such as "phys2d/CartPole-v1", becomes a
    `JaxModel`. Any other is simulated by copies: a state is the content of the environment, in bytes. `state_of` gives
    the state of a real environment for all of them.

    Wrappers of observations do not matter. Those that translate actions or rewards go with an assignable state; with
    any other, or a table, the environment is copied as a whole. Time limits are dropped. The environment passed is not
    changed.

    Args:
        environment: an id such as "FrozenLake-v1", or an environment.
        discount: γ.
        reward_range: smallest and largest reward. Required if they are not known: for every environment without a table
            except CartPole, MountainCar, Acrobot and Blackjack, and those with an attribute of this name.
        value_range: bounds of the unregularised optimal values, see `Declarations`: (0, 1) for FrozenLake, which pays
            1 at its end.
        state_bytes: bytes of a state by copies; by default twice as many as random play needs, and at least 256.
        **options: passed to `gymnasium.make` with an id, such as map_name="8x8".

    Raises:
        ValueError: the environment cannot be made a generative model; the message says why.
    """
    given, name = _opened(environment, options)
    declared: dict[str, Any] = {"discount": discount, "value_range": value_range}
    # A wrapper that translates single actions or rewards, and nothing else, goes with an assigned state.
    translating: Any = (library().ActionWrapper, library().RewardWrapper)
    wrappers: list[Any] = [type(layer) for layer in layers(given)[:-1]]
    simple = all(any(issubclass(kind, base) and kind.step is base.step for base in translating) for kind in wrappers)
    if len(wrappers) == 0 and hasattr(given.unwrapped, "func_env"):
        return from_functional(given, name, reward_range=reward_range, **declared)
    try:
        if (space := type(given.action_space).__name__) != "Discrete":
            way = ": gymnasium.wrappers.DiscretizeAction(env, n) chooses some" if space == "Box" else ""
            raise CannotCopyError(f"its actions are a {space}, and a planner needs finitely many (Discrete){way}")
        if simple and (model := _without_copies(given, name, reward_range, **declared)) is not None:
            return model
        return _copied(given, name, state_bytes, **declared | _rewards(given, name, reward_range))
    except CannotCopyError as error:
        raise ValueError(
            f"{name} cannot be made a generative model: {error}. A simulator of your own can be wrapped in VectorModel"
        ) from error


def state_of(model: GenerativeModel, environment: "gymnasium.Env[Any, Any]") -> Any:
    """The state of a real environment, as its model from `from_gymnasium` knows it.

    >>> import gymnasium
    >>> lake = gymnasium.make("FrozenLake-v1")
    >>> _ = lake.reset(seed=0)
    >>> state_of(from_gymnasium(lake), lake)
    0
    """
    bare: Any = environment.unwrapped
    if (copies := copies_of(model)) is not None:
        return copies.state_of(environment)
    if isinstance(model, TabularModel):
        return int(bare.s)
    if isinstance(model, JaxModel):
        return model.ravel(bare.state)
    return np.array(bare.state, dtype=np.asarray(model.initial_state).dtype)


def copies_of(model: GenerativeModel) -> Copies | None:
    """The copies by which a model simulates an environment; None if there are none."""
    step = getattr(model.step, "scalar", None)
    return step if isinstance(step, Copies) else None


def notes(model: GenerativeModel) -> tuple[str, ...]:
    """Sentences that a user of a model must read."""
    if (copies := copies_of(model)) is None:
        return ()
    note = "A copy knows all that the environment holds, even if observations hide it"
    return (f"{copies.name} is simulated by copies of the environment. {note}",)


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


def _rewards(given: Any, name: str, declared: tuple[float, float] | None) -> dict[str, Any]:
    """The range of the rewards, as declared or as known, and their kind; an error if there is no range.

    Environments of Gymnasium are known by their sources; the steps of classic control are deterministic.
    """
    environment = layers(given)[0]
    own = getattr(environment, "reward_range", None)  # as many environments of older libraries say
    known, kind = tuple(own) if own is not None and np.isfinite(own).all() else None, "bounded"
    if type(environment).__module__.startswith("gymnasium.envs."):
        match type(environment).__name__:
            case "CartPoleEnv":
                barto = getattr(environment, "_sutton_barto_reward", False)
                known, kind = (-1.0, 0.0) if barto else (1.0, 1.0), "deterministic"
            case "MountainCarEnv":
                known, kind = (-1.0, -1.0), "deterministic"
            case "AcrobotEnv" if environment.torque_noise_max == 0.0:
                known, kind = (-1.0, 0.0), "deterministic"
            case "TaxiEnv":
                known = (-10.0, 20.0)
            case "BlackjackEnv":
                known, kind = (-1.0, 1.5 if environment.natural and not environment.sab else 1.0), "transition"
    if declared is None and known is None:
        registered = "" if given.spec is None else f", on the command line {name},reward_range=[low,high]"
        raise ValueError(
            f"reward_range must be given: the rewards of {name} are not known to smoothplan. Its smallest and largest "
            f"reward are given by reward_range=(low, high){registered}"
        )
    return {"reward_range": known if declared is None else declared, "reward_kind": kind}


def _without_copies(
    given: Any, name: str, reward_range: tuple[float, float] | None, **declared: Any
) -> GenerativeModel | None:
    """A model by the table or the assignable state of an environment; None if neither is all there is to it."""
    try:
        chain = layers(copy.deepcopy(given))
    except Exception:  # whatever an environment does; `Copies` may know how to copy it, or names the reason
        return None
    for outer, inner in pairwise(chain):
        outer.env = inner
    real = chain[0]
    if "render_mode" in vars(chain[-1]):
        chain[-1].render_mode = None
    real.reset(seed=0)
    actions = int(real.action_space.n)
    models: list[GenerativeModel] = []
    if hasattr(real, "P") and hasattr(real, "s"):
        # {s: {a: [(probability, next state, reward, terminated), ...]}}, in which a fickle passenger's mood is missing.
        if getattr(real, "fickle_passenger", False):
            return None
        try:
            outcomes = [[real.P[state][action] for action in range(actions)] for state in range(len(real.P))]
        except LookupError:  # states or actions are not numbered from 0
            return None
        declared |= {"reward_range": reward_range, "initial_state": int(real.s)}
        models.append(TabularModel.from_outcomes(outcomes, **declared))
    elif (start := _numbers(real)) is not None:
        declared |= {"actions": actions, "initial_state": start, **_rewards(given, name, reward_range)}
        declared["max_successors"] = 1 if declared["reward_kind"] == "deterministic" else None
        if (compiled_step := _twin(real)) is not None:
            models.append(JitModel(compiled_step, **declared))
        models.append(VectorModel.from_scalar(_AssignedState(copy.deepcopy(real)), **declared))
    return next((model for model in models if _agrees(model, real)), None)


def _numbers(real: Any) -> NDArray[Any] | None:
    """The state of an environment after a reset, if it is an attribute of numbers."""
    if getattr(real.unwrapped, "state", None) is None:
        return None
    # Some environments start at whole numbers and continue with fractions: the first step reveals them.
    trial = copy.deepcopy(real)
    trial.step(int(trial.action_space.start))
    try:
        start, later = (np.asarray(each.unwrapped.state) for each in (real, trial))
    except ValueError:  # parts of several lengths
        return None
    return start.astype(np.result_type(start, later)) if {start.dtype.kind, later.dtype.kind} <= set("fiu") else None


class _AssignedState:
    """Steps an environment from any state, by assigning it; every other attribute is as it was after a reset.

    The environment draws from the generator of the call.
    """

    def __init__(self, environment: Any) -> None:
        self._environment, self._lock = environment, threading.Lock()
        self._attributes = dict(vars(environment.unwrapped))

    def __reduce__(self) -> Any:
        vars(self._environment.unwrapped).clear()
        vars(self._environment.unwrapped).update(self._attributes)
        return type(self), (self._environment,)

    def __call__(self, state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
        environment, bare = self._environment, self._environment.unwrapped
        with self._lock:
            vars(bare).clear()
            vars(bare).update(self._attributes)
            bare.state = state.copy()
            bare.np_random = rng
            _, reward, terminated, _, _ = environment.step(int(environment.action_space.start) + action)
            return np.asarray(bare.state), float(reward), bool(terminated)


def _twin(real: Any) -> Step | None:
    """The step of a compiled simulator of the environment, if there is one and no parameter was changed."""
    twins: dict[str, Step] = {"CartPoleEnv": cart_pole_step, "MountainCarEnv": mountain_car_step}
    kind = type(real)
    if not kind.__module__.startswith("gymnasium.envs.") or kind.__name__ not in twins:
        return None
    usual = kind()
    for name in {*vars(kind), *vars(usual), *vars(real)} - {"render_mode", "_np_random_seed"}:
        value = getattr(real, name)
        if isinstance(value, int | float | str) and value != getattr(usual, name, None):
            return None
    return twins[kind.__name__]


def _copied(given: Any, name: str, state_bytes: int | None, **declared: Any) -> VectorModel:
    """A model that steps copies of an environment, wrappers included."""
    size = 0 if state_bytes is None else arguments.whole("state_bytes", state_bytes)
    try:
        copies = Copies(given, name, size)
        real = copies.rebuilt(copies.initial, np.random.default_rng(0))
        declared |= {"actions": int(real.action_space.n), "initial_state": copies.initial}
        agrees = _agrees(VectorModel.from_scalar(copies, **declared), real)
    except ModelError:
        raise
    except Exception as error:  # whatever an environment does
        raise CannotCopyError(f"it raised {type(error).__name__} in random play: {error}") from error
    if not agrees:
        raise CannotCopyError(
            "a copy does not repeat its steps: it keeps state outside of the object, in a global or an attribute "
            "of its class, or draws from another generator than its own self.np_random"
        )
    copies.settle()
    return VectorModel.from_scalar(copies, **declared | {"initial_state": copies.initial})


def _agrees(model: GenerativeModel, real: Any) -> bool:
    """Steps the real environment and the model side by side, from the same states with the same draws.

    Returns whether 300 steps, in at most 50 episodes of at most 100, show no difference in the reward, the end, or the
    next state. The operations of a compiled twin are in another order, so its next state may differ by 1e-12.
    """
    error = 1e-12 if isinstance(model, JitModel) else 0.0
    copies = copies_of(model)
    start, choices, steps = int(real.action_space.start), np.random.default_rng(0), iter(range(300))
    for episode in range(50):
        real.reset(seed=episode)
        for _ in islice(steps, 100):
            state = np.asarray(state_of(model, real))[None]
            action, seed = int(choices.integers(model.actions)), int(choices.integers(2**32))
            if copies is not None:
                copies.reseed(real, np.random.default_rng(seed))
            else:
                real.unwrapped.np_random = np.random.default_rng(seed)
            _, reward, terminated, _, _ = real.step(start + action)
            reached = state_of(model, real)
            if not model.reward_range[0] <= reward <= model.reward_range[1]:
                raise ModelError(
                    f"reward_range must contain all rewards: action {action} paid {reward:g}, got {model.reward_range}"
                )
            # Twice, so that a hidden state which both change at every step does not go unnoticed.
            for _ in range(2):
                try:
                    found = model.step(frozen(state), frozen(np.array([action])), np.random.default_rng(seed))
                except RowError as failure:
                    raise failure.__cause__ or failure from None
                next_state, *outcome = (part[0] for part in found)
                if outcome != [reward, terminated] or np.shape(next_state) != np.shape(reached):
                    return False
                if not (np.abs(next_state - reached) <= error).all():
                    return False
            if terminated:
                break
    return True


Look = Callable[[NDArray[np.uint8], float], None]
"""Is given a picture, [height, width, 3], and how many of them a second is meant to have."""


class Player:
    """A real environment, with its own randomness and time limit.

    Args:
        environment: an id, or an environment, which is then stepped itself.
        model: from `from_gymnasium`, of this environment.
        look: is given a picture of every state; the render_mode of an environment passed must then be "rgb_array".
        **options: passed to `gymnasium.make` with an id.
    """

    def __init__(self, environment: Any, model: GenerativeModel, look: Look | None = None, **options: Any) -> None:
        if look is not None and isinstance(environment, str):
            options["render_mode"] = "rgb_array"
        self._environment, self.name = _opened(environment, options)
        self._model, self.look = model, look
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
        return state_of(self._model, self._environment)

    def reset(self, seed: int) -> None:
        """Starts an episode."""
        self._environment.reset(seed=seed)
        self._look()

    def move(self, action: int) -> tuple[float, bool, bool]:
        """Takes an action, numbered from 0: reward, terminated, and truncated by the environment's own time limit."""
        start = int(self._environment.action_space.start)
        _, reward, terminated, truncated, _ = self._environment.step(start + action)
        self._look()
        return float(reward), bool(terminated), bool(truncated)

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
