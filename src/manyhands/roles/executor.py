"""The train-test-send loop: gather rollouts, learn, publish the weights, order more, test, save."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from manyhands.channels.base import ExecutorChannel
from manyhands.config.settings import Config
from manyhands.core.events import Event, Fault, LearnedElsewhere, Notice, RunEnded, WorkerLost
from manyhands.core.lanes import ShardState
from manyhands.core.orders import NEWEST, EvalResult, Order
from manyhands.core.trajectories import Layout, Trajectory
from manyhands.core.weights import Weights
from manyhands.roles.faults import Faults, without
from manyhands.roles.listening import Learns, Listener
from manyhands.roles.progress import RECENT, Progress
from manyhands.roles.testing import Testing

POLL = 0.2
"""Seconds after which a waiting executor checks whether it should stop, and shows that it is alive."""
LOG_INTERVAL = 0.25
"""Seconds between two rows of metrics at the least."""
LOG_ROWS = 4000
"""A run of n seconds writes a row every n / LOG_ROWS seconds: a day's metrics fit on a few megabytes."""


class Executor:
    """Runs the loop of one run, on any channel and with any algorithm.

    Weights of version k are those after k updates, and in the reproducible modes update k learns from
    sequence k of every shard, which was played with version max(0, k - lead).
    """

    def __init__(
        self,
        config: Config,
        layout: Layout,
        channel: ExecutorChannel,
        learner: Learns,
        solved_at: float | None,
        listener: Listener,
        save: Callable[["Executor"], None],
        save_best: Callable[[Weights], None],
    ) -> None:
        self.config, self.layout = config, layout
        self.channel, self.learner = channel, learner
        self.solved_at, self.listener = solved_at, listener
        self.save = save
        self.lead = {"sync": 0, "pipelined": 1, "async": 1}[config.run.mode]
        self.synchronous = config.run.mode != "async"
        self.shards = range(config.collect.shards)
        self.counts = Progress(next_test=config.run.test_every)
        self.weights = learner.weights()
        self.previous: tuple[Weights, ...] = ()
        self.states = {shard: ShardState.fresh(layout) for shard in self.shards}
        self.ordered: dict[int, int] = {}  # shard: sequence of its last order
        self.unheld: set[int] = set()  # shards that no worker holds at their present place
        self.arrived: list[Trajectory] = []
        self.lag = 0.0
        self.players = 1  # when the present batch was begun
        self.stopping = False
        self.ended = False  # by another executor
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.lengths: deque[int] = deque(maxlen=RECENT)
        self.faults = Faults(self)
        self.testing = Testing(self, save_best)
        self.last_row: dict[str, Any] = {}
        self.last_log = 0.0
        self.logged: int | None = None  # the version whose row was written last
        self.last_save = self.started = self.called = time.monotonic()

    def resume(
        self, counts: Progress, previous: tuple[Weights, ...], states: Mapping[int, ShardState]
    ) -> None:
        """Go on from a checkpoint; the learner has been restored already."""
        self.counts, self.previous = counts, previous
        self.recent.extend(counts.recent)
        self.lengths.extend(counts.lengths)
        self.weights = self.learner.weights()
        self.states = dict(states)
        self.unheld = set(self.shards)

    def stop(self) -> None:
        """Ask for a clean end; may be called from a signal handler."""
        self.stopping = True

    def prepare(self) -> None:
        """Publishes the first weights and gives the first orders; workers play while the learner loads."""
        for weights in (*self.previous, self.weights):
            self.channel.publish(weights)
        self.ordered = {shard: state.sequence - 1 for shard, state in self.states.items()}
        for _ in range(self.lead + 1):
            for shard in self.shards:
                self._order_next(shard)

    def run(self) -> None:
        """Run until solved, out of steps, or stopped; save at the end, whatever the reason."""
        self.listener.waiting(self)  # what is to come is to be seen before the first batch is there
        self.called = time.monotonic()
        self.started = self.called - self.counts.seconds
        if self.counts.steps and self.testing.is_due():
            self.testing.run()  # the one during which the run was stopped
        while not self.stopping and not self.ended and not self.finished():
            batch = self._gather()
            if batch is None:
                break
            self._learn(batch)
            self._clock()
            self.listener.updated(self.last_row, self)
            if self.testing.is_due():
                self.testing.run()
            self._clock()
            self._log()
            if time.monotonic() - self.last_save >= self.config.run.checkpoint_every:
                self._save()
        self._clock()
        interrupted = self.stopping or self.ended
        if self._out_of_time() and self.weights.version and not interrupted and self.testing.is_due():
            self.testing.run()  # of what was learned before time was up
            self.logged = None
        if self.last_row and self.logged != self.weights.version:
            self.listener.progress(self.last_row, self)
        self._save()

    def _clock(self) -> None:
        self.counts.seconds = time.monotonic() - self.started

    def finished(self) -> bool:
        """Return whether the run is over: solved, or out of steps, updates or time."""
        if self.config.run.until == "external":
            return self._out_of_time()
        if self.config.run.until == "solved" and self.counts.solved:
            return True
        updates = self.config.run.updates
        over = self.counts.steps >= self.config.run.steps or 0 < updates <= self.weights.version
        return over or self._out_of_time()

    def _out_of_time(self) -> bool:
        """Return whether the minutes are over that this call may take."""
        run = self.config.run
        return 0 < 60 * run.minutes <= time.monotonic() - self.called

    @property
    def share(self) -> float:
        """The share that has been used of what the run may take: of the steps, the updates or the minutes."""
        run = self.config.run
        shares = [self.counts.steps / run.steps]
        if run.updates:
            shares.append(self.weights.version / run.updates)
        if run.minutes:
            shares.append((time.monotonic() - self.called) / (60 * run.minutes))
        return min(1.0, max(shares))

    def _order_next(self, shard: int, agent: str = "") -> None:
        self.ordered[shard] += 1
        self._order(shard, self.ordered[shard], agent)

    def _order(self, shard: int, sequence: int, agent: str = "") -> None:
        version = max(0, sequence - self.lead) if self.synchronous else NEWEST
        start = None
        if shard in self.unheld:
            self.unheld.remove(shard)
            # Async orders may be answered out of turn, when several executors share them.
            start = replace(self._present_state(shard), sequence=sequence)
        self.channel.order(Order(shard, sequence, version, start, agent))

    def _present_state(self, shard: int) -> ShardState:
        """Return where a shard stands after what has arrived but is not learned yet."""
        state = self.states[shard]
        for trajectory in sorted(self.arrived, key=lambda t: t.sequence):
            if trajectory.shard == shard:
                state = state.after(trajectory)
        return state

    def _gather(self) -> list[Trajectory] | None:
        """Wait for the next batch; None when asked to stop, or when time is up."""
        self.players = max(1, len(self.channel.workers()))
        while (batch := self._batch()) is None and not self.stopping and not self.ended:
            if self._out_of_time():
                break
            began, played = time.monotonic(), self.counts.collecting
            self.await_event()
            self.counts.waiting += time.monotonic() - began
            if self.channel.plays_here:
                self.counts.waiting -= self.counts.collecting - played
        return batch

    def await_event(self) -> None:
        """Take up the next thing that happens, or show that the run is alive."""
        self.hear(self.channel.receive(POLL))

    def hear(self, event: Event | None) -> None:
        """Take up what has happened; None where nothing has for a while."""
        match event:
            case Trajectory() as trajectory:
                self._arrive(trajectory)
            case EvalResult() as result:
                self.testing.results[result.part] = result.evaluation
            case Fault() as fault:
                self.faults.failed(fault)
            case WorkerLost() as lost:
                self.faults.lost(lost)
                self._order_again(lost)
            case LearnedElsewhere() as taken:
                before = self.states[taken.order.shard]
                self.states[taken.order.shard] = taken.state.still_skipping(before)
                self._order_next(taken.order.shard, taken.agent)
            case RunEnded() as over:
                self.listener.said(f"another executor ended the run: {over.reason}")
                self.ended = True
            case Notice() as notice:
                self.listener.said(f"{notice.worker}: {notice.text}")
            case None:
                self._clock()
                self.listener.waiting(self)

    def _batch(self) -> list[Trajectory] | None:
        if len(self.arrived) < len(self.shards) and self.synchronous:
            return None
        if self.synchronous:
            batch = [t for t in self.arrived if t.sequence == self.weights.version]
            return sorted(batch, key=lambda t: t.shard) if len(batch) == len(self.shards) else None
        quorum = (len(self.shards) + 1) // 2
        return list(self.arrived) if len(self.arrived) >= quorum else None

    def _arrive(self, trajectory: Trajectory) -> None:
        self.counts.collecting += trajectory.seconds / self.players
        too_old = self.weights.version - trajectory.version > self.config.run.max_lag
        if not self.synchronous and too_old:
            self.counts.dropped += trajectory.steps
            self._settle([trajectory])
        else:
            self.arrived.append(trajectory)

    def _learn(self, batch: list[Trajectory]) -> None:
        began = time.monotonic()
        self.lag = float(np.mean([self.weights.version - t.version for t in batch]))
        metrics = self.learner.learn(batch)
        self.previous = (self.weights,) if self.lead else ()
        self.weights = self.learner.weights()
        self.counts.learning += time.monotonic() - began
        self._broadcast(batch)
        self.last_row = metrics

    def _broadcast(self, batch: list[Trajectory]) -> None:
        """Publish the new weights, and order rollouts with them."""
        began = time.monotonic()
        self.channel.publish(self.weights)
        for trajectory in batch:
            self.counts.steps += trajectory.steps
            self.counts.episodes += len(trajectory.episode_return)
            self.recent.extend(map(float, trajectory.episode_return))
            self.lengths.extend(map(int, trajectory.episode_length))
        self.counts.recent, self.counts.lengths = list(self.recent), list(self.lengths)
        self.arrived = [t for t in self.arrived if not any(t is learned for learned in batch)]
        self._settle(batch)
        self.counts.broadcasting += time.monotonic() - began

    def _settle(self, trajectories: list[Trajectory]) -> None:
        """Note where the shards stand, release the trajectories' memory, and order what comes next."""
        for trajectory in trajectories:
            self.states[trajectory.shard] = self.states[trajectory.shard].after(trajectory)
            self.channel.ack(trajectory)
        for trajectory in trajectories:
            self._order_next(trajectory.shard)

    def _order_again(self, lost: WorkerLost) -> None:
        self.unheld.update(lost.shards)
        for order in lost.orders:
            if isinstance(order, Order):
                self._order(order.shard, order.sequence, order.agent)
            else:
                self.channel.order(without(order, lost.crash_site))

    def _log(self) -> None:
        now = time.monotonic()
        if now - self.last_log >= max(LOG_INTERVAL, self.counts.seconds / LOG_ROWS):
            self.last_log, self.logged = now, self.weights.version
            self.listener.progress(self.last_row, self)

    def _save(self) -> None:
        self.save(self)
        self.last_save = time.monotonic()
