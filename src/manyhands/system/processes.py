"""How processes of ours are started, weighed and described."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

FAILED = 70
"""The exit code of a worker that failed without its environment: no episode is to blame. While an order is
under way, any other is the environment's doing, 0 as well."""
CRASHES = (
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
)


def player_environment() -> dict[str, str]:
    """For a process that plays: our modules, and one BLAS thread.

    Small products gain nothing from more, and their bits must not vary.
    """
    modules = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **modules, **threads}


def resident_megabytes(process: int) -> float:
    """0 where the system does not say."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def own_megabytes(process: int) -> float:
    """What it holds without what it shares with others: rollouts, and weights and memories of cores."""
    shared = 0
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        shared = int(next(line for line in lines if line.startswith("RssShmem")).split()[1])
    return resident_megabytes(process) - shared * 1024 / 1e6


def describe_exit(code: int) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"left with exit code {code}"


def die_with_parent(parent: int) -> None:
    """Linux ends this process when the executor dies, even by kill -9 and even inside a hung step."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it died before the line above
