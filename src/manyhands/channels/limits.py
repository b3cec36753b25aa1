"""The limits that a machine's owner sets for the runs it plays for, checked before anything is allocated."""

import os
import resource
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from manyhands.collect import starts
from manyhands.collect.collector import TEST_LANES
from manyhands.core.errors import UsageError
from manyhands.core.orders import Task
from manyhands.core.weights import weights_nbytes
from manyhands.envs import lto

MEGABYTE = 10**6
KEPT_WEIGHTS = 8
"""Copies of the weights in one process: the versions that it keeps, what it loads, what is on its way."""
HEADROOM = 4 * 2**30
"""Bytes that a process may reserve beyond its memory, for threads' stacks and arrays that stay empty: what is
reserved counts as well as what is written to, which the supervisor measures."""


def default_memory(processes: int) -> int:
    """Return the MB for each of so many processes: four fifths of the machine's memory, shared."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        total = 4 * 2**30
    return max(256, int(0.8 * total / processes / MEGABYTE))


@dataclass(frozen=True)
class OwnLimits:
    """The limits of one process that plays."""

    memory: int = default_memory(1)
    """MB that it may hold."""
    lanes: int = 4096
    """Environments that it plays side by side."""
    message: int = 64
    """MB of one message."""

    def __post_init__(self) -> None:
        for option, value in (
            ("--max-memory", self.memory),
            ("--max-lanes", self.lanes),
            ("--max-message", self.message),
        ):
            if value < 1:
                raise UsageError(f"{option} is {value}; it must be 1 or more")

    @property
    def message_bytes(self) -> int:
        return self.message * MEGABYTE

    def check(self, task: Task, others: Iterable[Task] = (), lanes: int = 0) -> None:
        """Refuse, by name, what is too large to play here.

        A process that plays for `others` already, with so many `lanes` in all, has less to give.
        """
        layout, weights = task.layout, weights_nbytes(task.spec.size, task.beside)
        rollout = layout.dense_nbytes
        needed = sum(map(_needed, (task, *others)))
        for what, wanted, allowed, option in (
            ("environments side by side", lanes + layout.lanes, self.lanes, "--max-lanes"),
            ("bytes of weights in one message", weights, self.message_bytes, "--max-message"),
            ("bytes of one rollout in one message", rollout, self.message_bytes, "--max-message"),
            ("bytes of memory", needed, self.memory * MEGABYTE, "--max-memory"),
        ):
            if wanted > allowed:
                raise UsageError(f"the run wants {wanted:,} {what} in all; {option} allows {allowed:,} here")


def confine(limits: OwnLimits) -> None:
    """Let this process and those that it starts reserve no more than they may hold, and some headroom.

    For what nobody can count beforehand: a larger request fails, instead of taking all memory before
    the supervisor looks. Where the system does not hold processes to that, nothing happens.
    """
    wanted = limits.memory * MEGABYTE + HEADROOM
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if all(limit == resource.RLIM_INFINITY or wanted < limit for limit in (soft, hard)):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _needed(task: Task) -> int:
    """Return the bytes that a process holds of a run: rollouts, noise, weights, forward passes, starts."""
    layout = task.layout
    numbers = layout.steps * layout.lanes * (layout.action.outputs + layout.action.noises)
    numbers += max(layout.lanes, TEST_LANES) * task.spec.activations
    starts = _start_nbytes(task) if task.env.id == lto.ENV_ID else 0
    weights = KEPT_WEIGHTS * weights_nbytes(task.spec.size, task.beside)
    return 2 * layout.dense_nbytes + 4 * numbers + weights + starts


def _start_nbytes(task: Task) -> int:
    """Return the bytes for choosing where episodes of learn-to-optimise begin, by its arguments."""
    problem, lanes = lto.Problem.of(task.env.kwargs), task.layout.lanes
    latin = starts.latin_nbytes(lanes, problem.size, problem.intervals)
    uncertain = starts.uncertain_nbytes(lanes, problem.size, problem.candidates, task.spec.activations)
    return latin * ("latin" in problem.starts) + uncertain * ("uncertainty" in problem.starts)
