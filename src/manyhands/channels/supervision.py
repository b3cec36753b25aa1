"""Supervises processes that play: starts them, notices what is wrong with them, and ends them.

Done by the executor for the worker processes of its machine, and by a worker daemon for its players.
"""

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from manyhands.channels.processes import shared
from manyhands.core.heartbeat import BEATS, BYTES, EPISODE, NOBODY
from manyhands.system.memory import own_megabytes
from manyhands.system.processes import CRASHES, FAILED, describe_exit, player_environment


@contextmanager
def new_heartbeat() -> Iterator[tuple[int, memoryview]]:
    """Make a heartbeat, and a descriptor of it for a process that is started meanwhile to inherit."""
    descriptor = shared.create(BYTES)
    try:
        progress = memoryview(mmap.mmap(descriptor, BYTES)).cast("q")
        progress[EPISODE] = NOBODY
        yield descriptor, progress
    finally:
        os.close(descriptor)


def start(
    module: str, arguments: Sequence[str], inherited: Sequence[int], text: str | None = None
) -> subprocess.Popen[str]:
    """Start a module as a process that plays; `text` is its standard input.

    It has a group of its own: Ctrl-C is for whoever started it, and what an environment forks ends with it.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        pass_fds=inherited,
        env=player_environment(),
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        text=True,
        process_group=0,
    )
    if process.stdin is not None:
        process.stdin.write(text or "")
        process.stdin.close()
    return process


@dataclass(eq=False)
class PlayingProcess:
    """A process that plays, as whoever started it keeps it."""

    name: str
    process: subprocess.Popen[str]
    progress: memoryview  # see core/heartbeat.py
    beats: int = 0
    seen_at: float = field(default_factory=time.monotonic)  # when it last made progress
    reason: str = ""  # why it was killed
    retired: bool = False  # it grew too large, which is no fault

    def kill_if_hung(self, busy: bool, allowed: float) -> bool:
        """Kill it where it is `busy` and has made no progress for more than `allowed` seconds."""
        now = time.monotonic()
        if self.progress[BEATS] != self.beats or not busy:
            self.beats, self.seen_at = self.progress[BEATS], now
        hangs = now - self.seen_at > allowed
        if hangs:
            self.reason = f"an environment step took longer than {allowed:g} s"
            self.process.kill()
        return hangs

    def kill_if_larger(self, limit: int, name: str) -> bool:
        """Kill it where it holds more than `limit` MB, which users know by a `name`."""
        size = own_megabytes(self.process.pid)
        if size > limit:
            self.reason, self.retired = f"it held {size:.0f} MB, more than {name}", True
            self.process.kill()
        return size > limit

    @property
    def hung(self) -> bool:
        return bool(self.reason) and not self.retired

    def why_it_ended(self, code: int) -> str:
        return self.reason or describe_exit(code)

    def crashed(self, code: int) -> bool:
        """Return whether an environment ended it, if one was played.

        In the middle of an order nobody but an environment leaves.
        """
        return self.hung or -code in CRASHES or (code >= 0 and code != FAILED)

    def end(self, grace: float) -> int:
        """Wait for its exit, then kill it and all it has started; return the code, negative for a signal."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, grace))
        self.kill_group()
        return self.process.wait()

    def kill_group(self) -> None:
        """Kill its process group: whatever an environment has started ends with it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
