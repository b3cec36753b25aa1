"""Counts what is being played but not learned yet, while a rollout lasts."""

import time
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from manyhands.core.heartbeat import BEATS, SHARD, TESTING

if TYPE_CHECKING:
    from manyhands.roles.executor import Executor

SLOW = 2.0
"""Seconds without an update after which these steps are shown."""


class UnderWay:
    """The steps that workers of this machine have played since the last update, by their heartbeats.

    Of channels to other machines nothing is known. Read whenever it is drawn, and shown only while an update
    takes long: a rollout of a slow environment may take minutes, in which no step is counted yet.
    """

    def __init__(self) -> None:
        self.heartbeats: list[memoryview] = []
        self.steps, self.before = -1, 0
        self.since = time.monotonic()

    def watch(self, executor: "Executor") -> None:
        channel = executor.channel
        players = (*getattr(channel, "processes", ()), getattr(channel, "collector", None))
        found = (getattr(player, "progress", None) for player in players)
        self.heartbeats = [heartbeat for heartbeat in found if isinstance(heartbeat, memoryview)]
        if executor.counts.steps != self.steps or self._testing():
            self.steps, self.before, self.since = executor.counts.steps, self._beats(), time.monotonic()

    def text(self) -> str:
        """Return about how many steps, or nothing; making and resetting an environment count as one, too."""
        played = self._beats() - self.before
        if played <= 0 or self._testing() or time.monotonic() - self.since < SLOW:
            return ""
        return f" (+{played:,} under way)"

    def _beats(self) -> int:
        return sum(heartbeat[BEATS] for heartbeat in self.heartbeats)

    def _testing(self) -> bool:
        return any(heartbeat[SHARD] == TESTING for heartbeat in self.heartbeats)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text()
        if text:
            yield Text(f"playing{text}", style="dim")
