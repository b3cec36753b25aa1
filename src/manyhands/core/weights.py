"""One version of an agent's numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from manyhands.core.arrays import Array, Float32

Beside = tuple[tuple[str, int], ...]
"""Names and sizes of the arrays that travel beside a vector of weights."""


@dataclass(frozen=True)
class Weights:
    """One version of an agent's numbers. `vector` is contiguous float32 and never changed in place.

    What actors need and nobody learns, such as how often each lane explores, travels `beside` it: named
    float32 vectors, which averaging and the network's description know nothing of.
    """

    version: int
    vector: Float32
    schema: str
    beside: Mapping[str, Array] = field(default_factory=dict)


def weights_nbytes(size: int, beside: Beside) -> int:
    """Return the bytes of a vector of `size` numbers and of what travels beside it."""
    return 4 * (size + sum(length for _, length in beside))


def split_beside(numbers: Float32, size: int, beside: Beside) -> tuple[Float32, dict[str, Float32]]:
    """Return a vector and what travels beside it, as views of `numbers`, where they follow one another."""
    at, arrays = size, {}
    for name, length in beside:
        arrays[name] = numbers[at : at + length]
        at += length
    return numbers[:size], arrays


FLOAT32_MAX = float(np.finfo(np.float32).max)


def average(mine: Float32, other: Float32, share: float) -> Float32:
    """Return (1 - share) mine + share other, which is finite where both are."""
    with np.errstate(over="ignore"):
        result: Float32 = np.float32(1 - share) * mine + np.float32(share) * other
    if not np.isfinite(result).all():  # the shares, rounded to float32, may add up to a little more than 1
        exact = (1 - share) * mine.astype(np.float64) + share * other.astype(np.float64)
        result = np.clip(exact, -FLOAT32_MAX, FLOAT32_MAX).astype(np.float32)
    return result
