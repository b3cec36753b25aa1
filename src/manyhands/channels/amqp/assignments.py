"""Who plays what: the hands of a run over RabbitMQ, the shards they hold, and the orders they have.

Bookkeeping only; the broker is `amqp.py`'s.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from manyhands.channels.amqp.messages import MOST_OPEN, Report
from manyhands.core.orders import Order, Trial

ON_ITS_WAY = 2.0
"""Seconds in which an order may not have reached its hand yet."""
ABSENT = 5
"""Reports in a row, one a second, that do not name an order, after which it counts as lost."""
MOVE_TIMEOUT = 10.0
"""Seconds after which a hand is asked once more to give up a shard."""


@dataclass(eq=False)
class Hand:
    """One process of a worker, as the executor knows it."""

    report: Report
    heard: float = field(default_factory=time.monotonic)
    shards: set[int] = field(default_factory=set)  # that it holds, or is to take over
    orders: dict[str, Order | Trial] = field(default_factory=dict)  # by id, in the order they were given
    speed: float = 0.0
    missed: float = 0.0  # when its inbox was found to be gone, which is for good
    given: dict[str, float] = field(default_factory=dict)  # when each order was given
    absent: dict[str, int] = field(default_factory=dict)  # reports that should name an order and do not

    @property
    def name(self) -> str:
        return self.report.hand

    def update(self, report: Report, received: float = 0.0) -> None:
        """`received`: when the report came in, which may be long before it is looked at."""
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
        """Orders that are with neither this hand nor the executor: they, or their answers, got lost."""
        return [identity for identity in self.orders if self.absent.get(identity, 0) >= ABSENT]


class Hands:
    """A shard belongs to one hand. Orders that no hand can have yet wait here."""

    def __init__(self) -> None:
        self.known: dict[str, Hand] = {}
        self.waiting: list[Order | Trial] = []
        self.moving: dict[int, str] = {}  # shard: the hand that gives it up
        self.asked: dict[int, float] = {}  # shard that moves: when its hand was last asked to give it up

    def usable(self) -> list[Hand]:
        return [hand for hand in self.known.values() if not hand.missed]

    def give(self, order: Order | Trial, identity: str) -> Hand | None:
        """Books an order and says whose it is; None while it has to wait."""
        hand = self._hand_for(order)
        if hand is None:
            self.waiting.append(order)
        else:
            hand.orders[identity] = order
            hand.given[identity] = time.monotonic()
        return hand

    def _hand_for(self, order: Order | Trial) -> Hand | None:
        """The holder of the shard; a shard that no one holds goes to the hand with the fewest.

        That of a missed hand is still its own: no one else knows where it stands until the hand is lost.
        """
        usable = self.usable()
        if isinstance(order, Trial):
            return min(usable, key=lambda hand: len(hand.orders), default=None)
        if order.shard in self.moving:
            return None
        for hand in self.known.values():
            if order.shard in hand.shards:
                return None if hand.missed else hand
        chosen = min(usable, key=lambda hand: len(self._future(hand)), default=None)
        if chosen is not None:
            chosen.shards.add(order.shard)
        return chosen

    def close(self, identity: str) -> Order | Trial | None:
        """An order is answered. None for one that is not open."""
        for hand in self.known.values():
            if identity in hand.orders:
                hand.given.pop(identity, None)
                hand.absent.pop(identity, None)
                return hand.orders.pop(identity)
        return None

    def join(self, report: Report) -> list[Order | Trial]:
        """A new hand; also the orders that waited for one."""
        self.known[report.hand] = Hand(report)
        waiting, self.waiting = self.waiting, []
        return waiting

    def _future(self, hand: Hand) -> set[int]:
        """The shards that a hand will have once all moves are made."""
        return {shard for shard in hand.shards if self.moving.get(shard) != hand.name}

    def balance(self) -> list[tuple[int, str]]:
        """Shards that are to move from hands with many to hands with few, and who must release them.

        One that is on its way already is sent elsewhere without anybody being asked again.
        """
        moves: list[tuple[int, str]] = []
        while usable := self.usable():
            most = max(usable, key=lambda hand: len(self._future(hand)))
            fewest = min(usable, key=lambda hand: len(self._future(hand)))
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
        """Shards that a hand has been asked to release for a while, and should be asked for again."""
        now = time.monotonic()
        late = [(s, name) for s, name in self.moving.items() if now - self.asked.get(s, now) > MOVE_TIMEOUT]
        for shard, _ in late:
            self.asked[shard] = now
        return late

    def note_held(self, orders: Iterable[str]) -> None:
        """Another executor has the answers to these orders, so they are not lost."""
        for hand in self.known.values():
            for identity in hand.absent.keys() & set(orders):
                del hand.absent[identity]

    def release(self, name: str, shard: int) -> tuple[Order | Trial, ...] | None:
        """A hand has given up a shard that was to move; its orders are undone. None when it was not to."""
        if self.moving.get(shard) != name:
            return None
        del self.moving[shard]
        self.asked.pop(shard, None)
        hand = self.known[name]
        hand.shards.discard(shard)
        return self._take_back(hand, lambda order: isinstance(order, Order) and order.shard == shard)

    def unplayed(self, name: str, identity: str) -> tuple[tuple[int, ...], tuple[Order | Trial, ...]] | None:
        """A hand cannot play an order: its shard belongs to no one now, and these orders are undone.

        None where the order is not open any more, so that nothing is missing.
        """
        hand = self.known.get(name)
        order = None if hand is None else hand.orders.get(identity)
        if hand is None or order is None:
            return None
        if isinstance(order, Trial):
            return (), self._take_back(hand, lambda other: other is order)
        shard = order.shard
        if shard not in self.moving:
            hand.shards.discard(shard)
        undone = self._take_back(hand, lambda other: isinstance(other, Order) and other.shard == shard)
        return (shard,), undone

    def overdue(self) -> list[tuple[str, tuple[int, ...], tuple[Order | Trial, ...]]]:
        """Orders that, or whose answers, got lost: by hand, the shards that no one holds now, the orders."""
        found = []
        for hand in self.usable():
            orders = [hand.orders[identity] for identity in hand.overdue()]
            shards = {order.shard for order in orders if isinstance(order, Order)} - set(self.moving)
            tests = [order for order in orders if isinstance(order, Trial)]
            if not shards and not tests:
                continue
            hand.shards -= shards

            def lost(order: Order | Trial, shards: set[int] = shards, tests: list[Trial] = tests) -> bool:
                return order.shard in shards if isinstance(order, Order) else order in tests

            found.append((hand.name, tuple(sorted(shards)), self._take_back(hand, lost)))
        return found

    def withdraw(self, shard: int) -> tuple[Order | Trial, ...]:
        """Takes back the orders of a shard that wait for a hand."""
        undone = tuple(o for o in self.waiting if isinstance(o, Order) and o.shard == shard)
        self.waiting = [o for o in self.waiting if not (isinstance(o, Order) and o.shard == shard)]
        return undone

    def lose(self, name: str) -> tuple[tuple[int, ...], tuple[Order | Trial, ...]] | None:
        """A hand is gone: the shards that belong to no one now, and the orders that are undone."""
        hand = self.known.pop(name, None)
        if hand is None:
            return None
        free = {shard for shard in hand.shards if self.moving.get(shard, name) == name}  # others move to it
        self.moving = {shard: holder for shard, holder in self.moving.items() if holder != name}
        for other in self.known.values():
            other.shards -= free  # one that was about to take a shard over knows nothing of it either
        undone = self._take_back(hand, lambda order: isinstance(order, Trial) or order.shard in free)
        return tuple(sorted(free)), undone

    def _take_back(self, hand: Hand, wanted: Callable[[Order | Trial], bool]) -> tuple[Order | Trial, ...]:
        """Open orders of a hand that are `wanted`, and those that wait."""
        undone = [order for order in (*hand.orders.values(), *self.waiting) if wanted(order)]
        hand.orders = {identity: order for identity, order in hand.orders.items() if not wanted(order)}
        for times in (hand.given, hand.absent):
            for identity in set(times) - set(hand.orders):
                del times[identity]
        self.waiting = [order for order in self.waiting if not wanted(order)]
        return tuple(undone)
