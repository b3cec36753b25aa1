"""The channel to worker processes on this machine.

Arrays lie in shared memory and never travel; small wire messages go over a socket pair and say which slot
is ready. Workers are started as fresh interpreters, so they hold no more than they import, and the caller's
script needs no `if __name__ == "__main__"`. They end with the executor, however it ends.
"""

import mmap
import os
import selectors
import socket
import time
from collections import deque
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import cloudpickle

from manyhands.channels.base import WorkerStatus
from manyhands.channels.processes import shared
from manyhands.channels.processes.worker_process import WorkerProcess
from manyhands.channels.supervision import new_heartbeat, start
from manyhands.channels.worker_stats import WorkerStats
from manyhands.config import algorithms
from manyhands.core import wire
from manyhands.core.errors import EnvError, RunError, WireError
from manyhands.core.events import CrashSite, Event, Fault, Notice, WorkerLost
from manyhands.core.heartbeat import EPISODE, LANE, SHARD
from manyhands.core.orders import EvalOrder, EvalResult, Order, Task
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.envs.make import MakeEnv
from manyhands.hogwild.cores import SharedMemory
from manyhands.system.processes import describe_exit

POLL = 0.2
"""Seconds between two checks of workers that send nothing."""
WEIGH_INTERVAL = 2.0
"""Seconds between two checks of how much memory the workers hold."""
GRACE = 2.0
"""Seconds that a worker has to leave by itself before it is killed."""
START_TIMEOUT = 60.0
"""Seconds that a worker may take to start; importing a heavy environment is slow."""


class ProcessesChannel:
    """The executor's half: starts, watches and replaces the workers; shard i belongs to worker i mod N."""

    plays_here = False

    def __init__(
        self,
        task: Task,
        shards: int,
        workers: int,
        hang_timeout: float,
        worker_memory: int,
        callable_env: MakeEnv | None = None,
    ) -> None:
        self.task, self.hang_timeout, self.worker_memory = task, hang_timeout, worker_memory
        self.weighed_at = self.watched_at = time.monotonic()
        self.selector = selectors.DefaultSelector()
        self.callable_env = callable_env
        self.descriptors: list[int] = []
        memory = self._share(shared.WeightBoard.size(task.spec, task.beside))
        self.board = shared.WeightBoard(memory, task.spec, task.beside)
        self.board.clear()
        slots = shared.ROLLOUT_SLOTS
        self.memories = [self._share(slots * shared.rollout_size(task.layout)) for _ in range(shards)]
        self.slots = [
            [shared.rollout_arrays(memory, task.layout, slot) for slot in range(slots)]
            for memory in self.memories
        ]
        self.memory: SharedMemory | None = None
        if task.cores is not None:
            self.memory = SharedMemory(self._share(SharedMemory.size(task)), task)
        self.events: deque[Event | WorkerProcess] = deque()  # a worker among them is gone
        self.workers_by_shard: dict[int, WorkerProcess] = {}
        self.processes: list[WorkerProcess] = []
        self.finished = False
        self.stats = WorkerStats()
        for i in range(workers):
            self._start(f"worker-{i}", list(range(i, shards, workers)))

    def _share(self, size: int) -> mmap.mmap:
        descriptor = shared.create(size)
        self.descriptors.append(descriptor)
        return mmap.mmap(descriptor, size)

    def _start(self, name: str, shards: list[int]) -> None:
        ours, theirs = socket.socketpair()
        memories = [self.descriptors[0], *(self.descriptors[1 + shard] for shard in shards)]
        if self.memory is not None:
            memories.append(self.descriptors[-1])
        with new_heartbeat() as (progress_file, progress):
            passed = [theirs.fileno(), progress_file, *memories]
            process = start("manyhands.roles.worker", [str(os.getpid()), *map(str, passed)], passed)
        theirs.close()
        connection = Connection(ours.detach())
        worker = WorkerProcess(name, process, progress, connection=connection, shards=shards)
        self.processes.append(worker)
        self.selector.register(worker.connection, selectors.EVENT_READ, worker)
        self.workers_by_shard.update(dict.fromkeys(shards, worker))
        Thread(target=worker.send_all, name=f"{name} sender", daemon=True).start()
        task = self.task.to_message()
        meta = {**task.meta, "name": name, "shards": shards}
        worker.post(wire.encode(wire.Message("task", task.schema, meta)))
        # A pickle, but the user's own code for our own child, over a pipe that no one else has.
        given = algorithms.given(self.task.layout.action.algo)
        worker.post(cloudpickle.dumps((self.callable_env, given)) if self.callable_env or given else b"")

    def publish(self, weights: Weights) -> None:
        self.board.write(weights)

    def order(self, order: Order | EvalOrder) -> None:
        shard = order.shard if isinstance(order, Order) else order.part
        worker = self.workers_by_shard[shard]
        if not worker.orders:
            worker.seen_at = time.monotonic()
        worker.orders.append(order)
        worker.post(wire.encode(order.to_message()))

    def receive(self, timeout: float) -> Event | None:
        deadline = time.monotonic() + timeout
        while not self.events:
            left = deadline - time.monotonic()
            for key, _ in self.selector.select(max(0.0, min(left, POLL))):
                self._read(key.data)
            self._look_after_workers()
            if left <= 0 and not self.events:
                return None
        event = self.events.popleft()
        # Only now, when the executor hears of it, so that it gives no order to a worker it does not know of.
        return self._replace(event) if isinstance(event, WorkerProcess) else event

    def _look_after_workers(self) -> None:
        """Check on the workers now and then: with many workers it costs more than reading what they send."""
        now = time.monotonic()
        if now - self.watched_at >= POLL:
            self.watched_at = now
            for worker in self.processes:
                if not worker.gone:
                    self._watch(worker)
            self._weigh()

    def _read(self, worker: WorkerProcess) -> None:
        try:
            message = wire.decode(worker.connection.recv_bytes(wire.MAX_MESSAGE))
        except (EOFError, OSError):
            self._gone(worker)
            return
        worker.seen_at = time.monotonic()
        match message.kind:
            case "ready":
                worker.ready = True
            case "eval_result":
                worker.orders.popleft()
                self.events.append(EvalResult.from_message(message))
            case "rollout":
                order = worker.orders.popleft()
                assert isinstance(order, Order)
                arrays = self.slots[order.shard][order.sequence % shared.ROLLOUT_SLOTS]
                trajectory = Trajectory.from_arrays(arrays, self.task.layout.columns, **message.meta)
                self.stats.add(worker.name, trajectory)
                self.events.append(trajectory)
            case "fault":
                self.events.append(Fault.from_message(message))
            case "notice":
                self.events.append(Notice(worker.name, message.meta["text"]))
            case "failed":
                worker.last_words = message.meta["text"]
                worker.traceback = message.meta["traceback"]
            case kind:
                raise WireError(f"{worker.name} sent a message of kind {kind!r}")

    def _watch(self, worker: WorkerProcess) -> None:
        """Notice a worker that has died without a word, or has an order but no heartbeat."""
        if worker.process.poll() is not None:
            if not worker.connection.poll():  # else its last words, or the end of them, are read first
                self._gone(worker)
            return
        allowed = self.hang_timeout if worker.ready else max(self.hang_timeout, START_TIMEOUT)
        if worker.kill_if_hung(bool(worker.orders), allowed):
            self._gone(worker)

    def _weigh(self) -> None:
        """Every now and then, retires workers that have grown too large."""
        now = time.monotonic()
        if now - self.weighed_at < WEIGH_INTERVAL:
            return
        self.weighed_at = now
        for worker in self.processes:
            if not worker.gone and worker.kill_if_larger(self.worker_memory, "run.worker_memory"):
                self._gone(worker)

    def _gone(self, worker: WorkerProcess) -> None:
        worker.gone = True
        self.selector.unregister(worker.connection)
        self.events.append(worker)

    def _replace(self, worker: WorkerProcess) -> WorkerLost:
        """Remove a dead worker, start another for its shards, and return its orders."""
        code = worker.end(GRACE)
        self.processes.remove(worker)
        if worker.last_words:
            failure = EnvError(worker.last_words)
            failure.add_note(f"In {worker.name}:\n{worker.traceback.rstrip()}")
            raise failure
        if not worker.ready and not worker.hung and code >= 0:
            raise RunError(f"{worker.name} could not start ({describe_exit(code)})")
        crash_site = None
        if worker.orders and worker.crashed(code):
            signs = worker.progress
            crash_site = CrashSite(signs[SHARD], signs[LANE], signs[EPISODE])
        self.stats.of(worker.name).lost += 1
        self._start(worker.name, worker.shards)
        reason, orders, fault = worker.why_it_ended(code), tuple(worker.orders), not worker.retired
        return WorkerLost(worker.name, reason, tuple(worker.shards), orders, crash_site, fault)

    def ack(self, trajectory: Trajectory) -> None:
        """Do nothing: the slot is free again, because the next order for it comes after this."""

    def workers(self) -> list[WorkerStatus]:
        now = time.monotonic()
        return [WorkerStatus(w.name, now - w.seen_at, bool(w.orders)) for w in self.processes]

    def backlog(self) -> None:
        return None

    def worker_stats(self) -> dict[str, Any]:
        return self.stats.to_plain()

    def finish(self, reason: str) -> None:
        if self.finished:
            return
        self.finished = True
        for worker in self.processes:
            worker.outbox.put(wire.encode(wire.Message("finish", "", {"reason": reason})))
        deadline = time.monotonic() + GRACE
        for worker in self.processes:
            worker.end(deadline - time.monotonic())
        self.processes.clear()
        self.selector.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
