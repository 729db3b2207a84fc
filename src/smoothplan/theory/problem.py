"""What the arithmetic of planners knows of a model and a backup."""

from dataclasses import dataclass

from smoothplan.models.model import GenerativeModel, rewards_are_known
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, is_mixture, what_lacks


@dataclass(frozen=True)
class Problem:
    """What the arithmetic knows of a model and a backup."""

    actions: int  # K
    discount: float  # γ
    temperature: float  # η; 0 for the hard maximum
    reward_range: tuple[float, float]
    reward_noise: float  # width of the rewards possible at one (s, a): 0 where they are known
    single_successor: bool  # whether the next state is known given (s, a)
    at_zero: tuple[float, float]  # infimum and supremum of F_s(0)
    values: tuple[float, float]  # an interval that contains every optimal value: not every return, see `policy_values`
    terminates: bool
    derivatives: tuple[float, ...]  # bounds of the second, third, … derivatives of F, see `Backup.derivatives`
    above_max: float  # the infimum of F_s(Q) − max Q
    pairs: bool  # whether F is a mixture of softmaxes, whose quadratic term pairs of returns estimate

    @classmethod
    def of(cls, model: GenerativeModel, backup: Backup) -> "Problem":
        """The problem of planning on a model with a backup.

        Raises:
            TypeError: the backup lacks something that `Backup` asks for.
        """
        lacking = what_lacks(backup)
        if lacking is not None:
            raise TypeError(lacking)
        low, high = model.reward_range
        return cls(
            actions=model.actions,
            discount=model.discount,
            temperature=backup.temperature,
            reward_range=(low, high),
            reward_noise=0.0 if rewards_are_known(model) else high - low,
            single_successor=model.max_successors == 1,
            at_zero=backup.at_zero_range(model.actions),
            values=curvature.value_interval(model, backup),
            terminates=model.terminates,
            derivatives=backup.derivatives(model.actions),
            above_max=curvature.gap_to_hard_max(backup, model.actions)[0],
            pairs=is_mixture(backup),
        )

    @property
    def middle(self) -> float:
        """The best constant guess of a value."""
        return (self.values[0] + self.values[1]) / 2.0

    @property
    def width(self) -> float:
        """W, the width of the value interval."""
        return self.values[1] - self.values[0]

    @property
    def policy_values(self) -> tuple[float, float]:
        """An interval that contains the value of every policy, regulariser included.

        None is worth more than the optimal one. But one may be worth less than `values` allow: there may be better ones
        at every state, and it need not have the regulariser's bonus. So only the rewards bound it from below.
        """
        worst = (self.reward_range[0] + min(self.above_max, self.at_zero[0])) / (1.0 - self.discount)
        return min(worst, 0.0) if self.terminates else worst, self.values[1]

    @property
    def action_values(self) -> tuple[float, float]:
        """An interval that contains every optimal action value.

        As F(Q) − max Q ≥ `above_max`, no action is worth more than an optimal value less that.
        """
        (low, high), (least, most) = self.reward_range, self.values
        return low + self.discount * least, min(high + self.discount * most, most - self.above_max)

    @property
    def differing(self) -> float:
        """The largest probability that two actions drawn from one distribution differ, 1 − 1/K."""
        return 1.0 - 1.0 / self.actions

    @property
    def action_gap(self) -> float:
        """A bound on range(Q_s): the error of a constant reference."""
        low, high = self.action_values
        return high - low

    def resolvable(self, epsilon: float) -> float:
        """ε, if this accuracy can be certified of values that are sums of such rewards; ValueError otherwise."""
        return curvature.resolvable(epsilon, max(self.values, self.reward_range, key=curvature.resolution))
