"""Temporary directories that do not outlive their process, even when it is ended by kill -9."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from manyhands.system.locks import try_lock

LOCK = ".lock"
SUFFIX = 10
"""Characters that make a directory's name unique, and more."""
REMOVE = 'cat > /dev/null; rm -rf -- "$0"'
"""A shell command that waits until nobody holds the other end of its input, then removes a directory."""


@contextmanager
def temporary(kind: str, longest: int = 4096) -> Iterator[Path]:
    """Make a directory for as long as this process needs it; its path has at most `longest` characters.

    A small process beside this one waits for its end and removes the directory. Where that one was killed as
    well, whoever makes the next directory of the same kind does.
    """
    prefix = f"manyhands-{kind}-"
    home = Path(tempfile.gettempdir())
    if len(str(home)) + len(prefix) + SUFFIX > longest:
        home = Path("/tmp")
    for place in home.glob(f"{prefix}*"):
        if _abandoned(place):
            shutil.rmtree(place, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=home))
    with (made / LOCK).open("a") as file:
        try_lock(file)
        # Found by its name only once it is locked, so that nobody takes it for abandoned.
        place = made.rename(home / made.name.removeprefix("."))
        remover = _remover(place)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
            if remover is not None and remover.stdin is not None:
                with suppress(OSError):
                    remover.stdin.close()
                remover.wait()


def _remover(place: Path) -> subprocess.Popen[bytes] | None:
    if os.name != "posix":
        return None
    return subprocess.Popen(
        ["/bin/sh", "-c", REMOVE, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _abandoned(place: Path) -> bool:
    try:
        with (place / LOCK).open("r+") as file:
            return try_lock(file)
    except OSError:  # somebody else's, or no longer there
        return False
