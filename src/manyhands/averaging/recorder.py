"""Writes a parent's run directory, and shows its progress."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from manyhands.averaging.child_stats import ParentStats
from manyhands.averaging.protocol import AveragingConfig
from manyhands.core.errors import RunError
from manyhands.core.texts import figures, lines
from manyhands.core.weights import Weights
from manyhands.runs import store
from manyhands.runs.agent import judge
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.eventlog import EventLog
from manyhands.runs.loggers.choose import Log, Loggers, choose
from manyhands.runs.metrics import MetricsLog
from manyhands.runs.plan import Plan
from manyhands.runs.store import Run
from manyhands.system.program import program

if TYPE_CHECKING:
    from manyhands.averaging.parent import Parent

LINE_INTERVAL, LIVE_INTERVAL = 2.0, 0.5
SAVE_INTERVAL = 5.0
"""Seconds between two checkpoints for a resume."""
MOST_PENDING = 4
"""Most checkpoints that wait for a slow disk. Further exchanges then wait, too: none that is kept gets lost,
and each that waits holds a copy of the weights."""
PENDING_TURN = 0.05
REPORT_EPISODES = 100
HEARD = 20
"""Exchanges of others after which the returns that a lost child last reported no longer count."""


@dataclass(frozen=True)
class ParentSetup:
    """A parent's run before it listens."""

    run: Run
    plan: Plan
    averaging: AveragingConfig
    first: Weights
    stats: ParentStats


class ParentRecorder:
    """Writes a parent's run directory, and shows its progress."""

    def __init__(self, begun: ParentSetup, quiet: bool, log: Log = "none") -> None:
        self.run, self.plan, self.averaging, self.quiet = begun.run, begun.plan, begun.averaging, quiet
        self.console, self.errors = Console(highlight=False), Console(stderr=True, highlight=False)
        self.live: Live | None = None
        self.began = time.monotonic() - begun.stats.seconds
        self.address = ""
        self.last_line = self.last_save = 0.0
        self.last_shown = (-1, -1)  # exchanges and connected children
        every = self.averaging.checkpoint_every
        self.next_kept = begun.first.version - begun.first.version % every + every
        self.kept_version = -1
        self.loggers = Loggers(choose(log), self.said)
        self.events = EventLog(begun.run.path)
        try:
            self.log = MetricsLog(begun.run, begun.stats.steps, self.loggers)
        except (KeyError, TypeError) as error:
            raise RunError(f"{begun.run.metrics_path} is damaged: a row without {error}") from error
        self.saver = Saver()

    def __enter__(self) -> "ParentRecorder":
        if not self.quiet and self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
        self.saver.finish()
        self.log.close()
        self.events.close()

    def begin(self, resumed: bool) -> None:
        """Write the start event, with all settings."""
        settings = {**self.plan.config.to_plain(), "averaging": asdict(self.averaging)}
        self.events.write("start", resumed=resumed, settings=settings)

    def listening(self, address: str, needed: str) -> None:
        """Show the address; `needed`: what a child has to be given beside it."""
        self.address = address
        if self.quiet:
            print(address, flush=True)
            return
        averaging, config = self.averaging, self.plan.config
        print(
            f"{config.env.id} with {config.run.algo}, alpha {averaging.alpha:g}, beta {averaging.beta:g}, "
            f"until {averaging.exchanges:,} exchanges; saved to {self.run.path}\n"
            f"Children join with: manyhands child {address}{needed}",
            flush=True,
        )

    def said(self, text: str) -> None:
        self.events.write("notice", text=text)
        console = self.errors if self.live is None else self.live.console
        console.print(Text(lines(text)), soft_wrap=True)

    async def room(self) -> None:
        """Wait until the disk has caught up so far that another exchange may be made."""
        while self.saver.pending() >= MOST_PENDING:
            await asyncio.sleep(PENDING_TURN)

    def exchanged(self, parent: "Parent") -> None:
        """Take a snapshot where one is due. It is saved later, so that the child has its answer first."""
        now = time.monotonic()
        kept = parent.version >= self.next_kept
        if kept:
            self.next_kept += self.averaging.checkpoint_every
        if kept or (now - self.last_save >= SAVE_INTERVAL and not self.saver.pending()):
            self.last_save = now
            self.saver.submit(partial(self.save, self.snapshot(parent), "running", kept))

    def snapshot(self, parent: "Parent") -> "Snapshot":
        """Return the weights and counts of one moment; called while nobody exchanges or joins."""
        stats = ParentStats(parent.children, parent.forgotten, round(time.monotonic() - self.began, 3))
        return Snapshot(parent.weights(), stats.to_plain(), stats.steps, mean_return(parent))

    def turned(self, parent: "Parent") -> None:
        """Show progress, also when nobody exchanges; raise what went wrong with saving."""
        self.saver.pending()
        now = time.monotonic()
        interval = LINE_INTERVAL if self.live is None else LIVE_INTERVAL
        if self.quiet or now - self.last_line < interval:
            return
        self.last_line = now
        if self.live is not None:
            table = _children(parent)
            table.caption = Text(f"{self.address}, {now - self.began:.0f} s; Ctrl-C stops and saves")
            self.live.update(table)
            return
        connected = sum(child.connected for child in parent.children.values())
        if (parent.version, connected) == self.last_shown:
            return
        self.last_shown = (parent.version, connected)
        mean = mean_return(parent)
        print(
            f"{now - self.began:6.1f} s  {parent.version:>6,} exchanges  children {connected}  "
            f"return {'-' if mean is None else figures(mean)}",
            flush=True,
        )

    def save(self, snapshot: "Snapshot", status: str, kept: bool = False) -> None:
        """Save a checkpoint for a resume; before it, when `kept`, one for good, with a row of metrics."""
        weights, stats = snapshot.weights, snapshot.stats
        counts = {"steps": snapshot.steps, "exchanges": weights.version}
        made = Checkpoint(self.plan.spec, self.plan.spaces.action, weights, progress=stats)
        if kept and weights.version != self.kept_version:
            self.kept_version = weights.version
            self.run.save(f"exchange-{weights.version:06}", made)
            row = {**counts, "version": weights.version, "return_mean": snapshot.mean_return}
            self.log.write({**row, **stats})
            self.events.write("checkpoint", which=f"exchange-{weights.version:06}", **counts)
        self.run.save(store.LAST, made)
        state = {"status": status, **counts, "version": weights.version, "updated": store.now()}
        self.run.save_status({**state, **stats})

    def finish(self, parent: "Parent", status: str) -> None:
        """Save the final state, after all that still waits to be saved; raise what went wrong with any."""
        failure = self.saver.finish()
        self.save(self.snapshot(parent), "failed" if failure else status, kept=parent.over)
        error = {} if failure is None else {"error": repr(failure)}
        self.events.write("end", status="failed" if failure else status, exchanges=parent.version, **error)
        if failure is not None:
            raise failure

    def report(self, parent: "Parent") -> None:
        """Show the children's counts, and test the averaged agent."""
        if self.quiet:
            return
        self.console.print(_children(parent))
        result = judge(self.run, REPORT_EPISODES, which=store.LAST)
        self.run.save_status({**self.run.status(), "last_mean": result.mean, "tested": result.episodes})
        solved = "" if result.goal is None else f" (goal {result.goal:g})"
        what = "Done" if parent.over else "Stopped"
        print(
            f"{what} after {parent.version:,} exchanges; {REPORT_EPISODES} episodes: "
            f"mean {figures(result.mean)}, sd {figures(result.sd)}{solved}. Saved to {self.run.path}."
        )
        if not parent.over:
            print(f"Go on with:\n  {program()} parent --resume {self.run.path}")


@dataclass(frozen=True)
class Snapshot:
    """A parent at one moment, for a thread that saves it while others join."""

    weights: Weights
    stats: dict[str, Any]  # of `ParentStats`
    steps: int
    mean_return: float | None


class Saver:
    """Saves snapshots one after the other in a thread, because on an SD card each takes noticeably long."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "save")
        self.waiting: deque[Future[None]] = deque()

    def submit(self, save: Callable[[], None]) -> None:
        self.waiting.append(self.thread.submit(save))

    def pending(self) -> int:
        """Return how many are not saved yet; raise what went wrong with an earlier one."""
        while self.waiting and self.waiting[0].done():
            self.waiting.popleft().result()
        return len(self.waiting)

    def finish(self) -> BaseException | None:
        """Wait for all; return what went wrong first."""
        self.thread.shutdown(wait=True)
        failures = [failure for save in self.waiting if (failure := save.exception()) is not None]
        self.waiting.clear()
        return failures[0] if failures else None


def mean_return(parent: "Parent") -> float | None:
    """Return the mean return of children that are connected or were heard lately."""
    since = parent.version - max(HEARD, 4 * len(parent.children))
    heard = [child for child in parent.children.values() if child.connected or child.last >= since]
    recent = [child.recent for child in heard if child.recent is not None]
    return sum(recent) / len(recent) if recent else None


def _children(parent: "Parent") -> Table:
    table = Table(title=f"{parent.version:,} of {parent.averaging.exchanges:,} exchanges", box=None)
    for heading in ("child", "exchanges", "stale", "steps", "return", "round trip", "MB in", "MB out", ""):
        table.add_column(heading, justify="left" if heading in ("child", "") else "right")
    for name, child in sorted(parent.children.items()):
        table.add_row(
            Text(name),
            f"{child.exchanges:,}",
            f"{child.staleness:.1f}",
            f"{child.steps:,}",
            "-" if child.recent is None else figures(child.recent),
            f"{1000 * child.round_trip:.1f} ms",
            f"{child.bytes_in / 1e6:.1f}",
            f"{child.bytes_out / 1e6:.1f}",
            "" if child.connected else "gone",
        )
    lost = parent.forgotten
    if lost.children:
        table.add_row(f"{lost.children:,} forgotten", f"{lost.exchanges:,}", "", f"{lost.steps:,}")
    return table
