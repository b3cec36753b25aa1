"""The listeners to a run: files, loggers, callbacks and the screen."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from manyhands.core.errors import RunError
from manyhands.core.evaluation import Evaluation
from manyhands.core.events import FaultReport, WorkerLost
from manyhands.roles.executor import Executor
from manyhands.runs.callbacks import Callbacks, trace
from manyhands.runs.eventlog import EventLog, read_events
from manyhands.runs.metrics import MetricsLog
from manyhands.runs.soundness import BOOKED
from manyhands.runs.store import LAST
from manyhands.runs.view import View


class Listeners:
    """Passes an executor's events on to the run's files, its loggers, its callbacks and the screen."""

    def __init__(self, log: MetricsLog, events: EventLog, callbacks: Callbacks, view: View) -> None:
        self.log, self.events, self.callbacks, self.view = log, events, callbacks, view
        self.executor: Executor | None = None  # until the run has started

    def started(self, executor: Executor, resumed: bool) -> None:
        self.executor = executor
        before = [row for row in read_events(self.events.path.parent) if row["kind"] == "start"]
        settings = executor.config.to_plain()
        version = executor.weights.version
        place: dict[str, Any] = {}
        with suppress(OSError):  # somebody has removed it
            place["directory"] = os.getcwd()
        if names := self.callbacks.names():
            place["callbacks"] = names
        self._event("start", resumed=resumed, version=version, **place, settings=settings)
        earlier = before[-1].get("callbacks") if before else None
        if isinstance(earlier, list) and not names:
            lost = ", ".join(map(str, earlier))
            self.said(f"callbacks are not kept; give --callback (from Python: callbacks=) again: {lost}")
        self._call("start")

    def progress(self, row: Mapping[str, Any], executor: Executor) -> None:
        counts = executor.counts
        common: dict[str, Any] = {
            "steps": counts.steps,
            "seconds": round(counts.seconds, 3),
            "version": executor.weights.version,
            "episodes": counts.episodes,
            "lag": executor.lag,
            "workers": len(executor.channel.workers()),
            "faults": counts.faults,
            "dropped": counts.dropped,
            **{name: round(getattr(counts, name), 3) for name in BOOKED},
        }
        backlog = executor.channel.backlog()
        if backlog is not None:
            common["data_queue"] = backlog
        if counts.recent_mean is not None:
            common["return_mean"] = counts.recent_mean
        if counts.length_mean is not None:
            common["length_mean"] = counts.length_mean
        own = self.callbacks.take()
        self.log.write({**common, **row, **own}, own)
        self.view.progress(row, executor)

    def updated(self, metrics: Mapping[str, float], executor: Executor) -> None:
        self._call("update", metrics=metrics)

    def tested(self, result: Evaluation, executor: Executor) -> None:
        counts = executor.counts
        row = {"test_mean": result.mean, "test_sd": result.sd, "test_episodes": result.episodes}
        self._event("test", mean=result.mean, sd=result.sd, episodes=result.episodes, solved=counts.solved)
        self._call("test", test=result)
        own = self.callbacks.take()
        self.log.write({"steps": counts.steps, "seconds": round(counts.seconds, 3), **row, **own}, own)
        self.view.tested(result, executor)

    def saved(self, which: str) -> None:
        """Pass on that a checkpoint has been written."""
        if self.executor is not None:
            facts = {"steps": self.executor.counts.steps, "version": self.executor.weights.version}
            self.events.checkpoint(which, LAST, **facts)
            self._call("checkpoint", checkpoint=which)

    def fault(self, report: FaultReport, executor: Executor) -> None:
        place = {
            name: value
            for name in ("lane", "episode", "seed")
            if (value := getattr(report, name)) is not None
        }
        kind = "worker_lost" if report.lost else "fault"
        details = {"traceback": report.traceback} if report.traceback else {}
        self._event(kind, worker=report.worker, text=report.text, fault=True, **place, **details)
        self._show(f"{report.text}\n{report.traceback.rstrip()}" if report.traceback else report.text)
        self._call("fault", fault=report)

    def lost(self, lost: WorkerLost, text: str) -> None:
        """Pass on that a worker is gone without a fault of anybody's."""
        self._event("worker_lost", worker=lost.worker, text=text, fault=False)
        self._show(text)

    def waiting(self, executor: Executor) -> None:
        self.view.waiting(executor)

    def said(self, text: str) -> None:
        self._event("notice", text=text)
        self._show(text)

    def ended(self, status: str) -> str:
        """Tell everyone how the run has ended; returns the status, failed where a callback fails at that."""
        if self.executor is None:
            return status
        self._call("end", status=status)
        status = "failed" if self.callbacks.failure is not None else status
        counts, own = self.executor.counts, self.callbacks.take()
        if own:
            self.log.write({"steps": counts.steps, "seconds": round(counts.seconds, 3), **own}, own)
        # Only where it fails: a run may well be started while its caller handles another exception.
        error = self.callbacks.failure or (sys.exception() if status == "failed" else None)
        details = {} if error is None else {"error": repr(error)}
        if error is not None and not isinstance(error, RunError):
            details["traceback"] = trace(error)
        self._event("end", status=status, seconds=round(counts.seconds, 3), **details)
        return status

    def close(self) -> None:
        self.log.close()
        self.events.close()

    def _call(self, kind: Any, **facts: Any) -> None:
        if self.executor is None or not self.callbacks.callbacks:
            return
        failure = self.callbacks.tell(kind, self.executor, **facts)
        if failure is not None:
            text, traceback = f"the callback {self.callbacks.failed_at}, failed; the run ends", trace(failure)
            self._event("error", text=text, traceback=traceback)
            self._show(f"{text}\n{traceback}")

    def _event(self, kind: str, **facts: Any) -> None:
        steps = {} if self.executor is None else {"steps": self.executor.counts.steps}
        self.events.write(kind, **steps, **facts)

    def _show(self, text: str) -> None:
        self.view.said(text)
