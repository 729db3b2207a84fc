"""The schedule behind Theorem 7.4: levels written down by a rule, not searched for, whose price is proved to be Õ(ε⁻³).

Biases fall by √γ from one level to the next, b_k = (W/2)·γ^(k/2). A fine level has the one before it as its linear
child, and a far coarser one, of a bias of about √b_k, for its reference. docs/proofs/prices.md has the proof. What runs
is the schedule that a search finds; it is compared with this one here.
"""

import math
from bisect import bisect_left
from dataclasses import replace

import numpy as np
import pytest

from smoothplan import confidence
from smoothplan.recursive import level as arithmetic
from smoothplan.recursive.level import Bounds, Level
from smoothplan.recursive.optimise import optimised
from smoothplan.recursive.schedule import CERTAIN_SHARE, REFERENCE_SHARE, Schedule, shared_reference, trimmed
from smoothplan.theory.curvature import Problem
from tests.recursive.common import entropy_problem


def explicit_schedule(problem: Problem, epsilon: float, delta: float = 0.1) -> Schedule:
    """The explicit schedule for ε < W/2, of a backup whose derivatives are bounded up to the sixth."""
    gamma, bend = problem.discount, problem.derivatives[0]
    levels = [Level("constant")]
    returns = [arithmetic.one_step(problem, arithmetic.certify(problem, levels)[0])]
    # A quarter of ε is for the bias of the root's linear child, and a quarter for that of its reference.
    fine, radius = epsilon / 4.0, math.sqrt(epsilon / (4.0 * bend)) / 2.0
    while returns[-1].bias > min(fine, radius):
        bias = problem.width / 2.0 * gamma ** (len(levels) / 2.0)
        room = (1.0 - math.sqrt(gamma)) * bias  # what the linear child leaves, a third of it for the reference's bias
        level, proved = explicit_level(problem, returns, bias, first(returns, math.sqrt(room / (3.0 * bend))))
        levels.append(level)
        returns.append(arithmetic.one_step(problem, proved._replace(bias=bias)))
    coarse, linear = first(returns, radius), first(returns, fine)
    through, share = returns[coarse], REFERENCE_SHARE * delta / problem.actions
    samples = math.ceil(confidence.bernstein_count(through.variance, through.width, radius, share))
    root = arithmetic.first_order(problem, shared_reference(problem, through, samples, delta), returns[linear])
    room, share = epsilon - root.bias, CERTAIN_SHARE * delta
    repeats = math.ceil(confidence.bernstein_count(root.variance, root.high - root.low, room, share))
    top = Level("order-1", samples=samples, reference=coarse, linear=linear, shift=float(root.shift))
    return Schedule(problem, trimmed([*levels, top]), repeats, epsilon, delta)


def first(returns: list[Bounds], bias: float) -> int:
    """The first level whose return has no more than this bias, or the number of levels: biases fall."""
    return bisect_left(returns, -bias, key=lambda through: -float(through.bias))


def explicit_level(problem: Problem, returns: list[Bounds], bias: float, coarse: int) -> tuple[Level, Bounds]:
    """A level of this bias: order 1 around a coarse reference, debiased; plug-in if no level is fine enough for that.

    It takes the least of 4, 8, 16, … returns per action that will do.
    """
    last, sizes = len(returns) - 1, 4.0 * 2.0 ** np.arange(61)
    if coarse > last:
        level = Level("plug-in", samples=1, reference=last)
        proved = arithmetic.plug_in(problem, returns[last], arithmetic.reference(problem, returns[last], sizes))
    else:
        level = Level("order-1", samples=4, reference=coarse, debias=2, linear=last)
        proved = arithmetic.first_order(
            problem, arithmetic.reference(problem, returns[coarse], sizes), returns[last], debias=2
        )
    size = int(np.flatnonzero(proved.bias <= bias)[0])
    proved = Bounds(*(float(column[size] if np.ndim(column) else column) for column in proved))
    return replace(level, samples=int(sizes[size]), shift=proved.shift), proved


@pytest.mark.parametrize("epsilon", [0.1, 1e-3, 1e-9])
@pytest.mark.parametrize(
    ("discount", "temperature", "actions"), [(0.0, 1.0, 2), (0.2, 0.3, 3), (0.2, 0.01, 2), (0.7, 1.0, 2)]
)
def test_the_explicit_schedule_is_certified(discount: float, temperature: float, actions: int, epsilon: float) -> None:
    schedule = explicit_schedule(entropy_problem(discount, temperature, actions), epsilon)
    assert schedule.bias + schedule.noise <= epsilon * (1.0 + 1e-9)
    assert schedule.bias <= epsilon / 2.0


def test_what_the_proof_says_of_the_explicit_levels() -> None:
    """Variances and noise are bounded, supports grow slowly, N grows like bias^(−1/2): Lemmas 7.2 and 7.3."""
    setting = entropy_problem(0.5)
    schedule = explicit_schedule(setting, 1e-11)
    rows = [row for row, level in enumerate(schedule.levels[:-1]) if level.debias == 2]
    assert rows == list(range(rows[0], rows[-1] + 1))
    gamma, (second, third) = setting.discount, setting.derivatives[:2]
    # The rule itself: i(k) = max(0, ⌈k/2 + c⌉), and the level before for what is fine.
    theta = math.sqrt((1.0 - math.sqrt(gamma)) / (3.0 * second)) / gamma
    offset = 2.0 * math.log(math.sqrt(setting.width / 2.0) / theta) / math.log(1.0 / gamma)
    coarse = [max(0, math.ceil(row / 2.0 + offset)) for row in range(len(schedule.levels) - 1)]
    for row, level in enumerate(schedule.levels[1:-1], start=1):
        fine = coarse[row] < row
        assert level.kind == ("order-1" if fine else "plug-in")
        assert (level.reference, level.linear) == ((coarse[row], row - 1) if fine else (row - 1, None))
        assert level.rewards == 1
    targets = setting.width / 2.0 * gamma ** (np.arange(len(schedule.levels) - 1) / 2.0)
    certificates = [schedule.certificates[row] for row in rows]
    biases = np.array([float(it.bias) for it in certificates])
    assert (biases <= targets[rows] * (1.0 + 1e-12)).all()
    variances = np.array([float(it.variance) for it in certificates])
    assert variances[len(rows) // 2 :].max() <= 1.01 * variances[: len(rows) // 2].max()
    for row in rows:
        level = schedule.levels[row]
        assert level.reference is not None
        through = schedule.returns[level.reference]
        noise = 2.0 * (setting.actions - 1) * float(through.variance) / level.samples
        assert noise <= (1.0 - math.sqrt(gamma)) / (math.sqrt(gamma) * third)
    sizes = np.array([schedule.levels[row].samples for row in rows]) * np.sqrt(targets[rows])
    assert sizes[len(rows) // 2 :].max() <= 2.0 * sizes[: len(rows) // 2].max()  # powers of two
    # A support that grew with a power of 1/b, as it does with pairs, would be larger by orders of magnitude.
    widths = np.array([float(it.high - it.low) for it in certificates])
    assert widths[-1] <= (rows[-1] / rows[0]) ** 6 * widths[0]


@pytest.mark.parametrize("discount", [0.2, 0.5])
def test_the_explicit_price_grows_like_the_cube(discount: float) -> None:
    """Over six decades: not faster than ε⁻³ with a power of the logarithm, and not slower than the theorem allows."""
    coarse, fine = (explicit_schedule(entropy_problem(discount), epsilon).calls for epsilon in (1e-5, 1e-11))
    slope = math.log10(fine / coarse) / 6.0
    assert 2.7 < slope < 3.3


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(("discount", "actions"), [(0.0, 2), (0.1, 5), (0.2, 2), (0.5, 3), (0.7, 2)])
def test_what_runs_is_not_dearer_than_the_explicit_schedule(discount: float, actions: int, temperature: float) -> None:
    """No theorem says so: the search is greedy. It is far cheaper, but for discounts so small that no level pays."""
    setting = entropy_problem(discount, temperature, actions)
    for epsilon in (1e-1, 1e-3, 1e-5, 1e-7):
        if epsilon < setting.width / 2.0:
            assert optimised(setting, epsilon, 0.1, 2, 2).calls <= 1.001 * explicit_schedule(setting, epsilon).calls
