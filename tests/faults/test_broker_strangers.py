"""At one broker: neighbours that crash, messages that vanish or are forged, runs that ask too much."""

import asyncio
import hashlib
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aio_pika
import numpy as np
import pytest
from brokers import Workers, broker, wait_for

from manyhands.channels.amqp.address import Address
from manyhands.channels.amqp.executor import AmqpChannel
from manyhands.channels.amqp.hearing import Hearing
from manyhands.channels.amqp.messages import (
    TO_EXECUTORS,
    TO_WORKERS,
    Ended,
    Gone,
    Limits,
    Names,
    Offer,
    Report,
)
from manyhands.config.resolve import merge
from manyhands.config.settings import Config
from manyhands.core import payloads, wire
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import EnvError
from manyhands.core.events import Fault, Notice, RunEnded, WorkerLost
from manyhands.core.heartbeat import run_mark
from manyhands.core.orders import Order
from manyhands.core.weights import Weights
from manyhands.roles.broker import Broker
from manyhands.runs.open_channel import broker_name
from manyhands.runs.plan import plan
from manyhands.runs.store import LAST, Run
from manyhands.runs.training import train
from manyhands.runs.view import View

SMALL: dict[str, Any] = {
    "env": {"id": "small_envs:Slow", "kwargs": {"delay": 0.0005}},
    "collect": {"shards": 2, "lanes": 4, "steps": 32},
    "algo": {"minibatch": 64, "epochs": 1},
    "run": {"steps": 6144, "until": "steps", "workers": 0, "mode": "sync", "seed": 3, "test_episodes": 1},
}


class Listener(View):
    """Keeps what a run says, and may do something at every update."""

    def __init__(self, act: Any = lambda steps: None) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []
        self.act = act

    def said(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, row: Any, executor: Any) -> None:
        self.act(executor.counts.steps)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def digest(run: Run) -> str:
    return hashlib.sha256(run.checkpoint(LAST).weights.vector.tobytes()).hexdigest()


@cache
def undisturbed() -> str:
    with TemporaryDirectory() as temporary:
        return digest(train(Config.from_plain(SMALL), directory=Path(temporary) / "run"))


def at_broker(*works: Any) -> list[Any]:
    """Does things at the broker as anyone with its password could."""

    async def all_of_them() -> list[Any]:
        connection = await aio_pika.connect(broker().url)
        async with connection:
            channel = await connection.channel()
            return [await work(channel) for work in works]

    return asyncio.run(all_of_them())


def publish(exchange: str, key: str, message: wire.Message) -> None:
    async def send(channel: Any) -> None:
        target = await channel.get_exchange(exchange) if exchange else channel.default_exchange
        await target.publish(aio_pika.Message(wire.encode(message)), key)

    at_broker(send)


def purge(queue: str) -> int:
    async def empty(channel: Any) -> int:
        found = await channel.get_queue(queue, ensure=False)
        return int((await found.purge()).message_count or 0)

    return int(at_broker(empty)[0])


@pytest.mark.parametrize("procs", [1, 3])
def test_a_neighbour_that_crashes_costs_an_innocent_run_no_bit_and_no_fault(
    tmp_path: Path, procs: int
) -> None:
    """The innocent run had been ended by its neighbour's crashes, or had other weights."""
    fatal = merge(
        SMALL, {"env": {"id": "small_envs:Fatal", "kwargs": {"every": 3}}, "run": {"max_faults": 8}}
    )
    fatal["env"]["kwargs"] = {"every": 3}

    def crash() -> None:
        with pytest.raises(EnvError, match="max_faults"):
            train(
                Config.from_plain(fatal), directory=tmp_path / "fatal", channel=broker().url, view=Listener()
            )

    with Workers(broker().url, procs):
        neighbour = threading.Thread(target=crash)
        neighbour.start()
        view = Listener()
        run = train(
            Config.from_plain(SMALL), directory=tmp_path / "innocent", channel=broker().url, view=view
        )
        neighbour.join(120)
    assert run.status()["faults"] == 0
    assert digest(run) == undisturbed()


def test_an_environment_that_cannot_even_be_made_is_refused_and_the_worker_stays(tmp_path: Path) -> None:
    offered = offer(EnvConfig("small_envs:Unmakeable"))
    with Workers(broker().url, 1):
        stop = threading.Event()
        thread = threading.Thread(target=lambda: repeat(stop, TO_WORKERS, offered.to_message("offer")))
        thread.start()
        run = train(
            Config.from_plain(SMALL), directory=tmp_path / "run", channel=broker().url, view=Listener()
        )
        stop.set()
        thread.join()
    assert digest(run) == undisturbed()


def repeat(stop: threading.Event, exchange: str, message: wire.Message) -> None:
    while not stop.wait(0.3):
        publish(exchange, "", message)


@pytest.mark.parametrize("what", ["trajectory", "eval_result", "join", "released", "report"])
def test_what_vanishes_at_the_broker_is_asked_for_again_and_changes_no_bit(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an operator's purge: the first few messages of a kind are never heard."""
    vanished: list[str] = []
    hear_data, hear_letter = Hearing.hear_data, Hearing.hear_letter

    def data(self: Hearing, message: Any, generation: int) -> None:
        if what == "trajectory" and len(vanished) < 2:
            vanished.append(what)
            self.link.acknowledge(message, generation)
        else:
            hear_data(self, message, generation)

    def letter(self: Hearing, heard: wire.Message, identity: str | None) -> None:
        if heard.kind == what and len(vanished) < 2:
            vanished.append(what)
        else:
            hear_letter(self, heard, identity)

    monkeypatch.setattr(Hearing, "hear_data", data)
    monkeypatch.setattr(Hearing, "hear_letter", letter)
    view = Listener()
    with Workers(broker().url, 1):
        late: list[Workers] = []

        def join_late(steps: int) -> None:
            if not late:
                late.append(Workers(broker().url, 1))  # so that a shard is released

        view.act = join_late
        run = train(Config.from_plain(SMALL), directory=tmp_path / "run", channel=broker().url, view=view)
        for workers in late:
            workers.stop()
    assert len(vanished) == 2 or what in ("eval_result", "released")
    assert vanished
    assert digest(run) == undisturbed()


def test_a_purge_stalls_nothing(tmp_path: Path) -> None:
    names = Names(broker_name(tmp_path / "run"))
    stop = threading.Event()

    def purge_often() -> None:
        with suppress(aio_pika.exceptions.AMQPException):
            while not stop.wait(0.05):
                purge(names.data_queue)
                purge(names.meta_queue)

    thread = threading.Thread(target=purge_often)
    view = Listener(lambda steps: thread.start() if thread.ident is None else None)
    with Workers(broker().url, 2):
        run = train(Config.from_plain(SMALL), directory=tmp_path / "run", channel=broker().url, view=view)
    stop.set()
    thread.join()
    assert digest(run) == undisturbed()


@pytest.fixture
def channel() -> Iterator[AmqpChannel]:
    made = plan(Config.from_plain(SMALL))
    opened = AmqpChannel(made.task, Address.parse(broker().url), f"test-{uuid.uuid4().hex}", made.config)
    opened.publish(Weights(0, made.spec.initial_vector(0), made.spec.schema))
    yield opened
    opened.finish("the test is over")


def events_of(channel: AmqpChannel, seconds: float = 1.5) -> list[Any]:
    found, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        event = channel.receive(0.1)
        if event is not None:
            found.append(event)
    return found


def test_a_trajectory_that_vanishes_is_ordered_again(channel: AmqpChannel) -> None:
    """Its order is open, and no player has it: after a few reports it is given back."""
    with Workers(broker().url, 1):
        wait_for(lambda: channel.receive(0.1) is None and bool(channel.presence.players.known))
        player = next(iter(channel.presence.players.known.values()))
        order = Order(0, 0, 0)
        identity = f"{channel.executor}-lost"
        channel.presence.players.give(order, identity)  # the message itself never leaves
        lost: list[WorkerLost] = []

        def given_back() -> bool:
            event = channel.receive(0.1)
            lost.extend([event] if isinstance(event, WorkerLost) else [])
            return bool(lost)

        wait_for(given_back, 20)
    assert lost[0].orders == (order,)
    assert not lost[0].fault
    assert "got lost" in lost[0].reason
    assert identity not in player.orders


def test_the_end_of_a_run_is_taken_from_its_executors_alone(channel: AmqpChannel) -> None:
    publish("", channel.names.meta_queue, Ended("I say so", "no key").to_message("over"))
    publish("", channel.names.meta_queue, wire.Message("over", "", {"reason": "I say so"}))
    assert not any(isinstance(event, RunEnded) for event in events_of(channel))
    assert channel.tally.counts.foreign == 2
    channel.hearing.keys["manyhands.executor.joined"] = "known"
    publish("", channel.names.meta_queue, Ended("solved", "known").to_message("over"))
    assert any(isinstance(event, RunEnded) for event in events_of(channel))


@pytest.mark.parametrize(
    "message",
    [
        wire.Message("settled", "", {"order": "x", "agent": "a", "key": "k", "shards": []}),
        wire.Message("settled", "", {"order": "x", "agent": "a", "key": "k"}),
        wire.Message("gone", "", {"process": "manyhands.player.a", "lane": float("inf")}),
        wire.Message("released", "", {"player": "manyhands.player.a", "shard": float("inf")}),
        wire.Message("released", "", {"player": "manyhands.player.a", "shard": 2**70}),
        wire.Message("released", "", {"player": "amq.direct", "shard": 1}),
        wire.Message(
            "hello", "", {"player": "manyhands.other.data_queue", "worker": "", "host": "", "process": 1}
        ),
        wire.Message(
            "report", "", {"player": "manyhands.player.a", "worker": "w", "host": "h", "process": True}
        ),
        wire.Message("report", "", {"player": "manyhands.player.a", "steps": float("nan")}),
        wire.Message("eval_result", "", {"part": 0, "returns": [], "lengths": []}),
        wire.Message("eval_result", "", {"part": 0, "returns": [1.0], "lengths": [-3]}),
        wire.Message(
            "fault", "", {"worker": ["a"], "shard": 0, "lane": 0, "episode": 0, "seed": 0, "text": ""}
        ),
        wire.Message("ask", "", {"inbox": "manyhands.other.meta_queue"}),
        wire.Message("notice", "", {"player": "manyhands.player.a"}),
        wire.Message("no such kind", "", {}),
    ],
    ids=lambda message: f"{message.kind}-{hashlib.sha256(repr(message).encode()).hexdigest()[:4]}",
)
def test_a_message_that_makes_no_sense_is_counted_like_any_other(
    channel: AmqpChannel, message: wire.Message, caplog: pytest.LogCaptureFixture
) -> None:
    packed = {n: v for n, v in message.meta.items() if not (isinstance(v, int) and abs(v) >= 2**64)}
    publish("", channel.names.meta_queue, replace(message, meta=packed))
    wait_for(lambda: bool(events_of(channel, 0.3)) or channel.tally.counts.foreign > 0, 10)
    assert channel.tally.counts.foreign == 1
    assert not caplog.records


def test_escape_sequences_of_others_reach_nobody(channel: AmqpChannel) -> None:
    nasty = "\x1b[2J\x1b]0;owned\x07 one\ntwo\u202e\u2028"
    player = f"manyhands.player.{nasty}.1-0.1"
    publish("", channel.names.meta_queue, wire.Message("notice", "", {"player": player, "text": nasty}))
    publish("", channel.names.meta_queue, Fault(nasty, 0, 0, 0, 0, nasty).to_message())
    publish("", channel.names.meta_queue, wire.Message(nasty, "", {}))
    gone = Gone("manyhands.player.a", nasty, False, True, run_mark(channel.names.run), 0, 0, 0)
    publish(TO_EXECUTORS, "", gone.to_message("gone"))
    found = events_of(channel)
    assert len(found) >= 3
    for event in found:
        for text in asdict(event).values():
            if isinstance(text, str):
                assert all(line.isprintable() for line in text.split("\n"))
        if isinstance(event, Notice):
            assert "\n" not in event.text


def test_a_death_counts_for_the_run_that_was_played(channel: AmqpChannel) -> None:
    player = Report("manyhands.player.w.1-0.1", "w", "host", 1)
    for run, fault in ((0, False), (run_mark("another"), False), (run_mark(channel.names.run), True)):
        channel._join(player)
        channel.order(Order(0, 0, 0))
        gone = Gone("manyhands.player.w.1-0", "ended by SIGSEGV", True, True, run, 0, 1, 7)
        channel.presence.take_gone(gone)
        lost = next(event for event in channel.events if isinstance(event, WorkerLost))
        channel.events.clear()
        channel.presence.players.waiting.clear()
        assert lost.fault == fault
        assert (lost.crash_site is not None) == fault


def test_a_bit_that_flips_in_weights_is_noticed_and_the_weights_are_sent_again(channel: AmqpChannel) -> None:
    with Workers(broker().url, 1):
        wait_for(lambda: channel.receive(0.1) is None and bool(channel.presence.players.known))
        player = next(iter(channel.presence.players.known))
        good = channel.hearing.published.find(0)
        weights = payloads.decode_weights(good, channel.task.spec)
        damaged = bytearray(payloads.encode_weights(replace(weights, version=1)))
        damaged[len(damaged) // 2] ^= 1
        channel.hearing.published.add(1, payloads.encode_weights(replace(weights, version=1)))
        channel.link.send("", player, bytes(damaged), headers={"run": channel.names.run})
        channel.order(Order(0, 0, 1))
        texts: list[str] = []
        for event in iter(lambda: channel.receive(5.0), None):
            if isinstance(event, Notice):
                texts.append(event.text)
            if not isinstance(event, Notice):
                break
        assert event.version == 1
        channel.ack(event)
    assert any("checksum" in text for text in texts)


def offer(env: EnvConfig, **changes: Any) -> Offer:
    made = plan(Config.from_plain(merge(SMALL, {"env": {"id": "small_envs:Chain", "kwargs": {}}})))
    task = replace(made.task, env=env, layout=replace(made.task.layout, **changes))
    name = f"forged-{uuid.uuid4().hex}"
    return Offer(name, uuid.uuid4().hex, Limits(60.0, 1000), dict(task.to_message().meta))


@pytest.mark.parametrize(
    ("env", "changes", "said"),
    [
        (EnvConfig("small_envs:os.system", {"command": "touch MARK"}), {}, "without dots"),
        (EnvConfig("small_envs:time.sleep", {"seconds": 1}), {}, "without dots"),
        (EnvConfig("small_envs:Chain", {"length": 3, "evil": "MARK"}), {}, "no argument 'evil'"),
        (EnvConfig("os:system", {"command": "touch MARK"}), {}, "is not allowed here"),
        (EnvConfig("small_envs:Chain"), {"lanes": 10**6}, "--max-lanes allows 4,096"),
        (EnvConfig("small_envs:Chain"), {"steps": 10**8}, "--max-message allows"),
    ],
)
def test_a_forged_offer_is_refused_by_name_before_anything_is_made(
    tmp_path: Path, env: EnvConfig, changes: dict[str, Any], said: str
) -> None:
    mark = tmp_path / "mark"
    kwargs = {
        name: str(v).replace("MARK", str(mark)) if isinstance(v, str) else v for name, v in env.kwargs.items()
    }
    forged = offer(replace(env, kwargs=kwargs), **changes)
    heard: list[str] = []

    async def listen(channel: Any) -> None:
        queue = await channel.declare_queue(Names(forged.run).meta_queue, auto_delete=True)
        deadline = time.monotonic() + 20
        target = await channel.declare_exchange(TO_WORKERS, aio_pika.ExchangeType.FANOUT, durable=True)
        while time.monotonic() < deadline and not heard:
            await target.publish(aio_pika.Message(wire.encode(forged.to_message("offer"))), "")
            message = await queue.get(no_ack=True, fail=False)
            if message is not None:
                heard.append(str(wire.decode(message.body).meta.get("text")))
            await asyncio.sleep(0.2)

    with Workers(broker().url, 1):
        at_broker(listen)
    assert said in heard[0]
    assert not mark.exists()


def test_the_sums_add_up_after_kills(tmp_path: Path) -> None:
    with Workers(broker().url, 3) as workers:
        killed: list[int] = []

        def kill(steps: int) -> None:
            if steps >= 1500 * (len(killed) + 1) and len(killed) < 3:
                victim = workers.players()[0]
                killed.append(victim)
                os.kill(victim, signal.SIGKILL)

        view = Listener(kill)
        run = train(Config.from_plain(SMALL), directory=tmp_path / "run", channel=broker().url, view=view)
    books = json.loads((run.path / "workers.json").read_text())
    counts = books["trajectories"]
    assert len(killed) == 3
    assert counts["sent"] + counts["earlier"] == counts["received"] + counts["unread"] + counts["shared"]
    assert counts["received"] == counts["accepted"] + counts["dropped"]
    assert counts["accepted"] == counts["acknowledged"] + 2  # the last batch's successors were not learned
    assert digest(run) == undisturbed()
    assert np.isfinite(run.checkpoint(LAST).weights.vector).all()


def test_a_player_that_somebody_kills_is_back_at_once() -> None:
    """Waiting longer and longer is for what fails by itself."""
    with Workers(broker().url, 1) as workers:
        for _ in range(4):
            wait_for(lambda: len(workers.players()) == 1)
            time.sleep(1.5)  # until the broker has taken it
            victim = workers.players()[0]
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda victim=victim: workers.players() not in ([], [victim]), 1.5)


def test_an_executor_waits_for_a_broker_that_is_not_there_yet(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    node = Broker()  # it has a port, and is not started
    later = threading.Timer(3.0, node.start)
    later.start()
    try:
        with Workers(node.url, 1):
            run = train(
                Config.from_plain(SMALL), directory=tmp_path / "run", channel=node.url, view=Listener()
            )
    finally:
        later.join()
        node.stop()
    assert "no broker answers" in capfd.readouterr().err
    assert digest(run) == undisturbed()
