"""Files of rows, each a line of JSON: the one place that reads them."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LARGEST = 1e100
"""The largest number that tables and plots can show."""

Row = dict[str, Any]


def read_rows(path: Path, sound: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """Return the rows of a file. Damaged ones are left out and told of, but for a last one cut short."""
    if not path.exists():
        return []
    found = [parse_row(line, sound) for line in path.read_text(errors="replace").split("\n")]
    return _sound_ones(path, found, sum(row is None for row in found[:-1]))


def parse_row(line: str | bytes, sound: Callable[[Row], bool] = lambda row: True) -> Row | None:
    """Return one line as a row; None where it is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and sound(row) else None


def _sound_ones(path: Path, found: list[Row | None], damaged: int) -> list[Row]:
    if damaged:
        print(f"manyhands: {path}: left out {damaged} damaged rows", file=sys.stderr)
    return [row for row in found if row is not None]


def is_number(value: Any) -> bool:
    """Say whether it is a number that can be shown.

    Not by `math.isfinite`, which cannot take integers of hundreds of digits.
    """
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST


class Tail:
    """A file of rows that grows: `read` returns what is new and whole since it was last asked."""

    def __init__(self, path: Path, sound: Callable[[Row], bool] = lambda row: True) -> None:
        self.path, self.sound = path, sound
        self.offset = self.inode = 0

    def read(self) -> list[Row]:
        """Return the new rows that are sound; damaged ones are told of."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self.inode or status.st_size < self.offset:  # another file by this name
                self.offset, self.inode = 0, status.st_ino
            file.seek(self.offset)
            *whole, rest = file.read().split(b"\n")
            self.offset = file.tell() - len(rest)
        found = [parse_row(line, self.sound) for line in whole]
        return _sound_ones(self.path, found, sum(row is None for row in found))
