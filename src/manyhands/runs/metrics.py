"""What a run tells while it runs: rows in metrics.jsonl and TensorBoard events."""

import json
import time
from collections.abc import Mapping
from typing import Any

from manyhands.runs.checkpoint import write_atomically
from manyhands.runs.store import Run

Row = Mapping[str, Any]


class MetricsLog:
    """Appends rows; each is on disk when `write` returns."""

    def __init__(self, run: Run, from_step: int) -> None:
        """Going on from a checkpoint, rows after its step are taken away: they will come again."""
        if run.metrics_path.exists():
            kept = [row for row in run.rows() if row["steps"] <= from_step]
            write_atomically(run.metrics_path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self.file = run.metrics_path.open("a", buffering=1)
        self.directory = run.path
        self.events: Any = None

    def write(self, row: Row) -> None:
        try:
            self.file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.file.name) from error
        self._write_events(row)

    def _write_events(self, row: Row) -> None:
        # Imported late: it takes as long as the first rollout.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self.events is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self.events = EventFileWriter(str(self.directory))
        values = [
            Summary.Value(tag=name, simple_value=float(value))
            for name, value in row.items()
            if isinstance(value, int | float) and name != "steps"
        ]
        self.events.add_event(
            Event(step=int(row["steps"]), wall_time=time.time(), summary=Summary(value=values))
        )

    def close(self) -> None:
        self.file.close()
        if self.events is not None:
            self.events.close()
