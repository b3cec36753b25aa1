"""The two halves of every channel."""

from dataclasses import dataclass
from typing import Any, Protocol

from manyhands.core.events import Event
from manyhands.core.orders import EvalOrder, Order, Task
from manyhands.core.roles import OrderIO
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.hogwild.cores import SharedMemory


@dataclass(frozen=True)
class WorkerStatus:
    """A worker as the executor sees it."""

    name: str
    """What the run calls it."""
    quiet: float
    """Seconds since it last made progress."""
    busy: bool
    """Whether it has orders."""
    host: str = ""
    """Its machine; like the rest known of workers on other machines."""
    speed: float = 0.0
    """Steps in a second."""
    version: int = -1
    """The weights that it played with last."""


class ExecutorChannel(Protocol):
    """The executor's half. `plays_here` where rollouts are played inside `receive`."""

    plays_here: bool

    def publish(self, weights: Weights) -> None:
        """Make a version available to every worker. At least the last three stay available."""

    def order(self, order: Order | EvalOrder) -> None:
        """Ask for a rollout of a shard, or a part of a test.

        At most two rollouts of one shard may be unacknowledged.
        """

    def receive(self, timeout: float) -> Event | None:
        """Return the next event, or None after `timeout` seconds."""

    def ack(self, trajectory: Trajectory) -> None:
        """Release a trajectory that the learner is done with; its memory may be used again."""

    def workers(self) -> list[WorkerStatus]: ...

    def backlog(self) -> int | None:
        """Return how many trajectories wait in a queue outside this process; None without such a queue."""

    def worker_stats(self) -> dict[str, Any]:
        """Return what the workers have done so far, for the run's directory; empty where there are none."""

    def finish(self, reason: str) -> None:
        """End every worker and free everything. May be called twice."""


class SharingChannel(ExecutorChannel, Protocol):
    """A channel to the cores of this machine, which may learn together."""

    memory: SharedMemory | None


class WorkerChannel(OrderIO, Protocol):
    """The worker's half, of a worker that belongs to one run."""

    def task(self) -> Task: ...

    def next_order(self) -> Order | EvalOrder | None:
        """Wait for the next order; None when the run is over."""
