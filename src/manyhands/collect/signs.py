"""Signs of life: a few numbers that a worker writes as it goes and who watches it can read at any time."""

LANE, BEATS, EPISODE, BUSY, HANG_TIMEOUT, MEMORY = range(6)
"""The lane that is about to be stepped, how many things were done, the lane's episode; and for a watcher that
does not give the orders itself: whether there is one under way, how many milliseconds a step may take, and
how many megabytes the process may hold."""
BYTES = 64


def unshared() -> memoryview:
    """For a player whose signs nobody reads."""
    return memoryview(bytearray(BYTES)).cast("q")
