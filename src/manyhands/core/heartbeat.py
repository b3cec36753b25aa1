"""Signs of life: a few numbers that a worker writes as it goes and who watches it can read at any time."""

import hashlib

LANE, BEATS, EPISODE, BUSY, HANG_TIMEOUT, MEMORY, SHARD, RUN = range(8)
"""The lane of its shard that is about to be stepped, how many things were done, the lane's episode, and the
shard, or TESTING; and for a watcher that does not give the orders itself: whether there is one under way, how
many milliseconds a step may take, how many megabytes the process may hold, and the mark of the run."""
BYTES = 64
NOBODY = -1
"""As an episode: what happens now is no episode's doing."""
TESTING, CHECKING = -1, -2
"""As a shard: an episode of a test, or an environment that is made to see whether it can be."""


def run_mark(run: str) -> int:
    """A number that stands for a run's name among signs of life."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:7], "little")


def unshared() -> memoryview:
    """For a player whose signs nobody reads."""
    return memoryview(bytearray(BYTES)).cast("q")
