"""The limits of a child, whatever its parent asks for: checked before anything is allocated."""

import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from manyhands.config.settings import Config
from manyhands.core import wire
from manyhands.core.checks import require
from manyhands.core.errors import RunError
from manyhands.core.weights import weights_nbytes
from manyhands.hogwild.cores import SharedMemory
from manyhands.runs.plan import COPIES_OF_BATCHES, COPIES_OF_WEIGHTS, Plan
from manyhands.system.memory import free_memory

MB = 10**6
SHARE = 0.5
"""The share of the free memory that a child takes by default."""
MAX_MESSAGE_MB = 64
MAX_ENVS = 1024


@dataclass(frozen=True)
class Limits:
    """The options of a child that its parent cannot change."""

    memory: int
    """Bytes for weights, batches and a replay memory together, and for what any of its processes holds."""
    message: int = MAX_MESSAGE_MB * MB
    """Bytes of one message."""
    envs: int = MAX_ENVS
    """Environments that it plays at once."""

    @classmethod
    def of(cls, max_memory: int | None, max_message: int, max_envs: int) -> "Limits":
        """Return the limits that were given in MB; without `max_memory`, a share of what is free."""
        largest = wire.MAX_MESSAGE // MB
        require(max_memory is None or max_memory >= 1, "--max-memory", max_memory, "1 (MB) or more")
        allowed = f"between 1 and {largest} (MB)"
        require(1 <= max_message <= largest, "--max-message", max_message, allowed)
        require(max_envs >= 1, "--max-envs", max_envs, "1 or more")
        memory = int(SHARE * free_memory()) if max_memory is None else max_memory * MB
        return cls(memory, max_message * MB, max_envs)

    def check_settings(self, config: Config, parent: str) -> None:
        """Refuses settings that would open too many environments, or a window, on this machine."""
        lanes = config.collect.shards * config.collect.lanes
        if lanes > self.envs:
            raise RunError(
                f"the parent at {parent} asks for {lanes:,} environments (collect.shards x collect.lanes), "
                f"this child plays {self.envs:,} at the most; raise it with --max-envs"
            )
        if config.env.kwargs.get("render_mode") == "human":
            raise RunError(
                f"the parent at {parent} asks for a window (env.kwargs.render_mode), which is refused"
            )

    def check_memory(self, planned: Plan, parent: str) -> None:
        """Refuses a plan that would take more memory than allowed, with what would take the most of it."""
        parts = memory_parts(planned)
        wanted = sum(parts.values())
        if wanted > self.memory:
            most = max(parts, key=lambda name: parts[name])
            given = f"this child gives {self.memory / MB:,.0f} MB; raise it with --max-memory"
            raise RunError(
                f"the parent at {parent} asks for {wanted / MB:,.0f} MB of memory, of which "
                f"{parts[most] / MB:,.0f} are for {most}; {given}"
            )


def memory_parts(planned: Plan) -> dict[str, int]:
    """Return the bytes that a run will take, by what they are for and the settings that decide about them.

    A replay memory on disk counts as well: the disk is this machine's, too.
    """
    config, task = planned.config, planned.task
    layout, shards = task.layout, config.collect.shards
    copies = COPIES_OF_WEIGHTS + max(1, config.run.workers)
    weights = weights_nbytes(planned.spec.size, task.beside) * copies
    parts = {"the network (net.hidden)": weights}
    if task.cores is not None:
        parts["what its cores share (net.hidden, algo.memory)"] = SharedMemory.size(task)
    else:
        batches = shards * layout.dense_nbytes * COPIES_OF_BATCHES
        parts["batches (collect.steps, collect.lanes)"] = batches
    parts.update(planned.algorithm.memory(layout, shards, planned.spec))
    return parts


@contextmanager
def confined(memory: int) -> Iterator[None]:
    """Let this process, and each that it starts, take `memory` bytes more than it has now, and not more.

    For what cannot be counted beforehand, such as an environment that is made with absurd arguments. Where
    the system does not hold processes to that limit, which Linux does, nothing happens.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _data_held() + memory
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in before)
    if wanted < min(soft, hard):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, before[1]))
    try:
        yield
    except (MemoryError, OSError, ImportError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        raise RunError(
            f"the parent's task takes more memory than this child gives, {memory / MB:,.0f} MB; "
            "raise it with --max-memory"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _out_of_memory(error: Exception) -> bool:
    """Return whether an error says so, in one of the ways of Python, the loader of libraries, and torch."""
    said = str(error)
    return isinstance(error, MemoryError) or any(
        words in said for words in ("allocate memory", "failed to map")
    )


def _data_held() -> int:
    """Return the bytes that count for the limit already."""
    return int(getattr(psutil.Process().memory_info(), "data", 0))
