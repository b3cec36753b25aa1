"""Whom an executor works with: what learns, and who wants to know how a run goes."""

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
    """Who wants to know how a run goes."""

    def progress(self, row: Mapping[str, Any], executor: "Executor") -> None: ...

    def waiting(self, executor: "Executor") -> None: ...

    def updated(self, metrics: Mapping[str, float], executor: "Executor") -> None:
        """The weights have a new version."""

    def fault(self, report: FaultReport, executor: "Executor") -> None:
        """Something failed, and has been counted."""

    def lost(self, lost: WorkerLost, text: str) -> None:
        """A worker is gone, and nobody did anything wrong."""

    def tested(self, result: Evaluation, executor: "Executor") -> None: ...

    def said(self, text: str) -> None: ...
