"""The vectorised maths against loops that read like the papers' formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.algos.returns import discounted, gae, moments, vtrace


class Rollout:
    """Random rewards, values and ends; V(s') follows the rules of `returns`."""

    def __init__(self, seed: int, steps: int, lanes: int, share: float) -> None:
        rng = np.random.default_rng(seed)
        shape = (steps, lanes)
        self.reward, self.value = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
        self.terminated = rng.random(shape) < share
        self.truncated = (rng.random(shape) < share) & ~self.terminated
        self.done = self.terminated | self.truncated
        last, final = rng.normal(size=lanes), rng.normal(size=shape)
        self.next_value = np.concatenate([self.value[1:], last[None]]).astype(np.float32)
        self.next_value[self.truncated] = final[self.truncated]
        self.next_value[self.terminated] = 0.0
        self.log_ratio = rng.normal(0.0, 0.7, shape).astype(np.float32)


rollouts = st.builds(
    Rollout,
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 12),
    lanes=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.15, 0.5, 1.0]),
)
discounts = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


def end_of(r: Rollout, t: int, lane: int) -> int:
    """The first step at or after t after which nothing of this episode follows in the rollout."""
    while t < len(r.reward) - 1 and not r.done[t, lane]:
        t += 1
    return t


def slow_gae(r: Rollout, gamma: float, lambda_: float) -> np.ndarray:
    advantage = np.zeros(r.reward.shape)
    for t, lane in np.ndindex(*r.reward.shape):
        for k in range(end_of(r, t, lane) - t + 1):
            s = t + k
            delta = r.reward[s, lane] + gamma * r.next_value[s, lane] - float(r.value[s, lane])
            advantage[t, lane] += (gamma * lambda_) ** k * delta
    return advantage


def slow_vtrace(
    r: Rollout, gamma: float, lambda_: float, rho_clip: float, c_clip: float
) -> tuple[np.ndarray, np.ndarray]:
    """v_s = V(s) + sum_t gamma^(t-s) (prod_{i=s}^{t-1} lambda c_i) rho_t delta_t, equation 1 of the paper."""
    rho = np.minimum(rho_clip, np.exp(r.log_ratio.astype(float)))
    c = lambda_ * np.minimum(c_clip, np.exp(r.log_ratio.astype(float)))
    target, advantage = np.zeros(r.reward.shape), np.zeros(r.reward.shape)
    for s, lane in np.ndindex(*r.reward.shape):
        total = float(r.value[s, lane])
        for t in range(s, end_of(r, s, lane) + 1):
            delta = r.reward[t, lane] + gamma * r.next_value[t, lane] - float(r.value[t, lane])
            total += gamma ** (t - s) * np.prod(c[s:t, lane]) * rho[t, lane] * delta
        target[s, lane] = total
    for s, lane in np.ndindex(*r.reward.shape):
        inside = s < len(r.reward) - 1 and not r.done[s, lane]
        after = target[s + 1, lane] if inside else r.next_value[s, lane]
        advantage[s, lane] = rho[s, lane] * (r.reward[s, lane] + gamma * after - r.value[s, lane])
    return target, advantage


@given(rollouts, discounts, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae_equals_the_sum_of_discounted_deltas(r: Rollout, gamma: float, lambda_: float) -> None:
    fast = gae(r.reward, r.value, r.next_value, r.done, gamma, lambda_)
    assert fast.dtype == np.float32
    np.testing.assert_allclose(fast, slow_gae(r, gamma, lambda_), rtol=1e-4, atol=1e-4)


@given(rollouts, discounts)
def test_gae_with_lambda_1_is_the_monte_carlo_return_minus_the_value(r: Rollout, gamma: float) -> None:
    fast = gae(r.reward, r.value, r.next_value, r.done, gamma, 1.0)
    for t, lane in np.ndindex(*r.reward.shape):
        end = end_of(r, t, lane)
        total = sum(gamma ** (s - t) * float(r.reward[s, lane]) for s in range(t, end + 1))
        total += gamma ** (end - t + 1) * float(r.next_value[end, lane])
        assert fast[t, lane] == pytest.approx(total - r.value[t, lane], rel=1e-4, abs=1e-4)


@given(rollouts, discounts)
def test_gae_with_lambda_0_is_the_temporal_difference(r: Rollout, gamma: float) -> None:
    delta = r.reward + gamma * r.next_value - r.value
    np.testing.assert_allclose(
        gae(r.reward, r.value, r.next_value, r.done, gamma, 0.0), delta, rtol=1e-5, atol=1e-5
    )


def test_gae_changes_none_of_its_inputs() -> None:
    r = Rollout(1, 6, 2, 0.3)
    before = [a.copy() for a in (r.reward, r.value, r.next_value, r.done)]
    gae(r.reward, r.value, r.next_value, r.done, 0.9, 0.9)
    vtrace(r.log_ratio, r.reward, r.value, r.next_value, r.done, 0.9)
    discounted(r.reward, r.done, 0.9, r.value[0])
    for old, new in zip(before, (r.reward, r.value, r.next_value, r.done), strict=True):
        assert np.array_equal(old, new)


@given(
    rollouts,
    discounts,
    st.sampled_from([0.0, 0.9, 1.0]),
    st.sampled_from([0.8, 1.0, 2.0]),
    st.sampled_from([0.5, 1.0]),
)
def test_vtrace_equals_the_papers_sum(
    r: Rollout, gamma: float, lambda_: float, rho_clip: float, c_clip: float
) -> None:
    fast = vtrace(r.log_ratio, r.reward, r.value, r.next_value, r.done, gamma, lambda_, rho_clip, c_clip)
    for mine, theirs in zip(fast, slow_vtrace(r, gamma, lambda_, rho_clip, c_clip), strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)


@given(rollouts, discounts)
def test_vtrace_on_policy_gives_n_step_returns(r: Rollout, gamma: float) -> None:
    zero = np.zeros_like(r.reward)
    target, advantage = vtrace(zero, r.reward, r.value, r.next_value, r.done, gamma)
    for t, lane in np.ndindex(*r.reward.shape):
        end = end_of(r, t, lane)
        total = sum(gamma ** (s - t) * float(r.reward[s, lane]) for s in range(t, end + 1))
        total += gamma ** (end - t + 1) * float(r.next_value[end, lane])
        assert target[t, lane] == pytest.approx(total, rel=1e-4, abs=1e-4)
    np.testing.assert_allclose(advantage, target - r.value, rtol=1e-4, atol=1e-4)


@given(rollouts, discounts, st.sampled_from([0.0, 0.9, 1.0]))
def test_vtrace_on_policy_is_gae_plus_value(r: Rollout, gamma: float, lambda_: float) -> None:
    zero = np.zeros_like(r.reward)
    target, _ = vtrace(zero, r.reward, r.value, r.next_value, r.done, gamma, lambda_)
    advantage = gae(r.reward, r.value, r.next_value, r.done, gamma, lambda_)
    np.testing.assert_allclose(target, advantage + r.value, rtol=1e-4, atol=1e-4)


def test_vtrace_survives_a_ratio_that_overflows() -> None:
    r = Rollout(2, 5, 2, 0.2)
    r.log_ratio[2, 1] = 200.0
    capped = r.log_ratio.copy()
    capped[2, 1] = 5.0
    for high, low in zip(
        vtrace(r.log_ratio, r.reward, r.value, r.next_value, r.done, 0.9),
        vtrace(capped, r.reward, r.value, r.next_value, r.done, 0.9),
        strict=True,
    ):
        np.testing.assert_allclose(high, low)


@given(rollouts, discounts)
def test_discounted_is_the_backward_looking_sum_of_the_episode(r: Rollout, gamma: float) -> None:
    before = np.linspace(-1, 1, r.reward.shape[1], dtype=np.float32)
    fast = discounted(r.reward, r.done, gamma, before)
    for t, lane in np.ndindex(*r.reward.shape):
        total, s = 0.0, t
        while s >= 0 and (s == t or not r.done[s, lane]):
            total += gamma ** (t - s) * float(r.reward[s, lane])
            s -= 1
        if s < 0:  # the episode was under way when the rollout began
            total += gamma ** (t + 1) * float(before[lane])
        assert fast[t, lane] == pytest.approx(total, rel=1e-4, abs=1e-4)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 2**32), st.integers(1, 3))
def test_moments_in_pieces_equal_moments_at_once(sizes: list[int], seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = [rng.normal(100.0, 3.0, (size, width)).astype(np.float32) for size in sizes]
    state = (0.0, np.zeros(width), np.zeros(width))
    for piece in pieces:
        state = moments(*state, piece)
    count, mean, square = state
    whole = np.concatenate(pieces).astype(float)
    assert count == len(whole)
    np.testing.assert_allclose(mean, whole.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(square, ((whole - whole.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-6, atol=1e-6)
