"""The executor's half of the channel over RabbitMQ.

Hands, the processes of workers, join and leave at any time. A shard belongs to one hand; orders go to that
hand's inbox, trajectories come back through the run's data_queue, everything small through its meta_queue.
An order without a hand waits here. An answer counts only for an order that is open, by the order's own id:
what comes twice, too late, or from another run is counted and dropped.
"""

import math
import time
import uuid
from collections import deque
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from typing import Any

import yaml
from aio_pika import ExchangeType, Message
from aio_pika.abc import AbstractIncomingMessage

from manyhands import wire
from manyhands.channels.amqp_hands import Hands
from manyhands.channels.amqp_link import Address, Link
from manyhands.channels.amqp_names import TO_EXECUTORS, TO_WORKERS, Names, Report, of_our_age
from manyhands.channels.base import WorkerStatus
from manyhands.config import Config
from manyhands.errors import WireError
from manyhands.experience import Trajectory
from manyhands.orders import Culprit, Event, Fault, Lost, Notice, Order, Over, Taken, Task, Trial, Verdict
from manyhands.policy import Weights

POLL = 0.2
VERSIONS = 3
"""Versions of the weights that a hand gets when it joins."""
PROBE_INTERVAL = 1.0
"""Seconds between two knocks at every inbox. The broker removes an inbox with its connection, so a hand that
dies is missed within this time, whatever the clocks say."""
GRACE = 0.5
"""Seconds after a failed knock in which the hand's supervisor may still say how it died."""
PATIENCE = 10.0
"""Seconds between two reminders that there is no worker."""
FAREWELL = 2.0
"""Seconds that hands have to send their protocols at the end."""
META_LIMIT = 10_000
"""Messages in a meta_queue; the oldest go first, which are the ones that no longer matter."""

EXPIRY = 7 * 24 * 3600 * 1000
"""Milliseconds after which the broker removes the queues of a run that was killed and never resumed."""


@dataclass
class Counts:
    """Trajectories: sent by all = received + unread + shared, and received = accepted + dropped."""

    received: int = 0
    accepted: int = 0
    acknowledged: int = 0
    dropped: int = 0  # answers to orders that are not open: twice, too late, of another executor
    foreign: int = 0  # messages that are none of ours
    shared: int = 0  # learned by another executor
    unread: int = 0  # still in the queue when the run ended


def label(inbox: str) -> str:
    return inbox.removeprefix("manyhands.hand.").rpartition(".")[0] or inbox


class AmqpChannel:
    plays_here = False

    def __init__(self, task: Task, address: Address, run: str, config: Config) -> None:
        shards = config.collect.shards
        self.task, self.shards, self.names = task, shards, Names(run)
        self.executor = uuid.uuid4().hex[:8]
        self.hands = Hands()
        self.accepted: dict[
            str, tuple[AbstractIncomingMessage, int]
        ] = {}  # by order id, not acknowledged yet
        self.order_of: dict[tuple[int, int], str] = {}  # (shard, sequence): id of the accepted answer
        self.published: dict[int, bytes] = {}
        self.arrivals: SimpleQueue[Any] = SimpleQueue()
        self.events: deque[Event] = deque()
        self.protocols: dict[str, Report] = {}
        self.counts = Counts()
        self.given = 0
        self.queue_depth = 0
        self.probed = self.reminded = time.monotonic()
        self.finished = False
        self.settings = config.to_plain()
        self.limits = {"hang_timeout": config.run.hang_timeout, "worker_memory": config.run.worker_memory}
        self.offer = b""
        self.link = Link(address, self._declare, 2 * shards, self._missing, self._changed)
        self.link.start()

    async def _declare(self, link: Link) -> None:
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
            self._hear_data(message, generation)

        async def on_meta(message: AbstractIncomingMessage) -> None:
            self._hear_meta(message)

        await meta_queue.consume(on_meta, no_ack=True)
        await data_queue.consume(on_data)
        task = self.task.to_message()
        # Hands join once for every epoch: again after the executor, or its connection, was a new one.
        epoch = f"{self.executor}.{generation}"
        meta = {"run": names.run, "epoch": epoch, "limits": self.limits, "task": dict(task.meta)}
        self.offer = wire.encode(wire.Message("offer", task.schema, meta))
        await meta_exchange.publish(Message(self.offer), "", mandatory=False)

    # What follows runs in the link's thread. It decodes, answers strangers, and leaves the rest to `receive`.

    def _hear_data(self, message: AbstractIncomingMessage, generation: int) -> None:
        try:
            trajectory = wire.decode_trajectory(message.body, self.task.layout, self.task.spec.schema)
        except WireError as error:
            self.link.acknowledge(message, generation)
            self.arrivals.put(("foreign", "data_queue", str(error)))
            return
        self.arrivals.put(("data", trajectory, message, generation))

    def _hear_meta(self, message: AbstractIncomingMessage) -> None:
        try:
            heard = wire.decode(message.body)
            match heard.kind:
                case "hello" if self.finished:
                    return
                case "hello":
                    self.link.send("", Report.from_message(heard).hand, self.offer)
                case "join" | "report" | "protocol":
                    self.arrivals.put((heard.kind, Report.from_message(heard)))
                case "verdict":
                    self.arrivals.put(("verdict", message.message_id, Verdict.from_message(heard)))
                case "fault":
                    self.arrivals.put(("event", Fault.from_message(heard)))
                case "notice" | "refuse":
                    self.arrivals.put(
                        ("event", Notice(label(str(heard.meta["hand"])), str(heard.meta["text"])))
                    )
                case "failed":
                    self.arrivals.put(("failed", str(heard.meta["hand"]), str(heard.meta["text"])))
                case "unplayed":
                    facts = tuple(str(heard.meta[name]) for name in ("hand", "order", "text"))
                    self.arrivals.put(("unplayed", *facts))
                case "settled":
                    states = wire.unpack_states(heard.meta, heard.arrays)
                    agent = str(heard.meta["agent"])
                    self.arrivals.put(
                        ("settled", str(heard.meta["order"]), agent, next(iter(states.values())))
                    )
                case "over":
                    self.arrivals.put(("event", Over(str(heard.meta["reason"]))))
                case "ask":
                    self._answer(str(heard.meta["inbox"]))
                case "released":
                    self.arrivals.put(("released", str(heard.meta["hand"]), int(heard.meta["shard"])))
                case "gone":
                    culprit = Culprit(int(heard.meta["lane"]), int(heard.meta["episode"]))
                    known = culprit if heard.meta["guilty"] else None
                    process, reason = str(heard.meta["process"]), str(heard.meta["reason"])
                    self.arrivals.put(("gone", process, reason, known, bool(heard.meta["fault"])))
                case kind:
                    raise WireError(f"a message of kind {kind!r}")
        except (WireError, KeyError, TypeError, ValueError) as error:
            self.arrivals.put(("foreign", "meta_queue", str(error)))

    def _answer(self, inbox: str) -> None:
        """Another executor wants to join: here are the run's settings."""
        meta = {"run": self.names.run, "config": yaml.safe_dump(self.settings)}
        self.link.send("", inbox, wire.encode(wire.Message("settings", "", meta)))

    def _missing(self, queue: str) -> None:
        self.arrivals.put(("missed", queue))

    def _changed(self, text: str) -> None:
        self.arrivals.put(("event", Notice("broker", text)))

    # The rest runs in the executor's thread.

    def publish(self, weights: Weights) -> None:
        self.published[weights.version] = wire.encode_weights(weights)
        for version in sorted(self.published)[:-VERSIONS]:
            del self.published[version]
        body = self.published[weights.version]
        self.link.send(self.names.model_exchange, "", body, headers={"run": self.names.run})

    def order(self, order: Order | Trial) -> None:
        self.given += 1
        identity = f"{self.executor}-{self.given}"
        hand = self.hands.give(order, identity)
        if hand is None:
            return
        message = order.to_message()
        meta = {**message.meta, "order": identity, "run": self.names.run}
        raw = wire.encode(wire.Message(message.kind, message.schema, meta, message.arrays))
        self.link.send("", hand.name, raw)

    def receive(self, timeout: float) -> Event | None:
        deadline = time.monotonic() + timeout
        while not self.events:
            self._look_after_hands()
            left = deadline - time.monotonic()
            try:
                arrival = self.arrivals.get(timeout=max(0.0, min(left, POLL)))
            except Empty:
                if left <= 0:
                    return None
                continue
            self._handle(arrival)
        return self.events.popleft()

    def _handle(self, arrival: Any) -> None:
        match arrival:
            case ("data", Trajectory() as trajectory, message, generation):
                self._accept(trajectory, message, generation)
            case ("verdict", order, verdict):
                if self.hands.close(order) is not None:
                    self.events.append(verdict)
            case ("join", report):
                self._join(report)
            case ("report", report):
                if (known := self.hands.known.get(report.hand)) is not None:
                    known.update(report)
                    self.protocols[report.hand] = report
            case ("protocol", report):
                self.protocols[report.hand] = report
                self._lose(report.hand, "it left", None, fault=False)
            case ("settled", identity, agent, state):
                if isinstance(order := self.hands.close(identity), Order):
                    self.counts.shared += 1
                    self.events.append(Taken(order, agent, state))
            case ("released", hand, shard):
                self._released(hand, shard)
            case ("unplayed", hand, identity, text):
                self._unplayed(hand, identity, text)
            case ("gone", process, reason, culprit, fault):
                for name in [name for name in self.hands.known if name.startswith(f"{process}.")]:
                    self._lose(name, reason, culprit, fault)
            case ("missed", hand):
                known = self.hands.known.get(hand)
                if known is not None and not known.missed:
                    known.missed = time.monotonic()
            case ("failed", hand, text):
                self._lose(hand, text, None)
            case ("event", event):
                self.events.append(event)
            case ("foreign", queue, text):
                self.counts.foreign += 1
                self.events.append(Notice(queue, f"a message that is none of ours was dropped: {text}"))

    def _accept(self, trajectory: Trajectory, message: AbstractIncomingMessage, generation: int) -> None:
        identity = message.message_id or ""
        if identity in self.accepted:  # brought again by a new connection before it was acknowledged
            self.accepted[identity] = message, generation
            return
        self.counts.received += 1
        order = self.hands.close(identity)
        matches = isinstance(order, Order) and (order.shard, order.sequence) == (
            trajectory.shard,
            trajectory.sequence,
        )
        if not matches:
            self.counts.dropped += 1
            self.link.acknowledge(message, generation)
            return
        self.counts.accepted += 1
        self.accepted[identity] = message, generation
        self.order_of[trajectory.shard, trajectory.sequence] = identity
        agent = str(message.headers.get("agent", ""))
        self.events.append(of_our_age(trajectory, agent, "", max(self.published)))

    def ack(self, trajectory: Trajectory) -> None:
        identity = self.order_of.pop((trajectory.shard, trajectory.sequence))
        message, generation = self.accepted.pop(identity)
        self.counts.acknowledged += 1
        self.link.acknowledge(message, generation)

    def _join(self, report: Report) -> None:
        self._lose(report.hand, "it joined again", None, fault=False)
        waiting = self.hands.join(report)
        for version in sorted(self.published):
            self.link.send("", report.hand, self.published[version], headers={"run": self.names.run})
        for order in waiting:
            self.order(order)
        for shard, name in self.hands.balance():
            meta = {"run": self.names.run, "shard": shard}
            self.link.send("", name, wire.encode(wire.Message("release", "", meta)))

    def _released(self, name: str, shard: int) -> None:
        undone = self.hands.release(name, shard)
        if undone is not None:
            reason = f"hands over shard {shard}"
            self.events.append(Lost(label(name), reason, (shard,), undone, fault=False, moved=True))

    def _unplayed(self, name: str, identity: str, reason: str) -> None:
        found = self.hands.unplayed(name, identity)
        if found is not None:
            shard, undone = found
            self.events.append(Lost(label(name), reason, (shard,), undone, fault=False))

    def _lose(self, name: str, reason: str, culprit: Culprit | None, fault: bool = True) -> None:
        lost = self.hands.lose(name)
        if lost is not None:
            shards, undone = lost
            self.events.append(Lost(label(name), reason, shards, undone, culprit, fault))
            if not self.hands.known:
                self.reminded = -math.inf  # whoever looks should know at once

    def _look_after_hands(self) -> None:
        now = time.monotonic()
        for hand in list(self.hands.known.values()):
            if hand.missed and now - hand.missed > GRACE:
                # No fault of an environment: its supervisor would have told. A power cut takes many at once.
                self._lose(hand.name, "its connection to the broker ended", None, fault=False)
        if now - self.probed < PROBE_INTERVAL:
            return
        self.probed = now
        knock = wire.encode(wire.Message("knock"))
        for name in self.hands.known:
            self.link.knock(name, knock)
        if self.link.up.is_set():
            self.link.depth(self.names.data_queue).add_done_callback(self._note_depth)
        if self.hands.known or not self.hands.waiting:
            self.reminded = now
        elif now - self.reminded > PATIENCE:
            self.reminded = now
            self.events.append(
                Notice(
                    "broker", f"there is no worker; start one: manyhands worker {self.link.address.example}"
                )
            )

    def _note_depth(self, future: Any) -> None:
        if not future.cancelled() and future.exception() is None:
            self.queue_depth = future.result()

    def workers(self) -> list[WorkerStatus]:
        now = time.monotonic()
        return [
            WorkerStatus(
                hand.report.worker,
                now - hand.heard,
                bool(hand.orders),
                hand.report.host,
                hand.speed,
                hand.report.version,
            )
            for hand in self.hands.known.values()
        ]

    def backlog(self) -> int:
        return self.queue_depth

    def books(self) -> dict[str, Any]:
        hands = {label(name): asdict(report) for name, report in self.protocols.items()}
        return {"trajectories": asdict(self.counts), "hands": hands}

    def finish(self, reason: str) -> None:
        if self.finished:
            return
        self.finished = True
        names = self.names
        over = wire.encode(wire.Message("finish", "", {"run": names.run, "reason": reason}))
        self.link.send(names.model_exchange, "", over, headers={"run": names.run})
        deadline = time.monotonic() + FAREWELL
        while self.hands.known and self.link.up.is_set() and (left := deadline - time.monotonic()) > 0:
            try:
                self._handle(self.arrivals.get(timeout=left))
            except Empty:
                break
        while not self.arrivals.empty():
            self._handle(self.arrivals.get())
        self.link.run(self._remove(), FAREWELL)
        self.link.close()

    async def _remove(self) -> None:
        channel, names = self.link.orderly, self.names
        data_queue = await channel.get_queue(names.data_queue, ensure=False)
        self.counts.unread += (await data_queue.purge()).message_count or 0
        for queue in (names.data_queue, names.meta_queue):
            await channel.queue_delete(queue)
        for exchange in (names.meta_exchange, names.model_exchange):
            await channel.exchange_delete(exchange)
