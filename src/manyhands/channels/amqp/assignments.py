"""Assigns work to the players of a run over RabbitMQ: the shards that they hold, and their orders.

Bookkeeping only; `presence.py` talks to the broker.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from manyhands.channels.amqp.messages import MOST_OPEN, Report
from manyhands.core.orders import EvalOrder, Order

ON_ITS_WAY = 2.0
"""Seconds that an order may take to reach its player."""
ABSENT = 5
"""Reports in a row, one a second, that do not name an order, after which it counts as lost."""
MOVE_TIMEOUT = 10.0
"""Seconds without an answer after which a player is asked again to give up a shard."""


@dataclass(eq=False)
class Player:
    """One process of a worker, as the executor knows it."""

    report: Report
    heard: float = field(default_factory=time.monotonic)
    shards: set[int] = field(default_factory=set)  # that it holds, or is to take over
    orders: dict[str, Order | EvalOrder] = field(default_factory=dict)  # by id, in the order they were given
    speed: float = 0.0
    missed: float = 0.0  # when its inbox was found to be gone, which is for good
    given: dict[str, float] = field(default_factory=dict)  # when each order was given
    absent: dict[str, int] = field(default_factory=dict)  # reports that should name an order and do not

    @property
    def name(self) -> str:
        return self.report.player

    def update(self, report: Report, received: float = 0.0) -> None:
        """Take in a report; `received` is when it came in, which may be long before it is looked at."""
        now = received or time.monotonic()
        if now > self.heard:
            self.speed = max(0.0, (report.steps - self.report.steps) / (now - self.heard))
        self.report, self.heard = report, now
        there = set(report.open)
        if len(there) >= MOST_OPEN:
            return
        for identity in self.orders:
            if identity in there:
                self.absent.pop(identity, None)
            elif now - self.given[identity] > ON_ITS_WAY:
                self.absent[identity] = self.absent.get(identity, 0) + 1

    def overdue(self) -> list[str]:
        """Return orders that neither this player nor the executor has: they, or their answers, got lost."""
        return [identity for identity in self.orders if self.absent.get(identity, 0) >= ABSENT]


class Players:
    """The players of a run. A shard belongs to one of them; orders that no player can have yet wait here."""

    def __init__(self) -> None:
        self.known: dict[str, Player] = {}
        self.waiting: list[Order | EvalOrder] = []
        self.moving: dict[int, str] = {}  # shard: the player that gives it up
        self.asked: dict[int, float] = {}  # shard that moves: when its player was last asked to give it up

    def usable(self) -> list[Player]:
        return [player for player in self.known.values() if not player.missed]

    def give(self, order: Order | EvalOrder, identity: str) -> Player | None:
        """Assign an order and return its player; None while it has to wait."""
        player = self._player_for(order)
        if player is None:
            self.waiting.append(order)
        else:
            player.orders[identity] = order
            player.given[identity] = time.monotonic()
        return player

    def _player_for(self, order: Order | EvalOrder) -> Player | None:
        """Return the holder of the shard; a shard that no one holds goes to the player with the fewest.

        A missed player keeps its shards: no one else knows where they stand until the player is lost.
        """
        usable = self.usable()
        if isinstance(order, EvalOrder):
            return min(usable, key=lambda player: len(player.orders), default=None)
        if order.shard in self.moving:
            return None
        for player in self.known.values():
            if order.shard in player.shards:
                return None if player.missed else player
        chosen = min(usable, key=lambda player: len(self._future(player)), default=None)
        if chosen is not None:
            chosen.shards.add(order.shard)
        return chosen

    def close(self, identity: str) -> Order | EvalOrder | None:
        """Remove an order that is answered, and return it; None for one that is not open."""
        for player in self.known.values():
            if identity in player.orders:
                player.given.pop(identity, None)
                player.absent.pop(identity, None)
                return player.orders.pop(identity)
        return None

    def join(self, report: Report) -> list[Order | EvalOrder]:
        """Add a player; return the orders that waited for one."""
        self.known[report.player] = Player(report)
        waiting, self.waiting = self.waiting, []
        return waiting

    def _future(self, player: Player) -> set[int]:
        """Return the shards that a player will have once all moves are made."""
        return {shard for shard in player.shards if self.moving.get(shard) != player.name}

    def balance(self) -> list[tuple[int, str]]:
        """Return shards to move from players with many to players with few, and who must release them.

        A shard that is moving already gets another destination, without a second request.
        """
        moves: list[tuple[int, str]] = []
        while usable := self.usable():
            most = max(usable, key=lambda player: len(self._future(player)))
            fewest = min(usable, key=lambda player: len(self._future(player)))
            future = self._future(most)
            if len(future) - len(self._future(fewest)) < 2:
                break
            # What `fewest` gives up itself cannot come back to it before it has done so.
            choice = [shard for shard in future if self.moving.get(shard) != fewest.name]
            if not choice:
                break
            on_their_way = [shard for shard in choice if shard in self.moving]
            shard = max(on_their_way or choice)
            if shard in self.moving:
                most.shards.discard(shard)
            else:
                self.moving[shard] = most.name
                self.asked[shard] = time.monotonic()
                moves.append((shard, most.name))
            fewest.shards.add(shard)
        return moves

    def unanswered_moves(self) -> list[tuple[int, str]]:
        """Return shards that a player was asked to release a while ago, and should be asked for again."""
        now = time.monotonic()
        late = [(s, name) for s, name in self.moving.items() if now - self.asked.get(s, now) > MOVE_TIMEOUT]
        for shard, _ in late:
            self.asked[shard] = now
        return late

    def note_held(self, orders: Iterable[str]) -> None:
        """Note that another executor has the answers to these orders, so they are not lost."""
        for player in self.known.values():
            for identity in player.absent.keys() & set(orders):
                del player.absent[identity]

    def release(self, name: str, shard: int) -> tuple[Order | EvalOrder, ...] | None:
        """Take a shard that its player gave up; return its undone orders, or None when it was not to move."""
        if self.moving.get(shard) != name:
            return None
        del self.moving[shard]
        self.asked.pop(shard, None)
        player = self.known[name]
        player.shards.discard(shard)
        return self._take_back(player, lambda order: isinstance(order, Order) and order.shard == shard)

    def unplayed(
        self, name: str, identity: str
    ) -> tuple[tuple[int, ...], tuple[Order | EvalOrder, ...]] | None:
        """Take back an order that a player cannot play; return the freed shard and the undone orders.

        None where the order is not open any more, so that nothing is missing.
        """
        player = self.known.get(name)
        order = None if player is None else player.orders.get(identity)
        if player is None or order is None:
            return None
        if isinstance(order, EvalOrder):
            return (), self._take_back(player, lambda other: other is order)
        shard = order.shard
        if shard not in self.moving:
            player.shards.discard(shard)
        undone = self._take_back(player, lambda other: isinstance(other, Order) and other.shard == shard)
        return (shard,), undone

    def overdue(self) -> list[tuple[str, tuple[int, ...], tuple[Order | EvalOrder, ...]]]:
        """Take back orders that, or whose answers, got lost; return them by player, with the shards freed."""
        found = []
        for player in self.usable():
            orders = [player.orders[identity] for identity in player.overdue()]
            shards = {order.shard for order in orders if isinstance(order, Order)} - set(self.moving)
            tests = [order for order in orders if isinstance(order, EvalOrder)]
            if not shards and not tests:
                continue
            player.shards -= shards

            def lost(
                order: Order | EvalOrder, shards: set[int] = shards, tests: list[EvalOrder] = tests
            ) -> bool:
                return order.shard in shards if isinstance(order, Order) else order in tests

            found.append((player.name, tuple(sorted(shards)), self._take_back(player, lost)))
        return found

    def withdraw(self, shard: int) -> tuple[Order | EvalOrder, ...]:
        """Take back the orders of a shard that wait for a player."""
        undone = tuple(o for o in self.waiting if isinstance(o, Order) and o.shard == shard)
        self.waiting = [o for o in self.waiting if not (isinstance(o, Order) and o.shard == shard)]
        return undone

    def lose(self, name: str) -> tuple[tuple[int, ...], tuple[Order | EvalOrder, ...]] | None:
        """Remove a player; return the shards that belong to no one now, and the orders that are undone."""
        player = self.known.pop(name, None)
        if player is None:
            return None
        free = {shard for shard in player.shards if self.moving.get(shard, name) == name}  # others move to it
        self.moving = {shard: holder for shard, holder in self.moving.items() if holder != name}
        for other in self.known.values():
            other.shards -= free  # one that was about to take a shard over knows nothing of it either
        undone = self._take_back(player, lambda order: isinstance(order, EvalOrder) or order.shard in free)
        return tuple(sorted(free)), undone

    def _take_back(
        self, player: Player, wanted: Callable[[Order | EvalOrder], bool]
    ) -> tuple[Order | EvalOrder, ...]:
        """Remove and return the open orders of a player that are `wanted`, and those that wait."""
        undone = [order for order in (*player.orders.values(), *self.waiting) if wanted(order)]
        player.orders = {identity: order for identity, order in player.orders.items() if not wanted(order)}
        for times in (player.given, player.absent):
            for identity in set(times) - set(player.orders):
                del times[identity]
        self.waiting = [order for order in self.waiting if not wanted(order)]
        return tuple(undone)
