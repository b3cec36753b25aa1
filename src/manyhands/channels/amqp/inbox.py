"""Declares a player's inbox and decodes what comes to it, in the connection's own thread.

That one must not block. Weights are stored at once, and runs hear each second that their player is there;
all else is queued for the player's thread.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue

from aio_pika import ExchangeType
from aio_pika.abc import AbstractIncomingMessage

from manyhands.channels.amqp.connection import Link
from manyhands.channels.amqp.messages import MOST_OPEN, TO_EXECUTORS, TO_WORKERS, Finish, Names, check_name
from manyhands.channels.amqp.session import Session
from manyhands.channels.amqp.throttle import Throttle
from manyhands.core import wire
from manyhands.core.errors import WireError
from manyhands.core.texts import one_line

REPORT_INTERVAL = 1.0
MOST_TODO = 10_000
UNRECOGNISED_INTERVAL = 2.0
"""Seconds between two lines about messages that cannot be recognised."""


class Inbox:
    """Declares a player's queue on each connection, and decodes what comes from it."""

    link: Link

    def __init__(
        self, process: str, sessions: Mapping[str, Session], message_bytes: int, say: Callable[[str], None]
    ) -> None:
        """`sessions` are those of the player, by run; no message may be larger than `message_bytes`."""
        self.process, self.sessions, self.message_bytes, self.say = process, sessions, message_bytes, say
        self.name = ""  # of the queue; another on each connection
        self.todo: SimpleQueue[tuple[int, wire.Message]] = SimpleQueue()  # with the generation it came by
        self.unrecognised = Throttle(UNRECOGNISED_INTERVAL)

    async def declare(self, link: Link) -> None:
        generation = link.generation
        self.name = f"{self.process}.{generation}"
        inbox = await link.orderly.declare_queue(self.name, exclusive=True, auto_delete=True)
        await link.orderly.declare_exchange(TO_EXECUTORS, ExchangeType.FANOUT, durable=True)
        floor = await link.orderly.declare_exchange(TO_WORKERS, ExchangeType.FANOUT, durable=True)
        await inbox.bind(floor)

        async def on_message(message: AbstractIncomingMessage) -> None:
            self.hear(message, generation)

        await inbox.consume(on_message, no_ack=True)
        self.reporting = asyncio.create_task(self._report(link, generation))

    async def bind(self, names: Names) -> None:
        """Receive a run's weights from now on."""
        inbox = await self.link.orderly.get_queue(self.name, ensure=False)
        await inbox.bind(names.model_exchange)

    async def _report(self, link: Link, generation: int) -> None:
        """Report to every run each second, whatever the environments do."""
        while generation == link.generation and not link.closing:
            for session in list(self.sessions.values()):
                if session.collector is not None:
                    report = replace(session.report_card, open=tuple(session.unanswered)[:MOST_OPEN])
                    link.probe(session.names.meta_queue, wire.encode(report.to_message("report")))
            await asyncio.sleep(REPORT_INTERVAL)

    def note_missing(self, queue: str) -> None:
        """End a run whose queue is gone, even if nobody said so."""
        for session in list(self.sessions.values()):
            if session.names.meta_queue == queue and not session.over:
                session.over = True
                finish = Finish(session.names.run, "its queues are gone").to_message("finish")
                self.todo.put((self.link.generation, finish))

    def hear(self, message: AbstractIncomingMessage, generation: int) -> None:
        """Store weights at once, and queue all else."""
        session = self.sessions.get(str(message.headers.get("run")))
        try:
            if len(message.body) > self.message_bytes:
                raise WireError(f"a message of {len(message.body):,} bytes; see --max-message")
            heard = wire.decode(message.body)
            if heard.kind == "weights":
                if session is not None:
                    session.hear_weights(heard, str(message.headers.get("agent", "")))
            elif heard.kind != "knock" and self.todo.qsize() < MOST_TODO:
                self._note_order(heard)
                self.todo.put((generation, heard))
        except WireError as error:
            if self.unrecognised.lets_through():
                total = self.unrecognised.so_far()
                text = f"dropped an unrecognised message{total}: {one_line(error, 300)}"
                self.say(text)
                if session is not None:  # such as weights that were damaged on their way
                    session.say("notice", text)
                    session.ask_for_weights()

    def _note_order(self, heard: wire.Message) -> None:
        """Note an order that waits its turn, so that reports name it and it does not count as lost."""
        session = self.sessions.get(str(heard.meta.get("run")))
        if session is not None and heard.kind in ("order", "eval_order"):
            with suppress(WireError):  # told when its turn comes
                session.unanswered.add(check_name(heard.meta.get("order")))
