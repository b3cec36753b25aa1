"""How much memory this process can still get."""

import os
from contextlib import suppress
from pathlib import Path


def free_memory() -> int:
    """Bytes that this process can still get, as Linux tells; elsewhere what the machine has."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):  # a container's own limit; the word "max" where there is none
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text())
        limits.append(int((group / "memory.max").read_text()) - used)
    return min(limits)
