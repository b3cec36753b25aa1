"""The channel without a second process: an order is played when its trajectory is asked for."""

from collections import deque
from typing import Any

from threadpoolctl import threadpool_limits

from manyhands.channels.base import WorkerStatus
from manyhands.channels.versions import Versions
from manyhands.collect.collector import Collector
from manyhands.core.events import Event, Fault, Notice
from manyhands.core.orders import EvalOrder, Order, Task
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.envs.make import MakeEnv
from manyhands.hogwild.cores import SharedMemory, open_core


class InlineChannel:
    """Plays in the executor's own process. Slower than workers, and the one to debug with."""

    name = "inline"
    plays_here = True

    def __init__(self, task: Task, callable_env: MakeEnv | None = None) -> None:
        # One BLAS thread: small products gain nothing from more, and their bits must not depend on it.
        self.blas = threadpool_limits(1, "blas")
        self.layout = task.layout
        self.memory: SharedMemory | None = None
        if task.cores is not None:
            self.memory = SharedMemory(bytearray(SharedMemory.size(task)), task)
        cores = None if self.memory is None else open_core(self.memory)
        self.collector = Collector(task, self.name, self._report, callable_env, open_group=cores)
        self.orders: deque[Order | EvalOrder] = deque()
        self.events: deque[Fault | Notice] = deque()
        self.versions: Versions[Weights] = Versions()

    def _report(self, event: Fault | Notice) -> None:
        self.events.append(event)

    def publish(self, weights: Weights) -> None:
        self.versions.add(weights.version, weights)

    def order(self, order: Order | EvalOrder) -> None:
        self.orders.append(order)

    def receive(self, timeout: float) -> Event | None:
        if self.events:
            return self.events.popleft()
        if not self.orders:
            return None
        order = self.orders.popleft()
        weights = self.versions.find(order.version)
        if isinstance(order, EvalOrder):
            return self.collector.test(order, weights)
        return self.collector.collect(order, weights, self.layout.allocate())

    def ack(self, trajectory: Trajectory) -> None:
        """Do nothing: every rollout has memory of its own here."""

    def workers(self) -> list[WorkerStatus]:
        return [WorkerStatus(self.name, 0.0, bool(self.orders))]

    def backlog(self) -> None:
        return None

    def worker_stats(self) -> dict[str, Any]:
        return {}

    def finish(self, reason: str) -> None:
        self.collector.close()
        self.blas.restore_original_limits()
