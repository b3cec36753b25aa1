"""Connects to a Ray cluster: one that is started here, or the user's own."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, zip_longest
from typing import Any
from urllib.parse import urlsplit

import ray
from ray._private import ray_constants
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from manyhands.core.errors import RunError, UsageError
from manyhands.system.processes import player_environment
from manyhands.system.temporary import temporary

CONNECT_TIMEOUT = 5.0
LOCAL, EXISTING, CLIENT = "ray", "ray:auto", "ray://"
ONLY_HERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's own switch for systems on which it uses loopback alone unless told otherwise."""
LONGEST_PLACE = 50
"""Most characters of a directory in which Ray's sockets still have room for their names."""


def homes(workers: int, cpus: float) -> list[Any]:
    """Return where each actor is to be placed, so that it is started again where its heartbeat file is.

    They go to all nodes in turn, by what those have; where they are busy or gone, or too small, Ray chooses.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    rooms = [[node["NodeID"]] * min(workers, int(node["Resources"].get("CPU", 0) / cpus)) for node in nodes]
    found = [node for node in chain(*zip_longest(*rooms)) if node is not None][:workers]
    chosen: list[Any] = [
        NodeAffinitySchedulingStrategy(node, True, _spill_on_unavailable=True) for node in found
    ]
    return chosen + ["DEFAULT"] * (workers - len(chosen))


def connect(address: str, workers: int, cpus: float, held: ExitStack) -> None:
    """Connect to the cluster; what ends with the run, such as one that is started here, goes into `held`."""
    if address not in (LOCAL, EXISTING) and not address.startswith(CLIENT):
        raise UsageError(f"--channel {address} is not ray, ray:auto or ray://HOST:10001")
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common: dict[str, Any] = {
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "namespace": "manyhands",
        "runtime_env": {"env_vars": {"PYTHONPATH": player_environment()["PYTHONPATH"]}},
    }
    try:
        if address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            enough = max(float(os.cpu_count() or 1), workers * cpus)
            # Ray opens its directory to everyone; the one around it is this user's alone.
            place = held.enter_context(temporary("ray", LONGEST_PLACE)) / "s"
            with on_loopback():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    num_cpus=int(enough + 0.999),
                    _temp_dir=str(place),
                    **common,
                )
        elif address == EXISTING:
            ray.init(address="auto", **common)
        else:
            _probe(address)
            ray.init(address=address, **common)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        text = " ".join(str(error).split())
        hint = "; the cluster must run the same versions of Ray and Python" if "ersion" in text else ""
        if address != LOCAL and "RAY_AUTH_MODE" not in os.environ:
            hint += "; a cluster that demands its token wants RAY_AUTH_MODE=token and ~/.ray/auth_token here"
        held.close()
        raise RunError(f"{address}: no Ray cluster to work with: {text[:200]}{hint}") from error
    held.callback(ray.shutdown)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Keep a cluster that is started meanwhile off every network, as Ray does by itself on a desktop."""
    given, read = os.environ.get(ONLY_HERE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[ONLY_HERE] = "0"  # for its processes
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this one, which has read that already
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = read
        if given is None:
            del os.environ[ONLY_HERE]
        else:
            os.environ[ONLY_HERE] = given


def _probe(address: str) -> None:
    """Check that a cluster answers, because Ray's client would try for half a minute."""
    try:
        parts = urlsplit(address)
        socket.create_connection((parts.hostname or "", parts.port or 10001), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConnectionError(f"nobody answers ({error})") from error
