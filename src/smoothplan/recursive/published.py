"""The published algorithms as schedules, with their own constants: for comparison, and to run if the price allows.

Each spends one failure probability δ′ on every estimate of Q, a union bound over all calls: δ′ = δ divided by the calls
that the schedule itself makes, found by iteration.
"""

import math
from collections.abc import Callable

from smoothplan.recursive.level import Level
from smoothplan.recursive.schedule import Schedule, require_depth
from smoothplan.theory.curvature import Problem, require_resolvable


def sparse_sampling(problem: Problem, epsilon: float, delta: float) -> Schedule:
    """Sparse Sampling with the depth and width of Kearns, Mansour and Ng (2002), Theorem 1.

    V_max = R_max/(1−γ), λ = ε(1−γ)²/4, depth ⌈log_γ(λ/V_max)⌉, width (V_max/λ)²·(2H·log(KH(V_max/λ)²) + log(R_max/λ)).
    """
    _require_covered(problem, epsilon)
    gamma, largest = problem.discount, problem.reward_range[1]
    accuracy = epsilon * (1.0 - gamma) ** 2 / 4.0
    bound = max(problem.values[1], largest / (1.0 - gamma), accuracy)
    steps = math.log(accuracy / bound) / math.log(gamma)
    require_depth(problem, steps, most=5_000)
    depth = max(1, math.ceil(steps))
    ratio = (bound / accuracy) ** 2
    logs = 2 * depth * math.log(problem.actions * depth * ratio) + math.log(max(largest, accuracy) / accuracy)
    width = max(1, math.ceil(ratio * logs))
    levels = [Level("plug-in", samples=width, reference=row) for row in range(depth)]
    return Schedule(problem, (_zero(problem), *levels), 1, epsilon, delta, early_stopping=False)


def smooth_cruiser(problem: Problem, epsilon: float, delta: float) -> Schedule:
    """SmoothCruiser with the constants of Grill et al. (2019): κ, N(ε), and M_λ = λ log K, their bound on |F(0)|."""
    _require_covered(problem, epsilon)
    gamma, actions, smoothness = problem.discount, problem.actions, 1.0 / problem.temperature
    at_zero = problem.temperature * math.log(actions)
    threshold = (1.0 - math.sqrt(gamma)) / (actions * smoothness)
    scale = (1.0 + at_zero) / ((1.0 - gamma) ** 2 * (1.0 - math.sqrt(gamma)))

    def samples(accuracy: float, share: float) -> int:
        return math.ceil(18.0 * scale**2 * math.log(2.0 * actions / share) / accuracy**2)

    def tolerance(accuracy: float) -> float:
        return math.sqrt(threshold * accuracy)

    return _printed(problem, epsilon, delta, 1, (1.0 + at_zero) / (1.0 - gamma), threshold, samples, tolerance)


def second_order_smooth_cruiser(problem: Problem, epsilon: float, delta: float) -> Schedule:
    """SecondOrderSmoothCruiser as printed (Algorithms 1 to 3).

    All five children are called at ε/√γ, the linear term is centred by ⟨π, Q̂⟩, everything is clipped to [0, B], and
    ρ(ε) = (6ε/M)^(1/3). N comes from the Hoeffding bound of its proof. κ, which the paper leaves open, is the point
    from which the fine regime pays, ρ(κ) = κ.
    """
    _require_covered(problem, epsilon)
    eta = problem.temperature
    bound = (1.0 + problem.at_zero[1] - problem.at_zero[0]) / (1.0 - problem.discount)
    spread = 1.0 + problem.discount * bound
    lipschitz = 1.5 / eta**2  # M, of the Hessian (Lemma 5.6)
    threshold = math.sqrt(6.0 / lipschitz)

    def samples(accuracy: float, share: float) -> int:
        return math.ceil(spread**2 * math.log(2.0 * problem.actions / share) / (2.0 * accuracy**2))

    def tolerance(accuracy: float) -> float:
        return float((accuracy / (lipschitz / 6.0)) ** (1.0 / 3.0))

    return _printed(problem, epsilon, delta, 2, bound, threshold, samples, tolerance)


def _printed(
    problem: Problem,
    epsilon: float,
    delta: float,
    order: int,
    bound: float,
    threshold: float,
    samples: Callable[[float, float], int],
    tolerance: Callable[[float], float],
) -> Schedule:
    """The recursion that SmoothCruiser and SecondOrderSmoothCruiser share: children at ε/√γ, references at ρ(ε).

    Args:
        problem, epsilon, delta: of the schedule.
        order: 1 or 2.
        bound: the accuracy from which on the answer is 0.
        threshold: κ, below which samples are corrected.
        samples: N, by accuracy and δ′.
        tolerance: ρ, by accuracy.
    """
    step = math.sqrt(problem.discount)  # children are called at an accuracy this much coarser
    clip = (0.0, bound) if order == 2 else None

    def schedule(share: float) -> Schedule:
        """The printed root: F of an estimate of Q to accuracy ε."""
        levels: list[Level] = []
        rows: dict[float, int] = {}

        def sample(accuracy: float) -> int:
            """The row of the level that samples a value to an accuracy: sampleV, or SampleV2."""
            if accuracy in rows:
                return rows[accuracy]
            if accuracy >= bound:
                level = _zero(problem)
            elif accuracy >= threshold:
                child = sample(accuracy / step)
                level = Level("plug-in", samples=samples(accuracy, share), reference=child, clip=clip)
            else:
                coarse = tolerance(accuracy)
                around, child = sample(coarse / step), sample(accuracy / step)
                level = Level(
                    "order-1" if order == 1 else "order-2",
                    samples=samples(coarse, share),
                    reference=around,
                    linear=child,
                    quadratic=None if order == 1 else child,
                    pairs=0 if order == 1 else 2,
                    printed=True,
                    clip=clip,
                )
            levels.append(level)
            rows[accuracy] = len(levels) - 1
            return rows[accuracy]

        root = Level("plug-in", samples=samples(epsilon, share), reference=sample(epsilon / step))
        return Schedule(problem, (*levels, root), 1, epsilon, delta, early_stopping=False)

    # Each of these levels has a reference with levels of its own.
    require_depth(problem, math.log(epsilon / bound) / math.log(step), most=600)
    result = schedule(delta)
    # An iteration changes only logarithms, so a handful settles it; 30 bound the time. δ is divided by no more than
    # 1e200, because δ′ must not underflow.
    for _ in range(30):
        updated = schedule(delta / min(max(result.calls, 1), 10**200))
        if updated.calls == result.calls:
            break
        result = updated
    return result


def _zero(problem: Problem) -> Level:
    """The printed base case, the answer 0."""
    return Level("constant", shift=-problem.middle)


def _require_covered(problem: Problem, epsilon: float) -> None:
    low, high = problem.reward_range
    if low < 0.0 or high > 1.0:
        raise ValueError(f"reward_range must lie in [0, 1] for the published constants, got {problem.reward_range}")
    if problem.discount == 0.0:
        raise ValueError("discount must be greater than 0 for the published constants, got 0.0")
    require_resolvable(epsilon, problem.values, problem.reward_range)
