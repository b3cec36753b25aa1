"""A parent and its children as real processes of this machine, from start to end."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.core.errors import RunError
from manyhands.runs.store import Run
from manyhands.system.processes import die_with_parent

ADDRESS = re.compile(r"manyhands child (wss?://\S+)")
PREFIX = "manyhands: "
"""The beginning of what a failed command says."""
START_TIMEOUT = 60.0
GRACE = 15.0


class Network:
    """A parent and its children; whatever is started ends when the context is left."""

    def __init__(self, path: Path) -> None:
        """The parent's run is saved to `path`, and what the others say to files beside it."""
        self.path = path
        self.parent: subprocess.Popen[bytes] | None = None
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.children.values(), *([self.parent] if self.parent else [])):
            with suppress(ProcessLookupError):
                process.terminate()
        for process in (*self.children.values(), *([self.parent] if self.parent else [])):
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            process.kill()
            process.wait()

    @property
    def run(self) -> Run:
        return Run(self.path)

    def said(self, who: str) -> str:
        log = self._log(who)
        return log.read_text() if log.exists() else ""

    def _log(self, who: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{who}.log")

    def start_parent(self, *words: object) -> str:
        """Start `manyhands parent` with these words; return its address once it listens."""
        place = ("--dir", self.path) if "--resume" not in words else ()
        before = len(self.said("parent"))
        self.parent = self._start("parent", "parent", *words, *place)
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self.parent.poll() is None:
            found = ADDRESS.findall(self.said("parent")[before:])
            if found:
                self.address = found[-1]
                return self.address
            time.sleep(0.05)
        why = self.said("parent")[before:][-500:].removeprefix(PREFIX)
        raise RunError(f"the parent did not start: {why}")

    def start_child(self, name: str, *words: object) -> None:
        self.children[name] = self._start(name, "child", self.address, "--name", name, *words)

    def _start(self, who: str, *words: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "manyhands", *map(str, words)]
        dies = partial(die_with_parent, os.getpid())  # even if this process is killed
        with self._log(who).open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=dies
            )

    def wait(self, timeout: float, every_child: bool = False) -> Run:
        """Wait until the parent has all its exchanges; with `every_child`, raise when one fails before."""
        assert self.parent is not None
        deadline = time.monotonic() + timeout
        while (code := self.parent.poll()) is None:
            if time.monotonic() > deadline:
                raise RunError(f"the parent took longer than {timeout:g} s")
            gone = [name for name, child in self.children.items() if child.poll() not in (None, 0)]
            training = self.run.status().get("status") == "running"  # who comes later is not missed
            if training and gone and (every_child or len(gone) == len(self.children)):
                raise RunError(f"{', '.join(gone)} failed; {gone[0]} said: {self.said(gone[0])[-500:]}")
            time.sleep(0.05)
        if code:
            raise RunError(f"the parent failed: {self.said('parent')[-500:]}")
        return self.run

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process, as an accident would."""
        process.send_signal(signal.SIGKILL)
        process.wait()


def averaged(
    path: Path, words: Sequence[object], children: int, cores: int, timeout: float, extra: Sequence[Any] = ()
) -> Run:
    """Run a parent with so many children of so many cores each, and return its run."""
    with Network(path) as network:
        network.start_parent(*words, "--listen", "127.0.0.1:0")
        for number in range(children):
            network.start_child(f"child-{number}", "--cores", cores, "--quiet", *extra)
        run = network.wait(timeout, every_child=True)
        for child in network.children.values():  # who have heard of it and tidy up
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)
        return run
