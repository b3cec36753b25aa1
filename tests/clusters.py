"""A real Ray cluster for the tests of a session: one node, started once."""

import atexit
from contextlib import ExitStack
from functools import cache

from manyhands.channels.ray.cluster import connect


@cache
def cluster() -> None:
    held = ExitStack()
    connect("ray", 4, 1.0, held)
    atexit.register(held.close)
