"""The address of a broker, as a user gives it. Without aio-pika, which only a connection needs."""

import re
import ssl
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from manyhands.core.errors import UsageError
from manyhands.core.texts import one_line


@dataclass(frozen=True)
class Address:
    """Where the broker is. Never shown with its password."""

    user: str
    password: str
    host: str
    port: int
    vhost: str
    tls: bool
    ca_file: str | None

    @classmethod
    def parse(cls, url: str) -> "Address":
        example = (
            "amqp://user:password@host:5672/ (or amqps:// for TLS, with ?ca=FILE for your own authority)"
        )
        wrong = f"the broker's address is not of the form {example}"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise UsageError(f"{wrong}{_bad_port(url)}") from None
        query = parse_qs(parts.query, keep_blank_values=True)
        unknown = sorted(set(query) - {"ca"}) or [name for name, values in query.items() if not values[0]]
        if unknown and "@" not in parts.query:  # where it may be a part of the password
            raise UsageError(f"{wrong}; it has ?{one_line(unknown[0], 60)}")
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname or unknown:
            raise UsageError(wrong)
        tls = parts.scheme == "amqps"
        return cls(
            user=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
            host=parts.hostname,
            port=port or (5671 if tls else 5672),
            vhost=unquote(parts.path[1:]) or "/",
            tls=tls,
            ca_file=query["ca"][0] if query else None,
        )

    def __str__(self) -> str:
        vhost = "" if self.vhost == "/" else self.vhost
        return f"{'amqps' if self.tls else 'amqp'}://{self.user}@{self.host}:{self.port}/{vhost}"

    def __repr__(self) -> str:
        return f"Address({self})"

    @property
    def example(self) -> str:
        """The address with a placeholder for the password, as a user has to type it."""
        return str(self).replace("@", ":PASSWORD@", 1)

    def context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # ssl's own errors are among them
            raise UsageError(f"cannot read the certificate authority {self.ca_file}: {error}") from error


def _bad_port(url: str) -> str:
    """Say which port an address has that is none; nothing where it may be a part of the password."""
    host = url.rpartition("@")[2].removeprefix("amqp://").removeprefix("amqps://")
    found = re.match(r"[^:/?#]*:([^/?#]*)", host)
    return f"; its port is {found.group(1)!r:.60}" if found else ""
