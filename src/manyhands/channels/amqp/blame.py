"""Which episode brought a worker process down, where its supervisor tells so only after it was given up.

A step that lets no other thread run makes a process fall silent long before its supervisor ends it. Its
shards are with another by then, which plays the same episode, and so on until the first death is told.
Bookkeeping only; the broker is `amqp.py`'s.
"""

from dataclasses import dataclass, replace
from typing import Any

from manyhands.channels.amqp.assignments import Hand
from manyhands.core.events import Culprit
from manyhands.core.heartbeat import TESTING
from manyhands.core.orders import Order, Trial

MOST = 1000
"""Processes, episodes and parts of tests that are remembered; the oldest go first."""


@dataclass(frozen=True)
class Given:
    """An order that a process had, and when it was given."""

    order: Order | Trial
    time: float

    def is_for(self, other: Order | Trial) -> bool:
        """Whether `other` asks for the same, though it may say more of where a shard stands."""
        if isinstance(self.order, Order) and isinstance(other, Order):
            return (self.order.shard, self.order.sequence) == (other.shard, other.sequence)
        return isinstance(self.order, Trial) and self.order == other

    def includes(self, culprit: Culprit) -> bool:
        if isinstance(self.order, Trial):
            return culprit.shard == TESTING and culprit.episode in self.order.episodes
        return culprit.shard == self.order.shard


def given_to(hand: Hand) -> tuple[Given, ...]:
    """In the order they were given; the first of a shard was under way."""
    return tuple(Given(order, hand.given[identity]) for identity, order in hand.orders.items())


@dataclass(frozen=True)
class Departed:
    """A process that was given up before anybody knew how it ended."""

    hand: str
    orders: tuple[Given, ...]


@dataclass(frozen=True)
class LateDeath:
    """Its supervisor has told now: an episode brought it down."""

    departed: Departed
    reason: str
    culprit: Culprit

    @property
    def proven(self) -> bool:
        """Whether nobody has played since what was under way."""
        return any(given.includes(self.culprit) for given in self.departed.orders)


class Blame:
    """Remembers who was given up with what, and which episodes are known to bring a process down."""

    def __init__(self) -> None:
        self.departed: dict[str, Departed] = {}  # by process
        self.told: dict[Culprit, float] = {}  # when its executor last heard of it
        self.amended: dict[Trial, Trial] = {}  # parts of tests, with one more episode to skip

    def depart(self, hand: Hand) -> None:
        self.departed[_process(hand.name)] = Departed(hand.name, given_to(hand))
        _forget_oldest(self.departed)

    def returns(self, hand: str) -> None:
        self.departed.pop(_process(hand), None)

    def answered(self, order: Order | Trial) -> None:
        """Somebody else has played it to its end, so no episode in it brings a process down every time."""
        for process, departed in self.departed.items():
            left = tuple(given for given in departed.orders if not given.is_for(order))
            self.departed[process] = Departed(departed.hand, left)

    def explain(self, process: str) -> Departed | None:
        """What is known of a process that has ended; it ends once."""
        return self.departed.pop(process, None)

    def is_news(self, culprit: Culprit, orders: tuple[Given, ...]) -> bool:
        """Whether a death by `culprit` is another fault than those that are known.

        It is not when its order was given before the executor knew: several may fall to one episode.
        """
        under_way = next((given for given in orders if given.includes(culprit)), None)
        return under_way is None or under_way.time > self.told.get(culprit, float("-inf"))

    def note(self, culprit: Culprit, time: float) -> None:
        self.told.pop(culprit, None)
        self.told[culprit] = time
        _forget_oldest(self.told)

    def amend(self, culprit: Culprit, orders: tuple[Given, ...]) -> None:
        """A test's part has no state that could carry what to skip; it is changed when it is given again."""
        for given in orders:
            trial = given.order
            if isinstance(trial, Trial) and given.includes(culprit):
                self.amended[trial] = replace(trial, skip=(*trial.skip, culprit.episode))
        _forget_oldest(self.amended)

    def as_amended(self, order: Order | Trial) -> Order | Trial:
        while isinstance(order, Trial) and order in self.amended:
            order = self.amended[order]
        return order


def _process(hand: str) -> str:
    """An inbox is called by its process and the number of its connection."""
    return hand.rpartition(".")[0]


def _forget_oldest(remembered: dict[Any, Any]) -> None:
    while len(remembered) > MOST:
        del remembered[next(iter(remembered))]
