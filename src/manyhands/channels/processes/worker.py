"""The worker's half of the channel to worker processes."""

import mmap
from multiprocessing.connection import Connection

import cloudpickle

from manyhands.channels.processes import shared
from manyhands.config import algorithms
from manyhands.core import wire
from manyhands.core.arrays import Array
from manyhands.core.events import Fault, Notice
from manyhands.core.heartbeat import BYTES
from manyhands.core.orders import EvalOrder, EvalResult, Order, Task, read_order
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.envs.make import MakeEnv
from manyhands.hogwild.cores import SharedMemory


class WorkerSide:
    """The worker's half."""

    def __init__(self, socket_fd: int, progress_fd: int, board_fd: int, rollout_fds: list[int]) -> None:
        self.connection = Connection(socket_fd)
        self.progress = memoryview(mmap.mmap(progress_fd, BYTES)).cast("q")
        message = wire.decode(self.connection.recv_bytes(wire.MAX_MESSAGE), "task")
        self._task = Task.from_message(message)
        self.name = str(message.meta["name"])
        self.shards = [int(shard) for shard in message.meta["shards"]]
        pickled = self.connection.recv_bytes(wire.MAX_MESSAGE)
        self.callable_env: MakeEnv | None = None
        if pickled:
            self.callable_env, given = cloudpickle.loads(pickled)
            algorithms.GIVEN.update(given)
        spec, layout, beside = self._task.spec, self._task.layout, self._task.beside
        board = mmap.mmap(board_fd, shared.WeightBoard.size(spec, beside))
        self.board = shared.WeightBoard(board, spec, beside)
        size = shared.ROLLOUT_SLOTS * shared.rollout_size(layout)
        self.memory: SharedMemory | None = None
        if self._task.cores is not None:
            mapped = mmap.mmap(rollout_fds.pop(), SharedMemory.size(self._task))
            self.memory = SharedMemory(mapped, self._task)
        self.slots = {}
        for shard, descriptor in zip(self.shards, rollout_fds, strict=True):
            memory = mmap.mmap(descriptor, size)
            self.slots[shard] = [
                shared.rollout_arrays(memory, layout, slot) for slot in range(shared.ROLLOUT_SLOTS)
            ]

    def task(self) -> Task:
        return self._task

    def ready(self) -> None:
        self._send(wire.Message("ready"))

    def next_order(self) -> Order | EvalOrder | None:
        try:
            message = wire.decode(self.connection.recv_bytes(wire.MAX_MESSAGE))
        except (EOFError, ConnectionResetError):
            return None
        return None if message.kind == "finish" else read_order(message)

    def weights(self, version: int) -> Weights:
        return self.board.read_newest() if version < 0 else self.board.read(version)

    def arrays(self, order: Order) -> dict[str, Array]:
        return self.slots[order.shard][order.sequence % shared.ROLLOUT_SLOTS]

    def send(self, made: Trajectory | EvalResult) -> None:
        if isinstance(made, EvalResult):
            self._send(made.to_message())
            return
        header = ("shard", "sequence", "version", "maker", "seconds", "played")
        counts = {"finals": len(made.final_at), "episodes": len(made.episode_return)}
        self._send(wire.Message("rollout", "", {**{name: getattr(made, name) for name in header}, **counts}))

    def report(self, event: Fault | Notice) -> None:
        if isinstance(event, Fault):
            self._send(event.to_message())
        else:
            self._send(wire.Message("notice", "", {"text": event.text}))

    def failed(self, text: str, traceback: str) -> None:
        """Send why this worker gives up; the run fails with that text, and `--debug` shows where it arose."""
        self._send(wire.Message("failed", "", {"text": text, "traceback": traceback}))

    def _send(self, message: wire.Message) -> None:
        self.connection.send_bytes(wire.encode(message))
