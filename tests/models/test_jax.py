"""Simulators written in JAX: what they compute, what they refuse, and the same bits wherever they run."""

import pickle
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.experimental.functional import FuncEnv

import smoothplan as sp
from smoothplan.base.streams import generator
from smoothplan.models.jax import LARGEST, load_jax

jax = pytest.importorskip("jax")
jnp = jax.numpy


class Store(NamedTuple):
    """A state of two types: float32 cannot hold its count."""

    level: Any
    count: Any


def drift(state: Any, action: Any, key: Any) -> Any:
    """A number that moves at random, and pays most in the middle; it ends far away."""
    moved = state + 0.25 * (2 * action - 1) + 0.1 * jax.random.normal(key)
    return moved, jnp.exp(-(moved**2)), jnp.abs(moved) > 2.0


def counting(state: Store, action: Any, key: Any) -> Any:
    """Adds the action to every level, and one to the count."""
    return Store(state.level + action, state.count + 1), 0.1 * action


def queue(state: Any, action: Any, key: Any) -> Any:
    """A queue of at most 3, which service may shorten for a price."""
    came, served = jax.random.bernoulli(key, jnp.array([0.4, 0.5])).astype(jnp.int32)
    length = jnp.clip(state + came - served * action, 0, 3)
    return length, jnp.where(length == 0, 1.0, 0.0) * jnp.where(action == 1, 0.5, 1.0)


def queue_model() -> sp.JaxModel:
    declared: dict[str, Any] = {"reward_range": (0, 1), "reward_kind": "transition", "max_successors": 3}
    declared |= {"terminates": False, "initial_state": 2}
    return sp.JaxModel(queue, actions=["wait", "serve"], discount=0.5, **declared)


def drift_model() -> sp.JaxModel:
    return sp.JaxModel(drift, actions=2, discount=0.9, reward_range=(0, 1), initial_state=0.0)


@pytest.mark.parametrize("count", [1, 3, 17, LARGEST + 5])
def test_every_row_is_the_step_of_its_state_with_a_key_of_its_own(count: int) -> None:
    draws = np.random.default_rng(3)
    states, actions = draws.normal(size=count).astype(np.float32), draws.integers(2, size=count)
    found = sp.Oracle(drift_model(), seed=5).sample(states, actions)
    words = sp.Oracle(drift_model(), seed=5).rng.integers(2**32, size=2, dtype=np.uint32)
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    for row in {0, count // 2, count - 1}:
        moved, reward, terminal = drift(states[row], actions[row], jax.random.fold_in(key, row))
        np.testing.assert_allclose(found.next_states[row], moved, rtol=1e-5)
        np.testing.assert_allclose(found.rewards[row], reward, rtol=1e-5)
        assert found.terminals[row] == terminal
    assert [found.next_states.dtype, found.rewards.dtype] == [np.dtype(np.float32), np.dtype(np.float64)]
    noise = found.next_states - states - 0.25 * (2 * actions - 1)
    assert len(np.unique(noise)) > 0.99 * count  # float32 knows few numbers


def test_batches_of_many_sizes_are_compiled_in_few() -> None:
    traced = []

    def step(state: Any, action: Any, key: Any) -> Any:
        traced.append(state)
        return state, 0.0

    model, draws = sp.JaxModel(step, actions=2, discount=0.9, initial_state=np.zeros(2)), generator(0)
    for count in range(1, 200):
        model.step(np.zeros((count, 2), np.float32), np.zeros(count, np.int64), draws)
    # Twice to see whether it is pure, and once for each of 4, 16, 64 and 256 rows to see whether it is as it was.
    assert len(traced) == 6
    assert model.step.compiled[next(iter(model.step.compiled))].many._cache_size() == 5


def test_a_step_whose_global_has_changed_is_an_error_at_the_next_size() -> None:
    rate = [0.5]
    model = sp.JaxModel(lambda s, a, k: (s + rate[0], 0.0), actions=2, discount=0.9, initial_state=1.5)
    step = partial(model.step, rng=generator(0))
    assert step(np.ones(4, np.float32), np.zeros(4, np.int64))[0].tolist() == [1.5] * 4
    rate[0] = 0.75
    assert step(np.ones(4, np.float32), np.zeros(4, np.int64))[0].tolist() == [1.5] * 4  # as it was examined
    with pytest.raises(sp.ModelError, match=r"pure.*\(1\.5, 0\.0\) and \(1\.75, 0\.0\) \(state 1\.0, action 0\)"):
        step(np.ones(5, np.float32), np.zeros(5, np.int64))


def test_a_tree_is_a_vector_outside_that_holds_all_of_it() -> None:
    start = Store(np.array([0.1, 0.2], np.float32), 2**30 + 1)
    model = sp.JaxModel(counting, actions=3, discount=0.9, reward_range=(0, 0.2), initial_state=start)
    assert (model.initial_state.dtype, model.initial_state.shape) == (np.float64, (3,))
    found = sp.Oracle(pickle.loads(pickle.dumps(model)), 0).sample(model.initial_state[None], [2])
    after = model.unravel(found.next_states[0])
    assert isinstance(after, Store)
    assert (after.level.dtype, after.count.dtype, int(after.count)) == (np.float32, np.int32, 2**30 + 2)
    np.testing.assert_array_equal(after.level, start.level + np.float32(2))
    np.testing.assert_array_equal(model.ravel(after), found.next_states[0])
    with pytest.raises(TypeError, match="state must have the structure of"):
        model.ravel({"level": 1.0})


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("ends", [(-0.1, 0.3), (0.1, 0.7), (0.3, 0.3)])
def test_declared_ends_are_those_of_the_rewards_own_precision(kind: str, ends: tuple[float, float]) -> None:
    def step(state: Any, action: Any, key: Any) -> Any:
        return state, jnp.array(ends, dtype=kind)[action], False, jnp.array(0.9, dtype=kind)

    model = sp.JaxModel(step, actions=2, discount=0.9, reward_range=ends, initial_state=0.0)
    found = sp.Oracle(model, 0).sample(np.zeros(2, np.float32), [0, 1])
    assert found.rewards.tolist() == list(ends)
    assert not found.terminals.any()  # 0.9 in single precision would end some episode, or be too large


def test_a_reward_that_is_not_a_rounded_end_is_an_error() -> None:
    beyond = np.nextafter(np.float32(0.3), np.float32(1))
    model = sp.JaxModel(lambda s, a, k: (s, beyond), actions=2, discount=0.9, reward_range=(0, 0.3))
    with pytest.raises(sp.SimulatorError, match="outside the declared range"):
        sp.Oracle(model, 0).sample(np.zeros(2, np.float32), [0, 1])


def test_a_step_without_its_key_is_deterministic() -> None:
    def season(state: Any, action: Any, key: Any) -> Any:
        return state, 1.0, False, 0.5 + 0.0 * action

    still = sp.JaxModel(lambda s, a, k: (s + 1, 1.0), actions=2, discount=0.9, initial_state=0.0)
    assert (still.reward_kind, still.max_successors) == ("deterministic", 1)
    for random in (drift_model(), sp.JaxModel(season, actions=2, discount=0.9, initial_state=0.0)):
        assert (random.reward_kind, random.max_successors) == ("bounded", None)


counted: list[Any] = []


def impure(way: str) -> Callable[..., Any]:
    """A step that breaks its promise in some way."""

    def step(state: Any, action: Any, key: Any) -> Any:
        counted.append(state)
        match way:
            case "count":
                return state + float(len(counted)), 0.5
            case "noise":
                return state + np.random.default_rng().random(1), 0.5
            case "noise where state is 0":
                return jnp.where(state == 0, state + np.random.default_rng().random(1), state), 0.5
            case "tracer":
                return state + counted[0], 0.5
            case _:
                noise = jax.ShapeDtypeStruct((1,), np.float32)
                draw = np.random.default_rng().standard_normal
                return jax.pure_callback(lambda _: draw(1, np.float32), noise, state, vmap_method="sequential"), 0.5

    counted.clear()
    return step


@pytest.mark.parametrize("way", ["count", "noise", "noise where state is 0", "callback"])
@pytest.mark.parametrize("jitted", [False, True])
def test_a_step_that_is_not_pure_is_an_error_that_names_state_and_numbers(way: str, jitted: bool) -> None:
    step = jax.jit(impure(way)) if jitted else impure(way)
    with pytest.raises(sp.ModelError, match=r"pure.*two different results: .*0\.5\).*\(state \[1\.5\], action 0\)"):
        sp.JaxModel(step, actions=2, discount=0.9, initial_state=[1.5])
    late = sp.JaxModel(step, actions=2, discount=0.9, reward_range=(0, 1))
    with pytest.raises(sp.ModelError, match=r"pure.*\(state \[2\.5\], action 0\)"):
        sp.check_model(late, states=np.array([[2.5]], np.float32))


def test_a_leaked_tracer_is_an_error_that_names_the_state() -> None:
    with pytest.raises(sp.ModelError, match=r"UnexpectedTracerError.*\(state \[1\.5\], action 0\)"):
        sp.JaxModel(impure("tracer"), actions=2, discount=0.9, initial_state=[1.5])


def test_check_model_finds_a_hidden_state_that_shows_late() -> None:
    seen = [0]

    def hidden(state: Any) -> Any:
        seen[0] += 1
        return state + np.float32(seen[0] // 3)

    def step(state: Any, action: Any, key: Any) -> Any:
        shape = jax.ShapeDtypeStruct((1,), np.float32)
        return jax.pure_callback(hidden, shape, state, vmap_method="sequential"), 0.5

    with pytest.raises(sp.ModelError, match="two different results: the simulator keeps a hidden state"):
        sp.check_model(sp.JaxModel(step, actions=2, discount=0.9, reward_kind="transition", initial_state=[1.5]))


@pytest.mark.parametrize(
    ("step", "start", "message"),
    [
        (lambda s, a, k: (s, 1.0) if s > 0 else (s, 2.0), 1.0, r"TracerBoolConversionError.*state 1\.0, action 0"),
        (lambda s, a, k: s, 1.0, r"step must return \(next_state, reward, terminal\)"),
        (lambda s, a, k: (s * 0.5, 1.0), 3, r"form of state, int32\[\], got float32\[\]; write .* decimal points"),
        (lambda s, a, k: (s[0], 1.0), [1.0], r"form of state, float32\[1\], got float32\[\]"),
        (lambda s, a, k: (s, s), [1.0], r"reward must be one number, got float32\[1\]"),
        (lambda s, a, k: (s, 1.0), 2**40, "int32 for JAX here, got 1099511627776"),
        (lambda s, a, k: (s, 1.0), {"at": "x"}, r"initial_state\['at'\] must be numbers"),
        (lambda s, a, k: (s, 1.0), (), "initial_state must have a number"),
    ],
)
def test_a_step_or_a_state_that_cannot_be_is_refused(step: Any, start: Any, message: str) -> None:
    with pytest.raises((sp.ModelError, TypeError), match=message):
        sp.JaxModel(step, actions=2, discount=0.9, initial_state=start)


def test_keys_and_half_precision_are_refused_as_states() -> None:
    for start in (jax.random.key(0), (jnp.zeros(2, jnp.bfloat16), 1)):
        with pytest.raises(TypeError, match="must be numbers of a type that NumPy has"):
            sp.JaxModel(lambda s, a, k: (s, 1.0), actions=2, discount=0.9, initial_state=start)


def test_legal_actions_may_be_a_function_of_a_tree() -> None:
    legal = jax.vmap(lambda state: jnp.stack([True, state.count > 0, state.level[0] > 1]))
    start = Store(np.zeros(2), 0)
    model = sp.JaxModel(counting, actions=3, discount=0.9, legal=legal, initial_state=start)
    states = np.stack([model.initial_state, model.ravel(Store(np.full(2, 2.0), 1)), model.initial_state])
    assert model.legal is not None
    assert np.asarray(model.legal(states)).tolist() == [[True, False, False], [True] * 3, [True, False, False]]
    with pytest.raises(ValueError, match="legal, got 1"):
        sp.Oracle(model, 0).sample(states, [0, 2, 1])


def test_actions_out_of_a_box_reach_the_step_as_vectors() -> None:
    def push(state: Any, action: Any, key: Any) -> Any:
        return state + action, -jnp.sum(action**2)

    box = sp.Box([-1.0, -1.0], [1.0, 1.0])
    model = sp.JaxModel(push, actions=box, discount=0.9, reward_range=(-2, 0), initial_state=np.zeros(2))
    finite, _ = sp.models.discretise(model, 3)
    found = sp.Oracle(finite, 0).sample(np.zeros((9, 2), np.float32), np.arange(9))
    np.testing.assert_array_equal(found.next_states, box.grid(3))


def exact_queue() -> float:
    """The largest value of a queue of 2, by iteration."""
    values = np.zeros(4)
    for _ in range(100):
        updated = np.zeros((4, 2))
        for length in range(4):
            for action in range(2):
                for came, served in np.ndindex(2, 2):
                    chance = (0.4 if came else 0.6) * 0.5
                    after = int(np.clip(length + came - served * action, 0, 3))
                    reward = (after == 0) * (0.5 if action else 1.0)
                    updated[length, action] += chance * (reward + 0.5 * values[after])
        values = updated.max(axis=1)
    return float(values[2])


def test_planners_find_the_value_with_the_same_bits_for_any_workers() -> None:
    searched = sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.1, delta=1e-6), queue_model(), seed=1)
    assert searched.interval[0] <= exact_queue() <= searched.interval[1]
    planner = sp.DebiasedCruiser(sp.LogSumExp(0.5), epsilon=0.2, delta=0.1)
    values = {workers: sp.plan(planner, queue_model(), seed=2, workers=workers) for workers in (1, 2, "threads:2")}
    assert len({(each.value, *each.interval, each.calls) for each in values.values()}) == 1


def test_agents_decide_on_a_model_in_jax() -> None:
    model = drift_model()
    sp.check_model(model)
    far = np.float32(1.5)
    assert sp.decide(model, far, calls=4_000, seed=0).action == 0
    agent = sp.Agent(model, calls=2_000, seed=0)
    assert [agent.act(far), agent.act(-far)] == [0, 1]


class Ramp(FuncEnv[Any, Any, Any, Any, Any, Any, Any]):
    """A functional environment whose state is a tree, and whose actions are numbered from 1."""

    action_space = gymnasium.spaces.Discrete(2, start=1)
    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,))

    def initial(self, rng: Any, params: Any = None) -> Any:
        return {"at": jax.random.uniform(rng, (1,)), "steps": jnp.int32(0)}

    def transition(self, state: Any, action: Any, rng: Any, params: Any = None) -> Any:
        return {"at": state["at"] + action + jax.random.normal(rng), "steps": state["steps"] + 1}

    def reward(self, state: Any, action: Any, next_state: Any, rng: Any, params: Any = None) -> Any:
        return next_state["at"][0] + jax.random.normal(rng)

    def terminal(self, state: Any, rng: Any, params: Any = None) -> Any:
        return state["steps"] > 1

    def observation(self, state: Any, rng: Any, params: Any = None) -> Any:
        return state["at"]


def test_a_functional_environment_of_gymnasium_is_a_model_in_jax() -> None:
    from gymnasium.envs.functional_jax_env import FunctionalJaxEnv

    environment: Any = FunctionalJaxEnv(Ramp())
    model: Any = sp.models.from_gymnasium(gymnasium.wrappers.TimeLimit(environment, 10), discount=0.9)
    environment.reset(seed=4)
    state = sp.models.state_of(model, environment)
    assert state.dtype == np.float64
    words = np.random.default_rng(0).integers(2**32, size=2, dtype=np.uint32)
    after, rewards, ends = model.step(state[None], np.array([1]), np.random.default_rng(0))
    key = jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), 0)
    # The environment takes its key for the step from its own, by a split, which is passed by here.
    wanted = environment.func_env.transition(environment.state, 2, key)
    np.testing.assert_allclose(after[0], model.ravel(wanted), rtol=1e-6)
    np.testing.assert_allclose(rewards[0], environment.func_env.reward(None, 2, wanted, key), rtol=1e-6)
    assert not ends[0]
    assert model.step(after, np.array([0]), np.random.default_rng(0))[2][0]


def test_an_environment_of_gymnax_keeps_its_time_unless_it_is_taken_out() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        gymnax = pytest.importorskip("gymnax", exc_type=ImportError)
    environment, params = gymnax.make("CartPole-v1")
    model = sp.models.from_gymnax("CartPole-v1", discount=1.0, reward_range=(1, 1))
    assert (model.horizon, model.reward_kind, model.max_successors, model.actions) == (500, "deterministic", 1, 2)
    state = model.unravel(model.initial_state)
    _, wanted, *_ = environment.step_env(jax.random.key(0), state, 1, params)
    late = model.ravel(state.replace(time=499))
    found = sp.Oracle(model, 0).sample(np.stack([model.initial_state, late]), [1, 1])
    np.testing.assert_allclose(found.next_states[0], model.ravel(wanted), rtol=1e-6)
    assert found.terminals.tolist() == [False, True]
    endless = sp.models.from_gymnax(environment, params, discount=0.9, time_limit=False)
    assert (endless.horizon, endless.initial_state.shape, endless.initial_state.dtype) == (None, (4,), np.float32)
    box = sp.models.from_gymnax("Pendulum-v1", discount=0.9)
    assert (box.actions.low.tolist(), box.actions.high.tolist()) == ([-2.0], [2.0])


def test_a_missing_jax_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    load_jax.cache_clear()
    with pytest.raises(ImportError, match=r'pip install "smoothplan\[jax\]"'):
        sp.JaxModel(drift, actions=2, discount=0.9)
    load_jax.cache_clear()
