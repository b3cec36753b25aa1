"""Who plays what: the hands of a run over RabbitMQ, the shards they hold, and the orders they have.

Bookkeeping only; the broker is `amqp.py`'s.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from manyhands.channels.amqp_names import Report
from manyhands.orders import Order, Trial


@dataclass(eq=False)
class Hand:
    """One process of a worker, as the executor knows it."""

    report: Report
    heard: float = field(default_factory=time.monotonic)
    shards: set[int] = field(default_factory=set)  # that it holds, or is to take over
    orders: dict[str, Order | Trial] = field(default_factory=dict)  # by id, in the order they were given
    speed: float = 0.0
    missed: float = 0.0  # when its inbox was found to be gone, which is for good

    @property
    def name(self) -> str:
        return self.report.hand

    def update(self, report: Report) -> None:
        now = time.monotonic()
        if now > self.heard:
            self.speed = max(0.0, (report.steps - self.report.steps) / (now - self.heard))
        self.report, self.heard = report, now


class Hands:
    """A shard belongs to one hand. Orders that no hand can have yet wait here."""

    def __init__(self) -> None:
        self.known: dict[str, Hand] = {}
        self.waiting: list[Order | Trial] = []
        self.moving: dict[int, str] = {}  # shard: the hand that gives it up

    def usable(self) -> list[Hand]:
        return [hand for hand in self.known.values() if not hand.missed]

    def give(self, order: Order | Trial, identity: str) -> Hand | None:
        """Books an order and says whose it is; None while it has to wait."""
        hand = self._hand_for(order)
        if hand is None:
            self.waiting.append(order)
        else:
            hand.orders[identity] = order
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
        chosen = min(usable, key=lambda hand: len(hand.shards), default=None)
        if chosen is not None:
            chosen.shards.add(order.shard)
        return chosen

    def close(self, identity: str) -> Order | Trial | None:
        """An order is answered. None for one that is not open."""
        for hand in self.known.values():
            if identity in hand.orders:
                return hand.orders.pop(identity)
        return None

    def join(self, report: Report) -> list[Order | Trial]:
        """A new hand; also the orders that waited for one."""
        self.known[report.hand] = Hand(report)
        waiting, self.waiting = self.waiting, []
        return waiting

    def balance(self) -> list[tuple[int, str]]:
        """Shards that are to move from hands with many to hands with few, and who must release them."""
        moves: list[tuple[int, str]] = []
        while usable := self.usable():
            most = max(usable, key=lambda hand: len(hand.shards - set(self.moving)))
            fewest = min(usable, key=lambda hand: len(hand.shards))
            staying = most.shards - set(self.moving)
            if len(staying) - len(fewest.shards) < 2:
                break
            shard = max(staying)
            self.moving[shard] = most.name
            fewest.shards.add(shard)
            moves.append((shard, most.name))
        return moves

    def release(self, name: str, shard: int) -> tuple[Order | Trial, ...] | None:
        """A hand has given up a shard that was to move; its orders are undone. None when it was not to."""
        if self.moving.get(shard) != name:
            return None
        del self.moving[shard]
        hand = self.known[name]
        hand.shards.discard(shard)
        return self._take_back(hand, lambda order: isinstance(order, Order) and order.shard == shard)

    def unplayed(self, name: str, identity: str) -> tuple[int, tuple[Order | Trial, ...]] | None:
        """A hand cannot play an order: its shard belongs to no one now, and these orders are undone.

        None where the order is not open any more, so that nothing is missing.
        """
        hand = self.known.get(name)
        order = None if hand is None else hand.orders.get(identity)
        if hand is None or not isinstance(order, Order):
            return None
        shard = order.shard
        if shard not in self.moving:
            hand.shards.discard(shard)
        return shard, self._take_back(hand, lambda other: isinstance(other, Order) and other.shard == shard)

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
        self.waiting = [order for order in self.waiting if not wanted(order)]
        return tuple(undone)
