"""The targets of the fuzzer: all code that reads messages of others, with real state behind it.

Only the network is a double, which keeps what is sent and refuses what a real one would. Every input meets
new objects, so that a finding can be repeated from its input alone. Errors that are meant are caught here;
whatever else a target raises is a finding.
"""

import asyncio
import io
import sys
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import yaml
from rich.console import Console
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close

from benchmarks.fuzz_inputs import Frame
from manyhands.averaging import link as child_link
from manyhands.averaging.child import Exchanger, own_config
from manyhands.averaging.child_stats import Forgotten, ParentStats
from manyhands.averaging.maths import FORMATS, Format, quantise
from manyhands.averaging.parent import Parent
from manyhands.averaging.protocol import HEADROOM, PROTOCOL, AveragingConfig, structure
from manyhands.channels.amqp import executor as amqp
from manyhands.channels.amqp import joined as amqp_joined
from manyhands.channels.amqp import session as amqp_session
from manyhands.channels.amqp import worker as amqp_worker
from manyhands.channels.amqp.address import Address
from manyhands.channels.amqp.messages import (
    Ask,
    Ended,
    Finish,
    Gone,
    Held,
    Limits,
    Offer,
    Rejoin,
    Release,
    Released,
    Report,
    RunSettings,
    Settled,
    Unplayed,
    Wanted,
    Words,
)
from manyhands.channels.limits import OwnLimits
from manyhands.collect.collector import Collector
from manyhands.config import plain_yaml
from manyhands.config.resolve import parse_override, resolve
from manyhands.config.settings import Config
from manyhands.core import orders, payloads, wire
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError, ManyhandsError, UsageError, WireError
from manyhands.core.events import Fault
from manyhands.core.heartbeat import run_mark
from manyhands.core.lanes import ShardState
from manyhands.core.networks import Conv, Dense, Head, NetSpec
from manyhands.core.orders import NEWEST, EvalOrder, EvalResult, Order, Task
from manyhands.core.texts import one_line
from manyhands.core.trajectories import Layout, Trajectory
from manyhands.core.weights import Weights
from manyhands.roles.executor import Executor
from manyhands.runs.plan import Plan, plan
from manyhands.runs.view import _worker_table

RUN = "fuzz-run"
PLAYER = "manyhands.player.h.1"
PEER = "manyhands.executor.e.1"
KEY = "the key of an executor that joined"
LONGEST_NAME = 255
"""Bytes of a queue's or an exchange's name, or of a message's id, that AMQP can carry."""
UNPACKED = 100_000
SETTINGS: dict[str, Any] = {
    "run": {"mode": "async", "algo": "impala", "until": "steps", "workers": 1, "max_faults": 1000},
    "collect": {"shards": 2, "lanes": 2, "steps": 4},
    "net": {"hidden": [4], "normalise": True},
}


class Finding(AssertionError):  # noqa: N818 (said of what was found, not of the fuzzer)
    """Something that must not happen, though nothing was raised."""


class Target(Protocol):
    def seeds(self) -> list[list[Frame]]:
        """Return inputs that are all right."""

    def run(self, frames: Sequence[Frame]) -> None: ...


def check_shown(text: object) -> None:
    """Refuse a text to show to a person that is not made of printable lines."""
    if not isinstance(text, str) or not all(line.isprintable() for line in text.split("\n")):
        raise Finding(f"not printable: {text!r:.200}")


def check_name(name: object) -> None:
    """Refuse a name that AMQP cannot carry as a short string."""
    if not isinstance(name, str) or len(name.encode()) > LONGEST_NAME:
        raise Finding(f"no name for a queue, an exchange or a message: {name!r:.60}")


def small_plan() -> Plan:
    return plan(Config.from_plain(SETTINGS))


def played(task: Task, weights: Weights, shard: int, sequence: int = 0) -> Trajectory:
    collector = Collector(task, "fuzz", lambda event: None)
    out = task.layout.allocate()
    start = replace(ShardState.fresh(task.layout), sequence=sequence)
    trajectory = collector.collect(Order(shard, sequence, weights.version, start), weights, out)
    collector.close()
    return trajectory


def frame(message: wire.Message | bytes, envelope: int = 0) -> Frame:
    return Frame(envelope, message if isinstance(message, bytes) else wire.encode(message))


class Wire:
    """The wire format itself: raises nothing but WireError, and what it decodes can be encoded again."""

    def __init__(self) -> None:
        planned = small_plan()
        self.spec, self.layout = planned.spec, planned.task.layout
        self.weights = planned.first_weights()
        self.trajectory = played(planned.task, self.weights, 0)
        self.pictures = replace(self.layout, obs_shape=(6, 5, 2), obs_dtype="|u1")

    def seeds(self) -> list[list[Frame]]:
        state = ShardState.fresh(self.layout).after(self.trajectory)
        meta, arrays = payloads.pack_states({3: state})
        shown = played_pictures(self.trajectory, self.pictures)
        schema = self.spec.schema
        return [
            [frame(wire.Message("note", "", {"a": [1, None, {"b": 0.5}], "c": b"x"}), 0)],
            [frame(payloads.encode_trajectory(self.trajectory, schema), 1)],
            [frame(payloads.encode_trajectory(shown, schema, compress=True), 2)],
            [frame(payloads.encode_weights(self.weights), 3)],
            [frame(wire.Message("states", "", meta, arrays), 4)],
        ]

    def run(self, frames: Sequence[Frame]) -> None:
        for each in frames:
            with suppress(WireError):
                self._read(each.envelope % 5, each.raw)

    def _read(self, how: int, raw: bytes) -> None:
        match how:
            case 0:
                message = wire.decode(raw, unpacked=UNPACKED)
                again = repeat(message)
                if (again.kind, list(again.arrays)) != (message.kind, list(message.arrays)):
                    raise Finding("a message is another one after it is written and read")
            case 1 | 2:
                layout = self.layout if how == 1 else self.pictures
                trajectory = payloads.decode_trajectory(raw, layout, self.spec.schema)
                ShardState.fresh(layout).after(trajectory)
                payloads.decode_trajectory(said(trajectory, self.spec.schema), layout, self.spec.schema)
            case 3:
                payloads.read_weights(wire.decode(raw), self.spec, self.spec.statistics)
            case _:
                message = wire.decode(raw)
                states = payloads.unpack_states(message.meta, message.arrays)
                if states:
                    payloads.unpack_states(*payloads.pack_states(states))


def repeat(message: wire.Message) -> wire.Message:
    try:
        return wire.decode(wire.encode(message))
    except WireError as error:
        raise Finding(f"what was read cannot be written: {error}") from error


def said(trajectory: Trajectory, schema: str) -> bytes:
    try:
        return payloads.encode_trajectory(trajectory, schema)
    except WireError as error:
        raise Finding(f"what was read cannot be written: {error}") from error


def played_pictures(trajectory: Trajectory, layout: Layout) -> Trajectory:
    shape = layout.obs_shape
    return replace(
        trajectory,
        obs=np.full((layout.steps, layout.lanes, *shape), 7, np.uint8),
        last_obs=np.zeros((layout.lanes, *shape), np.uint8),
        final_obs=np.zeros((len(trajectory.final_obs), *shape), np.uint8),
    )


class Orders:
    """The messages about an order: raise WireError, or UsageError where a description is read alone."""

    KINDS: Mapping[str, Any] = {
        "task": Task,
        "order": Order,
        "eval_order": EvalOrder,
        "eval_result": EvalResult,
        "fault": Fault,
    }

    def __init__(self) -> None:
        self.plan = small_plan()

    def seeds(self) -> list[list[Frame]]:
        task = self.plan.task
        state = ShardState.fresh(task.layout).after(played(task, self.plan.first_weights(), 1))
        convolutions = NetSpec(
            (2, 12, 12),
            (Head("policy", 3, (Dense(4),)), Head("log_std", 2, free=True)),
            (Conv(4, 3, 2), Dense(8, "relu")),
            image="chw",
            normalise=True,
        )
        gaussian = ActionSpec("gaussian", (2,), (-1.0, -1.0), (1.0, float("inf")), squash=True)
        hogwild = replace(task, cores=orders.Cores(2, "a3c", {"gamma": 0.9}))
        texts = {"spec": convolutions.to_json(), "action": gaussian.to_json()}
        values = ActionSpec("values", (3,), dueling=True, epsilon=0.1)
        return [
            [frame(task.to_message())],
            [frame(hogwild.to_message())],
            [frame(Order(1, 1, 0, state, "agent").to_message())],
            [frame(EvalOrder(0, 1, 5, 0, 10, (3,)).to_message())],
            [frame(wire.Message("eval_result", "", {"part": 0, "returns": [1.0, 2.0], "lengths": [3, 4]}))],
            [frame(Fault("w", 0, 1, 2, 3, "Traceback\n  line\nValueError: x").to_message())],
            [frame(wire.Message("texts", "", texts))],
            [
                frame(
                    wire.Message("texts", "", {"spec": self.plan.spec.to_json(), "action": values.to_json()})
                )
            ],
        ]

    def run(self, frames: Sequence[Frame]) -> None:
        for each in frames:
            with suppress(WireError):
                message = wire.decode(each.raw)
                if message.kind == "texts":
                    self._descriptions(message.meta)
                elif message.kind in self.KINDS:
                    self._check(self.KINDS[message.kind].from_message(message))

    def _descriptions(self, meta: Mapping[str, Any]) -> None:
        with suppress(UsageError):
            spec = NetSpec.from_json(text_of(meta, "spec"))
            again = NetSpec.from_json(spec.to_json())
            if (spec.schema, spec.size) != (again.schema, again.size):
                raise Finding("a network is another one after it is written and read")
        with suppress(UsageError):
            action = ActionSpec.from_json(text_of(meta, "action"))
            _ = (action.outputs, action.noises, action.shape, action.dtype)
            ActionSpec.from_json(action.to_json())

    def _check(self, read: Any) -> None:
        """Check that what was decoded can be worked with, and encoded again."""
        if isinstance(read, Task):
            with suppress(UsageError):
                OwnLimits(100, 8, 1).check(read)
            Task.from_message(read.to_message())
        elif isinstance(read, EvalResult):
            _ = (read.evaluation.mean, read.evaluation.error, read.evaluation.steps)
        else:
            wire.decode(wire.encode(read.to_message()))


def text_of(meta: Mapping[str, Any], name: str) -> str:
    value = meta.get(name)
    return value if isinstance(value, str) else ""


class Queue:
    """A queue or an exchange; only its name is looked at."""

    def __init__(self, name: str) -> None:
        check_name(name)

    async def bind(self, exchange: Any) -> None:
        check_name(exchange)


class Orderly:
    async def get_queue(self, name: str, ensure: bool) -> Queue:
        return Queue(name)


class QuietLink:
    """A broker that takes everything that AMQP could carry, and passes nothing on."""

    def __init__(self, address: Address, *_: Any, **__: Any) -> None:
        self.address, self.generation, self.closing = address, 1, False
        self.orderly = Orderly()
        self.up = threading.Event()
        self.up.set()

    def start(self, patient: bool = False) -> None: ...

    def close(self) -> None: ...

    def acknowledge(self, message: Any, generation: int) -> None: ...

    def send(self, exchange: str, key: str, body: bytes, headers: Any = None) -> None:
        check_name(exchange)
        check_name(key)
        wire.decode(body)

    def probe(self, queue: str, body: bytes) -> None:
        self.send("", queue, body)

    def deliver(self, queue: str, body: bytes, identity: str, headers: Any = None) -> "Future[bool]":
        check_name(identity)
        self.send("", queue, body)
        done: Future[bool] = Future()
        done.set_result(True)
        return done

    def depth(self, queue: str) -> "Future[int]":
        depth: Future[int] = Future()
        depth.set_result(0)
        return depth

    def run(self, work: Coroutine[Any, Any, Any], timeout: float) -> None:
        with suppress(StopIteration):
            work.send(None)


@dataclass(frozen=True)
class Delivered:
    """A message as the broker delivers it."""

    body: bytes
    message_id: str | None
    headers: Mapping[str, Any]


IDS = (None, "", "fuzz-1", "fuzz-2", "fuzz-3", "other-1", "é" * 120, "\x1b[2J")
HEADERS: tuple[Mapping[str, Any], ...] = (
    {},
    {"run": RUN, "agent": "", "player": PLAYER},
    {"run": 5, "agent": None, "player": {"a": [1]}},
    {"run": RUN, "agent": "\x1b[2J", "player": "x" * 1000},
)


def delivered(each: Frame) -> Delivered:
    return Delivered(each.raw, IDS[each.envelope % 8], HEADERS[each.envelope // 8 % 4])


def in_envelope(message: wire.Message | bytes, identity: str | None = None, data: bool = False) -> Frame:
    """Return a message with the envelope in which it really comes; `data`: by the data_queue."""
    return frame(message, IDS.index(identity) + 8 + 32 * data)


def is_data(each: Frame) -> bool:
    return each.envelope // 32 % 2 == 1


def address() -> Address:
    return Address.parse("amqp://fuzz:secret@localhost/")


class Counting:
    """A learner that learns nothing, but whose weights have versions."""

    def __init__(self, weights: Weights) -> None:
        self.now = weights

    def weights(self) -> Weights:
        return self.now

    def learn(self, batch: list[Trajectory]) -> dict[str, float]:
        self.now = replace(self.now, version=self.now.version + 1)
        return {"loss": 0.0}

    def average_into(self, vector: Any, share: float) -> None:
        if not np.isfinite(vector).all():
            raise Finding("weights that are not finite reach a learner")


class Shown:
    """A listener that checks what a person would see."""

    def said(self, text: str) -> None:
        check_shown(text)

    def progress(self, row: Mapping[str, Any], executor: Any) -> None: ...

    def tested(self, result: Any, executor: Any) -> None: ...

    def updated(self, metrics: Any, executor: Any) -> None: ...

    def fault(self, report: Any, executor: Any) -> None:
        check_shown(f"{report.text}\n{report.traceback}")

    def lost(self, lost: Any, text: str) -> None:
        check_shown(text)

    def waiting(self, executor: Any) -> None: ...


class ExecutorSide:
    """An executor with one worker, orders under way and an executor that joined it."""

    def __init__(self) -> None:
        self.plan = small_plan()
        self.weights = self.plan.first_weights()
        self.console = Console(file=io.StringIO(), width=100)
        amqp.Link = QuietLink  # type: ignore[assignment, attr-defined]

    def seeds(self) -> list[list[Frame]]:
        task, schema = self.plan.task, self.plan.spec.schema
        one, two = (played(task, self.weights, shard) for shard in (0, 1))
        meta, arrays = payloads.pack_states({0: ShardState.fresh(task.layout).after(one)})
        settled = {**meta, **asdict(Settled("fuzz-1", "e", KEY))}
        report = Report(PLAYER, "laptop", "host", 12, 100, 2, 9.5, 1.0, 0.1, 0.0, 3, 0, ("fuzz-1",))
        other = replace(report, player="manyhands.player.i.1", worker="other", open=())
        verdict = wire.Message("eval_result", "", {"part": 0, "returns": [1.0], "lengths": [3]})
        fault = Fault("laptop", 0, 1, 2, 3, "Traceback\n  line\nValueError: x")
        words = Words(PLAYER, "something to say")
        mark = run_mark(RUN)
        gone = Gone("manyhands.player.h", "killed by signal 11", True, True, mark, 0, 1, 0)
        first = in_envelope(payloads.encode_trajectory(one, schema), "fuzz-1", data=True)
        second = in_envelope(payloads.encode_trajectory(two, schema), "fuzz-2", data=True)
        letters: list[wire.Message] = [
            report.to_message("hello"),
            report.to_message("report"),
            report.to_message("protocol"),
            other.to_message("report"),
            fault.to_message(),
            *(words.to_message(kind) for kind in ("notice", "refuse", "failed", "breach")),
            Unplayed(PLAYER, "fuzz-1", "out of turn").to_message("unplayed"),
            Wanted(PLAYER).to_message("wanted"),
            wire.Message("settled", "", settled, arrays),
            Held(("fuzz-1",), KEY).to_message("held"),
            Ended("solved", KEY).to_message("over"),
            Ask(PEER).to_message("ask"),
            Released(PLAYER, 0).to_message("released"),
            gone.to_message("gone"),
        ]
        return [
            *([in_envelope(letter)] for letter in letters),
            [first, second, first],
            [in_envelope(other.to_message("join")), in_envelope(Released(PLAYER, 1).to_message("released"))],
            [in_envelope(verdict, "fuzz-3")],
            [in_envelope(gone.to_message("gone")), in_envelope(report.to_message("join"))],
        ]

    def run(self, frames: Sequence[Frame]) -> None:
        config = self.plan.config
        channel = amqp.AmqpChannel(self.plan.task, address(), RUN, config)
        channel.executor = channel.tally.executor = "fuzz"
        channel.hearing.offer = wire.encode(wire.Message("offer"))
        channel.hearing.keys[PEER] = KEY
        learner: Any = Counting(self.weights)
        executor = Executor(
            config,
            self.plan.task.layout,
            channel,
            learner,
            None,
            Shown(),
            lambda executor: None,
            lambda weights: None,
        )
        channel._handle(("join", Report(PLAYER, "laptop", "host", 12), 0.0))
        executor.prepare()
        channel.order(EvalOrder(0, 0, 5, 0, 4))
        try:
            for each in frames:
                self._hear(channel, executor, each)
        except EnvError as error:  # an environment that broke its contract ends a run
            check_shown(str(error))

    def _hear(self, channel: amqp.AmqpChannel, executor: Executor, each: Frame) -> None:
        message: Any = delivered(each)
        if is_data(each):
            channel.hearing.hear_data(message, 1)
        else:
            channel.hearing.hear_meta(message)
        while not channel.hearing.arrivals.empty():
            channel._handle(channel.hearing.arrivals.get())
        channel.presence.probed = 0.0
        channel._look_after_players()
        while channel.events:
            executor.await_event()
        if (batch := executor._batch()) is not None:
            executor._learn(batch)
        statuses = channel.workers()
        for status in statuses:
            check_shown(status.name)
            check_shown(status.host)
        if {(status.name, status.host) for status in statuses} - {("laptop", "host"), ("other", "host")}:
            self.console.print(_worker_table(statuses, 1))  # which takes longer than all of the rest
        channel.worker_stats()


class FuzzedPlayer(amqp_worker.Player):
    """A player whose orders must not fail with any error but those of manyhands."""

    def _fail(self, session: Any, text: str) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, ManyhandsError):
            raise Finding(f"an order failed: {text:.200}") from error
        super()._fail(session, text)


class WorkerSide:
    """A player that plays for one run, and knows of one version of its weights."""

    def __init__(self) -> None:
        self.plan = small_plan()
        self.weights = self.plan.first_weights()
        # Waiting for weights that never come, and playing as much as somebody asks for, is no hang.
        amqp_session.WEIGHTS_TIMEOUT = -1.0
        orders.MAX_EPISODES = 10
        amqp_worker.Link = QuietLink  # type: ignore[assignment, attr-defined]

    def offer(self, epoch: str = "e.1") -> wire.Message:
        task = self.plan.task.to_message()
        return Offer(RUN, epoch, Limits(60.0, 1000), dict(task.meta)).to_message("offer")

    def seeds(self) -> list[list[Frame]]:
        task = self.plan.task
        state = ShardState.fresh(task.layout).after(played(task, self.weights, 0))
        order, later = Order(0, 0, 0).to_message(), Order(0, 1, NEWEST, state).to_message()
        trial = EvalOrder(0, 0, 5, 0, 2).to_message()
        first, second, test = (
            in_envelope(wire.Message(m.kind, "", {**m.meta, "order": f"fuzz-{i}", "run": RUN}, m.arrays))
            for i, m in enumerate((order, later, trial), 1)
        )
        release = in_envelope(Release(RUN, 0).to_message("release"))
        return [
            [in_envelope(self.offer("e.2"))],
            [first],
            [second],
            [test],
            [first, release, second],
            [in_envelope(payloads.encode_weights(replace(self.weights, version=1))), first],
            [in_envelope(Rejoin(RUN).to_message("rejoin")), first],
            [in_envelope(Finish(RUN, "solved").to_message("finish")), in_envelope(self.offer("e.3"))],
            [in_envelope(wire.Message("knock"))],
        ]

    def run(self, frames: Sequence[Frame]) -> None:
        said: list[str] = []
        player = FuzzedPlayer(
            address(), "fuzz", "manyhands.player.h", [], None, say=said.append, limits=OwnLimits(1, 4, 1)
        )
        player.inbox.name, player.generation = PLAYER, 1
        player._do(self.offer())
        player.sessions[RUN].hear_weights(wire.decode(payloads.encode_weights(self.weights)), "")
        try:
            for each in frames:
                message: Any = delivered(each)
                player.inbox.hear(message, 1)
                while not player.inbox.todo.empty():
                    self._do(player, player.inbox.todo.get()[1], said)
                for session in player.sessions.values():
                    report = replace(session.report_card, open=tuple(session.unanswered))
                    player.link.probe(session.names.meta_queue, wire.encode(report.to_message("report")))
        finally:
            for session in player.sessions.values():
                session.close()

    def _do(self, player: amqp_worker.Player, message: wire.Message, said: list[str]) -> None:
        try:
            player._do(message)
        except amqp_session.ConnectionReplacedError:
            return
        except WireError as error:
            said.append(str(error))


class JoinedSide:
    """An executor that joined a run, and that learns from what it accepts."""

    def __init__(self) -> None:
        self.plan = small_plan()
        self.weights = self.plan.first_weights()
        amqp_joined.Link = QuietLink  # type: ignore[assignment, attr-defined]

    def seeds(self) -> list[list[Frame]]:
        task, schema = self.plan.task, self.plan.spec.schema
        one, two = (payloads.encode_trajectory(played(task, self.weights, shard), schema) for shard in (0, 1))
        settings = RunSettings(RUN, yaml.safe_dump(self.plan.config.to_plain()), KEY)
        return [
            [in_envelope(settings.to_message("settings"))],
            [in_envelope(Finish(RUN, "solved").to_message("finish"))],
            [in_envelope(one, "fuzz-1", data=True), in_envelope(two, "fuzz-2", data=True)],
            [in_envelope(one, "fuzz-1", data=True), in_envelope(one, "fuzz-1", data=True)],
        ]

    def run(self, frames: Sequence[Frame]) -> None:
        channel = amqp_joined.JoinedChannel(address(), RUN)
        channel.inbox, channel.task, channel.asked = PEER, self.plan.task, time.monotonic()
        channel.publish(self.weights)
        for number, each in enumerate(frames):
            message: Any = delivered(each)
            if is_data(each):
                channel._hear_data(message, 1)
            else:
                channel._hear(message)
                if number == 0 and not channel.arrivals.empty():
                    self._configure(channel)
            while (event := channel.receive(0.0)) is not None:
                if isinstance(event, Trajectory):
                    channel.ack(event)
                else:
                    check_shown(getattr(event, "text", ""))
                    check_shown(getattr(event, "reason", ""))

    def _configure(self, channel: amqp_joined.JoinedChannel) -> None:
        """Read the settings only where they have come: for another message it would wait."""
        first = channel.arrivals.get()
        channel.arrivals.put(first)
        if first[0] == "settings":
            with suppress(UsageError, WireError):
                channel.config([])


class Talk:
    """The child's end of a connection on which the parent's messages are the frames."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self.left = [each.raw for each in frames]
        self.socket: Any = self

    def __enter__(self) -> "Talk":
        return self

    def setsockopt(self, *_: object) -> None: ...

    def send(self, raw: bytes) -> None:
        wire.decode(raw)

    def recv(self, timeout: float) -> bytes:
        if not self.left:
            raise ConnectionClosed(None, None)
        return self.left.pop(0)

    def close(self) -> None: ...


class ChildLink(child_link.Link):
    """A link that does not look for a lost parent by itself."""

    def _come_back(self) -> None: ...


def sent(weights: Weights, how: Format) -> dict[str, Array]:
    """As a parent and its children exchange weights."""
    return {**quantise(weights.vector, how), **payloads.beside_arrays(weights.beside)}


class ChildSide:
    """A child from its first message on: welcome, answers, and welcome again."""

    def __init__(self) -> None:
        self.plan = small_plan()
        self.weights = self.plan.first_weights()
        self.talk = Talk(())
        child_link.connect = lambda *_, **__: self.talk  # type: ignore[assignment, attr-defined]

    def welcome(self, averaging: AveragingConfig) -> Frame:
        spec = self.plan.spec
        meta = {
            "config": self.plan.config.to_plain(),
            "spec": spec.to_json(),
            "averaging": asdict(averaging),
            "version": 3,
        }
        arrays = {"vector": self.weights.vector, **payloads.beside_arrays(self.weights.beside)}
        return frame(wire.Message("welcome", spec.schema, meta, arrays))

    def seeds(self) -> list[list[Frame]]:
        schema = self.plan.spec.schema
        found = []
        for how in FORMATS:
            averaging = AveragingConfig(beta=0.5, format=how)
            answer = wire.Message("answer", schema, {"version": 4}, sent(self.weights, how))
            found.append([self.welcome(averaging), frame(answer), frame(answer)])
        again = frame(wire.Message("refused", "", {"why": "said nothing for too long", "again": True}))
        for_good = frame(wire.Message("refused", "", {"why": "its weights differ", "again": False}))
        first = found[0]
        return [*found, [for_good], [first[0], again, *first], [*first, for_good]]

    def run(self, frames: Sequence[Frame]) -> None:
        self.talk = Talk(frames)
        link = ChildLink("ws://parent:8765", "fuzz")
        link.said = check_shown
        try:
            welcome = link.join()
            own_config(welcome, 1, 0)
        except ManyhandsError as error:
            check_shown(str(error))
            return
        spec = self.plan.spec
        if welcome.spec.schema != spec.schema:
            return
        link.get_ready(spec)
        exchanger = Exchanger(link, spec, welcome.weights.version)
        learner: Any = Counting(self.weights)
        while self.talk.left and not link.refused and not link.over:
            if link.connection is None and not self._found_again(link):
                return
            before = len(self.talk.left)
            exchanger.after(learner, [])
            if link.connection is not None and len(self.talk.left) == before:
                return  # it was told to play for longer before it exchanges
        check_shown(link.refused)

    def _found_again(self, link: ChildLink) -> bool:
        try:
            connection, welcome = link._greet()
        except ManyhandsError as error:
            check_shown(str(error))
            return False
        return not link._go_on_with(connection, welcome) or not link.refused


class ServerTalk:
    """The parent's end of a connection on which the child's messages are given."""

    remote_address = ("127.0.0.1", 5)

    def __init__(self, raws: Sequence[bytes]) -> None:
        self.left = list(raws)
        self.code = 0
        self.max_message_size = HEADROOM
        self.protocol: Any = self
        self.transport: Any = self

    async def recv(self) -> bytes:
        if self.code:
            raise ConnectionClosed(None, Close(self.code, ""))
        if not self.left:
            raise ConnectionClosed(None, None)
        raw = self.left.pop(0)
        if len(raw) > self.max_message_size:
            raise ConnectionClosed(None, Close(1009, ""))
        return raw

    async def send(self, raw: bytes) -> None:
        if self.code:
            raise ConnectionClosed(None, Close(self.code, ""))
        message = wire.decode(raw)
        if not all(np.isfinite(array).all() for array in message.arrays.values()):
            raise Finding("a parent sends weights that are not finite")
        check_shown(message.meta.get("why", ""))

    async def close(self, code: int = 1000) -> None:
        self.code = code

    def abort(self) -> None: ...


class ParentSide:
    """A parent that gets a connection: at its hello, when the child gets ready, or when it exchanges."""

    def __init__(self) -> None:
        self.plan = small_plan()
        self.weights = self.plan.first_weights()
        self.loop = asyncio.new_event_loop()
        self.complaints: list[str] = []
        self.loop.set_exception_handler(lambda loop, context: self.complaints.append(str(context)))

    def hello(self) -> Frame:
        meta = {"protocol": PROTOCOL, "name": "fuzz", "token": "secret", "life": "1"}
        return frame(wire.Message("hello", "", meta))

    def ready(self, envelope: int = 0) -> Frame:
        spec = self.plan.spec
        return frame(wire.Message("ready", spec.schema, structure(spec, FORMATS[envelope % 3])), envelope)

    def seeds(self) -> list[list[Frame]]:
        found: list[list[Frame]] = []
        facts = {"base": 0, "steps": 100, "episodes": 3, "round_trip": 0.1, "recent": 12.5}
        for envelope, how in enumerate(FORMATS):
            arrays = sent(self.weights, how)
            exchange = frame(wire.Message("exchange", self.plan.spec.schema, facts, arrays), envelope)
            hello, ready = replace(self.hello(), envelope=envelope), self.ready(envelope)
            found.append([hello, ready, exchange])
            found.append([replace(exchange, envelope=envelope + 3), exchange, exchange])
            found.append([replace(ready, envelope=envelope + 6), exchange, frame(wire.Message("end"))])
        return found

    def run(self, frames: Sequence[Frame]) -> None:
        """Run the frames; the first envelope says which format to use, and how far the talk has come."""
        first = frames[0].envelope if frames else 0
        how = FORMATS[first % 3]
        before = {0: [], 1: [self.hello(), self.ready(first)], 2: [self.hello()]}[first // 3 % 3]
        averaging = AveragingConfig(alpha=0.5, exchanges=4, format=how)
        config, spec = self.plan.config, self.plan.spec
        parent = Parent(averaging, config, spec, self.weights, "secret", 5.0, check_shown)
        talk: Any = ServerTalk([each.raw for each in (*before, *frames)])
        self.loop.run_until_complete(parent._meet(talk))
        if parent.failure is not None:
            raise parent.failure
        if self.complaints:
            raise Finding(self.complaints.pop())
        if parent.connections or parent.admission.strangers:
            raise Finding("a connection that is over is still counted")
        if not np.isfinite(parent.numbers).all():
            raise Finding("a parent's weights are not finite")
        stats = ParentStats(parent.children, Forgotten())
        written = wire.encode(wire.Message("checkpoint", "", stats.to_plain()))
        ParentStats.read(wire.decode(written).meta)


class Settings:
    """A file of settings, or those of a run that is joined: read, or refused with UsageError."""

    def seeds(self) -> list[list[Frame]]:
        texts = [
            "run: {algo: ppo, workers: 2, mode: async, seed: 1, solved_at: ~}\nalgo: {learning_rate: 3e-4}",
            "run: {algo: dqn}\nalgo: {batch: 32, epsilon: 0.1, double: true}\nnet: {hidden: [4, 4]}",
            "run: {algo: a3c, until: steps}\nalgo: {optimizer: adam, gamma: 0.9}",
            "run: {algo: clone}",
            "env: {id: CartPole-v1, kwargs: {max_episode_steps: 100}}\nnet: &a {activation: relu}",
            "collect:\n  lanes: 4\n  shards: 2\n  random: 0.5\n",
            "env.kwargs={a: 1}",
        ]
        return [[Frame(3 * (text[:4] == "env."), text.encode())] for text in texts]

    def run(self, frames: Sequence[Frame]) -> None:
        for each in frames[:2]:
            try:
                self._read(each)
            except UsageError as error:
                check_shown(one_line(" ".join(str(error).split())))

    def _read(self, each: Frame) -> None:
        if each.envelope % 4 == 3:
            parse_override(each.raw.decode(errors="replace"))
        plain = plain_yaml.parse_yaml(each.raw, "the settings")
        if not isinstance(plain, dict):
            return
        config = Config.from_plain(plain)
        written: Any = config.to_plain()
        if each.envelope % 4 == 2:  # which takes longer than all of the rest
            written = plain_yaml.parse_yaml(yaml.safe_dump(written), "the settings")
        if Config.from_plain(written) != config:
            raise Finding(f"settings are others after they are written and read: {config}"[:300])
        if each.envelope % 4 == 1:
            resolve("CartPole-v1", overrides=(plain,))


TARGETS: dict[str, type[Target]] = {
    "wire": Wire,
    "orders": Orders,
    "executor": ExecutorSide,
    "worker": WorkerSide,
    "joined": JoinedSide,
    "child": ChildSide,
    "parent": ParentSide,
    "settings": Settings,
}
