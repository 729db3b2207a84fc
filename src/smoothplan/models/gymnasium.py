"""Gymnasium environments as generative models: from their transition tables, or by assigning their state.

`Player` steps the real environment, for `act`.
"""

import copy
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Ints
from smoothplan.models.base import GenerativeModel, States, checked_step
from smoothplan.models.calls import ModelError
from smoothplan.models.jit import JitModel
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import VectorModel, one_by_one
from smoothplan.models.zoo import acrobot, cart_pole, mountain_car
from smoothplan.streams import generator

if TYPE_CHECKING:
    import gymnasium

TWIN_ERROR = 1e-12
"""The most by which a compiled twin's next state may differ: its operations are in another order."""


def _known_rewards(environment: Any) -> tuple[float, float] | None:
    """The reward range of Gymnasium's classic control, by its sources. There, steps and rewards are deterministic."""
    if not type(environment).__module__.startswith("gymnasium.envs."):
        return None
    match type(environment).__name__:
        case "CartPoleEnv":
            return (-1.0, 0.0) if getattr(environment, "_sutton_barto_reward", False) else (1.0, 1.0)
        case "MountainCarEnv":
            return -1.0, -1.0
        case "AcrobotEnv" if environment.torque_noise_max == 0.0:
            return -1.0, 0.0
    return None


def from_gymnasium(
    environment: "str | gymnasium.Env[Any, Any]",
    *,
    discount: float = 0.99,
    reward_range: tuple[float, float] | None = None,
    value_range: tuple[float, float] | None = None,
    **options: Any,
) -> GenerativeModel:
    """A generative model of a Gymnasium environment with finitely many actions.

    An environment with a transition table (`env.unwrapped.P`) becomes a `TabularModel` with the same state numbers;
    any other whose whole state is `env.unwrapped.state` becomes a `VectorModel` that assigns the state and steps. Its
    states are that attribute, not the observation. CartPole, MountainCar and Acrobot with their default parameters
    become compiled models of the same states, which differ from the environment in the last digits only. Time limits
    are dropped. The environment passed is not changed.

    Args:
        environment: an id such as "FrozenLake-v1", or an environment.
        discount: γ.
        reward_range: smallest and largest reward. Required if they are not known: for every environment without a table
            except CartPole, MountainCar and Acrobot.
        value_range: bounds of the ordinary optimal values, see `Declarations`: (0, 1) for FrozenLake, which pays 1 at
            its end.
        **options: passed to `gymnasium.make` with an id, such as map_name="8x8".

    Raises:
        ValueError: the environment cannot be made a generative model; the message says why.
    """
    real, name = _bare_environment(environment, options)
    space = real.action_space
    if type(space).__name__ != "Discrete":
        raise _refusal(name, f"its actions are a {type(space).__name__}, and a planner needs finitely many (Discrete)")
    if getattr(real, "fickle_passenger", False):
        raise _refusal(name, "its fickle passenger changes the destination by a hidden state")
    real.reset(seed=0)
    model: GenerativeModel
    if hasattr(real, "P") and hasattr(real, "s"):
        model = _from_table(real, name, discount=discount, reward_range=reward_range, value_range=value_range)
    else:
        model = _from_assignment(real, name, reward_range, discount=discount, value_range=value_range)
        twin = _twin(real, model)
        if twin is not None and _difference(twin, real, TWIN_ERROR) is None:
            return twin
    different = _difference(model, real)
    if different is not None:
        raise _refusal(name, f"it keeps more than its state: from {different} it did not repeat its own step")
    return model


def _refusal(name: str, reason: str) -> ValueError:
    return ValueError(
        f"{name} cannot be made a generative model: {reason}. A simulator of your own can be wrapped in VectorModel"
    )


def _library() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise ImportError('from_gymnasium needs Gymnasium: pip install "smoothplan[gym]"') from None
    return gymnasium


def _made(name: str, options: dict[str, Any]) -> Any:
    """The environment of an id, with its wrappers."""
    gymnasium = _library()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # an old version is still a version
            return gymnasium.make(name, **options)
    except Exception as error:  # an environment may refuse its options in any way
        raise ValueError(f"gymnasium cannot make {name!r} with {options}: {error}") from error


def _bare_environment(environment: Any, options: dict[str, Any]) -> tuple[Any, str]:
    """A private copy of the environment without its wrappers, and its name."""
    gymnasium = _library()
    if isinstance(environment, str):
        return _made(environment, options).unwrapped, environment
    if not isinstance(environment, gymnasium.Env):
        raise TypeError(f"environment must be an id or a gymnasium.Env, got {environment!r}")
    if options:
        raise TypeError(f"options {sorted(options)} go with an id, not with an environment that is already made")
    name = environment.spec.id if environment.spec is not None else type(environment.unwrapped).__name__
    layer = environment
    # Wrappers that do not change a step. A time limit is dropped: the value is that of the endless problem.
    harmless = {"HumanRendering", "OrderEnforcing", "PassiveEnvChecker", "TimeLimit"}
    harmless |= {"RecordEpisodeStatistics", "RecordVideo", "RenderCollection"}
    while isinstance(layer, gymnasium.Wrapper):
        if type(layer).__name__ not in harmless:
            raise _refusal(name, f"its wrapper {type(layer).__name__} may change what a step does")
        layer = layer.env
    try:
        return copy.deepcopy(layer), name
    except Exception as error:
        raise _refusal(name, f"it cannot be copied ({error})") from error


def _from_table(real: Any, name: str, **declarations: Any) -> TabularModel:
    """The table {s: {a: [(probability, next state, reward, terminated), ...]}} as a model, in its own order."""
    table, states, actions = real.P, len(real.P), int(real.action_space.n)
    if set(table) != set(range(states)) or any(set(table[s]) != set(range(actions)) for s in table):
        raise _refusal(name, "the states and actions of its transition table are not numbered from 0")
    return TabularModel.from_outcomes(
        [[table[state][action] for action in range(actions)] for state in range(states)],
        initial_state=int(real.s),
        **declarations,
    )


def _from_assignment(
    real: Any, name: str, reward_range: tuple[float, float] | None, **declarations: Any
) -> VectorModel:
    state = getattr(real, "state", None)
    if state is None:
        raise _refusal(name, "it has neither a transition table (P) nor an assignable state")
    # Some environments start at whole numbers and continue with fractions: the first step reveals them.
    trial = copy.deepcopy(real)
    trial.step(int(trial.action_space.start))
    try:
        arrays = np.asarray(state), np.asarray(trial.state)
    except ValueError:
        raise _refusal(name, f"its state is not an array of numbers but {state!r}") from None
    if any(array.dtype.kind not in "fiu" for array in arrays):
        raise _refusal(name, f"its state is not an array of numbers but {state!r}")
    known = _known_rewards(real)
    reward_range = reward_range or known
    if reward_range is None:
        raise ValueError(f"reward_range must be given: the rewards of {name} are not known to smoothplan")
    return VectorModel(
        _AssignedState(copy.deepcopy(real)),
        actions=int(real.action_space.n),
        reward_range=reward_range,
        reward_kind="deterministic" if known else "bounded",
        max_successors=1 if known else None,
        initial_state=arrays[0].astype(np.result_type(*arrays)),
        **declarations,
    )


class _AssignedState:
    """Steps an environment from any state, by assigning it; every other attribute is as it was after a reset.

    Each thread steps a copy of its own, and the environment draws from the generator of the call.
    """

    one_at_a_time = True

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"environment": self._environment}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["environment"])  # type: ignore[misc]

    def __call__(self, states: States, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
        next_states, rewards, terminals = zip(*one_by_one(self._step, states, actions, rng), strict=True)
        return np.array(next_states, dtype=states.dtype), np.array(rewards), np.array(terminals)

    def _step(self, state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
        if not hasattr(self._local, "environment"):
            self._local.environment = copy.deepcopy(self._environment)
            self._local.attributes = dict(vars(self._local.environment))
        environment = self._local.environment
        vars(environment).clear()
        vars(environment).update(self._local.attributes)
        environment.state = state.copy()
        environment.np_random = rng
        _, reward, terminated, _, _ = environment.step(int(environment.action_space.start) + action)
        reached = np.asarray(environment.state)
        if reached.shape != state.shape or not np.can_cast(reached.dtype, state.dtype, "same_kind"):
            raise ModelError(f"the state {state} became {reached}, of another type, after action {action}")
        return reached, float(reward), bool(terminated)


def _twin(real: Any, model: VectorModel) -> JitModel | None:
    """A compiled simulator of the environment, if there is one and no parameter was changed."""
    twins: dict[str, Callable[[float], JitModel]] = {
        "CartPoleEnv": cart_pole,
        "MountainCarEnv": mountain_car,
        "AcrobotEnv": acrobot,
    }
    kind = type(real)
    if not kind.__module__.startswith("gymnasium.envs.") or kind.__name__ not in twins:
        return None
    usual = kind()
    for name in {*vars(kind), *vars(usual), *vars(real)} - {"render_mode", "_np_random_seed"}:
        value = getattr(real, name)
        if isinstance(value, int | float | str) and value != getattr(usual, name, None):
            return None
    twin = twins[kind.__name__](model.discount)
    shared = ("reward_range", "value_range", "initial_state")
    return replace(twin, **{name: getattr(model, name) for name in shared})


def _difference(model: GenerativeModel, real: Any, error: float = 0.0) -> Any:
    """Steps the real environment and the model side by side, from the same states with the same draws.

    Returns a state from which they differ: in the reward, in the end, or in the next state by more than `error`. None
    if five episodes of at most 100 steps show no difference.
    """
    tabular = isinstance(model, TabularModel)
    start = int(real.action_space.start)
    choices = np.random.default_rng(0)
    for episode in range(5):
        real.reset(seed=episode)
        for _ in range(100):
            state = np.array([real.s if tabular else real.state], dtype=np.asarray(model.initial_state).dtype)
            action, seed = int(choices.integers(model.actions)), int(choices.integers(2**32))
            real.np_random = generator(seed)
            _, reward, terminated, _, _ = real.step(start + action)
            reached = np.asarray(real.s if tabular else real.state)
            # Twice, so that a hidden state which both change at every step does not go unnoticed.
            for _ in range(2):
                found = checked_step(model, state, np.array([action]), generator(seed))
                alike = found.rewards[0] == reward and found.terminals[0] == terminated
                if not (alike and _close(found.next_states[0], reached, error)):
                    return state[0]
            if terminated:
                break
    return None


def _close(one: Any, two: Any, error: float) -> bool:
    if error == 0.0:
        return bool(np.array_equal(one, two))
    return bool(np.shape(one) == np.shape(two) and np.abs(one - two).max() <= error)


class Move(NamedTuple):
    """The result of one step of a real environment."""

    reward: float
    terminated: bool
    truncated: bool  # by the environment's own time limit


class Player:
    """A real environment, with its own randomness and time limit.

    Args:
        environment: an id, or an environment, which is then stepped itself.
        frames: whether to keep a picture of every state, [height, width, 3] each; the render_mode of an environment
            passed must then be "rgb_array".
        **options: passed to `gymnasium.make` with an id.
    """

    def __init__(self, environment: "str | gymnasium.Env[Any, Any]", *, frames: bool = False, **options: Any) -> None:
        if isinstance(environment, str):
            made = options | ({"render_mode": "rgb_array"} if frames else {})
            self._environment: Any = _made(environment, made)
            self.name = environment
        else:
            self._environment = environment
            self.name = environment.spec.id if environment.spec is not None else type(environment.unwrapped).__name__
            if frames and environment.render_mode != "rgb_array":
                raise ValueError(f"pictures need an environment with render_mode='rgb_array', got {environment!r}")
        self._keeps = frames
        self.frames: list[NDArray[np.uint8]] = []

    @property
    def actions(self) -> int:
        """K."""
        return int(self._environment.action_space.n)

    @property
    def frames_per_second(self) -> float:
        """The intended speed of its pictures."""
        return float(self._environment.metadata.get("render_fps", 30))

    @property
    def state(self) -> Any:
        """The state as models from `from_gymnasium` know it."""
        bare = self._environment.unwrapped
        return int(bare.s) if hasattr(bare, "P") and hasattr(bare, "s") else np.array(bare.state)

    def reset(self, seed: int) -> None:
        """Starts an episode."""
        self._environment.reset(seed=seed)
        self._look()

    def move(self, action: int) -> Move:
        """Takes an action, numbered from 0."""
        start = int(self._environment.action_space.start)
        _, reward, terminated, truncated, _ = self._environment.step(start + action)
        self._look()
        return Move(float(reward), bool(terminated), bool(truncated))

    def _look(self) -> None:
        if self._keeps:
            self.frames.append(np.asarray(self._environment.render(), dtype=np.uint8))
