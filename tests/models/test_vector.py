"""Simulators of one call at a time, and compiled ones."""

from typing import Any

import numba
import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Ints
from smoothplan.base.streams import generator

DECLARED: dict[str, Any] = {"actions": 2, "discount": 0.9, "reward_range": (0, 1)}
BATCHES = (1, 7, 0, 100, 3)


def _scalar_walk(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
    assert isinstance(action, int)
    moved = state + (2 * action - 1) * rng.integers(1, 4)
    return moved, float(moved > 0), bool(abs(moved) > 5)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.float32])
def test_from_scalar_is_the_loop_over_the_rows(dtype: Any) -> None:
    model = sp.VectorModel.from_scalar(_scalar_walk, **DECLARED)
    states, actions = np.arange(-5, 6).astype(dtype), np.arange(11) % 2
    transition = sp.Oracle(model, seed=2).sample(states, actions)
    rng = generator(2)
    expected = [_scalar_walk(int(s), int(a), rng) for s, a in zip(states, actions, strict=True)]
    assert transition.next_states.dtype == dtype
    assert list(zip(*(values.tolist() for values in transition), strict=True)) == expected


def test_from_scalar_does_not_round_a_state() -> None:
    model = sp.VectorModel.from_scalar(lambda s, a, rng: (s + 0.7, 0.0, False), **DECLARED)
    with pytest.raises(sp.ModelError, match="next_states must have the dtype of states, int64, got float64"):
        sp.Oracle(model, 0).sample(np.array([1, 2]), [0, 0])


def _count_up(states: Any, actions: Ints, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Adds one to the first entry, a number of the generator to the second."""
    next_states = states.copy()
    for row in range(len(actions)):
        next_states[row, 0] += 1.0
        next_states[row, 1] += rng.random()
    return next_states, np.zeros(len(actions)), np.zeros(len(actions), dtype=np.bool_)


@pytest.mark.parametrize("step", [_count_up, numba.njit(_count_up)])
def test_jit_equals_the_same_step_in_python_and_counts(step: Any) -> None:
    """The rows that were stepped add up to the count: an account that the oracle does not keep."""
    compiled = sp.Oracle(sp.JitModel(step, **DECLARED, initial_state=np.zeros(2)), 5)
    plain = sp.Oracle(sp.VectorModel(_count_up, **DECLARED), 5)
    total = 0.0
    for size in BATCHES:
        actions = np.zeros(size, dtype=np.int64)
        transition = compiled.sample(np.zeros((size, 2)), actions)
        total += transition.next_states[:, 0].sum()
        for one, two in zip(transition, plain.sample(np.zeros((size, 2)), actions), strict=True):
            np.testing.assert_array_equal(one, two)
    assert compiled.calls == total == sum(BATCHES)


def _writes(states: Any, actions: Ints, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    states[0, 0] = 0.0
    return states.copy(), np.zeros(len(actions)), np.zeros(len(actions), dtype=np.bool_)


def _two_results(states: Any, actions: Ints, rng: np.random.Generator) -> tuple[Any, Any]:
    return states.copy(), np.zeros(len(actions))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (_writes, "Numba cannot compile step for states of type .*Cannot modify readonly array"),
        (_two_results, r"step must return \(next_states, rewards, terminals\) of type .*, got "),
    ],
)
def test_jit_refuses_a_wrong_step_at_once(step: Any, message: str) -> None:
    with pytest.raises(sp.ModelError, match=f"(?s){message}"):
        sp.JitModel(step, **DECLARED, initial_state=np.zeros(2))
