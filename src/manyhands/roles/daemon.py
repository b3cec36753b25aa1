"""The worker as a daemon: starts players, watches them, and starts them again.

The players are processes of their own, so an environment that crashes or hangs takes one of them and no more.
Their supervisor reads their heartbeats and tells the executors how a player ended.
"""

import os
import random
import signal
import socket
import time
import uuid
from dataclasses import dataclass, field

from manyhands.channels.amqp.address import Address
from manyhands.channels.amqp.connection import BrokerError, Link
from manyhands.channels.amqp.messages import TO_EXECUTORS, Gone
from manyhands.channels.limits import OwnLimits
from manyhands.channels.supervision import PlayingProcess, new_heartbeat, start
from manyhands.config.settings import RunConfig
from manyhands.core import wire
from manyhands.core.errors import RunError
from manyhands.core.heartbeat import (
    BEATS,
    BUSY,
    CHECKING,
    EPISODE,
    HANG_TIMEOUT,
    LANE,
    MEMORY,
    RUN,
    SHARD,
)
from manyhands.system.signals import stop_signals

POLL = 0.1
GRACE = 3.0
"""Seconds that a player has to leave by itself."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds before a player that failed is started again, doubling while it keeps failing."""
LONG_ENOUGH = 10.0
"""Seconds of life after which a player that grew too large is started again at once."""
MOST_REFUSED = 1000


@dataclass(eq=False, kw_only=True)
class Watched(PlayingProcess):
    """A player as its supervisor keeps it; its inboxes start with its name."""

    index: int
    started: float = field(default_factory=time.monotonic)


class Daemon:
    def __init__(
        self,
        url: str,
        procs: int,
        name: str,
        once: bool,
        allowed: list[str],
        limits: OwnLimits | None = None,
    ) -> None:
        self.url, self.procs, self.name, self.once = url, procs, name, once
        self.allowed, self.limits = allowed, limits or OwnLimits()
        self.refused_runs: set[int] = set()  # marks of runs whose environments cannot even be made
        self.stopping = False
        self.welcome = False  # the broker has taken one of the players
        self.pauses = [FIRST_PAUSE] * procs
        self.due: dict[int, float] = dict.fromkeys(range(procs), 0.0)  # index: when to start it
        self.players: list[Watched] = []
        self.code = 0
        self.link = Link(Address.parse(url), _nothing, 1, changed=lambda text: None)

    def check(self) -> None:
        """Refuse a broker that rejects us; one that is not there yet is waited for by the players."""
        try:
            self.link.start()
        except BrokerError as error:
            if not error.absent:
                raise

    def run(self) -> int:
        with stop_signals(self._stop):
            self._serve()
        return self.code

    def _serve(self) -> None:
        try:
            while not self.stopping and (self.players or self.due):
                for index in [i for i, due in self.due.items() if due <= time.monotonic()]:
                    del self.due[index]
                    self._start(index)
                for player in list(self.players):
                    self._watch(player)
                time.sleep(POLL)
        finally:
            self._end()

    def _stop(self) -> None:
        self.stopping = True

    def _start(self, index: int) -> None:
        name = f"manyhands.player.{self.name}.{uuid.uuid4().hex[:8]}-{index}"
        arguments = ["--parent", str(os.getpid()), "--worker", self.name, "--process", name]
        arguments += ["--once"] * self.once
        limits = self.limits
        arguments += ["--limits", f"{limits.memory},{limits.lanes},{limits.message}"]
        for pattern in self.allowed:
            arguments += ["--allow", pattern]
        for mark in self.refused_runs:
            arguments += ["--refuse-run", str(mark)]
        with new_heartbeat() as (progress_file, progress):
            arguments += ["--progress", str(progress_file)]
            process = start("manyhands.roles.player_process", arguments, [progress_file], f"{self.url}\n")
        self.players.append(Watched(name, process, progress, index=index))

    def _watch(self, player: Watched) -> None:
        code = player.process.poll()
        if code is not None:
            self._bury(player, code)
            return
        signs = player.progress
        player.kill_if_hung(bool(signs[BUSY]), signs[HANG_TIMEOUT] / 1000)
        self.welcome = self.welcome or signs[BEATS] > 0
        limit = min(signs[MEMORY] or RunConfig.worker_memory, self.limits.memory)
        if not player.reason:
            player.kill_if_larger(limit, str(limit))

    def _bury(self, player: Watched, code: int) -> None:
        self.players.remove(player)
        player.kill_group()
        signs, busy = player.progress, bool(player.progress[BUSY])
        if code == 0 and self.once and not busy:
            return
        if code > 0 and not self.welcome and not signs[BEATS]:
            # A wrong password, a wrong certificate. The next one would fare no better.
            self.code = code
            self.stopping = True
            return
        reason, guilty = player.why_it_ended(code), busy and player.crashed(code)
        unmakeable = busy and signs[SHARD] == CHECKING and (guilty or player.retired)
        if unmakeable and len(self.refused_runs) < MOST_REFUSED:
            self.refused_runs.add(signs[RUN])
        gone = Gone(
            process=player.name,
            reason=reason,
            guilty=guilty and signs[SHARD] != CHECKING,
            fault=busy and not player.retired,
            run=signs[RUN] if busy else 0,
            shard=signs[SHARD],
            lane=signs[LANE],
            episode=signs[EPISODE],
        )
        print(f"{player.name.rpartition('.')[2]}: {reason}; starting another", flush=True)
        self._tell(gone.to_message("gone"))
        self.due[player.index] = time.monotonic() + self._pause(player, code)

    def _pause(self, player: Watched, code: int) -> float:
        """Return the seconds before the next start: more for what cannot start, or grows too large at once.

        What somebody killed, or crashed while it played, is started again at once, because other runs wait
        for it; crashes count for the run that caused them, which ends with too many.
        """
        if code == -signal.SIGKILL and not player.reason:  # it says nothing about this one, nor the next
            return 0.0
        lived = time.monotonic() - player.started
        if player.progress[BEATS] and (not player.retired or lived > LONG_ENOUGH):
            self.pauses[player.index] = FIRST_PAUSE
            return 0.0
        pause = self.pauses[player.index]
        self.pauses[player.index] = min(2 * pause, LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)

    def _tell(self, message: wire.Message) -> None:
        """Tell the executors; those that cannot be told find out by themselves, a little later."""
        try:
            if self.link.generation == 0:
                self.link.start()
            self.link.send(TO_EXECUTORS, "", wire.encode(message))
        except RunError:
            return

    def _end(self) -> None:
        for player in self.players:
            player.process.terminate()
        deadline = time.monotonic() + GRACE
        for player in self.players:
            player.end(deadline - time.monotonic())
        self.link.close()


async def _nothing(link: Link) -> None:
    """Set up nothing: the supervisor only sends."""


def default_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"
