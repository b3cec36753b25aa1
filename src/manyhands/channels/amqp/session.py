"""A player's state for one run at the broker: its task, weights and counts, and the way to its executor."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.channels.amqp.messages import Limits, Names, Wanted, Words
from manyhands.channels.versions import Versions
from manyhands.collect.collector import Collector
from manyhands.core import payloads, wire
from manyhands.core.arrays import Array
from manyhands.core.decoding import MAX_TEXT
from manyhands.core.errors import WireError
from manyhands.core.events import Fault, Notice
from manyhands.core.heartbeat import (
    BUSY,
    EPISODE,
    HANG_TIMEOUT,
    MEMORY,
    NOBODY,
    RUN,
    SHARD,
    TESTING,
    run_mark,
)
from manyhands.core.orders import EvalOrder, EvalResult, Order, Task, read_order
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights

if TYPE_CHECKING:
    from manyhands.channels.amqp.worker import Player

POLL = 0.2
KEPT = 4
"""Versions of the weights that a player keeps of every agent."""
MOST_AGENTS = 64
"""Most executors of one run."""
ASK_AGAIN = 3.0
"""Seconds after which weights that an order needs are asked for; sent ones may get lost or be damaged."""
WEIGHTS_TIMEOUT = 30.0
"""Seconds that an order waits for its weights, which were sent before it."""


class Leave(BaseException):
    """A request to leave; not an Exception, so that no environment's fault handling swallows it."""


class ConnectionReplacedError(Exception):
    """The connection was replaced; what was under way on the old one is void."""


class Session:
    """A player's part in one run; the worker's half of the channel for it."""

    def __init__(self, player: "Player", run: str, epoch: str, task: Task, limits: Limits) -> None:
        self.player, self.names, self.epoch, self._task, self.limits = player, Names(run), epoch, task, limits
        self.report_card = player.introduction()
        self.versions: dict[str, Versions[Weights]] = {"": Versions(KEPT)}  # by agent
        self.arrived = threading.Condition()
        self.order_id = self.agent = ""
        self.collector: Collector | None = None
        self.sending: Future[bool] | None = None
        self.unanswered: set[str] = set()  # orders that came and are not answered yet
        self.over = False  # its executor has removed its queues

    def task(self) -> Task:
        return self._task

    def hear_weights(self, message: wire.Message, agent: str) -> None:
        weights = payloads.read_weights(message, self._task.spec, self._task.beside)
        if agent not in self.versions and len(self.versions) >= MOST_AGENTS:
            raise WireError(f"weights of more than {MOST_AGENTS} agents")
        with self.arrived:
            self.versions.setdefault(agent, Versions(KEPT)).add(weights.version, weights)
            self.arrived.notify_all()

    def weights(self, version: int) -> Weights:
        began = asked = time.monotonic()
        with self.arrived:
            while True:
                versions = self.versions.get(self.agent, self.versions[""])
                if version in versions:
                    return versions.find(version)
                self.player.wait_a_moment()
                now = time.monotonic()
                if now - began > WEIGHTS_TIMEOUT:
                    raise WireError(f"weights of version {version} never came")
                if now - asked > ASK_AGAIN:
                    asked = now
                    self.ask_for_weights()
                self.arrived.wait(POLL)

    def ask_for_weights(self) -> None:
        self.tell(Wanted(self.player.inbox.name).to_message("wanted"))

    def arrays(self, order: Order) -> dict[str, Array]:
        return self._task.layout.allocate()

    def send(self, made: Trajectory | EvalResult) -> None:
        """Send a result, after the one before: a full queue slows its player down."""
        link = self.player.link
        if isinstance(made, EvalResult):
            sending = link.deliver(self.names.meta_queue, wire.encode(made.to_message()), self.order_id)
            self._forget_when_delivered(sending, self.order_id)
            return
        began = time.monotonic()
        self.settle()
        card = self.report_card
        self.report_card = replace(
            card,
            steps=card.steps + made.steps,
            episodes=card.episodes + len(made.episode_return),
            return_sum=card.return_sum + float(made.episode_return.sum()),
            playing=card.playing + made.seconds,
            blocked=card.blocked + time.monotonic() - began,
            version=made.version,
        )
        pictures = self._task.layout.obs_dtype == "|u1"  # a screen takes a fiftieth of its room
        raw = payloads.encode_trajectory(made, self._task.spec.schema, compress=pictures)
        headers = {"agent": self.agent, "player": self.player.inbox.name}
        self.sending = link.deliver(self.names.data_queue, raw, self.order_id, headers)
        self._forget_when_delivered(self.sending, self.order_id)

    def _forget_when_delivered(self, sending: "Future[bool]", order: str) -> None:
        """Forget an order once its answer is delivered; until then reports say that it is here."""
        sending.add_done_callback(lambda _: self.unanswered.discard(order))

    def settle(self) -> None:
        """Wait until the broker has what was sent last."""
        while self.sending is not None:
            try:
                delivered = self.sending.result(POLL)
            except TimeoutError:
                self.player.wait_a_moment()
                continue
            except CancelledError:  # with its connection, which said nothing any more
                raise ConnectionReplacedError from None
            self.sending = None
            self.report_card = replace(self.report_card, sent=self.report_card.sent + delivered)

    def report(self, event: Fault | Notice) -> None:
        message = event.to_message() if isinstance(event, Fault) else self._words("notice", event.text)
        self.tell(message)

    def tell(self, message: wire.Message) -> None:
        self.player.link.send("", self.names.meta_queue, wire.encode(message))

    def say(self, kind: str, text: str) -> None:
        self.tell(self._words(kind, text))

    def _words(self, kind: str, text: str) -> wire.Message:
        return Words(self.player.inbox.name, text[:MAX_TEXT]).to_message(kind)

    def open(self, progress: memoryview) -> None:
        self.collector = Collector(self._task, self.player.worker, self.report, None, progress)

    def read_order(self, message: wire.Message) -> Order | EvalOrder:
        plain = {name: fact for name, fact in message.meta.items() if name not in ("order", "run")}
        order = read_order(replace(message, meta=plain))
        if isinstance(order, Order) and order.start is not None and not order.start.fits(self._task.layout):
            raise WireError("an order that says of its shard what cannot be")
        return order

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Mark that an environment's code runs: its supervisor sees for which run, and what is allowed."""
        progress, others = self.player.progress, self.player.sessions.values()
        progress[HANG_TIMEOUT] = int(1000 * self.limits.hang_timeout)
        progress[MEMORY] = max([self.limits.worker_memory, *(s.limits.worker_memory for s in others)])
        progress[RUN] = run_mark(self.names.run)
        progress[SHARD], progress[EPISODE] = TESTING, NOBODY  # until an episode is played
        progress[BUSY] = 1
        try:
            yield
        except (Exception, Leave):
            progress[BUSY] = 0
            raise
        progress[BUSY] = 0  # but not where an environment ends the process, as by sys.exit()

    def close(self) -> None:
        """Close the run's environments. Hanging in that is noticed like hanging in a step."""
        with self.watched():
            if self.collector is not None:
                self.collector.close()
