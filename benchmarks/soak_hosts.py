"""Hosts of a test on one machine: network namespaces that can be cut off, and a check of what they leave."""

import os
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from manyhands.core.errors import RunError

MARK = "MANYHANDS_SOAK"
LEAVE_TIMEOUT = 20.0
"""Seconds that processes have to leave at the end."""


class Hosts:
    """`count` namespaces, each with one connection to this machine. Needs root, as namespaces do."""

    def __init__(self, count: int) -> None:
        self.names = [f"mh{os.getpid() % 100_000}-{i}" for i in range(count)]

    def __enter__(self) -> Self:
        for i, name in enumerate(self.names):
            _ip("netns", "add", name)
            _ip("link", "add", self._here(i), "type", "veth", "peer", "name", "out", "netns", name)
            _ip("addr", "add", f"{self.address(i)}/30", "dev", self._here(i))
            _ip("link", "set", self._here(i), "up")
            for words in (
                ("addr", "add", f"{self._base(i)}.2/30", "dev", "out"),
                ("link", "set", "out", "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", name, *words)
        return self

    def __exit__(self, *_: object) -> None:
        for i, name in enumerate(self.names):
            for words in (("link", "del", self._here(i)), ("netns", "del", name)):
                with suppress(RunError):
                    _ip(*words)

    def _here(self, i: int) -> str:
        return f"mhs{os.getpid() % 10_000}x{i}"

    def _base(self, i: int) -> str:
        return f"10.231.{i}"

    def address(self, i: int) -> str:
        """Return the address of this machine, as host i reaches it."""
        return f"{self._base(i)}.1"

    def inside(self, i: int) -> list[str]:
        """Return the words before a command that is to run on host i."""
        return ["ip", "netns", "exec", self.names[i]]

    def cut(self, i: int) -> None:
        _ip("link", "set", self._here(i), "down")

    def mend(self, i: int) -> None:
        _ip("link", "set", self._here(i), "up")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def marked_environment(temporary: Path) -> tuple[str, dict[str, str]]:
    """Return a mark, and an environment with it for all that is started, by which that can be found again."""
    mark = uuid.uuid4().hex
    temporary.mkdir()
    return mark, {**os.environ, MARK: mark, "TMPDIR": str(temporary)}


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def left_behind(mark: str, temporary: Path) -> list[str]:
    """Return the processes that are still there after a while, and their temporary files."""
    deadline = time.monotonic() + LEAVE_TIMEOUT
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.5)
    processes = []
    for process in marked(mark):
        with suppress(psutil.Error):
            processes.append(f"process {' '.join(process.cmdline())[:80]}")
    return processes + sorted(path.name for path in temporary.iterdir())


def megabytes(pids: list[int]) -> float:
    """Return the MB that these processes, and all that they started, hold."""
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.Error):
                    total += each.memory_info().rss
    return total / 1e6
