"""A quick attack on every bound, and on wrong ones, which it must break; `python -m tests.attack` makes a long one."""

import itertools
import math
import pkgutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Ints
from smoothplan.bounds import converge as converging
from smoothplan.chains import cruiser
from smoothplan.confidence import kl, means
from smoothplan.graph.graph import Graph, Rules
from smoothplan.models.model import total_weight
from smoothplan.recursive import debias as debiasing
from smoothplan.recursive import level as arithmetic
from smoothplan.recursive.debias import DEBIASING, Debiasing
from smoothplan.recursive.level import Bounds, Level
from smoothplan.theory import curvature, softmaxes
from smoothplan.theory.backups import LogSumExp
from smoothplan.theory.curvature import Problem
from tests.attack import PAGE, TARGETS, intervals, levels, read, searching, written
from tests.attack.climbing import TOLERANCE, Attack, Target
from tests.naive import Exact

KNOWN = read(PAGE.read_text("utf-8"))
"""The largest ratios that long searches have found."""


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_no_bound_is_exceeded(target: Target) -> None:
    """And the search bites: it finds a good part of what a long one did. Half of a sharp bound would be refuted."""
    attack, floor = Attack(target, seed=0), 0.6 * KNOWN[target.name][0]
    attack.quick()
    assert floor < attack.quick(floor, patience=10) <= 1.0 + TOLERANCE


# --- Wrong bounds -----------------------------------------------------------------------------------------------------


def scaled(function: Callable[..., Any], factor: float) -> Callable[..., Any]:
    """A function that returns less."""
    return lambda *given: factor * function(*given)


def with_fields(function: Callable[..., Any], **factors: float) -> Callable[..., Any]:
    """A function whose result has smaller fields."""

    def wrong(*given: Any) -> Any:
        found = function(*given)
        return found._replace(**{field: factor * getattr(found, field) for field, factor in factors.items()})

    return wrong


def no_memory(problem: Problem, level: Bounds, rewards: int) -> arithmetic.Bounds:
    """As if all of a return were drawn anew with every reward."""
    right = right_return(problem, level, 1)
    return right._replace(variance=right.variance / rewards)


def cubic_only(order: int, error: float, eta: float, gamma: float, horizon: None) -> tuple[float, float]:
    """Without what the pairs' own chains get wrong."""
    cubic = curvature.remainder_constant(3, eta) * error**3 / (1.0 - gamma)
    return -cubic, cubic


def at_one_time(count: int, total: float, *others: float) -> tuple[float, float]:
    """The best wager in hindsight, for nothing."""
    level = (others[-1] + math.log(2.0)) / count
    return kl.bernoulli_lower(total / count, level), kl.bernoulli_upper(total / count, level)


def less_biased(problem: Problem, table: Sequence[Level]) -> list[Bounds]:
    return [proved._replace(bias=proved.bias / 5.0) for proved in right_certificates(problem, table)]


right_return, right_certificates, right_clipping = arithmetic.one_step, arithmetic.certify, arithmetic.clipped_reference
right_interval, right_ball, right_side = means.mean_interval, kl.ball_extreme, converging.new_side
right_cut, right_support, right_values = cruiser.Truncation.at, cruiser.support, curvature.value_interval
right_gap, right_gaps = curvature.gap_to_hard_max, curvature.gap_of_values
less_radius = scaled(searching.smallest_radius, 0.5)


def of_all_actions(backup: Any, model: Any) -> tuple[float, float]:
    """As if none was illegal."""
    found = backup.value(np.zeros((model.states, model.actions)), np.arange(model.states))
    return float(found.min()), float(found.max())


def shorter_cut(_: type[cruiser.Truncation], problem: Problem, horizon: int) -> cruiser.Truncation:
    right = right_cut(problem, horizon)
    return right._replace(optimal=0.8 * right.optimal)


def other_end(graph: Graph, rules: Rules, side: int, anchor: int, _: float, order: Ints) -> converging.Side:
    """With the end of the anchor's value that makes relative bounds narrow."""
    return right_side(graph, rules, side, anchor, float((graph.high if side > 0 else graph.low)[anchor]), order)


def without_variance(count: int, total: float, _: float, *others: float) -> tuple[float, float]:
    """Wagers on what never varies."""
    return right_interval(count, total, total**2 / count, *others)


WRONG: dict[str, tuple[Any, Any, Any]] = {
    "plug-in: bias by noise": (arithmetic, "_first_remainder", scaled(arithmetic._first_remainder, 0.7)),
    "plug-in: variance": (arithmetic, "plug_in", with_fields(arithmetic.plug_in, variance=0.8)),
    # Inexact weights, or none.
    "plug-in, debiased: bias by noise": (DEBIASING, ("plug-in", 1), Debiasing((2.1, -1.1), (0.0, 0.0))),
    "plug-in, debiased twice: bias by noise": (DEBIASING, ("plug-in", 2), Debiasing((1.0, 0.0, 0.0), (0.0,) * 3)),
    "order-1, debiased: bias by noise": (DEBIASING, ("order-1", 1), Debiasing((0.1, 0.9), (0.0, 0.0))),
    "order-1, debiased twice: bias by noise": (DEBIASING, ("order-1", 2), Debiasing((1.0, 0.0, 0.0), (0.0,) * 3)),
    "plug-in, debiased twice: support": (debiasing, "swings", lambda kind, debias: ([0.0] * debias, [0.0] * debias)),
    "order-1: variance": (arithmetic, "first_order", with_fields(arithmetic.first_order, variance=0.8)),
    "order-2: variance": (Problem, "differing", property(lambda self: (1.0 - 1.0 / self.actions) ** 2)),
    "order-2: bias": (arithmetic, "second_order", with_fields(arithmetic.second_order, bias=0.8)),
    "norm of the noise: fourth": (debiasing, "noise", with_fields(debiasing.noise, fourth=0.9)),
    "central moment: fourth": (debiasing, "central_moments", lambda v, width: (0.0 * v, v * width**2 / 4.0)),
    "return: variance": (arithmetic, "one_step", no_memory),
    "clipping: bias": (arithmetic, "_overshoot", scaled(arithmetic._overshoot, 0.5)),
    "clipped reference: second": (
        arithmetic,
        "clipped_reference",
        lambda it, q, *_: right_clipping(it, q, -9.0, 9.0),
    ),
    "schedule: bias": (arithmetic, "certify", less_biased),
    "F − T₂ over √3·range³/(108η²)": (softmaxes.CUMULANTS, 3, 0.09),
    "cumulant of order 5": (softmaxes.CUMULANTS, 5, 0.95 * softmaxes.CUMULANTS[5]),
    "joint cumulant of order 3": (softmaxes, "cumulant_bounds", lambda _: tuple(softmaxes.CUMULANTS.values())),
    "bias of chains of order 2, long horizons": (curvature, "reference_bias", cubic_only),
    "betting interval: coins, ever": (means, "mean_interval", at_one_time),
    "betting interval: path by path": (means, "mean_interval", without_variance),
    # Thresholds for one time.
    "two outcomes: the probability, ever": (kl, "categorical_threshold", lambda counts, bound, odds: odds),
    "three outcomes: all probabilities, ever": (kl, "categorical_threshold", lambda counts, bound, odds: odds),
    "outcomes: one function, ever": (kl, "wager_regret", lambda count: 0.0),
    "outcomes: the ball": (
        kl,
        "ball_extreme",
        lambda p, f, top, level, guess: right_ball(p, f, top, 0.9 * level, guess),
    ),
    "confidence sequence: ever": (means.ConfidenceSequence, "_deviation", lambda self, *_: 0.0),
    # Without their linear parts.
    "Bernstein's radius": (
        means,
        "bernstein_radius",
        lambda v, _, count, delta: np.sqrt(v * math.log(2 / delta) / count),
    ),
    "Bernstein's count": (means, "bernstein_count", lambda v, _, radius, delta: v * math.log(2 / delta) / radius**2),
    "returns of actions, cut off": (cruiser.Truncation, "at", classmethod(shorter_cut)),
    "support of chains and returns": (
        cruiser,
        "support",
        lambda it, _, horizon: right_support(it, (0.0, 0.0), horizon),
    ),
    "support of corrections": (cruiser, "total_weight", lambda *_: 1.0),  # as if they had one step
    "F − max": (curvature, "gap_to_hard_max", lambda *given: (0.0, right_gap(*given)[1])),
    "V − V_max": (curvature, "gap_of_values", lambda m, f: tuple((1.0 - m.discount) * end for end in right_gaps(m, f))),
    "optimal values": (curvature, "value_interval", lambda model, _: right_values(model, sp.HardMax())),
    "values of policies": (Problem, "policy_values", property(lambda self: self.values)),
    "optimal action values": (Problem, "action_values", property(lambda self: self.values)),
    # One step less, half of all steps, and the values at zero of all actions, legal or not.
    "optimal values, with steps left": (curvature, "value_interval", lambda m, f, left: right_values(m, f, left - 1)),
    "V − V_max, episodes": (curvature, "horizon_of", lambda model: max(1, model.horizon - 1)),
    "bias of chains of order 1, finite horizons": (curvature, "total_weight", scaled(total_weight, 0.5)),
    "optimal values, episodes": (curvature, "at_zero_range", of_all_actions),
    "search: values by convergence, episodes": (curvature, "horizon_of", lambda model: max(1, model.horizon - 1)),
    # Sets without the truth, and the wrong end of the anchor's value.
    "search: values by sweeps, episodes": (searching, "smallest_radius", less_radius),
    "search: values by sweeps, stages": (searching, "smallest_radius", less_radius),
    "search: values by convergence, stages": (searching, "smallest_radius", less_radius),
    "search: values by sweeps": (searching, "smallest_radius", less_radius),
    "search: values by convergence": (searching, "smallest_radius", less_radius),
    "search: relative values": (converging, "new_side", other_end),
}
"""By target, what makes its bound wrong: an attribute or an entry, and what takes its place."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_bound_is_exceeded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, key, wrong = WRONG[name]
    if isinstance(owner, dict):
        monkeypatch.setitem(owner, key, wrong)
    else:
        monkeypatch.setattr(owner, key, wrong)
    enough = 1.001
    assert Attack(TARGETS[name], seed=0).quick(enough, patience=20) > enough


# --- The page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_every_target() -> None:
    """It is read as it is written, and what it says is attacked exists."""
    text = PAGE.read_text("utf-8")
    assert written(text, KNOWN) == text
    assert list(KNOWN) == list(TARGETS)
    for target, (ratio, line) in zip(TARGETS.values(), KNOWN.values(), strict=True):
        assert 0.0 < ratio <= 1.0
        assert f"`{target.attacked.removeprefix('smoothplan.')}`" in line
        assert pkgutil.resolve_name(target.attacked) is not None


# --- The truth --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "level",
    [
        Level("plug-in", samples=4, reference=0, debias=2),
        Level("order-1", samples=2, reference=0, linear=0, debias=1),
        Level("order-2", samples=1, reference=0, linear=0, quadratic=0, pairs=3),
        Level("order-2", samples=2, reference=0, linear=0, quadratic=0, pairs=2, printed=True),
    ],
    ids=["plug-in", "order-1", "order-2", "order-2, as printed"],
)
def test_the_truth_of_a_level_is_that_of_the_plain_recursion(level: Level) -> None:
    """Where a return is a reward of two values, after which the episode ends."""
    rng, backup = np.random.default_rng(level.samples), LogSumExp(0.4)
    laws = levels.Laws(rng.uniform(size=(2, 2)), rng.dirichlet(np.ones(2), size=2))
    model = sp.TabularModel(
        np.stack([laws.chances] * 2),
        np.ones((2, 2, 2), dtype=int),
        np.stack([laws.values] * 2),
        discount=0.5,
        terminal=np.array([False, True]),
    )
    found = Exact(Problem.of(model, backup), (Level("constant"), level), backup, model).level(1, 0)
    outcomes = levels.Outcomes.of(laws, level.samples, 2**level.debias)
    weights = DEBIASING["plug-in" if level.kind == "plug-in" else "order-1", level.debias]
    sums = levels.in_place_of_value(backup, outcomes.blocks, weights)
    truth = levels.uncorrected(outcomes, sums, 0.0)
    if level.kind != "plug-in":
        quadratic = laws if level.kind == "order-2" else None
        truth = levels.corrected(backup, outcomes, sums, laws, quadratic, level.pairs, 0.0, level.printed)
    expected = found.mean, found.variance, found.values[0], found.values[-1]
    np.testing.assert_allclose([truth.error, truth.variance, truth.low, truth.high], expected, rtol=1e-9)


def test_the_probability_of_ever_failing_is_that_of_all_sequences() -> None:
    chances, length = np.array([0.5, 0.2, 0.3]), 6

    def outside(counts: Ints) -> Any:
        return (counts[:, 0] > counts[:, 1] + 2) | (counts[:, 2] == 4)

    expected = 0.0
    for sequence in itertools.product(range(3), repeat=length):
        counts = np.cumsum(np.eye(3, dtype=np.int64)[list(sequence)], axis=0)
        expected += float(np.prod(chances[list(sequence)])) * outside(counts).any()
    found = intervals.ever(partial(intervals.by_counts, outside), chances, length)
    assert found == pytest.approx(expected, rel=1e-12)
