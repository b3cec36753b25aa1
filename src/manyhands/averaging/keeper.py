"""A parent's run directory, and what is shown while it is written."""

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from manyhands.agent import judge
from manyhands.averaging.protocol import AveragingConfig
from manyhands.plan import Plan
from manyhands.policy import Weights
from manyhands.runs import store
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.metrics import MetricsLog
from manyhands.runs.store import Run

if TYPE_CHECKING:
    from manyhands.averaging.parent import Parent

LINE_INTERVAL, LIVE_INTERVAL = 2.0, 0.5
SAVE_INTERVAL = 5.0
"""Seconds between two checkpoints for a resume."""
REPORT_EPISODES = 100
HEARD = 20
"""Exchanges of others after which what a lost child said of its returns no longer counts."""


@dataclass(frozen=True)
class Begun:
    """A parent's run before it listens."""

    run: Run
    plan: Plan
    averaging: AveragingConfig
    first: Weights
    children: dict[str, Any]
    seconds: float = 0.0


class Keeper:
    """Writes a parent's run directory, and shows how it goes."""

    def __init__(self, begun: Begun, quiet: bool) -> None:
        self.run, self.plan, self.averaging, self.quiet = begun.run, begun.plan, begun.averaging, quiet
        self.console, self.errors = Console(highlight=False), Console(stderr=True, highlight=False)
        self.live: Live | None = None
        self.began = time.monotonic() - begun.seconds
        self.address = ""
        self.last_line = self.last_save = 0.0
        self.last_shown = (-1, -1)  # exchanges and connected children
        every = self.averaging.checkpoint_every
        self.next_kept = begun.first.version - begun.first.version % every + every
        self.kept_version = -1
        self.log = MetricsLog(begun.run, sum(child["steps"] for child in begun.children.values()))
        self.saving = asyncio.Lock()

    def __enter__(self) -> "Keeper":
        if not self.quiet and self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
        self.log.close()

    def listening(self, address: str, needed: str) -> None:
        """`needed`: what a child has to be given beside the address."""
        self.address = address
        if self.quiet:
            print(address, flush=True)
            return
        averaging, config = self.averaging, self.plan.config
        print(
            f"{config.env.id} with {config.run.algo}, alpha {averaging.alpha:g}, beta {averaging.beta:g}, "
            f"until {averaging.exchanges:,} exchanges; run in {self.run.path}\n"
            f"Children join with: manyhands child {address}{needed}",
            flush=True,
        )

    def said(self, text: str) -> None:
        console = self.errors if self.live is None else self.live.console
        console.print(Text(text), soft_wrap=True)

    async def exchanged(self, parent: "Parent") -> None:
        now = time.monotonic()
        kept = parent.version >= self.next_kept
        if kept:
            self.next_kept += self.averaging.checkpoint_every
        if kept or (now - self.last_save >= SAVE_INTERVAL and not self.saving.locked()):
            self.last_save = now
            now_known = Snapshot.of(parent)  # here, where nobody joins meanwhile
            async with self.saving:  # in a thread: on an SD card it takes long enough to be felt
                await asyncio.to_thread(self.save, now_known, "running", kept)

    def turned(self, parent: "Parent") -> None:
        """Shows how it goes, also when nobody exchanges."""
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
            f"return {'-' if mean is None else f'{mean:.1f}'}",
            flush=True,
        )

    def save(self, snapshot: "Snapshot", status: str, kept: bool = False) -> None:
        """For a resume; and first, when `kept`, for good, with a row of metrics."""
        weights, children = snapshot.weights, snapshot.children
        counts = {"steps": sum(child["steps"] for child in children.values()), "exchanges": weights.version}
        seconds = round(time.monotonic() - self.began, 3)
        books = {"children": children, "seconds": seconds}
        made = Checkpoint(self.plan.spec, self.plan.spaces.action, weights, progress=books)
        if kept and weights.version != self.kept_version:
            self.kept_version = weights.version
            self.run.save(f"exchange-{weights.version:06}", made)
            row: dict[str, Any] = {**counts, "version": weights.version, "seconds": seconds}
            row["return_mean"] = snapshot.mean_return
            self.log.write({**row, "children": children})
        self.run.save(store.LAST, made)
        state = {"status": status, **counts, "version": weights.version, "updated": store.now()}
        self.run.save_status({**state, "seconds": seconds, "children": children})

    def report(self, parent: "Parent") -> None:
        """The children's books, and what the averaged agent is worth."""
        if self.quiet:
            return
        self.console.print(_children(parent))
        result, goal = judge(self.run, REPORT_EPISODES, which=store.LAST)
        self.run.save_status({**self.run.status(), "last_mean": result.mean, "tested": result.episodes})
        solved = "" if goal is None else f" (goal {goal:g})"
        what = "Done" if parent.over else "Stopped"
        print(
            f"{what} after {parent.version:,} exchanges; {REPORT_EPISODES} episodes: mean {result.mean:.1f}, "
            f"sd {result.sd:.1f}{solved}. The run lies in {self.run.path}."
        )
        if not parent.over:
            print(f"Go on: manyhands parent --resume {self.run.path}")


@dataclass(frozen=True)
class Snapshot:
    """A parent at one moment, for a thread that saves it while others join."""

    weights: Weights
    children: dict[str, dict[str, Any]]
    mean_return: float | None

    @classmethod
    def of(cls, parent: "Parent") -> "Snapshot":
        children = {name: child.to_plain() for name, child in parent.children.items()}
        return cls(parent.weights(), children, mean_return(parent))


def mean_return(parent: "Parent") -> float | None:
    """Of those who are connected or were heard lately."""
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
            "-" if child.recent is None else f"{child.recent:.1f}",
            f"{1000 * child.round_trip:.1f} ms",
            f"{child.bytes_in / 1e6:.1f}",
            f"{child.bytes_out / 1e6:.1f}",
            "" if child.connected else "gone",
        )
    return table
