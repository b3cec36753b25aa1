"""A private RabbitMQ node for trying things out: all of it in one directory, nothing left behind."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psutil

from manyhands.core.errors import RunError, UsageError
from manyhands.roles import broker_files
from manyhands.roles.broker_files import DEFINITIONS, PASSWORD
from manyhands.system.memory import resident_megabytes
from manyhands.system.secret_files import read_secret

START_TIMEOUT = 90.0
STOP_TIMEOUT = 20.0
MAPPER_TIMEOUT = 5.0
SERVERS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
"""Commands that start the server; the first does not insist on the system's own user and directories."""
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of this machine's, and one of those for each."""
WATCH = """
import os, shutil, signal, sys
sys.stdin.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except ProcessLookupError:
    pass
end_mapper(os.environ)
if len(sys.argv) > 2:
    shutil.rmtree(sys.argv[2], ignore_errors=True)
"""
"""The code of a process that ends the node when the other end of its pipe is gone, even by kill -9."""


@dataclass
class Broker:
    """A node that listens on loopback, or elsewhere, for a user of its own with a password."""

    host: str = "127.0.0.1"
    port: int = 0  # 0 takes a free one
    directory: Path | None = None  # kept when given, so that durable queues survive; else a temporary one
    certificate: Path | None = None
    key: Path | None = None
    user: str = "manyhands"
    password: str = field(default="", repr=False)
    memory: str = "0.4"
    """The part of the machine's memory, or the amount, from which on the broker holds publishers up."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--tls-cert and --tls-key go together")
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise UsageError(f"there is no file {file}")
        try:
            self.loopback = self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            raise UsageError(
                f"--listen {self.host!r} is not an address such as 127.0.0.1 or 0.0.0.0"
            ) from None
        if not 0 <= self.port < 65536:
            raise UsageError(f"--port is {self.port}; it must be between 0 and 65535")
        if not self.password.isprintable():
            raise UsageError("a broker's password must be of characters that can be printed")
        if not self.password:
            self.password = self._kept_password() or secrets.token_urlsafe(18)
        self.port = self.port or _free_port()
        self.temporary = self.directory is None
        self.process: subprocess.Popen[bytes] | None = None
        self.watch: subprocess.Popen[bytes] | None = None

    def _kept_password(self) -> str:
        kept = self.directory / PASSWORD if self.directory is not None else None
        return read_secret(kept, "--dir") if kept is not None and kept.exists() else ""

    @property
    def url(self) -> str:
        scheme = "amqps" if self.certificate else "amqp"
        host = socket.gethostname() if self.host in ANYWHERE else self.host
        host = f"[{host}]" if ":" in host else host
        return f"{scheme}://{quote(self.user)}:{quote(self.password, safe='')}@{host}:{self.port}/"

    def start(self) -> Self:
        server = next((found for name in SERVERS if (found := shutil.which(name))), None)
        if server is None:
            raise RunError(
                "RabbitMQ is not installed; on Debian or Ubuntu: sudo apt-get install rabbitmq-server"
            )
        self._check_port()
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="manyhands-broker-"))
        self.directory.mkdir(0o700, parents=True, exist_ok=True)
        self.home = self.directory.resolve()
        files = {
            PASSWORD: f"{self.password}\n",
            DEFINITIONS: broker_files.definitions(self._passwords()),
            "rabbitmq.conf": broker_files.settings(
                self.host, self.port, self.certificate is not None, self.memory
            ),
            "advanced.config": broker_files.paths(self.home, self.certificate, self.key),
            "plugins": "[].\n",
        }
        for name, text in files.items():
            broker_files.write_private(self.home / name, text)
        self.environment = self._environment()
        with (self.home / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                [server], env=self.environment, stdout=output, stderr=output, process_group=0
            )
        own = [str(self.home)] if self.temporary else []
        self.watch = subprocess.Popen(
            [sys.executable, "-c", WATCH, str(self.process.pid), *own],
            env=self.environment,
            stdin=subprocess.PIPE,
            process_group=0,
        )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def _check_port(self) -> None:
        """Check that the port is free: RabbitMQ says so late, and meanwhile clients meet another server."""
        try:
            with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self.host, self.port))
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error
            raise RunError(
                f"cannot listen on {self.host}:{self.port}: {why}; choose another --port"
            ) from error

    def _passwords(self) -> dict[str, str]:
        """Return the users' passwords."""
        return {self.user: self.password}

    def _environment(self) -> dict[str, str]:
        # Names and ports of its own, on loopback. Schedulers that do not spin leave the cores to the players.
        distribution, mapper = _free_port(), _free_port()
        erlang = "+sbwt none +sbwtdcpu none +sbwtdio none"
        return {
            **os.environ,
            "HOME": str(self.home),
            "RABBITMQ_NODENAME": f"manyhands-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(self.home / "data"),
            "RABBITMQ_LOG_BASE": str(self.home / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "plugins"),
            "RABBITMQ_PID_FILE": str(self.home / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{erlang} -kernel inet_dist_use_interface {{127,0,0,1}}",
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def _wait(self) -> None:
        """Wait until the node accepts connections."""
        host = ANYWHERE.get(self.host, self.host)
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RunError(f"RabbitMQ did not start: {self._last_words()}")
            with suppress(OSError), socket.create_connection((host, self.port), 1.0):
                return
            time.sleep(0.1)
        raise RunError(f"RabbitMQ did not answer within {START_TIMEOUT:g} s: {self._last_words()}")

    def _last_words(self) -> str:
        lines = (self.home / "output.txt").read_text(errors="replace").split("\n")
        telling = [line.strip() for line in lines if "error" in line.lower() and line.strip()]
        return telling[-1] if telling else f"see {self.home / 'output.txt'}"

    def kill(self) -> None:
        """Kill the node, as a power cut would."""
        if self.watch is not None:
            self.watch.kill()
            self.watch.communicate()
            self.watch = None
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
        end_mapper(self.environment)

    def stop(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT)
            self.kill()
        if self.temporary and self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None

    def resident_megabytes(self) -> float:
        """Return the MB that the node holds: those of the largest process of its group."""
        assert self.process is not None
        sizes = [0.0]
        for pid in psutil.pids():
            with suppress(OSError):
                if os.getpgid(pid) == self.process.pid:
                    sizes.append(resident_megabytes(pid))
        return max(sizes)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()


def end_mapper(environment: Mapping[str, str]) -> None:
    """End Erlang's port mapper, which is ours alone and outlives its node, of whose end it learns late."""
    mapper = shutil.which("epmd")
    deadline = time.monotonic() + MAPPER_TIMEOUT
    while mapper is not None and time.monotonic() < deadline:
        words = [mapper, "-kill"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=10, check=False)
        if "living nodes" not in done.stdout + done.stderr:
            return
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
