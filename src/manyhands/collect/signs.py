"""Signs of life: a few numbers that a worker writes as it goes and who watches it can read at any time."""

LANE, BEATS, EPISODE, BUSY, HANG_TIMEOUT = range(5)
"""The lane that is about to be stepped, how many things were done, the lane's episode; and for a watcher that
does not give the orders itself: whether there is one under way, and how many milliseconds a step may take."""
BYTES = 64


def unshared() -> memoryview:
    """For a player whose signs nobody reads."""
    return memoryview(bytearray(BYTES)).cast("q")
