"""Checks of arguments: each returns the value in its canonical type, or raises naming the argument and the value.

Also how numbers are written in messages: `shown`, `amount`, `scientific`.
"""

import math
import operator
import reprlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Numbers = Any
"""A float, or an array of floats if a formula is evaluated for many candidates at once."""

SUM_TOLERANCE = 1e-9
"""Largest distance from one of the sum of a probability vector, through rounding."""

LARGEST = 1e30
"""Values and accuracies are smaller, so that their fourth powers over cubes of a temperature are finite."""

LEAST_DELTA = 1e-100
"""Smallest probability of failure that a planner accepts: it is split repeatedly, and the parts must not underflow."""


def shown(value: Any) -> str:
    """A value in one short line, for a message."""
    longest = 200  # characters: a message should fit on a screen
    try:
        text = " ".join((repr(value) if isinstance(value, float) else reprlib.repr(value)).split())
    except ValueError:  # Python does not print whole numbers of thousands of digits
        return f"a number of {value.bit_length():,} bits" if isinstance(value, int) else type(value).__name__
    return text if len(text) <= longest else f"{text[:longest]}…"


def amount(count: int) -> str:
    """A count, such as of simulator calls, in short.

    >>> amount(1234567), amount(10**9)
    ('1,234,567', '1.0e9')
    """
    return f"{count:,}" if count < 10**7 else scientific(count)


def scientific(number: int) -> str:
    """A whole number of any size in scientific notation."""
    digits = int(math.log10(max(number, 1)))
    return f"{number / 10**digits:.1f}e{digits}" if digits < 300 else f"1e{digits}"


def number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> float:
    """A finite real number with least ≤ value ≤ most and above < value < below."""
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        result = float(value)
    except OverflowError:  # a whole number that no float can hold
        result = math.inf
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {shown(value)}") from None
    if not math.isfinite(result):
        raise ValueError(f"{name} must be finite, got {shown(value)}")
    if not (least <= result <= most and above < result < below):
        limits = {"at least": least, "greater than": above, "at most": most, "below": below}
        said = " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if math.isfinite(limit))
        raise ValueError(f"{name} must be {said}, got {value!r}")
    return result


def interval(name: str, value: Any) -> tuple[float, float]:
    """A pair of finite numbers (low, high) with low ≤ high."""
    try:
        low, high = value
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a pair (low, high), got {value!r}") from None
    low, high = number(f"{name}[0]", low), number(f"{name}[1]", high)
    if low > high:
        raise ValueError(f"{name} must have low ≤ high, got {value!r}")
    return low, high


def positive(name: str, value: Any) -> float:
    """A finite number greater than 0."""
    return number(name, value, above=0.0)


def failure(value: Any) -> float:
    """δ, the probability of failure that a planner may have."""
    return number("delta", number("delta", value, above=0.0, below=1.0), least=LEAST_DELTA)


def accuracy(value: Any) -> float:
    """ε > 0, the accuracy asked of a planner. How small it may be depends on the model."""
    return bounded("epsilon", positive("epsilon", value))


def bounded(name: str, value: Any) -> float:
    """A number from 0 to `LARGEST`."""
    return number(name, number(name, value, least=0.0), below=LARGEST)


def whole(name: str, value: Any, *, least: int = 1, most: float = math.inf) -> int:
    """A whole number from `least` to `most`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        # People write 1e6 for a count.
        result = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {shown(value)}") from None
    if result < least:
        raise ValueError(f"{name} must be at least {least}, got {shown(value)}")
    if result > most:
        raise ValueError(f"{name} must be at most {most:,}, got {shown(value)}")
    return result


def flag(name: str, value: Any) -> bool:
    """True or False, but no other value that Python treats as one."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be true or false, got {shown(value)}")
    return bool(value)


def one_of(name: str, value: Any, *choices: str) -> None:
    """Refuses a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")


def numbers(name: str, values: ArrayLike) -> Floats:
    """A float64 array, which may hold infinities and NaNs. Strings and None are refused."""
    try:
        raw = np.asarray(values)
        odd = raw.dtype.kind == "O" and any(entry is None or isinstance(entry, str | bytes) for entry in raw.flat)
        if odd or raw.dtype.kind not in "biufO":
            raise TypeError
        with np.errstate(over="ignore"):  # numbers beyond float64 become infinite
            return np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be an array of numbers, got {shown(values)}") from None


def array(name: str, values: ArrayLike) -> Floats:
    """A float64 array of finite numbers."""
    result = numbers(name, values)
    _refuse(f"{name} must be finite, got", result, ~np.isfinite(result))
    return result


def distributions(name: str, values: ArrayLike, size: int) -> Floats:
    """Probability vectors along the last axis, [..., size]."""
    result = array(name, values)
    if result.shape[-1:] != (size,):
        raise ValueError(f"{name} must have {size} entries along its last axis, got shape {result.shape}")
    _refuse(f"{name} must not be negative, got", result, result < 0)
    with np.errstate(over="ignore"):
        sums = result.sum(axis=-1)
    _refuse(f"{name} must sum to one, got a sum of", np.asarray(sums), np.abs(sums - 1.0) > SUM_TOLERANCE, ".12g")
    return result


def _refuse(text: str, values: Floats, wrong: NDArray[np.bool_], form: str = "") -> None:
    """Raises if any value is wrong, naming the first one and its index."""
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"{text} {values[index]:{form}}" + (f" at index {index}" if index else ""))


def frozen(values: NDArray[Any]) -> Any:
    """A read-only, contiguous view or copy, for a frozen object to hand out."""
    result = np.asarray(values, order="C").view()
    result.flags.writeable = False
    return result
