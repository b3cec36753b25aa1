"""A parent's address, token and certificate; kept with its run, so that children find it after a resume."""

import ipaddress
import re
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from manyhands.averaging.protocol import DEFAULT_PORT, read_token, server_tls
from manyhands.config.plain_yaml import read_yaml
from manyhands.core.checks import require
from manyhands.core.decoding import decode
from manyhands.core.errors import ManyhandsError, UsageError
from manyhands.core.texts import one_line
from manyhands.runs import store
from manyhands.runs.checkpoint import write_atomically
from manyhands.runs.store import Run


@dataclass(frozen=True)
class ListenConfig:
    """The options of a parent that its children are not told."""

    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    """HOST:PORT; a port of 0 is any that is free."""
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    silence: float = 600.0
    """Seconds without an exchange after which a child is disconnected."""

    def __post_init__(self) -> None:
        require(self.silence > 0, "--silence", self.silence, "greater than 0")
        if not _is_loopback(self.address[0]) and self.token_file is None:
            raise UsageError(
                f"beyond this machine ({self.address[0]}) a parent demands a token; write one into a file "
                "and give --token-file to the parent and to every child"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any], resumed: Run | None) -> "ListenConfig":
        """Return the options that were given, where not None, and else those that the run had before."""
        path = resumed.path / store.LISTEN if resumed is not None else None
        try:
            kept = decode(cls, read_yaml(path), "it") if path is not None and path.exists() else cls()
        except ManyhandsError as error:
            raise UsageError(f"{path} is damaged: {one_line(error)}") from error
        plain: dict[str, Any] = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in given.items()
            if value is not None
        }
        return replace(kept, **plain)

    @property
    def address(self) -> tuple[str, int]:
        host, colon, port = self.listen.rpartition(":")
        if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or not int(port) < 65536:
            raise UsageError(
                f"--listen {self.listen!r} is not of the form 127.0.0.1:8765, with a port below 65536"
            )
        return host.strip("[]"), int(port)

    def token(self) -> str:
        return read_token(self.token_file)

    def tls(self) -> ssl.SSLContext | None:
        return server_tls(self.tls_cert, self.tls_key)

    def keep(self, run: Run, port: int) -> None:
        """Save the options with the run, with the port that it listens on, and absolute paths of files."""
        plain = asdict(self) | {"listen": f"{self.listen.rpartition(':')[0]}:{port}"}
        for name in ("token_file", "tls_cert", "tls_key"):
            plain[name] = plain[name] and str(Path(plain[name]).absolute())
        write_atomically(run.path / store.LISTEN, yaml.safe_dump(plain, sort_keys=False).encode())

    def needed(self) -> str:
        """Return the options that a child needs beside the address."""
        token = " --token-file FILE" if self.token_file else ""
        return token + (" [--tls-ca FILE, if the certificate is your own]" if self.tls_cert else "")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
