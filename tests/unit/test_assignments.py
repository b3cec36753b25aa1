"""Who plays what, without a broker: shards have one holder, orders are never lost, and work is spread."""

import time
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from manyhands.channels.amqp.assignments import Players
from manyhands.channels.amqp.messages import Report
from manyhands.core.orders import EvalOrder, Order

SHARDS = 5
NAMES = [f"player-{i}" for i in range(4)]


def report(name: str) -> Report:
    return Report(name, name, "host", 1)


def test_orders_wait_for_a_player_and_then_stay_with_it() -> None:
    players = Players()
    first = Order(0, 0, 0)
    assert players.give(first, "a") is None
    assert players.join(report("one")) == [first]
    one = players.give(first, "b")
    players.join(report("two"))
    assert players.give(Order(0, 1, 0), "c") is one
    assert players.close("b") == first
    assert players.close("b") is None


def test_a_player_that_joins_gets_its_share_and_a_lost_one_gives_all_back() -> None:
    players = Players()
    players.join(report("one"))
    for shard in range(4):
        players.give(Order(shard, 0, 0), f"first-{shard}")
    players.join(report("two"))
    assert players.balance() == [(3, "one"), (2, "one")]
    late = Order(3, 1, 0)
    assert players.give(late, "late") is None
    assert players.release("one", 3) == (Order(3, 0, 0), late)
    taken = players.give(late, "again")
    assert taken is not None
    assert taken.name == "two"
    assert players.lose("two") == ((3,), (late,))  # shard 2 still stands with "one"
    assert players.lose("two") is None
    assert players.release("one", 2) is not None


def test_orders_for_a_player_that_is_missed_wait_until_it_is_lost() -> None:
    players = Players()
    players.join(report("one"))
    players.give(Order(0, 0, 0), "a")
    players.close("a")
    players.join(report("two"))
    players.known["one"].missed = 1.0
    late = Order(0, 1, 0)
    assert players.give(late, "b") is None
    players.known["one"].update(report("one"))  # sent before its connection ended
    assert players.give(Order(0, 2, 0), "c") is None
    assert players.lose("one") == ((0,), (late, Order(0, 2, 0)))
    two = players.give(late, "d")
    assert two is players.known["two"]


def test_what_a_player_cannot_play_is_given_back_once() -> None:
    players = Players()
    players.join(report("one"))
    for sequence in (0, 1):
        players.give(Order(0, sequence, 0), f"{sequence}")
    assert players.unplayed("two", "0") is None
    assert players.unplayed("one", "0") == ((0,), (Order(0, 0, 0), Order(0, 1, 0)))
    assert players.unplayed("one", "1") is None
    players.give(EvalOrder(0, 0, 0, 0, 1), "test")
    assert players.unplayed("one", "test") == ((), (EvalOrder(0, 0, 0, 0, 1),))
    assert players.known["one"].shards == set()


def test_players_that_join_before_the_first_release_share_alike() -> None:
    """Six shards, six players: one had kept three of them, and two had played nothing."""
    players = Players()
    players.join(report("player-0"))
    for shard in range(6):
        players.give(Order(shard, 0, 0), f"first-{shard}")
    asked = []
    for number in range(1, 6):
        players.join(report(f"player-{number}"))
        asked += players.balance()
    assert sorted(asked) == [(shard, "player-0") for shard in range(1, 6)]
    for shard, name in asked:
        undone = players.release(name, shard)
        assert undone is not None
        for order in undone:
            players.give(order, f"again-{shard}")
    assert [len(player.shards) for player in players.known.values()] == [1] * 6


def test_an_order_that_no_report_names_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    players = Players()
    players.join(report("one"))
    first, other, part = Order(0, 0, 0), Order(1, 0, 0), EvalOrder(0, 0, 0, 0, 1)
    for order, identity in ((first, "a"), (other, "b"), (part, "c")):
        players.give(order, identity)
    player, now = players.known["one"], time.monotonic()
    player.update(report("one"), now + 1)  # on its way to the player
    for second in range(10):
        assert not players.overdue()
        player.update(replace(report("one"), open=("a", "b", "c")), now + 10 + second)
    for second in range(5):
        assert not players.overdue()
        player.update(replace(report("one"), open=("b",)), now + 20 + second)
    assert players.overdue() == [("one", (0,), (first, part))]
    assert not players.overdue()
    assert player.shards == {1}


def test_a_release_that_is_not_answered_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    players = Players()
    players.join(report("one"))
    for shard in range(2):
        players.give(Order(shard, 0, 0), f"{shard}")
    players.join(report("two"))
    assert players.balance() == [(1, "one")]
    assert players.unanswered_moves() == []
    later = time.monotonic() + 11
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert players.unanswered_moves() == [(1, "one")]
    assert players.unanswered_moves() == []


class Books(RuleBasedStateMachine):
    """Whatever happens, an order is either open with one player, waiting, answered, or given back.

    And nobody is asked to go on with a shard that stands elsewhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self.players = Players()
        self.given = 0
        self.open: dict[str, Order | EvalOrder] = {}
        self.sequence = dict.fromkeys(range(SHARDS), 0)
        self.unheld = set(range(SHARDS))  # as the executor has it: the next order says where the shard stands
        self.with_start: list[Order] = []
        self.stands_with: dict[int, str] = {}  # shard: the player that has played it

    def give(self, order: Order | EvalOrder) -> None:
        if isinstance(order, Order) and order.shard in self.unheld:
            self.unheld.remove(order.shard)
            self.with_start.append(order)
        self.give_again(order)

    def give_again(self, order: Order | EvalOrder) -> None:
        self.given += 1
        player = self.players.give(order, str(self.given))
        if player is None:
            return
        self.open[str(self.given)] = order
        assert not player.missed
        if isinstance(order, Order):
            if any(order is other for other in self.with_start):
                self.stands_with[order.shard] = player.name
            assert self.stands_with[order.shard] == player.name

    @rule(shard=st.integers(0, SHARDS - 1))
    def order(self, shard: int) -> None:
        self.give(Order(shard, self.sequence[shard], 0))
        self.sequence[shard] += 1

    @rule(part=st.integers(0, 3))
    def trial(self, part: int) -> None:
        self.give(EvalOrder(part, 0, 0, 0, 1))

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        if name in self.players.known:
            return
        for order in self.players.join(report(name)):
            self.give_again(order)
        self.players.balance()

    @rule()
    def look_again(self) -> None:
        self.players.balance()

    @rule()
    def quiet(self) -> None:
        """Once every player that was asked has released, no one has two shards more than another."""
        for shard in range(SHARDS):
            if (
                not any(shard in player.shards for player in self.players.known.values())
                and self.players.usable()
            ):
                self.order(shard)
        self.players.balance()
        while self.players.moving:
            self.release(0)
            self.players.balance()
        counts = [len(player.shards) for player in self.players.usable()]
        assert not counts or max(counts) - min(counts) <= 1

    @rule(pick=st.integers(0, 100))
    def answer(self, pick: int) -> None:
        if self.open:
            identity = list(self.open)[pick % len(self.open)]
            assert self.players.close(identity) == self.open.pop(identity)

    @rule(name=st.sampled_from(NAMES))
    def lose(self, name: str) -> None:
        lost = self.players.lose(name)
        if lost is not None:
            self.take_back(*lost)

    @rule(name=st.sampled_from(NAMES))
    def miss(self, name: str) -> None:
        if name in self.players.known:
            self.players.known[name].missed = 1.0

    @rule(name=st.sampled_from(NAMES))
    def hear(self, name: str) -> None:
        if name in self.players.known:
            self.players.known[name].update(report(name))

    @rule(pick=st.integers(0, 100))
    def refuse(self, pick: int) -> None:
        if self.open:
            identity = list(self.open)[pick % len(self.open)]
            holder = next(player.name for player in self.players.known.values() if identity in player.orders)
            found = self.players.unplayed(holder, identity)
            assert found is not None
            self.take_back(*found)

    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        if self.players.moving:
            shard, name = list(self.players.moving.items())[pick % len(self.players.moving)]
            undone = self.players.release(name, shard)
            assert undone is not None
            self.take_back((shard,), undone)

    def take_back(self, shards: tuple[int, ...], undone: tuple[Order | EvalOrder, ...]) -> None:
        self.unheld.update(shards)
        for order in undone:
            found = next((identity for identity, known in self.open.items() if known is order), None)
            if found is not None:
                del self.open[found]
                assert self.players.close(found) is None
        for order in undone:
            self.give(order)

    @invariant()
    def every_order_is_somewhere(self) -> None:
        held = {identity for player in self.players.known.values() for identity in player.orders}
        assert held == set(self.open)
        missed = {shard for player in self.players.known.values() if player.missed for shard in player.shards}
        if self.players.usable():
            stuck = [order for order in self.players.waiting if not isinstance(order, Order)]
            assert not stuck
            assert all(order.shard in missed | set(self.players.moving) for order in self.players.waiting)

    @invariant()
    def a_shard_has_one_holder_besides_the_one_it_moves_to(self) -> None:
        for shard in range(SHARDS):
            holders = [player for player in self.players.known.values() if shard in player.shards]
            assert len(holders) <= 1 + (shard in self.players.moving)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
