"""Who hears how a run goes: the metrics file and the screen."""

from collections.abc import Mapping
from typing import Any

from manyhands.core.evaluation import Evaluation
from manyhands.roles.executor import Executor, Listener
from manyhands.runs.metrics import MetricsLog


class Listeners:
    """The metrics file and the screen."""

    def __init__(self, log: MetricsLog, view: Listener) -> None:
        self.log, self.view = log, view

    def progress(self, row: Mapping[str, Any], executor: Executor) -> None:
        counts = executor.counts
        common = {
            "steps": counts.steps,
            "seconds": round(counts.seconds, 3),
            "version": executor.weights.version,
            "episodes": counts.episodes,
            "lag": executor.lag,
            "workers": len(executor.channel.workers()),
            "faults": counts.faults,
            "dropped": counts.dropped,
            **{
                name: round(getattr(counts, name), 3)
                for name in ("collecting", "waiting", "learning", "broadcasting", "testing")
            },
        }
        backlog = executor.channel.backlog()
        if backlog is not None:
            common["data_queue"] = backlog
        if counts.recent_mean is not None:
            common["return_mean"] = counts.recent_mean
        self.log.write({**common, **row})
        self.view.progress(row, executor)

    def tested(self, result: Evaluation, executor: Executor) -> None:
        self.log.write(
            {
                "steps": executor.counts.steps,
                "seconds": round(executor.counts.seconds, 3),
                "test_mean": result.mean,
                "test_sd": result.sd,
                "test_episodes": result.episodes,
            }
        )
        self.view.tested(result, executor)

    def waiting(self, executor: Executor) -> None:
        self.view.waiting(executor)

    def said(self, text: str) -> None:
        self.view.said(text)
