"""What a hand keeps of one run at the broker: its task, weights and books, and the way to its executor."""

import threading
import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from manyhands import wire
from manyhands.channels.amqp_names import Names
from manyhands.collect.collector import Collector
from manyhands.errors import WireError
from manyhands.experience import Array, Trajectory
from manyhands.orders import NEWEST, Fault, Notice, Order, Task, Verdict
from manyhands.policy import Weights

if TYPE_CHECKING:
    from manyhands.channels.amqp_worker import Hand

POLL = 0.2
VERSIONS = 4
"""Versions of the weights that a hand keeps of every run."""
WEIGHTS_TIMEOUT = 30.0
"""Seconds that an order waits for the weights that were sent before it."""


class ConnectionReplacedError(Exception):
    """The connection is another one; what was under way is void."""


@dataclass(frozen=True)
class Limits:
    """What a run allows those who play for it; their supervisor sees to it."""

    hang_timeout: float
    worker_memory: int


class Session:
    """A hand's part in one run; the worker's half of the channel for it."""

    def __init__(self, hand: "Hand", run: str, epoch: str, task: Task, limits: Limits) -> None:
        self.hand, self.names, self.epoch, self._task, self.limits = hand, Names(run), epoch, task, limits
        self.report_card = hand.introduction()
        self.versions: dict[str, dict[int, Weights]] = {"": {}}  # by agent
        self.arrived = threading.Condition()
        self.order_id = self.agent = ""
        self.collector: Collector | None = None
        self.sending: Future[bool] | None = None

    def task(self) -> Task:
        return self._task

    def hear_weights(self, message: wire.Message, agent: str) -> None:
        weights = wire.read_weights(message, self._task.spec)
        with self.arrived:
            versions = self.versions.setdefault(agent, {})
            versions[weights.version] = weights
            for version in sorted(versions)[:-VERSIONS]:
                del versions[version]
            self.arrived.notify_all()

    def weights(self, version: int) -> Weights:
        deadline = time.monotonic() + WEIGHTS_TIMEOUT
        with self.arrived:
            while True:
                versions = self.versions.get(self.agent) or self.versions[""]
                if version == NEWEST and versions:
                    return versions[max(versions)]
                if version in versions:
                    return versions[version]
                self.hand.wait_a_moment()
                if time.monotonic() > deadline:
                    raise WireError(f"weights of version {version} never came")
                self.arrived.wait(POLL)

    def arrays(self, order: Order) -> dict[str, Array]:
        return self._task.layout.allocate()

    def send(self, made: Trajectory | Verdict) -> None:
        """Waits for the one before: a full queue holds its maker up."""
        link = self.hand.link
        if isinstance(made, Verdict):
            link.deliver(self.names.meta_queue, wire.encode(made.to_message()), self.order_id)
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
        raw = wire.encode_trajectory(made, self._task.spec.schema, compress=pictures)
        headers = {"agent": self.agent}
        self.sending = link.deliver(self.names.data_queue, raw, self.order_id, headers)

    def settle(self) -> None:
        """Waits until the broker has what was sent last."""
        while self.sending is not None:
            try:
                delivered = self.sending.result(POLL)
            except TimeoutError:
                self.hand.wait_a_moment()
                continue
            except CancelledError:  # with its connection, which said nothing any more
                raise ConnectionReplacedError from None
            self.sending = None
            self.report_card = replace(self.report_card, sent=self.report_card.sent + delivered)

    def report(self, event: Fault | Notice) -> None:
        message = event.to_message() if isinstance(event, Fault) else self._words("notice", event.text)
        self.tell(message)

    def tell(self, message: wire.Message) -> None:
        self.hand.link.send("", self.names.meta_queue, wire.encode(message))

    def say(self, kind: str, text: str) -> None:
        self.tell(self._words(kind, text))

    def _words(self, kind: str, text: str) -> wire.Message:
        return wire.Message(kind, "", {"hand": self.hand.inbox, "text": text})

    def open(self, progress: memoryview) -> None:
        self.collector = Collector(self._task, self.hand.worker, self.report, None, progress)

    def close(self) -> None:
        if self.collector is not None:
            self.collector.close()
