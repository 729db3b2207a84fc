"""Runs with debiased levels. Their bias, variance and support are attacked in `test_attack.py`."""

from functools import cache

import numpy as np
import pytest
from scipy.stats import binom

import smoothplan as sp
from smoothplan.backups import LogSumExp


@pytest.mark.parametrize("runs", [120, pytest.param(1_000, marks=pytest.mark.full)])
def test_coverage_of_short_runs(runs: int) -> None:
    """Runs at δ = 0.3, on models whose rewards are fair coins and whose values are far apart.

    By the binomial law with p = δ, the number of intervals that miss is at most the one allowed but for one time in a
    million. Intervals of a twentieth of the width fail: so the test can fail.
    """
    delta = 0.3
    backup = LogSumExp(1.0)
    planner = sp.DebiasedCruiser(backup, epsilon=0.05, delta=delta)
    assert any(level.debias for level in planner.schedule(far_apart(0)).levels)
    misses = narrow = 0
    for seed in range(runs):
        model = far_apart(seed % MODELS)
        result = sp.plan(planner, model, 0, seed=seed)
        (low, high), value = result.interval, solution(seed % MODELS, backup)
        misses += not low <= value <= high
        narrow += abs(value - (low + high) / 2.0) > (high - low) / 40.0
    allowed = int(binom.isf(1e-6, runs, delta))
    assert misses <= allowed < narrow


MODELS = 10


@cache
def far_apart(seed: int) -> sp.TabularModel:
    """A state whose actions lead to a good or to a bad world, with a fair coin for a reward in every one."""
    rng = np.random.default_rng(seed)
    probabilities = np.array([[[0.5, 0.5], [0.4, 0.6]], [[1.0, 0.0], [0.9, 0.1]], [[0.0, 1.0], [0.1, 0.9]]])
    rewards = np.array([[0.5, 0.5], [1.0, 0.9], [0.0, 0.1]]) * rng.uniform(0.8, 1.0)
    successors = np.broadcast_to([1, 2], (3, 2, 2)).copy()
    return sp.TabularModel(probabilities, successors, rewards, discount=0.2, reward_kind="bernoulli")


@cache
def solution(seed: int, backup: LogSumExp) -> float:
    return float(sp.exact.solve(far_apart(seed), backup, 1e-10).values[0])
