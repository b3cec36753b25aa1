"""The display of a run while it goes: a live panel on a terminal, plain lines elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from manyhands.channels.base import WorkerStatus
from manyhands.config.settings import Config
from manyhands.core.evaluation import Evaluation
from manyhands.core.texts import figures, lines
from manyhands.runs.own_code import of_callable
from manyhands.runs.store import Run
from manyhands.runs.under_way import UnderWay
from manyhands.system.program import program

if TYPE_CHECKING:
    from manyhands.roles.executor import Executor

LINE_INTERVAL = 2.0
"""Seconds between two plain lines."""
WIDE = 108
"""Columns that a panel of four pairs a row wants; a narrower terminal gets two."""
WORKER_ROWS = 16
"""Workers that are listed by name."""
SPEED_WINDOW = 5.0
"""Seconds over which steps/s are measured."""


def is_watched() -> bool:
    """Say whether somebody sees what is printed: on a terminal, or in a notebook."""
    ipython = sys.modules.get("IPython")  # which is there in every notebook
    shell = None if ipython is None else ipython.get_ipython()
    in_notebook = shell is not None and "IPKernelApp" in shell.config
    return in_notebook or (sys.stdout is not None and sys.stdout.isatty())


class View:
    """Shows progress. `quiet` shows nothing but faults, which go to stderr.

    Without a word on it, it is brief where nobody watches: how a run begins and ends, on stderr, because
    stdout is the program's own.
    """

    speed_unit = "steps/s"

    def __init__(self, quiet: bool | None = False) -> None:
        self.quiet, self.brief = bool(quiet), quiet is None and not is_watched()
        self.console = Console(highlight=False)
        self.errors = Console(stderr=True, highlight=False)
        self.live: Live | None = None
        self.last_line = 0.0
        self.marks: deque[tuple[float, int]] = deque()
        self.latest: Mapping[str, Any] = {}
        self.under_way = UnderWay()
        self.config: Config
        self.solved_at: float | None = None

    def start(self, run: Run, config: Config, solved_at: float | None) -> None:
        self.config, self.solved_at, self.run = config, solved_at, run
        if self.quiet:
            return
        if opening := self.opening(run):
            self._print(opening)
        if self.console.is_terminal and not self.brief:
            self.live = Live(Text("starting the workers"), console=self.console, refresh_per_second=8)
            self.live.start()

    def opening(self, run: Run) -> str:
        config = self.config
        goal = f", solved at {self.solved_at:g}" if self.solved_at is not None else ""
        how = f"{config.run.algo}, {config.run.mode}, seed {config.run.seed}"
        return f"{config.env.id} with {how}{goal}; run in {run.path}"

    def progress(self, row: Mapping[str, Any], executor: "Executor") -> None:
        self.latest = row
        self._show(executor)

    def waiting(self, executor: "Executor") -> None:
        self._show(executor)

    def tested(self, result: Evaluation, executor: "Executor") -> None:
        self._show(executor)

    def said(self, text: str) -> None:
        console = self.live.console if self.live is not None else self.errors
        console.print(Text(lines(text), style="yellow"), soft_wrap=True)  # others chose some of its words

    def _show(self, executor: "Executor") -> None:
        if self.quiet or self.brief:
            return
        speed = self._speed(executor.counts.steps)
        self.under_way.watch(executor)
        if self.live is not None:
            self.live.update(self.panel(executor, speed))
        elif executor.counts.seconds and time.monotonic() - self.last_line >= LINE_INTERVAL:
            self.last_line = time.monotonic()
            print(self.line(executor, speed), flush=True)

    def _speed(self, steps: int) -> float:
        now = time.monotonic()
        if not self.marks or steps != self.marks[-1][1]:
            self.marks.append((now, steps))
        while len(self.marks) > 2 and now - self.marks[0][0] > SPEED_WINDOW:
            self.marks.popleft()
        (before, first), last = self.marks[0], self.marks[-1][1]
        return (last - first) / (now - before) if now > before else 0.0

    def line(self, executor: "Executor", speed: float) -> str:
        counts = executor.counts
        return (
            f"{counts.seconds:6.1f} s  {self.amount(executor):>15}{self.under_way.text()}  "
            f"{speed:>7,.0f} {self.speed_unit}  return {number(counts.recent_mean):>7}  "
            f"test {number(counts.last_mean):>7}  best {number(counts.best_mean):>7}  "
            f"workers {len(executor.channel.workers())}  lag {executor.lag:g}  {self._queued(executor)}"
            f"collect {counts.collecting:.0f} wait {counts.waiting:.0f} "
            f"learn {counts.learning:.0f} test {counts.testing:.0f} s"
        )

    def _queued(self, executor: "Executor") -> str:
        backlog = executor.channel.backlog()
        return "" if backlog is None else f"queue {backlog}  "

    def panel(self, executor: "Executor", speed: float) -> Panel:
        counts, statuses = executor.counts, executor.channel.workers()
        booked = ("collecting", "waiting", "learning", "broadcasting", "testing")
        pairs = [
            *self.counted(executor, speed),
            ("last test", number(counts.last_mean)),
            ("best test", number(counts.best_mean)),
            ("goal", number(self.solved_at)),
            ("workers", str(len(statuses))),
            ("lag", f"{executor.lag:g}"),
            ("faults", str(counts.faults)),
            ("dropped", f"{counts.dropped:,}"),
            *((name, _share(getattr(counts, name), counts.seconds)) for name in booked),
        ]
        backlog = executor.channel.backlog()
        if backlog is not None:
            pairs.append(("data queue", f"{backlog:,}"))
        parts: list[Any] = [
            self.grid(pairs),
            Padding(bar(executor), 0),  # which ends its line, or the workers' header would be lost behind it
            self.under_way,
        ]
        if any(status.host for status in statuses):
            parts.append(_worker_table(statuses, executor.weights.version))
        silent = [status for status in statuses if status.busy and status.quiet > 10]
        for status in silent:
            parts.append(Text(f"{status.name} has said nothing for {status.quiet:.0f} s", style="yellow"))
        title = f"{self.config.env.id}  {self.config.run.algo}  {self.config.run.mode}"
        return self.framed(parts, title, "Ctrl-C stops and saves")

    def amount(self, executor: "Executor") -> str:
        """Return how much was trained, in words."""
        return f"{executor.counts.steps:,} steps"

    def counted(self, executor: "Executor", speed: float) -> list[tuple[str, str]]:
        return counted(executor, speed)

    def grid(self, pairs: Sequence[tuple[str, str]]) -> Table:
        """Return names and values, as many in a row as there is room for."""
        in_row = 4 if self.console.width >= WIDE else 2
        table = Table.grid(padding=(0, 1))
        for _ in range(in_row):
            table.add_column(justify="right", style="dim", min_width=10)
            table.add_column(min_width=14)
        for start in range(0, len(pairs), in_row):
            table.add_row(*(cell for pair in pairs[start : start + in_row] for cell in pair))
        return table

    def framed(self, parts: Sequence[Any], title: str, subtitle: str) -> Panel:
        width = WIDE if self.console.width >= WIDE else None
        return Panel(Group(*parts), title=Text(title), subtitle=subtitle, width=width)

    def stop(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def end(self, run: Run, executor: "Executor") -> None:
        if self.quiet:
            return
        counts = executor.counts
        spent = f"{self.amount(executor)} and {counts.seconds:.1f} s"
        test = f"test mean {number(counts.last_mean)}"
        if executor.stopping:
            again = self.resuming(run, executor.config)
            self._print(f"Stopped after {spent}; saved in {run.path}. Go on with:\n  {again}")
            return
        if counts.solved:
            whole = (
                f"best test mean {number(counts.best_mean)}" if executor.config.run.until == "steps" else test
            )
            self._print(f"Solved in {spent}: {whole}, goal {self.solved_at:g}.")
        elif self.solved_at is not None:
            self._print(f"Not solved in {spent}: {self._why_not(counts.best_mean)}.")
        else:
            self._print(f"Finished after {spent}: {test}.")
        self._print(f"Saved to {run.path}. Try next:\n  {self.next_step(run, executor.config)}")

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr if self.brief else sys.stdout, flush=True)

    def next_step(self, run: Run, config: Config) -> str:
        """Return what to type next."""
        if of_callable(config.env.id):
            return f"manyhands.load({str(run.path)!r}, env=...) in Python, with the same callable"
        return f"{program()} eval {run.path}"

    def resuming(self, run: Run, config: Config) -> str:
        """Return what to type to go on with the run."""
        if of_callable(config.env.id):
            return f"manyhands.train(..., resume={str(run.path)!r}) in Python, with the same callable"
        return f"{program()} train --resume {run.path}"

    def _why_not(self, best: float | None) -> str:
        """Say what the best test was; one above its goal was not far enough above it, or not confirmed."""
        assert self.solved_at is not None
        goal = f"goal {self.solved_at:g}"
        if best is None or best < self.solved_at:
            return f"best test {number(best)}, {goal}"
        return (
            f"the best test, {number(best)}, is above the {goal}, but by less than run.margin asks for, or a "
            "second test did not confirm it"
        )


def bar(executor: "Executor") -> ProgressBar:
    """Return the progress bar: the share used of what a run may take; full and green once it is solved."""
    if executor.counts.solved and executor.config.run.until == "solved":
        return ProgressBar(total=1.0, completed=1.0, finished_style="green")
    return ProgressBar(total=1.0, completed=executor.share, complete_style="cyan", finished_style="cyan")


def _worker_table(statuses: Sequence[WorkerStatus], version: int) -> Table:
    """Return a table of workers on other machines, each with its processes together."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("worker", "host"):
        table.add_column(title)
    for title in ("procs", "heard", "steps/s", "version", "lag"):
        table.add_column(title, justify="right")
    by_name: dict[tuple[str, str], list[WorkerStatus]] = {}
    for status in statuses:
        by_name.setdefault((status.name, status.host), []).append(status)
    for (name, host), players in sorted(by_name.items())[:WORKER_ROWS]:
        played = max(player.version for player in players)
        table.add_row(
            Text(name),  # not markup: others chose these names
            Text(host),
            str(len(players)),
            f"{max(player.quiet for player in players):.0f} s",
            f"{sum(player.speed for player in players):,.0f}",
            str(played) if played >= 0 else "-",
            str(version - played) if played >= 0 else "-",
        )
    if len(by_name) > WORKER_ROWS:
        table.add_row(f"and {len(by_name) - WORKER_ROWS} more")
    return table


def counted(executor: "Executor", speed: float) -> list[tuple[str, str]]:
    """Return what there is to say of any training, with its names."""
    counts = executor.counts
    return [
        ("steps", f"{counts.steps:,}"),
        ("steps/s", f"{speed:,.0f}"),
        ("episodes", f"{counts.episodes:,}"),
        ("time", f"{counts.seconds:.1f} s"),
        ("return", number(counts.recent_mean)),
    ]


def number(value: float | None) -> str:
    return figures(value) if value is not None else "-"


def _share(seconds: float, whole: float) -> str:
    return f"{seconds:.1f} s  {100 * seconds / whole:.0f} %" if whole > 0 else "-"
