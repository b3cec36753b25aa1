"""The executor's half of the channel over RabbitMQ.

Players, the processes of workers, join and leave at any time. A shard belongs to one player; orders go to its
inbox, trajectories come back through the run's data_queue, everything small through its meta_queue.
An order without a player waits here. An answer counts only for an order that is open, by the order's own id:
what comes twice, too late, or from another run is counted and dropped.
"""

import math
import sys
import time
import uuid
from collections import deque
from queue import Empty
from typing import Any

from aio_pika import ExchangeType, Message
from aio_pika.abc import AbstractIncomingMessage

from manyhands.channels.amqp.assignments import Player, Players
from manyhands.channels.amqp.blame import Blame, LateDeath, given_to
from manyhands.channels.amqp.connection import Address, Link
from manyhands.channels.amqp.hearing import LABEL, Hearing, label
from manyhands.channels.amqp.messages import (
    TO_EXECUTORS,
    TO_WORKERS,
    Ended,
    Finish,
    Gone,
    Limits,
    Names,
    Offer,
    Rejoin,
    Release,
    Report,
    Settled,
    Unplayed,
    of_our_age,
)
from manyhands.channels.amqp.tally import MOST_PLAYERS, Tally
from manyhands.channels.amqp.throttle import Throttle
from manyhands.channels.base import WorkerStatus
from manyhands.config.settings import Config
from manyhands.core import wire
from manyhands.core.errors import EnvError
from manyhands.core.events import CrashSite, Event, LearnedElsewhere, Notice, RunEnded, WorkerLost
from manyhands.core.heartbeat import run_mark
from manyhands.core.lanes import ShardState
from manyhands.core.orders import EvalOrder, Order, Task
from manyhands.core.texts import one_line
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights

POLL = 0.2
PROBE_INTERVAL, EAGER_INTERVAL = 1.0, 0.25
"""Seconds between two probes of every inbox: usually, and while nothing arrives. The broker removes an inbox
with its connection, so a player that dies is missed within this time, whatever the clocks say."""
STARVING = 0.5
"""Seconds of waiting for data after which inboxes are probed eagerly and silent players are given up."""
SILENCE = 2.0
"""Seconds without a report, of which there is one a second, that count as silent. Twice as many for a player
that was given up and came back: a step of its environment may let no other thread run."""
HEARD = 1.5
"""Seconds within which every healthy player reports."""
GRACE = 0.5
"""Seconds after a failed probe in which the player's supervisor may still report how it died."""
PATIENCE = 10.0
"""Seconds between two reminders that there is no worker."""
FAREWELL = 2.0
"""Seconds that players have to send their final reports at the end."""
META_LIMIT = 10_000
"""Messages in a meta_queue; the oldest go first, which are the ones that no longer matter."""

RECENT = 10_000
FOREIGN_INTERVAL = 2.0
"""Seconds between two lines about messages that cannot be recognised."""
REJOIN_INTERVAL = 5.0
"""Seconds between two requests to join again, to one player."""
EXPIRY = 7 * 24 * 3600 * 1000
"""Milliseconds after which the broker removes the queues of a run that was killed and never resumed."""


class AmqpChannel:
    plays_here = False

    def __init__(self, task: Task, address: Address, run: str, config: Config) -> None:
        shards = config.collect.shards
        self.task, self.shards, self.names = task, shards, Names(run)
        self.executor = uuid.uuid4().hex[:8]
        self.players, self.blame, self.tally = Players(), Blame(), Tally(self.executor)
        # Others may join an async run.
        self.hearing = Hearing(task, self.names, config.to_plain(), config.run.mode == "async")
        self.accepted: dict[
            str, tuple[AbstractIncomingMessage, int]
        ] = {}  # by order id, not acknowledged yet
        self.order_of: dict[tuple[int, int], str] = {}  # (shard, sequence): id of the accepted answer
        self.newest = 0
        self.events: deque[Event | LateDeath] = deque()
        self.acknowledged: deque[str] = deque(maxlen=RECENT)  # orders whose trajectory was acknowledged
        self.asked_to_rejoin: dict[str, float] = {}
        self.mark = run_mark(run)
        self.unrecognised = Throttle(FOREIGN_INTERVAL)
        self.given = 0
        self.queue_depth = 0
        self.probed = self.reminded = time.monotonic()
        self.starved = 0.0  # seconds of waiting since data arrived
        self.patience: dict[str, float] = {}  # inbox of a player that was silent: for how long it may be
        self.finished = False
        self.limits = Limits(config.run.hang_timeout, config.run.worker_memory)
        self.started = False
        self.link = Link(address, self._declare, 2 * shards, self.hearing.note_missing, self._changed)
        self.hearing.link = self.link
        self.link.start(patient=True)
        self.started = True

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
            self.hearing.hear_data(message, generation)

        async def on_meta(message: AbstractIncomingMessage) -> None:
            self.hearing.hear_meta(message)

        await meta_queue.consume(on_meta, no_ack=True)
        await data_queue.consume(on_data)
        task = self.task.to_message()
        # Players join once for every epoch: again after the executor, or its connection, was a new one.
        epoch = f"{self.executor}.{generation}"
        offer = Offer(names.run, epoch, self.limits, dict(task.meta))
        self.hearing.offer = wire.encode(offer.to_message("offer"))
        await meta_exchange.publish(Message(self.hearing.offer), "", mandatory=False)

    def _changed(self, text: str) -> None:
        if not self.started:  # nobody looks at events yet
            print(f"manyhands: {one_line(text)}", file=sys.stderr, flush=True)
        self.hearing.arrivals.put(("event", Notice("broker", one_line(text))))

    def publish(self, weights: Weights) -> None:
        body, self.newest = wire.encode_weights(weights), weights.version
        self.hearing.published.add(weights.version, body)
        self.link.send(self.names.model_exchange, "", body, headers={"run": self.names.run})

    def order(self, order: Order | EvalOrder) -> None:
        self.given += 1
        identity = f"{self.executor}-{self.given}"
        order = self.blame.as_amended(order)
        player = self.players.give(order, identity)
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
            self.starved += min(POLL, time.monotonic() - began)
            if arrival is not None:
                self._handle(arrival)
            elif time.monotonic() >= deadline:
                return None
        return self._told(self.events.popleft())

    def _told(self, event: Event | LateDeath) -> Event | None:
        """Return the event as the executor is told it; orders given from now on avoid the crash in it."""
        told = self._blame_late(event) if isinstance(event, LateDeath) else event
        if isinstance(told, WorkerLost) and told.crash_site is not None:
            self.blame.note(told.crash_site, time.monotonic())
        return told

    def _blame_late(self, death: LateDeath) -> WorkerLost | None:
        """Return the loss that a late report explains, or None where it was known already.

        Orders that another player has by now go on. They crash by the same episode, which is no new fault,
        and are then given without it.
        """
        departed, crash_site = death.departed, death.crash_site
        if not self.blame.is_news(crash_site, departed.orders):
            return None
        if not death.proven:
            return WorkerLost(label(departed.player), death.reason, (), ())
        self.blame.amend(crash_site, departed.orders)
        undone = self.players.withdraw(crash_site.shard)
        shards = (crash_site.shard,) if undone else ()
        return WorkerLost(label(departed.player), death.reason, shards, undone, crash_site)

    def _give_up_silent_players(self, now: float) -> None:
        """Let others play the orders of a player that is silent while everybody waits for it.

        Its machine sleeps, or its network is cut: the broker would notice after twenty seconds. It joins
        again when it is back. Where no player was heard lately, it was this executor that did not listen.
        """
        usable = self.players.usable()
        if not any(now - player.heard < HEARD for player in usable):
            return
        for player in usable:
            if not player.orders or now - player.heard <= self.patience.get(player.name, SILENCE):
                continue
            if len(self.patience) < MOST_PLAYERS:
                self.patience[player.name] = 2 * self.patience.get(player.name, SILENCE)
            self._give_up(player, f"it said nothing for {now - player.heard:.1f} s")

    def _handle(self, arrival: Any) -> None:
        match arrival:
            case ("data", Trajectory() as trajectory, message, generation):
                self.starved = 0.0
                self._accept(trajectory, message, generation)
            case ("eval_result", order, result):
                self.starved = 0.0
                if self._close(order) is not None:
                    self.events.append(result)
            case ("join", report, _):
                self._join(report)
            case ("report", report, received):
                self._note_report(report, received)
            case ("protocol", report, _):
                self.tally.keep_protocol(report)
                self._lose(report.player, "it left", None, fault=False)
            case ("settled", settled, state):
                self._settle(settled, state)
            case ("held", held):
                if held.key in self.hearing.keys.values():
                    self.players.note_held(held.orders)
            case ("over", ended):
                self._end(ended)
            case ("released", player, shard):
                self._released(player, shard)
            case ("unplayed", unplayed):
                self._unplayed(unplayed)
            case ("gone", gone):
                self._player_gone(gone)
            case ("missed", player):
                known = self.players.known.get(player)
                if known is not None and not known.missed:
                    known.missed = time.monotonic()
            case ("failed", player, text):
                self._lose(player, text, None)
            case ("breach", player, text):
                if player in self.players.known:
                    raise EnvError(text)
            case ("event", event):
                self.events.append(event)
            case ("foreign", queue, text):
                self._note_foreign(queue, text)

    def _close(self, identity: str) -> Order | EvalOrder | None:
        """Remove an order that is answered, and return it; None for one that is not open."""
        order = self.players.close(identity)
        if order is not None:
            self.blame.answered(order)
        return order

    def _note_foreign(self, queue: str, text: str) -> None:
        """Count a foreign message; report one every few seconds at most, so that none floods a screen."""
        self.tally.counts.foreign += 1
        if self.unrecognised.lets_through():
            total = self.unrecognised.so_far()
            self.events.append(
                Notice(queue, f"dropped an unrecognised message{total}: {one_line(text, 300)}")
            )

    def _note_report(self, report: Report, received: float) -> None:
        known = self.players.known.get(report.player)
        if known is not None:
            known.update(report, received)
            self.tally.keep_protocol(report)
        elif not self.finished:
            self._ask_to_rejoin(report.player)

    def _ask_to_rejoin(self, player: str) -> None:
        """Ask a player to join again that reports to this run but is not known: its join message got lost."""
        now = time.monotonic()
        self.asked_to_rejoin = {
            name: when for name, when in self.asked_to_rejoin.items() if now - when < REJOIN_INTERVAL
        }
        if player not in self.asked_to_rejoin and len(self.asked_to_rejoin) < RECENT:
            self.asked_to_rejoin[player] = now
            self.link.send("", player, wire.encode(Rejoin(self.names.run).to_message("rejoin")))

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
        order = self._close(identity)
        if isinstance(order, Order):  # else it was thought lost meanwhile, and is played again
            self.events.append(LearnedElsewhere(order, settled.agent, state))

    def _end(self, ended: Ended) -> None:
        if ended.key in self.hearing.keys.values():
            self.events.append(RunEnded(one_line(ended.reason)))
        else:
            self._note_foreign("meta_queue", "the end of this run from somebody who is no executor of it")

    def _player_gone(self, gone: Gone) -> None:
        """Handle the end of a process: a fault of the run that it played for; others' shards only move.

        It counts once, though a process may be known by several connections or be given up already.
        """
        ours = gone.run == self.mark
        guilty = CrashSite(gone.shard, gone.lane, gone.episode) if gone.guilty and ours else None
        reason = one_line(gone.reason) if ours or not gone.run else "it ended while it played for another run"
        departed = self.blame.explain(gone.process)
        earlier = () if departed is None else departed.orders
        names = [name for name in self.players.known if name.startswith(f"{gone.process}.")]
        fault = gone.fault and ours
        for name in names:
            orders = (*given_to(self.players.known[name]), *earlier)
            news = guilty is None or self.blame.is_news(guilty, orders)
            self._lose(name, reason, guilty, fault=fault and news)
            fault = False
        if not names and departed is not None and guilty is not None:
            self.events.append(LateDeath(departed, reason, guilty))

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
        order = self._close(identity)
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
        agent = str(message.headers.get("agent", ""))
        self.events.append(of_our_age(trajectory, agent, "", self.newest))

    def ack(self, trajectory: Trajectory) -> None:
        identity = self.order_of.pop((trajectory.shard, trajectory.sequence))
        self.acknowledged.append(identity)
        message, generation = self.accepted.pop(identity)
        self.tally.counts.acknowledged += 1
        self.link.acknowledge(message, generation)

    def _join(self, report: Report) -> None:
        if report.player in self.players.known:  # it may have died of what it had, and not said so yet
            self.blame.depart(self.players.known[report.player])
        self._lose(report.player, "it joined again", None, fault=False)
        if len(self.players.known) >= MOST_PLAYERS:
            return
        waiting = self.players.join(report)
        self.tally.keep_protocol(report)
        self.hearing.send_weights(report.player)
        for order in waiting:
            self.order(order)
        self._balance()

    def _balance(self) -> None:
        for shard, name in self.players.balance():
            self._ask_to_release(shard, name)

    def _ask_to_release(self, shard: int, name: str) -> None:
        self.link.send("", name, wire.encode(Release(self.names.run, shard).to_message("release")))

    def _released(self, name: str, shard: int) -> None:
        undone = self.players.release(name, shard)
        if undone is not None:
            reason = f"hands over shard {shard}"
            self.events.append(WorkerLost(label(name), reason, (shard,), undone, fault=False, moved=True))

    def _unplayed(self, unplayed: Unplayed) -> None:
        found = self.players.unplayed(unplayed.player, unplayed.order)
        if found is not None:
            shards, undone = found
            reason = one_line(unplayed.text)  # of a malformed order a fault, so that it is not given for ever
            self.events.append(
                WorkerLost(label(unplayed.player), reason, shards, undone, fault=unplayed.malformed)
            )

    def _give_up(self, player: Player, reason: str) -> None:
        """Give up a player without a fault; its supervisor may still tell how it ended."""
        self.blame.depart(player)
        self._lose(player.name, reason, None, fault=False)

    def _lose(self, name: str, reason: str, crash_site: CrashSite | None, fault: bool = True) -> None:
        lost = self.players.lose(name)
        if lost is not None:
            shards, undone = lost
            self.events.append(WorkerLost(label(name), reason, shards, undone, crash_site, fault))
            if not self.players.known:
                self.reminded = -math.inf  # whoever looks should know at once

    def _look_after_players(self) -> None:
        now = time.monotonic()
        for player in list(self.players.known.values()):
            if player.missed and now - player.missed > GRACE:
                # No fault of an environment that anybody knows of. A power cut takes many at once.
                self._give_up(player, "its connection to the broker ended")
        starving = self.starved >= STARVING and self.link.up.is_set()
        if now - self.probed < (EAGER_INTERVAL if starving else PROBE_INTERVAL):
            return
        self.probed = now
        if starving:
            self._give_up_silent_players(now)
        self._balance()
        for shard, name in self.players.unanswered_moves():
            self._ask_to_release(shard, name)
        for name, shards, undone in self.players.overdue():
            reason = "an order or its answer got lost, and is asked for again"
            self.events.append(WorkerLost(label(name), reason, shards, undone, fault=False))
        probe = wire.encode(wire.Message("knock"))
        for name in self.players.known:
            self.link.probe(name, probe)
        if self.link.up.is_set():
            self.link.depth(self.names.data_queue).add_done_callback(self._note_depth)
            # Where somebody has deleted it, the broker closes the channel, and all is declared anew.
            self.link.depth(self.names.meta_queue)
        if self.players.known or not self.players.waiting:
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
                one_line(player.report.worker, LABEL),
                now - player.heard,
                bool(player.orders),
                one_line(player.report.host, LABEL),
                player.speed,
                player.report.version,
            )
            for player in self.players.known.values()
        ]

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
        while self.players.known and self.link.up.is_set() and (left := deadline - time.monotonic()) > 0:
            try:
                self._handle(self.hearing.arrivals.get(timeout=left))
            except Empty:
                break
        while not self.hearing.arrivals.empty():
            self._handle(self.hearing.arrivals.get())
        self.link.run(self._remove(), FAREWELL)
        self.link.close()

    async def _remove(self) -> None:
        channel, names = self.link.orderly, self.names
        data_queue = await channel.get_queue(names.data_queue, ensure=False)
        while (message := await data_queue.get(no_ack=True, fail=False)) is not None:
            identity = message.message_id or ""
            self.tally.counts.unread += 1
            self.tally.counts.earlier += not self.tally.is_own(identity)
            self.tally.note_maker(identity, str(message.headers.get("player", "")))
        for queue in (names.data_queue, names.meta_queue):
            await channel.queue_delete(queue)
        for exchange in (names.meta_exchange, names.model_exchange):
            await channel.exchange_delete(exchange)
