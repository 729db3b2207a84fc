"""Files that are there in full or not at all."""

import os
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    """Writes a file so that it has the old content or the new one at any time: a full disk or a kill leaves no half.

    A write-protected file stays as it is, and what is no ordinary file, such as /dev/stdout, is written to directly.

    Raises:
        OSError: it cannot be written.
    """
    if file.exists() and not file.is_file():
        file.write_bytes(content)
        return
    if file.exists():
        file.open("r+b").close()  # an error where it is write-protected: a new file in its place would not ask
    target = file.resolve()  # a link stays a link
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with beside.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(target)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(file)  # not what is beside it; a full disk names none at all
        raise
