"""The channel over a Ray cluster: workers are actors, weights and trajectories go through its object store.

Ray places the actors, carries the bytes and restarts what dies. An actor that was restarted knows nothing of
its shards, so its orders are given again with where they stand.
"""

import faulthandler
import logging
import mmap
import os
import socket
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import ray
from ray._private import ray_constants
from ray._private import worker as ray_worker
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from threadpoolctl import threadpool_limits

from manyhands.channels.base import WorkerStatus
from manyhands.channels.worker_stats import WorkerStats
from manyhands.collect.collector import Collector, OutOfTurnError
from manyhands.config import algorithms
from manyhands.core import wire
from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError, ManyhandsError, RunError, UsageError
from manyhands.core.events import CrashSite, Event, Fault, Notice, WorkerLost
from manyhands.core.heartbeat import BEATS, BYTES, EPISODE, LANE, NOBODY, SHARD
from manyhands.core.orders import NEWEST, EvalOrder, EvalResult, Order, Task
from manyhands.core.texts import one_line
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.envs.make import MakeEnv
from manyhands.system.locks import try_lock
from manyhands.system.processes import player_environment
from manyhands.system.temporary import temporary

POLL = 0.2
VERSIONS = 3
"""Versions of the weights that are held in the object store."""
WATCH_INTERVAL = 1.0
"""Seconds of silence after which an actor is asked how far it is, and between two such questions."""
START_TIMEOUT = 60.0
"""Seconds that an actor may take to start, or to start again."""
RESTART_GRACE = 10.0
"""Seconds after the loss of an actor in which calls that fail are part of the same loss."""
CONNECT_TIMEOUT = 5.0
TIDY_TIMEOUT = 3.0
LOCAL, EXISTING, CLIENT = "ray", "ray:auto", "ray://"
ONLY_HERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's own switch, of systems on which it uses loopback alone unless told otherwise."""
LONGEST_PLACE = 50
"""Characters of a directory in which Ray's sockets still have room for their names."""
PREFIX, SIGNS, CRASH = "manyhands-", ".signs", ".crash"
"""How the files are called that an actor leaves to the one that follows it."""
STALE = 600.0
"""Seconds after which nobody follows any more, because the run has ended, too."""


def drop_stale(place: Path) -> None:
    """Removes what actors left that were killed together with their run: old files that no process holds."""
    for path in place.glob(f"{PREFIX}*{SIGNS}"):
        with suppress(OSError), path.open("r+b") as file:  # somebody else's, or no longer there
            if time.time() - path.stat().st_mtime > STALE and try_lock(file):
                path.with_suffix(CRASH).unlink(missing_ok=True)
                path.unlink()


def session_place() -> Path:
    """The directory of the cluster's session on this node; it goes with a cluster that a run has started."""
    node = ray_worker._global_node
    return Path(tempfile.gettempdir() if node is None else node.get_session_dir_path())


class CrashRecord:
    """Signs of life in a file, so that the process that follows a lost one knows where that one was."""

    def __init__(self, name: str) -> None:
        place = session_place()
        drop_stale(place)
        self.signs_path = place / f"{PREFIX}{name}{SIGNS}"
        self.crash_path = place / f"{PREFIX}{name}{CRASH}"
        self.last_place = self._read()
        # Open, because it is locked, for as long as this process lives.
        self.signs_file = open(os.open(self.signs_path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")  # noqa: SIM115
        try_lock(self.signs_file)
        os.utime(self.signs_path)
        self.signs_file.truncate(BYTES)
        self.progress = memoryview(mmap.mmap(self.signs_file.fileno(), BYTES)).cast("q")
        self.progress[EPISODE] = NOBODY
        # Written by Python itself when a signal such as SIGSEGV ends the process, and by nobody else's kill.
        self.crash_file = open(os.open(self.crash_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w")  # noqa: SIM115
        faulthandler.enable(self.crash_file)
        self._exit = os._exit
        os._exit = self.exit  # what an environment may call, of which nobody else would know

    def exit(self, status: int) -> NoReturn:
        """Ends this process as the environment wished, and says so to the one that follows."""
        self.crash_file.write(f"exit code {status}")
        self.crash_file.flush()
        self._exit(status)

    def _read(self) -> tuple[bool, int, int, int] | None:
        try:
            signs = memoryview(self.signs_path.read_bytes()).cast("q")
            crashed = self.crash_path.stat().st_size > 0
            return crashed, signs[SHARD], signs[LANE], signs[EPISODE]
        except (OSError, TypeError, IndexError):  # there was none before this one, or on another node
            return None

    def remove(self) -> None:
        os._exit = self._exit
        faulthandler.disable()
        for path in (self.signs_path, self.crash_path):
            path.unlink(missing_ok=True)


class EpisodePlayer:
    """The worker's half, inside an actor. Its orders come as calls, one after the other."""

    def __init__(
        self, task: bytes, name: str, callable_env: MakeEnv | None, given: dict[str, Any], record: str
    ) -> None:
        algorithms.GIVEN.update(given)
        self.blas = threadpool_limits(1, "blas")
        self.task = Task.from_message(wire.decode(task, "task"))
        self.record = CrashRecord(f"{record}-{name}")
        self.progress = self.record.progress
        self.made = b""
        self.events: list[bytes] = []
        self.latest: Weights
        self.collector = Collector(self.task, name, self.report, callable_env, self.progress)

    def run_order(self, order: bytes, weights: bytes) -> tuple[bytes, list[bytes], str]:
        """What came of an order, what was to be reported on the way, and why the run must end, if it must."""
        from manyhands.channels.base import run_order

        self.events = []
        message = wire.decode(weights, "weights")
        self.latest = wire.read_weights(message, self.task.spec, self.task.beside)
        message = wire.decode(order)
        wanted = (
            EvalOrder.from_message(message) if message.kind == "eval_order" else Order.from_message(message)
        )
        try:
            run_order(wanted, self, self.collector)
        except ManyhandsError as error:
            return b"", self.events, str(error)
        except SystemExit as left:
            self.record.exit(left.code if isinstance(left.code, int) else 1)
        return self.made, self.events, ""

    def beats(self) -> int:
        """Answered beside an order that is under way, unless a step of that keeps Python's lock."""
        return int(self.progress[BEATS])

    def last_place(self) -> tuple[bool, int, int, int] | None:
        """Whether the process before this one crashed, and the shard, lane and episode that it was in."""
        return self.record.last_place

    def tidy(self) -> None:
        self.record.remove()

    def process(self) -> int:
        return os.getpid()

    def weights(self, version: int) -> Weights:
        return self.latest

    def arrays(self, order: Order) -> dict[str, Array]:
        return self.task.layout.allocate()

    def send(self, made: Trajectory | EvalResult) -> None:
        if isinstance(made, EvalResult):
            self.made = wire.encode(made.to_message())
        else:
            self.made = wire.encode_trajectory(made, self.task.spec.schema)

    def report(self, event: Fault | Notice) -> None:
        if isinstance(event, Fault):
            self.events.append(wire.encode(event.to_message()))
        else:
            self.events.append(wire.encode(wire.Message("notice", "", {"text": event.text})))


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
        self.versions: dict[int, Any] = {}
        self.events: deque[Event | Actor] = deque()
        self.asked_at = time.monotonic()
        self.stats = WorkerStats()
        self.finished = False
        remote: Any = ray.remote(num_cpus=cpus, max_restarts=-1, concurrency_groups={"watch": 1})  # type: ignore[call-overload]
        made = remote(EpisodePlayer)
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
        self.versions[weights.version] = ray.put(wire.encode_weights(weights))
        for version in sorted(self.versions)[:-VERSIONS]:
            del self.versions[version]

    def order(self, order: Order | EvalOrder) -> None:
        actor = self.by_shard[order.shard if isinstance(order, Order) else order.part]
        version = max(self.versions) if order.version == NEWEST else order.version
        raw = wire.encode(order.to_message())
        if not actor.orders:
            actor.seen_at = time.monotonic()
        answer = actor.handle.run_order.remote(raw, self.versions[version])
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
        """Waits for one answer, and takes those that are there by then."""
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
            trajectory = wire.decode_trajectory(raw, self.task.layout, self.task.spec.schema)
            self.stats.add(actor.name, trajectory)
            self.events.append(trajectory)
        else:
            self.events.append(EvalResult.from_message(wire.decode(raw, "eval_result")))

    def _ask_again(self, actor: Actor) -> None:
        """The same orders; they say where their shards stand."""
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
        """Its calls have failed; Ray starts it again, and all it was to do is given back."""
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
        """Waits for the process that is started in place of a lost one, and knows where that one was.

        Not what that one has said itself: a step that keeps Python's lock lets it say nothing. None where the
        new process is on another node.
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
        """Asks those that were silent for a while how far they are; one that does not move is ended."""
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
        """Every rollout is a copy of its own here."""

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


def homes(workers: int, cpus: float) -> list[Any]:
    """Where each actor is to be placed, so that it is started again where its signs of life are.

    On all nodes in turn, by what they have; where they are busy or gone, or too small, Ray chooses.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    rooms = [[node["NodeID"]] * min(workers, int(node["Resources"].get("CPU", 0) / cpus)) for node in nodes]
    found = [node for node in chain(*zip_longest(*rooms)) if node is not None][:workers]
    chosen: list[Any] = [
        NodeAffinitySchedulingStrategy(node, True, _spill_on_unavailable=True) for node in found
    ]
    return chosen + ["DEFAULT"] * (workers - len(chosen))


def connect(address: str, workers: int, cpus: float, held: ExitStack) -> None:
    """To the cluster; what ends with the run, such as one that is started here, is `held`."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common: dict[str, Any] = {
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "namespace": "manyhands",
        "runtime_env": {"env_vars": {"PYTHONPATH": player_environment()["PYTHONPATH"]}},
    }
    try:
        if address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            enough = max(float(os.cpu_count() or 1), workers * cpus)
            # Ray opens its directory to everyone; the one around it is this user's alone.
            place = held.enter_context(temporary("ray", LONGEST_PLACE)) / "s"
            with on_loopback():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    num_cpus=int(enough + 0.999),
                    _temp_dir=str(place),
                    **common,
                )
        elif address == EXISTING:
            ray.init(address="auto", **common)
        elif address.startswith(CLIENT):
            _knock(address)
            ray.init(address=address, **common)
        else:
            raise UsageError(f"--channel {address} is not ray, ray:auto or ray://HOST:10001")
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        text = " ".join(str(error).split())
        hint = "; the cluster must run the same versions of Ray and Python" if "ersion" in text else ""
        if address != LOCAL and "RAY_AUTH_MODE" not in os.environ:
            hint += "; a cluster that demands its token wants RAY_AUTH_MODE=token and ~/.ray/auth_token here"
        held.close()
        raise RunError(f"{address}: no Ray cluster to work with: {text[:200]}{hint}") from error
    held.callback(ray.shutdown)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Keeps a cluster that is started meanwhile off every network, as Ray does by itself on a desktop."""
    given, read = os.environ.get(ONLY_HERE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[ONLY_HERE] = "0"  # for its processes
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this one, which has read that already
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = read
        if given is None:
            del os.environ[ONLY_HERE]
        else:
            os.environ[ONLY_HERE] = given


def _knock(address: str) -> None:
    """Ray's client would try for half a minute."""
    try:
        parts = urlsplit(address)
        socket.create_connection((parts.hostname or "", parts.port or 10001), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConnectionError(f"nobody answers ({error})") from error


def _reason(error: RayError) -> str:
    """One line of Ray's many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    known = [line for line in lines if "exit" in line.lower() or "node" in line.lower()]
    return (known or lines or [type(error).__name__])[0][:160]
