"""Temporary directories that are tidied up even after a kill -9: by whoever makes the next one."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhands.runs.store import try_lock

LOCK = ".lock"
YOUNG = 60.0
"""Seconds in which a directory may not be locked yet."""


@contextmanager
def temporary(kind: str) -> Iterator[Path]:
    """A directory for as long as this process needs it; those of the same kind whose process is dead go."""
    prefix = f"manyhands-{kind}-"
    for place in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if _abandoned(place):
            shutil.rmtree(place, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix) as made, (Path(made) / LOCK).open("a") as file:
        try_lock(file)
        yield Path(made)


def _abandoned(place: Path) -> bool:
    try:
        if time.time() - place.stat().st_mtime < YOUNG:
            return False
        with (place / LOCK).open("r+") as file:
            return try_lock(file)
    except OSError:  # somebody else's, or no longer there
        return False
