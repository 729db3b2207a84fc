"""The oracle counts, draws and checks; declarations are canonical; a call that fails can be made again.

Simulators of one call at a time, and compiled ones.
"""

import json
import pickle
import re
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from gymnasium import spaces

import smoothplan as sp
from smoothplan.base.arguments import Ints
from smoothplan.base.stopping import Stopped, StopSignal
from smoothplan.base.streams import generator, generator_words
from smoothplan.models.model import Declarations, declared_values, random_actions
from smoothplan.theory import curvature


class Counting:
    """A walk on the line that counts the rows it was asked for, and may fail."""

    def __init__(self, fails: str = "") -> None:
        self.rows = 0
        self.fails = fails

    def __call__(self, states: Any, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
        self.rows += len(actions)
        if self.fails == "raises":
            raise RuntimeError("the simulator broke down")
        rewards = np.full(len(actions), np.nan if self.fails == "nan" else 0.5)
        return states + rng.standard_normal(states.shape), rewards


DECLARED: dict[str, Any] = {"actions": 2, "discount": 0.9, "reward_range": (0, 1)}


@pytest.mark.parametrize(("fails", "error"), [("raises", sp.SimulatorError), ("nan", sp.ModelError)])
def test_calls_of_a_failing_simulator_are_counted(fails: str, error: type[Exception]) -> None:
    counting = Counting(fails)
    oracle = sp.Oracle(sp.VectorModel(counting, **DECLARED), seed=0)
    with pytest.raises(error):
        oracle.sample(np.zeros((5, 2)), np.zeros(5, dtype=np.int64))
    assert oracle.calls == 5
    assert 5 <= counting.rows <= 3 * 5  # a batch that raises is called again in halves, to find out who is to blame


def test_declarations_are_canonical_and_frozen() -> None:
    start = np.array([0.0, 1.0])
    given: dict[str, Any] = {"actions": np.int64(2), "discount": 0, "max_successors": np.int64(3)}
    declared = Declarations(**given, reward_range=(0, 1), initial_state=start)
    start[:] = 9.0
    assert (declared.actions, declared.discount, declared.reward_range) == (2, 0.0, (0.0, 1.0))
    assert (declared.reward_kind, declared.max_successors, declared.terminates) == ("bounded", 3, True)
    assert (declared.initial_state.tolist(), declared.initial_state.flags.writeable) == ([0.0, 1.0], False)
    with pytest.raises(AttributeError):
        declared.actions = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"reward_kind": "normal"}, ValueError, "reward_kind must be 'deterministic' or 'bernoulli' or 'transition'"),
        ({"value_range": (0, np.inf)}, ValueError, "value_range[1] must be finite, got inf"),
        ({"value_range": (-2, -1)}, ValueError, "value_range must overlap [0, 10], the values that reward_range=(0.0"),
        ({"reward_kind": "bernoulli", "reward_range": (0, 2)}, ValueError, "must be (0, 1) for bernoulli rewards, got"),
        ({"terminates": 1}, TypeError, "terminates must be true or false, got 1"),
        ({"step": 3}, TypeError, "step must be a function of (states, actions, rng), got 3"),
    ],
)
@pytest.mark.parametrize("kind", [sp.VectorModel, sp.JitModel])
def test_a_wrong_declaration_is_refused(
    kind: Any, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        kind(**{"step": Counting(), **DECLARED, **changes})


def test_a_value_range_is_declared_by_any_model() -> None:
    step = Counting()
    assert sp.VectorModel(step, **DECLARED).value_range is None
    assert sp.VectorModel(step, **DECLARED, value_range=(0, 1)).value_range == (0.0, 1.0)
    table = sp.TabularModel([[[1.0]]], [[[0]]], [[1.0]], discount=0.9, reward_range=(0, 1), value_range=(1, 9))
    assert table.value_range == pickle.loads(pickle.dumps(table)).value_range == (1.0, 9.0)
    assert "rewards=deterministic in [0, 1], values in [1, 9])" in repr(table)
    own: Any = SimpleNamespace(**{name: getattr(table, name) for name in ("discount", "reward_range", "terminates")})
    assert declared_values(own) is None  # a class of one's own need not have the attribute
    own.value_range = [1, 9]
    assert declared_values(own) == (1.0, 9.0)
    # The end of what is possible is not refused because 1/(1 − 0.95) is a little less than 20.
    always = {**DECLARED, "discount": 0.95, "reward_range": (1, 1), "terminates": False, "value_range": (20, 20)}
    assert curvature.value_interval(sp.VectorModel(step, **always), sp.HardMax()) == pytest.approx((20.0, 20.0))


def answering(*answer: Any) -> Any:
    """A step that gives one answer to everything."""
    return lambda states, actions, rng: answer


STATES = np.array([[1.5], [2.5]])
FINE = (STATES, np.array([0.0, 1.0]), np.array([False, False]))


@pytest.mark.parametrize(
    ("step", "declared", "message"),
    [
        (
            answering(STATES, np.array([0.5, 1.25])),
            {},
            "reward 1.25 is outside the declared range [0, 1] (state [2.5], action 1, reward 1.25, next state [2.5], "
            "seed 0, chunk 0)",
        ),
        (answering(STATES, np.array([0.5, np.nan])), {}, "reward nan is outside the declared range [0, 1]"),
        (answering(STATES, np.array([1.0, 0.5])), {"reward_kind": "bernoulli"}, "reward 0.5 of a bernoulli model is"),
        (answering(np.array([[1.5], [np.nan]]), FINE[1]), {}, "the next state is not finite (state [2.5], action 1, r"),
        (
            answering(STATES, FINE[1], ~FINE[2]),
            {"terminates": False},
            "is terminal in a model declared with terminates",
        ),
        (answering(STATES[:1], FINE[1]), {}, "next_states must have the shape of states, (2, 1), got (1, 1)"),
        (answering(STATES.astype(np.float32), FINE[1]), {}, "must have the dtype of states, float64, got float32"),
        (answering(STATES, np.zeros((2, 1))), {}, "rewards must have shape (2,), got (2, 1)"),
        (answering(STATES, np.array([True, False])), {}, "rewards must be numbers, got bool"),
        (answering(STATES, FINE[1], np.array([0, 1])), {}, "terminals must be booleans, got int64"),
        (lambda s, a, rng: None, {}, "step must return (next_states, rewards, terminals), got NoneType: None"),
    ],
)
def test_the_oracle_names_what_a_simulator_does_wrong(step: Any, declared: dict[str, Any], message: str) -> None:
    model = sp.VectorModel(step, **DECLARED, **declared)
    with pytest.raises(sp.ModelError, match=re.escape(message)):
        sp.Oracle(model, 0).sample(STATES, [0, 1])


@pytest.mark.parametrize("precision", [np.float32, np.float16])
def test_rewards_are_converted_before_they_are_checked(precision: Any) -> None:
    """0.3 of lower precision is more than 0.3. The error says how its range is declared, and that is accepted."""
    rounded, rewards, name = float(precision(0.3)), np.full(2, 0.3, dtype=precision), precision.__name__

    def found(reward_range: tuple[float, float]) -> Any:
        model = sp.VectorModel(answering(STATES, rewards), **DECLARED | {"reward_range": reward_range})
        return sp.Oracle(model, 0).sample(STATES, [0, 1]).rewards.tolist()

    message = f"{rounded} is outside the declared range [0, 0.3]; {name} rounds: declare the ends as float(np.{name}("
    with pytest.raises(sp.ModelError, match=re.escape(message)):
        found((0, 0.3))
    assert found((0.0, rounded)) == [rounded, rounded]


def _add_in_place(states: Any, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
    states += 1.0
    return states, np.zeros(len(actions))


def _swap_actions(states: Any, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
    actions[:] = 0
    return states, np.zeros(len(actions))


@pytest.mark.parametrize("step", [_add_in_place, _swap_actions])
def test_the_oracle_does_not_let_a_simulator_change_its_arguments(step: Any) -> None:
    states = STATES.copy()
    with pytest.raises(sp.ModelError, match="must not change its arguments"):
        sp.Oracle(sp.VectorModel(step, **DECLARED), 0).sample(states, [0, 1])
    np.testing.assert_array_equal(states, STATES)


def test_terminals_may_be_left_out_and_no_calls_cost_nothing() -> None:
    oracle = sp.Oracle(sp.VectorModel(answering(STATES, np.array([0, 1])), **DECLARED), 0)
    found = oracle.sample(STATES, [0, 1])
    assert (found.rewards.dtype.name, found.rewards.tolist()) == ("float64", [0.0, 1.0])
    assert not found.terminals.any()
    found = oracle.sample(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
    assert (found.next_states.shape, len(found.rewards), len(found.terminals), oracle.calls) == ((0, 3), 0, 0, 2)


def slippery(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
    """Fails by a draw, and only where the state is large."""
    luck = rng.random()
    if luck > 0.99 and state[0] > 0.5:
        raise ZeroDivisionError("no luck")
    return state, 1.5 if luck > 0.95 and state[0] > 0.5 else 0.5, False


def test_a_call_that_went_wrong_can_be_made_again() -> None:
    """The draws before it are left out, and it fails in the same way, also from JSON and from a copy."""
    model = sp.VectorModel.from_scalar(slippery, actions=2, discount=0.9, reward_range=(0, 1))
    states = np.where(np.arange(300) % 3 == 0, 1.0, 0.0)[:, None]
    kinds = set()
    for seed in range(20):
        with pytest.raises(sp.SimulatorError) as caught:
            sp.Oracle(model, seed, 7).sample(states, np.arange(300) % 2)
        error = caught.value
        call = error.call
        assert call.states.tolist() == [[1.0]]
        assert (call.seed, call.chunk) == (seed, 7)
        assert f"state [1.0], action {call.actions[0]}" in str(error)
        for again in (call, call.to_json(), pickle.loads(pickle.dumps(error)).call):
            with pytest.raises(sp.SimulatorError) as repeated:
                sp.reproduce(model, again)
            assert str(repeated.value) == str(error)
        kinds.add(type(error.__cause__))
    assert kinds == {ZeroDivisionError, type(None)}


def test_what_is_no_call_is_refused() -> None:
    sound: dict[str, Any] = {"states": [[1.0]], "dtype": "<f8", "actions": [0], "generator": [1, 2, 3, 4, 0, 0]}
    sound |= {"seed": 0, "chunk": 0, "row": 0}
    assert sp.models.Call.from_json(json.dumps(sound)).row == 0
    changes = ({"dtype": "O"}, {"actions": [0, 1]}, {"generator": [1, 2, 3, 4, 2, 0]}, {"row": 9}, {"chunk": "0"})
    for text in (*(json.dumps(sound | change) for change in changes), "", "[]", "[" * 100_000, "{}"):
        with pytest.raises(ValueError, match="call must be one that an error of a simulator has written down"):
            sp.models.Call.from_json(text)


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


@pytest.mark.parametrize("raises", [False, True])
def test_from_scalar_stops_within_a_batch_and_counts_the_calls_made(raises: bool) -> None:
    """At the next row, or within a call if a signal comes."""
    stop, made = StopSignal(), 0

    def step(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float]:
        nonlocal made
        made += 1
        if made == 13:
            stop.pull()
            if raises:
                raise Stopped("interrupted")
        return state, 0.0

    oracle = sp.Oracle(sp.VectorModel.from_scalar(step, **DECLARED), 0)
    with stop.on_signals():
        oracle.sample(np.zeros((5, 1)), np.zeros(5, dtype=np.int64))
        with pytest.raises(Stopped):
            oracle.sample(np.zeros((50, 1)), np.zeros(50, dtype=np.int64))
    assert oracle.calls == made == 13


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
    for size in (1, 7, 0, 100, 3):
        batch = np.zeros((size, 2)), np.zeros(size, dtype=np.int64)
        found = compiled.sample(*batch)
        total += found.next_states[:, 0].sum()
        np.testing.assert_equal(found, plain.sample(*batch))
    assert compiled.calls == plain.calls == total == 111


def _two_results(states: Any, actions: Ints, rng: np.random.Generator) -> tuple[Any, Any]:
    return states.copy(), np.zeros(len(actions))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (_add_in_place, "Numba cannot compile step for states of type "),
        (_two_results, r"step must return \(next_states, rewards, terminals\) of type .*, got "),
    ],
)
def test_jit_refuses_a_wrong_step_at_once(step: Any, message: str) -> None:
    with pytest.raises(sp.ModelError, match=f"(?s){message}"):
        sp.JitModel(step, **DECLARED, initial_state=np.zeros(2))


def test_actions_of_a_box_reach_every_kind_of_step_as_they_are() -> None:
    """Numbers [n] or vectors [n, d]; a fraction is not rounded, and one outside the box is named."""

    def scalar(state: Any, action: Any, rng: np.random.Generator) -> Any:
        return state + action, float(np.sum(action))

    def vector(states: Any, actions: Any, rng: np.random.Generator) -> Any:
        return states + actions, actions.sum(axis=1), np.zeros(len(actions), dtype=np.bool_)

    declared: dict[str, Any] = {"discount": 0.9, "reward_range": (-9, 9)}
    single = sp.VectorModel.from_scalar(scalar, actions=sp.Box(-1.0, 1.0), initial_state=0.0, **declared)
    found = sp.Oracle(single, 0).sample(np.zeros(2), [0.25, -0.5])
    np.testing.assert_array_equal(found[:2], [[0.25, -0.5], [0.25, -0.5]])
    plane: dict[str, Any] = {"actions": sp.Box([-1, -1], [1, 2]), "initial_state": np.zeros(2)} | declared
    for model in (
        sp.VectorModel(vector, **plane),
        sp.VectorModel.from_scalar(scalar, **plane),
        sp.JitModel(vector, **plane),
    ):
        oracle = sp.Oracle(model, 0)
        actions = random_actions(model, np.zeros((5, 2)), oracle.rng)
        states, rewards, _ = oracle.sample(np.zeros((5, 2)), actions)
        np.testing.assert_allclose(states, actions, rtol=1e-15)
        np.testing.assert_allclose(rewards, actions.sum(axis=1), rtol=1e-12)
        assert len(oracle.sample(np.zeros((0, 2)), np.zeros((0, 2))).rewards) == 0
        with pytest.raises(ValueError, match=re.escape("in Box([-1.0, -1.0], [1.0, 2.0]), got [0.0, 3.0]")):
            oracle.sample(np.zeros((1, 2)), [[0.0, 3.0]])
        with pytest.raises(ValueError, match="must match, got shapes"):
            oracle.sample(np.zeros((2, 2)), np.zeros((1, 2)))
    assert oracle.calls == 5
    call = sp.models.Call(np.zeros((2, 2)), actions[:2], generator_words(oracle.rng))
    again = sp.models.Call.from_json(call.to_json())
    np.testing.assert_array_equal(again.actions, actions[:2])
    assert sp.reproduce(model, again).rewards[1] == rewards[1]


def test_a_box_may_be_one_of_gymnasium() -> None:
    def step(states: Any, actions: Any, rng: np.random.Generator) -> Any:
        return states, actions[:, 0]

    model = sp.VectorModel(step, actions=spaces.Box(-1.0, 2.0, (2,)), discount=0.9)
    assert repr(model.actions) == "Box([-1.0, -1.0], [2.0, 2.0])"
    with pytest.raises(ValueError, match="high must be finite"):
        sp.VectorModel(step, actions=spaces.Box(0.0, np.inf, (1,)), discount=0.9)
    with pytest.raises(ValueError, match="actions must be a Box of real numbers, or a number of actions, got Box"):
        sp.VectorModel(step, actions=spaces.Box(0, 3, (1,), np.int64), discount=0.9)
