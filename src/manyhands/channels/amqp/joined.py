"""The channel of an executor that joins another's run over RabbitMQ.

The two share the data: each trajectory goes to one of them, whoever is free. The first executor alone knows
the workers and gives all orders; this one reports what it has learned from, and the next order for that shard
is played by this one's agent. So no agent trains only on what it made itself. Tests are played here.
"""

import asyncio
import math
import time
import uuid
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue
from typing import Any

from aio_pika.abc import AbstractIncomingMessage

from manyhands.channels.amqp.address import Address
from manyhands.channels.amqp.connection import BrokerError, Link
from manyhands.channels.amqp.messages import (
    EXECUTOR,
    MOST_OPEN,
    Ask,
    Ended,
    Finish,
    Held,
    Names,
    RunSettings,
    Settled,
)
from manyhands.channels.amqp.throttle import Throttle
from manyhands.channels.base import WorkerStatus
from manyhands.collect.collector import Collector
from manyhands.config.plain_yaml import parse_yaml
from manyhands.config.settings import Config
from manyhands.core import payloads, wire
from manyhands.core.errors import UsageError, WireError
from manyhands.core.events import Event, Fault, Notice, RunEnded
from manyhands.core.lanes import LaneState, ShardState
from manyhands.core.orders import NEWEST, EvalOrder, Order, Task
from manyhands.core.texts import one_line
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights

ASK_TIMEOUT = 15.0
"""Seconds in which the run's first executor must answer; it may be in the middle of an update."""
ASK_INTERVAL = 10.0
"""Seconds between two requests to join later on: a first executor that was resumed must know of this one."""
HELD_INTERVAL = 1.0
"""Seconds between two reports of what waits here to be learned from."""
UNRECOGNISED_INTERVAL = 2.0
"""Seconds between two lines about messages that cannot be recognised."""
MAX_ID = 200
"""Most characters of an environment's name."""
PATIENCE = 60.0
"""Seconds without anything to learn from, after which the user is told."""


class JoinedChannel:
    plays_here = False

    def __init__(self, address: Address, run: str) -> None:
        self.names = Names(run)
        self.agent = uuid.uuid4().hex[:8]
        self.key = ""  # which proves to the first executor that this one has joined
        self.task: Task | None = None
        self.collector: Collector | None = None
        self.weights: dict[int, Weights] = {}
        self.trials: deque[EvalOrder] = deque()
        self.events: deque[Event] = deque()
        self.arrivals: SimpleQueue[Any] = SimpleQueue()
        self.accepted: dict[tuple[int, int], tuple[str, AbstractIncomingMessage, int]] = {}
        self.seen: deque[str] = deque(maxlen=10_000)
        self.held: set[str] = set()  # orders whose trajectories are here and not settled
        self.unsettled: dict[str, bytes] = {}  # by order: what its executor has not been told yet
        self.unrecognised = Throttle(UNRECOGNISED_INTERVAL)
        self.prefetch = 1
        self.heard = time.monotonic()
        self.asked = -math.inf
        self.finished = False
        self.link = Link(address, self._declare, self.prefetch, changed=self._changed)
        self.link.start()

    def config(self, allowed: Sequence[str]) -> Config:
        """Return the run's settings, from its first executor; they may name code that is `allowed` here."""
        deadline = time.monotonic() + ASK_TIMEOUT
        while (now := time.monotonic()) < deadline:
            if now - self.asked > 1.0:
                self._ask()
            try:
                kind, *facts = self.arrivals.get(timeout=0.2)
            except Empty:
                continue
            if kind == "settings":
                config = Config.from_plain(parse_yaml(facts[0], "the run's settings"), allowed)
                if one_line(config.env.id, MAX_ID) != config.env.id:
                    raise WireError(f"env.id is {one_line(config.env.id, MAX_ID)}, no environment's name")
                if config.run.mode != "async":
                    raise UsageError(f"{self.names.run} is {config.run.mode}; only async runs can be joined")
                return config
        raise BrokerError(f"no executor of a run {self.names.run!r} answers at {self.link.address}")

    def _ask(self) -> None:
        self.asked = time.monotonic()
        self.link.send("", self.names.meta_queue, wire.encode(Ask(self.inbox).to_message("ask")))

    def start(self, task: Task, shards: int) -> None:
        """Begin to receive the run's trajectories."""
        self.task, self.prefetch, self.heard = task, shards, time.monotonic()
        self.collector = Collector(task, "this executor", self._report)
        self.link.run(self._consume(self.link), ASK_TIMEOUT)

    async def _declare(self, link: Link) -> None:
        self.inbox = f"{EXECUTOR}{self.agent}.{link.generation}"
        inbox = await link.orderly.declare_queue(self.inbox, exclusive=True, auto_delete=True)

        async def on_message(message: AbstractIncomingMessage) -> None:
            self._hear(message)

        await inbox.consume(on_message, no_ack=True)
        self.telling = asyncio.create_task(self._tell_held(link))
        if self.task is not None:
            await self._consume(link)

    async def _tell_held(self, link: Link) -> None:
        """Report held orders every second, however long learning takes; else they would count as lost."""
        generation = link.generation
        while generation == link.generation and not link.closing:
            if self.held:
                link.send("", self.names.meta_queue, wire.encode(self.holds().to_message("held")))
            await asyncio.sleep(HELD_INTERVAL)

    def holds(self) -> Held:
        return Held(tuple(self.held)[:MOST_OPEN], self.key)

    async def _consume(self, link: Link) -> None:
        """Consume as many trajectories as a batch may want; each is acknowledged only when it is learned."""
        inbox = await link.orderly.get_queue(self.inbox, ensure=False)
        await inbox.bind(self.names.model_exchange)
        await link.orderly.set_qos(self.prefetch)
        data_queue = await link.orderly.get_queue(self.names.data_queue, ensure=False)
        generation = link.generation

        async def on_data(message: AbstractIncomingMessage) -> None:
            self._hear_data(message, generation)

        await data_queue.consume(on_data)

    def _hear(self, message: AbstractIncomingMessage) -> None:
        try:
            heard = wire.decode(message.body)
            if heard.kind == "settings":
                settings = RunSettings.from_message(heard)
                self.key = settings.key
                self.arrivals.put(("settings", settings.config, settings.key))
            elif heard.kind == "finish":
                self.arrivals.put(("event", RunEnded(one_line(Finish.from_message(heard).reason))))
        except WireError as error:
            self._note_unrecognised("broker", error)

    def _hear_data(self, message: AbstractIncomingMessage, generation: int) -> None:
        assert self.task is not None
        try:
            trajectory = payloads.decode_trajectory(message.body, self.task.layout, self.task.spec.schema)
        except WireError as error:
            self.link.acknowledge(message, generation)
            self._note_unrecognised("data_queue", error)
            return
        self.held.add(message.message_id or "")
        self.arrivals.put(("data", trajectory, message, generation))

    def _note_unrecognised(self, queue: str, error: WireError) -> None:
        if self.unrecognised.lets_through():
            text = f"dropped an unrecognised message{self.unrecognised.so_far()}: {one_line(error, 300)}"
            self.arrivals.put(("event", Notice(queue, text)))

    def _changed(self, text: str) -> None:
        self.arrivals.put(("event", Notice("broker", one_line(text))))

    def _report(self, event: Fault | Notice) -> None:
        self.events.append(event)

    def publish(self, weights: Weights) -> None:
        self.weights = {weights.version: weights, NEWEST: weights}
        headers = {"run": self.names.run, "agent": self.agent}
        self.link.send(self.names.model_exchange, "", payloads.encode_weights(weights), headers=headers)

    def order(self, order: Order | EvalOrder) -> None:
        """Keep a test's order. Rollouts are ordered by the first executor, which learns of them by `ack`."""
        if isinstance(order, EvalOrder):
            self.trials.append(order)

    def receive(self, timeout: float) -> Event | None:
        if self.trials:
            assert self.collector is not None
            eval_order = self.trials.popleft()
            return self.collector.test(eval_order, self.weights[eval_order.version])
        deadline = time.monotonic() + timeout
        if time.monotonic() - self.asked > ASK_INTERVAL:
            self._ask()
        while not self.events:
            try:
                arrival = self.arrivals.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return self._remind()
            self.heard = time.monotonic()
            match arrival:
                case ("data", Trajectory() as trajectory, message, generation):
                    self._accept(trajectory, message, generation)
                case ("event", event):
                    self.events.append(event)
        return self.events.popleft()

    def _remind(self) -> Notice | None:
        if time.monotonic() - self.heard < PATIENCE:
            return None
        self.heard = time.monotonic()
        missing = f"are the first executor of {self.names.run} and its workers there?"
        return Notice("broker", f"nothing to learn from for {PATIENCE:g} s; {missing}")

    def _accept(self, trajectory: Trajectory, message: AbstractIncomingMessage, generation: int) -> None:
        identity = message.message_id or ""
        key = (trajectory.shard, trajectory.sequence)
        if identity in self.seen:
            if key in self.accepted and self.accepted[key][0] == identity:
                self.accepted[key] = identity, message, generation
            elif (settled := self.unsettled.get(identity)) is not None:
                self._settle(identity, settled, message, generation)
            else:
                self.held.discard(identity)
                self.link.acknowledge(message, generation)
            return
        self.seen.append(identity)
        self.accepted[key] = identity, message, generation
        if message.headers.get("agent") != self.agent:  # to us it is off-policy, not old
            trajectory = replace(trajectory, version=self.weights[NEWEST].version)
        self.events.append(trajectory)

    def ack(self, trajectory: Trajectory) -> None:
        """Tell the order's executor what was learned, so that it orders the next rollout."""
        identity, message, generation = self.accepted.pop((trajectory.shard, trajectory.sequence))
        lanes = tuple(
            LaneState(int(episode), trajectory.action[:0, lane], trajectory.last_obs[lane], lost=True)
            for lane, episode in enumerate(trajectory.episode)
        )
        state = ShardState(trajectory.sequence + 1, lanes)
        meta, arrays = payloads.pack_states({trajectory.shard: state})
        maker = str(message.headers.get("player", ""))
        meta |= asdict(Settled(identity, self.agent, self.key, maker))
        settled = self.unsettled[identity] = wire.encode(wire.Message("settled", "", meta, arrays))
        self._settle(identity, settled, message, generation)

    def _settle(
        self, identity: str, settled: bytes, message: AbstractIncomingMessage, generation: int
    ) -> None:
        """Send the report first, then the acknowledgement: a lost connection makes a duplicate, never a loss.

        What was not acknowledged comes again with the next connection, and then the report is sent again.
        """

        def told(delivered: Future[bool]) -> None:
            self.held.discard(identity)
            if not delivered.cancelled() and delivered.exception() is None and delivered.result():
                self.unsettled.pop(identity, None)
                self.link.acknowledge(message, generation)

        self.link.deliver(self.names.meta_queue, settled, identity).add_done_callback(told)

    def workers(self) -> list[WorkerStatus]:
        return []

    def backlog(self) -> None:
        return None

    def worker_stats(self) -> dict[str, Any]:
        return {}

    def finish(self, reason: str) -> None:
        if self.finished:
            return
        self.finished = True
        if self.collector is not None:
            self.collector.close()
        self.link.close()

    def end_run(self, reason: str) -> None:
        """Tell the first executor that its run has reached its goal here."""
        raw = wire.encode(Ended(reason, self.key).to_message("over"))
        self.link.deliver(self.names.meta_queue, raw, f"{self.agent}-over").result(5.0)
