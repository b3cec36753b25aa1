"""Who plays what, without a broker: shards have one holder, orders are never lost, and work is spread."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from manyhands.channels.amqp_hands import Hands
from manyhands.channels.amqp_names import Report
from manyhands.orders import Order, Trial

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
    assert hands.lose("two") == ((2, 3), (late,))
    assert hands.lose("two") is None
    assert hands.release("one", 2) is not None


class Books(RuleBasedStateMachine):
    """Whatever happens, an order is either open with one usable hand, waiting, answered, or given back."""

    def __init__(self) -> None:
        super().__init__()
        self.hands = Hands()
        self.given = 0
        self.open: dict[str, Order | Trial] = {}
        self.sequence = dict.fromkeys(range(SHARDS), 0)

    def give(self, order: Order | Trial) -> None:
        self.given += 1
        hand = self.hands.give(order, str(self.given))
        if hand is not None:
            self.open[str(self.given)] = order

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
            self.give(order)
        self.hands.balance()

    @rule(pick=st.integers(0, 100))
    def answer(self, pick: int) -> None:
        if self.open:
            identity = list(self.open)[pick % len(self.open)]
            assert self.hands.close(identity) == self.open.pop(identity)

    @rule(name=st.sampled_from(NAMES))
    def lose(self, name: str) -> None:
        lost = self.hands.lose(name)
        if lost is not None:
            self.take_back(lost[1])

    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        if self.hands.moving:
            shard, name = list(self.hands.moving.items())[pick % len(self.hands.moving)]
            undone = self.hands.release(name, shard)
            assert undone is not None
            self.take_back(undone)

    def take_back(self, undone: tuple[Order | Trial, ...]) -> None:
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
        if self.hands.known:
            stuck = [order for order in self.hands.waiting if not isinstance(order, Order)]
            assert not stuck
            assert all(order.shard in self.hands.moving for order in self.hands.waiting)

    @invariant()
    def a_shard_has_one_holder_besides_the_one_it_moves_to(self) -> None:
        for shard in range(SHARDS):
            holders = [hand for hand in self.hands.known.values() if shard in hand.shards]
            assert len(holders) <= 1 + (shard in self.hands.moving)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
