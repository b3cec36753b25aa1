"""A replay memory that the cores of one machine share: C x N x M numbers, cores x capacity x one step.

Every core reads all of it and writes its own share alone, so there is nothing to lock. A row is an
observation, the action, the reward, the discount of what follows (0 where nothing does), and what follows.
"""

from dataclasses import dataclass

import numpy as np

from manyhands.core.arrays import Array, Float32

MARGIN = 256
"""The oldest rows, in a core's full share of a memory, that are not drawn: they may be overwritten while they
are read."""


@dataclass(frozen=True)
class Steps:
    """Drawn transitions: N of them."""

    obs: Float32  # [N, size]
    action: Array  # [N]
    reward: Float32  # [N]
    discount: Float32  # [N]
    next_obs: Float32  # [N, size]


def width(obs_size: int) -> int:
    return 2 * obs_size + 3


class SharedReplay:
    """`rows` [C, N, M] and `counts` [C], how many rows each core has ever written, in shared memory."""

    def __init__(self, rows: Float32, counts: Array) -> None:
        self.rows, self.counts = rows, counts
        self.capacity = rows.shape[1]
        self.obs_size = (rows.shape[2] - 3) // 2

    def write(
        self, core: int, obs: Array, action: int, reward: float, discount: float, next_obs: Array
    ) -> None:
        """Write into the core's own share; a row is counted once it is whole."""
        count, size = int(self.counts[core]), self.obs_size
        row = self.rows[core, count % self.capacity]
        row[:size] = obs.reshape(-1)
        row[size], row[size + 1], row[size + 2] = action, reward, discount
        row[size + 3 :] = next_obs.reshape(-1)
        self.counts[core] = count + 1

    @property
    def held(self) -> int:
        """The number of rows that can be drawn."""
        return int(self._held(self.counts).sum())

    def _held(self, counts: Array) -> Array:
        held: Array = np.minimum(counts, self.capacity - MARGIN)
        return held

    def sample(self, rng: np.random.Generator, count: int, replacement: bool = True) -> Steps:
        """Return `count` rows of all cores, every one as likely; without replacement, no row twice."""
        counts = self.counts.copy()
        held = self._held(counts)
        ends = held.cumsum()
        if replacement:
            drawn = rng.integers(ends[-1], size=count)
        else:
            drawn = rng.choice(ends[-1], count, replace=False, shuffle=False)
        core = ends.searchsorted(drawn, side="right")
        newest_first = drawn - (ends[core] - held[core])
        rows = self.rows[core, (counts[core] - 1 - newest_first) % self.capacity]
        size = self.obs_size
        return Steps(
            rows[:, :size],
            rows[:, size].astype(np.int64),
            rows[:, size + 1],
            rows[:, size + 2],
            rows[:, size + 3 :],
        )
