"""What this machine offers."""

import os


def usable_cores() -> int:
    """Cores that this process may use, which a container or `taskset` may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
