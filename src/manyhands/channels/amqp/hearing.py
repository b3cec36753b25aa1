"""Declares a run's queues and decodes what comes from them, in the connection's own thread.

That one must not block. Requests to join are answered here; what changes the run is queued for the executor's
thread.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import yaml
from aio_pika import ExchangeType, Message
from aio_pika.abc import AbstractIncomingMessage

from manyhands.channels.amqp.connection import Link
from manyhands.channels.amqp.messages import (
    PLAYER,
    TO_EXECUTORS,
    TO_WORKERS,
    Ask,
    Ended,
    Gone,
    Held,
    Limits,
    Names,
    Offer,
    Released,
    Report,
    Settled,
    Unplayed,
    Wanted,
    Words,
)
from manyhands.channels.amqp.throttle import Throttle
from manyhands.channels.versions import Versions
from manyhands.config.settings import Config
from manyhands.core import payloads, wire
from manyhands.core.errors import WireError
from manyhands.core.events import Fault, Notice
from manyhands.core.orders import EvalResult, Task
from manyhands.core.texts import lines, one_line

LABEL = 100
"""Most characters of a worker's name that are shown."""
MOST_EXECUTORS = 64
META_LIMIT = 10_000
"""Messages in a meta_queue; the oldest go first, which are the ones that no longer matter."""
EXPIRY = 7 * 24 * 3600 * 1000
"""Milliseconds after which the broker removes the queues of a run that was killed and never resumed."""
NOTICE_WINDOW, MOST_NOTICES = 10.0, 100
"""Seconds of a window, and the most notices of players that are shown in it."""


def label(inbox: str) -> str:
    """Return a player's name as it is shown."""
    return one_line(inbox.removeprefix(PLAYER).rpartition(".")[0] or inbox, LABEL)


class Hearing:
    """Declares a run's two queues and two exchanges, and decodes what comes from the queues."""

    link: Link

    def __init__(self, task: Task, names: Names, config: Config, executor: str) -> None:
        self.task, self.names, self.executor = task, names, executor
        self.shards = config.collect.shards
        self.limits = Limits(config.run.hang_timeout, config.run.worker_memory)
        self.settings = config.to_plain()  # for executors that ask to join
        self.shared = config.run.mode == "async"  # only then they may
        self.arrivals: SimpleQueue[Any] = SimpleQueue()
        self.published: Versions[bytes] = Versions()  # weights, which a player gets when it joins
        self.keys: dict[str, str] = {}  # inbox of an executor that joined: what it has to know
        self.notices = Throttle(NOTICE_WINDOW, MOST_NOTICES)
        self.offer = b""
        self.closed = False

    async def declare(self, link: Link) -> None:
        """Declare and consume on a new connection, and offer the run to workers."""
        names, channel = self.names, link.orderly
        fanout = ExchangeType.FANOUT
        lobby = await channel.declare_exchange(TO_EXECUTORS, fanout, durable=True)
        floor = await channel.declare_exchange(TO_WORKERS, fanout, durable=True)
        # A full data_queue refuses, so workers wait; a batch of answers has room, and as much again.
        bounded: Any = {"x-max-length": 2 * self.shards, "x-overflow": "reject-publish", "x-expires": EXPIRY}
        newest: Any = {"x-max-length": META_LIMIT, "x-expires": EXPIRY}
        data_queue = await channel.declare_queue(names.data_queue, durable=True, arguments=bounded)
        meta_queue = await channel.declare_queue(names.meta_queue, durable=True, arguments=newest)
        meta_exchange = await channel.declare_exchange(names.meta_exchange, fanout, durable=True)
        await channel.declare_exchange(names.model_exchange, fanout, durable=True)
        await meta_queue.bind(lobby)
        await floor.bind(meta_exchange)
        generation = link.generation

        async def on_data(message: AbstractIncomingMessage) -> None:
            self.hear_data(message, generation)

        async def on_meta(message: AbstractIncomingMessage) -> None:
            self.hear_meta(message)

        await meta_queue.consume(on_meta, no_ack=True)
        await data_queue.consume(on_data)
        # Players join once for every epoch: again after the executor, or its connection, was a new one.
        epoch = f"{self.executor}.{generation}"
        offer = Offer(names.run, epoch, self.limits, dict(self.task.to_message().meta))
        self.offer = wire.encode(offer.to_message("offer"))
        await meta_exchange.publish(Message(self.offer), "", mandatory=False)

    async def remove(self, link: Link, note_unread: Callable[[AbstractIncomingMessage], None]) -> None:
        """Remove the run's queues and exchanges, after a look at each trajectory that nobody has read."""
        channel, names = link.orderly, self.names
        data_queue = await channel.get_queue(names.data_queue, ensure=False)
        while (message := await data_queue.get(no_ack=True, fail=False)) is not None:
            note_unread(message)
        for queue in (names.data_queue, names.meta_queue):
            await channel.queue_delete(queue)
        for exchange in (names.meta_exchange, names.model_exchange):
            await channel.exchange_delete(exchange)

    def hear_data(self, message: AbstractIncomingMessage, generation: int) -> None:
        try:
            trajectory = payloads.decode_trajectory(message.body, self.task.layout, self.task.spec.schema)
        except WireError as error:
            self.link.acknowledge(message, generation)
            self.arrivals.put(("foreign", "data_queue", str(error)))
            return
        self.arrivals.put(("data", trajectory, message, generation))

    def hear_meta(self, message: AbstractIncomingMessage) -> None:
        try:
            self.hear_letter(wire.decode(message.body), message.message_id)
        except WireError as error:
            self.arrivals.put(("foreign", "meta_queue", str(error)))

    def hear_letter(self, heard: wire.Message, identity: str | None) -> None:
        match heard.kind:
            case "hello":
                player = Report.from_message(heard).player
                if not self.closed:
                    self.link.send("", player, self.offer)
                self.arrivals.put(("hello", player))
            case "join" | "report" | "protocol":
                self.arrivals.put((heard.kind, Report.from_message(heard), time.monotonic()))
            case "eval_result":
                self.arrivals.put(("eval_result", identity, EvalResult.from_message(heard)))
            case "fault":
                fault = Fault.from_message(heard)
                shown = replace(fault, worker=one_line(fault.worker, LABEL), text=lines(fault.text))
                self.arrivals.put(("event", shown))
            case "notice" | "refuse":
                words = Words.from_message(heard)
                if heard.kind == "refuse":
                    self.arrivals.put(("refused", words.player, one_line(words.text)))
                if self.notices.lets_through():
                    self.arrivals.put(("event", Notice(label(words.player), one_line(words.text))))
            case "failed" | "breach":
                words = Words.from_message(heard)
                self.arrivals.put((heard.kind, words.player, one_line(words.text)))
            case "unplayed":
                self.arrivals.put(("unplayed", Unplayed.from_message(heard)))
            case "wanted":
                self.send_weights(Wanted.from_message(heard).player)
            case "settled":
                self._hear_settled(heard)
            case "held":
                self.arrivals.put(("held", Held.from_message(heard)))
            case "over":
                self.arrivals.put(("over", Ended.from_message(heard)))
            case "ask":
                self._answer(Ask.from_message(heard).inbox)
            case "released":
                released = Released.from_message(heard)
                self.arrivals.put(("released", released.player, released.shard))
            case "gone":
                self.arrivals.put(("gone", Gone.from_message(heard)))
            case kind:
                raise WireError(f"a message of kind {kind!r:.60}")

    def _hear_settled(self, heard: wire.Message) -> None:
        """Decode what an executor that joined has learned from, and where the shard stands."""
        facts = {name: fact for name, fact in heard.meta.items() if name != "shards"}
        settled = Settled.from_message(wire.Message(heard.kind, "", facts))
        states = list(payloads.unpack_states(heard.meta, heard.arrays).values())
        if len(states) != 1 or not states[0].fits(self.task.layout):
            raise WireError(f"{len(states)} shards, or of another layout, where one was learned from")
        self.arrivals.put(("settled", settled, states[0]))

    def _answer(self, inbox: str) -> None:
        """Send an executor that wants to join the run's settings, and the key that it needs.

        A run that cannot be joined gives no keys; the settings say why.
        """
        if len(self.keys) >= MOST_EXECUTORS and inbox not in self.keys:
            return
        key = self.keys.setdefault(inbox, secrets.token_hex(16)) if self.shared else ""
        meta = {"run": self.names.run, "config": yaml.safe_dump(self.settings), "key": key}
        self.link.send("", inbox, wire.encode(wire.Message("settings", "", meta)))

    def send_weights(self, player: str) -> None:
        for body in self.published.in_order():
            self.link.send("", player, body, headers={"run": self.names.run})

    def note_missing(self, queue: str) -> None:
        self.arrivals.put(("missed", queue))
