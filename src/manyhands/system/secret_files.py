"""Passwords and tokens in files: arguments are everyone's to read, files need not be."""

import os
import stat
import sys
from pathlib import Path

from manyhands.core.errors import UsageError

LONGEST = 4096
"""Most bytes of a file that are read."""


def read_secret(path: Path | str, option: str) -> str:
    """Return the first line of a file, whatever printable characters it holds; warn if others can read it."""
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            raw = file.readline(LONGEST + 1)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}") from error
    if len(raw) > LONGEST:
        raise UsageError(f"{option} {path}: its first line has more than {LONGEST} bytes")
    try:
        secret = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError(f"{option} {path} is not text") from None
    if not secret:
        raise UsageError(f"{option} {path} is empty; write the secret into its first line")
    if not secret.isprintable():
        raise UsageError(f"{option} {path} holds characters that cannot be printed")
    if stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        print(f"manyhands: others can read {path}; try: chmod 600 {path}", file=sys.stderr, flush=True)
    return secret
