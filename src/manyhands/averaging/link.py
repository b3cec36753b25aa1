"""A child's link to its parent: how it joins, exchanges, and reconnects when the connection is lost."""

import math
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect

from manyhands.averaging.protocol import (
    OVER,
    PROTOCOL,
    AveragingConfig,
    client_tls,
    number,
    read_weights,
    received,
    structure,
)
from manyhands.averaging.welcome import SHOWN, Welcome
from manyhands.core import wire
from manyhands.core.errors import ManyhandsError, RunError, UsageError, WireError
from manyhands.core.networks import NetSpec
from manyhands.core.texts import one_line
from manyhands.core.weights import Weights

OPEN_TIMEOUT = 10.0
ANSWER_TIMEOUT = 60.0
"""Seconds after which an exchange without an answer counts as a lost connection."""
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0
"""Seconds between two attempts to reconnect: the first pause, and the longest."""
LOOKING = 2.0
"""Seconds between two attempts to find a parent that is not there yet."""
TOO_LARGE = 1009
"""The code with which whoever receives a larger message than it takes closes the connection."""


class NobodyError(RunError):
    """There is no parent, or not yet."""


class RefusedError(RunError):
    """The parent does not want this child."""


class OverError(RunError):
    """The parent has all the exchanges that it wanted."""


class Link:
    """A connection to the parent that comes back by itself when it is lost."""

    def __init__(
        self,
        url: str,
        name: str,
        token: str = "",
        authority: Path | None = None,
        patience: float = math.inf,
        max_message: int = wire.MAX_MESSAGE,
        allowed: Sequence[str] = (),
    ) -> None:
        """`patience`: seconds after which a child that has lost its parent stops looking for it.
        `max_message`: bytes of the largest message from it. `allowed`: code that the parent may name.
        """
        self.max_message, self.allowed = max_message, allowed
        self.url, self.name, self.token, self.patience = url, name, token, patience
        self.life = secrets.token_hex(8)
        self.authority, self.tls = authority, client_tls(url, authority)
        self.connection: ClientConnection | None = None
        self.joined: Welcome | None = None
        self.spec: NetSpec | None = None
        self.averaging = AveragingConfig()  # as the parent last told
        self.said: Callable[[str], None] = lambda text: None
        self.ended: Callable[[], None] = lambda: None
        self.closed = threading.Event()
        self.over = False  # the parent has all that it wanted
        self.refused = ""  # why this child has no parent any more

    def join(self, wait: float = 0.0) -> Welcome:
        """Connect for the first time; raise where the parent refuses this child, or is not there in time."""
        until, told = time.monotonic() + wait, False
        while True:
            try:
                self.connection, welcome = self._greet()
                break
            except NobodyError:
                left = until - time.monotonic()
                if left <= 0:
                    raise
                if not told:
                    self.said(f"no parent at {self.url} yet; waiting for it up to {wait:g} s")
                    told = True
                time.sleep(min(LOOKING, left))
        self.joined, self.averaging = welcome, welcome.averaging
        return welcome

    def get_ready(self, spec: NetSpec) -> None:
        """Send the structure of this child's own network, now and whenever it reconnects."""
        self.spec = spec
        connection = self.connection
        assert connection is not None
        try:
            connection.send(_ready(spec, self.averaging))
        except (ConnectionClosed, OSError) as error:
            if _says_over(error):
                raise self._all_made() from error
            self._lost(connection, _in_words(error))

    def _all_made(self) -> OverError:
        return OverError(f"the parent at {self.url} has all the exchanges that it wanted")

    def _too_much(self) -> str:
        return f"a message of more than {self.max_message / 1e6:g} MB; take it with a larger --max-message"

    def _greet(self) -> tuple[ClientConnection, Welcome]:
        try:
            connection = connect(
                self.url,
                ssl=self.tls,
                compression=None,
                open_timeout=OPEN_TIMEOUT,
                max_size=self.max_message,
            ).__enter__()
        except ssl.SSLCertVerificationError as error:
            hint = "" if self.authority else " (if it is your own, give it with --tls-ca)"
            raise RunError(
                f"the certificate of the parent at {self.url} does not hold: "
                f"{error.verify_message.strip('.')}{hint}"
            ) from error
        except ssl.SSLError as error:
            hint = "a parent without a certificate has ws://"
            raise NobodyError(f"no TLS with {self.url} ({error.reason}); {hint}") from error
        except InvalidMessage as error:
            hint = "" if self.tls else "; for a parent with TLS, wss://"
            raise NobodyError(f"nobody speaks WebSocket at {self.url}{hint}") from error
        except (OSError, ImportError) as error:
            raise NobodyError(f"no parent at {self.url}: {one_line(error, SHOWN)}") from error
        except (InvalidURI, ValueError) as error:
            raise UsageError(f"{self.url!r} is not an address such as ws://host:8765") from error
        except WebSocketException as error:
            raise NobodyError(f"no parent at {self.url}: {one_line(error, SHOWN)}") from error
        try:
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a parent that takes nothing more counts as gone
                timeout = int(1000 * ANSWER_TIMEOUT)
                connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)
            meta = {"protocol": PROTOCOL, "name": self.name, "token": self.token, "life": self.life}
            connection.send(wire.encode(wire.Message("hello", "", meta)))
            message = received(connection.recv(ANSWER_TIMEOUT), "welcome", "refused")
            if message.kind == "refused":
                raise RefusedError(f"the parent at {self.url} refuses {self.name}: {_why(message)}")
            return connection, Welcome.from_message(message, self.allowed)
        except BaseException as error:
            connection.close()
            if _says_over(error):
                raise self._all_made() from error
            if _too_large(error):
                raise RunError(f"the parent at {self.url} sent {self._too_much()}") from error
            if isinstance(error, WireError):
                raise RunError(f"{self.url}: {one_line(error, SHOWN)}") from error
            if isinstance(error, ConnectionClosed | OSError):  # a TimeoutError is one
                raise NobodyError(f"lost the parent at {self.url}: {_in_words(error)}") from error
            raise

    def ask(self, message: wire.Message, spec: NetSpec) -> Weights | None:
        """Send weights; return the parent's, or None while there is no connection."""
        connection = self.connection
        if connection is None:
            return None
        try:
            connection.send(wire.encode(message))
            answer = received(connection.recv(ANSWER_TIMEOUT), "answer", "refused")
            if answer.kind == "refused":
                why = _why(answer)
                if answer.meta.get("again") is True:
                    self._lost(connection, f"it disconnected this child: {why}")
                else:
                    self.refused = f"the parent at {self.url} disconnected {self.name}: {why}"
                return None
            if answer.schema != message.schema:
                raise WireError(f"weights of structure {answer.schema!r:.60}")
            version = int(number(answer.meta, "version"))
            if answer.meta.get("refused"):
                why = one_line(answer.meta["refused"], SHOWN)
                self.said(f"the parent at {self.url} refused this child's weights: {why}")
            return read_weights(answer, spec, self.averaging.format, version)
        except (ConnectionClosed, OSError, TimeoutError, WireError) as error:
            if _says_over(error):
                self.over = True
            elif _too_large(error):
                self._lost(connection, f"it sent {self._too_much()}")
            else:
                self._lost(connection, _last_words(connection) or _in_words(error))
            return None

    def _lost(self, connection: ClientConnection, why: str) -> None:
        self.connection = None
        connection.close()
        self.said(f"lost the parent at {self.url}: {why}; still training, reconnecting")
        threading.Thread(target=self._come_back, name="link", daemon=True).start()

    def _come_back(self) -> None:
        wait, told, until = FIRST_WAIT, "", time.monotonic() + self.patience
        while not self.closed.wait(wait * random.uniform(0.5, 1.0)):
            wait = min(2 * wait, LONGEST_WAIT)
            try:
                connection, welcome = self._greet()
            except OverError:
                self.over = True
                self.ended()
                return
            except ManyhandsError as error:
                if isinstance(error, RefusedError) and str(error) != told:
                    told = str(error)
                    self.said(told)
                if time.monotonic() > until:
                    self._give_up(f"{error}; it was looked for during {self.patience:g} s")
                    return
                continue
            if self._go_on_with(connection, welcome):
                return

    def _go_on_with(self, connection: ClientConnection, welcome: Welcome) -> bool:
        """Use a new connection, or give up; return False where it broke and another attempt is needed."""
        assert self.spec is not None
        assert self.joined is not None
        if (welcome.config, welcome.spec) != (self.joined.config, self.joined.spec):
            with suppress(ConnectionClosed, OSError):
                connection.send(wire.encode(wire.Message("end")))
            connection.close()
            task = f"{welcome.config.env.id} with {welcome.config.run.algo}"
            self._give_up(f"the parent at {self.url} has another task now ({task}); restart this child")
            return True
        try:
            connection.send(_ready(self.spec, welcome.averaging))
        except (ConnectionClosed, OSError):
            connection.close()
            return False
        self.averaging = welcome.averaging
        self.connection = connection
        self.said("reconnected to the parent")
        if self.closed.is_set():
            self.close()
        return True

    def _give_up(self, why: str) -> None:
        self.refused = why
        self.ended()

    def close(self) -> None:
        self.closed.set()
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(ConnectionClosed, OSError):
                connection.send(wire.encode(wire.Message("end")))
            connection.close()


def _ready(spec: NetSpec, averaging: AveragingConfig) -> bytes:
    return wire.encode(wire.Message("ready", spec.schema, structure(spec, averaging.format)))


def _says_over(error: BaseException) -> bool:
    return isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code == OVER


def _in_words(error: Exception) -> str:
    if isinstance(error, ConnectionClosed):
        return "the connection broke" if error.rcvd is None else "it hung up"
    if isinstance(error, TimeoutError):
        return f"it said nothing for {ANSWER_TIMEOUT:g} s"
    return one_line(error, SHOWN) or type(error).__name__


def _why(refused: wire.Message) -> str:
    """Return the reason in a refusal, whatever the parent put there."""
    return one_line(refused.meta.get("why"), SHOWN)


def _too_large(error: BaseException) -> bool:
    return isinstance(error, ConnectionClosed) and error.sent is not None and error.sent.code == TOO_LARGE


def _last_words(connection: ClientConnection) -> str:
    """Return why the parent has closed the connection, if it said so."""
    try:
        return f"it disconnected this child: {_why(received(connection.recv(0), 'refused'))}"
    except (ConnectionClosed, OSError, TimeoutError, WireError):
        return ""
