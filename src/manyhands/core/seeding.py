"""Random streams that depend on (seed, lane, episode) alone, so that it never matters who plays a lane."""

import numpy as np

_MASK = 2**64 - 1


def hash_seed(*words: int) -> int:
    """Return a 64-bit number from whole numbers: splitmix64 (Steele et al. 2014) over each in turn."""
    state = 0
    for word in words:
        state = (state ^ (word & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


ENV, ACTION, TEST, LEARN, INIT, START, MOVES = range(7)
"""The purposes of random streams."""


def env_seed(seed: int, lane: int, episode: int) -> int:
    """Return the seed of an episode in a lane: 31 bits, because some simulators take no more."""
    return hash_seed(seed, ENV, lane, episode) >> 33


def trial_seed(seed: int, episode: int, attempt: int = 0) -> int:
    """Return the seed of a test's episode; another attempt is another episode."""
    return hash_seed(seed, TEST, episode, attempt) >> 33


def action_stream(seed: int, lane: int, episode: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(hash_seed(seed, ACTION, lane, episode)))
