"""The executor's half of the channel over RabbitMQ.

Players, the processes of workers, join and leave at any time. A shard belongs to one player; orders go to its
inbox, trajectories come back through the run's data_queue, everything small through its meta_queue.
An order without a player waits here. An answer counts only for an order that is open, by the order's own id:
what comes twice, too late, or from another run is counted and dropped.
"""

import sys
import time
import uuid
from collections import deque
from dataclasses import replace
from queue import Empty
from typing import Any

from aio_pika.abc import AbstractIncomingMessage

from manyhands.channels.amqp.address import Address
from manyhands.channels.amqp.blame import LateDeath
from manyhands.channels.amqp.connection import Link
from manyhands.channels.amqp.hearing import Hearing
from manyhands.channels.amqp.messages import Ended, Finish, Names, Report, Settled
from manyhands.channels.amqp.presence import Presence
from manyhands.channels.amqp.tally import Tally
from manyhands.channels.amqp.throttle import Throttle
from manyhands.channels.base import WorkerStatus
from manyhands.config.settings import Config
from manyhands.core import payloads, wire
from manyhands.core.errors import EnvError
from manyhands.core.events import Event, LearnedElsewhere, Notice, RunEnded
from manyhands.core.lanes import ShardState
from manyhands.core.orders import EvalOrder, Order, Task
from manyhands.core.texts import one_line
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights

POLL = 0.2
FAREWELL = 2.0
"""Seconds that players have to send their final reports at the end."""
RECENT = 10_000
FOREIGN_INTERVAL = 2.0
"""Seconds between two lines about messages that cannot be recognised."""


class AmqpChannel:
    plays_here = False

    def __init__(self, task: Task, address: Address, run: str, config: Config) -> None:
        self.task, self.names = task, Names(run)
        self.executor = uuid.uuid4().hex[:8]
        self.tally = Tally(self.executor)
        self.hearing = Hearing(task, self.names, config, self.executor)
        # By order id, not acknowledged yet.
        self.accepted: dict[str, tuple[AbstractIncomingMessage, int]] = {}
        self.order_of: dict[tuple[int, int], str] = {}  # (shard, sequence): id of the accepted answer
        self.newest = 0
        self.events: deque[Event | LateDeath] = deque()
        self.acknowledged: deque[str] = deque(maxlen=RECENT)  # orders whose trajectory was acknowledged
        self.unrecognised = Throttle(FOREIGN_INTERVAL)
        self.given = 0
        self.queue_depth = 0
        self.finished = False
        self.started = False
        prefetch = 2 * config.collect.shards
        self.link = Link(address, self.hearing.declare, prefetch, self.hearing.note_missing, self._changed)
        self.hearing.link = self.link
        self.presence = Presence(self.names, self.link, self.hearing, self.tally, self.events)
        self.link.start(patient=True)
        self.started = True

    def _changed(self, text: str) -> None:
        if not self.started:  # nobody looks at events yet
            print(f"manyhands: {one_line(text)}", file=sys.stderr, flush=True)
        self.hearing.arrivals.put(("event", Notice("broker", one_line(text))))

    def publish(self, weights: Weights) -> None:
        body, self.newest = payloads.encode_weights(weights), weights.version
        self.hearing.published.add(weights.version, body)
        self.link.send(self.names.model_exchange, "", body, headers={"run": self.names.run})

    def order(self, order: Order | EvalOrder) -> None:
        self.given += 1
        identity = f"{self.executor}-{self.given}"
        order = self.presence.blame.as_amended(order)
        player = self.presence.players.give(order, identity)
        if player is None:
            return
        message = order.to_message()
        meta = {**message.meta, "order": identity, "run": self.names.run}
        raw = wire.encode(wire.Message(message.kind, message.schema, meta, message.arrays))
        self.link.send("", player.name, raw)

    def receive(self, timeout: float) -> Event | None:
        deadline = time.monotonic() + timeout
        while not self.events:
            self._look_after_players()
            began = time.monotonic()
            try:
                arrival = self.hearing.arrivals.get(timeout=max(0.0, min(deadline - began, POLL)))
            except Empty:
                arrival = None
            # No more than was meant to be waited: this process may have been stopped meanwhile.
            self.presence.starved += min(POLL, time.monotonic() - began)
            if arrival is not None:
                self._handle(arrival)
            elif time.monotonic() >= deadline:
                return None
        return self.presence.told(self.events.popleft())

    def _handle(self, arrival: Any) -> None:
        presence = self.presence
        match arrival:
            case ("data", Trajectory() as trajectory, message, generation):
                presence.starved = 0.0
                self._accept(trajectory, message, generation)
            case ("eval_result", order, result):
                presence.starved = 0.0
                if presence.close(order) is not None:
                    self.events.append(result)
            case ("join", report, _):
                self._join(report)
            case ("hello", player):
                presence.refusals.note_hello(player)
            case ("refused", player, text):
                presence.refusals.note(player, text)
            case ("report", report, received):
                presence.note_report(report, received)
            case ("protocol", report, _):
                presence.leave(report)
            case ("settled", settled, state):
                self._settle(settled, state)
            case ("held", held):
                if held.key in self.hearing.keys.values():
                    presence.players.note_held(held.orders)
            case ("over", ended):
                self._end(ended)
            case ("released", player, shard):
                presence.take_released(player, shard)
            case ("unplayed", unplayed):
                presence.take_unplayed(unplayed)
            case ("gone", gone):
                presence.take_gone(gone)
            case ("missed", player):
                presence.miss(player)
            case ("failed", player, text):
                presence.lose(player, text, None)
            case ("breach", player, text):
                if player in presence.players.known:
                    raise EnvError(text)
            case ("event", event):
                self.events.append(event)
            case ("foreign", queue, text):
                self._note_foreign(queue, text)

    def _join(self, report: Report) -> None:
        for order in self.presence.join(report):
            self.order(order)
        self.presence.balance()

    def _note_foreign(self, queue: str, text: str) -> None:
        """Count a foreign message; report one every few seconds at most, so that none floods a screen."""
        self.tally.counts.foreign += 1
        if self.unrecognised.lets_through():
            total = self.unrecognised.so_far()
            self.events.append(
                Notice(queue, f"dropped an unrecognised message{total}: {one_line(text, 300)}")
            )

    def _settle(self, settled: Settled, state: ShardState) -> None:
        if settled.key not in self.hearing.keys.values():
            self._note_foreign("meta_queue", "news from an executor that has not joined this run")
            return
        identity = settled.order
        if (
            self.tally.is_own(identity)
            and identity not in self.accepted
            and identity not in self.acknowledged
        ):
            self.acknowledged.append(identity)  # what is told twice counts once
            self.tally.counts.shared += 1
            self.tally.note_maker(identity, settled.maker)
        order = self.presence.close(identity)
        if isinstance(order, Order):  # else it was thought lost meanwhile, and is played again
            self.events.append(LearnedElsewhere(order, settled.agent, state))

    def _end(self, ended: Ended) -> None:
        if ended.key in self.hearing.keys.values():
            self.events.append(RunEnded(one_line(ended.reason)))
        else:
            self._note_foreign("meta_queue", "the end of this run from somebody who is no executor of it")

    def _accept(self, trajectory: Trajectory, message: AbstractIncomingMessage, generation: int) -> None:
        identity = message.message_id or ""
        if identity in self.accepted:  # brought again by a new connection before it was acknowledged
            self.accepted[identity] = message, generation
            return
        if identity in self.acknowledged:  # brought again because the broker did not hear of it
            self.link.acknowledge(message, generation)
            return
        self.tally.counts.received += 1
        self.tally.note_maker(identity, str(message.headers.get("player", "")))
        order = self.presence.close(identity)
        matches = isinstance(order, Order) and (order.shard, order.sequence) == (
            trajectory.shard,
            trajectory.sequence,
        )
        if not matches:
            self.tally.counts.dropped += 1
            self.tally.counts.earlier += not self.tally.is_own(identity)
            self.link.acknowledge(message, generation)
            return
        self.tally.counts.accepted += 1
        self.accepted[identity] = message, generation
        self.order_of[trajectory.shard, trajectory.sequence] = identity
        if message.headers.get("agent", "") != "":  # another's, who joined: to us it is off-policy, not old
            trajectory = replace(trajectory, version=self.newest)
        self.events.append(trajectory)

    def ack(self, trajectory: Trajectory) -> None:
        identity = self.order_of.pop((trajectory.shard, trajectory.sequence))
        self.acknowledged.append(identity)
        message, generation = self.accepted.pop(identity)
        self.tally.counts.acknowledged += 1
        self.link.acknowledge(message, generation)

    def _look_after_players(self) -> None:
        if self.presence.look_after_players() and self.link.up.is_set():
            self.link.depth(self.names.data_queue).add_done_callback(self._note_depth)
            # Where somebody has deleted it, the broker closes the channel, and all is declared anew.
            self.link.depth(self.names.meta_queue)

    def _note_depth(self, future: Any) -> None:
        if not future.cancelled() and future.exception() is None:
            self.queue_depth = future.result()

    def workers(self) -> list[WorkerStatus]:
        return self.presence.statuses()

    def backlog(self) -> int:
        return self.queue_depth

    def worker_stats(self) -> dict[str, Any]:
        return self.tally.to_plain()

    def finish(self, reason: str) -> None:
        if self.finished:
            return
        self.finished = self.hearing.closed = True
        names = self.names
        over = wire.encode(Finish(names.run, reason).to_message("finish"))
        self.link.send(names.model_exchange, "", over, headers={"run": names.run})
        deadline = time.monotonic() + FAREWELL
        players = self.presence.players
        while players.known and self.link.up.is_set() and (left := deadline - time.monotonic()) > 0:
            try:
                self._handle(self.hearing.arrivals.get(timeout=left))
            except Empty:
                break
        while not self.hearing.arrivals.empty():
            self._handle(self.hearing.arrivals.get())
        self.link.run(self.hearing.remove(self.link, self._note_unread), FAREWELL)
        self.link.close()

    def _note_unread(self, message: AbstractIncomingMessage) -> None:
        identity = message.message_id or ""
        self.tally.counts.unread += 1
        self.tally.counts.earlier += not self.tally.is_own(identity)
        self.tally.note_maker(identity, str(message.headers.get("player", "")))
