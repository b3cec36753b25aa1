"""Weights & Biases: a run of a project, which a resume goes on with."""

from collections.abc import Mapping
from typing import Any

from manyhands.core.errors import RunError, missing_extra
from manyhands.core.texts import one_line
from manyhands.runs.loggers.kept import keep, kept
from manyhands.runs.store import Run

KEPT = "wandb.json"
STEPS = "steps"


class Wandb:
    """Logs to the project, online or as WANDB_MODE says; its files lie in the run's directory."""

    def __init__(self, project: str = "manyhands") -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise missing_extra("--log wandb", error.name) from error
        self.wandb: Any = wandb
        self.project = project
        self.run: Any = None

    def start(self, run: Run, resumed_at: int | None) -> None:
        before = kept(run, KEPT) if resumed_at is not None else {}
        try:
            self.run = self.wandb.init(
                project=before.get("project", self.project),
                id=before.get("id"),
                name=run.name,
                dir=str(run.path),
                config=run.config().to_plain(),
                resume="allow",
                settings=self.wandb.Settings(console="off"),  # the screen is ours
            )
        except (self.wandb.errors.Error, OSError) as error:
            raise RunError(
                f"Weights & Biases: {one_line(error, 300)}; `wandb login` first, or set WANDB_MODE=offline"
            ) from error
        keep(run, KEPT, {"project": self.run.project, "id": self.run.id})
        # Environment steps, not a counter of its own: a resume may tell of some steps again.
        self.run.define_metric(STEPS)
        self.run.define_metric("*", step_metric=STEPS)

    def log(self, steps: int, numbers: Mapping[str, float]) -> None:
        self.run.log({STEPS: steps, **numbers})

    def close(self, status: str) -> None:
        self.run.summary["status"] = status
        self.run.finish(exit_code=int(status == "failed"))
