"""Returns and advantages: pure functions of arrays with axes [T, B].

`next_value[t]` is V of the observation after step t: of the next one, of the final one where the episode was
truncated there, and 0 where it terminated. `done` marks steps after which another episode begins.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]
Bool = NDArray[np.bool_]


def gae(reward: Float, value: Float, next_value: Float, done: Bool, gamma: float, lambda_: float) -> Float:
    """Generalised advantage estimation (Schulman et al. 2016).

    A_t = sum_k (gamma lambda)^k delta_{t+k} up to the episode's end,
    delta_t = r_t + gamma V(s_{t+1}) - V(s_t). With lambda = 1 it is the return minus the baseline.
    """
    advantage = reward + np.float32(gamma) * next_value - value
    decay = np.float32(gamma * lambda_) * ~done
    for t in range(len(reward) - 2, -1, -1):
        advantage[t] += decay[t] * advantage[t + 1]
    return advantage


def vtrace(
    log_ratio: Float,
    reward: Float,
    value: Float,
    next_value: Float,
    done: Bool,
    gamma: float,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[Float, Float]:
    """V-trace targets and policy-gradient advantages (Espeholt et al. 2018).

    v_t = V_t + rho_t delta_t + gamma c_t (v_{t+1} - V_{t+1}), with rho and c the clipped ratios
    pi / mu; the advantage is rho_t (r_t + gamma v_{t+1} - V_t).
    """
    ratio = np.exp(np.minimum(log_ratio, np.float32(80.0)))  # e^89 is past float32
    rho = np.minimum(ratio, np.float32(rho_clip))
    trace = np.float32(gamma * lambda_) * np.minimum(ratio, np.float32(c_clip)) * ~done
    correction = rho * (reward + np.float32(gamma) * next_value - value)
    for t in range(len(reward) - 2, -1, -1):
        correction[t] += trace[t] * correction[t + 1]
    target = value + correction
    next_target = next_value.copy()
    next_target[:-1] = np.where(done[:-1], next_value[:-1], target[1:])
    return target, rho * (reward + np.float32(gamma) * next_target - value)


def discounted(reward: Float, done: Bool, gamma: float, before: Float) -> Float:
    """R_t = r_t + gamma R_{t-1}, begun anew after every episode: the running sum behind reward scaling.

    `before` [B] is R just before the first step, 0 where an episode begins.
    """
    running = reward.copy()
    running[0] += np.float32(gamma) * before
    for t in range(1, len(reward)):
        running[t] += np.float32(gamma) * running[t - 1] * ~done[t - 1]
    return running


def moments(
    count: float, mean: NDArray[np.float64], square: NDArray[np.float64], rows: NDArray[np.floating]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Return count, mean and sum of squared deviations after more rows (Chan et al. 1979)."""
    more = len(rows)
    rows_mean = rows.mean(axis=0, dtype=np.float64)
    rows_square = ((rows - rows_mean) ** 2).sum(axis=0, dtype=np.float64)
    delta, total = rows_mean - mean, count + more
    return (
        total,
        mean + delta * (more / total),
        square + rows_square + delta**2 * (count * more / total),
    )


def unpack_moments(packed: NDArray[Any]) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Return count, mean and sum of squared deviations from one vector."""
    mean, square = packed[1:].reshape(2, -1).copy()
    return float(packed[0]), mean, square


def scaled(reward: Float, scale: float, limit: float) -> Float:
    """Return r * scale, cut at plus and minus `limit` unless that is 0."""
    result = reward * np.float32(scale)
    return np.clip(result, -limit, limit) if limit else result


def n_step(
    reward: Float, stop: Bool, no_bootstrap: Bool, gamma: float, n: int
) -> tuple[Float, Float, NDArray[np.uint8]]:
    """Return sums of n rewards for the rows [N] of one lane, up to and including the first `stop`.

    R_i = sum_{k < m} gamma^k r_{i+k}; the value of row i + m counts gamma^m, and 0 where the last step was
    `no_bootstrap`. Returns R, that discount, and m; m is 0 where the n steps are not over yet.
    """
    count = len(reward)
    total, discount = np.zeros(count, np.float32), np.zeros(count, np.float32)
    ahead = np.zeros(count, np.uint8)
    going = np.ones(count, bool)
    for k in range(min(n, count)):
        rows = going[: count - k]  # those that have a k-th step
        total[: count - k][rows] += np.float32(gamma**k) * reward[k:][rows]
        ended = np.flatnonzero(rows & stop[k:])
        ahead[ended] = k + 1
        discount[ended] = np.float32(gamma ** (k + 1)) * ~no_bootstrap[ended + k]
        going[ended] = False
    whole = np.flatnonzero(going[: max(0, count - n)])
    ahead[whole], discount[whole] = n, np.float32(gamma**n)
    return total, discount, ahead
