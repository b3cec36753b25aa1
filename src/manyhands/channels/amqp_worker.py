"""The worker's half of the channel over RabbitMQ: one hand, which plays for every run that wants it.

A hand knows nothing but the broker. It says hello in the lobby, joins every run that makes an offer it can
play, and plays their orders in the order they come. When its connection breaks it forgets everything and
joins anew; the executors have noticed by then and have given its orders to others.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from aio_pika import ExchangeType
from aio_pika.abc import AbstractIncomingMessage

from manyhands import wire
from manyhands.channels.amqp_link import Address, Link
from manyhands.channels.amqp_names import TO_EXECUTORS, TO_WORKERS, Names, Report
from manyhands.channels.amqp_session import WEIGHTS_TIMEOUT, ConnectionReplacedError, Limits, Session
from manyhands.collect.collector import OutOfTurnError
from manyhands.collect.signs import BEATS, BUSY, HANG_TIMEOUT, MEMORY, unshared
from manyhands.envs import make as envs
from manyhands.errors import ManyhandsError, WireError
from manyhands.orders import Order, Task, Trial

POLL = 0.2
HELLO_INTERVAL = 5.0
"""Seconds between two questions for runs that a hand does not know of."""
REPORT_INTERVAL = 1.0
PREFETCH = 100
"""Messages on their way to an inbox."""


class Hand:
    def __init__(
        self,
        address: Address,
        worker: str,
        process: str,
        allowed: list[str],
        progress: memoryview | None,
        once: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        self.worker, self.process, self.allowed = worker, process, allowed
        self.progress, self.once, self.say = unshared() if progress is None else progress, once, say
        self.inbox = ""
        self.generation = 0
        self.sessions: dict[str, Session] = {}
        self.refused: set[str] = set()  # epochs of runs that it cannot play, or that are over
        self.todo: SimpleQueue[Any] = SimpleQueue()
        self.leaving = False
        self.link = Link(address, self._declare, PREFETCH, changed=say)
        self.link.start(patient=True)
        self.progress[BEATS] += 1  # the broker takes us

    def introduction(self) -> Report:
        return Report(self.inbox, self.worker, socket.gethostname(), os.getpid())

    async def _declare(self, link: Link) -> None:
        generation = link.generation
        self.inbox = f"{self.process}.{generation}"
        inbox = await link.orderly.declare_queue(self.inbox, exclusive=True, auto_delete=True)
        await link.orderly.declare_exchange(TO_EXECUTORS, ExchangeType.FANOUT, durable=True)
        floor = await link.orderly.declare_exchange(TO_WORKERS, ExchangeType.FANOUT, durable=True)
        await inbox.bind(floor)

        async def on_message(message: AbstractIncomingMessage) -> None:
            self._hear(message, generation)

        await inbox.consume(on_message, no_ack=True)
        self.reporting = asyncio.create_task(self._report(generation))

    async def _report(self, generation: int) -> None:
        """Every second, whatever the environments do."""
        while generation == self.link.generation and not self.link.closing:
            for session in list(self.sessions.values()):
                if session.collector is not None:
                    session.tell(session.report_card.to_message("report"))
            await asyncio.sleep(REPORT_INTERVAL)

    def _hear(self, message: AbstractIncomingMessage, generation: int) -> None:
        """In the link's thread: weights are put where they belong, all else waits its turn."""
        try:
            heard = wire.decode(message.body)
            if heard.kind == "weights":
                session = self.sessions.get(str(message.headers.get("run")))
                if session is not None:
                    session.hear_weights(heard, str(message.headers.get("agent", "")))
            elif heard.kind != "knock":
                self.todo.put((generation, heard))
        except WireError as error:
            self.say(f"a message that is none of ours was dropped: {error}")

    def wait_a_moment(self) -> None:
        """A sign of life of somebody who waits for the broker; what was under way may be void meanwhile."""
        self.progress[BEATS] += 1
        if self.generation != self.link.generation or not self.link.up.is_set():
            raise ConnectionReplacedError

    def serve(self) -> None:
        """Until told to leave; with `once`, until the first run is over."""
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
                generation, message = self.todo.get(timeout=POLL)
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
            except (WireError, KeyError, TypeError, ValueError) as error:  # nobody waits for an answer
                self.say(f"a message that cannot be followed was dropped: {error!r}")

    def _note_idle(self, began: float) -> None:
        for session in self.sessions.values():
            card = session.report_card
            session.report_card = replace(card, idle=card.idle + time.monotonic() - began)

    def _forget(self) -> None:
        """A new connection: no executor knows this hand any more."""
        self.generation = self.link.generation
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()
        self.refused.clear()

    def _do(self, message: wire.Message) -> None:
        match message.kind:
            case "offer":
                self._consider(message)
            case "order" | "trial" | "release":
                session = self.sessions.get(str(message.meta["run"]))
                if session is not None and message.kind == "release":
                    self._release(session, int(message.meta["shard"]))
                elif session is not None:
                    self._play(session, message)
            case "finish":
                self._finish(str(message.meta["run"]), str(message.meta["reason"]))
            case kind:
                raise WireError(f"a message of kind {kind!r}")

    def _consider(self, message: wire.Message) -> None:
        run, epoch = str(message.meta["run"]), str(message.meta["epoch"])
        known = self.sessions.get(run)
        if (known is not None and known.epoch == epoch) or epoch in self.refused:
            return
        if known is not None:
            self.sessions.pop(run).close()
        task = Task.from_message(wire.Message("task", message.schema, message.meta["task"]))
        session = Session(self, run, epoch, task, Limits(**message.meta["limits"]))
        try:
            self._check_environment(task)
            self._join(session)
        except ManyhandsError as error:
            self.refused.add(epoch)
            self.say(f"{run}: {error}")
            session.say("refuse", f"cannot play: {error}")

    def _check_environment(self, task: Task) -> None:
        envs.check_imports(task.env, self.allowed)
        envs.close(envs.make(task.env))

    def _join(self, session: Session) -> None:
        session.open(self.progress)
        self.sessions[session.names.run] = session
        self.link.run(self._bind(session.names), WEIGHTS_TIMEOUT)
        session.report_card = replace(session.report_card, hand=self.inbox)
        session.tell(session.report_card.to_message("join"))
        self.say(f"plays {session.task().env.id} for {session.names.run}")

    async def _bind(self, names: Names) -> None:
        inbox = await self.link.orderly.get_queue(self.inbox, ensure=False)
        await inbox.bind(names.model_exchange)

    def _play(self, session: Session, message: wire.Message) -> None:
        from manyhands.roles.worker import fulfil

        plain = {name: fact for name, fact in message.meta.items() if name not in ("order", "run")}
        stripped = replace(message, meta=plain)
        order = Order.from_message(stripped) if message.kind == "order" else Trial.from_message(stripped)
        session.order_id, session.agent = str(message.meta["order"]), getattr(order, "agent", "")
        with self._accounting_for(session):
            assert session.collector is not None
            fulfil(order, session, session.collector)

    def _release(self, session: Session, shard: int) -> None:
        with self._accounting_for(session):
            assert session.collector is not None
            session.collector.drop(shard)
            session.settle()
            session.tell(wire.Message("released", "", {"hand": self.inbox, "shard": shard}))

    @contextmanager
    def _accounting_for(self, session: Session) -> Iterator[None]:
        """Whatever goes wrong meanwhile, the executor hears of it, because it waits for an answer."""
        self.progress[HANG_TIMEOUT] = int(1000 * session.limits.hang_timeout)
        self.progress[MEMORY] = max(each.limits.worker_memory for each in self.sessions.values())
        self.progress[BUSY] = 1
        try:
            yield
        except OutOfTurnError as error:  # one given before this hand forgot the shard, or it never had it
            meta = {"hand": self.inbox, "order": session.order_id, "text": str(error)}
            session.tell(wire.Message("unplayed", "", meta))
        except ConnectionReplacedError:
            raise
        except Exception as error:
            text = str(error) if isinstance(error, ManyhandsError) else f"{type(error).__name__}: {error}"
            self._fail(session, text)
        finally:
            self.progress[BUSY] = 0

    def _fail(self, session: Session, text: str) -> None:
        """Tells the executor, which counts it, and joins again with new environments."""
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
        """Says goodbye to every run and closes the connection."""
        self.leaving = True
        for session in self.sessions.values():
            session.tell(session.report_card.to_message("protocol"))
            session.close()
        self.sessions.clear()
        self.link.close()
