"""One connection to RabbitMQ, kept alive by a thread of its own.

Heartbeats go on while a network trains or an environment is slow, because neither happens here. A lost
connection is made again with growing pauses; what was under way on the old one is void, and `generation`
tells which one that was.
"""

import asyncio
import logging
import random
import ssl
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, DeliveryError, PublishError
from aiormq.exceptions import AuthenticationError, ProbableAuthenticationError

from manyhands.channels.amqp.address import Address
from manyhands.core.errors import RunError

HEARTBEAT = 10
"""Seconds between two heartbeats; the broker gives up a silent connection after about two of them."""
CONNECT_TIMEOUT = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two attempts to connect again, doubling."""
CLOSE_TIMEOUT = 3.0
DEEPEST = 10
"""Most causes of an error that are looked at."""
FULL_PAUSE = 0.05
"""Seconds before a message that a full queue refused is offered again."""


class BrokerError(RunError):
    """The broker does not want us, or is `absent`."""

    def __init__(self, text: str, absent: bool = False) -> None:
        super().__init__(text)
        self.absent = absent


Setup = Callable[["Link"], Awaitable[None]]


class Link:
    """A lasting connection. `setup` declares and consumes on each new one; `missing` hears of lost queues."""

    def __init__(
        self,
        address: Address,
        setup: Setup,
        prefetch: int,
        missing: Callable[[str], None] = lambda queue: None,
        changed: Callable[[str], None] = lambda text: None,
    ) -> None:
        for library in ("aio_pika", "aiormq"):  # what they would log is said by `changed`, in our words
            logging.getLogger(library).setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", "coroutine 'Connection.close' was never awaited", RuntimeWarning)
        self.address, self.setup, self.prefetch = address, setup, prefetch
        self.missing, self.changed = missing, changed
        self.context = address.context()
        self.generation = 0
        self.up = threading.Event()
        self.closing = False
        self.orderly: AbstractChannel  # keeps the order, does not wait for the broker
        self.confirmed: AbstractChannel  # waits until the broker has the message
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="broker", daemon=True)
        self.thread.start()
        self.lost = asyncio.Event()

    def start(self, patient: bool = False) -> None:
        """Connect. An absent broker is an error, or waited for if `patient`; one that refuses us is one."""
        self._await(self._connect(patient))
        self._later(self._keep())

    def send(self, exchange: str, key: str, body: bytes, headers: Any = None) -> None:
        """Send in order, without waiting; the message is lost with the connection."""
        self._later(self._send(exchange, key, aio_pika.Message(body, headers=headers)))

    def probe(self, queue: str, body: bytes) -> None:
        """Call `missing` when there is no such queue."""

        async def probe() -> None:
            try:
                await self.confirmed.default_exchange.publish(aio_pika.Message(body), queue)
            except PublishError:
                self.missing(queue)

        if self.up.is_set():
            self._later(self._quietly(probe()))

    def deliver(self, queue: str, body: bytes, identity: str, headers: Any = None) -> "Future[bool]":
        """Send a persistent message; the result is True once the broker has it, False if it never will."""
        persistent = aio_pika.DeliveryMode.PERSISTENT
        message = aio_pika.Message(body, message_id=identity, delivery_mode=persistent, headers=headers)
        return self._later(self._deliver(queue, message))

    def acknowledge(self, message: AbstractIncomingMessage, generation: int) -> None:
        """Acknowledge a message, unless its connection is gone: then the broker delivers it again."""

        async def acknowledge() -> None:
            if generation == self.generation and self.up.is_set():
                await message.ack()

        self._later(self._quietly(acknowledge()))

    def depth(self, queue: str) -> "Future[int]":
        """Return how many messages in a queue no one has fetched."""

        async def ask() -> int:
            declared = await self.orderly.declare_queue(queue, passive=True)
            return int(declared.declaration_result.message_count or 0)

        return self._later(ask())

    def run(self, work: Coroutine[Any, Any, Any], timeout: float) -> None:
        """Run `work` on the connection, if there is one, within `timeout`."""
        try:
            self._await(self._quietly(work), timeout)
        except TimeoutError:
            return

    def close(self) -> None:
        if self.closing:
            return
        self.closing = True
        self.run(self._shut_down(), CLOSE_TIMEOUT)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CLOSE_TIMEOUT)
        if not self.thread.is_alive():
            self.loop.close()

    async def _shut_down(self) -> None:
        self.up.clear()
        if self.generation:
            await self._quietly(self.connection.close())
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _later(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def _await(self, work: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        future = self._later(work)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    async def _quietly(self, work: Awaitable[Any]) -> None:
        """Await `work`, ignoring a connection that breaks: that is noticed, and a new one made, elsewhere."""
        try:
            await work
        except CONNECTION_EXCEPTIONS:
            return

    async def _connect(self, patient: bool) -> None:
        pause = FIRST_PAUSE
        said = ""
        while not self.closing:
            try:
                await asyncio.wait_for(self._open(), CONNECT_TIMEOUT)
                return
            except (TimeoutError, ssl.SSLError, *CONNECTION_EXCEPTIONS) as error:
                found = self._explain(error)
                if not patient or not found.absent:
                    raise found from error
                text = str(found)
                if text != said:
                    self.changed(f"{text}; waiting for it; Ctrl-C ends")
                    said = text
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _explain(self, error: BaseException) -> BrokerError:
        """Return one line that says what is wrong, out of an error that rarely does."""
        texts: list[str] = []
        cause: BaseException | None = error
        while cause is not None and len(texts) < DEEPEST:  # asyncio makes chains that go round in circles
            texts.append(f"{type(cause).__name__}: {cause}")
            cause = cause.__cause__ or cause.__context__
        whole = " ".join(texts)
        where = str(self.address)
        if isinstance(error, AuthenticationError | ProbableAuthenticationError) or "ACCESS_REFUSED" in whole:
            return BrokerError(f"{where}: the broker refuses this user or password")
        if "vhost" in whole or "NOT_ALLOWED" in whole or "Connection.OpenOk" in whole:
            return BrokerError(
                f"{where}: there is no virtual host {self.address.vhost!r}, or not for this user"
            )
        if "CERTIFICATE" in whole or "certificate" in whole:
            return BrokerError(
                f"{where}: the broker's certificate is not trusted; give its authority with ?ca=FILE"
            )
        if "ssl" in whole.lower():
            return BrokerError(f"{where}: no TLS there; is it the right port?")
        return BrokerError(f"{where}: no broker answers{_why_absent(whole)}", absent=True)

    async def _open(self) -> None:
        address = self.address
        self.connection = await aio_pika.connect(
            host=address.host,
            port=address.port,
            login=address.user,
            password=address.password,
            virtualhost=address.vhost,
            ssl=address.tls,
            ssl_context=self.context,
            timeout=CONNECT_TIMEOUT,
            heartbeat=HEARTBEAT,
        )
        try:
            self.lost = asyncio.Event()
            self.connection.close_callbacks.add(lambda *_: self.lost.set())
            self.orderly = await self.connection.channel(publisher_confirms=False)
            self.orderly.close_callbacks.add(lambda *_: self.lost.set())
            self.confirmed = await self.connection.channel(on_return_raises=True)
            self.confirmed.close_callbacks.add(lambda *_: self.lost.set())
            await self.orderly.set_qos(self.prefetch)
            self.generation += 1
            await self.setup(self)
        except BaseException:
            await self._quietly(self.connection.close())
            raise
        self.up.set()

    async def _keep(self) -> None:
        """Reconnect whenever the connection is lost, for as long as it takes."""
        while not self.closing:
            await self.lost.wait()
            self.up.clear()
            if self.closing:
                return
            self.changed("the connection to the broker is lost; trying again")
            await self._quietly(self.connection.close())
            while not self.closing:
                try:
                    await self._connect(patient=True)
                    break
                except BrokerError as error:  # it is up, but not quite: users and hosts come last
                    self.changed(str(error))
                    await asyncio.sleep(LONGEST_PAUSE)
            if not self.closing:
                self.changed("connected to the broker again")

    async def _send(self, exchange: str, key: str, message: aio_pika.Message) -> None:
        if not self.up.is_set():
            return

        async def send() -> None:
            target = self.orderly.default_exchange
            if exchange:
                target = await self.orderly.get_exchange(exchange, ensure=False)
            await target.publish(message, key, mandatory=False)

        await self._quietly(send())

    async def _deliver(self, queue: str, message: aio_pika.Message) -> bool:
        generation = self.generation
        while generation == self.generation and self.up.is_set() and not self.closing:
            try:
                await self.confirmed.default_exchange.publish(message, queue)
                return True
            except PublishError:
                return False  # there is no such queue, any more
            except DeliveryError:
                await asyncio.sleep(FULL_PAUSE)  # the queue is full
            except CONNECTION_EXCEPTIONS:
                return False
        return False


def _why_absent(text: str) -> str:
    """Return what is known of a broker that does not answer, given the texts of all errors."""
    if "Errno 111" in text or "refused" in text:
        return " (nothing listens on this port)"
    if "getaddrinfo" in text or "gaierror" in text or "Name or service" in text:
        return " (there is no host of this name)"
    return " (it takes too long)" if "TimeoutError" in text else f" ({text.partition(chr(10))[0]:.200})"
