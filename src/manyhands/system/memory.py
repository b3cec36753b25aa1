"""How much memory processes hold, and how much this one can still get."""

from contextlib import suppress
from pathlib import Path

import psutil

GROUP = Path("/sys/fs/cgroup")
"""The directory in which Linux says what a container may hold, which psutil does not look at."""


def free_memory() -> int:
    """Return the bytes that this process can still get."""
    free: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # there is no such file, or no limit, which is the word "max"
        used = int((GROUP / "memory.current").read_text())
        free = min(free, int((GROUP / "memory.max").read_text()) - used)
    return free


def resident_megabytes(process: int) -> float:
    """Return the MB that a process holds; 0 where it is gone."""
    with suppress(psutil.Error):
        return float(psutil.Process(process).memory_info().rss) / 1e6
    return 0.0


def own_megabytes(process: int) -> float:
    """Return the MB that it holds without what it shares: libraries, rollouts, weights of cores."""
    with suppress(psutil.Error):
        held = psutil.Process(process).memory_info()
        return float(held.rss - getattr(held, "shared", 0)) / 1e6
    return 0.0
