"""Problems and models that are only priced, and how prices grow."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.models.model import States
from smoothplan.recursive.optimise import optimised
from smoothplan.theory.backups import LogSumExp
from smoothplan.theory.curvature import Problem

SMOOTH = sp.LogSumExp(1.0)
Recursive = sp.SparseSampling | sp.SmoothCruiser | sp.SecondOrderSmoothCruiser

each = pytest.mark.parametrize("cruiser", [sp.SparseSampling, sp.SmoothCruiser, sp.SecondOrderSmoothCruiser])


def priced(discount: float = 0.2, **changes: Any) -> sp.VectorModel:
    """A model that cannot be called, only priced."""

    def untouched(states: States, actions: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        raise AssertionError("a forecast calls no simulator")

    declared: dict[str, Any] = {"actions": 2, "reward_range": (0.0, 1.0), "terminates": False}
    return sp.VectorModel(untouched, discount=discount, **(declared | changes))


def entropy_problem(
    discount: float = 0.2,
    temperature: float = 1.0,
    actions: int = 2,
    rewards: tuple[float, float] = (0.0, 1.0),
    noise: float | None = None,
    single_successor: bool = False,
    terminates: bool = False,
) -> Problem:
    """A problem with a LogSumExp backup, or with the hard maximum at temperature 0."""
    at_zero = temperature * math.log(actions)
    low, high = ((reward + at_zero) / (1.0 - discount) for reward in rewards)
    if terminates:
        low, high = min(low, 0.0), max(high, 0.0)
    return Problem(
        actions=actions,
        discount=discount,
        temperature=temperature,
        reward_range=rewards,
        reward_noise=rewards[1] - rewards[0] if noise is None else noise,
        single_successor=single_successor,
        at_zero=(at_zero, at_zero),
        values=(low, high),
        terminates=terminates,
        derivatives=LogSumExp(temperature).derivatives(actions) if temperature > 0.0 else (),
        horizon=None,
        above_max=0.0,
        pairs=True,
    )


def slope(problem: Problem, kinds: tuple[int, int], epsilons: Sequence[float]) -> float:
    """How fast the optimised forecast grows as ε falls: a fitted exponent."""
    calls = [math.log(optimised(problem, epsilon, 0.1, *kinds).calls) for epsilon in epsilons]
    return float(-np.polyfit(np.log(epsilons), calls, 1)[0])
