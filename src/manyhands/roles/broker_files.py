"""The files that a private RabbitMQ node reads when it starts, for its owner's eyes alone."""

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

PASSWORD = "password"
"""The file that keeps the password beside the queues, so that a broker that is started again has the same."""
DEFINITIONS = "definitions.json"
"""The file with the users. RabbitMQ reads it at every start, before it listens; a user that it knows gets the
password that stands here. Its other file, rabbitmq.conf, cannot hold every password: a `#` ends a value."""


def settings(host: str, port: int, tls: bool, memory: str) -> str:
    lines = [
        f"listeners.{'ssl' if tls else 'tcp'}.default = {host}:{port}",
        "loopback_users = none",
        f"vm_memory_high_watermark.{'relative' if '.' in memory else 'absolute'} = {memory}",
        "disk_free_limit.absolute = 50MB",
    ]
    if tls:
        lines.append("listeners.tcp = none")
    return "\n".join(lines) + "\n"


def definitions(passwords: Mapping[str, str]) -> str:
    """Return users that may do everything, by their names."""
    users = [
        {
            "name": name,
            "password_hash": _password_hash(password),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": "administrator",
        }
        for name, password in passwords.items()
    ]
    everything = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    permissions = [{"user": name, **everything} for name in passwords]
    return json.dumps({"users": users, "vhosts": [{"name": "/"}], "permissions": permissions})


def _password_hash(password: str) -> str:
    """Hash a password as RabbitMQ keeps it: four bytes of salt, and the SHA-256 of salt and password."""
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def paths(home: Path, certificate: Path | None, key: Path | None) -> str:
    """Return settings that are paths, as Erlang's terms: rabbitmq.conf cannot hold every path, either."""
    terms = f"{{load_definitions, {_erlang(home / DEFINITIONS)}}}"
    if certificate and key:
        files = f"{{certfile, {_erlang(certificate)}}}, {{keyfile, {_erlang(key)}}}"
        terms += f", {{ssl_options, [{files}, {{verify, verify_none}}]}}"
    return f"[{{rabbit, [{terms}]}}].\n"


def _erlang(path: Path) -> str:
    """Return a path as a list of its characters, which an Erlang string is; none needs to be escaped."""
    return f"[{','.join(str(ord(letter)) for letter in str(path.resolve()))}]"


def write_private(path: Path, text: str) -> None:
    """Write a file for its owner alone, even where it was there before and others could read it."""
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
