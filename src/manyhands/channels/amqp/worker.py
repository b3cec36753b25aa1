"""The worker's half of the channel over RabbitMQ: one player, which plays for every run that wants it.

A player knows nothing but the broker. It says hello to all executors, joins every run whose offer it can
play, and plays their orders in the order they come. When its connection breaks it forgets everything and
joins anew; the executors have noticed by then and have given its orders to others.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty

from manyhands.channels.amqp.address import Address
from manyhands.channels.amqp.connection import Link
from manyhands.channels.amqp.inbox import Inbox
from manyhands.channels.amqp.messages import (
    TO_EXECUTORS,
    Finish,
    Offer,
    Rejoin,
    Release,
    Released,
    Report,
    Unplayed,
    check_name,
)
from manyhands.channels.amqp.session import WEIGHTS_TIMEOUT, ConnectionReplacedError, Session
from manyhands.channels.limits import OwnLimits
from manyhands.collect.collector import OutOfTurnError
from manyhands.config import algorithms
from manyhands.core import wire
from manyhands.core.decoding import MAX_TEXT
from manyhands.core.errors import EnvError, ManyhandsError, OwnCodeError, UsageError, WireError
from manyhands.core.heartbeat import BEATS, CHECKING, EPISODE, SHARD, run_mark, unshared
from manyhands.core.orders import Order, Task
from manyhands.envs import make as envs

POLL = 0.2
HELLO_INTERVAL = 5.0
"""Seconds between two hellos, by which a player finds runs that it does not know of."""
PREFETCH = 100
"""Most messages on their way to an inbox."""
MOST_RUNS = 64
"""Most runs that a player plays for at the same time."""
MOST_REFUSED = 10_000


class Player:
    def __init__(
        self,
        address: Address,
        worker: str,
        process: str,
        allowed: list[str],
        progress: memoryview | None,
        once: bool = False,
        say: Callable[[str], None] = print,
        limits: OwnLimits | None = None,
        refused_runs: Iterable[int] = (),
    ) -> None:
        """`refused_runs`: marks of runs whose environments brought down a process when they were made."""
        self.worker, self.process, self.allowed = worker, process, allowed
        self.limits, self.refused_runs = limits or OwnLimits(), frozenset(refused_runs)
        self.progress, self.once, self.say = unshared() if progress is None else progress, once, say
        self.generation = 0
        self.sessions: dict[str, Session] = {}
        self.refused: set[str] = set()  # epochs of runs that it cannot play, or that are over
        self.leaving = False
        self.inbox = Inbox(process, self.sessions, self.limits.message_bytes, say)
        self.link = Link(address, self.inbox.declare, PREFETCH, self.inbox.note_missing, say)
        self.inbox.link = self.link
        self.link.start(patient=True)
        self.progress[BEATS] += 1  # the broker takes us

    def introduction(self) -> Report:
        return Report(self.inbox.name, self.worker, socket.gethostname(), os.getpid())

    def wait_a_moment(self) -> None:
        """Beat while waiting for the broker; raise where the connection, and so all under way, is void."""
        self.progress[BEATS] += 1
        if self.generation != self.link.generation or not self.link.up.is_set():
            raise ConnectionReplacedError

    def serve(self) -> None:
        """Play until told to leave; with `once`, until the first run is over."""
        asked = 0.0
        while not self.leaving:
            if self.generation != self.link.generation:
                self._forget()
                asked = 0.0
            if self.link.up.is_set() and time.monotonic() - asked > HELLO_INTERVAL:
                asked = time.monotonic()
                self.link.send(TO_EXECUTORS, "", wire.encode(self.introduction().to_message("hello")))
            began = time.monotonic()
            try:
                generation, message = self.inbox.todo.get(timeout=POLL)
            except Empty:
                self._note_idle(began)
                continue
            self._note_idle(began)
            if generation != self.link.generation:
                continue
            try:
                self._do(message)
            except ConnectionReplacedError:
                continue
            except WireError as error:  # nobody waits for an answer
                if self.inbox.unrecognised.lets_through():
                    total = self.inbox.unrecognised.so_far()
                    self.say(f"dropped a message that makes no sense here{total}: {error}")

    def _note_idle(self, began: float) -> None:
        for session in self.sessions.values():
            card = session.report_card
            session.report_card = replace(card, idle=card.idle + time.monotonic() - began)

    def _forget(self) -> None:
        """Close all sessions after a reconnect: no executor knows this player any more."""
        self.generation = self.link.generation
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()
        self.refused.clear()

    def _do(self, message: wire.Message) -> None:
        match message.kind:
            case "offer":
                self._consider(message)
            case "order" | "eval_order":
                session = self.sessions.get(str(message.meta.get("run")))
                if session is not None:
                    self._play(session, message)
            case "release":
                release = Release.from_message(message)
                if (session := self.sessions.get(release.run)) is not None:
                    self._release(session, release.shard)
            case "rejoin":
                self._rejoin(Rejoin.from_message(message).run)
            case "finish":
                finish = Finish.from_message(message)
                self._finish(finish.run, finish.reason)
            case kind:
                raise WireError(f"a message of kind {kind!r:.60}")

    def _consider(self, message: wire.Message) -> None:
        offer = Offer.from_message(message)
        run, epoch = offer.run, offer.epoch
        known = self.sessions.get(run)
        if (known is not None and known.epoch == epoch) or epoch in self.refused:
            return
        if known is not None:
            self.sessions.pop(run).close()
        if len(self.refused) > MOST_REFUSED:
            self.refused.clear()
        task = Task.from_message(wire.Message("task", "", offer.task))
        session = Session(self, run, epoch, task, offer.limits)
        try:
            self._check_offer(session)
            self._join(session)
        except ManyhandsError as error:
            self.refused.add(epoch)
            self.say(f"{run}: {error}")
            session.say("refuse", f"cannot play: {error}")

    def _check_offer(self, session: Session) -> None:
        """Refuses what this machine's owner does not allow, before any of it is made."""
        task, mark = session.task(), run_mark(session.names.run)
        if mark in self.refused_runs:
            raise UsageError(f"{task.env.id} brought down a process of this worker when it was made")
        if len(self.sessions) >= MOST_RUNS:
            raise UsageError(f"this worker plays for {MOST_RUNS} runs already")
        self.limits.check(task, [each.task() for each in self.sessions.values()], self._lanes())
        with session.watched():
            self.progress[SHARD], self.progress[EPISODE] = CHECKING, -1
            envs.check_imports(task.env, self.allowed)
            if task.layout.action.algo:
                algorithms.check_allowed(task.layout.action.algo, self.allowed)
            envs.close(envs.make(task.env))

    def _lanes(self) -> int:
        """Return how many environments this process holds, of all runs."""
        return sum(each.collector.lanes for each in self.sessions.values() if each.collector is not None)

    def _rejoin(self, run: str) -> None:
        """Join a run again whose executor does not know this player, because some message got lost."""
        session = self.sessions.pop(run, None)
        if session is not None:
            session.close()
            self._join(Session(self, run, session.epoch, session.task(), session.limits))

    def _join(self, session: Session) -> None:
        session.open(self.progress)
        self.sessions[session.names.run] = session
        self.link.run(self.inbox.bind(session.names), WEIGHTS_TIMEOUT)
        session.report_card = replace(session.report_card, player=self.inbox.name)
        session.tell(session.report_card.to_message("join"))
        self.say(f"plays {session.task().env.id} for {session.names.run}")

    def _play(self, session: Session, message: wire.Message) -> None:
        session.order_id = check_name(message.meta.get("order"))
        try:
            order = session.read_order(message)
        except WireError as error:
            self._answer_unplayed(session, str(error), malformed=True)
            raise
        session.agent = getattr(order, "agent", "")
        assert session.collector is not None
        if isinstance(order, Order) and order.shard not in session.collector.shards:
            try:
                self.limits.check(session.task(), lanes=self._lanes())
            except UsageError as error:  # others may have room for it
                session.say("refuse", f"cannot play so much: {error}")
                self._finish(session.names.run, f"leaves it: {error}")
                return
        with self._accounting_for(session):
            session.collector.run(order, session)

    def _answer_unplayed(self, session: Session, text: str, malformed: bool = False) -> None:
        """Tell the executor that an order is not played, and no longer report it as held."""
        session.unanswered.discard(session.order_id)
        answer = Unplayed(self.inbox.name, session.order_id, text[:MAX_TEXT], malformed)
        session.tell(answer.to_message("unplayed"))

    def _release(self, session: Session, shard: int) -> None:
        with self._accounting_for(session):
            assert session.collector is not None
            session.collector.drop(shard)
            session.settle()
            session.tell(Released(self.inbox.name, shard).to_message("released"))

    @contextmanager
    def _accounting_for(self, session: Session) -> Iterator[None]:
        """Report to the executor whatever goes wrong meanwhile, because it waits for an answer."""
        try:
            with session.watched():
                yield
        except OutOfTurnError as error:  # one given before this player forgot the shard, or it never had it
            self._answer_unplayed(session, str(error))
        except ConnectionReplacedError:
            raise
        except (EnvError, OwnCodeError, UsageError) as error:  # as it would be anywhere else
            session.unanswered.discard(session.order_id)
            session.say("breach", str(error))
        except Exception as error:
            text = str(error) if isinstance(error, ManyhandsError) else f"{type(error).__name__}: {error}"
            self._fail(session, text)

    def _fail(self, session: Session, text: str) -> None:
        """Report a failure, which the executor counts, and join again with new environments."""
        session.say("failed", text)
        session.close()
        self._join(Session(self, session.names.run, session.epoch, session.task(), session.limits))

    def _finish(self, run: str, reason: str) -> None:
        session = self.sessions.pop(run, None)
        if session is None:
            return
        self.refused.add(session.epoch)  # an offer may still be on its way
        session.settle()
        session.tell(session.report_card.to_message("protocol"))
        session.close()
        card = session.report_card
        self.say(f"{run}: {reason}; played {card.steps:,} steps, {card.episodes:,} episodes")
        if self.once:
            self.leaving = True

    def leave(self) -> None:
        """Send every run the final report, and close the connection."""
        self.leaving = True
        for session in self.sessions.values():
            session.tell(session.report_card.to_message("protocol"))
            session.close()
        self.sessions.clear()
        self.link.close()
