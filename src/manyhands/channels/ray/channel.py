"""The executor's half of the channel over a Ray cluster: workers are actors, its object store carries bytes.

Ray places the actors, carries the bytes and restarts what dies. An actor that was restarted knows nothing of
its shards, so its orders are given again with where they stand.
"""

import time
import uuid
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from manyhands.channels.base import WorkerStatus
from manyhands.channels.ray.cluster import LOCAL, connect, homes
from manyhands.channels.ray.player import RayPlayer
from manyhands.channels.versions import Versions
from manyhands.channels.worker_stats import WorkerStats
from manyhands.collect.collector import OutOfTurnError
from manyhands.config import algorithms
from manyhands.core import payloads, wire
from manyhands.core.errors import EnvError, RunError
from manyhands.core.events import CrashSite, Event, Fault, Notice, WorkerLost
from manyhands.core.orders import EvalOrder, EvalResult, Order, Task
from manyhands.core.texts import one_line
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.envs.make import MakeEnv

POLL = 0.2
WATCH_INTERVAL = 1.0
"""Seconds of silence after which an actor is asked how far it is, and between two such questions."""
START_TIMEOUT = 60.0
"""Seconds that an actor may take to start, or to start again."""
RESTART_GRACE = 10.0
"""Seconds after the loss of an actor in which calls that fail are part of the same loss."""
TIDY_TIMEOUT = 3.0


@dataclass(eq=False)
class Actor:
    """A player as the executor keeps it."""

    name: str
    handle: Any
    shards: list[int]
    orders: dict[Any, Order | EvalOrder] = field(default_factory=dict)  # by what Ray will answer them with
    beats: int = 0
    seen_at: float = field(default_factory=time.monotonic)
    asked: Any = None
    hung: bool = False
    ready: bool = False  # it has answered since it was started
    gone: str = ""  # why it was lost, until the executor hears of it
    lost_at: float = 0.0


class RayChannel:
    """The executor's half; shard i belongs to actor i mod N."""

    plays_here = False

    def __init__(
        self,
        task: Task,
        shards: int,
        workers: int,
        hang_timeout: float,
        address: str = LOCAL,
        cpus: float = 1.0,
        callable_env: MakeEnv | None = None,
    ) -> None:
        self.task, self.hang_timeout = task, hang_timeout
        self.held = ExitStack()  # what a cluster that was started here has
        connect(address, workers, cpus, self.held)
        self.versions: Versions[Any] = Versions()
        self.events: deque[Event | Actor] = deque()
        self.asked_at = time.monotonic()
        self.stats = WorkerStats()
        self.finished = False
        remote: Any = ray.remote(num_cpus=cpus, max_restarts=-1, concurrency_groups={"watch": 1})  # type: ignore[call-overload]
        made = remote(RayPlayer)
        raw, record = wire.encode(task.to_message()), uuid.uuid4().hex
        given = algorithms.given(task.layout.action.algo)
        self.actors = [
            Actor(
                f"actor-{i}",
                made.options(scheduling_strategy=home).remote(raw, f"actor-{i}", callable_env, given, record),
                list(range(i, shards, workers)),
            )
            for i, home in enumerate(homes(workers, cpus))
        ]
        self.by_shard = {shard: actor for actor in self.actors for shard in actor.shards}
        self.by_answer: dict[Any, Actor] = {}

    def publish(self, weights: Weights) -> None:
        self.versions.add(weights.version, ray.put(payloads.encode_weights(weights)))

    def order(self, order: Order | EvalOrder) -> None:
        actor = self.by_shard[order.shard if isinstance(order, Order) else order.part]
        raw = wire.encode(order.to_message())
        if not actor.orders:
            actor.seen_at = time.monotonic()
        answer = actor.handle.run_order.remote(raw, self.versions.find(order.version))
        actor.orders[answer] = order
        self.by_answer[answer] = actor

    def receive(self, timeout: float) -> Event | None:
        deadline = time.monotonic() + timeout
        while not self.events:
            left = deadline - time.monotonic()
            if self.by_answer:
                self._take_all(max(0.0, min(left, POLL)))
            else:
                time.sleep(max(0.0, min(left, POLL)))
            self._watch()
            if left <= 0 and not self.events:
                return None
        event = self.events.popleft()
        # Only now, when the executor hears of it: orders that it gave meanwhile are given back as well.
        return self._lost(event) if isinstance(event, Actor) else event

    def _take_all(self, timeout: float) -> None:
        """Wait for one answer, and take those that are there by then."""
        asked = list(self.by_answer)
        if ray.wait(asked, num_returns=1, timeout=timeout)[0]:
            for answer in ray.wait(asked, num_returns=len(asked), timeout=0)[0]:
                self._take(answer)

    def _take(self, answer: Any) -> None:
        actor = self.by_answer.get(answer)
        if actor is None or actor.gone:
            return  # of an actor whose orders are given back
        try:
            raw, reports, failure = ray.get(answer)
        except RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                raise RunError(f"{actor.name} could not start: {_reason(error)}") from error
            if actor.ready or time.monotonic() - actor.lost_at > RESTART_GRACE:
                self._gone(actor, _reason(error))
            else:
                self._ask_again(actor)  # it is being started anew
            return
        except RayTaskError as error:
            if isinstance(error.cause, OutOfTurnError):  # it was started anew while it had nothing to do
                self._gone(actor, "it ended, and forgot where its shards stand")
                return
            self._gone(actor, f"it failed by itself: {one_line(repr(error.cause), 200)}")
            ray.kill(actor.handle, no_restart=False)
            return
        except RayError as error:
            self._gone(actor, _reason(error))
            return
        del self.by_answer[answer]
        order = actor.orders.pop(answer)
        actor.seen_at, actor.ready = time.monotonic(), True
        for report in reports:
            message = wire.decode(report)
            if message.kind == "fault":
                self.events.append(Fault.from_message(message))
            else:
                self.events.append(Notice(actor.name, str(message.meta["text"])))
        if failure:
            raise EnvError(failure)
        if isinstance(order, Order):
            trajectory = payloads.decode_trajectory(raw, self.task.layout, self.task.spec.schema)
            self.stats.add(actor.name, trajectory)
            self.events.append(trajectory)
        else:
            self.events.append(EvalResult.from_message(wire.decode(raw, "eval_result")))

    def _ask_again(self, actor: Actor) -> None:
        """Give an actor the same orders again; they say where their shards stand."""
        time.sleep(POLL)
        orders = list(actor.orders.values())
        for answer in actor.orders:
            del self.by_answer[answer]
        actor.orders.clear()
        for order in orders:
            self.order(order)

    def _gone(self, actor: Actor, reason: str) -> None:
        actor.gone = reason
        self.events.append(actor)

    def _lost(self, actor: Actor) -> WorkerLost:
        """Return the loss of an actor whose calls have failed, with its orders; Ray starts it again."""
        orders = tuple(actor.orders.values())
        for answer in actor.orders:
            del self.by_answer[answer]
        actor.orders.clear()
        actor.ready = False
        self.stats.of(actor.name).lost += 1
        crash_site = None
        if (found := self._last_place(actor)) is not None:
            crashed, *place = found
            crash_site = CrashSite(*place) if crashed or actor.hung else None
        reason, actor.gone = actor.gone, ""
        actor.hung = False
        actor.lost_at = time.monotonic()
        actor.asked, actor.seen_at = None, time.monotonic()
        return WorkerLost(actor.name, reason, tuple(actor.shards), orders, crash_site)

    def _last_place(self, actor: Actor) -> tuple[bool, int, int, int] | None:
        """Wait for the process that is started in place of a lost one; return where that one was.

        The lost one may not have said so itself: a step that keeps Python's lock lets it say nothing. None
        where the new process is on another node.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while (left := deadline - time.monotonic()) > 0:
            try:
                found = ray.get(actor.handle.last_place.remote(), timeout=left)
            except RayActorError as error:
                if getattr(error, "actor_init_failed", False):
                    return None  # its orders tell
                time.sleep(POLL)  # it is not there yet
                continue
            except RayError:  # a timeout is one
                return None
            actor.ready = True
            return None if found is None else tuple(found)
        return None

    def _watch(self) -> None:
        """Ask actors that were silent for a while for their heartbeat; end one that does not move."""
        now = time.monotonic()
        if now - self.asked_at < WATCH_INTERVAL:
            return
        self.asked_at = now
        for actor in self.actors:
            if not actor.orders:
                actor.seen_at = now
                continue
            if now - actor.seen_at >= WATCH_INTERVAL:
                self._hear_beats(actor, now)
            allowed = self.hang_timeout if actor.ready else max(self.hang_timeout, START_TIMEOUT)
            if now - actor.seen_at > allowed and not actor.hung:
                actor.hung = True
                ray.kill(actor.handle, no_restart=False)

    def _hear_beats(self, actor: Actor, now: float) -> None:
        if actor.asked is not None:
            if not ray.wait([actor.asked], timeout=0)[0]:
                return
            try:
                beats = ray.get(actor.asked)
                actor.ready = True
                if beats != actor.beats:
                    actor.beats, actor.seen_at = beats, now
            except RayError:
                pass  # its order tells
        actor.asked = actor.handle.beats.options(concurrency_group="watch").remote()

    def ack(self, trajectory: Trajectory) -> None:
        """Do nothing: every rollout is a copy of its own here."""

    def workers(self) -> list[WorkerStatus]:
        now = time.monotonic()
        return [WorkerStatus(a.name, now - a.seen_at, bool(a.orders)) for a in self.actors]

    def backlog(self) -> None:
        return None

    def worker_stats(self) -> dict[str, Any]:
        return self.stats.to_plain()

    def finish(self, reason: str) -> None:
        if self.finished:
            return
        self.finished = True
        self.by_answer.clear()
        self.versions.clear()
        tidied = [actor.handle.tidy.options(concurrency_group="watch").remote() for actor in self.actors]
        ray.wait(tidied, num_returns=len(tidied), timeout=TIDY_TIMEOUT)
        for actor in self.actors:
            actor.orders.clear()
            ray.kill(actor.handle)
        self.held.close()


def _reason(error: RayError) -> str:
    """Return one line of Ray's many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    known = [line for line in lines if "exit" in line.lower() or "node" in line.lower()]
    return (known or lines or [type(error).__name__])[0][:160]
