"""The parts that the soak test disturbs: a run over a broker, and a parent with its children."""

import os
import random
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.soak_hosts import Hosts, megabytes
from manyhands.core.arrays import Float32
from manyhands.core.errors import ManyhandsError, RunError
from manyhands.roles.broker import Broker
from manyhands.runs.store import LAST, Run
from manyhands.system.processes import die_with_parent

Accidents = dict[str, tuple[float, Callable[[], None]]]
"""Accidents by name: how often they happen, and the function that causes them."""
SHORTEST_OUTAGE, LONGEST_OUTAGE = 1.0, 4.0
"""Seconds for which a network is cut or a process stopped."""
GRACE = 60.0
CALM_EXCHANGES = 4
"""The divisor of the exchanges for a calm parent, which makes fewer of them; their rate is steady."""


class Part(ABC):
    """Processes that are started again when they are gone, and the accidents that may happen to them."""

    hosts: int

    def __init__(self, place: Path, hosts: Hosts, environment: Mapping[str, str], rng: random.Random) -> None:
        self.place, self.network, self.environment, self.rng = place, hosts, environment, rng
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []  # when an outage ends

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.settle()
        for process in self.running.values():
            with suppress(ProcessLookupError):
                process.terminate()
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            process.kill()
            process.wait()
        self.running.clear()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def command(self, name: str) -> list[str]:
        """Return the command that starts, or goes on with, the process of this name."""

    @abstractmethod
    def accidents(self) -> Accidents: ...

    @abstractmethod
    def progress(self) -> float: ...

    @abstractmethod
    def calm(self) -> tuple[float, Float32 | None]:
        """Return the seconds that a calm run takes for the same, and its weights where comparable."""

    @abstractmethod
    def exact(self) -> bool | None: ...

    def counts(self) -> dict[str, Any]:
        return self.run.status()

    @property
    def run(self) -> Run:
        return Run(self.place / "run")

    def vector(self) -> Float32:
        return self.run.checkpoint(LAST).weights.vector

    def launch(self, name: str) -> None:
        dies = partial(die_with_parent, os.getpid())
        with (self.place / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                self.command(name),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=dies,
            )

    def look_after(self) -> None:
        """End outages that are over, and start again whatever has ended."""
        now = time.monotonic()
        for when, mend in [each for each in self.later if each[0] <= now]:
            self.later.remove((when, mend))
            mend()
        for name, process in list(self.running.items()):
            code = process.poll()
            if code is not None:
                if code > 0:
                    said = (self.place / f"{name}.log").read_text(errors="replace").strip().splitlines()
                    print(f"{name} ended with {code}: {said[-1:]}", flush=True)
                self.launch(name)

    def settle(self) -> None:
        """End every outage."""
        for _, mend in self.later:
            mend()
        self.later.clear()

    def for_a_while(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        self.later.append((time.monotonic() + self.rng.uniform(SHORTEST_OUTAGE, LONGEST_OUTAGE), end))

    def kill(self, name: str) -> None:
        with suppress(ProcessLookupError):
            self.running[name].send_signal(signal.SIGKILL)

    def pause(self, pid: int) -> None:
        def send(number: int) -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

        self.for_a_while(lambda: send(signal.SIGSTOP), lambda: send(signal.SIGCONT))

    def cut(self) -> None:
        host = self.rng.randrange(self.hosts)
        self.for_a_while(lambda: self.network.cut(host), lambda: self.network.mend(host))

    def one_below(self, names: list[str]) -> int | None:
        """Return a process that one of these has started."""
        found = []
        for name in names:
            with suppress(psutil.Error):
                found += [
                    each.pid for each in psutil.Process(self.running[name].pid).children(recursive=True)
                ]
        return self.rng.choice(found) if found else None

    def kill_below(self, names: list[str]) -> None:
        if (pid := self.one_below(names)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pause_below(self, names: list[str]) -> None:
        if (pid := self.one_below(names)) is not None:
            self.pause(pid)

    def stop(self) -> None:
        """Interrupt the first process and wait for it; the others end with it, or when this is left."""
        first = next(iter(self.running))
        process = self.running.pop(first)
        deadline = time.monotonic() + GRACE
        while self.progress() <= 0 and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        if process.wait(GRACE):
            raise RunError(f"{first} did not stop cleanly; see its log")

    def memory_of(self, names: list[str]) -> float:
        return megabytes([self.running[name].pid for name in names if name in self.running])

    @abstractmethod
    def memory(self) -> dict[str, float]: ...


def cli(*words: object) -> list[str]:
    return [sys.executable, "-m", "manyhands", *map(str, words)]


class BrokerPart(Part):
    """A RabbitMQ node, three workers on hosts of their own, and an executor."""

    hosts = 3
    settings = (
        "run.max_faults=1000000",
        "run.checkpoint_every=2",
        "collect.shards=6",
        "run.test_every=1000000000",
    )

    def start(self) -> None:
        self.broker = Broker(host="0.0.0.0", directory=self.place / "broker", password="soak").start()
        for name in ("executor", *self.workers):
            self.launch(name)

    @property
    def workers(self) -> list[str]:
        return [f"worker-{i}" for i in range(self.hosts)]

    def url(self, host: str) -> str:
        return f"amqp://manyhands:soak@{host}:{self.broker.port}/"

    def command(self, name: str) -> list[str]:
        if name == "executor":
            return self.executor("run")
        host = int(name.rpartition("-")[2])
        url = self.url(self.network.address(host))
        return [*self.network.inside(host), *cli("worker", url, "--procs", 2, "--name", name)]

    def executor(self, name: str, *more: str) -> list[str]:
        path, channel = self.place / name, self.url("127.0.0.1")
        if (path / "config.yaml").exists():
            return cli("train", "--resume", path, "--channel", channel, "--quiet")
        sets = [word for setting in (*self.settings, *more) for word in ("--set", setting)]
        words = ("--dir", path, "--channel", channel, "--seed", 7, "--quiet", *sets)
        return cli("train", "LunarLander-v3", *words, "--steps", 10**12, "--until", "steps")

    def accidents(self) -> Accidents:
        return {
            "kill a process of a worker": (8, lambda: self.kill_below(self.workers)),
            "kill a worker": (4, lambda: self.kill(self.rng.choice(self.workers))),
            "kill the executor": (1, lambda: self.kill("executor")),
            "kill the broker": (1, self.restart_broker),
            "cut a network": (3, self.cut),
            "stop a process of a worker": (3, lambda: self.pause_below(self.workers)),
            "stop the executor": (1, lambda: self.pause(self.running["executor"].pid)),
        }

    def restart_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def progress(self) -> float:
        try:
            return float(self.run.status().get("version", 0))
        except ManyhandsError:
            return 0.0

    def memory(self) -> dict[str, float]:
        return {
            "executor": self.memory_of(["executor"]),
            "workers": self.memory_of(self.workers),
            "broker": self.broker.resident_megabytes(),
        }

    def calm(self) -> tuple[float, Float32 | None]:
        """Run the same number of updates with the same workers, in another directory."""
        updates = int(self.run.status()["version"])
        self.broker.start()
        try:
            for name in self.workers:
                self.launch(name)
            began = time.monotonic()
            subprocess.run(self.executor("calm", f"run.updates={updates}"), env=self.environment, check=True)
            return time.monotonic() - began, Run(self.place / "calm").checkpoint(LAST).weights.vector
        finally:
            self.__exit__()

    def exact(self) -> bool | None:
        return None

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.broker.stop()


class ParentPart(Part):
    """A parent, and four children on hosts of their own."""

    hosts = 4
    port = 28765

    def start(self) -> None:
        token = self.place / "token"
        token.touch(0o600)
        token.write_text("soak\n")
        for name in ("parent", *self.children):
            self.launch(name)
            time.sleep(1.0)

    @property
    def children(self) -> list[str]:
        return [f"child-{i}" for i in range(self.hosts)]

    def command(self, name: str) -> list[str]:
        token = ("--token-file", self.place / "token")
        if name == "parent":
            path = self.place / self.directory
            if (path / "config.yaml").exists():
                return cli("parent", "--resume", path, "--quiet")
            words = (
                "--algo",
                "ppo",
                "--every",
                512,
                "--alpha",
                0.5,
                "--beta",
                0.5,
                "--exchanges",
                self.wanted,
            )
            listen = ("--listen", f"0.0.0.0:{self.port}")
            return cli("parent", "CartPole-v1", *words, *listen, *token, "--dir", path, "--quiet")
        host = int(name.rpartition("-")[2])
        url = f"ws://{self.network.address(host)}:{self.port}"
        joining = (url, "--name", name, "--cores", 1, "--wait", 60, "--quiet")
        return [*self.network.inside(host), *cli("child", *joining, *token)]

    directory, wanted = "run", 10**9

    def accidents(self) -> Accidents:
        return {
            "kill a process of a child": (3, lambda: self.kill_below(self.children)),
            "kill a child": (5, lambda: self.kill(self.rng.choice(self.children))),
            "kill the parent": (1, lambda: self.kill("parent")),
            "cut a network": (3, self.cut),
            "stop a child": (3, lambda: self.pause(self.running[self.rng.choice(self.children)].pid)),
            "stop the parent": (1, lambda: self.pause(self.running["parent"].pid)),
        }

    def progress(self) -> float:
        try:
            return float(Run(self.place / self.directory).status().get("version", 0))
        except ManyhandsError:
            return 0.0

    def memory(self) -> dict[str, float]:
        return {"parent": self.memory_of(["parent"]), "children": self.memory_of(self.children)}

    def calm(self) -> tuple[float, Float32 | None]:
        total = int(self.run.status()["version"])
        self.directory, self.wanted = "calm", max(1, total // CALM_EXCHANGES)
        with self:
            began = time.monotonic()
            self.running.pop("parent").wait()
            seconds = time.monotonic() - began
        return seconds * total / self.wanted, None

    def exact(self) -> bool | None:
        """Return whether every exchange belongs to one child, and every child's steps are counted once."""
        status = self.run.status()
        return bool(sum(child["exchanges"] for child in status["children"].values()) == status["version"])
