"""Which action now, and how sure: one call for any simulator."""

import json
import math
from dataclasses import dataclass
from typing import Any

from smoothplan.arguments import Floats, Ints
from smoothplan.running.run import Status, plain


@dataclass(frozen=True, eq=False)
class Decision:
    """An action for a state, and how sure it is.

    Estimates are means of returns that take an action and then follow the policy of a reference. Intervals and the gap
    are proved, where there are any.
    """

    action: int | None  # what to do; None at a terminal state
    q: Floats  # estimated action values, [K]
    q_errors: Floats  # their standard errors, [K]; infinite where there are fewer than two returns
    q_intervals: Floats | None  # [K, 2], where bounds are proved: all hold at once with probability 1 − δ
    gap: float  # proved with probability 1 − δ: no action is better by more than this; inf where nothing is proved
    regret: float  # estimated, one-sided at level δ: how much better the best rival may be, under the policy followed
    certified: bool  # whether the gap is within ε
    method: str  # how the action was found, in a sentence
    warnings: tuple[str, ...]  # sentences that a user must read
    calls: int  # simulator calls, everything included
    seconds: float
    status: Status  # why it stopped
    returns: Ints  # numbers of returns, [K]
    epsilon: float  # the gap that was asked for
    delta: float
    seed: int
    names: tuple[str, ...]  # of the actions, [K]
    reference: Any = None  # whose policy returns follow; None where there is none

    def summary(self) -> str:
        """The decision in a few lines."""
        raise NotImplementedError

    def to_json(self) -> str:
        """One JSON object; numbers that are not finite are null."""
        fields = {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}
        fields["reference"] = None if self.reference is None else repr(self.reference)
        return json.dumps(_finite(fields), allow_nan=False)


def _finite(thing: Any) -> Any:
    """The same, with None in place of numbers that JSON does not know."""
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else None
    if isinstance(thing, dict):
        return {name: _finite(value) for name, value in thing.items()}
    return [_finite(value) for value in thing] if isinstance(thing, list) else thing
