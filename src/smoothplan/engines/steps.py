"""Simulator calls from compiled code through a `JitModel`'s step: counted, and checked against what the model declares.

The step is passed as a first-class function, so that nothing is compiled anew for another model. States are vectors of
float64.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, Ints
from smoothplan.compiling import compiled
from smoothplan.models.base import Oracle
from smoothplan.models.calls import Call, SimulatorError
from smoothplan.models.jit import JitModel
from smoothplan.models.vector import Step
from smoothplan.streams import CALLS, Stream, generator, generator_words


class CompiledOracle(NamedTuple):
    """What compiled code needs besides a step to call it: an `Oracle` as compiled code reads it."""

    rng: np.random.Generator
    limits: Floats  # smallest and largest reward, and 1 where states may be terminal
    fault: Floats  # [3 + 2d], a call that broke the declarations: (1, action, reward, state, next state)
    stream: Stream


@partial(compiled, merged=True)
def _blame(
    states: Floats,
    actions: Ints,
    next_states: Floats,
    rewards: Floats,
    terminals: NDArray[np.bool_],
    oracle: CompiledOracle,
) -> None:
    """Writes down the first call that broke the declarations."""
    limits, fault, size = oracle.limits, oracle.fault, states.shape[1]
    for row in range(len(actions)):
        fine = limits[0] <= rewards[row] <= limits[1] and (limits[2] == 1.0 or not terminals[row])
        for axis in range(size):
            fine = fine and abs(next_states[row, axis]) < np.inf
        if not fine:
            fault[0], fault[1], fault[2] = 1.0, actions[row], rewards[row]
            for axis in range(size):
                fault[3 + axis], fault[3 + size + axis] = states[row, axis], next_states[row, axis]
            return


@partial(compiled, allocates=True, inner=True)
def simulated(
    states: Floats, actions: Ints, step: Step, oracle: CompiledOracle
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Simulator calls at states [n, d], one for each action [n], counted and checked."""
    oracle.stream[CALLS] += np.uint64(len(actions))
    next_states, rewards, terminals = step(states, actions, oracle.rng)
    low, high, ends = oracle.limits[0], oracle.limits[1], oracle.limits[2] == 1.0
    # No branches, so that the compiler takes several numbers at once; a NaN fails every comparison.
    sound = True
    for row in range(len(rewards)):
        sound &= (low <= rewards[row]) & (rewards[row] <= high) & (ends | (not terminals[row]))
    for number in next_states.reshape(-1):
        sound &= abs(number) < np.inf
    if not sound:
        _blame(states, actions, next_states, rewards, terminals, oracle)
        raise ValueError("the simulator broke its declarations")
    return next_states, rewards, terminals


def step_type() -> Any:
    """The type of a step: what `JitModel` compiles for states that are vectors of float64."""
    import numba
    from numba.core.types import FunctionType

    states = numba.types.Array(numba.float64, 2, "C", readonly=True)
    actions = numba.types.Array(numba.int64, 1, "C", readonly=True)
    flags = numba.types.Array(numba.boolean, 1, "C")
    result = numba.types.Tuple((numba.float64[:, ::1], numba.float64[::1], flags))
    return FunctionType(result(states, actions, numba.typeof(generator(0))))


def serves(model: JitModel) -> bool:
    """Whether compiled engines can run a model: its states must be known to be vectors of float64."""
    example = model.initial_state
    return example is not None and example.ndim == 1 and example.dtype == np.float64


@contextmanager
def compiled_oracle(model: JitModel, oracle: Oracle, size: int) -> Iterator[CompiledOracle]:
    """An oracle of a model with states [size]; on the way out, a call that broke the model's declarations is named."""
    low, high = model.reward_range
    fault = np.zeros(3 + 2 * size)
    try:
        limits = np.array([low, high, float(model.terminates)])
        yield CompiledOracle(oracle.rng, limits, fault, oracle.stream)
    except ValueError as error:
        if fault[0] == 0.0:
            raise
        here, there = np.split(fault[3:], 2)
        # The call is one of a batch, of which nothing else is left: made again, it may draw other numbers.
        call = Call(here[None], np.array([int(fault[1])]), generator_words(oracle.rng), oracle.seed, oracle.chunk, 0)
        raise SimulatorError(
            f"a simulator call broke what the model declares, rewards in [{low:g}, {high:g}], finite states and "
            f"terminates={model.terminates} (state {here.tolist()}, action {int(fault[1])}, reward "
            f"{fault[2]}, next state {there.tolist()}{call.origin()})",
            call,
        ) from error
