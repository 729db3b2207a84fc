"""A lock on an open file, which keeps other processes from writing there too."""

import sys
from typing import IO, Any

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


def lock(file: IO[Any]) -> None:
    """Locks a file for as long as it is open, or raises BlockingIOError."""
    if sys.platform == "win32":
        file.seek(2**31 - 2)  # a lock keeps others from reading what it covers, so it is beyond what there is to read
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from error
        finally:
            file.seek(0)
    else:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
