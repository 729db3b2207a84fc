"""What a line of a checkpoint says: a digest, and JSON that is checked in every field before anyone uses it."""

import base64
import hashlib
import json
import math
import re
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMAT = 1
"""Of the files; another one is refused."""

TITLE = "smoothplan checkpoint"
"""The first name in a header, which tells a checkpoint from any other file."""

DIGITS = 16
"""Of a digest."""

WHOLE_LIMIT = 2**63
"""Chunks and calls are below this."""

NUMBER_LIMIT = 2**1024
"""Whole numbers among a fact's numbers are smaller than this; so are floats."""

NUMBERS_LIMIT = 2**16
"""Numbers in a fact, fields in a dtype and arrays in a snapshot, at most."""

NAME_LIMIT = 256
"""Characters of a name, and of what was asked, at most."""

ARRAYS_LIMIT = 2**32
"""Bytes of the arrays of a snapshot, at most: a file may not claim more."""

SHOWN = 60
"""Characters of a value that an error message shows, about."""

PLAIN_DTYPES = frozenset(np.dtype(code).newbyteorder("<").str for code in ["?", *"bhilq", *"BHILQ", *"efd"])
"""Numbers and truth values of fixed size, little-endian."""

BEGINNING = re.compile(rb"[0-9a-f]{%d} \{" % DIGITS)


class Fact(NamedTuple):
    """What a chunk brought."""

    asked: str  # a short digest of what was asked of the chunk
    numbers: tuple[float, ...]  # finite; whole numbers stay whole, others keep every bit
    calls: int  # of the simulator


class DamageError(ValueError):
    """A line is not what was written."""


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=DIGITS // 2).hexdigest().encode()


def line_of(content: dict[str, Any]) -> bytes:
    """A line that says this."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
    return _digest(text) + b" " + text + b"\n"


def header_of(identity: dict[str, str]) -> bytes:
    """The first line of a checkpoint of a run."""
    return line_of({TITLE: FORMAT} | identity)


def is_intact(line: bytes) -> bool:
    """Whether a line is as it was written."""
    return BEGINNING.match(line) is not None and line[:DIGITS] == _digest(line[DIGITS + 1 :])


def content_of(line: bytes) -> dict[str, Any]:
    """What a line says, without its end; raises where it is damaged."""
    if not is_intact(line):
        raise DamageError("its digest does not fit")
    try:
        content = json.loads(line[DIGITS + 1 :].decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise DamageError(f"it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise DamageError("it is no object")
    return content


def checked_name(what: str, value: Any) -> str:
    """A name, or an error."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, got {value!r}")
    if len(value) > NAME_LIMIT:
        raise ValueError(f"{what} must have {NAME_LIMIT} characters at most, got {len(value)}")
    return value


def checked_whole(what: str, value: Any, limit: int = WHOLE_LIMIT) -> int:
    """A whole number in 0..limit − 1, or an error."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{what} must be a whole number, got {value!r}")
    if not 0 <= value < limit:
        raise ValueError(f"{what} must be in 0..{limit - 1}, got {short(repr(value))}")
    return int(value)


def _number(value: Any) -> float:
    """A finite number, exactly: whole ones are whole, and the others floats."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer):
        raise TypeError(f"numbers must be whole numbers and floats, got {value!r}")
    if isinstance(value, int | np.integer):
        if not -NUMBER_LIMIT < int(value) < NUMBER_LIMIT:
            raise ValueError(f"numbers must be below 2**1024, got one of {int(value).bit_length()} bits")
        return int(value)
    if not math.isfinite(value):
        raise ValueError(f"numbers must be finite, got {value!r}")
    return float(value)


def checked_fact(chunk: Any, asked: Any, numbers: Any, calls: Any) -> tuple[int, Fact]:
    """A chunk and its fact, checked."""
    if not isinstance(numbers, tuple) or len(numbers) > NUMBERS_LIMIT:
        raise TypeError(f"numbers must be a tuple of {NUMBERS_LIMIT} numbers at most, got {short(repr(numbers))}")
    fact = Fact(checked_name("asked", asked), tuple(map(_number, numbers)), checked_whole("calls", calls))
    return checked_whole("chunk", chunk), fact


def bits_of(fact: Fact) -> str:
    """What distinguishes facts: unlike numbers, 0.0 and −0.0 differ, and so do 1 and 1.0."""
    return repr(fact)


def _dtype_fields(name: str, dtype: np.dtype[Any]) -> str | dict[str, Any]:
    """A dtype for JSON."""
    little = dtype.newbyteorder("<")
    if little.str in PLAIN_DTYPES and dtype.names is None:
        return little.str
    if dtype.names is None or len(dtype.names) > NUMBERS_LIMIT:
        raise TypeError(f"array {name!r} must be of numbers, truth values or records of them, got dtype {dtype}")
    places = dict(dtype.fields or {})
    return {
        "names": [checked_name("a field's name", field) for field in dtype.names],
        "formats": [_dtype_of_field(name, places[field][0]) for field in dtype.names],
        "offsets": [int(places[field][1]) for field in dtype.names],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def _dtype_of_field(name: str, dtype: np.dtype[Any]) -> str:
    fields = _dtype_fields(name, dtype)
    if not isinstance(fields, str):
        raise TypeError(f"array {name!r} must not have records in records, got dtype {dtype}")
    return fields


def _dtype(fields: Any) -> np.dtype[Any]:
    """A little-endian dtype from JSON, or raises."""
    match fields:
        case str(code) if code in PLAIN_DTYPES:
            return np.dtype(code)
        case {"names": list(names), "formats": list(formats), "offsets": list(offsets), "itemsize": size, **rest}:
            aligned = rest.pop("aligned", None)
            alike = len(names) == len(formats) == len(offsets) <= NUMBERS_LIMIT
            known = all(isinstance(code, str) and code in PLAIN_DTYPES for code in formats)
            if rest or not alike or not known or not isinstance(aligned, bool):
                raise ValueError("a record is not described as it should be")
            places = sorted(
                (checked_whole("offset", o), np.dtype(code).itemsize) for o, code in zip(offsets, formats, strict=True)
            )
            ends = [offset + length for offset, length in places]
            starts = [*(offset for offset, _ in places), checked_whole("itemsize", size, ARRAYS_LIMIT)]
            if any(end > start for end, start in zip(ends, starts[1:], strict=True)):
                raise ValueError("the fields of a record overlap")
            parts = {
                "names": [checked_name("a field's name", n) for n in names],
                "formats": formats,
                "offsets": offsets,
            }
            return np.dtype(parts | {"itemsize": size}, align=aligned)  # type: ignore[call-overload, no-any-return]
    raise ValueError("an unknown dtype")


def packed_array(name: str, values: NDArray[Any]) -> dict[str, Any]:
    """An array for JSON."""
    array = np.asarray(values)
    fields = _dtype_fields(name, array.dtype)
    # Field by field, so that whatever lies between the fields of a record is zero.
    little: NDArray[Any] = np.zeros(array.shape, dtype=_dtype(fields))
    little[...] = array
    data = base64.b64encode(zlib.compress(little.tobytes(), level=1)).decode("ascii")
    return {"dtype": fields, "shape": list(array.shape), "data": data}


def unpacked_arrays(packed: Any) -> dict[str, NDArray[Any]]:
    """Arrays from JSON, or raises."""
    try:
        if not isinstance(packed, dict) or len(packed) > NUMBERS_LIMIT:
            raise ValueError("arrays must have names")
        room, arrays = ARRAYS_LIMIT, {}
        for name, fields in packed.items():
            arrays[checked_name("an array's name", name)] = _unpacked(fields, room)
            room -= arrays[name].nbytes
        return arrays
    except (TypeError, ValueError, OverflowError, RecursionError, MemoryError, zlib.error) as error:
        raise DamageError(str(error)) from None


def _unpacked(fields: Any, room: int) -> NDArray[Any]:
    """An array of no more than so many bytes from JSON, or raises."""
    match fields:
        case {"dtype": described, "shape": list(lengths), "data": str(text), **rest} if not rest:
            dtype = _dtype(described)
            shape = [checked_whole("a length", length) for length in lengths]
            size = dtype.itemsize * math.prod(shape)
            if size > room:
                raise ValueError(f"it claims {size} bytes, more than the {room} that it may have")
            stream = zlib.decompressobj()
            data = stream.decompress(base64.b64decode(text, validate=True), size + 1)
            if len(data) != size or not stream.eof or stream.unused_data:
                raise ValueError(f"its data are not {size} bytes")
            little: NDArray[Any] = np.ndarray(shape, dtype, data)
            for part in [little] if dtype.names is None else [little[name] for name in dtype.names]:
                if part.dtype.kind == "b" and (part.view(np.uint8) > 1).any():
                    raise ValueError("a truth value is neither true nor false")
            return little.astype(dtype.newbyteorder("="))
    raise ValueError("an array is not described as it should be")


def short(value: str | None) -> str:
    """A value for an error message, without its middle if it is long."""
    if value is None:
        return "nothing"
    return value if len(value) <= SHOWN else f"{value[: SHOWN * 2 // 3]}…{value[-SHOWN // 3 :]}"
