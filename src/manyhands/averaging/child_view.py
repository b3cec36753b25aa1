"""The display of a child: its own training, and its exchanges with its parent."""

from typing import TYPE_CHECKING

from rich.panel import Panel

from manyhands.averaging.child import Exchanger
from manyhands.runs.store import Run
from manyhands.runs.view import View, counted, number

if TYPE_CHECKING:
    from manyhands.roles.executor import Executor


class ChildView(View):
    """The view of a child's run, whose directory is temporary, so that no text points to it."""

    def __init__(self, exchanger: Exchanger, quiet: bool) -> None:
        super().__init__(quiet)
        self.exchanger = exchanger

    def opening(self, run: Run) -> str:
        return ""

    def line(self, executor: "Executor", speed: float) -> str:
        counts, exchanger = executor.counts, self.exchanger
        return (
            f"{counts.seconds:6.1f} s  {counts.steps:>9,} steps  {speed:>7,.0f} steps/s  "
            f"return {number(counts.recent_mean):>7}  {exchanger.exchanges:>6,} exchanges  {self._parent()}"
        )

    def panel(self, executor: "Executor", speed: float) -> Panel:
        exchanger = self.exchanger
        pairs = [
            *counted(executor, speed),
            ("exchanges", f"{exchanger.exchanges:,}"),
            ("round trip", f"{1000 * exchanger.round_trip:.1f} ms"),
            ("parent", self._parent()),
        ]
        title = f"{self.config.env.id}  {self.config.run.algo}  for {exchanger.link.url}"
        return self.framed([self.grid(pairs)], title, "Ctrl-C leaves the parent")

    def _parent(self) -> str:
        return "being looked for" if self.exchanger.link.connection is None else "connected"

    def end(self, run: Run, executor: "Executor") -> None:
        pass
