"""What an executor makes of the messages that a broker brings it, with no network around it."""

import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_strangers import Quiet

from manyhands.channels.amqp import executor as amqp
from manyhands.channels.amqp import joined as amqp_joined
from manyhands.channels.amqp import refusals
from manyhands.channels.amqp.executor import AmqpChannel
from manyhands.channels.amqp.joined import JoinedChannel
from manyhands.channels.amqp.messages import Gone, Held, Report, Settled, Unplayed, Words
from manyhands.config.settings import Config
from manyhands.core import payloads, wire
from manyhands.core.events import CrashSite, Event, LearnedElsewhere, Notice, WorkerLost
from manyhands.core.heartbeat import TESTING
from manyhands.core.lanes import ShardState
from manyhands.core.orders import EvalOrder, Order, Task
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.runs.plan import plan

SMALL: dict[str, Any] = {
    "env": {"id": "small_envs:Chain"},
    "collect": {"shards": 2, "lanes": 2, "steps": 4},
    "net": {"hidden": [4]},
    "run": {"mode": "async", "workers": 0},
}
FIRST, SECOND, THIRD = (f"manyhands.player.{name}.1-0" for name in "abc")
"""Worker processes; the inbox of each ends with the number of its connection."""


class Nowhere(Quiet):
    """A broker that takes everything and brings nothing."""

    address: Any = SimpleNamespace(example="amqp://nowhere/")

    def acknowledge(self, message: Any, generation: int) -> None: ...

    def probe(self, queue: str, body: bytes) -> None: ...

    def deliver(self, queue: str, body: bytes, identity: str, headers: Any = None) -> "Future[bool]":
        self.send("", queue, body)
        delivered: Future[bool] = Future()
        delivered.set_result(True)
        return delivered

    def depth(self, queue: str) -> "Future[int]":
        return Future()


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> AmqpChannel:
    monkeypatch.setattr(amqp, "Link", Nowhere)
    config = Config.from_plain(SMALL)
    opened = AmqpChannel(plan(config).task, None, "run", config)  # type: ignore[arg-type]
    opened.executor = opened.tally.executor = "own"
    return opened


def report(process: str, **facts: Any) -> Report:
    return Report(f"{process}.1", "w", "host", 1, **facts)


def events(channel: AmqpChannel) -> list[Event]:
    found = []
    while (event := channel.receive(0.0)) is not None or channel.events:
        found += [event] if event is not None else []
    return found


@pytest.mark.parametrize("order", [Order(0, 0, 0), EvalOrder(0, 0, 0, 0, 1)])
def test_a_malformed_order_comes_back_as_a_fault(channel: AmqpChannel, order: Order | EvalOrder) -> None:
    """Given again and again without one, it would keep a run busy for ever."""
    channel._handle(("join", report(FIRST), 0.0))
    channel.order(order)
    for malformed in (True, True):
        channel._handle(("unplayed", Unplayed(f"{FIRST}.1", "own-1", "no such order", malformed)))
    (lost,) = events(channel)
    assert isinstance(lost, WorkerLost)
    assert (lost.orders, lost.fault) == ((order,), True)


def reminder(channel: AmqpChannel) -> str:
    """What is said after a while in which orders wait."""
    channel.presence.reminded = channel.presence.probed = -1e9
    (notice,) = [event for event in events(channel) if isinstance(event, Notice) and event.worker == "broker"]
    return notice.text


def refuses(channel: AmqpChannel, process: str, text: str) -> None:
    words = Words(f"{process}.1", f"cannot play: {text}").to_message("refuse")
    channel.hearing.hear_letter(words, None)
    assert [notice.text for notice in events(channel) if isinstance(notice, Notice)] == [words.meta["text"]]


def test_an_executor_says_why_the_workers_that_are_there_do_not_play(
    channel: AmqpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.order(Order(0, 0, 0))
    assert reminder(channel) == "there is no worker; start one: manyhands worker amqp://nowhere/"
    missing = "small_envs:Chain is not allowed here; start this with --allow small_envs:Chain"
    for process in (FIRST, "manyhands.player.a.2-1", SECOND):
        refuses(channel, process, missing)
    assert reminder(channel) == (
        "2 workers are there, none may play small_envs:Chain; start one with --allow small_envs:Chain: "
        "manyhands worker amqp://nowhere/ --allow small_envs:Chain"
    )
    monkeypatch.setattr(refusals, "GONE", -1.0)
    assert reminder(channel).startswith("there is no worker")


def test_other_reasons_of_workers_are_repeated(channel: AmqpChannel) -> None:
    channel.order(Order(0, 0, 0))
    refuses(channel, FIRST, "cannot import small_envs for its environment: No module named 'small_envs'")
    assert reminder(channel) == (
        "1 worker is there, and cannot play small_envs:Chain: cannot import small_envs for its environment: "
        "No module named 'small_envs'"
    )


def answer(task: Task) -> Trajectory:
    layout = task.layout
    arrays = {name: np.zeros_like(array) for name, array in layout.allocate().items()}
    facts: dict[str, Any] = {"shard": 0, "sequence": 0, "version": 0, "maker": "w"}
    return Trajectory.from_arrays(arrays, layout.columns, 0, 0, **facts)


def arrives(channel: AmqpChannel, identity: str, process: str = FIRST) -> None:
    """An answer to the order `identity`, in the data_queue."""
    message = SimpleNamespace(message_id=identity, headers={"player": f"{process}.1"})
    channel.hearing.published.add(0, b"")
    channel._handle(("data", answer(channel.task), message, 1))


def balanced(channel: AmqpChannel) -> bool:
    counts = channel.worker_stats()["trajectories"]
    came = counts["received"] + counts["unread"] + counts["shared"]
    return bool(counts["sent"] + counts["earlier"] == came)


def test_the_sums_add_up_for_an_executor_that_was_resumed(channel: AmqpChannel) -> None:
    """What its players had sent to the one before it counted twice: as earlier, and as sent."""
    channel._handle(("join", report(FIRST), 0.0))
    for number in range(3):
        arrives(channel, f"before-{number}")
    channel.order(Order(0, 0, 0))
    arrives(channel, "own-1")
    counts = channel.worker_stats()["trajectories"]
    assert (counts["sent"], counts["earlier"], counts["received"]) == (1, 3, 4)
    assert balanced(channel)


def test_the_sums_add_up_for_players_with_long_names(channel: AmqpChannel) -> None:
    """Three processes of one worker had been written down as one."""
    for number in range(3):
        process = f"manyhands.player.{'x' * 100}.1234abcd-{number}"
        channel._handle(("join", report(process), 0.0))
        channel._handle(("report", report(process, sent=number + 1), 1.0))
    books = channel.worker_stats()
    assert len(books["players"]) == 3
    assert books["trajectories"]["sent"] == 6


def reports(channel: AmqpChannel, count: int, first: float = 100.0) -> None:
    """So many seconds of reports of a player that has no order, long after it was given one."""
    for second in range(count):
        later = time.monotonic() + first + second
        channel._handle(("report", report(FIRST), later))


def settles(channel: AmqpChannel, identity: str) -> None:
    """Another executor has learned from the answer to the order `identity`."""
    settled = Settled(identity, "e", "key", f"{FIRST}.1")
    channel._handle(("settled", settled, ShardState.fresh(channel.task.layout)))


def look(channel: AmqpChannel) -> None:
    channel.presence.probed = 0.0
    channel._look_after_players()


def test_what_another_executor_holds_is_not_lost(channel: AmqpChannel) -> None:
    """A learner that takes longer than a few seconds is enough."""
    channel.hearing.keys["manyhands.executor.e"] = "key"
    channel._handle(("join", report(FIRST), 0.0))
    channel.order(Order(0, 0, 0))
    for _ in range(5):
        reports(channel, 3)
        channel._handle(("held", Held(("own-1",), "key")))
    look(channel)
    assert not channel.events
    settles(channel, "own-1")
    (taken,) = events(channel)
    assert isinstance(taken, LearnedElsewhere)
    assert channel.tally.counts.shared == 1


def test_what_strangers_say_they_hold_counts_for_nothing(channel: AmqpChannel) -> None:
    channel._handle(("join", report(FIRST), 0.0))
    channel.order(Order(0, 0, 0))
    for _ in range(5):
        reports(channel, 3)
        channel._handle(("held", Held(("own-1",), "no key")))
    look(channel)
    (lost,) = channel.events
    assert isinstance(lost, WorkerLost)


def test_what_another_executor_learned_from_late_counts_as_shared_once(channel: AmqpChannel) -> None:
    """Its order was thought lost meanwhile; the sums had missed one."""
    channel.hearing.keys["manyhands.executor.e"] = "key"
    channel._handle(("join", report(FIRST), 0.0))
    channel.order(Order(0, 0, 0))
    reports(channel, 9)
    look(channel)
    (lost,) = events(channel)
    assert isinstance(lost, WorkerLost)
    for _ in range(2):
        settles(channel, "own-1")
    assert not events(channel)
    assert channel.tally.counts.shared == 1
    assert balanced(channel)  # though the player was lost before it could report what it had sent


def test_an_executor_that_joined_tells_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_joined, "Link", Nowhere)
    joined: Any = JoinedChannel(None, "run")  # type: ignore[arg-type]
    joined.inbox, joined.task = "manyhands.executor.e.1", plan(Config.from_plain(SMALL)).task
    spec = joined.task.spec
    joined.publish(Weights(0, spec.initial_vector(0), spec.schema))
    raw = payloads.encode_trajectory(answer(joined.task), spec.schema)
    joined._hear_data(SimpleNamespace(body=raw, message_id="own-1", headers={"player": f"{FIRST}.1"}), 1)
    assert joined.holds().orders == ("own-1",)
    trajectory = joined.receive(0.0)
    assert joined.holds().orders == ("own-1",)
    joined.ack(trajectory)
    assert joined.holds().orders == ()
    assert joined.link.sent[-1].meta["maker"] == f"{FIRST}.1"


def give_up(channel: AmqpChannel, process: str, how: str = "missed") -> WorkerLost:
    """Its connection has ended, or it says nothing while others are heard."""
    known = channel.presence.players.known[f"{process}.1"]
    if how == "missed":
        known.missed = 1.0
    else:
        known.heard, channel.presence.starved = time.monotonic() - 5.0, 1.0
    look(channel)
    (lost,) = events(channel)
    assert isinstance(lost, WorkerLost)
    assert (lost.fault, lost.crash_site) == (False, None)
    return lost


def dies(channel: AmqpChannel, process: str, crash_site: CrashSite) -> list[Event]:
    """Its supervisor tells what it was doing."""
    place = (crash_site.shard, crash_site.lane, crash_site.episode)
    channel._handle(("gone", Gone(process, "ended by SIGSEGV", True, True, channel.presence.mark, *place)))
    return events(channel)


@pytest.mark.parametrize("how", ["missed", "silent"])
def test_a_death_that_is_told_late_is_blamed_on_its_episode_once(channel: AmqpChannel, how: str) -> None:
    """The episode had gone from one worker process to the next without end."""
    crash_site, order = CrashSite(0, 1, 7), Order(0, 0, 0)
    for process in (FIRST, SECOND):
        channel._handle(("join", report(process), 0.0))
    channel.order(order)
    assert give_up(channel, FIRST, how).orders == (order,)
    channel.order(order)
    (late,) = dies(channel, FIRST, crash_site)
    assert isinstance(late, WorkerLost)
    assert (late.crash_site, late.fault, late.shards, late.orders) == (crash_site, True, (), ())
    assert not dies(channel, FIRST, crash_site)
    # The other one had been given the same before anybody knew; that is no second fault.
    (second,) = dies(channel, SECOND, crash_site)
    assert isinstance(second, WorkerLost)
    assert (second.crash_site, second.fault, second.orders) == (crash_site, False, (order,))
    # But one that was given later should have skipped it.
    channel._handle(("join", report(THIRD), 0.0))
    channel.order(order)
    (third,) = dies(channel, THIRD, crash_site)
    assert isinstance(third, WorkerLost)
    assert third.fault


def test_two_that_are_given_up_with_one_episode_are_one_fault(channel: AmqpChannel) -> None:
    crash_site, order = CrashSite(0, 1, 7), Order(0, 0, 0)
    for process in (FIRST, SECOND):
        channel._handle(("join", report(process), 0.0))
        channel.order(order)
        give_up(channel, process)
    assert len(dies(channel, FIRST, crash_site)) == 1
    assert not dies(channel, SECOND, crash_site)


def test_orders_that_wait_are_given_without_the_episode(channel: AmqpChannel) -> None:
    crash_site, order = CrashSite(0, 1, 7), Order(0, 0, 0)
    channel._handle(("join", report(FIRST), 0.0))
    channel.order(order)
    give_up(channel, FIRST)
    channel.order(order)
    (late,) = dies(channel, FIRST, crash_site)
    assert isinstance(late, WorkerLost)
    assert (late.shards, late.orders) == ((0,), (order,))
    assert not channel.presence.players.waiting


def test_a_part_of_a_test_is_given_without_the_episode(channel: AmqpChannel) -> None:
    trial = EvalOrder(0, 0, 5, 0, 4)
    for process in (FIRST, SECOND, THIRD):
        channel._handle(("join", report(process), 0.0))
    channel.order(trial)
    give_up(channel, FIRST)
    channel.order(trial)
    (late,) = dies(channel, FIRST, CrashSite(TESTING, 2, 3))
    assert isinstance(late, WorkerLost)
    assert late.fault
    assert give_up(channel, SECOND).orders == (trial,)
    channel.order(trial)
    sent: Any = channel.link
    given = [EvalOrder.from_message(_bare(each)) for each in sent.sent if each.kind == "eval_order"]
    assert [each.skip for each in given] == [(), (), (3,)]


def _bare(message: wire.Message) -> wire.Message:
    return replace(message, meta={n: v for n, v in message.meta.items() if n not in ("order", "run")})


def test_an_episode_that_another_has_played_since_is_not_skipped(channel: AmqpChannel) -> None:
    """As when a machine slept: what it died of says nothing about the episode then."""
    for process in (FIRST, SECOND):
        channel._handle(("join", report(process), 0.0))
    channel.order(Order(0, 0, 0))
    give_up(channel, FIRST, "silent")
    channel.order(Order(0, 0, 0))
    arrives(channel, "own-2", SECOND)
    assert isinstance(channel.receive(0.0), Trajectory)
    (late,) = dies(channel, FIRST, CrashSite(0, 1, 7))
    assert isinstance(late, WorkerLost)
    assert (late.crash_site, late.fault) == (None, True)


def test_who_comes_back_is_not_blamed_for_what_it_was_given_up_with(channel: AmqpChannel) -> None:
    for process in (FIRST, SECOND):
        channel._handle(("join", report(process), 0.0))
    channel.order(Order(0, 0, 0))
    give_up(channel, FIRST, "silent")
    channel._handle(("join", report(FIRST), 0.0))
    (lost,) = dies(channel, FIRST, CrashSite(0, 1, 7))
    assert isinstance(lost, WorkerLost)
    assert lost.orders == ()
    assert not dies(channel, FIRST, CrashSite(0, 1, 7))
