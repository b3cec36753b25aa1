"""The parent: holds one network, and averages it with whatever its children send."""

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from statistics import median_low
from typing import Any

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from manyhands.averaging.admission import HELLO_TIMEOUT, TURN, Admission
from manyhands.averaging.child_stats import Child, Forgotten, ParentStats
from manyhands.averaging.connections import GRACE, LONGEST, Refused, close, refuse, say
from manyhands.averaging.maths import (
    SMALLEST_SCALE,
    Feedback,
    absurdity,
    root_mean_square,
    within,
)
from manyhands.averaging.protocol import (
    HEADROOM,
    MOST,
    OVER,
    AveragingConfig,
    checked_name,
    message_limit,
    number,
    read_weights,
    received,
    statistics,
)
from manyhands.config.settings import Config
from manyhands.core import payloads, wire
from manyhands.core.errors import RunError, WireError
from manyhands.core.networks import NetSpec
from manyhands.core.texts import one_line
from manyhands.core.weights import Weights, average, split_beside

READY_TIMEOUT = 120.0
"""Seconds that a child has to get ready: importing a heavy environment is slow."""
PING = 20.0
"""Seconds between two pings of a silent child, and until one that does not answer counts as gone."""
LINGER = 15.0
"""Seconds after the last exchange in which lost children may come back to hear that it was the last; longer
than they wait between two attempts."""
STRIKES = 3
"""Exchanges in a row with unusable weights, after which a child is disconnected."""
NOBODY = "somebody who never gave a name"


class Parent:
    """Serves children until enough exchanges were made, or until it is stopped."""

    def __init__(
        self,
        averaging: AveragingConfig,
        config: Config,
        spec: NetSpec,
        first: Weights,
        token: str,
        silence: float,
        said: Callable[[str], None] = print,
        exchanged: Callable[["Parent"], None] = lambda parent: None,
        turned: Callable[["Parent"], None] = lambda parent: None,
        room: Callable[[], Awaitable[None]] | None = None,
        stats: ParentStats | None = None,
    ) -> None:
        """`silence`: seconds without an exchange after which a child is disconnected. `turned` is called
        several times a second, whether anything happens or not; `exchanged` after every exchange, before the
        next one. `room` may delay an exchange before it is made.
        """
        logging.getLogger("websockets").setLevel(logging.CRITICAL)  # `said` says it in our words
        self.averaging, self.config, self.spec = averaging, config, spec
        # One step moves both, and `max_step` is how far it may.
        self.numbers = np.concatenate([first.vector, *statistics(spec, first.beside).values()])
        self.vector, self.statistics = split_beside(self.numbers, spec.size, spec.statistics)
        self.version = first.version
        self.first_scale = max(SMALLEST_SCALE, root_mean_square(self.vector))
        self.token, self.silence = token, silence
        self.said, self.exchanged, self.turned, self.room = said, exchanged, turned, room
        stats = stats or ParentStats({}, Forgotten())
        self.children, self.forgotten = dict(stats.children), stats.forgotten
        self.connections: dict[str, ServerConnection] = {}  # of children, by name
        self.gone = dict.fromkeys(self.children, time.monotonic())  # since when, of those not connected
        self.admission = Admission(self)
        self.stopping = False
        self.serving: asyncio.Task[None] | None = None
        self.failure: Exception | None = None
        self.address = ""

    @property
    def over(self) -> bool:
        return self.version >= self.averaging.exchanges

    def interrupt(self) -> None:
        """End at once; may be called from a signal handler.

        Where it serves, its task is cancelled: an interrupt within asyncio's own code can leave that
        waiting for ever.
        """
        if self.serving is None or self.serving.done():
            raise KeyboardInterrupt
        self.serving.get_loop().call_soon_threadsafe(self.serving.cancel)

    def stop(self) -> None:
        self.stopping = True

    def weights(self) -> Weights:
        vector, beside = split_beside(self.numbers.copy(), self.spec.size, self.spec.statistics)
        return Weights(self.version, vector, self.spec.schema, beside)

    async def run(self, host: str, port: int, tls: ssl.SSLContext | None, ready: Callable[[], None]) -> None:
        asyncio.get_running_loop().set_exception_handler(_quiet_about_ctrl_c)
        self.serving = asyncio.current_task()
        try:
            server = await serve(
                self._meet,
                host,
                port,
                ssl=tls,
                compression=None,
                max_size=HEADROOM,  # until its token is known to be the right one
                origins=[None],  # children, not web pages
                open_timeout=HELLO_TIMEOUT,
                ping_interval=PING,
                ping_timeout=PING,
                close_timeout=GRACE,
            )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error
            raise RunError(f"cannot listen on {host}:{port}: {why}; choose another --listen") from error
        async with server:
            found, port = next(iter(server.sockets)).getsockname()[:2]
            if ipaddress.ip_address(found).is_unspecified:  # listens on all addresses; children want one
                found = socket.gethostname()
            host = f"[{found}]" if ":" in found else found
            self.address = f"{'ws' if tls is None else 'wss'}://{host}:{port}"
            ready()
            while not self.stopping and not self.over:
                await asyncio.sleep(TURN)
                try:
                    self.turned(self)
                except Exception as error:  # such as a full disk
                    self.failure, self.stopping = error, True
            if self.over:
                await self._dismiss(server)
            await asyncio.gather(*(close(connection) for connection in server.connections))
        if self.failure is not None:
            raise self.failure

    async def _dismiss(self, server: Server) -> None:
        """Tell all children that all exchanges are made; wait a little for those that were lost just now."""
        told = False
        while not self.stopping:
            await asyncio.gather(*(close(connection, OVER) for connection in server.connections))
            since = time.monotonic() - LINGER
            missing = [
                name
                for name, child in self.children.items()
                if not child.left and self.gone.get(name, since) >= since
            ]
            if not missing:
                return
            if not told:
                self.said(f"waiting up to {LINGER:g} s for {', '.join(missing)} to hear that it is over")
                told = True
            await asyncio.sleep(TURN)

    async def _meet(self, connection: ServerConnection) -> None:
        """Serve one connection, from its first message to its last."""
        name = NOBODY
        child: Child | None = None
        try:
            hello = await self.admission.hear(connection)
            name = checked_name(hello.meta, "name")
            self.admission.check(hello)
            life = checked_name(hello.meta, "life")
            await self.admission.end_ghost(name, life)
            if name in self.connections:
                raise Refused(f"there is a child called {name!r} already; choose another --name")
            child = self.admission.remember(name)
            self.connections[name] = connection
            self.gone.pop(name, None)
            child.join(life)
            if self.over:
                await close(connection, OVER)
            connection.protocol.max_message_size = message_limit(self.spec)
            await self.admission.welcome(connection)
            async with asyncio.timeout(READY_TIMEOUT):
                ready = received(await connection.recv(), "ready", "end")
            if ready.kind == "ready":
                self.admission.check_structure(ready)
                self.said(f"{name} joined from {connection.remote_address[0]}")
                await self._exchange_with(child, connection)
            child.left = True
            self.said(f"{name} left after {child.exchanges} exchanges")
            if not child.exchanges:
                del self.children[name]  # such as one that had another parent's task
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == OVER:
                if child is not None:
                    child.left = True
            elif not self.over and not self.stopping:
                what = "sent too large a message" if error.sent and error.sent.code == 1009 else "was lost"
                self.said(f"{name} {what}; it may come back")
        except TimeoutError:
            await self._disconnect(connection, name, "said nothing for too long", again=True)
        except (WireError, Refused) as error:
            if child is not None:
                child.refused, child.left = child.refused + 1, True
            await self._disconnect(connection, name, str(error))
        except Exception as error:  # such as a full disk: the run ends with it, not this connection alone
            self.failure, self.stopping = error, True
        finally:
            if child is not None:
                child.connected = False
                del self.connections[name]
                if name in self.children:
                    self.gone[name] = time.monotonic()

    async def _exchange_with(self, child: Child, connection: ServerConnection) -> None:
        feedback, strikes = Feedback(self.averaging.format, self.spec.size), 0
        while True:
            async with asyncio.timeout(self.silence):
                raw = await connection.recv()
            message = received(raw, "exchange", "end")
            if message.kind == "end":
                return
            if self.room is not None:
                await self.room()
            if self.over:
                await close(connection, OVER)
                continue
            child.bytes_in += len(raw)
            why = await self._exchange(child, message)
            strikes = strikes + 1 if why else 0
            if strikes == STRIKES:
                raise Refused(f"its weights were refused {STRIKES} times in a row: {why}")
            if why:
                child.refused += 1
                self.said(f"refused the weights of {child.name}: {why}")
            meta = {"version": self.version, "refused": why}
            arrays = {**feedback.quantise(self.vector), **payloads.beside_arrays(self.statistics)}
            answer = wire.encode(wire.Message("answer", self.spec.schema, meta, arrays))
            child.bytes_out += len(answer)
            await say(connection, answer, self.silence)

    async def _exchange(self, child: Child, message: wire.Message) -> str:
        """Average, and count what the child has done since its last exchange; else return why not."""
        if message.schema != self.spec.schema:
            raise Refused(
                f"weights of structure {message.schema!r:.60} where {self.spec.schema} was expected"
            )
        theirs = read_weights(message, self.spec, self.averaging.format, self.version)
        facts = {name: number(message.meta, name) for name in ("base", "steps", "episodes", "round_trip")}
        recent = message.meta.get("recent")
        mean = number(message.meta, "recent", least=-MOST) if recent is not None else None
        if self.averaging.max_step is None:
            mine = Weights(self.version, self.vector, self.spec.schema, self.statistics)
            if why := absurdity(mine, theirs, self.averaging.alpha, self._scale()):
                return why
        stale = max(0.0, self.version - facts["base"])
        self.version += 1  # before anything is waited for, so that there are never more than were wanted
        if self.averaging.hogwild:
            await asyncio.to_thread(self._move, theirs)
        else:  # one after the other, because nothing else happens on this thread meanwhile
            self._move(theirs)
        child.exchanges, child.last = child.exchanges + 1, self.version
        child.recent = mean
        child.staleness += (stale - child.staleness) / child.exchanges
        child.book(int(facts["steps"]), int(facts["episodes"]))
        child.round_trip = facts["round_trip"]
        child.size = min(MOST, root_mean_square(theirs.vector))
        self.exchanged(self)
        return ""

    def _scale(self) -> float:
        """Return the root mean square of weights here: of the first, or of most children's if that is more.

        Most, so that no child alone can raise it for what it sends next.
        """
        sizes = [child.size for child in self.children.values() if child.connected and child.exchanges]
        return max(self.first_scale, median_low(sizes)) if sizes else self.first_scale

    def _move(self, theirs: Weights) -> None:
        averaging = self.averaging
        moved = average(
            self.numbers, np.concatenate([theirs.vector, *theirs.beside.values()]), averaging.alpha
        )
        if averaging.max_step:
            moved = within(self.numbers, moved, averaging.max_step)
        np.copyto(self.numbers, moved)

    async def _disconnect(
        self, connection: ServerConnection, name: str, why: str, again: bool = False
    ) -> None:
        """Disconnect a child and say why; `again`: it may come back."""
        why = one_line(why)[:LONGEST]  # which may repeat what it said itself
        self.said(f"{name} was disconnected: {why}")
        await refuse(connection, why, again)


def _quiet_about_ctrl_c(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore a task that a second Ctrl-C has interrupted; report all else as usual."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)
