"""The worker's half of the channel over Ray: the player in an actor, and the files that it leaves."""

import faulthandler
import mmap
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ray._private import worker as ray_worker
from threadpoolctl import threadpool_limits

from manyhands.collect.collector import Collector
from manyhands.config import algorithms
from manyhands.core import payloads, wire
from manyhands.core.arrays import Array
from manyhands.core.errors import ManyhandsError
from manyhands.core.events import Fault, Notice
from manyhands.core.heartbeat import BEATS, BYTES, EPISODE, LANE, NOBODY, SHARD
from manyhands.core.orders import EvalResult, Order, Task, read_order
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.envs.make import MakeEnv
from manyhands.system.locks import try_lock

PREFIX, SIGNS, CRASH = "manyhands-", ".signs", ".crash"
"""Parts of the names of the files that an actor leaves to the one that follows it."""
STALE = 600.0
"""Seconds after which no process follows any more, because the run has ended, too."""


def drop_stale(place: Path) -> None:
    """Remove files of actors that were killed together with their run: old ones that no process holds."""
    for path in place.glob(f"{PREFIX}*{SIGNS}"):
        with suppress(OSError), path.open("r+b") as file:  # somebody else's, or no longer there
            if time.time() - path.stat().st_mtime > STALE and try_lock(file):
                path.with_suffix(CRASH).unlink(missing_ok=True)
                path.unlink()


def session_place() -> Path:
    """Return the directory of the cluster's session on this node; it goes with a cluster of the run's own."""
    node = ray_worker._global_node
    return Path(tempfile.gettempdir() if node is None else node.get_session_dir_path())


class CrashRecord:
    """A heartbeat in a file, so that the process that follows a lost one knows where that one was."""

    def __init__(self, name: str) -> None:
        place = session_place()
        drop_stale(place)
        self.signs_path = place / f"{PREFIX}{name}{SIGNS}"
        self.crash_path = place / f"{PREFIX}{name}{CRASH}"
        self.last_place = self._read()
        # Open, because it is locked, for as long as this process lives.
        self.signs_file = open(os.open(self.signs_path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")  # noqa: SIM115
        try_lock(self.signs_file)
        os.utime(self.signs_path)
        self.signs_file.truncate(BYTES)
        self.progress = memoryview(mmap.mmap(self.signs_file.fileno(), BYTES)).cast("q")
        self.progress[EPISODE] = NOBODY
        # Written by Python itself when a signal such as SIGSEGV ends the process, and by nobody else's kill.
        self.crash_file = open(os.open(self.crash_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w")  # noqa: SIM115
        faulthandler.enable(self.crash_file)
        self._exit = os._exit
        os._exit = self.exit  # what an environment may call, of which nobody else would know

    def exit(self, status: int) -> NoReturn:
        """End this process as the environment wished, and record that for the one that follows."""
        self.crash_file.write(f"exit code {status}")
        self.crash_file.flush()
        self._exit(status)

    def _read(self) -> tuple[bool, int, int, int] | None:
        try:
            signs = memoryview(self.signs_path.read_bytes()).cast("q")
            crashed = self.crash_path.stat().st_size > 0
            return crashed, signs[SHARD], signs[LANE], signs[EPISODE]
        except (OSError, TypeError, IndexError):  # there was none before this one, or on another node
            return None

    def remove(self) -> None:
        os._exit = self._exit
        faulthandler.disable()
        for path in (self.signs_path, self.crash_path):
            path.unlink(missing_ok=True)


class RayPlayer:
    """The worker's half, inside an actor. Its orders come as calls, one after the other."""

    def __init__(
        self, task: bytes, name: str, callable_env: MakeEnv | None, given: dict[str, Any], record: str
    ) -> None:
        algorithms.GIVEN.update(given)
        self.blas = threadpool_limits(1, "blas")
        self.task = Task.from_message(wire.decode(task, "task"))
        self.record = CrashRecord(f"{record}-{name}")
        self.progress = self.record.progress
        self.made = b""
        self.events: list[bytes] = []
        self.latest: Weights
        self.collector = Collector(self.task, name, self.report, callable_env, self.progress)

    def run_order(self, order: bytes, weights: bytes) -> tuple[bytes, list[bytes], str]:
        """Play an order; return its result, the events on the way, and why the run must end, if it must."""
        self.events = []
        message = wire.decode(weights, "weights")
        self.latest = payloads.read_weights(message, self.task.spec, self.task.beside)
        try:
            self.collector.run(read_order(wire.decode(order)), self)
        except ManyhandsError as error:
            return b"", self.events, str(error)
        except SystemExit as left:
            self.record.exit(left.code if isinstance(left.code, int) else 1)
        return self.made, self.events, ""

    def beats(self) -> int:
        """Return the heartbeat's count; answered during an order, unless a step keeps Python's lock."""
        return int(self.progress[BEATS])

    def last_place(self) -> tuple[bool, int, int, int] | None:
        """Return whether the process before this one crashed, and the shard, lane and episode it was in."""
        return self.record.last_place

    def tidy(self) -> None:
        self.record.remove()

    def process(self) -> int:
        return os.getpid()

    def weights(self, version: int) -> Weights:
        return self.latest

    def arrays(self, order: Order) -> dict[str, Array]:
        return self.task.layout.allocate()

    def send(self, made: Trajectory | EvalResult) -> None:
        if isinstance(made, EvalResult):
            self.made = wire.encode(made.to_message())
        else:
            self.made = payloads.encode_trajectory(made, self.task.spec.schema)

    def report(self, event: Fault | Notice) -> None:
        if isinstance(event, Fault):
            self.events.append(wire.encode(event.to_message()))
        else:
            self.events.append(wire.encode(wire.Message("notice", "", {"text": event.text})))
