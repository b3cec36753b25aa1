"""What every channel promises to an executor. A new channel joins by adding its name to `CHANNELS`."""

import os
import uuid
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from brokers import crew, wait_for
from clusters import cluster

from manyhands.channels.amqp.address import Address
from manyhands.channels.amqp.executor import AmqpChannel
from manyhands.channels.base import ExecutorChannel
from manyhands.channels.inline import InlineChannel
from manyhands.channels.processes.executor import ProcessesChannel
from manyhands.channels.ray.channel import RayChannel
from manyhands.config.settings import Config
from manyhands.core.events import Fault, Notice
from manyhands.core.lanes import ShardState
from manyhands.core.orders import NEWEST, EvalOrder, EvalResult, Order
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.runs.plan import Plan, plan

SHARDS = 3
Open = Callable[[Plan], ExecutorChannel]
CHANNELS: dict[str, Open] = {
    "inline": lambda planned: InlineChannel(planned.task),
    "processes-1": lambda planned: ProcessesChannel(
        planned.task, SHARDS, 1, hang_timeout=30, worker_memory=1000
    ),
    "processes-3": lambda planned: ProcessesChannel(
        planned.task, SHARDS, 3, hang_timeout=30, worker_memory=1000
    ),
    "amqp-1": lambda planned: _over_broker(planned, 1),
    "amqp-2": lambda planned: _over_broker(planned, 2),
    "ray-2": lambda planned: RayChannel(planned.task, SHARDS, 2, hang_timeout=30),
}


def _over_broker(planned: Plan, hands: int) -> AmqpChannel:
    """Complete before it is used: a hand that joins later takes over shards, which is another test."""
    address = Address.parse(crew(hands))
    channel = AmqpChannel(planned.task, address, f"test-{uuid.uuid4().hex}", planned.config)
    wait_for(lambda: channel.receive(0) is None and len(channel.workers()) == hands)
    return channel


def planned(env: str = "small_envs:Chain", **kwargs: object) -> Plan:
    config = Config.from_plain(
        {
            "env": {"id": env, "kwargs": kwargs},
            "collect": {"shards": SHARDS, "lanes": 2, "steps": 16},
            "run": {"seed": 5},
        }
    )
    return plan(config)


def weights(made: Plan, version: int) -> Weights:
    return Weights(version, made.spec.initial_vector(version), made.spec.schema)


@pytest.fixture(params=CHANNELS)
def opener(request: pytest.FixtureRequest) -> Iterator[Open]:
    opened: list[ExecutorChannel] = []

    def open_channel(made: Plan) -> ExecutorChannel:
        if request.param.startswith("ray"):
            cluster()
        channel = CHANNELS[request.param](made)
        opened.append(channel)
        return channel

    yield open_channel
    for channel in opened:
        channel.finish("the test is over")


def receive_all(channel: ExecutorChannel, count: int) -> list[Trajectory]:
    """The next trajectories by shard and sequence, copied, since a channel may use their memory again."""
    found: list[Trajectory] = []
    while len(found) < count:
        event = channel.receive(30)
        assert event is not None, "nothing came"
        if isinstance(event, Trajectory):
            found.append(event)
    return sorted(found, key=lambda t: (t.shard, t.sequence))


def same(left: Trajectory, right: Trajectory) -> None:
    for name in ("obs", "action", "reward", "terminated", "truncated", "last_obs", "episode"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    for name in ("final_obs", "final_at", "episode_return", "episode_length"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    for name, column in left.columns.items():
        np.testing.assert_array_equal(column, right.columns[name], err_msg=name)


def test_every_shard_answers_its_order_with_the_version_asked_for(opener: Open) -> None:
    made = planned()
    channel = opener(made)
    channel.publish(weights(made, 0))
    for shard in range(SHARDS):
        channel.order(Order(shard, 0, 0))
    found = receive_all(channel, SHARDS)
    assert [(t.shard, t.sequence, t.version) for t in found] == [(s, 0, 0) for s in range(SHARDS)]
    assert all(t.steps == 32 for t in found)


def test_all_channels_make_the_same_bits(opener: Open) -> None:
    made = planned()
    reference = InlineChannel(made.task)
    channel = opener(made)
    for sequence in range(3):
        for each in (reference, channel):
            each.publish(weights(made, sequence))
            for shard in range(SHARDS):
                each.order(Order(shard, sequence, sequence))
        pairs = zip(receive_all(reference, SHARDS), receive_all(channel, SHARDS), strict=True)
        for expected, found in pairs:
            same(expected, found)
            channel.ack(found)
    reference.finish("compared")


def test_what_every_worker_has_played_is_counted(opener: Open) -> None:
    made = planned()
    channel = opener(made)
    channel.publish(weights(made, 0))
    for shard in range(SHARDS):
        channel.order(Order(shard, 0, 0))
    found = receive_all(channel, SHARDS)
    if channel.plays_here:
        assert channel.worker_stats() == {}
        return

    def played(name: str) -> float:
        channel.receive(0)  # a broker's workers report every second
        return sum(row[name] for row in channel.worker_stats().get("players", {}).values())

    wait_for(lambda: played("steps") == sum(t.steps for t in found))
    assert played("episodes") == sum(len(t.episode_return) for t in found)
    assert played("return_sum") == pytest.approx(sum(t.episode_return.sum() for t in found))
    assert played("playing") > 0


def test_an_order_may_name_an_older_version_or_the_newest(opener: Open) -> None:
    made = planned()
    channel = opener(made)
    for version in range(3):
        channel.publish(weights(made, version))
    channel.order(Order(0, 0, 1))
    channel.order(Order(1, 0, NEWEST))
    assert [t.version for t in receive_all(channel, 2)] == [1, 2]


def test_two_orders_of_a_shard_are_played_in_turn(opener: Open) -> None:
    made = planned()
    channel = opener(made)
    channel.publish(weights(made, 0))
    channel.order(Order(2, 0, 0))
    channel.order(Order(2, 1, 0))
    first, second = receive_all(channel, 2)
    assert (first.sequence, second.sequence) == (0, 1)
    going_on = first.last_obs
    np.testing.assert_array_equal(second.obs[0], going_on)


def test_a_shard_can_be_taken_up_where_another_worker_left_it(opener: Open) -> None:
    made = planned()
    reference = InlineChannel(made.task)
    reference.publish(weights(made, 0))
    for sequence in range(2):
        reference.order(Order(1, sequence, 0))
    before, expected = receive_all(reference, 2)
    reference.finish("compared")

    channel = opener(made)
    channel.publish(weights(made, 0))
    start = ShardState.fresh(made.task.layout).after(before)
    channel.order(Order(1, 1, 0, start))
    same(expected, receive_all(channel, 1)[0])


def test_an_environment_that_cannot_be_repeated_is_said(opener: Open) -> None:
    made = planned("small_envs:Unrepeatable")
    channel = opener(made)
    channel.publish(weights(made, 0))
    start = ShardState.fresh(made.task.layout)
    while not any(len(lane.actions) for lane in start.lanes):  # both may just have begun an episode
        channel.order(Order(0, start.sequence, 0))
        played = receive_all(channel, 1)[0]
        start = start.after(played)
        channel.ack(played)
    channel.order(Order(0, start.sequence, 0, start))
    said = []
    while not isinstance(event := channel.receive(30), Trajectory):
        assert event is not None
        said.append(event)
    notices = [event for event in said if isinstance(event, Notice)]
    # An inline channel reports after the rollout in which it noticed.
    if not notices and isinstance(event := channel.receive(1), Notice):
        notices.append(event)
    assert "cannot be restarted exactly" in notices[0].text


def test_a_raising_environment_is_reported_with_its_traceback_lane_and_seed(
    opener: Open, tmp_path: object
) -> None:
    made = planned("small_envs:Failing", how="raise", marker=f"{tmp_path}/failed", after=5)
    channel = opener(made)
    channel.publish(weights(made, 0))
    channel.order(Order(0, 0, 0))
    events = [channel.receive(30), channel.receive(30)]
    fault = next(event for event in events if isinstance(event, Fault))
    trajectory = next(event for event in events if isinstance(event, Trajectory))
    assert "the simulator exploded" in fault.text
    assert "Traceback" in fault.text
    assert fault.seed > 0
    assert trajectory.truncated[4, fault.lane]


def test_the_parts_of_a_test_give_the_same_episodes_whoever_plays_them(opener: Open) -> None:
    made = planned()
    found = []
    for channel in (InlineChannel(made.task), opener(made)):
        channel.publish(weights(made, 0))
        for part in range(SHARDS):
            channel.order(EvalOrder(part, 0, seed=9, first=part * 10, count=10))
        results = [channel.receive(30) for _ in range(SHARDS)]
        assert all(isinstance(result, EvalResult) for result in results)
        found.append({result.part: result.evaluation for result in results})
        channel.finish("compared")
    assert found[0] == found[1]
    assert all(len(evaluation.returns) == 10 for evaluation in found[0].values())


def test_nothing_to_receive_is_none_after_the_timeout(opener: Open) -> None:
    channel = opener(planned())
    assert channel.receive(0.05) is None


def test_finishing_twice_is_fine_and_leaves_no_process(opener: Open) -> None:
    made = planned()
    channel = opener(made)
    processes = [worker.process.pid for worker in getattr(channel, "processes", [])]
    channel.finish("done")
    channel.finish("done")
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
