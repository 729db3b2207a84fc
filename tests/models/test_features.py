"""What fits see of states, instead of the numbers of a state."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.models.model import States


def turning(states: States, actions: Any, rng: np.random.Generator) -> Any:
    """An angle that is turned without an end, best at 0."""
    moved = states + 0.5 * actions - 0.5 + 0.1 * rng.standard_normal(states.shape)
    return moved, np.cos(moved)


def direction(states: States) -> Floats:
    return np.stack([np.cos(states), np.sin(states)], axis=1)


def wheel(**changes: Any) -> sp.VectorModel:
    declared: dict[str, Any] = {"actions": 3, "discount": 0.9, "initial_state": 2.0, "reward_range": (-1, 1)}
    return sp.VectorModel(turning, **declared | {"features": direction, "terminates": False} | changes)


@pytest.mark.parametrize(
    "made",
    [lambda model: sp.references.LeastSquaresReference(model), lambda model: sp.FittedReference(model, sp.HardMax())],
)
def test_fits_see_the_features_alone(made: Callable[[sp.VectorModel], Any]) -> None:
    states = np.linspace(-3.0, 3.0, 50)
    for features, alike in ((direction, True), (None, False)):
        reference = made(wheel(features=features))
        reference.improve(2_000)
        assert np.allclose(reference.q(states), reference.q(states + 4.0 * np.pi), atol=1e-6) == alike


def test_models_of_models_keep_them() -> None:
    season = sp.models.finite_horizon(wheel(), 7)
    np.testing.assert_allclose(season.features(np.array([[0.5, 3.0]])), [[np.cos(0.5), np.sin(0.5), 3.0]])  # type: ignore[attr-defined]
    finite, _ = sp.models.discretise(wheel(actions=sp.Box(0.0, 2.0)), 5)
    np.testing.assert_array_equal(finite.features(np.array([0.5])), direction(np.array([0.5])))  # type: ignore[attr-defined]
    assert sp.decide(season, calls=2_000, seed=0).calls <= 2_000


def test_models_in_jax_give_features_of_their_own_states() -> None:
    jax = pytest.importorskip("jax")
    model: Any = sp.JaxModel(
        lambda state, action, key: ({"angle": state["angle"] + action}, jax.numpy.cos(state["angle"])),
        actions=2,
        discount=0.9,
        initial_state={"angle": 0.5},
        features=lambda state: jax.numpy.stack([jax.numpy.cos(state["angle"]), jax.numpy.sin(state["angle"])], axis=1),
    )
    np.testing.assert_allclose(model.features(model.initial_state[None]), [[np.cos(0.5), np.sin(0.5)]], rtol=1e-6)


@pytest.mark.parametrize("name", ["Pendulum-v1", "Acrobot-v1"])
def test_angles_of_gymnasium_are_seen_as_observations_show_them(name: str) -> None:
    model: Any = sp.models.from_gymnasium(name)
    environment = gymnasium.make(name)
    observation, _ = environment.reset(seed=3)
    found = model.features(np.asarray(sp.models.state_of(model, environment))[None])[0]
    np.testing.assert_allclose(np.sort(found), np.sort(observation), atol=1e-6)


def test_positions_and_velocities_of_mujoco_are_seen() -> None:
    model: Any = sp.models.from_gymnasium("Hopper-v5")
    bare: Any = gymnasium.make("Hopper-v5").unwrapped
    bare.reset(seed=3)
    found = model.features(np.asarray(sp.models.state_of(model, bare))[None])[0]
    np.testing.assert_array_equal(found, np.concatenate([bare.data.qpos, bare.data.qvel]))


def test_wrong_features_are_named() -> None:
    with pytest.raises(TypeError, match=r"features must be a function of states \[n, ...\] to vectors \[n, d\], got 3"):
        wheel(features=3)
    with pytest.raises(ValueError, match=r"features must return vectors \[n, d\] for 1 states, got shape \(1,\)"):
        sp.decide(wheel(features=np.cos), calls=1_000)
    with pytest.raises(ValueError, match=r"features must be finite, got \[nan, nan\] at state 2.0"):
        sp.decide(wheel(features=lambda states: direction(states) * np.nan), calls=1_000)
