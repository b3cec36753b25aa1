"""What fails in a run: who is told, which episodes are not played again, how many faults a run survives."""

import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.core.errors import EnvError
from manyhands.core.events import CrashSite, Fault, FaultReport, WorkerLost
from manyhands.core.heartbeat import TESTING
from manyhands.core.orders import EvalOrder
from manyhands.core.seeding import env_seed

if TYPE_CHECKING:
    from manyhands.roles.executor import Executor

FAULT_WINDOW = 3600.0
"""Seconds within which `run.max_faults` counts."""


class FaultBudget:
    """A budget of up to `limit` faults within an hour."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.times: deque[float] = deque()

    def allows(self, now: float) -> bool:
        """Count one more fault, and say whether the run survives it."""
        self.times.append(now)
        while now - self.times[0] > FAULT_WINDOW:
            self.times.popleft()
        return len(self.times) <= self.limit


class Faults:
    """The faults of one run."""

    def __init__(self, executor: "Executor") -> None:
        self.executor, self.budget = executor, FaultBudget(executor.config.run.max_faults)

    def failed(self, fault: Fault) -> None:
        """Count an environment that raised an exception, and was replaced."""
        lane = f"lane {fault.lane}, " if fault.lane >= 0 else "a test, "
        where = f"{lane}episode {fault.episode}, seed {fault.seed}"
        text = f"the environment failed in {fault.worker} ({where}); it is replaced"
        number = fault.lane if fault.lane >= 0 else None
        self._count(FaultReport(fault.worker, text, number, fault.episode, fault.seed, fault.text))

    def lost(self, lost: WorkerLost) -> None:
        """Count a worker that is gone, if that was a fault, and skip the episode that it crashed in."""
        crash_site = lost.crash_site
        where = self._skip(crash_site) if crash_site is not None else ""
        if lost.fault:
            text = f"{lost.worker} was lost ({lost.reason}{where}); it is replaced"
            self._count(FaultReport(lost.worker, text, *self._place(crash_site), lost=True))
        elif not lost.moved:
            self.executor.listener.lost(lost, f"{lost.worker}: {lost.reason}; its shards go to another")

    def _skip(self, crash_site: CrashSite) -> str:
        """Note that an episode is not played again, as it would crash the next worker; say which it is."""
        episode = crash_site.episode
        if episode < 0:
            return ""
        if crash_site.shard == TESTING:
            return f", in a test, episode {episode}"
        states = self.executor.states
        if crash_site.shard not in states:
            return ""
        states[crash_site.shard] = states[crash_site.shard].skipping(crash_site.lane, episode)
        lane, _, seed = self._place(crash_site)
        return f", in lane {lane}, episode {episode}, seed {seed}, which is not played again"

    def _place(self, crash_site: CrashSite | None) -> tuple[int | None, int | None, int | None]:
        """Return the lane, episode and seed of a crash, as far as they are known."""
        if crash_site is None or crash_site.episode < 0:
            return None, None, None
        if crash_site.shard not in self.executor.states:
            return None, crash_site.episode, None
        lane = crash_site.shard * self.executor.layout.lanes + crash_site.lane
        return lane, crash_site.episode, env_seed(self.executor.config.run.seed, lane, crash_site.episode)

    def _count(self, report: FaultReport) -> None:
        self.executor.counts.faults += 1
        self.executor.listener.fault(report, self.executor)
        if not self.budget.allows(time.monotonic()):
            last = (report.traceback or report.text).strip().splitlines()[-1]
            raise EnvError(
                f"{self.executor.config.env.id} failed more than {self.budget.limit} times within an hour "
                f"(run.max_faults); last: {last}"
            )


def without(order: EvalOrder, crash_site: CrashSite | None) -> EvalOrder:
    """Return a part of a test as it is given again: without the episode that the last worker crashed in."""
    if crash_site is None or crash_site.shard != TESTING or crash_site.episode not in order.episodes:
        return order
    return replace(order, skip=(*order.skip, crash_site.episode))
