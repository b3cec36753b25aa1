"""Weights that would ruin whoever averages with them."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands import wire
from manyhands.averaging.child import Exchanger
from manyhands.averaging.link import Link
from manyhands.averaging.maths import (
    FLOAT32_MAX,
    FORMATS,
    SMALLEST_SCALE,
    STEP_LIMIT,
    Feedback,
    Format,
    absurdity,
    average,
    dequantise,
    root_mean_square,
    within,
)
from manyhands.averaging.protocol import AveragingConfig
from manyhands.policy import Dense, Float32, Head, NetSpec, Weights

SPEC = NetSpec((3,), (Head("policy", 2, (Dense(4),)),))
LARGE = st.sampled_from([0.0, 1.0, -3.3e38, 3.3e38, FLOAT32_MAX, -FLOAT32_MAX])


@given(LARGE, LARGE, st.floats(0, 1))
def test_an_average_of_finite_weights_is_finite(mine: float, other: float, share: float) -> None:
    one, two = np.full(5, mine, np.float32), np.full(5, other, np.float32)
    moved = average(one, two, share)
    assert np.isfinite(moved).all()
    short = within(one, moved, 0.5)
    assert np.isfinite(short).all()
    expected = (1 - share) * mine + share * other
    np.testing.assert_allclose(moved, expected, rtol=1e-5, atol=1e32 if expected else 1e-6)


@given(st.lists(LARGE, min_size=3, max_size=3), st.sampled_from(FORMATS))
def test_what_a_format_cannot_hold_does_not_add_up(values: list[float], how: Format) -> None:
    feedback = Feedback(how, 3)
    for _ in range(5):
        received = dequantise(feedback.quantise(np.array(values, np.float32)), how, 3)
        assert np.isfinite(received).all()
    assert np.isfinite(feedback.lost).all()


def test_a_step_is_absurd_when_it_is_many_times_what_weights_are() -> None:
    rng = np.random.default_rng(0)
    mine = rng.normal(size=1000).astype(np.float32)
    for times, share, scale in (
        (0.5, 0.9, 1.0),
        (STEP_LIMIT, 0.9, 1.0),
        (100.0, 0.05, 1.0),
        (50.0, 0.9, 5.0),
    ):
        other = mine + np.float32(times) * np.ones(1000, np.float32)
        assert absurdity(mine, other, share, 1000, scale) == ""
    for times in (1.2 * STEP_LIMIT, 1e6, 3.3e38):
        other = np.full(1000, times, np.float32)
        assert "so far away" in absurdity(mine, other, 0.9, 1000, 1.0)
    assert root_mean_square(np.full(7, 3.0, np.float32)) == pytest.approx(3.0)


def test_statistics_of_inputs_may_be_large_but_not_absurd() -> None:
    mine = np.zeros(10, np.float32)
    far = np.r_[np.zeros(6), np.full(4, 1e9)].astype(np.float32)
    assert absurdity(mine, far, 1.0, 6, 1.0) == ""
    far[-1] = 1e20
    assert "statistics" in absurdity(mine, far, 1.0, 6, 1.0)


class Answering(Link):
    """A parent that answers with the same weights each time."""

    def __init__(self, value: float) -> None:
        super().__init__("ws://127.0.0.1:1", "one")
        self.value = value
        self.averaging = AveragingConfig(beta=0.5)
        self.connection = cast(Any, object())

    def ask(self, message: wire.Message, size: int) -> tuple[int, Float32] | None:
        return 1, np.full(size, self.value, np.float32)


class Mixing:
    """A learner that averages and does nothing else."""

    def __init__(self) -> None:
        self.vector = np.zeros(SPEC.size, np.float32)

    def weights(self) -> Weights:
        return Weights(0, self.vector, SPEC.schema)

    def mix(self, vector: Float32, share: float) -> None:
        self.vector = average(self.vector, vector, share)


def test_a_child_keeps_its_weights_when_its_parents_would_ruin_it_and_says_whose_they_are() -> None:
    link, learner, said = Answering(3.3e38), Mixing(), list[str]()
    exchanger = Exchanger(link, SPEC, 0)
    exchanger.bind(lambda: None, said.append)
    for _ in range(3):
        exchanger.after(learner, [])
    assert (learner.vector == 0).all()
    assert exchanger.exchanges == 3
    assert len(said) == 1
    assert "refused the weights of the parent at ws://127.0.0.1:1: they are so far away" in said[0]
    link.value = 2.0
    exchanger.after(learner, [])
    assert (learner.vector == 1.0).all()


def test_many_small_steps_do_not_lead_to_weights_that_no_network_can_learn_from() -> None:
    """Each is small for weights that have grown so far, so only their size can end it."""
    mine = np.full(10, 0.1, np.float32)
    for _ in range(40):
        theirs = mine * 9
        scale = max(SMALLEST_SCALE, root_mean_square(mine))
        if why := absurdity(mine, theirs, 1.0, len(mine), scale):
            break
        mine = theirs
    assert "no network can learn" in why
    assert root_mean_square(mine) < 1e7
