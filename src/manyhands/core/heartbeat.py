"""The heartbeat of a worker: a few numbers that it writes as it goes and that others can read at any time."""

import hashlib

LANE, BEATS, EPISODE, BUSY, HANG_TIMEOUT, MEMORY, SHARD, RUN = range(8)
"""Indices of its numbers: the LANE of its shard that is about to be stepped, how many things were done, the
lane's EPISODE, and the SHARD, or TESTING; and for a watcher that does not give the orders itself: whether
one is under way, how many milliseconds a step may take, how many megabytes the process may hold, and the
mark of the RUN."""
BYTES = 64
NOBODY = -1
"""The value of EPISODE while what happens is no episode's doing."""
TESTING, CHECKING = -1, -2
"""Values of SHARD during an episode of a test, and while an environment is made to see whether it can be."""


def run_mark(run: str) -> int:
    """Return a number that stands for a run's name in heartbeats."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:7], "little")


def unshared() -> memoryview:
    """Return a heartbeat for a player that nobody watches."""
    return memoryview(bytearray(BYTES)).cast("q")
