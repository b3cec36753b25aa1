"""Who plays what, without a broker: shards have one holder, orders are never lost, and work is spread."""

import time
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from manyhands.channels.amqp.assignments import Hands
from manyhands.channels.amqp.messages import Report
from manyhands.core.orders import Order, Trial

SHARDS = 5
NAMES = [f"hand-{i}" for i in range(4)]


def report(name: str) -> Report:
    return Report(name, name, "host", 1)


def test_orders_wait_for_a_hand_and_then_stay_with_it() -> None:
    hands = Hands()
    first = Order(0, 0, 0)
    assert hands.give(first, "a") is None
    assert hands.join(report("one")) == [first]
    one = hands.give(first, "b")
    hands.join(report("two"))
    assert hands.give(Order(0, 1, 0), "c") is one
    assert hands.close("b") == first
    assert hands.close("b") is None


def test_a_hand_that_joins_gets_its_share_and_a_lost_one_gives_all_back() -> None:
    hands = Hands()
    hands.join(report("one"))
    for shard in range(4):
        hands.give(Order(shard, 0, 0), f"first-{shard}")
    hands.join(report("two"))
    assert hands.balance() == [(3, "one"), (2, "one")]
    late = Order(3, 1, 0)
    assert hands.give(late, "late") is None
    assert hands.release("one", 3) == (Order(3, 0, 0), late)
    taken = hands.give(late, "again")
    assert taken is not None
    assert taken.name == "two"
    assert hands.lose("two") == ((3,), (late,))  # shard 2 still stands with "one"
    assert hands.lose("two") is None
    assert hands.release("one", 2) is not None


def test_orders_for_a_hand_that_is_missed_wait_until_it_is_lost() -> None:
    hands = Hands()
    hands.join(report("one"))
    hands.give(Order(0, 0, 0), "a")
    hands.close("a")
    hands.join(report("two"))
    hands.known["one"].missed = 1.0
    late = Order(0, 1, 0)
    assert hands.give(late, "b") is None
    hands.known["one"].update(report("one"))  # sent before its connection ended
    assert hands.give(Order(0, 2, 0), "c") is None
    assert hands.lose("one") == ((0,), (late, Order(0, 2, 0)))
    two = hands.give(late, "d")
    assert two is hands.known["two"]


def test_what_a_hand_cannot_play_is_given_back_once() -> None:
    hands = Hands()
    hands.join(report("one"))
    for sequence in (0, 1):
        hands.give(Order(0, sequence, 0), f"{sequence}")
    assert hands.unplayed("two", "0") is None
    assert hands.unplayed("one", "0") == ((0,), (Order(0, 0, 0), Order(0, 1, 0)))
    assert hands.unplayed("one", "1") is None
    hands.give(Trial(0, 0, 0, 0, 1), "test")
    assert hands.unplayed("one", "test") == ((), (Trial(0, 0, 0, 0, 1),))
    assert hands.known["one"].shards == set()


def test_hands_that_join_before_the_first_release_share_alike() -> None:
    """Six shards, six hands: one had kept three of them, and two had played nothing."""
    hands = Hands()
    hands.join(report("hand-0"))
    for shard in range(6):
        hands.give(Order(shard, 0, 0), f"first-{shard}")
    asked = []
    for number in range(1, 6):
        hands.join(report(f"hand-{number}"))
        asked += hands.balance()
    assert sorted(asked) == [(shard, "hand-0") for shard in range(1, 6)]
    for shard, name in asked:
        undone = hands.release(name, shard)
        assert undone is not None
        for order in undone:
            hands.give(order, f"again-{shard}")
    assert [len(hand.shards) for hand in hands.known.values()] == [1] * 6


def test_an_order_that_no_report_names_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands()
    hands.join(report("one"))
    first, other, part = Order(0, 0, 0), Order(1, 0, 0), Trial(0, 0, 0, 0, 1)
    for order, identity in ((first, "a"), (other, "b"), (part, "c")):
        hands.give(order, identity)
    hand, now = hands.known["one"], time.monotonic()
    hand.update(report("one"), now + 1)  # on its way to the hand
    for second in range(10):
        assert not hands.overdue()
        hand.update(replace(report("one"), open=("a", "b", "c")), now + 10 + second)
    for second in range(5):
        assert not hands.overdue()
        hand.update(replace(report("one"), open=("b",)), now + 20 + second)
    assert hands.overdue() == [("one", (0,), (first, part))]
    assert not hands.overdue()
    assert hand.shards == {1}


def test_a_release_that_is_not_answered_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands()
    hands.join(report("one"))
    for shard in range(2):
        hands.give(Order(shard, 0, 0), f"{shard}")
    hands.join(report("two"))
    assert hands.balance() == [(1, "one")]
    assert hands.unanswered_moves() == []
    later = time.monotonic() + 11
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert hands.unanswered_moves() == [(1, "one")]
    assert hands.unanswered_moves() == []


class Books(RuleBasedStateMachine):
    """Whatever happens, an order is either open with one hand, waiting, answered, or given back.

    And nobody is asked to go on with a shard that stands elsewhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hands = Hands()
        self.given = 0
        self.open: dict[str, Order | Trial] = {}
        self.sequence = dict.fromkeys(range(SHARDS), 0)
        self.unheld = set(range(SHARDS))  # as the executor has it: the next order says where the shard stands
        self.with_start: list[Order] = []
        self.stands_with: dict[int, str] = {}  # shard: the hand that has played it

    def give(self, order: Order | Trial) -> None:
        if isinstance(order, Order) and order.shard in self.unheld:
            self.unheld.remove(order.shard)
            self.with_start.append(order)
        self.give_again(order)

    def give_again(self, order: Order | Trial) -> None:
        self.given += 1
        hand = self.hands.give(order, str(self.given))
        if hand is None:
            return
        self.open[str(self.given)] = order
        assert not hand.missed
        if isinstance(order, Order):
            if any(order is other for other in self.with_start):
                self.stands_with[order.shard] = hand.name
            assert self.stands_with[order.shard] == hand.name

    @rule(shard=st.integers(0, SHARDS - 1))
    def order(self, shard: int) -> None:
        self.give(Order(shard, self.sequence[shard], 0))
        self.sequence[shard] += 1

    @rule(part=st.integers(0, 3))
    def trial(self, part: int) -> None:
        self.give(Trial(part, 0, 0, 0, 1))

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        if name in self.hands.known:
            return
        for order in self.hands.join(report(name)):
            self.give_again(order)
        self.hands.balance()

    @rule()
    def look_again(self) -> None:
        self.hands.balance()

    @rule()
    def quiet(self) -> None:
        """Once every hand that was asked has released, no one has two shards more than another."""
        for shard in range(SHARDS):
            if not any(shard in hand.shards for hand in self.hands.known.values()) and self.hands.usable():
                self.order(shard)
        self.hands.balance()
        while self.hands.moving:
            self.release(0)
            self.hands.balance()
        counts = [len(hand.shards) for hand in self.hands.usable()]
        assert not counts or max(counts) - min(counts) <= 1

    @rule(pick=st.integers(0, 100))
    def answer(self, pick: int) -> None:
        if self.open:
            identity = list(self.open)[pick % len(self.open)]
            assert self.hands.close(identity) == self.open.pop(identity)

    @rule(name=st.sampled_from(NAMES))
    def lose(self, name: str) -> None:
        lost = self.hands.lose(name)
        if lost is not None:
            self.take_back(*lost)

    @rule(name=st.sampled_from(NAMES))
    def miss(self, name: str) -> None:
        if name in self.hands.known:
            self.hands.known[name].missed = 1.0

    @rule(name=st.sampled_from(NAMES))
    def hear(self, name: str) -> None:
        if name in self.hands.known:
            self.hands.known[name].update(report(name))

    @rule(pick=st.integers(0, 100))
    def refuse(self, pick: int) -> None:
        if self.open:
            identity = list(self.open)[pick % len(self.open)]
            holder = next(hand.name for hand in self.hands.known.values() if identity in hand.orders)
            found = self.hands.unplayed(holder, identity)
            assert found is not None
            self.take_back(*found)

    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        if self.hands.moving:
            shard, name = list(self.hands.moving.items())[pick % len(self.hands.moving)]
            undone = self.hands.release(name, shard)
            assert undone is not None
            self.take_back((shard,), undone)

    def take_back(self, shards: tuple[int, ...], undone: tuple[Order | Trial, ...]) -> None:
        self.unheld.update(shards)
        for order in undone:
            found = next((identity for identity, known in self.open.items() if known is order), None)
            if found is not None:
                del self.open[found]
                assert self.hands.close(found) is None
        for order in undone:
            self.give(order)

    @invariant()
    def every_order_is_somewhere(self) -> None:
        held = {identity for hand in self.hands.known.values() for identity in hand.orders}
        assert held == set(self.open)
        missed = {shard for hand in self.hands.known.values() if hand.missed for shard in hand.shards}
        if self.hands.usable():
            stuck = [order for order in self.hands.waiting if not isinstance(order, Order)]
            assert not stuck
            assert all(order.shard in missed | set(self.hands.moving) for order in self.hands.waiting)

    @invariant()
    def a_shard_has_one_holder_besides_the_one_it_moves_to(self) -> None:
        for shard in range(SHARDS):
            holders = [hand for hand in self.hands.known.values() if shard in hand.shards]
            assert len(holders) <= 1 + (shard in self.hands.moving)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
