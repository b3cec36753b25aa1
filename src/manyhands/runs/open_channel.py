"""Opens a run's channel: a broker's workers, a Ray cluster, a package's own, worker processes, or none."""

import hashlib
import importlib
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from manyhands.channels.base import ExecutorChannel
from manyhands.config import algorithms, plugins
from manyhands.core.errors import UsageError, did_you_mean, need_library
from manyhands.runs.plan import Plan
from manyhands.system.machine import usable_cores

CHANNEL_VARIABLE = "MANYHANDS_CHANNEL"
"""The environment variable that may hold a broker's address: unlike arguments, not everyone can read it."""

LONGEST_RUN_NAME = 180
"""Most bytes of a run's name; at a broker, queues are called by it."""


OpenChannel = Callable[[Plan, str, Path], ExecutorChannel]
"""Opens the executor's half of a channel for a planned run: its URL, and the run's directory."""


def open_channel(plan: Plan, url: str | None, path: Path) -> ExecutorChannel:
    """Open the channel that a URL names by its scheme; without a URL worker processes, or none."""
    if url is not None:
        return _opener(url)(plan, url, path)
    config, workers = plan.config, _workers(plan)
    if workers == 0:
        from manyhands.channels.inline import InlineChannel

        return InlineChannel(plan.task, plan.callable_env)
    from manyhands.channels.processes.executor import ProcessesChannel

    return ProcessesChannel(
        plan.task,
        config.collect.shards,
        workers,
        config.run.hang_timeout,
        config.run.worker_memory,
        plan.callable_env,
    )


def check_channel(url: str) -> None:
    """Refuse a URL that no channel is for; imports nothing."""
    scheme, own = url.partition(":")[0], _own()
    if scheme in own:
        plugins.refuse_clash(plugins.CHANNELS, scheme, own, "channel")
    elif not plugins.find(plugins.CHANNELS, scheme, "channel"):
        known = [*own, *plugins.offered(plugins.CHANNELS)]
        raise UsageError(  # without the rest, which may hold a password
            f"there is no channel {scheme!r:.60}{did_you_mean(scheme, known)}; there are {', '.join(known)}, "
            "such as amqp://user:password@host:5672/"
        )


def _opener(url: str) -> OpenChannel:
    check_channel(url)
    scheme, own = url.partition(":")[0], _own()
    if scheme in own:
        return own[scheme]
    point = plugins.find(plugins.CHANNELS, scheme, "channel")
    assert point is not None
    opener = plugins.load(point, "channel")
    if not callable(opener):
        raise UsageError(f"the channel {scheme!r} is {point.value}, which cannot be called to open it")
    made: OpenChannel = opener
    return made


def _own() -> dict[str, OpenChannel]:
    """Return the built-in channels that have a URL, by its scheme."""
    return {"amqp": _open_broker, "amqps": _open_broker, "ray": _open_ray}


def _workers(plan: Plan) -> int:
    """Return the number of worker processes; more of them than shards would have nothing to do."""
    config = plan.config
    workers = config.run.workers if config.run.workers >= 0 else usable_cores()
    return min(workers, config.collect.shards)


def broker_name(path: Path) -> str:
    """Return a run's name at a broker: the same when it is resumed, and no other run's."""
    if len(path.name.encode()) > LONGEST_RUN_NAME:
        raise UsageError(
            f"a run over a broker has a name of at most {LONGEST_RUN_NAME} bytes, and {path.name!r:.60} has "
            f"{len(path.name.encode())}; choose another --name or --dir"
        )
    place = hashlib.sha256(f"{socket.gethostname()}:{path.resolve()}".encode()).hexdigest()[:8]
    return f"{path.name}-{place}"


def _open_broker(plan: Plan, broker: str, path: Path) -> ExecutorChannel:
    algo = plan.task.layout.action.algo
    if algo.startswith(f"{algorithms.SCRIPT}:"):
        raise UsageError(
            f"workers behind a broker take no code, and {algo} chooses its actions there; put the class into "
            "a module, and start workers with --allow module:Class"
        )
    if plan.callable_env is not None:
        raise UsageError(f"workers behind a broker take no code; {_by_name(plan)}")
    from manyhands.channels.amqp.address import Address
    from manyhands.channels.amqp.executor import AmqpChannel

    return AmqpChannel(plan.task, Address.parse(broker), broker_name(path), plan.config)


def _by_name(plan: Plan) -> str:
    """Return how to give a callable environment by name, if it has one."""
    name = plan.config.env.id
    with suppress(Exception):  # whatever a module does when it is imported
        module, _, own = name.partition(":")
        if module != "__main__" and getattr(importlib.import_module(module), own) is plan.callable_env:
            return f'give the environment by its name, "{name}", and start workers with --allow {name}'
    return "give the environment as a Gymnasium id or module:callable"


def _open_ray(plan: Plan, address: str, path: Path) -> ExecutorChannel:
    need_library("--channel ray", "ray")
    from manyhands.channels.ray.channel import RayChannel

    run = plan.config.run
    return RayChannel(
        plan.task,
        plan.config.collect.shards,
        max(1, _workers(plan)),
        run.hang_timeout,
        address,
        run.cpus_per_worker,
        plan.callable_env,
    )
