"""What a study shows: figures and tables as data, and claims, each with a verdict. Written and read as JSON."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any, Literal, Self, get_args

Look = Literal["points", "line", "dashed", "bars"]
"""How a series is drawn: measured points joined by a thin line; a line; a dashed line, for theory; bars."""


@dataclass(frozen=True)
class Axis:
    """An axis: what it shows, with its unit, and whether it starts out logarithmic."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Series:
    """One series of a figure.

    Args:
        name: what the legend says.
        x: positions, numbers or names, [n].
        y: values, [n].
        low, high: ends of error bars, [n], or none.
        look: how it is drawn.
    """

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    look: Look = "points"

    def __post_init__(self) -> None:
        if self.look not in get_args(Look):
            raise ValueError(f"look of series {self.name!r} must be one of {get_args(Look)}, got {self.look!r}")
        if not all(isinstance(place, str) or math.isfinite(place) for place in self.x):
            raise ValueError(f"x of series {self.name!r} must be names or finite numbers, got {list(self.x)}")
        for name in ("y", "low", "high"):
            values = getattr(self, name)
            if values is None and name != "y":
                continue
            if len(values) != len(self.x):
                raise ValueError(f"{name} of series {self.name!r} must have {len(self.x)} values, got {len(values)}")
            if not all(math.isfinite(value) for value in values):
                raise ValueError(f"{name} of series {self.name!r} must be finite, got {list(values)}")

    @classmethod
    def spread(
        cls,
        name: str,
        x: Sequence[float] | Sequence[str],
        groups: Sequence[Sequence[float]],
        middle: Callable[[Sequence[float]], float] = geometric_mean,
    ) -> Self:
        """A point in the middle of each group of measured numbers, with error bars from the least to the largest."""
        middles = [float(middle(group)) for group in groups]
        return cls(name, x, middles, [float(min(group)) for group in groups], [float(max(group)) for group in groups])


@dataclass(frozen=True)
class Figure:
    """A figure, as data.

    Args:
        name: letters, digits and hyphens.
        title: what it shows, in a few words.
        caption: what is to be seen in it, in a sentence or two; it also describes the figure to a screen reader.
        x, y: the axes.
        series: what is drawn.
    """

    name: str
    title: str
    caption: str
    x: Axis
    y: Axis
    series: Sequence[Series]


@dataclass(frozen=True)
class Table:
    """A table: column names, and rows of cells that are texts or numbers."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | int]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row of table {self.name!r} must have {len(self.columns)} cells")


@dataclass(frozen=True)
class Claim:
    """A claim of the theory, what was measured, and the interval stated before the run that it must lie in.

    Args:
        statement: what is claimed, in a sentence.
        quantity: what is measured, as "slope of calls against 1/ε".
        theory: what the theory says it is, in a few words: "3", "at most 1".
        measured: what came out.
        stated: the interval that it must lie in; an end may be infinite.
        reason: why that interval.
        error: half the width of its 95 % interval; none where it was computed, not sampled.
    """

    statement: str
    quantity: str
    theory: str
    measured: float
    stated: tuple[float, float]
    reason: str
    error: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the measured number lies in the stated interval."""
        return self.stated[0] <= self.measured <= self.stated[1]

    @property
    def number(self) -> str:
        """What was measured, with its error."""
        return f"{self.measured:.4g}" + (f" ± {self.error:.2g}" if self.error else "")

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        low, high = self.stated
        if math.isinf(low):
            stated = f"bound of at most {high:.4g}"
        else:
            stated = f"bound of at least {low:.4g}" if math.isinf(high) else f"interval [{low:.4g}, {high:.4g}]"
        return (
            f"{self.quantity}: the theory says {self.theory}; measured {self.number}, "
            f"{'inside' if self.holds else 'OUTSIDE'} the stated {stated}"
        )


@dataclass(frozen=True)
class Evidence:
    """What the rows of a study show."""

    claims: Sequence[Claim] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()  # what a reader must know to read them right


@dataclass(frozen=True)
class Findings:
    """The evidence of a study, with all that it takes to make it again.

    Args:
        study: its name.
        title, question: what it is about.
        command: the command line that made it.
        scale: "quick" or "full".
        settings: all of them, as JSON has them.
        version: of smoothplan and of the measuring code.
        machine: versions of what it stands on, and the processor.
        rows: the number of runs.
        seconds: that they took.
        evidence: what they show.
    """

    study: str
    title: str
    question: str
    command: str
    scale: str
    settings: Mapping[str, Any]
    version: str
    machine: Mapping[str, str]
    rows: int
    seconds: float
    evidence: Evidence

    def to_json(self) -> str:
        """One JSON object; infinite ends of stated intervals are null."""
        fields = asdict(self)
        for claim in fields["evidence"]["claims"]:
            claim["stated"] = [end if math.isfinite(end) else None for end in claim["stated"]]
        return json.dumps(fields, allow_nan=False, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The findings that `to_json` wrote; ValueError if it did not write this."""
        try:
            fields = json.loads(text, parse_constant=_refuse)
            evidence = fields.pop("evidence")
            read = Evidence(
                claims=[_claim(claim) for claim in evidence["claims"]],
                figures=[_figure(figure) for figure in evidence["figures"]],
                tables=[Table(**table) for table in evidence["tables"]],
                notes=evidence["notes"],
            )
            found = cls(**fields, evidence=read)
            _check_texts([found.title, found.question, found.command, found.version, *read.notes])
            found.settings.items(), found.machine.items(), float(found.rows), float(found.seconds)
            found.to_json().encode()  # a text may have half a character in it
        except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise ValueError(f"these are not the findings of a study: {error}") from None
        return found


def _refuse(constant: str) -> None:
    """NaN and Infinity, which JSON does not have."""
    raise ValueError(f"{constant} is no number of JSON")


def _check_texts(texts: Sequence[Any]) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} stands where a text must be")


def _claim(fields: dict[str, Any]) -> Claim:
    low, high = fields.pop("stated")
    claim = Claim(**fields, stated=(-math.inf if low is None else low, math.inf if high is None else high))
    _check_texts([claim.statement, claim.quantity, claim.theory, claim.reason, claim.verdict])
    return claim


def _figure(fields: dict[str, Any]) -> Figure:
    x, y, series = (fields.pop(name) for name in ("x", "y", "series"))
    figure = Figure(**fields, x=Axis(**x), y=Axis(**y), series=[Series(**one) for one in series])
    _check_texts([figure.title, figure.caption, figure.x.label, figure.y.label, *(one.name for one in figure.series)])
    return figure
