"""The two halves of every channel."""

from dataclasses import dataclass
from typing import Any, Protocol

from manyhands.collect.collector import Collector
from manyhands.core.arrays import Array
from manyhands.core.events import Event, Fault, Notice
from manyhands.core.orders import EvalOrder, EvalResult, Order, Task
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.hogwild.cores import SharedMemory


@dataclass(frozen=True)
class WorkerStatus:
    """A worker as the executor sees it."""

    name: str
    quiet: float  # seconds since it last made progress
    busy: bool
    host: str = ""  # the rest is known of workers on other machines
    speed: float = 0.0  # steps/s
    version: int = -1  # of the weights it played with last


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


class OrderIO(Protocol):
    """The interface through which a worker gets what an order needs, and sends its result."""

    def weights(self, version: int) -> Weights: ...

    def arrays(self, order: Order) -> dict[str, Array]:
        """Return the arrays to write the rollout into."""

    def send(self, made: Trajectory | EvalResult) -> None: ...

    def report(self, event: Fault | Notice) -> None: ...


class WorkerChannel(OrderIO, Protocol):
    """The worker's half, of a worker that belongs to one run."""

    def task(self) -> Task: ...

    def next_order(self) -> Order | EvalOrder | None:
        """Wait for the next order; None when the run is over."""


def run_order(order: Order | EvalOrder, channel: OrderIO, collector: Collector) -> None:
    """Play one order and send its result."""
    weights = channel.weights(order.version)
    if isinstance(order, EvalOrder):
        channel.send(collector.test(order, weights))
    else:
        channel.send(collector.collect(order, weights, channel.arrays(order)))
