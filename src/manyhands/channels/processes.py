"""The channel to worker processes on this machine.

Arrays lie in shared memory and never travel; small wire messages go over a socket pair and say which slot
is ready. Workers are started as fresh interpreters, so they hold no more than they import, and the caller's
script needs no `if __name__ == "__main__"`. They end with the executor, however it ends.
"""

import importlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

import cloudpickle

from manyhands import wire
from manyhands.channels import shared
from manyhands.channels.base import Event, Fault, Lost, Notice, Order, Task, Trial, Verdict, WorkerStatus
from manyhands.envs.make import MakeEnv
from manyhands.errors import EnvError, RunError, WireError
from manyhands.experience import Array, Trajectory
from manyhands.policy import Weights

POLL = 0.2
"""Seconds between two looks at workers that say nothing."""
GRACE = 2.0
"""Seconds that a worker has to leave by itself before it is killed."""
START_TIMEOUT = 60.0
"""Seconds that a worker may take to start; importing a heavy environment is slow."""
PROGRESS_BYTES = 32
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


@dataclass
class WorkerProcess:
    """A worker as its executor keeps it."""

    name: str
    process: subprocess.Popen[bytes]
    connection: Connection
    progress: memoryview  # lane being stepped, steps made
    shards: list[int]
    orders: deque[Order | Trial] = field(default_factory=deque)
    seen_steps: int = 0
    seen_at: float = field(default_factory=time.monotonic)
    ready: bool = False
    last_words: str = ""


class ProcessesChannel:
    """The executor's half: starts, watches and replaces the workers; shard i belongs to worker i mod N."""

    def __init__(
        self,
        task: Task,
        shards: int,
        workers: int,
        hang_timeout: float,
        callable_env: MakeEnv | None = None,
    ) -> None:
        self.task, self.hang_timeout = task, hang_timeout
        self.callable_env = callable_env
        self.descriptors: list[int] = []
        self.board = shared.WeightBoard(self._share(shared.WeightBoard.size(task.spec)), task.spec)
        self.board.clear()
        slots = shared.ROLLOUT_SLOTS
        self.memories = [self._share(slots * shared.rollout_size(task.layout)) for _ in range(shards)]
        self.slots = [
            [shared.rollout_arrays(memory, task.layout, slot) for slot in range(slots)]
            for memory in self.memories
        ]
        self.events: deque[Event] = deque()
        self.workers_by_shard: dict[int, WorkerProcess] = {}
        self.processes: list[WorkerProcess] = []
        self.finished = False
        for i in range(workers):
            self._start(f"worker-{i}", list(range(i, shards, workers)))

    def _share(self, size: int) -> mmap.mmap:
        descriptor = shared.create(size)
        self.descriptors.append(descriptor)
        return mmap.mmap(descriptor, size)

    def _start(self, name: str, shards: list[int]) -> None:
        ours, theirs = socket.socketpair()
        progress_file = shared.create(PROGRESS_BYTES)
        memories = [self.descriptors[0], *(self.descriptors[1 + shard] for shard in shards)]
        passed = [theirs.fileno(), progress_file, *memories]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        # One BLAS thread per worker: small products gain nothing from more, and their bits must not vary.
        environment |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        command = [sys.executable, "-m", "manyhands.roles.worker", *map(str, [os.getpid(), *passed])]
        process = subprocess.Popen(command, pass_fds=passed, env=environment, stdin=subprocess.DEVNULL)
        theirs.close()
        progress = memoryview(mmap.mmap(progress_file, PROGRESS_BYTES)).cast("q")
        os.close(progress_file)
        worker = WorkerProcess(name, process, Connection(ours.detach()), progress, shards)
        self.processes.append(worker)
        self.workers_by_shard.update(dict.fromkeys(shards, worker))
        message = self.task.to_message()
        worker.connection.send_bytes(
            wire.encode(
                wire.Message("task", message.schema, {**message.meta, "name": name, "shards": shards})
            )
        )
        # The only pickle in the house: a callable for our own child, over a pipe that no one else has.
        pickled = cloudpickle.dumps(self.callable_env) if self.callable_env else b""
        worker.connection.send_bytes(pickled)

    def publish(self, weights: Weights) -> None:
        self.board.write(weights)

    def order(self, order: Order | Trial) -> None:
        shard = order.shard if isinstance(order, Order) else order.part
        worker = self.workers_by_shard[shard]
        if not worker.orders:
            worker.seen_at = time.monotonic()
        worker.orders.append(order)
        try:
            worker.connection.send_bytes(wire.encode(order.to_message()))
        except (BrokenPipeError, ConnectionResetError):
            return  # its end is noticed, and the order given again, by `receive`

    def receive(self, timeout: float) -> Event | None:
        deadline = time.monotonic() + timeout
        while not self.events:
            left = deadline - time.monotonic()
            ready = wait([worker.connection for worker in self.processes], max(0.0, min(left, POLL)))
            for worker in [w for w in self.processes if w.connection in ready]:
                self._read(worker)
            for worker in list(self.processes):
                self._watch(worker)
            if left <= 0 and not self.events:
                return None
        return self.events.popleft()

    def _read(self, worker: WorkerProcess) -> None:
        try:
            message = wire.decode(worker.connection.recv_bytes(wire.MAX_MESSAGE))
        except (EOFError, ConnectionResetError):
            self._replace(worker, "")
            return
        worker.seen_at = time.monotonic()
        match message.kind:
            case "ready":
                worker.ready = True
            case "verdict":
                worker.orders.popleft()
                self.events.append(Verdict.from_message(message))
            case "rollout":
                order = worker.orders.popleft()
                assert isinstance(order, Order)
                arrays = self.slots[order.shard][order.sequence % shared.ROLLOUT_SLOTS]
                self.events.append(Trajectory.from_arrays(arrays, self.task.layout.columns, **message.meta))
            case "fault":
                self.events.append(Fault.from_message(message))
            case "notice":
                self.events.append(Notice(worker.name, message.meta["text"]))
            case "failed":
                worker.last_words = message.meta["text"]
            case kind:
                raise WireError(f"{worker.name} sent a message of kind {kind!r}")

    def _watch(self, worker: WorkerProcess) -> None:
        """Replaces a worker that has an order but makes no step for too long."""
        now = time.monotonic()
        if worker.progress[1] != worker.seen_steps or not worker.orders:
            worker.seen_steps, worker.seen_at = worker.progress[1], now
        allowed = self.hang_timeout if worker.ready else max(self.hang_timeout, START_TIMEOUT)
        if now - worker.seen_at > allowed:
            worker.process.kill()
            self._replace(worker, f"an environment step took longer than {allowed:g} s")

    def _replace(self, worker: WorkerProcess, hang: str) -> None:
        """Buries a dead worker, starts another for its shards, and gives its orders back."""
        code = _end(worker, GRACE)
        self.processes.remove(worker)
        worker.connection.close()
        if worker.last_words:
            self.finish("a worker failed")
            raise EnvError(worker.last_words)
        if not worker.ready and not hang:
            self.finish("a worker could not start")
            raise RunError(f"{worker.name} could not start ({_describe_exit(code)})")
        culprit = None
        if worker.orders and (hang or -code in CRASHES or code > 0):
            culprit = worker.progress[0]
        self._start(worker.name, worker.shards)
        self.events.append(
            Lost(
                worker.name,
                hang or _describe_exit(code),
                tuple(worker.shards),
                tuple(worker.orders),
                culprit,
            )
        )

    def ack(self, trajectory: Trajectory) -> None:
        """The slot is free again by the rule that the next order for it comes after this."""

    def workers(self) -> list[WorkerStatus]:
        now = time.monotonic()
        return [WorkerStatus(w.name, w.progress[1], now - w.seen_at, bool(w.orders)) for w in self.processes]

    def finish(self, reason: str) -> None:
        if self.finished:
            return
        self.finished = True
        for worker in self.processes:
            try:
                worker.connection.send_bytes(wire.encode(wire.Message("finish", "", {"reason": reason})))
            except OSError:
                continue  # already gone
        deadline = time.monotonic() + GRACE
        for worker in self.processes:
            _end(worker, deadline - time.monotonic())
            worker.connection.close()
        self.processes.clear()
        for descriptor in self.descriptors:
            os.close(descriptor)


def _end(worker: WorkerProcess, grace: float) -> int:
    """Waits for a worker's exit, then forces it. Its exit code, negative for a signal."""
    try:
        return worker.process.wait(max(0.0, grace))
    except subprocess.TimeoutExpired:
        worker.process.kill()
        return worker.process.wait()


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"left with exit code {code}"


class WorkerSide:
    """The worker's half."""

    def __init__(self, socket_fd: int, progress_fd: int, board_fd: int, rollout_fds: list[int]) -> None:
        self.connection = Connection(socket_fd)
        self.progress = memoryview(mmap.mmap(progress_fd, PROGRESS_BYTES)).cast("q")
        message = wire.decode(self.connection.recv_bytes(wire.MAX_MESSAGE), "task")
        self._task = Task.from_message(message)
        self.name = str(message.meta["name"])
        self.shards = [int(shard) for shard in message.meta["shards"]]
        pickled = self.connection.recv_bytes(wire.MAX_MESSAGE)
        self.callable_env: MakeEnv | None = None
        if pickled:
            self.callable_env = importlib.import_module("cloudpickle").loads(pickled)
        spec, layout = self._task.spec, self._task.layout
        self.board = shared.WeightBoard(mmap.mmap(board_fd, shared.WeightBoard.size(spec)), spec)
        size = shared.ROLLOUT_SLOTS * shared.rollout_size(layout)
        self.memories = {
            shard: mmap.mmap(descriptor, size)
            for shard, descriptor in zip(self.shards, rollout_fds, strict=True)
        }

    def task(self) -> Task:
        return self._task

    def ready(self) -> None:
        self._send(wire.Message("ready"))

    def next_order(self) -> Order | Trial | None:
        try:
            message = wire.decode(self.connection.recv_bytes(wire.MAX_MESSAGE))
        except (EOFError, ConnectionResetError):
            return None
        if message.kind == "trial":
            return Trial.from_message(message)
        return Order.from_message(message) if message.kind == "order" else None

    def weights(self, version: int) -> Weights:
        return self.board.read(self.board.newest() if version < 0 else version)

    def arrays(self, order: Order) -> dict[str, Array]:
        slot = order.sequence % shared.ROLLOUT_SLOTS
        return shared.rollout_arrays(self.memories[order.shard], self._task.layout, slot)

    def send(self, made: Trajectory | Verdict) -> None:
        if isinstance(made, Verdict):
            self._send(made.to_message())
            return
        header = ("shard", "sequence", "version", "maker", "seconds")
        counts = {"finals": len(made.final_at), "episodes": len(made.episode_return)}
        self._send(wire.Message("rollout", "", {**{name: getattr(made, name) for name in header}, **counts}))

    def report(self, event: Fault | Notice) -> None:
        if isinstance(event, Fault):
            self._send(event.to_message())
        else:
            self._send(wire.Message("notice", "", {"text": event.text}))

    def failed(self, text: str) -> None:
        """Last words before this worker gives up; the run fails with them."""
        self._send(wire.Message("failed", "", {"text": text}))

    def _send(self, message: wire.Message) -> None:
        self.connection.send_bytes(wire.encode(message))
