"""The numbers of a run while it goes: rows in metrics.jsonl, and the same numbers for its loggers."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from manyhands.runs.checkpoint import write_atomically
from manyhands.runs.loggers.base import tag
from manyhands.runs.loggers.choose import Loggers
from manyhands.runs.store import Run

Row = Mapping[str, Any]


class MetricsLog:
    """Appends rows; each is on disk when `write` returns."""

    def __init__(self, run: Run, from_step: int, loggers: Loggers | None = None) -> None:
        """Going on from a checkpoint, rows after its step are removed: they will come again."""
        if run.metrics_path.exists():
            kept = [row for row in run.rows() if row["steps"] <= from_step]
            write_atomically(run.metrics_path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self.file = run.metrics_path.open("a", buffering=1)
        self.loggers = loggers

    def write(self, row: Row, own: Collection[str] = ()) -> None:
        """Append a row; `own` are the columns that a callback has logged."""
        try:
            self.file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.file.name) from error
        if self.loggers is not None:
            numbers = {
                tag(name, name in own): float(value)
                for name, value in row.items()
                if isinstance(value, int | float) and name != "steps"
            }
            self.loggers.log(int(row["steps"]), numbers)

    def close(self) -> None:
        self.file.close()
