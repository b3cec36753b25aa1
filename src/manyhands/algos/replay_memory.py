"""Allocates a replay memory, in memory or in a file, after checking that there is room."""

import math
import os
import tempfile
from pathlib import Path

import numpy as np

from manyhands.core.arrays import Array
from manyhands.core.errors import UsageError
from manyhands.system.memory import free_memory

RESERVE = 0.9
"""The share of the free memory that a replay memory may take."""
BESIDES = 40
"""Bytes of a row beside its observation: action, reward, discount, flags, priority and its sums."""


def check(rows: int, spare: int, shape: tuple[int, ...], dtype: str) -> None:
    """Refuses more rows than memory can hold, with how many it could; `spare` of them are not the user's."""
    row = math.prod(shape) * np.dtype(dtype).itemsize + BESIDES
    room = free_memory()
    if rows * row > RESERVE * room:
        fits = max(0, int(RESERVE * room / row) - spare)
        raise UsageError(
            f"a replay memory of {rows - spare:,} transitions takes {rows * row / 1e9:.1f} GB, and "
            f"{room / 1e9:.1f} GB are free; algo.memory={fits} would fit, or algo.memory_on_disk=true"
        )


def allocate(shape: tuple[int, ...], dtype: str, directory: Path | None) -> Array:
    """Return zeros in memory, or in a file that has no name and goes with the process."""
    if directory is None:
        return np.zeros(shape, dtype)
    wanted = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, wanted)  # now, not when the disk is full in an hour
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise UsageError(
            f"algo.memory_on_disk: {wanted / 1e9:.1f} GB in {directory}: {error.strerror}"
        ) from error
