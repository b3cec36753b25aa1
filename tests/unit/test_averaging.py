"""Averaging and quantising, as pure functions."""

from dataclasses import fields
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from manyhands.averaging.child import Exchanger, own_config
from manyhands.averaging.limits import MAX_ENVS, MAX_MESSAGE_MB
from manyhands.averaging.link import Link
from manyhands.averaging.listening import ListenConfig
from manyhands.averaging.maths import BLOCK, FORMATS, Feedback, Format, dequantise, quantise, within
from manyhands.averaging.protocol import DEFAULT_ALGO, AveragingConfig
from manyhands.averaging.welcome import Welcome
from manyhands.cli.averaging import add_child, add_parent
from manyhands.cli.options import Parser
from manyhands.config.settings import Config
from manyhands.core import wire
from manyhands.core.arrays import Float32
from manyhands.core.errors import WireError
from manyhands.core.networks import Dense, Head, NetSpec
from manyhands.core.weights import Weights, average

VECTORS = arrays(np.float32, st.integers(1, 3 * BLOCK), elements=st.floats(-100, 100, width=32))


@given(VECTORS, st.floats(0, 1))
def test_an_average_lies_between_and_is_one_of_them_at_the_ends(vector: np.ndarray, share: float) -> None:
    other = vector[::-1].copy()
    found = average(vector, other, share)
    slack = 1e-4 * (1 + np.abs(vector).max())
    assert (found >= np.minimum(vector, other) - slack).all()
    assert (found <= np.maximum(vector, other) + slack).all()
    assert np.array_equal(average(vector, other, 0.0), vector)
    assert np.array_equal(average(vector, other, 1.0), other)


@given(VECTORS, st.floats(0.001, 1000))
def test_one_exchange_goes_no_further_than_allowed(vector: np.ndarray, limit: float) -> None:
    moved = within(vector, -vector, limit)
    way = np.linalg.norm((moved - vector).astype(np.float64))
    assert way <= limit * 1.01 + 1e-3 * np.abs(vector).max() * len(vector) ** 0.5
    assert np.array_equal(within(vector, -vector, 0.0), -vector)


@given(VECTORS, st.sampled_from(FORMATS))
def test_quantising_and_back_loses_little(vector: np.ndarray, how: Format) -> None:
    found = dequantise(quantise(vector, how), how, len(vector))
    if how == "float32":
        assert np.array_equal(found, vector)
        return
    for start in range(0, len(vector), BLOCK):
        block = vector[start : start + BLOCK]
        step = np.abs(block).max() / 127 if how == "int8" else np.abs(block).max() / 1024 + 1e-7
        assert np.abs(found[start : start + BLOCK] - block).max() <= 0.51 * step + 1e-6


@given(VECTORS, st.sampled_from(FORMATS))
def test_what_is_lost_is_made_up_for(vector: np.ndarray, how: Format) -> None:
    feedback = Feedback(how, len(vector))
    received = [dequantise(feedback.quantise(vector), how, len(vector)) for _ in range(20)]
    error = np.abs(np.mean(received, axis=0, dtype=np.float64) - vector).max()
    assert error <= np.abs(vector).max() / 127 / 10 + 1e-4


def test_bytes_are_a_half_and_a_quarter() -> None:
    vector = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    sizes = {how: sum(array.nbytes for array in quantise(vector, how).values()) for how in FORMATS}
    assert sizes["float16"] == sizes["float32"] / 2
    assert sizes["int8"] <= 1.01 * sizes["float32"] / 4


@pytest.mark.parametrize("how", FORMATS)
def test_other_arrays_are_refused(how: Format) -> None:
    vector = np.ones(5, np.float32)
    good = quantise(vector, how)
    other = "float16" if how != "float16" else "float32"
    for bad, what in (
        ({}, "nothing where 5"),
        ({**good, "values": good["values"][:4]}, r"\[4\] where 5"),
        (quantise(vector, other), f"numbers of {how}"),
    ):
        with pytest.raises(WireError, match=what):
            dequantise(bad, how, 5)
    if how == "int8":
        with pytest.raises(WireError, match="scales"):
            dequantise({"values": good["values"]}, how, 5)
        with pytest.raises(WireError, match="finite"):
            dequantise({**good, "scales": np.full(1, np.nan, np.float32)}, how, 5)
        with pytest.raises(WireError, match="finite"):  # 0 times infinity, without a warning
            dequantise({"values": np.zeros(5, np.int8), "scales": np.full(1, np.inf, np.float32)}, how, 5)
    else:
        with pytest.raises(WireError, match="finite"):
            dequantise({"values": np.full(5, np.nan, good["values"].dtype)}, how, 5)


class Flaky(Link):
    """A connection that loses every second exchange."""

    def __init__(self) -> None:
        super().__init__("ws://127.0.0.1:1", "flaky")
        self.asked: list[wire.Message] = []

    def ask(self, message: wire.Message, spec: NetSpec) -> Weights | None:
        self.asked.append(message)
        answer = Weights(len(self.asked), np.ones(spec.size, np.float32), spec.schema)
        return None if len(self.asked) % 2 else answer


def test_a_child_tells_everything_once_whatever_is_lost_on_the_way() -> None:
    spec = NetSpec((3,), (Head("policy", 2, (Dense(4),)),))
    link = Flaky()
    exchanger = Exchanger(link, spec, 0)
    for steps in (10, 20, 30, 40):
        exchanger.steps += steps
        exchanger.episodes += 1
        exchanger.exchange(Weights(0, np.zeros(spec.size, np.float32), spec.schema))
    assert [message.meta["steps"] for message in link.asked] == [10, 30, 60, 100]
    assert [message.meta["episodes"] for message in link.asked] == [1, 2, 3, 4]
    assert exchanger.base == 4


def test_help_tells_the_defaults_that_there_are() -> None:
    parent, child = Parser(), Parser()
    parent.helping = child.helping = True
    add_parent(parent)
    add_child(child)
    told = " ".join(parent.format_help().split())
    alone = {"hogwild", "token_file", "tls_cert", "tls_key"}  # off, or none
    for field in (*fields(AveragingConfig), *fields(ListenConfig)):
        if field.name not in alone:
            option = f"--{field.name.replace('_', '-')} "
            text = told.rpartition(option)[2].partition(" --")[0]
            known = "auto" if field.default is None else field.default
            number = f"{known:,}" if isinstance(known, int) else known
            shown = f"{number:g}" if isinstance(number, float) else number
            assert f"default: {shown}" in text, text
    assert f"(default: {DEFAULT_ALGO})" in told
    options = child.parse_args(["ws://here"])
    assert (options.max_envs, options.max_message) == (MAX_ENVS, MAX_MESSAGE_MB)
    told = " ".join(child.format_help().split())
    assert f"(default: {MAX_ENVS})" in told
    assert f"(default: {MAX_MESSAGE_MB})" in told


class Refusing:
    """A parent's end of a connection that has had enough of a child, for now or for good."""

    def __init__(self, again: bool) -> None:
        self.answer = wire.encode(wire.Message("refused", "", {"why": "too slow", "again": again}))

    def send(self, message: bytes) -> None: ...

    def recv(self, timeout: float) -> bytes:
        return self.answer

    def close(self) -> None: ...


@pytest.mark.parametrize("again", [True, False])
def test_a_child_that_was_only_too_slow_comes_back(again: bool) -> None:
    link = Link("ws://127.0.0.1:1", "slow")
    link.connection = cast(Any, Refusing(again))
    link.closed.set()  # nobody is to be looked for here
    assert link.ask(wire.Message("exchange"), NetSpec((3,), (Head("policy", 2),))) is None
    assert bool(link.refused) != again
    assert (link.connection is None) == again


@pytest.mark.parametrize("how", ["over", "refused"])
def test_a_child_that_hears_the_end_before_it_trains_does_not_train(how: str) -> None:
    link, stopped = Flaky(), list[bool]()
    exchanger = Exchanger(link, NetSpec((3,), (Head("policy", 2, (Dense(4),)),)), 0)
    setattr(link, how, "it is so")
    exchanger.bind(lambda: stopped.append(True), print)
    assert stopped


class Still:
    """A learner that only listens."""

    def __init__(self, size: int) -> None:
        self.vector = np.zeros(size, np.float32)

    def weights(self) -> Weights:
        return Weights(0, self.vector, "")

    def average_into(self, vector: Float32, share: float) -> None:
        raise AssertionError("beta is 0")


def test_a_child_slows_down_with_its_parents_exchanges() -> None:
    spec = NetSpec((3,), (Head("policy", 2, (Dense(4),)),))
    link = Flaky()
    link.averaging = AveragingConfig(exchanges=10)
    link.connection = cast(Any, object())
    exchanger, learner, left = Exchanger(link, spec, 1), Still(spec.size), []
    for _ in range(6):
        left.append(exchanger.horizon.left(0))
        exchanger.after(learner, [])
    assert left == pytest.approx([0.9, 0.9, 0.8, 0.8, 0.6, 0.6])


def test_a_child_ends_with_its_parent_whatever_the_parents_own_limits_are() -> None:
    config = Config.from_plain({"run": {"minutes": 0.1, "steps": 5, "updates": 3}})
    spec = NetSpec((2,), (Head("policy", 2), Head("value", 1)))
    first = Weights(0, np.zeros(spec.size, np.float32), spec.schema, {})
    run = own_config(Welcome(config, spec, AveragingConfig(), first), 2, 1).run
    assert (run.until, run.minutes, run.updates) == ("external", 0.0, 0)
