"""A sum tree in NumPy: draws places in proportion to their priorities, many at once (Schaul et al. 2016)."""

import numpy as np

from manyhands.core.arrays import Array

FAN = 16
"""Children of a node. Wide and flat: a level costs a few NumPy calls, whatever its width."""


class SumTree:
    """Level k holds the sums of FAN neighbours of level k + 1; the last level holds the priorities."""

    def __init__(self, size: int) -> None:
        self.size = size
        widths = [FAN]
        while widths[-1] < size:
            widths.append(widths[-1] * FAN)
        self.levels = [np.zeros(width) for width in widths]

    @property
    def priorities(self) -> Array:
        return self.levels[-1][: self.size]

    @property
    def total(self) -> float:
        return float(self.levels[0].sum())

    def put(self, places: Array, priorities: Array) -> None:
        """Set priorities. Sums are taken anew, so that rounding errors cannot gather."""
        self.levels[-1][places] = priorities
        for upper, lower in zip(self.levels[-2::-1], self.levels[:0:-1], strict=True):
            places = places // FAN
            upper[places] = lower.reshape(-1, FAN)[places].sum(1)

    def find(self, amounts: Array) -> Array:
        """Return the place of each amount in [0, total) on the line on which priorities lie end to end."""
        places = np.zeros(len(amounts), np.int64)
        left = np.asarray(amounts, np.float64).copy()
        rows = np.arange(len(amounts))
        for level in self.levels:
            sums = level.reshape(-1, FAN)[places]
            ends = sums.cumsum(1)
            # Rounding may leave an amount at the very end; it belongs to the last child that has anything.
            left = np.minimum(left, np.nextafter(ends[:, -1], 0))
            child = (ends <= left[:, None]).sum(1)
            left = left - (ends[rows, child] - sums[rows, child])
            places = places * FAN + child
        return places

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """Draw one place from each of `count` equal pieces of the line."""
        return self.find((np.arange(count) + rng.random(count)) * (self.total / count))
