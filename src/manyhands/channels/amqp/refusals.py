"""The players that are there and do not play this run, and why: what to say where nobody else is there."""

import time

from manyhands.channels.amqp.hearing import label
from manyhands.channels.amqp.tally import MOST_PLAYERS
from manyhands.core.orders import Task
from manyhands.core.texts import one_line

GONE = 15.0
"""Seconds without a hello, of which there is one every five, after which a player is not there any more."""


class Refusals:
    """The latest refusal of each player that said one."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.heard: dict[str, float] = {}

    def note(self, player: str, text: str) -> None:
        if player in self.texts or len(self.texts) < MOST_PLAYERS:
            self.texts[player], self.heard[player] = text, time.monotonic()

    def note_hello(self, player: str) -> None:
        """Note that a player is still there; one that has not refused is nothing to remember."""
        if player in self.heard:
            self.heard[player] = time.monotonic()

    def forget(self, player: str) -> None:
        """Forget a player that plays after all."""
        self.texts.pop(player, None)
        self.heard.pop(player, None)

    def told(self, task: Task, address: str) -> str:
        """Return what to say where orders wait for a worker."""
        for player in [name for name, heard in self.heard.items() if time.monotonic() - heard > GONE]:
            self.forget(player)
        if not self.texts:
            return f"there is no worker; start one: manyhands worker {address}"
        count = len({label(player).rpartition(".")[0] for player in self.texts})  # without the process
        texts = self.texts.values()
        own = [name for name in (task.env.id, task.layout.action.algo) if ":" in name]
        missing = [name for name in own if any(f"{name} is not allowed here" in text for text in texts)]
        if not missing:
            why = next(reversed(self.texts.values())).removeprefix("cannot play: ")
            there = "1 worker is there, and cannot" if count == 1 else f"{count} workers are there, none can"
            return f"{there} play {one_line(task.env.id, 100)}: {why}"
        there = "1 worker is there, and may not" if count == 1 else f"{count} workers are there, none may"
        allow = " ".join(f"--allow {one_line(name, 100)}" for name in own)
        refused = one_line(missing[0], 100)
        return f"{there} play {refused}; start one with {allow}: manyhands worker {address} {allow}"
