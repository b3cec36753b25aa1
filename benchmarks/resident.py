"""The memory that a running `manyhands train` holds, measured from outside."""

from pathlib import Path

import psutil

WORKER = "manyhands.roles.worker"


def workers(executor: psutil.Process) -> list[psutil.Process]:
    """The worker processes of an executor, oldest first; none once it has ended."""
    found = []
    try:
        for child in executor.children():
            if WORKER in child.cmdline():
                found.append(child)
    except psutil.NoSuchProcess:
        return found
    return found


def megabytes(of: psutil.Process) -> float | None:
    """Resident memory in MB (10^6 bytes), with shared pages; None once the process has ended."""
    try:
        resident = of.memory_info().rss / 1e6
    except psutil.NoSuchProcess:
        return None
    return resident or None  # a process that has ended but is not waited for holds nothing


def has_torch(pid: int) -> bool:
    """Return whether the process has loaded torch's libraries; Linux only, False once it has ended.

    psutil would have the system count the pages of each library as well, and holds the process up meanwhile.
    """
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
