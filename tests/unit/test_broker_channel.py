"""What an executor makes of the messages that a broker brings it, with no network around it."""

from concurrent.futures import Future
from typing import Any

import pytest
from test_strangers import Quiet

from manyhands.channels import amqp
from manyhands.channels.amqp import AmqpChannel
from manyhands.channels.amqp_names import Report, Unplayed
from manyhands.config import Config
from manyhands.orders import Event, Lost, Order, Trial
from manyhands.plan import plan

SMALL: dict[str, Any] = {
    "env": {"id": "small_envs:Chain"},
    "collect": {"shards": 2, "lanes": 2, "steps": 4},
    "net": {"hidden": [4]},
    "run": {"mode": "async", "workers": 0},
}
FIRST, SECOND = "manyhands.hand.a.1-0", "manyhands.hand.b.1-0"
"""Worker processes; the inbox of each ends with the number of its connection."""


class Nowhere(Quiet):
    """A broker that takes everything and brings nothing."""

    def acknowledge(self, message: Any, generation: int) -> None: ...

    def knock(self, queue: str, body: bytes) -> None: ...

    def depth(self, queue: str) -> "Future[int]":
        return Future()


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> AmqpChannel:
    monkeypatch.setattr(amqp, "Link", Nowhere)
    config = Config.from_plain(SMALL)
    opened = AmqpChannel(plan(config).task, None, "run", config)  # type: ignore[arg-type]
    opened.executor = "own"
    return opened


def report(process: str, **facts: Any) -> Report:
    return Report(f"{process}.1", "w", "host", 1, **facts)


def events(channel: AmqpChannel) -> list[Event]:
    found = []
    while (event := channel.receive(0.0)) is not None or channel.events:
        found += [event] if event is not None else []
    return found


@pytest.mark.parametrize("order", [Order(0, 0, 0), Trial(0, 0, 0, 0, 1)])
def test_a_malformed_order_comes_back_as_a_fault(channel: AmqpChannel, order: Order | Trial) -> None:
    """Given again and again without one, it would keep a run busy for ever."""
    channel._handle(("join", report(FIRST), 0.0))
    channel.order(order)
    for malformed in (True, True):
        channel._handle(("unplayed", Unplayed(f"{FIRST}.1", "own-1", "no such order", malformed)))
    (lost,) = events(channel)
    assert isinstance(lost, Lost)
    assert (lost.orders, lost.fault) == ((order,), True)
