"""The events of a run, written as they happen: `events.jsonl`, a row for each event.

Kinds: start (with all settings), test, checkpoint, fault (an environment failed), worker_lost, notice, error
(a callback failed), end. Every row has a `time` and a `kind`, and the `steps` made by then where they are
counted; what else it has depends on its kind.
"""

import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from manyhands.core.texts import lines, one_line
from manyhands.runs.jsonl import Row, Tail, read_rows

NAME, OLDER = "events.jsonl", "events.older.jsonl"
LARGEST_FILE = 8_000_000
"""Bytes, after which a file makes way for a new one. The one before it is kept, and no other."""
LONGEST_LINE, MOST_LINES = 2000, 100
"""Most characters of a line, and most lines, that are kept of a text such as a traceback."""
SAVES_INTERVAL = 5.0
"""Seconds between two rows that tell of the checkpoint for a resume, which is written again and again."""


class EventLog:
    """Appends events to a run's directory; each is on disk when `write` returns."""

    def __init__(self, directory: Path) -> None:
        self.path, self.older = directory / NAME, directory / OLDER
        self.file = self.path.open("ab", buffering=0)
        self.last_save = 0.0
        if self.file.tell() and not self.path.read_bytes().endswith(b"\n"):
            self.file.write(b"\n")  # a process was killed in the middle of a row

    def write(self, kind: str, **facts: Any) -> None:
        """Append one event."""
        row = {"time": now(), "kind": kind, **{name: _bounded(value) for name, value in facts.items()}}
        try:
            if self.file.tell() > LARGEST_FILE:
                self.file.close()
                os.replace(self.path, self.older)
                self.file = self.path.open("ab", buffering=0)
            self.file.write(json.dumps(row, default=str).encode() + b"\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def checkpoint(self, which: str, last: str, **facts: Any) -> None:
        """Tell of a checkpoint; of the one called `last` only now and then."""
        elapsed = time.monotonic() - self.last_save
        if which != last or not self.last_save or elapsed >= SAVES_INTERVAL:
            self.last_save = time.monotonic()
            self.write("checkpoint", which=which, **facts)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def read_events(directory: Path) -> list[Row]:
    """Return the events of a run that are kept, in order."""
    return [row for name in (OLDER, NAME) for row in read_rows(directory / name, is_event)]


def follow_events(directory: Path) -> tuple[list[Row], Tail]:
    """Return the events that have made way for newer ones, and a reader of these and of those to come."""
    return read_rows(directory / OLDER, is_event), Tail(directory / NAME, is_event)


def event_text(row: Row) -> str:
    """Return an event for somebody to read: a line, and those of its traceback."""
    known = ("time", "kind", "steps", "text", "traceback", "settings")
    rest = ", ".join(f"{name} {_short(row[name])}" for name in row if name not in known)
    steps = f"{row['steps']:,}" if isinstance(row.get("steps"), int) else ""
    words = (row["time"][:19], f"{steps:>11}", f"{row['kind']:<11}", row.get("text", ""), rest)
    details = lines(row.get("traceback", "")).splitlines()
    return "\n".join([one_line("  ".join(filter(None, words))), *(f"    {line}" for line in details)])


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else one_line(value, 200)


def is_event(row: Row) -> bool:
    """Say whether a row has what every event has."""
    return isinstance(row.get("time"), str) and isinstance(row.get("kind"), str)


def now() -> str:
    """Return the time with its milliseconds and its zone, in ISO 8601."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def _bounded(value: Any) -> Any:
    return lines(value, LONGEST_LINE, MOST_LINES) if isinstance(value, str) else value
