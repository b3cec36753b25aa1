"""Weights that would ruin whoever averages with them."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.algos import returns
from manyhands.averaging.child import Exchanger
from manyhands.averaging.link import Link
from manyhands.averaging.maths import (
    FORMATS,
    SMALLEST_SCALE,
    STEP_LIMIT,
    Feedback,
    Format,
    absurdity,
    dequantise,
    root_mean_square,
    within,
)
from manyhands.averaging.protocol import AveragingConfig
from manyhands.core import wire
from manyhands.core.arrays import Float32
from manyhands.core.networks import Dense, Head, NetSpec
from manyhands.core.weights import FLOAT32_MAX, Weights, average

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


def bare(vector: Float32, **beside: Float32) -> Weights:
    return Weights(0, vector, SPEC.schema, beside)


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
        assert absurdity(bare(mine), bare(other), share, scale) == ""
    for times in (1.2 * STEP_LIMIT, 1e6, 3.3e38):
        other = np.full(1000, times, np.float32)
        assert "so far away" in absurdity(bare(mine), bare(other), 0.9, 1.0)
    assert root_mean_square(np.full(7, 3.0, np.float32)) == pytest.approx(3.0)


def statistics(*pairs: tuple[float, float]) -> Weights:
    """Six weights, with the mean and the scale of every input beside them."""
    mean, scale = np.array(pairs, np.float32).T
    return bare(np.zeros(6, np.float32), input_mean=mean, input_scale=scale)


NEW = statistics((0, 1), (0, 1))
LEARNED = statistics((0.1, 2), (300, 0.01))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (NEW, statistics((1.7e9, 0.01), (-3e12, 1e-9))),  # the first exchange: any inputs
        (LEARNED, NEW),  # a child that has learned nothing yet
        (LEARNED, statistics((0, 1e3), (0, 1e3))),  # one whose inputs have not varied yet
        (LEARNED, statistics((5e4, 1e-4), (5e6, 1e-6))),
        (statistics((0, 1e3), (0, 1e3)), statistics((5e4, 1e-4), (-5e4, 1e3))),
        (statistics((9e16, 0.5), (-9e16, 0.5)), LEARNED),  # honest ones undo what others have done
    ],
)
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_honest_statistics_of_inputs_are_taken(mine: Weights, theirs: Weights, share: float) -> None:
    assert absurdity(mine, theirs, share, 1.0) == ""


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (NEW, statistics((1e20, 1), (0, 1)), "statistics of inputs beyond"),
        (LEARNED, statistics((9e16, 2), (300, 0.01)), "their mean of input 0 is 9e+16 away"),
        (LEARNED, statistics((0.1, 2), (-1e12, 1e-9)), "their mean of input 1 is 1e+12 away"),
        (LEARNED, statistics((0.1, 1e5), (300, 0.01)), "scale inputs by more than 10000"),
        (LEARNED, statistics((0.1, 2), (300, -1e9)), "scale inputs by 0 or less"),
        (NEW, statistics((0.1, 2), (300, 0)), "scale inputs by 0 or less"),
    ],
)
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_statistics_that_would_blind_a_network_are_refused(
    mine: Weights, theirs: Weights, share: float, said: str
) -> None:
    assert said in absurdity(mine, theirs, share, 1.0)


@pytest.mark.parametrize("alpha", [0.01, 0.5, 1.0])
def test_no_statistics_of_training_are_refused(alpha: float) -> None:
    """Three children, which join one after the other, and a parent that begins with none."""
    rng = np.random.default_rng(0)
    offset = np.array([0.0, 1e-3, -40.0, 1e4, 7.0])
    spread = np.array([1.0, 1e-4, 12.0, 3e3, 0.0])
    parent = statistics(*[(0.0, 1.0)] * len(offset))
    moments = [(0.0, np.zeros(len(offset)), np.zeros(len(offset)))] * 3
    for exchange in range(300):
        child = int(rng.integers(1 + min(2, exchange // 50)))
        moved = offset * (1 + exchange / 100)  # as the policy gets better
        moments[child] = returns.moments(*moments[child], rng.normal(moved, spread, (64, len(offset))))
        count, mean, square = moments[child]
        sent = statistics(*zip(mean, 1 / np.sqrt(square / count + 1e-6), strict=True))
        assert absurdity(parent, sent, alpha, 1.0) == ""
        averaged = {name: average(array, sent.beside[name], alpha) for name, array in parent.beside.items()}
        parent = bare(parent.vector, **averaged)


class Answering(Link):
    """A parent that answers with the same weights each time."""

    def __init__(self, value: float) -> None:
        super().__init__("ws://127.0.0.1:1", "one")
        self.value = value
        self.averaging = AveragingConfig(beta=0.5)
        self.connection = cast(Any, object())

    def ask(self, message: wire.Message, spec: NetSpec) -> Weights | None:
        return Weights(1, np.full(spec.size, self.value, np.float32), spec.schema)


class Mixing:
    """A learner that averages and does nothing else."""

    def __init__(self) -> None:
        self.vector = np.zeros(SPEC.size, np.float32)

    def weights(self) -> Weights:
        return Weights(0, self.vector, SPEC.schema)

    def average_into(self, vector: Float32, share: float) -> None:
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
        if why := absurdity(bare(mine), bare(theirs), 1.0, scale):
            break
        mine = theirs
    assert "no network can learn" in why
    assert root_mean_square(mine) < 1e7
