"""Callbacks of a user's own code, which are told what happens in a run, and may stop it.

A callback is anything that can be called with a `RunEvent`. It runs between two updates, in the process
that learns: the time it takes is added to the run's. One that raises ends the run, which is saved and marked
failed.
"""

import math
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from manyhands.core.errors import RunError, UsageError
from manyhands.core.evaluation import Evaluation
from manyhands.core.events import FaultReport
from manyhands.envs.importing import imported
from manyhands.roles.executor import Executor
from manyhands.runs.soundness import BOOKED
from manyhands.runs.store import Run

Kind = Literal["start", "update", "test", "fault", "checkpoint", "end"]
NAME = re.compile(r"[A-Za-z_][\w./-]{0,99}")
COUNTED = ("steps", "seconds", "version", "episodes", "lag", "workers", "faults", "dropped", "data_queue")
TAKEN = {*COUNTED, *BOOKED, "return_mean", "length_mean", "test_mean", "test_sd", "test_episodes"}
"""Columns of metrics.jsonl that are the run's own."""


@dataclass
class RunEvent:
    """Something that has happened in a run. What does not belong to its kind is None or empty."""

    kind: Kind
    run: Run
    steps: int
    """Environment steps so far."""
    version: int
    """Updates of the weights so far."""
    episodes: int
    seconds: float
    return_mean: float | None
    """Mean return of the last 100 episodes of training."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """update: what the learner says of it, such as its losses."""
    test: Evaluation | None = None
    """test: returns and lengths of its episodes; `test.mean`, `test.sd`."""
    fault: FaultReport | None = None
    """fault: what failed, where and why."""
    checkpoint: str = ""
    """checkpoint: which one was written, best or last."""
    status: str = ""
    """end: solved, finished, stopped or failed."""
    numbers: dict[str, float] = field(default_factory=dict, repr=False)
    stopped: bool = field(default=False, repr=False)

    def stop(self) -> None:
        """End the run after this: it is saved, and can be resumed."""
        self.stopped = True

    def log(self, **numbers: float) -> None:
        """Add numbers of one's own to the next row of metrics.jsonl, and to every logger."""
        for name, value in numbers.items():
            if name in TAKEN:
                raise UsageError(f"{name!r} is a column of the run's own; log your number by another name")
            if not NAME.fullmatch(name):
                raise UsageError(
                    f"{name!r:.100} is not a name to log by; take up to 100 letters, digits and . / _ -, "
                    "of which a letter or _ comes first"
                )
            try:
                self.numbers[name] = float(value)
            except (TypeError, ValueError):
                raise UsageError(f"{name} is {value!r:.100}; only numbers can be logged") from None


Callback = Callable[[RunEvent], object]


class Callbacks:
    """A run's callbacks, and the numbers of theirs that are not written yet."""

    def __init__(self, callbacks: Iterable[Callback], run: Run) -> None:
        self.callbacks, self.run = tuple(callbacks), run
        self.pending: dict[str, float] = {}
        self.failure: Exception | None = None
        self.failed_at = ""

    def names(self) -> list[str]:
        """Return what they are called."""
        return [_name(callback) for callback in self.callbacks]

    def tell(self, kind: Kind, executor: Executor, **facts: Any) -> Exception | None:
        """Call them all; returns what one of them has raised, after which none is called again."""
        if not self.callbacks or self.failure is not None:
            return None
        counts = executor.counts
        event = RunEvent(
            kind,
            self.run,
            counts.steps,
            executor.weights.version,
            counts.episodes,
            counts.seconds,
            counts.recent_mean,
            **facts,
        )
        for callback in self.callbacks:
            try:
                callback(event)
            except Exception as error:
                self.failure, self.failed_at = error, f"{_name(callback)}, at {kind}"
                event.stopped = True
                break
        self.pending.update(event.numbers)
        if event.stopped:
            executor.stop()
        return self.failure

    def take(self) -> dict[str, float | None]:
        """Return the numbers that were logged since this was last asked; None for what is not finite."""
        taken, self.pending = self.pending, {}
        return {name: value if math.isfinite(value) else None for name, value in taken.items()}

    def check(self) -> None:
        """Raise what a callback has raised, once the run has ended and is saved."""
        if self.failure is not None:
            raise RunError(
                f"the callback {self.failed_at}, failed: {self.failure!r}; saved, go on with --resume "
                f"{self.run.path}"
            ) from self.failure


def trace(error: BaseException) -> str:
    """Return the traceback of an error, as Python prints it."""
    return "".join(traceback.format_exception(error)).rstrip()


def find_callback(callback: str | Callback) -> Callback:
    """Return a callback; text is `module:callable`."""
    if isinstance(callback, str):
        return imported(callback, "callback")
    if not callable(callback):
        raise UsageError(f"{callback!r:.100} cannot be called, so it is no callback")
    return callback


def _name(callback: Callback) -> str:
    module, name = getattr(callback, "__module__", ""), getattr(callback, "__qualname__", "")
    return f"{module}:{name}" if name else type(callback).__name__
