"""The memory that a running `manyhands train` holds, measured from outside."""

from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.core.errors import UsageError

if TYPE_CHECKING:
    import psutil

WORKER = "manyhands.roles.worker"


def process(pid: int) -> "psutil.Process":
    try:
        import psutil
    except ImportError:
        raise UsageError("this benchmark needs psutil; try: pip install psutil") from None
    return psutil.Process(pid)


def workers(executor: "psutil.Process") -> "list[psutil.Process]":
    """The worker processes of an executor, oldest first; none once it has ended."""
    import psutil

    found = []
    try:
        for child in executor.children():
            if WORKER in child.cmdline():
                found.append(child)
    except psutil.NoSuchProcess:
        return found
    return found


def megabytes(of: "psutil.Process") -> float | None:
    """Resident memory in MB (10^6 bytes), with shared pages; None once the process has ended."""
    import psutil

    try:
        resident = of.memory_info().rss / 1e6
    except psutil.NoSuchProcess:
        return None
    return resident or None  # a process that has ended but is not waited for holds nothing


def has_torch(pid: int) -> bool:
    """Return whether the process has loaded torch's libraries; Linux only, False once it has ended."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
