"""The recursive planners: the levels that each allows, and the constants that it was published with.

A recursive planner estimates a value by sampling the values of successors, which it estimates in the same way down to
a fixed depth. The price of its schedule is known in advance, so a run that is too expensive is refused, and a limit on
calls chooses the most accurate schedule that it can pay for.

The published algorithms are schedules with their own constants: for comparison, and to run if the price allows. Each
spends one failure probability δ′ on every estimate of Q, a union bound over all calls: δ′ = δ divided by the calls that
the schedule itself makes, found by iteration.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, Self

from smoothplan.base import arguments
from smoothplan.base.arguments import amount, scientific
from smoothplan.models.model import GenerativeModel
from smoothplan.models.tabular import TabularModel
from smoothplan.recursive.batched import BatchedEngine
from smoothplan.recursive.compiled import CompiledEngine
from smoothplan.recursive.level import Level
from smoothplan.recursive.optimise import optimised
from smoothplan.recursive.schedule import Schedule, ScheduleRun, require_depth
from smoothplan.run.records import (
    LONG_HORIZONS,
    REFUSED_CALLS,
    EngineName,
    Root,
    Run,
    TooExpensiveError,
    refuse_compiled,
)
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, is_mixture, required_backup, required_mixture, restricted
from smoothplan.theory.curvature import Problem, require_resolvable

HEADROOM = 4
"""How many times the limit on calls a schedule may cost and still be tried: most runs stop early."""


def sparse_sampling(problem: Problem, epsilon: float, delta: float) -> Schedule:
    """Sparse Sampling with the depth and width of Kearns, Mansour and Ng (2002), Theorem 1.

    V_max = R_max/(1−γ), λ = ε(1−γ)²/4, depth ⌈log_γ(λ/V_max)⌉, width (V_max/λ)²·(2H·log(KH(V_max/λ)²) + log(R_max/λ)).
    """
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
    zero = Level("constant", shift=-problem.middle)  # the answer 0
    return Schedule(problem, (zero, *levels), 1, epsilon, delta, early_stopping=False)


def smooth_cruiser(problem: Problem, epsilon: float, delta: float) -> Schedule:
    """SmoothCruiser with the constants of Grill et al. (2019): κ, N(ε), and M_λ = λ log K, their bound on |F(0)|."""
    gamma, actions = problem.discount, problem.actions
    at_zero = problem.temperature * math.log(actions)
    threshold = (1.0 - math.sqrt(gamma)) / (actions * (1.0 / problem.temperature))
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
    bound = (1.0 + problem.at_zero[1] - problem.at_zero[0]) / (1.0 - problem.discount)
    spread = 1.0 + problem.discount * bound
    threshold = math.sqrt(6.0 / curvature.hessian_lipschitz(problem.temperature))

    def samples(accuracy: float, share: float) -> int:
        return math.ceil(spread**2 * math.log(2.0 * problem.actions / share) / (2.0 * accuracy**2))

    tolerance = partial(curvature.tolerance, beta=3, temperature=problem.temperature, norm="euclidean")
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

    From the accuracy `bound` on the answer is 0. Below the threshold κ samples are corrected, up to order 1 or 2.
    `samples` is N by accuracy and δ′, and `tolerance` is ρ.
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
                level = Level("constant", shift=-problem.middle)  # the answer 0
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
    # An iteration changes only logarithms, so a handful settles it; 30 bound the time. δ′ must not underflow.
    for _ in range(30):
        updated = schedule(delta / min(max(result.calls, 1), 10**200))
        if updated.calls == result.calls:
            break
        result = updated
    return result


@dataclass(frozen=True)
class _Recursive:
    """A recursive planner. Subclasses differ in the levels that they allow, and in published constants."""

    backup: Backup
    epsilon: float
    delta: float = 0.1

    order: ClassVar[int]  # the highest order of levels
    debias: ClassVar[int] = 0  # the most terms that a level cancels

    def __post_init__(self) -> None:
        required_backup(self.backup)
        object.__setattr__(self, "epsilon", arguments.accuracy(self.epsilon))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        if self.order > 0 and self.backup.temperature == 0.0:
            name = type(self).__name__
            raise ValueError(f"{name} needs a smooth backup, got {self.backup!r}: use SparseSampling for the maximum")

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""
        return optimised(Problem.of(model, self.backup), self.epsilon, self.delta, self.order, self.debias)

    def with_epsilon(self, epsilon: float) -> Self:
        """The same planner for another accuracy."""
        return replace(self, epsilon=epsilon)

    def start(self, root: Root) -> Run:
        """A run of the schedule, or of a coarser one if the limit on calls is far below its price.

        Raises:
            TooExpensiveError: the forecast exceeds `REFUSED_CALLS` and there is no limit on calls.
        """
        schedule = self.schedule(root.model)
        if root.max_calls is None and schedule.calls > REFUSED_CALLS:
            # A tenth, because the message rounds ε.
            finest = self._finest(root.model, schedule, REFUSED_CALLS // 10)
            price = f"{scientific(schedule.calls)} simulator calls, more than {scientific(REFUSED_CALLS)}"
            raise too_expensive(price, finest.epsilon, finest.calls)
        if root.max_calls is not None and schedule.calls > HEADROOM * root.max_calls:
            schedule = self._finest(root.model, schedule, root.max_calls)
        engine = engine_for(root.engine, schedule, self.backup, root.model)
        return ScheduleRun(schedule, self.backup, root, engine, self.epsilon)

    def _finest(self, model: GenerativeModel, wanted: Schedule, max_calls: int) -> Schedule:
        """The most accurate schedule found within a number of calls, fewer than the planner's own would cost."""
        low, high = wanted.epsilon, wanted.problem.width / 2.0
        # The middle of the value interval costs nothing.
        best = Schedule(wanted.problem, (Level("constant"),), 1, high, wanted.delta)
        for _ in range(12 if low < high else 0):  # bisections of the range of log ε
            middle = math.sqrt(low * high)
            schedule = self.with_epsilon(middle).schedule(model)
            if schedule.calls <= max_calls:
                best, high = schedule, middle
            else:
                low = middle
        return best


@dataclass(frozen=True)
class _Published(_Recursive):
    """A recursive planner that was published with constants of its own."""

    variant: Literal["certified", "paper"] = "certified"

    published: "ClassVar[staticmethod[[Problem, float, float], Schedule]]"

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.one_of("variant", self.variant, "certified", "paper")
        if self.order > 1:
            required_mixture(self.backup, type(self).__name__, "use DebiasedCruiser")
        if self.order > 0 and self.variant == "paper":
            required_mixture(self.backup, f"the printed {type(self).__name__}", "use variant='certified'")

    def schedule(self, model: GenerativeModel) -> Schedule:
        """The table of levels that this planner runs on a model."""
        if self.variant == "certified":
            return super().schedule(model)
        problem = Problem.of(model, self.backup)
        low, high = problem.reward_range
        if low < 0.0 or high > 1.0:
            raise ValueError(f"reward_range must lie in [0, 1] for the published constants, got {problem.reward_range}")
        if problem.discount in (0.0, 1.0):
            raise ValueError(f"discount must be in (0, 1) for the published constants, got {problem.discount}")
        require_resolvable(self.epsilon, problem.values, problem.reward_range)
        return self.published(problem, self.epsilon, self.delta)


class SparseSampling(_Published):
    """Plug-in levels only (Kearns, Mansour and Ng, 2002): F of averaged returns, all the way down. For any backup.

    Args:
        backup: F.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for the published depth and width.
    """

    order = 0
    published = staticmethod(sparse_sampling)


class SmoothCruiser(_Published):
    """Levels up to order 1 (Grill et al., 2019): samples corrected along the gradient of a smooth backup.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for the published constants.
    """

    order = 1
    published = staticmethod(smooth_cruiser)


class SecondOrderSmoothCruiser(_Published):
    """Levels up to order 2 (the paper): samples corrected along gradient and Hessian of a smooth backup.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
        variant: "certified", or "paper" for Algorithms 1 to 3 as printed.
    """

    order = 2
    published = staticmethod(second_order_smooth_cruiser)


class DebiasedCruiser(_Recursive):
    """The cheapest certified schedule of all kinds of levels: for values at short horizons, the one to use.

    Its levels use a reference's own returns to cancel the first terms of the bias that its noise causes: see
    `smoothplan.recursive.debias`. They are not in the paper, and we have not found them elsewhere.

    Args:
        backup: F, smooth.
        epsilon: the accuracy of the value.
        delta: the probability of missing it.
    """

    order = 2
    debias = 2


def too_expensive(price: str, epsilon: float, calls: int) -> TooExpensiveError:
    """The refusal of a run, with an accuracy that would not be refused and its price, unless that price is 0."""
    message = (
        f"this plan may need {price}. Recursion is for short horizons: {LONG_HORIZONS}. A smaller discount, a larger "
        "epsilon or a higher temperature would help, too"
    )
    if calls > 0:
        message += f" (at epsilon={epsilon:.3g} it is {amount(calls)})"
    return TooExpensiveError(message + "; max_calls=N plans as accurately as N calls allow")


def engine_for(
    name: EngineName, schedule: Schedule, backup: Backup, model: GenerativeModel
) -> CompiledEngine | BatchedEngine:
    """The engine for a schedule."""
    backup = restricted(backup, model)
    if isinstance(model, TabularModel) and is_mixture(backup) and name != "batched":
        return CompiledEngine(schedule, backup, model)
    refuse_compiled(name, "a TabularModel and a mixture of softmaxes", model, backup)
    return BatchedEngine(schedule, backup)
