"""Where episodes of learn-to-optimise begin: points in [-1, 1]^d. Pure functions of a stream and a count."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from manyhands.core.arrays import Array
from manyhands.core.seeding import START, hash_seed

TIE = 0.02
"""Entropies in one interval of this size, in nats, count as equal. A policy's spread differs by less than
that from place to place for most of a run; taken seriously, such differences send nearly all starts to a few
conditions and the others are never learned: an error of 1.2 on Rosenbrock, where random starts reach 0.07."""

ORDERS = 256
"""The number of orders of intervals that a process remembers."""


def uniform(rng: np.random.Generator, count: int, size: int) -> Array:
    """Return points drawn uniformly from the cube."""
    return rng.uniform(-1, 1, (count, size)).astype(np.float32)


def latin(rng: np.random.Generator, count: int, size: int, seed: int, first: int, intervals: int) -> Array:
    """A latin hypercube: every variable draws from the interval of its range that it used least so far.

    With ties broken at random that is one random order of all intervals after the other, so the interval of
    draw number n follows from n alone, and nobody has to remember what was used.
    """
    numbers = np.arange(first, first + count)
    places = np.empty((count, size))
    for variable in range(size):
        for block in np.unique(numbers // intervals):
            inside = numbers // intervals == block
            order = _order(seed, variable, int(block), intervals)
            places[inside, variable] = order[numbers[inside] % intervals]
    within = rng.uniform(0, 1, (count, size))
    return (2 * (places + within) / intervals - 1).astype(np.float32)


@lru_cache(maxsize=ORDERS)
def _order(seed: int, variable: int, block: int, intervals: int) -> Array:
    return np.random.default_rng(hash_seed(seed, START, variable, block)).permutation(intervals)


def latin_nbytes(count: int, size: int, intervals: int) -> int:
    """Return the most bytes that `latin` takes: points, and the orders that it remembers."""
    blocks = count // intervals + 2
    return 3 * 8 * count * size + 8 * intervals * min(ORDERS, size * blocks)


def uncertain_nbytes(count: int, size: int, candidates: int, activations: int) -> int:
    """Return the most bytes that `uncertain` takes: candidates, and a forward pass of them."""
    return count * candidates * ((8 + 4) * size + 4 * activations)


def uncertain(
    rng: np.random.Generator, count: int, size: int, candidates: int, entropy: Callable[[Array], Array]
) -> Array:
    """Return, out of many random points for each start, the one where the policy is least certain what to do.

    Ties go to the first of them, so at random.
    """
    points = rng.uniform(-1, 1, (count, candidates, size)).astype(np.float32)
    doubts = entropy(points.reshape(-1, size)).reshape(count, candidates)
    chosen: Array = points[np.arange(count), np.floor(doubts / TIE).argmax(1)]
    return chosen
