"""MLflow: a run of an experiment, at MLFLOW_TRACKING_URI or where MLflow keeps its runs by default."""

import time
from collections.abc import Mapping
from typing import Any

from manyhands.core.errors import RunError, missing_extra
from manyhands.core.texts import one_line
from manyhands.runs.loggers.kept import keep, kept
from manyhands.runs.store import Run

KEPT = "mlflow.json"
BATCH = 100
"""Most parameters that one message may hold."""
LONGEST = 500
"""Most characters of a parameter that every server takes."""
STATUS = {"failed": "FAILED", "stopped": "KILLED"}
SEND_INTERVAL = 1.0
"""Seconds between two messages; each waits for its server's answer."""
MOST_WAITING = 500
"""Most numbers that a message holds; a server takes 1,000."""


class Mlflow:
    """Logs settings as parameters, and numbers as metrics whose step is that of the environment."""

    def __init__(self, experiment: str = "manyhands") -> None:
        try:
            import mlflow
        except ModuleNotFoundError as error:
            raise missing_extra("--log mlflow", error.name) from error
        self.mlflow: Any = mlflow
        self.experiment = experiment
        self.client: Any = None
        self.id = ""
        self.waiting: list[Any] = []
        self.sent_at = time.monotonic()

    def start(self, run: Run, resumed_at: int | None) -> None:
        self.id = kept(run, KEPT).get("id", "") if resumed_at is not None else ""
        try:
            self.client = self.mlflow.MlflowClient()
            if self.id:
                self.client.update_run(self.id, status="RUNNING")
                return
            found = self.client.get_experiment_by_name(self.experiment)
            experiment = found.experiment_id if found else self.client.create_experiment(self.experiment)
            self.id = self.client.create_run(experiment, run_name=run.name).info.run_id
            self._log_settings(run.config().to_plain())
        except (self.mlflow.exceptions.MlflowException, OSError) as error:
            raise RunError(f"MLflow at {self.mlflow.get_tracking_uri()}: {one_line(error, 300)}") from error
        keep(run, KEPT, {"id": self.id})

    def _log_settings(self, plain: Mapping[str, Mapping[str, Any]]) -> None:
        made = [
            self.mlflow.entities.Param(f"{section}.{name}", one_line(value, LONGEST - 50))
            for section, settings in plain.items()
            for name, value in settings.items()
        ]
        for start in range(0, len(made), BATCH):
            self.client.log_batch(self.id, params=made[start : start + BATCH])

    def log(self, steps: int, numbers: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metric = self.mlflow.entities.Metric
        self.waiting += [metric(name, value, now, steps) for name, value in numbers.items()]
        if len(self.waiting) >= MOST_WAITING or time.monotonic() - self.sent_at >= SEND_INTERVAL:
            self._send()

    def _send(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.client.log_batch(self.id, metrics=waiting)
        self.sent_at = time.monotonic()

    def close(self, status: str) -> None:
        if self.waiting:
            self._send()
        self.client.set_terminated(self.id, STATUS.get(status, "FINISHED"))
