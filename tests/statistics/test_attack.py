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
from smoothplan.recursive import debias as debiasing
from smoothplan.recursive import level as arithmetic
from smoothplan.recursive.debias import DEBIASING, Debiasing
from smoothplan.recursive.level import Bounds, Level
from smoothplan.theory import curvature, softmaxes
from smoothplan.theory.backups import LogSumExp
from smoothplan.theory.curvature import Problem
from tests.attack import TARGETS, intervals, levels, searching
from tests.attack.climbing import TOLERANCE, Attack, Target
from tests.attack.page import PAGE, read, written
from tests.naive import Exact

KNOWN = {row.name: row for row in read(PAGE.read_text("utf-8"))}
"""The largest ratios that long searches have found."""


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_no_bound_is_exceeded(target: Target) -> None:
    """And the search bites: it finds a good part of what a long one did. Half of a sharp bound would be refuted."""
    attack, floor = Attack.on(target, seed=0), 0.6 * KNOWN[target.name].ratio
    attack.quick()
    assert floor < attack.quick(floor, patience=10) <= 1.0 + TOLERANCE


# --- Wrong bounds -----------------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def scaled(module: Any, name: str, factor: float) -> Callable[[Patch], None]:
    """A function that returns less."""
    original = getattr(module, name)
    return lambda patch: patch.setattr(module, name, lambda *given: factor * original(*given))


def with_fields(module: Any, name: str, **factors: float) -> Callable[[Patch], None]:
    """A function whose result has smaller fields."""
    original = getattr(module, name)

    def wrong(*given: Any) -> Any:
        found = original(*given)
        return found._replace(**{field: factor * getattr(found, field) for field, factor in factors.items()})

    return lambda patch: patch.setattr(module, name, wrong)


def in_place(module: Any, name: str, wrong: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(module, name, wrong)


def with_weights(kind: debiasing.Debiased, wrong: Debiasing) -> Callable[[Patch], None]:
    return lambda patch: patch.setitem(DEBIASING, (kind, len(wrong.values) - 1), wrong)


def no_memory(problem: Problem, level: Bounds, rewards: int) -> arithmetic.Bounds:
    """As if all of a return were drawn anew with every reward."""
    right = right_return(problem, level, 1)
    return right._replace(variance=right.variance / rewards)


def cubic_only(order: int, error: float, eta: float, gamma: float) -> tuple[float, float]:
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
right_interval, right_ball = means.mean_interval, kl.ball_extreme
right_cut, right_support, right_values = cruiser.Truncation.at, cruiser.support, curvature.value_interval
right_gap, right_gap_of_values = curvature.gap_to_hard_max, curvature.gap_of_values
right_radius, right_side = searching.smallest_radius, converging.new_side


def shorter_cut(_: type[cruiser.Truncation], problem: Problem, horizon: int) -> cruiser.Truncation:
    right = right_cut(problem, horizon)
    return right._replace(optimal=0.8 * right.optimal)


def other_end(graph: Graph, rules: Rules, side: int, anchor: int, _: float) -> converging.Side:
    """With the end of the anchor's value that makes relative bounds narrow."""
    return right_side(graph, rules, side, anchor, float((graph.high if side > 0 else graph.low)[anchor]))


WRONG: dict[str, tuple[str, Callable[[Patch], None]]] = {
    "a smaller first remainder": ("plug-in: bias by noise", scaled(arithmetic, "_first_remainder", 0.7)),
    "less of Efron and Stein": ("plug-in: variance", with_fields(arithmetic, "plug_in", variance=0.8)),
    "a plug-in with inexact weights": (
        "plug-in, debiased: bias by noise",
        with_weights("plug-in", Debiasing((2.1, -1.1), (0.0, 0.0))),
    ),
    "a plug-in that is not debiased": (
        "plug-in, debiased twice: bias by noise",
        with_weights("plug-in", Debiasing((1.0, 0.0, 0.0), (0.0, 0.0, 0.0))),
    ),
    "an order 1 with inexact weights": (
        "order-1, debiased: bias by noise",
        with_weights("order-1", Debiasing((0.1, 0.9), (0.0, 0.0))),
    ),
    "an order 1 that is not debiased": (
        "order-1, debiased twice: bias by noise",
        with_weights("order-1", Debiasing((1.0, 0.0, 0.0), (0.0, 0.0, 0.0))),
    ),
    "splits that add nothing": (
        "plug-in, debiased twice: support",
        in_place(debiasing, "swings", lambda kind, debias: ([0.0] * debias, [0.0] * debias)),
    ),
    "less variance at order 1": ("order-1: variance", with_fields(arithmetic, "first_order", variance=0.8)),
    "a factor 1 − 1/K that counts twice": (
        "order-2: variance",
        in_place(Problem, "differing", property(lambda self: (1.0 - 1.0 / self.actions) ** 2)),
    ),
    "no bias of pairs": ("order-2: bias", with_fields(arithmetic, "second_order", bias=0.8)),
    "less noise": ("norm of the noise: fourth", with_fields(debiasing, "noise", fourth=0.9)),
    "moments of fair coins": (
        "central moment: fourth",
        in_place(debiasing, "central_moments", lambda variance, width: (0.0 * variance, variance * width**2 / 4.0)),
    ),
    "rewards that renew all of a return": ("return: variance", in_place(arithmetic, "one_step", no_memory)),
    "clipping that costs half": ("clipping: bias", scaled(arithmetic, "_overshoot", 0.5)),
    "clipping of what is never outside": (
        "clipped reference: second",
        in_place(
            arithmetic, "clipped_reference", lambda problem, around, *_: right_clipping(problem, around, -9.0, 9.0)
        ),
    ),
    "a schedule with a fifth of its bias": ("schedule: bias", in_place(arithmetic, "certify", less_biased)),
    "a smaller third cumulant": (
        "F − T₂ over √3·range³/(108η²)",
        lambda patch: patch.setitem(softmaxes.CUMULANTS, 3, 0.09),
    ),
    "a smaller fifth cumulant": (
        "cumulant of order 5",
        lambda patch: patch.setitem(softmaxes.CUMULANTS, 5, 0.95 * softmaxes.CUMULANTS[5]),
    ),
    "joint cumulants like those of one variable": (
        "joint cumulant of order 3",
        in_place(softmaxes, "cumulant_bounds", lambda _: tuple(softmaxes.CUMULANTS.values())),
    ),
    "pairs whose chains are right": (
        "bias of chains of order 2, long horizons",
        in_place(curvature, "reference_bias", cubic_only),
    ),
    "a wager in hindsight": ("betting interval: coins, ever", in_place(means, "mean_interval", at_one_time)),
    "wagers on what never varies": (
        "betting interval: path by path",
        in_place(
            means,
            "mean_interval",
            lambda count, total, _, *others: right_interval(count, total, total**2 / count, *others),
        ),
    ),
    "a threshold for one time": (
        "two outcomes: the probability, ever",
        in_place(kl, "categorical_threshold", lambda counts, bound, odds: odds),
    ),
    "a threshold for one time and two outcomes": (
        "three outcomes: all probabilities, ever",
        in_place(kl, "categorical_threshold", lambda counts, bound, odds: odds),
    ),
    "no regret": ("outcomes: one function, ever", in_place(kl, "wager_regret", lambda count: 0.0)),
    "a smaller ball": (
        "outcomes: the ball",
        in_place(kl, "ball_extreme", lambda p, f, unseen, level, guess: right_ball(p, f, unseen, 0.9 * level, guess)),
    ),
    "a sequence without a penalty": (
        "confidence sequence: ever",
        in_place(means.ConfidenceSequence, "_deviation", lambda self, *_: 0.0),
    ),
    "a radius without its linear part": (
        "Bernstein's radius",
        in_place(
            means,
            "bernstein_radius",
            lambda variance, width, count, delta: np.sqrt(variance * math.log(2.0 / delta) / count),
        ),
    ),
    "a count without its linear part": (
        "Bernstein's count",
        in_place(
            means,
            "bernstein_count",
            lambda variance, width, radius, delta: variance * math.log(2.0 / delta) / radius**2,
        ),
    ),
    "a cut of less than half of the values": (
        "returns of actions, cut off",
        in_place(cruiser.Truncation, "at", classmethod(shorter_cut)),
    ),
    "chains without advantages": (
        "support of chains and returns",
        in_place(cruiser, "support", lambda problem, _, horizon: right_support(problem, (0.0, 0.0), horizon)),
    ),
    "corrections of one step": ("support of corrections", in_place(cruiser, "weight", lambda *_: 1.0)),
    "costs that nobody pays": (
        "F − max",
        in_place(curvature, "gap_to_hard_max", lambda *given: (0.0, right_gap(*given)[1])),
    ),
    "a gap at one step": (
        "V − V_max",
        in_place(
            curvature,
            "gap_of_values",
            lambda model, backup: tuple((1.0 - model.discount) * end for end in right_gap_of_values(model, backup)),
        ),
    ),
    "values without a regulariser": (
        "optimal values",
        in_place(curvature, "value_interval", lambda model, _: right_values(model, sp.HardMax())),
    ),
    "policies that are no worse than optimal ones": (
        "values of policies",
        in_place(Problem, "policy_values", property(lambda self: self.values)),
    ),
    "actions that are worth what states are": (
        "optimal action values",
        in_place(Problem, "action_values", property(lambda self: self.values)),
    ),
    "sets without the truth, and sweeps": (
        "search: values by sweeps",
        in_place(searching, "smallest_radius", lambda *given: 0.5 * right_radius(*given)),
    ),
    "sets without the truth, and convergence": (
        "search: values by convergence",
        in_place(searching, "smallest_radius", lambda *given: 0.5 * right_radius(*given)),
    ),
    "the wrong end of the anchor's value": ("search: relative values", in_place(converging, "new_side", other_end)),
}
"""What is wrong, whose bound it is, and how it comes about."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_bound_is_exceeded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, break_it = WRONG[name]
    break_it(monkeypatch)
    enough = 1.001
    assert Attack.on(TARGETS[target], seed=0).quick(enough, patience=20) > enough


# --- The page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_every_target() -> None:
    assert [(row.name, row.attacked) for row in KNOWN.values()] == [
        (one.name, one.attacked) for one in TARGETS.values()
    ]
    assert all(0.0 < row.ratio <= 1.0 for row in KNOWN.values())


@pytest.mark.parametrize("path", sorted({target.attacked for target in TARGETS.values()}))
def test_what_is_attacked_exists(path: str) -> None:
    assert pkgutil.resolve_name(path) is not None


def test_a_page_is_read_as_it_is_written() -> None:
    text, rows = PAGE.read_text("utf-8"), list(KNOWN.values())
    assert written(text, rows) == text
    assert read(written(text, rows[:1])) == rows[:1]


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
