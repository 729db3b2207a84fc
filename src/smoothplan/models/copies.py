"""Gymnasium environments as generative models by copies: for those without a table and without an assignable state."""

import math
import time
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan import arguments
from smoothplan.arguments import Ints
from smoothplan.models.base import RewardKind, States
from smoothplan.models.calls import LONGEST_STATE, ModelError, RowError
from smoothplan.models.content import CannotCopyError
from smoothplan.models.snapshots import ChangedError, Snapshots
from smoothplan.models.vector import VectorModel, one_by_one

EPISODES, STEPS, ALL_STEPS = 50, 100, 300
"""Random play that an environment is examined by, at most: episodes, steps of one, and of all."""

FIRST_STEPS = 30
"""Steps by which it is seen which large attributes are constant."""

ROOM = 2
"""How much longer than the longest state of random play a state may be."""


class Copies:
    """Steps an environment from any state: builds it from the state, and has it draw from the generator of the call.

    Args:
        name: of the environment.
        snapshots: the way from environments to states and back.
        size: the bytes of a state.
    """

    one_at_a_time = True

    def __init__(self, name: str, snapshots: Snapshots, size: int) -> None:
        self.name, self.size = name, size
        self.seconds: tuple[float, float] | None = None  # of a call and of the environment's own step, as measured here
        self._snapshots = snapshots

    def __getstate__(self) -> dict[str, Any]:
        # A clock is no part of what a model is: it must not change a fingerprint.
        return vars(self) | {"seconds": None}

    def __repr__(self) -> str:
        price = "" if self.seconds is None else f", {1e6 * self.seconds[0]:.0f} µs per call"
        return f"copies of {self.name}, states of {self.size} bytes{price}"

    @property
    def note(self) -> str:
        """What a user must know of it, in sentences."""
        text = f"{self.name} is simulated by copies of the environment"
        if self.seconds is not None:
            each, own = (f"{1e6 * seconds:.0f} µs" for seconds in self.seconds)
            text += f": {each} per simulator call, {own} of them its own step"
        return f"{text}. A copy knows all that the environment holds, also what observations hide"

    def __call__(self, states: States, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
        """See `GenerativeModel.step`."""
        next_states, rewards, terminals = zip(*one_by_one(self._step, states, actions, rng), strict=True)
        return np.array(next_states), np.array(rewards), np.array(terminals)

    def _step(self, state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
        environment = self._snapshots.rebuilt(state, rng)
        try:
            _, reward, terminated, _, _ = environment.step(int(environment.action_space.start) + action)
        except Exception as error:  # whatever an environment does; bytes alone would not tell anybody where
            error.add_note(f"{self.name} differed from its start by {_brief(state.tobytes().rstrip(bytes(1)))!r}")
            raise
        return self.state_of(environment), float(reward), bool(terminated)

    def state_of(self, environment: Any) -> NDArray[np.uint8]:
        """The state of an environment of this kind, [bytes]. It is not changed."""
        try:
            text = self._snapshots.changed(environment)
        except CannotCopyError as error:
            raise ModelError(f"{self.name} cannot be copied any more: {error}") from None
        return self.padded(text)

    def padded(self, text: bytes) -> NDArray[np.uint8]:
        """A state, [bytes]."""
        if len(text) > self.size:
            raise ModelError(
                f"a state of {self.name} takes {len(text)} bytes, more than the {self.size} of this model: give "
                f"from_gymnasium a larger state_bytes"
            )
        return np.frombuffer(text.ljust(self.size, b"\0"), dtype=np.uint8)


class _Step(NamedTuple):
    """A step of the real environment."""

    text: bytes  # of the state before
    action: int
    seed: int
    outcome: tuple[float, bool, bytes]  # reward, whether it ended, and the state afterwards
    seconds: float


def copied_model(
    environment: Any,
    name: str,
    *,
    reward_range: tuple[float, float],
    reward_kind: RewardKind,
    state_bytes: int | None = None,
    **declarations: Any,
) -> VectorModel:
    """A model that steps copies of an environment, wrappers included.

    Args:
        environment: is not changed.
        name: of the environment.
        reward_range: smallest and largest reward.
        reward_kind: see `Declarations`.
        state_bytes: the bytes of a state; by default twice as many as random play needs.
        **declarations: further ones.

    Raises:
        CannotCopyError: something in it cannot be copied, or it does not repeat its own steps.
    """
    real = Snapshots(environment).rebuilt(np.zeros(0, dtype=np.uint8), np.random.default_rng(0))
    real.reset(seed=0)
    snapshots, steps = _examined(real)
    if state_bytes is None:
        longest = max(len(step.outcome[2]) for step in steps)
        size = 64 * math.ceil(max(1, ROOM * longest) / 64)
    else:
        size = arguments.whole("state_bytes", state_bytes)
    copies = Copies(name, snapshots, size)
    real.reset(seed=0)
    model = VectorModel(
        copies,
        actions=int(real.action_space.n),
        reward_range=reward_range,
        reward_kind=reward_kind,
        initial_state=copies.state_of(real),
        **declarations,
    )
    each = [_compare(model, copies, step) for step in steps]
    copies.seconds = median(each), median(step.seconds for step in steps)
    return model


def _generator(seed: int) -> np.random.Generator:
    """With the bits that Gymnasium's own generators have: a real environment gets the same state."""
    return np.random.Generator(np.random.PCG64(seed))


def _examined(real: Any) -> tuple[Snapshots, list[_Step]]:
    """The snapshots of an environment, which share large attributes that random play does not change."""
    snapshots = Snapshots(real)
    shared = snapshots.shareable(step.outcome[2] for step in _played(real, snapshots, FIRST_STEPS))
    while True:
        real.reset(seed=0)
        snapshots = Snapshots(real, shared)
        try:
            return snapshots, _played(real, snapshots, ALL_STEPS)
        except ChangedError as error:  # late in an episode
            shared = tuple(place for place in shared if place != error.place)


def _played(real: Any, snapshots: Snapshots, most: int) -> list[_Step]:
    """Steps of random play, each with draws of its own seed."""
    choices = np.random.default_rng(0)
    first, count = int(real.action_space.start), int(real.action_space.n)
    steps: list[_Step] = []
    for episode in range(EPISODES):
        real.reset(seed=episode)
        before = snapshots.learn(real)
        for _ in range(STEPS):
            action, seed = int(choices.integers(count)), int(choices.integers(2**32))
            snapshots.reseed(real, _generator(seed))
            started = time.perf_counter()
            try:
                _, reward, terminated, truncated, _ = real.step(first + action)
            except Exception as error:  # whatever an environment does
                raise CannotCopyError(
                    f"action {action} raised {type(error).__name__} in random play: {error}"
                ) from error
            taken = time.perf_counter() - started
            after = snapshots.learn(real)
            steps.append(_Step(before, action, seed, (float(reward), bool(terminated), after), taken))
            if terminated or truncated or len(steps) == most:
                break
            before = after
        snapshots.check_shared(real)
        if len(steps) == most:
            break
    return steps


def _brief(text: bytes) -> str:
    shown = text.decode()
    return shown if len(shown) <= LONGEST_STATE else f"{shown[:LONGEST_STATE]}…"


def _compare(model: VectorModel, copies: Copies, step: _Step) -> float:
    """Has the model repeat a step of the real environment, twice: a hidden state would have changed in between.

    Returns the seconds of a call.
    """
    low, high = model.reward_range
    if not low <= step.outcome[0] <= high:
        raise ModelError(
            f"reward_range must contain all rewards: {copies.name} paid {step.outcome[0]:g}, got {low, high}"
        )
    state = copies.padded(step.text)
    taken = math.inf
    for _ in range(2):
        rng = _generator(step.seed)
        started = time.perf_counter()
        try:
            states, rewards, terminals = model.step(state[None], np.array([step.action]), rng)
            taken = min(taken, time.perf_counter() - started)
        except RowError as error:
            cause = error.__cause__
            if isinstance(cause, ModelError):
                raise cause from None
            raise CannotCopyError(f"a copy of it raised {type(cause).__name__}: {cause}") from cause
        if (rewards[0], terminals[0], states[0].tobytes().rstrip(b"\0")) != step.outcome:
            raise CannotCopyError(
                f"a copy does not repeat its step with action {step.action} from {_brief(step.text)!r}: it keeps "
                "state outside of the object, in a global or an attribute of its class, or draws from another "
                "generator than its own self.np_random"
            )
    return taken
