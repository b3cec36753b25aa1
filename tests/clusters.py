"""A real Ray cluster for the tests of a session: one node, started once."""

import atexit
from contextlib import ExitStack
from functools import cache

from manyhands.channels import ray as ray_channel


@cache
def cluster() -> None:
    held = ExitStack()
    ray_channel.connect("ray", 4, 1.0, held)
    atexit.register(held.close)
