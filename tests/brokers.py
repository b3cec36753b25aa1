"""A real RabbitMQ for the tests, and workers at it."""

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psutil

from manyhands.roles.broker import Broker

TESTS = Path(__file__).parent
GRACE = 10.0
ALLOWED = ("small_envs:*", "own_algos:Sarsa")
"""Code that the workers of tests let others name."""


@cache
def broker() -> Broker:
    """One private node for all tests of a session."""
    node = Broker().start()
    atexit.register(node.stop)
    return node


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def hears_hangups() -> None:
    """In a process that is to be started: as in a terminal, though the tests may run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Workers:
    """A worker daemon, `manyhands worker`, as a process of its own."""

    def __init__(self, url: str, procs: int = 1, patterns: tuple[str, ...] = ALLOWED) -> None:
        command = [sys.executable, "-m", "manyhands", "worker", "--procs", str(procs)]
        for pattern in patterns:
            command += ["--allow", pattern]
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "MANYHANDS_CHANNEL": url}
        self.process = subprocess.Popen(command, env=environment, process_group=0, preexec_fn=hears_hangups)

    def players(self) -> list[int]:
        """The processes that play."""
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def kill(self) -> None:
        """The daemon and its players at once, as a power cut would."""
        for process in [*self.players(), self.process.pid]:
            os.kill(process, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(GRACE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(GRACE)


@cache
def crew(procs: int) -> str:
    """The address of a broker of its own, with a worker that no test ends: starting one takes seconds."""
    node = Broker().start()
    atexit.register(node.stop)
    workers = Workers(node.url, procs)
    atexit.register(workers.stop)
    return node.url


class Cutter:
    """A way to the broker that stops in the middle of the first large message, once it is `armed`."""

    LARGE = 32_768

    def __init__(self, url: str) -> None:
        self.there = urlsplit(url)
        self.listener = socket.create_server(("127.0.0.1", 0))
        host = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.url = url.replace(f"{self.there.hostname}:{self.there.port}", host)
        self.armed, self.cut = threading.Event(), threading.Event()
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection((self.there.hostname, self.there.port))
            self.sockets += [near, far]
            threading.Thread(target=self._carry, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near, False), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(4 * self.LARGE):
                if up and self.armed.is_set() and (len(data) >= self.LARGE or self.cut.is_set()):
                    if not self.cut.is_set():
                        target.sendall(data[: len(data) // 2])
                        self.cut.set()
                    return
                target.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        self.listener.close()
        for each in self.sockets:
            each.close()
