"""The train-test-send loop: gather rollouts, learn, publish the weights, order more, test, save."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from manyhands.channels.base import ExecutorChannel
from manyhands.config.settings import Config
from manyhands.core.errors import EnvError
from manyhands.core.evaluation import Evaluation
from manyhands.core.events import (
    CrashSite,
    Fault,
    FaultReport,
    LearnedElsewhere,
    Notice,
    RunEnded,
    WorkerLost,
)
from manyhands.core.heartbeat import TESTING
from manyhands.core.lanes import ShardState
from manyhands.core.orders import NEWEST, EvalOrder, EvalResult, Order
from manyhands.core.seeding import TEST, env_seed, hash_seed
from manyhands.core.texts import figures
from manyhands.core.trajectories import Layout, Trajectory
from manyhands.core.weights import Weights
from manyhands.roles.faults import FaultBudget
from manyhands.roles.listening import Learns, Listener
from manyhands.roles.progress import Progress

POLL = 0.2
"""Seconds after which a waiting executor checks whether it should stop, and shows that it is alive."""
RECENT = 100
"""Episodes in the mean of recent returns."""
FIRST_EPISODES = 16
"""Episodes that a test begins with; when they leave no hope, the rest is not played."""
CONFIRMING = 0.5
"""The part of `run.margin` that the second test, which confirms a passed one, must keep."""
NEWEST_EPISODES = 20
"""Episodes that tell whether training is near its goal."""
NEAR = 0.25
"""Training is near its goal when at most this part of the way to it from the first returns is left."""
LOG_INTERVAL = 0.25
"""Seconds between two rows of metrics at the least."""
LOG_ROWS = 4000
"""A run of n seconds writes a row every n / LOG_ROWS seconds: a day's metrics fit on a few megabytes."""


class Executor:
    """One run. Knows neither which channel it has nor which algorithm.

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
        self.save, self.save_best = save, save_best
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
        self.results: dict[int, Evaluation] = {}
        self.lag = 0.0
        self.players = 1  # when the present batch was begun
        self.stopping = False
        self.ended = False  # by another executor
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.lengths: deque[int] = deque(maxlen=RECENT)
        self.budget = FaultBudget(config.run.max_faults)
        self.last_row: dict[str, Any] = {}
        self.last_log = 0.0
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
        if self.counts.steps and self._test_is_due():
            self._test()  # the one during which the run was stopped
        while not self.stopping and not self.ended and not self._finished():
            batch = self._gather()
            if batch is None:
                break
            self._learn(batch)
            self._clock()
            self.listener.updated(self.last_row, self)
            if self._test_is_due():
                self._test()
            self._clock()
            self._log()
            if time.monotonic() - self.last_save >= self.config.run.checkpoint_every:
                self._save()
        self._clock()
        interrupted = self.stopping or self.ended
        if self._out_of_time() and self.weights.version and not interrupted and self._test_is_due():
            self._test()  # of what was learned before time was up
        if self.last_row:
            self.listener.progress(self.last_row, self)
        self._save()

    def _clock(self) -> None:
        self.counts.seconds = time.monotonic() - self.started

    def _finished(self) -> bool:
        if self.config.run.until == "external":
            return False
        if self.config.run.until == "solved" and self.counts.solved:
            return True
        updates = self.config.run.updates
        over = self.counts.steps >= self.config.run.steps or 0 < updates <= self.weights.version
        return over or self._out_of_time()

    def _out_of_time(self) -> bool:
        """Return whether the minutes are over that this call may take."""
        run = self.config.run
        return run.until != "external" and 0 < 60 * run.minutes <= time.monotonic() - self.called

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
            self._await_event()
            self.counts.waiting += time.monotonic() - began
            if self.channel.plays_here:
                self.counts.waiting -= self.counts.collecting - played
        return batch

    def _await_event(self) -> None:
        match self.channel.receive(POLL):
            case Trajectory() as trajectory:
                self._arrive(trajectory)
            case EvalResult() as result:
                self.results[result.part] = result.evaluation
            case Fault() as fault:
                self._fault(fault)
            case WorkerLost() as lost:
                self._lost(lost)
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

    def _fault(self, fault: Fault) -> None:
        lane = f"lane {fault.lane}, " if fault.lane >= 0 else "a test, "
        where = f"{lane}episode {fault.episode}, seed {fault.seed}"
        text = f"the environment failed in {fault.worker} ({where}); it is replaced"
        number = fault.lane if fault.lane >= 0 else None
        self._count_fault(FaultReport(fault.worker, text, number, fault.episode, fault.seed, fault.text))

    def _lost(self, lost: WorkerLost) -> None:
        crash_site = lost.crash_site
        where = self._skip(crash_site) if crash_site is not None else ""
        if lost.fault:
            text = f"{lost.worker} was lost ({lost.reason}{where}); it is replaced"
            self._count_fault(FaultReport(lost.worker, text, *self._place(crash_site), lost=True))
        elif not lost.moved:
            self.listener.lost(lost, f"{lost.worker}: {lost.reason}; its shards go to another")
        self.unheld.update(lost.shards)
        for order in lost.orders:
            if isinstance(order, Order):
                self._order(order.shard, order.sequence, order.agent)
            elif (
                crash_site is not None
                and crash_site.shard == TESTING
                and crash_site.episode in order.episodes
            ):
                self.channel.order(replace(order, skip=(*order.skip, crash_site.episode)))
            else:
                self.channel.order(order)

    def _skip(self, crash_site: CrashSite) -> str:
        """Note that an episode is not played again, as it would crash the next worker; say which it is."""
        episode = crash_site.episode
        if episode < 0:
            return ""
        if crash_site.shard == TESTING:
            return f", in a test, episode {episode}"
        if crash_site.shard not in self.states:
            return ""
        self.states[crash_site.shard] = self.states[crash_site.shard].skipping(crash_site.lane, episode)
        lane, _, seed = self._place(crash_site)
        return f", in lane {lane}, episode {episode}, seed {seed}, which is not played again"

    def _place(self, crash_site: CrashSite | None) -> tuple[int | None, int | None, int | None]:
        """Return the lane, episode and seed of a crash, as far as they are known."""
        if crash_site is None or crash_site.episode < 0:
            return None, None, None
        if crash_site.shard not in self.states:
            return None, crash_site.episode, None
        lane = crash_site.shard * self.layout.lanes + crash_site.lane
        return lane, crash_site.episode, env_seed(self.config.run.seed, lane, crash_site.episode)

    def _count_fault(self, report: FaultReport) -> None:
        self.counts.faults += 1
        self.listener.fault(report, self)
        if not self.budget.allows(time.monotonic()):
            last = (report.traceback or report.text).strip().splitlines()[-1]
            raise EnvError(
                f"{self.config.env.id} failed more than {self.budget.limit} times within an hour "
                f"(run.max_faults); last: {last}"
            )

    def _test_is_due(self) -> bool:
        """Return whether to test: tests cost as much as learning, so they are rare far from the goal.

        Decided by counts alone, never by the clock: the same seed tests and stops at the same step.
        """
        counts = self.counts
        if self._finished():
            return counts.tested_at != counts.steps
        if counts.steps < counts.next_test or not self.recent:
            return False
        newest = float(np.mean(list(self.recent)[-NEWEST_EPISODES:]))
        if counts.first_mean is None:
            counts.first_mean = newest
        share = self.config.run.test_share
        if self.solved_at is not None:
            way = abs(self.solved_at - counts.first_mean)
            if newest >= self.solved_at:
                return True
            if newest >= self.solved_at - NEAR * way:
                share *= 2
        return counts.test_steps <= share * counts.steps

    def _test(self) -> None:
        began = time.monotonic()
        counts, episodes = self.counts, self.config.run.test_episodes
        result = self._play_while_promising(0, self.config.run.margin, last=self._finished())
        if result is None:
            return
        confirmed: Evaluation | None = None
        if self._passed(result):
            confirmed = self._play_while_promising(episodes, CONFIRMING * self.config.run.margin)
            if confirmed is None:
                return
        counts.tests += 1
        counts.tested_at = counts.steps
        counts.test_steps += result.steps + (0 if confirmed is None else confirmed.steps)
        counts.last_mean = result.mean
        counts.next_test = counts.steps + self.config.run.test_every
        was_solved = counts.solved
        solved_now = confirmed is not None and self._confirm(confirmed)
        better = counts.best_mean is None or result.mean > counts.best_mean
        if solved_now if was_solved else solved_now or better:  # a confirmed agent makes way for such alone
            counts.best_mean, counts.best_steps = counts.last_mean, counts.steps
            self.save_best(self.weights)
        counts.testing += time.monotonic() - began
        self.listener.tested(result, self)

    def _passed(self, result: Evaluation) -> bool:
        """Return whether a test's mean is far enough above the goal, or at the end of the steps above it."""
        if self.solved_at is None or result.episodes < self.config.run.test_episodes:
            return False
        margin = 0.0 if self.counts.steps >= self.config.run.steps else self.config.run.margin
        return result.mean - margin * result.error >= self.solved_at

    def _confirm(self, result: Evaluation) -> bool:
        """Return whether a second test, by which the agent was not chosen, confirms that it is solved.

        Of many tests one is lucky, so the mean of a passed test is too high: of an agent whose true mean lies
        below the goal one test in fifty passes, and a run makes a dozen. The second test is a single one.
        """
        assert self.solved_at is not None
        whole = result.episodes >= self.config.run.test_episodes
        bound = result.mean - CONFIRMING * self.config.run.margin * result.error
        if whole and bound >= self.solved_at:
            self.counts.solved, self.counts.last_mean = True, result.mean
            return True
        self.listener.said(
            f"a test passed, but {result.episodes} other episodes have a mean of {figures(result.mean)} "
            f"(goal {self.solved_at:g}); not counted as solved"
        )
        return False

    def _play_while_promising(self, first: int, margin: float, last: bool = False) -> Evaluation | None:
        """Play a test from episode `first` on; only a few episodes if they leave no hope. None if stopped."""
        episodes = self.config.run.test_episodes
        result = self._play(first, min(FIRST_EPISODES, episodes))
        if result is None or result.episodes >= episodes:
            return result
        if self.solved_at is None or last or result.promising(self.solved_at, episodes, margin):
            rest = self._play(first + FIRST_EPISODES, episodes - FIRST_EPISODES)
            return result + rest if rest is not None else None
        return result

    def _play(self, first: int, count: int) -> Evaluation | None:
        """Play episodes of a test, in as many parts as there are shards; None when asked to stop."""
        seed = hash_seed(self.config.run.seed, TEST, self.counts.tests)
        bounds = [first + count * part // len(self.shards) for part in range(len(self.shards) + 1)]
        parts = [(part, a, b) for part, (a, b) in enumerate(pairwise(bounds)) if b > a]
        self.results.clear()
        for part, start, end in parts:
            self.channel.order(EvalOrder(part, self.weights.version, seed, start, end - start))
        while len(self.results) < len(parts):
            if self.stopping or self.ended:
                return None
            self._await_event()
        found = [self.results[part] for part, _, _ in parts]
        return sum(found[1:], start=found[0])

    def _log(self) -> None:
        now = time.monotonic()
        if now - self.last_log >= max(LOG_INTERVAL, self.counts.seconds / LOG_ROWS):
            self.last_log = now
            self.listener.progress(self.last_row, self)

    def _save(self) -> None:
        self.save(self)
        self.last_save = time.monotonic()
