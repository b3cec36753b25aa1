"""All who are told how a run goes: its files, its loggers, its callbacks and the screen."""

from collections.abc import Sequence

from manyhands.runs.callbacks import Callback, Callbacks
from manyhands.runs.eventlog import EventLog
from manyhands.runs.listeners import Listeners
from manyhands.runs.loggers.choose import Log, Loggers, choose, remember, remembered
from manyhands.runs.metrics import MetricsLog
from manyhands.runs.store import Run
from manyhands.runs.view import View


class Watchers:
    """What was asked for is checked at once; files are opened when the run begins."""

    def __init__(
        self, view: View | None, callbacks: Sequence[Callback], log: Log, resumed: Run | None = None
    ) -> None:
        self.view, self.callbacks = view or View(quiet=True), callbacks
        self.log = remembered(resumed) if log is None and resumed is not None else log
        self.loggers = Loggers(choose(self.log), self.view.said)

    def begin(self, run: Run, resumed_at: int | None) -> None:
        """Start the loggers; a logger that cannot start ends the run before it has begun."""
        self.loggers.start(run, resumed_at)
        remember(run, self.log)

    def follow(self, run: Run, steps: int) -> Listeners:
        """Open what an executor tells; rows of metrics after `steps` will come again."""
        metrics = MetricsLog(run, steps, self.loggers)
        listener = Listeners(metrics, EventLog(run.path), Callbacks(self.callbacks, run), self.view)
        self.loggers.said = listener.said
        return listener

    def stop(self, listener: Listeners) -> None:
        """Close the files, and give the screen back."""
        listener.close()
        self.loggers.said = self.view.said
        self.view.stop()

    def close(self, status: str) -> None:
        """Close the loggers, which may take long where they send what they have. May be called twice."""
        self.loggers.close(status)
