"""Chooses training data for supervised agents: the actions of the data that are worth learning from.

Pure functions of arrays. An episode has rewards [n] and a score, their sum; a choice is a weight per action,
0 for those that are left out.
"""

from dataclasses import dataclass

import numpy as np

from manyhands.core.arrays import Array, Float32


@dataclass(frozen=True)
class Threshold:
    """Constant thresholds, chosen by people: the published way."""

    keep: float
    """An episode with a score above this is taken whole."""
    clean: float | None
    """One above this is cleaned; None cleans none."""
    level: float = 0.4
    """The reward, on a scale of 0 to 1, above which the actions of a cleaned episode are taken."""


PUBLISHED = {
    "published-1": Threshold(0.0, -400.0),
    "published-2": Threshold(0.0, -400.0),
    "published-3": Threshold(100.0, -50.0),
    "published-4": Threshold(150.0, None),
}
"""The four settings that were tried on LunarLander. The first two differ in how the workers played."""


def threshold(reward: Array, setting: Threshold) -> Float32:
    """Return 1 for every action that is taken, 0 for the rest; [n] from the rewards [n] of one episode.

    Rewards that are all the same cannot tell good actions from bad ones, so cleaning takes none of them.
    """
    score = float(reward.sum(dtype=np.float64))
    if score > setting.keep:
        return np.ones(len(reward), np.float32)
    if setting.clean is None or score <= setting.clean:
        return np.zeros(len(reward), np.float32)
    return _above(reward, setting.level)


def _above(quality: Array, level: float) -> Float32:
    """Return 1 where the quality is above `level`, on a scale from the episode's worst, 0, to best, 1."""
    low, high = quality.min(), quality.max()
    if high == low:
        return np.zeros(len(quality), np.float32)
    taken: Float32 = ((quality - low) / (high - low) > level).astype(np.float32)
    return taken


def hopeful(reward: Array, gamma: float, level: float) -> Float32:
    """Return 1 for actions after which things went well enough, 0 for those that led to the end of it.

    Cleaning by what followed, G_t = r_t + gamma G_t+1, instead of by the reward of the moment: a good episode
    that ends in failure does not teach the failure.
    """
    following = np.empty(len(reward))
    total = 0.0
    for t in reversed(range(len(reward))):
        total = following[t] = float(reward[t]) + gamma * total
    return _above(following, level)


def elite(recent: Array, share: float) -> float:
    """Return the score that the best `share` of recent episodes reach: the (1 - share) quantile of all [e].

    It moves with the agent: what was among the best yesterday is not today, and no one chooses a constant.
    """
    return float(np.quantile(recent, 1.0 - share, method="higher"))


def advantage(advantages: Array, temperature: float, limit: float) -> Float32:
    """Return min(exp(A / temperature), limit), as advantage-weighted regression has it (Peng et al. 2019).

    Every action is taken, good ones more than bad ones; the limit keeps one lucky action from being all.
    """
    exponent = np.minimum(advantages.astype(np.float64) / temperature, np.log(limit))
    return np.exp(exponent).astype(np.float32)
