"""Which channel a run gets: a broker's workers, a Ray cluster, worker processes, or none."""

import hashlib
import socket
from pathlib import Path

from manyhands.channels.base import ExecutorChannel
from manyhands.core.errors import UsageError, missing_extra
from manyhands.runs.plan import Plan
from manyhands.system.machine import usable_cores

CHANNEL_VARIABLE = "MANYHANDS_CHANNEL"
"""Where a broker's address may be given, too: unlike arguments, not everyone can read it."""

LONGEST_RUN_NAME = 180
"""Bytes; at a broker, queues are called by it."""


def open_channel(plan: Plan, broker: str | None, path: Path) -> ExecutorChannel:
    """A broker's workers, worker processes, or none. More workers than shards would have nothing to do."""
    config = plan.config
    workers = config.run.workers if config.run.workers >= 0 else usable_cores()
    workers = min(workers, config.collect.shards)
    if broker is not None and broker.startswith("ray"):
        return _open_ray(plan, broker, max(1, workers))
    if broker is not None:
        return _open_broker(plan, broker, path)
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


def broker_name(path: Path) -> str:
    """A run's name at a broker: the same when it is resumed, and no other run's."""
    if len(path.name.encode()) > LONGEST_RUN_NAME:
        raise UsageError(
            f"a run over a broker has a name of at most {LONGEST_RUN_NAME} bytes, and {path.name!r:.60} has "
            f"{len(path.name.encode())}; choose another --name or --dir"
        )
    place = hashlib.sha256(f"{socket.gethostname()}:{path.resolve()}".encode()).hexdigest()[:8]
    return f"{path.name}-{place}"


def _open_broker(plan: Plan, broker: str, path: Path) -> ExecutorChannel:
    if plan.callable_env is not None:
        raise UsageError(
            "workers behind a broker take no code; give the environment as a Gymnasium id or module:callable"
        )
    try:
        from manyhands.channels.amqp.connection import Address
        from manyhands.channels.amqp.executor import AmqpChannel
    except ModuleNotFoundError as error:
        raise missing_extra("--channel amqp", error, "amqp") from error
    return AmqpChannel(plan.task, Address.parse(broker), broker_name(path), plan.config)


def _open_ray(plan: Plan, address: str, workers: int) -> ExecutorChannel:
    try:
        from manyhands.channels.ray import RayChannel
    except ModuleNotFoundError as error:
        raise missing_extra("--channel ray", error, "ray") from error
    run = plan.config.run
    return RayChannel(
        plan.task,
        plan.config.collect.shards,
        workers,
        run.hang_timeout,
        address,
        run.cpus_per_worker,
        plan.callable_env,
    )
