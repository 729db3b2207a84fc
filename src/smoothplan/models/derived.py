"""Models made of other models: episodes that are cut off after some steps, and finitely many actions out of a box."""

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import load_numba
from smoothplan.models.model import Box, Declarations, GenerativeModel, States, legal_actions, required_model
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import JitModel, VectorModel


def finite_horizon(
    model: GenerativeModel, steps: int, *, discount: float | None = None, value_range: tuple[float, float] | None = None
) -> GenerativeModel:
    """A model whose episodes are cut off after a number of steps. The steps left are part of its state.

    States of a table are numbered by stages: state s with h steps left is number (steps − h)·S + s, terminal if h = 0.
    States of other simulators, numbers or vectors [d], get the steps left as a last entry, [d + 1]. Searches by bounds
    count transitions of the model as it was, so that the samples of all stages add up, unless the backup depends on the
    state or there is a key.

    Args:
        model: a simulator.
        steps: the most steps of an episode; the initial state has all of them left.
        discount: γ of the new model, at most 1; by default that of the model. Discounts of single steps keep their
            ratio to it.
        value_range: bounds of the values of the new model, see `Declarations`; by default none beyond its rewards.

    >>> from smoothplan.models import chain
    >>> season = finite_horizon(chain(states=5), steps=10, discount=1.0)
    >>> season.states, season.horizon
    (55, 10)
    """
    required_model(model, boxes=True)
    steps = arguments.whole("steps", steps, most=10**9)
    if getattr(model, "stationary", None) is not None:
        raise ValueError(f"model must not have been cut off before, got one with horizon={cast(Any, model).horizon}")
    discount = model.discount if discount is None else discount
    if isinstance(model, TabularModel):
        return _staged_table(model, steps, discount, value_range)
    start = model.initial_state
    declared: dict[str, Any] = {part.name: getattr(model, part.name, None) for part in fields(Declarations)}
    declared |= {
        "discount": discount,
        "horizon": steps,
        "terminates": True,
        "value_range": value_range,
        "initial_state": None if start is None else with_steps_left(np.asarray(start)[None], steps)[0],
        "legal": None if declared["legal"] is None else partial(_legal_of_staged, model),
        "features": None if declared["features"] is None else partial(_features_of_staged, model),
        "stationary": model,
    }
    # Without an initial state it is not known whether a step has a discount of its own.
    if isinstance(model, JitModel) and (start is not None or discount == model.discount):
        vectors = start is None or np.ndim(start) > 0
        return JitModel(_staged_kernel(model, vectors, discount), **declared)
    return VectorModel(_StagedStep(model, discount), **declared)


def with_steps_left(states: States, left: ArrayLike) -> States:
    """States [n] or [n, d] with the steps left as a last entry, [n, d + 1]."""
    states = states[:, None] if states.ndim == 1 else states
    if states.ndim != 2 or states.dtype.kind not in "biuf":
        found = f"shape {states.shape[1:]} of dtype {states.dtype}"
        raise ValueError(f"states must be numbers or vectors of numbers to be cut off after some steps, got {found}")
    left, dtype = np.broadcast_to(np.asarray(left), len(states)), states.dtype
    if dtype.kind == "f" and left.max(initial=0) > (most := 2 ** (np.finfo(dtype).nmant + 1)):
        raise ValueError(f"steps must be at most {most:,} for states of {dtype}, which count no further")
    if dtype.kind != "f":
        dtype = np.result_type(states, np.min_scalar_type(int(left.max(initial=0))))
    return np.concatenate([states.astype(dtype), left[:, None].astype(dtype)], axis=1)


def split_stages(model: GenerativeModel, states: States) -> tuple[States, Ints]:
    """States [n, ...] of a model from `finite_horizon`: those of the model as it was, [n, ...], and steps left, [n]."""
    before, states = cast(Any, model).stationary, np.asarray(states)
    if isinstance(model, TabularModel):
        stages, inner = np.divmod(states, before.states)
        return inner, model.states // before.states - 1 - stages
    return _split(before, states)


def _split(before: GenerativeModel, states: States) -> tuple[States, Ints]:
    """States with the steps left as a last entry: those of the model before, and the steps left."""
    example = states[0, :-1] if before.initial_state is None else np.asarray(before.initial_state)
    inner = states[:, :-1].reshape(len(states), *example.shape)
    return inner.astype(example.dtype), states[:, -1].astype(np.int64)


def at_stage(model: GenerativeModel, states: States, left: ArrayLike) -> States:
    """States of a model from `finite_horizon`, [n, ...]: those of the model as it was, [n, ...], with steps left."""
    if isinstance(model, TabularModel):
        before: Any = cast(Any, model).stationary
        return np.asarray(states + before.states * (model.states // before.states - 1 - np.asarray(left)))
    return with_steps_left(states, left).astype(np.asarray(model.initial_state).dtype)


@dataclass(frozen=True, eq=False)
class _StagedStep:
    """The step of a simulator whose states have the steps left as a last entry, at another discount."""

    model: GenerativeModel
    discount: float

    @property
    def one_at_a_time(self) -> bool:
        return getattr(self.model.step, "one_at_a_time", False)

    def __call__(self, states: States, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
        inner, left = _split(self.model, states)
        answer = self.model.step(arguments.frozen(inner), actions, rng)
        if not isinstance(answer, tuple) or len(answer) < 2 or np.shape(answer[0]) != inner.shape:
            return answer  # the oracle says what is wrong
        ends = (left <= 1) | (np.asarray(answer[2]) if len(answer) > 2 else False)
        following = with_steps_left(np.asarray(answer[0]), left - 1).astype(states.dtype)
        before = self.model.discount
        return following, answer[1], ends, *(_rescaled(np.asarray(each), before, self.discount) for each in answer[3:])


def _legal_of_staged(model: GenerativeModel, states: States) -> Any:
    return legal_actions(model, _split(model, states)[0])


def _features_of_staged(model: GenerativeModel, states: States) -> Floats:
    """What fits see of states with the steps left: the features of the model before, and the steps left."""
    before, left = _split(model, states)
    found = np.asarray(cast(Any, model).features(arguments.frozen(before)), dtype=np.float64)
    return np.concatenate([found, left[:, None]], axis=1)


def _rescaled(discounts: Floats, before: float, discount: float) -> Floats:
    """Discounts of single steps at another γ: episodes survive a step with the same probability, d/γ."""
    return discount * (discounts / before) if before > 0.0 else discounts + discount


def _staged_kernel(model: JitModel, vectors: bool, discount: float) -> Any:
    """The compiled step of states with the steps left as a last entry, see `_StagedStep`."""
    step, before, discounts = cast(Any, model.step), model.discount, bool(vars(model).get("_discounts", False))
    rescaled = load_numba().njit(nogil=True)(_rescaled)

    def staged(states: Floats, actions: Ints, rng: np.random.Generator) -> Any:
        count, size = len(actions), states.shape[1] - 1
        inner = states[:, :size].copy() if vectors else states[:, 0].copy()
        answer = step(inner, actions, rng)
        following, ends = np.empty_like(states), answer[2]
        following[:, :size] = answer[0].reshape(count, size)
        for row in range(count):
            following[row, size] = states[row, size] - 1
            ends[row] = ends[row] or states[row, size] <= 1
        if discounts:
            return following, answer[1], ends, rescaled(answer[3], before, discount)
        return following, answer[1], ends

    return load_numba().njit(nogil=True)(staged)


def _staged_table(
    model: TabularModel, steps: int, discount: float, value_range: tuple[float, float] | None
) -> TabularModel:
    """The table of all stages; terminal outcomes lead to the last one, whose states are terminal."""
    entries = model.probabilities.size * (steps + 1)
    arguments.whole("states · actions · successors · (steps + 1)", entries, most=10**9)  # memory: some gigabytes
    stages = np.arange(steps + 1)[:, None, None, None] + 1
    stages = np.where(model.ends[None] | (stages > steps), steps, stages)
    terminal = np.concatenate([np.tile(model.terminal, steps), np.ones(model.states, dtype=np.bool_)])

    def tiled(array: Any) -> Any:
        return np.concatenate([array] * (steps + 1))

    names = model.state_names or tuple(map(str, range(model.states)))
    return TabularModel(
        tiled(model.probabilities),
        (model.successors + model.states * stages).reshape(-1, *model.successors.shape[1:]),
        tiled(model.rewards),
        discount=discount,
        horizon=steps,
        legal=None if model.legal is None else tiled(model.legal),
        # At the last stage the end of an episode no longer tells rewards of one next state apart.
        reward_kind="deterministic" if model.reward_kind == "transition" else model.reward_kind,
        reward_range=model.reward_range,
        value_range=value_range,
        terminal=terminal,
        initial_state=model.initial_state,
        state_names=[f"{name}, {steps - stage} left" for stage in range(steps + 1) for name in names],
        action_names=model.action_names,
        stationary=model,
    )


def discretise(model: GenerativeModel, points: int | ArrayLike) -> tuple[GenerativeModel, Floats]:
    """The model with finitely many actions out of its box, and the distances between them as costs [K, K].

    Distances are Euclidean, in units of the box's sides, and scaled to at most 1: costs for `OptimalTransport`.

    Args:
        model: a simulator whose actions are a `Box`.
        points: how many along each side, evenly spaced, ends included; or the actions themselves, [K] or [K, d].

    >>> from smoothplan import Box, VectorModel
    >>> heating = VectorModel(lambda s, a, rng: (s + a, -(s**2)), actions=Box(-1.0, 1.0), discount=0.9)
    >>> discretise(heating, 3)[0].action_names
    ('-1', '0', '1')
    """
    box: Any = required_model(model, boxes=True).actions
    if not isinstance(box, Box):
        raise ValueError(f"model must have actions in a Box to choose from, got {box} actions")
    chosen = box.grid(cast(int, points)) if np.ndim(points) == 0 else box.required("points", points)
    names = [", ".join(f"{number:.4g}" for number in np.atleast_1d(point)) for point in chosen]
    names = [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names)]
    scaled = (chosen.reshape(len(chosen), -1) - box.low.reshape(-1)) / (box.high - box.low).reshape(-1)
    apart = np.sqrt(((scaled[:, None] - scaled[None]) ** 2).sum(axis=-1))
    step = _ChosenActions(model.step, arguments.frozen(chosen))
    declared: dict[str, Any] = {part.name: getattr(model, part.name, None) for part in fields(Declarations)}
    declared["actions"] = names
    if declared["stationary"] is not None:
        declared["stationary"] = discretise(declared["stationary"], chosen)[0]
    return VectorModel(step, **declared), apart / max(float(apart.max()), 1e-300)


def chosen_actions(model: GenerativeModel) -> Floats:
    """The actions of a model from `discretise`, [K] or [K, d]."""
    return cast(_ChosenActions, model.step).points


@dataclass(frozen=True, eq=False)
class _ChosenActions:
    """The step of a simulator with actions in a box, for the numbers of chosen ones."""

    step: Any
    points: Floats  # [K] or [K, d]

    @property
    def one_at_a_time(self) -> bool:
        return getattr(self.step, "one_at_a_time", False)

    def __call__(self, states: States, actions: Ints, rng: np.random.Generator) -> Any:
        return self.step(states, arguments.frozen(self.points[actions]), rng)
