"""Finds the episode that crashed a worker process whose supervisor reports only after it was given up.

A step that lets no other thread run makes a process fall silent long before its supervisor ends it. Its
shards are with another by then, which plays the same episode, and so on until the first death is reported.
Bookkeeping only; `presence.py` talks to the broker.
"""

from dataclasses import dataclass, replace
from typing import Any

from manyhands.channels.amqp.assignments import Player
from manyhands.core.events import CrashSite
from manyhands.core.heartbeat import TESTING
from manyhands.core.orders import EvalOrder, Order

MOST = 1000
"""Processes, episodes and parts of tests that are remembered; the oldest go first."""


@dataclass(frozen=True)
class Given:
    """An order that a process had, and when it was given."""

    order: Order | EvalOrder
    time: float

    def is_for(self, other: Order | EvalOrder) -> bool:
        """Return whether `other` asks for the same, though it may say more of where a shard stands."""
        if isinstance(self.order, Order) and isinstance(other, Order):
            return (self.order.shard, self.order.sequence) == (other.shard, other.sequence)
        return isinstance(self.order, EvalOrder) and self.order == other

    def includes(self, crash_site: CrashSite) -> bool:
        if isinstance(self.order, EvalOrder):
            return crash_site.shard == TESTING and crash_site.episode in self.order.episodes
        return crash_site.shard == self.order.shard


def given_to(player: Player) -> tuple[Given, ...]:
    """Return a player's orders as they were given; the first of a shard was under way."""
    return tuple(Given(order, player.given[identity]) for identity, order in player.orders.items())


@dataclass(frozen=True)
class Departed:
    """A process that was given up before anybody knew how it ended."""

    player: str
    orders: tuple[Given, ...]


@dataclass(frozen=True)
class LateDeath:
    """A late report of a supervisor on a departed process: an episode crashed it."""

    departed: Departed
    reason: str
    crash_site: CrashSite

    @property
    def proven(self) -> bool:
        """Whether the order of that episode is still unanswered: nobody has played it to its end since."""
        return any(given.includes(self.crash_site) for given in self.departed.orders)


class Blame:
    """Remembers the orders of players that were given up, and the episodes known to crash a process."""

    def __init__(self) -> None:
        self.departed: dict[str, Departed] = {}  # by process
        self.told: dict[CrashSite, float] = {}  # when its executor last heard of it
        self.amended: dict[EvalOrder, EvalOrder] = {}  # parts of tests, with one more episode to skip

    def depart(self, player: Player) -> None:
        self.departed[_process(player.name)] = Departed(player.name, given_to(player))
        _forget_oldest(self.departed)

    def answered(self, order: Order | EvalOrder) -> None:
        """Note that somebody else played an order to its end: no episode in it crashes every process."""
        for process, departed in self.departed.items():
            left = tuple(given for given in departed.orders if not given.is_for(order))
            self.departed[process] = Departed(departed.player, left)

    def explain(self, process: str) -> Departed | None:
        """Return what is known of a process that has ended, and forget it: a process ends once."""
        return self.departed.pop(process, None)

    def is_news(self, crash_site: CrashSite, orders: tuple[Given, ...]) -> bool:
        """Return whether a death by `crash_site` is another fault than those that are known.

        It is not when its order was given before the executor knew: several may fall to one episode.
        """
        under_way = next((given for given in orders if given.includes(crash_site)), None)
        return under_way is None or under_way.time > self.told.get(crash_site, float("-inf"))

    def note(self, crash_site: CrashSite, time: float) -> None:
        self.told.pop(crash_site, None)
        self.told[crash_site] = time
        _forget_oldest(self.told)

    def amend(self, crash_site: CrashSite, orders: tuple[Given, ...]) -> None:
        """Skip an episode when a test's part is given again, as a part has no state that could carry that."""
        for given in orders:
            eval_order = given.order
            if isinstance(eval_order, EvalOrder) and given.includes(crash_site):
                self.amended[eval_order] = replace(eval_order, skip=(*eval_order.skip, crash_site.episode))
        _forget_oldest(self.amended)

    def as_amended(self, order: Order | EvalOrder) -> Order | EvalOrder:
        while isinstance(order, EvalOrder) and order in self.amended:
            order = self.amended[order]
        return order


def _process(player: str) -> str:
    """Return the process of an inbox, whose name is the process and the number of its connection."""
    return player.rpartition(".")[0]


def _forget_oldest(remembered: dict[Any, Any]) -> None:
    while len(remembered) > MOST:
        del remembered[next(iter(remembered))]
