"""The interfaces that an executor uses: a learner, and a listener to the run's progress."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from manyhands.core.evaluation import Evaluation
from manyhands.core.events import FaultReport, WorkerLost
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights

if TYPE_CHECKING:
    from manyhands.roles.executor import Executor


class Learns(Protocol):
    """The part of a learner that an executor uses."""

    def learn(self, trajectories: list[Trajectory]) -> dict[str, float]: ...

    def weights(self) -> Weights: ...


class Listener(Protocol):
    """Receives a run's progress and its events."""

    def progress(self, row: Mapping[str, Any], executor: "Executor") -> None: ...

    def waiting(self, executor: "Executor") -> None: ...

    def updated(self, metrics: Mapping[str, float], executor: "Executor") -> None:
        """Called when the weights have a new version."""

    def fault(self, report: FaultReport, executor: "Executor") -> None:
        """Called when something has failed, and has been counted."""

    def lost(self, lost: WorkerLost, text: str) -> None:
        """Called when a worker is gone without a fault of anybody's."""

    def tested(self, result: Evaluation, executor: "Executor") -> None: ...

    def said(self, text: str) -> None: ...
