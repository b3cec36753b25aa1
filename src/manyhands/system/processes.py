"""Starts and describes processes of ours."""

import ctypes
import os
import signal
import sys

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
    """Return the environment variables of a process that plays: our modules, and one BLAS thread.

    Small products gain nothing from more, and their bits must not vary.
    """
    modules = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **modules, **threads}


def describe_exit(code: int) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"left with exit code {code}"


def die_with_parent(parent: int) -> None:
    """Let Linux end this process when the executor dies, even by kill -9 and even inside a hung step."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it died before the line above
