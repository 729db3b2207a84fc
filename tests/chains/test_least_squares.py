"""Least-squares references: agreement with exact solutions, kinds of features, possible values, bits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Ints
from smoothplan.chains import least_squares
from smoothplan.chains.hinges import ActionHinges
from smoothplan.chains.least_squares import LeastSquaresReference
from smoothplan.models.model import States
from studies.simulators import inventory, value
from studies.textbook import REPORTED_ON
from tests.chains.test_fitted import LENGTH, corridor, solved_corridor


def test_it_agrees_with_the_exact_solution_whatever_the_dtype() -> None:
    exact, found = solved_corridor(sp.HardMax()), []
    for kind in (float, int):
        reference = LeastSquaresReference(corridor(kind))
        reference.improve(3_000)
        assert reference.calls == 3_000
        found.append(reference.q(np.arange(LENGTH)[:, None]))
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0].argmax(axis=1) == 1).all()
    assert np.abs(found[0] - exact).max() < 0.1 * np.ptp(exact)


def test_the_compiled_sum_is_that_of_the_features() -> None:
    rng = np.random.default_rng(0)
    points, chosen = rng.normal(size=(600, 3)), rng.integers(7, size=600)
    for function in ActionHinges.drawn(points, chosen, 7, rng, 50):
        count = function.features(points, chosen).shape[1]
        weights = np.asarray(rng.standard_normal(count), dtype=np.float32)
        plain = [function.features(points, np.full(600, action)) @ weights for action in range(7)]
        np.testing.assert_allclose(function.q(points, weights), np.transpose(plain), atol=1e-4)


def best(reference: LeastSquaresReference, states: States) -> Ints:
    return np.asarray(reference.q(states).argmax(axis=1))


@pytest.mark.parametrize("both", [True, False])
def test_actions_that_are_names_get_functions_of_their_own(both: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product to order is a name: features in which actions are amounts learn little, and are not chosen."""
    if not both:  # the negative control
        drawn = ActionHinges.drawn
        monkeypatch.setattr(ActionHinges, "drawn", staticmethod(lambda *given: drawn(*given)[:1]))
    problem, earned = inventory(3), []
    for seed in range(3):
        reference = LeastSquaresReference(problem.model, seed=seed)
        reference.improve(4_000)
        earned.append(value(problem.model, partial(best, reference), 300)[0])
    assert (np.mean(earned) > -130.0) == both


def test_values_are_possible_near_a_discount_of_1() -> None:
    task = REPORTED_ON["seats"]()
    for seed in range(5):
        reference = LeastSquaresReference(task.model(), seed=seed)
        reference.improve(400)
        q = reference.q(task.states.astype(np.float64))
        assert q.max() < 3.0 * task.q.max()
        assert q.min() > -2.0 * task.q.max()


def test_same_seed_same_bits_also_after_a_restart() -> None:
    whole, begun, restored = (LeastSquaresReference(corridor(), seed=3) for _ in range(3))
    for reference in (whole, begun):
        reference.improve(700)
    restored.restore(begun.saved())
    for reference in (whole, restored):
        reference.improve(900)
    states = np.linspace(0.0, LENGTH, 30)[:, None]
    np.testing.assert_array_equal(whole.q(states), restored.q(states))
    assert restored.calls == 1_600


def test_it_is_blank_until_rewards_differ() -> None:
    def step(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, Any]:
        return states, np.zeros(len(states))

    reference = LeastSquaresReference(
        sp.VectorModel(step, actions=2, discount=0.9, reward_range=(0, 1), terminates=False, initial_state=[0.0])
    )
    reference.improve(2 * least_squares.FIRST_FIT)
    assert reference.is_blank
    assert (reference.q(np.zeros((3, 1))) == 0.0).all()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: LeastSquaresReference(corridor(), root="a"), "states of numbers, got dtype"),
        (lambda: LeastSquaresReference(corridor()).improve(0), "calls must be"),
        (lambda: LeastSquaresReference(corridor()).q(np.zeros(3)), "states must have 2 axes"),
    ],
)
def test_misuse_is_named(call: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        call()
