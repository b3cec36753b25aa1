"""Decodes what an executor receives over RabbitMQ, in its connection's own thread, which must not block.

Requests to join are answered here; what changes the run is queued for the executor's thread.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import yaml
from aio_pika.abc import AbstractIncomingMessage

from manyhands.channels.amqp.connection import Link
from manyhands.channels.amqp.messages import (
    PLAYER,
    Ask,
    Ended,
    Gone,
    Held,
    Names,
    Released,
    Report,
    Settled,
    Unplayed,
    Wanted,
    Words,
)
from manyhands.channels.amqp.throttle import Throttle
from manyhands.channels.versions import Versions
from manyhands.core import wire
from manyhands.core.errors import WireError
from manyhands.core.events import Fault, Notice
from manyhands.core.orders import EvalResult, Task
from manyhands.core.texts import lines, one_line

LABEL = 100
"""Most characters of a worker's name that are shown."""
MOST_EXECUTORS = 64
NOTICE_WINDOW, MOST_NOTICES = 10.0, 100
"""Seconds of a window, and the most notices of players that are shown in it."""


def label(inbox: str) -> str:
    """Return a player's name as it is shown."""
    return one_line(inbox.removeprefix(PLAYER).rpartition(".")[0] or inbox, LABEL)


class Hearing:
    """Decodes what comes from the run's two queues."""

    link: Link

    def __init__(self, task: Task, names: Names, settings: Mapping[str, Any], shared: bool) -> None:
        """`settings` are sent to executors that ask to join, which they may where the run is `shared`."""
        self.task, self.names, self.settings, self.shared = task, names, settings, shared
        self.arrivals: SimpleQueue[Any] = SimpleQueue()
        self.published: Versions[bytes] = Versions()  # weights, which a player gets when it joins
        self.keys: dict[str, str] = {}  # inbox of an executor that joined: what it has to know
        self.notices = Throttle(NOTICE_WINDOW, MOST_NOTICES)
        self.offer = b""
        self.closed = False

    def hear_data(self, message: AbstractIncomingMessage, generation: int) -> None:
        try:
            trajectory = wire.decode_trajectory(message.body, self.task.layout, self.task.spec.schema)
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
                if not self.closed:
                    self.link.send("", Report.from_message(heard).player, self.offer)
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
        states = list(wire.unpack_states(heard.meta, heard.arrays).values())
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
