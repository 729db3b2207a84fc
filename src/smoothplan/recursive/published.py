"""The published algorithms as schedules, with their own constants: for comparison, and to run if the price allows.

Each spends one failure probability δ′ on every estimate of Q, a union bound over all calls: δ′ = δ divided by the calls
that the schedule itself makes, found by iteration.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from smoothplan.recursive.level import Level
from smoothplan.recursive.schedule import Schedule, require_depth
from smoothplan.theory import curvature
from smoothplan.theory.curvature import Problem, SmoothCruiserConstants


def sparse_sampling(problem: Problem, epsilon: float, delta: float) -> Schedule:
    """Sparse Sampling with the depth and width of Kearns, Mansour and Ng (2002), Theorem 1.

    V_max = R_max/(1−γ), λ = ε(1−γ)²/4, depth ⌈log_γ(λ/V_max)⌉, width (V_max/λ)²·(2H·log(KH(V_max/λ)²) + log(R_max/λ)).
    """
    _unit_rewards(problem)
    gamma, largest = problem.discount, problem.reward_range[1]
    problem.resolvable(epsilon)
    accuracy = epsilon * (1.0 - gamma) ** 2 / 4.0
    bound = max(problem.values[1], largest / (1.0 - gamma), accuracy)
    depth = max(1, math.ceil(_steps(problem, accuracy / bound, gamma, most=5_000)))
    ratio = (bound / accuracy) ** 2
    logs = 2 * depth * math.log(problem.actions * depth * ratio) + math.log(max(largest, accuracy) / accuracy)
    width = max(1, math.ceil(ratio * logs))
    levels = [_zero(problem)]
    levels += [Level("plug-in", samples=width, reference=row) for row in range(depth)]
    return Schedule(problem, tuple(levels), 1, epsilon, delta, early_stopping=False)


def smooth_cruiser(problem: Problem, epsilon: float, delta: float) -> Schedule:
    """SmoothCruiser with the constants of Grill et al. (2019)."""
    _unit_rewards(problem)
    constants = SmoothCruiserConstants(problem.actions, problem.discount, problem.temperature)

    def recursion(share: float) -> _PrintedRecursion:
        return _PrintedRecursion(
            problem,
            bound=constants.value_bound,
            threshold=constants.threshold,
            samples=lambda accuracy: constants.samples(accuracy, share),
            tolerance=constants.tolerance,
            order=1,
        )

    return _with_union_bound(recursion, epsilon, delta)


def second_order_smooth_cruiser(problem: Problem, epsilon: float, delta: float) -> Schedule:
    """SecondOrderSmoothCruiser as printed (Algorithms 1 to 3).

    All five children are called at ε/√γ, the linear term is centred by ⟨π, Q̂⟩, everything is clipped to [0, B], and
    ρ(ε) = (6ε/M)^(1/3). N comes from the Hoeffding bound of its proof. κ, which the paper leaves open, is the point
    from which the fine regime pays, ρ(κ) = κ.
    """
    _unit_rewards(problem)
    eta = problem.temperature
    bound = (1.0 + problem.at_zero[1] - problem.at_zero[0]) / (1.0 - problem.discount)
    spread = 1.0 + problem.discount * bound

    def recursion(share: float) -> _PrintedRecursion:
        return _PrintedRecursion(
            problem,
            bound=bound,
            threshold=math.sqrt(6.0 / curvature.hessian_lipschitz(eta)),
            samples=lambda accuracy: math.ceil(
                spread**2 * math.log(2.0 * problem.actions / share) / (2.0 * accuracy**2)
            ),
            tolerance=lambda accuracy: curvature.tolerance(accuracy, 3, eta, "euclidean"),
            order=2,
        )

    return _with_union_bound(recursion, epsilon, delta)


@dataclass
class _PrintedRecursion:
    """The recursion that SmoothCruiser and SecondOrderSmoothCruiser share: children at ε/√γ, references at ρ(ε)."""

    problem: Problem
    bound: float  # at this accuracy the answer is 0
    threshold: float  # κ, below which samples are corrected
    samples: Callable[[float], int]  # N(ε)
    tolerance: Callable[[float], float]  # ρ(ε)
    order: int
    levels: list[Level] = field(default_factory=list)
    rows: dict[float, int] = field(default_factory=dict)

    def schedule(self, epsilon: float, delta: float) -> Schedule:
        """The printed root: F of an estimate of Q to accuracy ε."""
        self.problem.resolvable(epsilon)
        _steps(self.problem, epsilon / self.bound, self._step, most=600)  # each has a reference with levels of its own
        root = Level("plug-in", samples=self.samples(epsilon), reference=self._sample(epsilon / self._step))
        return Schedule(self.problem, (*self.levels, root), 1, epsilon, delta, early_stopping=False)

    @property
    def _step(self) -> float:
        """√γ: children are called at an accuracy this much coarser."""
        return math.sqrt(self.problem.discount)

    def _sample(self, accuracy: float) -> int:
        """The row of the level that samples a value to an accuracy: sampleV, or SampleV2."""
        if accuracy in self.rows:
            return self.rows[accuracy]
        clip = (0.0, self.bound) if self.order == 2 else None
        if accuracy >= self.bound:
            level = _zero(self.problem)
        elif accuracy >= self.threshold:
            child = self._sample(accuracy / self._step)
            level = Level("plug-in", samples=self.samples(accuracy), reference=child, clip=clip)
        else:
            tolerance = self.tolerance(accuracy)
            around, child = self._sample(tolerance / self._step), self._sample(accuracy / self._step)
            level = Level(
                "order-1" if self.order == 1 else "order-2",
                samples=self.samples(tolerance),
                reference=around,
                linear=child,
                quadratic=None if self.order == 1 else child,
                pairs=0 if self.order == 1 else 2,
                printed=True,
                clip=clip,
            )
        self.levels.append(level)
        self.rows[accuracy] = len(self.levels) - 1
        return self.rows[accuracy]


def _steps(problem: Problem, finest: float, ratio: float, most: int) -> float:
    """How many levels below each other lead from an accuracy of 1 to the finest, each coarser by a ratio."""
    steps = math.log(finest) / math.log(ratio)
    require_depth(problem, steps, most)
    return steps


def _zero(problem: Problem) -> Level:
    """The printed base case, the answer 0."""
    return Level("constant", shift=-problem.middle)


def _with_union_bound(recursion: Callable[[float], _PrintedRecursion], epsilon: float, delta: float) -> Schedule:
    """The schedule whose δ′ is δ divided by its own number of calls.

    Each of the iterations changes only logarithms, so a handful settles it; 30 bound the time. δ is divided by no more
    than 1e200, for δ′ must not underflow.
    """
    result = recursion(delta).schedule(epsilon, delta)
    for _ in range(30):
        updated = recursion(delta / min(max(result.calls, 1), 10**200)).schedule(epsilon, delta)
        if updated.calls == result.calls:
            break
        result = updated
    return result


def _unit_rewards(problem: Problem) -> None:
    low, high = problem.reward_range
    if low < 0.0 or high > 1.0:
        raise ValueError(f"reward_range must lie in [0, 1] for the published constants, got {problem.reward_range}")
    if problem.discount == 0.0:
        raise ValueError("discount must be greater than 0 for the published constants, got 0.0")
