"""What an executor does with what arrives: which data it learns from, what it orders, which faults count."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from samples import random_trajectory

from manyhands.config.settings import Config
from manyhands.core.errors import EnvError
from manyhands.core.events import CrashSite, Fault, WorkerLost
from manyhands.core.heartbeat import TESTING
from manyhands.core.orders import NEWEST, EvalOrder, Order
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.roles import executor as executor_module
from manyhands.roles.executor import Executor
from manyhands.roles.faults import FAULT_WINDOW
from manyhands.runs.plan import plan

SHARDS, LANES, STEPS = 3, 2, 4


class Scripted:
    """A channel on which comes what a test puts there, and that keeps what it was asked."""

    plays_here = False

    def __init__(self) -> None:
        self.orders: list[Order | EvalOrder] = []
        self.acknowledged: list[tuple[int, int]] = []
        self.published: list[int] = []

    def publish(self, weights: Weights) -> None:
        self.published.append(weights.version)

    def order(self, order: Order | EvalOrder) -> None:
        self.orders.append(order)

    def ack(self, trajectory: Trajectory) -> None:
        self.acknowledged.append((trajectory.shard, trajectory.sequence))

    def workers(self) -> list[Any]:
        return []


class Counting:
    """A learner whose versions follow one another."""

    def __init__(self, size: int) -> None:
        self.size, self.version = size, 0
        self.learned: list[list[Trajectory]] = []

    def weights(self) -> Weights:
        return Weights(self.version, np.zeros(self.size, np.float32), "")

    def learn(self, trajectories: list[Trajectory]) -> dict[str, float]:
        self.learned.append(trajectories)
        self.version += 1
        return {}


def executor(**run: Any) -> tuple[Executor, Scripted, Counting]:
    collect = {"shards": SHARDS, "lanes": LANES, "steps": STEPS}
    config = Config.from_plain({"collect": collect, "run": {"seed": 1, **run}})
    planned = plan(config)
    channel, learner = Scripted(), Counting(planned.spec.size)
    heard = ("tested", "said", "waiting", "updated", "fault", "lost")
    quiet: Any = SimpleNamespace(**dict.fromkeys(heard, lambda *_: None))
    made = Executor(
        config,
        planned.task.layout,
        channel,  # type: ignore[arg-type]
        learner,
        None,
        quiet,
        lambda executor: None,
        lambda weights: None,
    )
    made.prepare()
    return made, channel, learner


def rollout(made: Executor, shard: int, sequence: int, version: int) -> Trajectory:
    found = random_trajectory(made.layout, 10 * sequence + shard, sequence)
    return replace(found, shard=shard, version=version)


def test_async_data_that_are_too_old_are_dropped_counted_and_asked_for_again() -> None:
    made, channel, _ = executor(mode="async", max_lag=2)
    made.weights = replace(made.weights, version=5)
    channel.orders.clear()
    made._arrive(rollout(made, 0, 0, version=3))
    assert len(made.arrived) == 1
    assert made.counts.dropped == 0
    made._arrive(rollout(made, 1, 0, version=2))
    assert len(made.arrived) == 1
    assert made.counts.dropped == LANES * STEPS
    assert channel.acknowledged == [(1, 0)]
    assert [(order.shard, order.version) for order in channel.orders] == [(1, NEWEST)]
    assert made.states[1].sequence == 1  # it was played all the same


def test_data_of_the_reproducible_modes_are_never_too_old() -> None:
    made, _, _ = executor(mode="pipelined", max_lag=0)
    made.weights = replace(made.weights, version=1)
    made._arrive(rollout(made, 0, 1, version=0))
    assert len(made.arrived) == 1
    assert made.counts.dropped == 0


@pytest.mark.parametrize(("mode", "lead"), [("sync", 0), ("pipelined", 1)])
def test_orders_name_the_version_that_the_mode_says(mode: str, lead: int) -> None:
    made, channel, learner = executor(mode=mode)
    for sequence in range(4):
        for shard in reversed(range(SHARDS)):
            made._arrive(rollout(made, shard, sequence, max(0, sequence - lead)))
        batch = made._batch()
        assert batch is not None
        assert [t.shard for t in batch] == list(range(SHARDS))
        made._learn(batch)
    assert [made.weights.version, len(learner.learned)] == [4, 4]
    named = {(o.shard, o.sequence): o.version for o in channel.orders if isinstance(o, Order)}
    assert named == {
        (shard, sequence): max(0, sequence - lead) for shard in range(SHARDS) for sequence in range(5 + lead)
    }
    assert channel.published == [0, 1, 2, 3, 4]
    assert made.counts.steps == 4 * SHARDS * LANES * STEPS
    assert made.lag == lead


def test_a_batch_waits_for_every_shard_of_its_own_sequence() -> None:
    made, _, _ = executor(mode="pipelined")
    for shard in range(SHARDS):
        made._arrive(rollout(made, shard, 1, 0))  # all of the next batch
    made._arrive(rollout(made, 0, 0, 0))
    made._arrive(rollout(made, 2, 0, 0))
    assert made._batch() is None
    made._arrive(rollout(made, 1, 0, 0))
    batch = made._batch()
    assert batch is not None
    assert {t.sequence for t in batch} == {0}


def test_async_learns_from_more_than_half_of_the_shards() -> None:
    made, _, _ = executor(mode="async")
    made._arrive(rollout(made, 2, 0, 0))
    assert made._batch() is None
    made._arrive(rollout(made, 0, 0, 0))
    assert len(made._batch() or []) == 2


def test_faults_of_an_hour_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, _ = executor(max_faults=2)
    now = [1000.0]
    monkeypatch.setattr(executor_module.time, "monotonic", lambda: now[0])
    fault = Fault("worker-0", 0, 1, 2, 3, "Traceback\nValueError: bad")
    for later in (0.0, 10.0):
        now[0] = 1000.0 + later
        made.hear(fault)
    now[0] = 1000.0 + FAULT_WINDOW + 1.0  # the first is older than the window, the second not
    made.hear(fault)
    assert made.counts.faults == 3
    with pytest.raises(EnvError, match=r"failed more than 2 times within an hour .*; last: ValueError: bad"):
        made.hear(fault)


def test_what_a_lost_worker_was_to_do_is_asked_for_again_with_where_its_shards_stand() -> None:
    made, channel, _ = executor(mode="sync", max_faults=9)
    for shard in range(SHARDS):
        made._arrive(rollout(made, shard, 0, 0))
    made._learn(made._batch() or [])
    channel.orders.clear()
    open_orders = (Order(0, 1, 1), Order(2, 1, 1), EvalOrder(1, 1, 7, 0, 4))
    made.hear(WorkerLost("worker-0", "ended by SIGKILL", (0, 2), open_orders))
    again = [order for order in channel.orders if isinstance(order, Order)]
    assert [(o.shard, o.sequence, o.version) for o in again] == [(0, 1, 1), (2, 1, 1)]
    assert all(o.start is not None and o.start.sequence == 1 for o in again)
    assert channel.orders[-1] == open_orders[-1]
    assert made.counts.faults == 1
    made.hear(WorkerLost("worker-0", "its machine was switched off", (0,), (), fault=False))
    assert made.counts.faults == 1


def test_an_episode_that_brought_its_process_down_is_left_out_where_it_was_played() -> None:
    made, channel, _ = executor(mode="sync")
    made.hear(WorkerLost("w", "ended by SIGSEGV", (1,), (Order(1, 0, 0),), CrashSite(1, 1, 0)))
    order = channel.orders[-1]
    assert isinstance(order, Order)
    assert order.start is not None
    assert [lane.skip for lane in order.start.lanes] == [(), (0,)]
    part = EvalOrder(0, 0, 7, 4, 4)
    made.hear(WorkerLost("w", "ended by SIGSEGV", (), (part,), CrashSite(-2, 0, 5)))
    assert channel.orders[-1] == part  # of no shard of this run, nor of a test
    made.hear(WorkerLost("w", "ended by SIGSEGV", (), (part,), CrashSite(TESTING, 0, 5)))
    assert channel.orders[-1] == replace(part, skip=(5,))
    made.hear(WorkerLost("w", "ended by SIGSEGV", (), (part,), CrashSite(TESTING, 0, 9)))
    assert channel.orders[-1] == part  # the episode was another part's
