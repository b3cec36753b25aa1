"""What only the channel over RabbitMQ owes: clear words, bounded queues, nothing twice, several runs."""

import asyncio
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import numpy as np
import pytest
import torch  # noqa: F401  (two threads that import it at once break it)
from brokers import TESTS, Workers, broker, wait_for
from certificates import self_signed

import manyhands
from manyhands.channels.amqp.address import Address
from manyhands.channels.amqp.connection import BrokerError, Link
from manyhands.channels.amqp.executor import AmqpChannel
from manyhands.channels.amqp.joined import JoinedChannel
from manyhands.channels.amqp.messages import TO_EXECUTORS, TO_WORKERS, Names
from manyhands.config.resolve import merge, resolve
from manyhands.config.settings import Config
from manyhands.core import payloads, wire
from manyhands.core.errors import EnvError, RunError, UsageError
from manyhands.core.events import LearnedElsewhere, Notice, WorkerLost
from manyhands.core.orders import EvalOrder, Order
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.roles.broker import Broker
from manyhands.runs.launch import continue_config
from manyhands.runs.open_channel import broker_name
from manyhands.runs.plan import Plan, plan
from manyhands.runs.store import Run
from manyhands.runs.training import train
from manyhands.runs.view import View

SHARDS = 2
SMALL: dict[str, Any] = {
    "env": {"id": "small_envs:Chain"},
    "collect": {"shards": SHARDS, "lanes": 2, "steps": 16},
    "run": {"seed": 5, "steps": 2048, "until": "steps", "test_episodes": 4},
}


async def nothing(link: Link) -> None:
    """No queues needed."""


def planned() -> Plan:
    return plan(Config.from_plain(SMALL))


@pytest.fixture
def channel() -> Iterator[AmqpChannel]:
    made = planned()
    opened = AmqpChannel(made.task, Address.parse(broker().url), f"test-{uuid.uuid4().hex}", made.config)
    opened.publish(Weights(0, made.spec.initial_vector(0), made.spec.schema))
    yield opened
    opened.finish("the test is over")


def publish(exchange: str, key: str, *bodies: bytes, identity: str = "") -> None:
    """As anyone with the password could."""

    async def send() -> None:
        connection = await aio_pika.connect(broker().url)
        async with connection:
            made = await connection.channel()
            target = made.default_exchange
            if exchange:
                target = await made.get_exchange(exchange)
            for body in bodies:
                await target.publish(aio_pika.Message(body, message_id=identity), key)

    asyncio.run(send())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://host", "amqp://guest@host:5672/"),
        ("amqp://ann:secret@host:99/farm", "amqp://ann@host:99/farm"),
        ("amqps://ann:se%2Fcret@host/?ca=my.pem", "amqps://ann@host:5671/"),
    ],
)
def test_an_address_is_read_and_never_shown_with_its_password(text: str, shown: str) -> None:
    address = Address.parse(text)
    assert str(address) == shown
    assert "secret" not in repr(address)


@pytest.mark.parametrize("text", ["", "host", "http://host", "amqp://", "amqp://host:port", "amqp://h?x=1"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="amqp://user:password@host:5672/"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("amqp://ann:secret@host:many/", "its port is 'many'"),
        ("amqp://host:99999/", "its port is '99999'"),
        ("amqp://ann:secret@host/?heartbeat=5", r"it has \?heartbeat$"),
        ("amqp://ann:secret@host/?ca=", r"it has \?ca$"),
        ("amqp://ann:se/cret@host/", "password@host"),
        ("amqp://ann:12?secret@host/", "password@host"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_without_its_password(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        Address.parse(text)
    assert not any(part in str(refused.value) for part in ("secret", "se/", "cret", "'se'"))


def refusal(url: str) -> str:
    link = Link(Address.parse(url), nothing, 1)
    try:
        with pytest.raises(BrokerError) as refused:
            link.start()
    finally:
        link.close()
    return str(refused.value)


def test_a_broker_that_is_not_there_is_said() -> None:
    said = refusal("amqp://127.0.0.1:1/")
    assert said == "amqp://guest@127.0.0.1:1/: no broker answers (nothing listens on this port)"
    assert "there is no host of this name" in refusal("amqp://no-such-host.invalid/")


def test_a_worker_says_what_it_waits_for_and_how_to_end_it() -> None:
    url = "amqp://guest@127.0.0.1:1/"
    process = subprocess.Popen(
        [sys.executable, "-m", "manyhands", "worker", url, "--procs", "1", "--name", "anna"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"anna: 1 process waits for runs at {url}\n"
        said = f"{url}: no broker answers (nothing listens on this port); waiting for it; Ctrl-C ends"
        assert process.stdout.readline().rstrip().endswith(said)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_a_wrong_password_is_said_without_it() -> None:
    node = broker()
    said = refusal(node.url.replace(node.password, "wrong-password"))
    assert "refuses this user or password" in said
    assert "wrong-password" not in said


def test_a_port_that_is_taken_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Address already in use; choose another --port"):
        Broker(port=broker().port, directory=tmp_path / "second").start()
    assert not (tmp_path / "second").exists()
    with pytest.raises(UsageError, match="between 0 and 65535"):
        Broker(port=99_999)


def test_a_broker_does_not_outlive_whoever_started_it_and_keeps_its_password(tmp_path: Path) -> None:
    words = ["broker", "--port", "0", "--dir", str(tmp_path / "kept")]
    process = subprocess.Popen([sys.executable, "-m", "manyhands", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = next(line.strip() for line in process.stdout if "amqp://" in line)
    finally:
        process.kill()
        process.communicate()
    address = Address.parse(url)
    wait_for(lambda: "no broker answers" in refusal(url))
    with Broker(port=address.port, directory=tmp_path / "kept") as again:
        assert again.url == url


def test_a_wrong_virtual_host_is_said() -> None:
    assert "no virtual host 'nowhere'" in refusal(broker().url + "nowhere")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


def test_tls_with_an_own_authority_works_and_without_it_is_refused(certificate: tuple[Path, Path]) -> None:
    with Broker(certificate=certificate[0], key=certificate[1]) as node:
        link = Link(Address.parse(f"{node.url}?ca={certificate[0]}"), nothing, 1)
        link.start()
        link.close()
        assert "certificate is not trusted" in refusal(node.url)
        assert "no broker answers" in refusal(node.url.replace("amqps", "amqp"))
    assert "no TLS there" in refusal(broker().url.replace("amqp", "amqps"))
    with pytest.raises(UsageError, match="cannot read the certificate authority"):
        Link(Address.parse("amqps://host/?ca=missing.pem"), nothing, 1)


@pytest.mark.parametrize("words", [["worker"], ["train", "CartPole-v1", "--channel"]])
def test_commands_end_with_one_line_and_leave_nothing(words: list[str], tmp_path: Path) -> None:
    node = broker()
    url = node.url.replace(node.password, "wrong-password")
    command = [sys.executable, "-m", "manyhands", *words, url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "refuses this user or password" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*"))


def test_a_full_queue_makes_its_publisher_wait() -> None:
    name = f"test-{uuid.uuid4().hex}"

    async def declare(link: Link) -> None:
        arguments: Any = {"x-max-length": 2, "x-overflow": "reject-publish"}
        await link.orderly.declare_queue(name, durable=True, arguments=arguments)

    link = Link(Address.parse(broker().url), declare, 1)
    link.start()
    try:
        sent = [link.deliver(name, b"x", str(i)) for i in range(3)]
        wait_for(lambda: sum(future.done() for future in sent) == 2)
        time.sleep(0.3)
        assert sum(future.done() for future in sent) == 2
        assert link.depth(name).result(5) == 2

        async def take() -> None:
            queue = await link.orderly.get_queue(name, ensure=False)
            await queue.get(no_ack=True)

        link.run(take(), 5)
        assert all(future.result(5) for future in sent)
        assert link.deliver("no-such-queue", b"x", "x").result(5) is False
    finally:
        link.run(link.orderly.queue_delete(name), 5)
        link.close()


def foreign_messages() -> list[bytes]:
    rng = np.random.default_rng(1)
    made = planned()
    weights = payloads.encode_weights(Weights(0, made.spec.initial_vector(0), "another schema"))
    arrays = {"obs": np.full((2, 2), np.nan, np.float32)}
    nan = wire.encode(wire.Message("trajectory", made.spec.schema, {"shard": 0}, arrays))
    odd = wire.encode(wire.Message("join", "", {"player": 7}))
    order = wire.encode(wire.Message("order", "", {"run": "another", "order": "x"}))
    bare = wire.encode(wire.Message("order", "", {}))
    return [b"", rng.bytes(100), weights, weights[:50], nan, odd, order, bare]


def test_foreign_messages_on_every_queue_are_counted_and_stop_nothing(channel: AmqpChannel) -> None:
    names = channel.names
    bad = foreign_messages()
    publish("", names.data_queue, *bad[:3], identity="")
    publish("", names.meta_queue, *bad[:6])
    with Workers(broker().url, 1):
        channel.order(Order(0, 0, 0))
        first = next_trajectory(channel)
        channel.ack(first)
        for exchange in (names.meta_exchange, names.model_exchange, TO_WORKERS, TO_EXECUTORS):
            publish(exchange, "", *bad)
        publish("", names.data_queue, *bad[3:5])
        # A trajectory of ours that nobody ordered.
        stray = payloads.encode_trajectory(first, channel.task.spec.schema)
        publish("", names.data_queue, stray, identity="another-executor-1")
        channel.order(Order(0, 1, 0))
        channel.ack(next_trajectory(channel))
        wait_for(lambda: drained(channel) and channel.tally.counts.dropped == 1)
    assert channel.tally.counts.foreign >= 10
    assert channel.tally.counts.accepted == channel.tally.counts.acknowledged == 2


def drained(channel: AmqpChannel) -> bool:
    return channel.receive(0.1) is None


def next_trajectory(channel: AmqpChannel) -> Trajectory:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        event = channel.receive(1.0)
        if isinstance(event, Trajectory):
            return event
        assert event is None or isinstance(event, Notice), event
    raise AssertionError("nothing came")


def test_what_a_new_connection_brings_again_is_not_learned_twice(channel: AmqpChannel) -> None:
    with Workers(broker().url, 1):
        channel.order(Order(0, 0, 0))
        first = next_trajectory(channel)
        reconnect(channel.link)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert not isinstance(channel.receive(0.2), Trajectory)
        channel.ack(first)
        wait_for(lambda: drained(channel) and channel.link.depth(channel.names.data_queue).result(5) == 0)
    assert channel.tally.counts.accepted == 1


def next_lost(channel: AmqpChannel) -> WorkerLost:
    found: list[WorkerLost] = []

    def lost() -> bool:
        event = channel.receive(0.1)
        found.extend([event] if isinstance(event, WorkerLost) else [])
        return bool(found)

    wait_for(lost)
    return found[0]


def test_an_order_that_no_player_can_follow_comes_back_instead_of_being_waited_for(
    channel: AmqpChannel,
) -> None:
    with Workers(broker().url, 1):
        channel.order(Order(0, 7, 0))  # without a word of where shard 0 stands
        lost = next_lost(channel)
        assert lost.reason == "shard 0 stands at 0, not 7"
        assert (lost.shards, lost.orders) == ((0,), (Order(0, 7, 0),))
        channel.order(Order(0, 0, 0))
        channel.ack(next_trajectory(channel))


def test_a_test_that_an_environment_spoils_ends_the_run(tmp_path: Path) -> None:
    kwargs = {"how": "reward-text", "marker": str(tmp_path / "marker"), "always": True, "after": 1}
    made = plan(Config.from_plain(merge(SMALL, {"env": {"id": "small_envs:Failing", "kwargs": kwargs}})))
    opened = AmqpChannel(made.task, Address.parse(broker().url), f"test-{uuid.uuid4().hex}", made.config)
    opened.publish(Weights(0, made.spec.initial_vector(0), made.spec.schema))
    eval_order = EvalOrder(0, 0, 0, 0, 4)
    with Workers(broker().url, 1):
        opened.order(eval_order)
        with pytest.raises(EnvError, match="its reward is 'much'"):
            next_lost(opened)
        opened.finish("the test is over")


def reconnect(link: Link) -> None:
    generation = link.generation
    link.loop.call_soon_threadsafe(link.lost.set)
    wait_for(lambda: link.generation > generation and link.up.is_set())


def test_what_an_executor_that_joined_has_learned_is_told_whatever_happens_to_its_connection(
    channel: AmqpChannel,
) -> None:
    made = planned()
    other = JoinedChannel(Address.parse(broker().url), channel.names.run)
    other.publish(Weights(0, made.spec.initial_vector(0), made.spec.schema))
    other.start(made.task, SHARDS)
    try:
        with Workers(broker().url, 1):
            reconnect(other.link)
            orders = {(shard, sequence) for sequence in (0, 1) for shard in range(SHARDS)}
            for shard, sequence in sorted(orders, key=lambda order: order[1]):
                channel.order(Order(shard, sequence, 0))
            learned: list[Trajectory] = []
            answered: set[tuple[int, int]] = set()

            def look() -> None:
                event = channel.receive(0.05)
                if isinstance(event, Trajectory):
                    channel.ack(event)
                    answered.add((event.shard, event.sequence))
                elif isinstance(event, LearnedElsewhere):
                    answered.add((event.order.shard, event.order.sequence))

            def two_learned() -> bool:  # at a time, before either is acknowledged
                look()
                event = other.receive(0.05)
                learned.extend([event] if isinstance(event, Trajectory) else [])
                return len(learned) == 2

            wait_for(two_learned)
            other.link.up.clear()  # and now nobody can be told
            for trajectory in learned:
                other.ack(trajectory)
            reconnect(other.link)

            def all_answered() -> bool:
                look()
                other.receive(0.05)
                return answered == orders

            wait_for(all_answered)
    finally:
        other.finish("the test is over")


def test_a_late_worker_gets_the_newest_weights_and_plays_with_no_older_ones(channel: AmqpChannel) -> None:
    made = planned()
    for version in range(1, 6):
        channel.publish(Weights(version, made.spec.initial_vector(version), made.spec.schema))
    with Workers(broker().url, 1):
        channel.order(Order(0, 0, -1))
        assert next_trajectory(channel).version == 5


class Jumping(View):
    """A clock that jumps to and fro by days while the run goes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(quiet=True)
        self.patch, self.real, self.jumps = monkeypatch, time.time, 0

    def progress(self, row: Any, executor: Any) -> None:
        self.jumps += 1
        shift = 86_400 * (-1) ** self.jumps * self.jumps
        self.patch.setattr(time, "time", lambda: self.real() + shift)


def test_a_clock_that_jumps_disturbs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = Jumping(monkeypatch)
    with Workers(broker().url, 2):
        run = train(Config.from_plain(SMALL), directory=tmp_path / "run", view=view, channel=broker().url)
    assert view.jumps
    assert run.status()["steps"] == 2048
    assert run.status()["faults"] == 0


def test_two_runs_share_the_workers_of_one_broker(tmp_path: Path) -> None:
    envs = ("CartPole-v1", "small_envs:Chain")

    def one(env: str) -> None:
        config = Config.from_plain(merge(SMALL, {"env": {"id": env}}))
        train(config, directory=tmp_path / env, channel=broker().url)

    with Workers(broker().url, 1):
        threads = [threading.Thread(target=one, args=(env,)) for env in envs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert all(Run(tmp_path / env).status()["status"] == "finished" for env in envs)


def test_two_executors_share_the_data_and_workers_play_with_both(tmp_path: Path) -> None:
    overrides = {"run": {"mode": "async", "steps": 60_000, "until": "steps", "seed": 1, "test_every": 10**6}}
    config = resolve("CartPole-v1", "impala", None, (overrides,))
    with Workers(broker().url, 2):
        run = train(config, directory=tmp_path / "run", channel=broker().url, executors=2)
    other = Run(tmp_path / "run" / "executor-2")
    assert run.status()["steps"] >= 60_000
    assert other.status()["steps"] > 10_000
    assert other.status()["status"] in ("finished", "stopped")
    with Workers(broker().url, 2):
        longer = continue_config(run, 90_000, None, None)
        train(longer, resume=run, channel=broker().url, executors=2)
    assert Run(tmp_path / "run" / "executor-3").status()["steps"] > 0
    assert run.checkpoint("last").weights.vector.tolist() != other.checkpoint("last").weights.vector.tolist()


def test_an_executor_that_is_killed_leaves_its_data_to_the_other(tmp_path: Path) -> None:
    overrides = {"run": {"mode": "async", "steps": 40_000, "until": "steps", "seed": 1, "test_every": 10**6}}
    config = resolve("CartPole-v1", "impala", None, (overrides,))
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "MANYHANDS_CHANNEL": broker().url}
    name = broker_name(tmp_path / "run")
    second = [sys.executable, "-m", "manyhands", "train", "--join", name, "--quiet"]
    second += ["--dir", str(tmp_path / "second")]
    joined: list[subprocess.Popen[bytes]] = []

    class Killing(View):
        def progress(self, row: Any, executor: Any) -> None:
            if not joined:
                joined.append(subprocess.Popen(second, env=environment))
            elif (tmp_path / "second" / "metrics.jsonl").exists() and joined[0].poll() is None:
                joined[0].kill()

    with Workers(broker().url, 2):
        run = train(config, directory=tmp_path / "run", channel=broker().url, view=Killing(quiet=True))
    for process in joined:
        process.kill()
        process.wait()
    assert run.status()["steps"] >= 40_000


def test_only_async_runs_can_be_joined(tmp_path: Path) -> None:
    said: list[str] = []
    environment = {**os.environ, "MANYHANDS_CHANNEL": broker().url}
    command = [sys.executable, "-m", "manyhands", "train", "--join"]

    class Asking(View):
        def progress(self, row: Any, executor: Any) -> None:
            if not said:
                words = [*command, broker_name(tmp_path / "run"), "--dir", str(tmp_path / "second")]
                done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
                said.append(done.stderr)

    with Workers(broker().url, 1):
        train(
            Config.from_plain(SMALL),
            directory=tmp_path / "run",
            channel=broker().url,
            view=Asking(quiet=True),
        )
    assert "only async runs can be joined" in said[0]
    nobody = subprocess.run(
        [*command, "nobody"], env=environment, capture_output=True, text=True, check=False
    )
    assert "no executor of a run 'nobody' answers" in nobody.stderr


def test_what_workers_did_is_written_into_the_run(tmp_path: Path) -> None:
    import json

    with Workers(broker().url, 2):
        run = train(Config.from_plain(SMALL), directory=tmp_path / "run", channel=broker().url)
    books = json.loads((run.path / "workers.json").read_text())
    counts = books["trajectories"]
    assert sum(player["steps"] for player in books["players"].values()) >= 2048
    assert (
        sum(player["sent"] for player in books["players"].values()) == counts["received"] + counts["unread"]
    )
    assert counts["received"] == counts["accepted"] + counts["dropped"]


def test_names_are_those_of_the_published_system() -> None:
    names = Names("run-1")
    for kind in ("meta_queue", "meta_exchange", "data_queue", "model_exchange"):
        assert getattr(names, kind) == f"manyhands.run-1.{kind}"


def test_a_library_user_trains_with_the_workers_of_a_broker(tmp_path: Path) -> None:
    url = broker().url
    with Workers(url, 1):
        run = manyhands.train(
            "small_envs:Chain",
            channel=url,
            steps=512,
            until="steps",
            directory=tmp_path / "run",
            log="none",
            settings={"collect": {"lanes": 2, "steps": 16}},
        )
    (row,) = run.workers()
    assert row["steps"] >= 512
    documented = (Run.workers.__doc__ or "").replace(",", " ").replace(";", " ").replace(":", " ").split()
    assert set(row) <= set(documented)
