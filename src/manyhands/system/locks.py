"""Locks on files, which end with the process that holds them."""

import fcntl
from typing import IO, Any


def try_lock(file: IO[Any]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
