"""What the two halves of the broker channel agree on: names, and the small messages of their talk.

Each run has the four of SPEC.md. Two shared exchanges bring strangers together: what a worker says in the
lobby reaches every run's meta_queue, and what a run says on its meta_exchange reaches every worker.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from manyhands import wire
from manyhands.errors import WireError
from manyhands.experience import Trajectory

TO_EXECUTORS = "manyhands.to_executors"
TO_WORKERS = "manyhands.to_workers"


@dataclass(frozen=True)
class Names:
    """A run's queues and exchanges."""

    run: str

    @property
    def meta_queue(self) -> str:
        return f"manyhands.{self.run}.meta_queue"

    @property
    def meta_exchange(self) -> str:
        return f"manyhands.{self.run}.meta_exchange"

    @property
    def data_queue(self) -> str:
        return f"manyhands.{self.run}.data_queue"

    @property
    def model_exchange(self) -> str:
        return f"manyhands.{self.run}.model_exchange"


def of_our_age(trajectory: Trajectory, agent: str, ours: str, newest: int) -> Trajectory:
    """Versions of another executor's agent count on their own; to us its data is off-policy, not old."""
    return trajectory if agent == ours else replace(trajectory, version=newest)


@dataclass(frozen=True)
class Report:
    """How a hand, one process of a worker, presents itself: when it joins a run, and every second after."""

    hand: str  # its inbox
    worker: str  # the name that its owner gave it
    host: str
    process: int
    steps: int = 0  # played for this run
    episodes: int = 0
    return_sum: float = 0.0
    playing: float = 0.0  # seconds
    idle: float = 0.0  # seconds without an order
    blocked: float = 0.0  # seconds before a full queue
    sent: int = 0  # trajectories that the broker has
    version: int = -1  # of the weights it played with last

    def to_message(self, kind: str) -> wire.Message:
        return wire.Message(kind, "", asdict(self))

    @classmethod
    def from_message(cls, message: wire.Message) -> Self:
        try:
            report = cls(**message.meta)
        except TypeError as error:
            raise WireError(f"not a report: {error}") from error
        for name, value in asdict(report).items():
            kinds: Any = {"hand": str, "worker": str, "host": str}.get(name, (int, float))
            if not isinstance(value, kinds):
                raise WireError(f"a report whose {name} is {value!r}")
        return report
