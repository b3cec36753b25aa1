"""The interface of loggers, and the names of the numbers in them."""

from collections.abc import Mapping
from typing import Protocol

from manyhands.runs.store import Run


class Logger(Protocol):
    """A place where a run's numbers go. One object serves one run, and is called once at a time."""

    def start(self, run: Run, resumed_at: int | None) -> None:
        """Called once, before anything else; `resumed_at` is the step that a run goes on from, if it does.

        What later steps have left here is played again, and will come again.
        """

    def log(self, steps: int, numbers: Mapping[str, float]) -> None:
        """Take finite numbers by their names, such as train/return_mean, after so many environment steps."""

    def close(self, status: str) -> None:
        """Called once, at the end; `status` is solved, finished, stopped or failed."""


TAGS = {
    "return_mean": "train/return_mean",
    "length_mean": "train/length_mean",
    "episodes": "train/episodes",
    "test_mean": "test/return_mean",
    "test_sd": "test/return_sd",
    "test_episodes": "test/episodes",
    "policy_loss": "loss/policy",
    "value_loss": "loss/value",
    "loss": "loss/total",
    "entropy": "loss/entropy",
    "kl": "loss/kl",
    "clip_fraction": "loss/clip_fraction",
    "explained_variance": "loss/explained_variance",
    "gradient_norm": "learn/gradient_norm",
    "learning_rate": "learn/learning_rate",
    "seconds": "time/seconds",
    "collecting": "time/collecting",
    "waiting": "time/waiting",
    "learning": "time/learning",
    "broadcasting": "time/broadcasting",
    "testing": "time/testing",
    **{name: f"run/{name}" for name in ("version", "lag", "workers", "faults", "dropped", "data_queue")},
}
"""The names in loggers of columns of metrics.jsonl; what has the same prefix is shown together."""


def tag(column: str, own: bool = False) -> str:
    """Return what a column is called in loggers; `own` are those that a callback logs."""
    if own:
        return column if "/" in column else f"own/{column}"
    return TAGS.get(column, f"learn/{column}")
