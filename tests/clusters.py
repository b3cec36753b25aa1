"""A real Ray cluster for the tests of a session: one node, started once."""

import atexit
from functools import cache

import ray

from manyhands.channels import ray as ray_channel


@cache
def cluster() -> None:
    ray_channel._connect("ray", workers=4, cpus=1.0)
    atexit.register(ray.shutdown)
