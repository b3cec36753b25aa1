"""Knows which players of a run are there: who joins, falls silent or is lost, and what is to blame for it.

All in the executor's thread, which gives the orders; losses go into its events.
"""

import math
import time
from collections import deque

from manyhands.channels.amqp.assignments import Player, Players
from manyhands.channels.amqp.blame import Blame, LateDeath, given_to
from manyhands.channels.amqp.connection import Link
from manyhands.channels.amqp.hearing import LABEL, Hearing, label
from manyhands.channels.amqp.messages import Gone, Names, Rejoin, Release, Report, Unplayed
from manyhands.channels.amqp.refusals import Refusals
from manyhands.channels.amqp.tally import MOST_PLAYERS, Tally
from manyhands.channels.base import WorkerStatus
from manyhands.core import wire
from manyhands.core.events import CrashSite, Event, Notice, WorkerLost
from manyhands.core.heartbeat import run_mark
from manyhands.core.orders import EvalOrder, Order
from manyhands.core.texts import one_line

PROBE_INTERVAL, EAGER_INTERVAL = 1.0, 0.25
"""Seconds between two probes of every inbox: usually, and while nothing arrives. The broker removes an inbox
with its connection, so a player that dies is missed within this time, whatever the clocks say."""
STARVING = 0.5
"""Seconds of waiting for data after which inboxes are probed eagerly and silent players are given up."""
SILENCE = 2.0
"""Seconds without a report, of which there is one a second, that count as silent. Twice as many for a player
that was given up and came back: a step of its environment may let no other thread run."""
HEARD = 1.5
"""Seconds within which every healthy player reports."""
GRACE = 0.5
"""Seconds after a failed probe in which the player's supervisor may still report how it died."""
PATIENCE = 10.0
"""Seconds between two reminders that there is no worker."""
REJOIN_INTERVAL = 5.0
"""Seconds between two requests to join again, to one player."""
MOST_ASKED = 10_000
"""Most players that were asked to join again within that time."""


class Presence:
    """The players of a run, and the losses among them."""

    def __init__(
        self, names: Names, link: Link, hearing: Hearing, tally: Tally, events: deque[Event | LateDeath]
    ) -> None:
        self.names, self.link, self.hearing, self.tally, self.events = names, link, hearing, tally, events
        self.players, self.blame = Players(), Blame()
        self.mark = run_mark(names.run)
        self.asked_to_rejoin: dict[str, float] = {}
        self.probed = self.reminded = time.monotonic()
        self.refusals = Refusals()
        self.starved = 0.0  # seconds of waiting since data arrived
        self.patience: dict[str, float] = {}  # inbox of a player that was silent: for how long it may be

    def close(self, identity: str) -> Order | EvalOrder | None:
        """Remove an order that is answered, and return it; None for one that is not open."""
        order = self.players.close(identity)
        if order is not None:
            self.blame.answered(order)
        return order

    def told(self, event: Event | LateDeath) -> Event | None:
        """Return the event as the executor is told it; orders given from now on avoid the crash in it."""
        told = self._blame_late(event) if isinstance(event, LateDeath) else event
        if isinstance(told, WorkerLost) and told.crash_site is not None:
            self.blame.note(told.crash_site, time.monotonic())
        return told

    def _blame_late(self, death: LateDeath) -> WorkerLost | None:
        """Return the loss that a late report explains, or None where it was known already.

        Orders that another player has by now go on. They crash by the same episode, which is no new fault,
        and are then given without it.
        """
        departed, crash_site = death.departed, death.crash_site
        if not self.blame.is_news(crash_site, departed.orders):
            return None
        if not death.proven:
            return WorkerLost(label(departed.player), death.reason, (), ())
        self.blame.amend(crash_site, departed.orders)
        undone = self.players.withdraw(crash_site.shard)
        shards = (crash_site.shard,) if undone else ()
        return WorkerLost(label(departed.player), death.reason, shards, undone, crash_site)

    def join(self, report: Report) -> list[Order | EvalOrder]:
        """Take in a player; return the orders that waited for one."""
        if report.player in self.players.known:  # it may have died of what it had, and not said so yet
            self.blame.depart(self.players.known[report.player])
        self.lose(report.player, "it joined again", None, fault=False)
        self.refusals.forget(report.player)
        if len(self.players.known) >= MOST_PLAYERS:
            return []
        waiting = self.players.join(report)
        self.tally.keep_protocol(report)
        self.hearing.send_weights(report.player)
        return waiting

    def note_report(self, report: Report, received: float) -> None:
        known = self.players.known.get(report.player)
        if known is not None:
            known.update(report, received)
            self.tally.keep_protocol(report)
        elif not self.hearing.closed:
            self._ask_to_rejoin(report.player)

    def _ask_to_rejoin(self, player: str) -> None:
        """Ask a player to join again that reports to this run but is not known: its join message got lost."""
        now = time.monotonic()
        self.asked_to_rejoin = {
            name: when for name, when in self.asked_to_rejoin.items() if now - when < REJOIN_INTERVAL
        }
        if player not in self.asked_to_rejoin and len(self.asked_to_rejoin) < MOST_ASKED:
            self.asked_to_rejoin[player] = now
            self.link.send("", player, wire.encode(Rejoin(self.names.run).to_message("rejoin")))

    def leave(self, report: Report) -> None:
        """Let a player go that has sent its final report."""
        self.tally.keep_protocol(report)
        self.lose(report.player, "it left", None, fault=False)

    def miss(self, name: str) -> None:
        """Note that an inbox is gone; its player is given up unless its supervisor tells more at once."""
        known = self.players.known.get(name)
        if known is not None and not known.missed:
            known.missed = time.monotonic()

    def take_gone(self, gone: Gone) -> None:
        """Take in the end of a process: a fault of the run that it played for; others' shards only move.

        It counts once, though a process may be known by several connections or be given up already.
        """
        ours = gone.run == self.mark
        guilty = CrashSite(gone.shard, gone.lane, gone.episode) if gone.guilty and ours else None
        reason = one_line(gone.reason) if ours or not gone.run else "it ended while it played for another run"
        departed = self.blame.explain(gone.process)
        earlier = () if departed is None else departed.orders
        names = [name for name in self.players.known if name.startswith(f"{gone.process}.")]
        fault = gone.fault and ours
        for name in names:
            orders = (*given_to(self.players.known[name]), *earlier)
            news = guilty is None or self.blame.is_news(guilty, orders)
            self.lose(name, reason, guilty, fault=fault and news)
            fault = False
        if not names and departed is not None and guilty is not None:
            self.events.append(LateDeath(departed, reason, guilty))

    def take_released(self, name: str, shard: int) -> None:
        undone = self.players.release(name, shard)
        if undone is not None:
            reason = f"hands over shard {shard}"
            self.events.append(WorkerLost(label(name), reason, (shard,), undone, fault=False, moved=True))

    def take_unplayed(self, unplayed: Unplayed) -> None:
        found = self.players.unplayed(unplayed.player, unplayed.order)
        if found is not None:
            shards, undone = found
            reason = one_line(unplayed.text)  # of a malformed order a fault, so that it is not given for ever
            self.events.append(
                WorkerLost(label(unplayed.player), reason, shards, undone, fault=unplayed.malformed)
            )

    def balance(self) -> None:
        for shard, name in self.players.balance():
            self._ask_to_release(shard, name)

    def _ask_to_release(self, shard: int, name: str) -> None:
        self.link.send("", name, wire.encode(Release(self.names.run, shard).to_message("release")))

    def _give_up(self, player: Player, reason: str) -> None:
        """Give up a player without a fault; its supervisor may still tell how it ended."""
        self.blame.depart(player)
        self.lose(player.name, reason, None, fault=False)

    def lose(self, name: str, reason: str, crash_site: CrashSite | None, fault: bool = True) -> None:
        lost = self.players.lose(name)
        if lost is not None:
            shards, undone = lost
            self.events.append(WorkerLost(label(name), reason, shards, undone, crash_site, fault))
            if not self.players.known:
                self.reminded = -math.inf  # whoever looks should know at once

    def look_after_players(self) -> bool:
        """Give up who is missed or silent; now and then probe all, and return True."""
        now = time.monotonic()
        for player in list(self.players.known.values()):
            if player.missed and now - player.missed > GRACE:
                # No fault of an environment that anybody knows of. A power cut takes many at once.
                self._give_up(player, "its connection to the broker ended")
        starving = self.starved >= STARVING and self.link.up.is_set()
        if now - self.probed < (EAGER_INTERVAL if starving else PROBE_INTERVAL):
            return False
        self.probed = now
        if starving:
            self._give_up_silent_players(now)
        self.balance()
        for shard, name in self.players.unanswered_moves():
            self._ask_to_release(shard, name)
        for name, shards, undone in self.players.overdue():
            reason = "an order or its answer got lost, and is asked for again"
            self.events.append(WorkerLost(label(name), reason, shards, undone, fault=False))
        probe = wire.encode(wire.Message("knock"))
        for name in self.players.known:
            self.link.probe(name, probe)
        self._remind(now)
        return True

    def _give_up_silent_players(self, now: float) -> None:
        """Let others play the orders of a player that is silent while everybody waits for it.

        Its machine sleeps, or its network is cut: the broker would notice after twenty seconds. It joins
        again when it is back. Where no player was heard lately, it was this executor that did not listen.
        """
        usable = self.players.usable()
        if not any(now - player.heard < HEARD for player in usable):
            return
        for player in usable:
            if not player.orders or now - player.heard <= self.patience.get(player.name, SILENCE):
                continue
            if len(self.patience) < MOST_PLAYERS:
                self.patience[player.name] = 2 * self.patience.get(player.name, SILENCE)
            self._give_up(player, f"it said nothing for {now - player.heard:.1f} s")

    def _remind(self, now: float) -> None:
        """Say now and then that orders wait and there is no worker."""
        if self.players.known or not self.players.waiting:
            self.reminded = now
        elif now - self.reminded > PATIENCE:
            self.reminded = now
            text = self.refusals.told(self.hearing.task, self.link.address.example)
            self.events.append(Notice("broker", text))

    def statuses(self) -> list[WorkerStatus]:
        now = time.monotonic()
        return [
            WorkerStatus(
                one_line(player.report.worker, LABEL),
                now - player.heard,
                bool(player.orders),
                one_line(player.report.host, LABEL),
                player.speed,
                player.report.version,
            )
            for player in self.players.known.values()
        ]
