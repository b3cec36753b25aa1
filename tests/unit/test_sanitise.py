"""The choice of training data, against slow versions that read like the words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from manyhands.algos import sanitise
from manyhands.algos.sanitise import PUBLISHED, Threshold

REWARDS = arrays(
    np.float32, st.integers(1, 40), elements=st.floats(-100, 100, width=32, allow_subnormal=False)
)


def slow_threshold(reward: np.ndarray, keep: float, clean: float | None, level: float) -> list[float]:
    score = sum(float(r) for r in reward)
    if score > keep:
        return [1.0 for _ in reward]
    if clean is None or score <= clean:
        return [0.0 for _ in reward]
    low, high = min(reward), max(reward)
    return [1.0 if high > low and (r - low) / (high - low) > level else 0.0 for r in reward]


@given(REWARDS, st.floats(-300, 300), st.none() | st.floats(-300, 300), st.floats(0, 1))
def test_threshold_takes_whole_cleans_or_drops(
    reward: np.ndarray, keep: float, clean: float | None, level: float
) -> None:
    found = sanitise.threshold(reward, Threshold(keep, clean, level))
    assert found.tolist() == slow_threshold(reward, keep, clean, level)


@pytest.mark.parametrize(
    ("name", "score", "taken"),
    [
        ("published-1", 1.0, 4),
        ("published-1", -399.0, 2),
        ("published-1", -401.0, 0),
        ("published-2", -399.0, 2),
        ("published-3", 101.0, 4),
        ("published-3", 99.0, 2),
        ("published-3", -51.0, 0),
        ("published-4", 151.0, 4),
        ("published-4", 149.0, 0),
    ],
)
def test_the_published_settings_of_lunar_lander(name: str, score: float, taken: int) -> None:
    reward = np.array([0.0, 1.0, 0.2, 0.9], np.float32) + np.float32((score - 2.1) / 4)
    assert sanitise.threshold(reward, PUBLISHED[name]).sum() == taken


@given(
    arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e4, 1e4, allow_subnormal=False)),
    st.floats(0.01, 1.0),
)
def test_the_elite_is_no_larger_than_its_share_but_for_equals(scores: np.ndarray, share: float) -> None:
    least = sanitise.elite(scores, share)
    assert least in scores
    assert (scores > least).sum() <= share * len(scores)
    assert (scores >= least).sum() >= 1


@given(
    arrays(np.float32, 20, elements=st.floats(-50, 50, width=32, allow_subnormal=False)),
    st.floats(0.05, 10),
    st.floats(1, 100),
)
def test_advantage_weights_are_limited_exponentials(
    advantages: np.ndarray, temperature: float, limit: float
) -> None:
    found = sanitise.advantage(advantages, temperature, limit)
    slow = [min(np.exp(min(float(a) / temperature, 700.0)), limit) for a in advantages]
    np.testing.assert_allclose(found, slow, rtol=1e-5, atol=1e-30)
    better = np.argsort(advantages, kind="stable")
    assert (np.diff(found[better]) >= 0).all()
