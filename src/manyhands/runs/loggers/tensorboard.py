"""TensorBoard: an event file in the run's directory."""

import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from manyhands.core.errors import missing_extra
from manyhands.runs.store import Run


def installed() -> bool:
    """Say whether TensorBoard is there, without importing it."""
    return find_spec("tensorboard") is not None


class TensorBoard:
    """Writes an event file; `tensorboard --logdir RUN` shows it."""

    def __init__(self) -> None:
        if not installed():
            raise missing_extra("--log tensorboard", "tensorboard")
        self.writer: Any = None

    def start(self, run: Run, resumed_at: int | None) -> None:
        self.directory, self.resumed_at = run.path, resumed_at

    def log(self, steps: int, numbers: Mapping[str, float]) -> None:
        # Imported late: it takes as long as the first rollout.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self.writer is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self.writer = EventFileWriter(str(self.directory))
            if self.resumed_at is not None:  # what comes after it is no longer shown
                begun = SessionLog(status=SessionLog.START)
                self.writer.add_event(
                    Event(step=self.resumed_at + 1, wall_time=time.time(), session_log=begun)
                )
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self.writer.add_event(Event(step=steps, wall_time=time.time(), summary=Summary(value=values)))

    def close(self, status: str) -> None:
        if self.writer is not None:
            self.writer.close()
