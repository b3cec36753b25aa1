"""A process that tests mutants one after the other, in a copy of the project.

It imports the large libraries once and forks for every mutant; only the fork imports manyhands.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from benchmarks.mutants import SOURCE, Mutant, mutated

GRACE, FACTOR = 20.0, 4.0
"""A mutant may take so many seconds more, and so many times as long, as the tests take without it."""
LIBRARIES = ("numpy", "torch", "gymnasium", "pytest", "rich", "yaml", "aio_pika", "msgpack")


def workspace(place: Path) -> Path:
    """A copy of the project."""
    from benchmarks.mutation import git_files

    for name in git_files():
        if Path(name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, place / name)
    shutil.copy2("pyproject.toml", place / "pyproject.toml")
    return place


class Worker:
    def __init__(self, place: Path) -> None:
        self.place = place.resolve()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(self.place / "src"), str(self.place))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.mutation_worker"],
            cwd=self.place,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def test(self, mutant: Mutant, names: Sequence[str], expected: float) -> tuple[str | None, float]:
        """Return the test that failed (None: none, "": they took too long), and the seconds they took."""
        path = self.place / SOURCE / mutant.module
        source = path.read_text()
        began = time.monotonic()
        path.write_text(mutated(source, mutant.operator, mutant.occurrence))
        try:
            failed = self.run(names, GRACE + FACTOR * expected)
        finally:
            path.write_text(source)
        return failed, time.monotonic() - began

    def run(self, names: Sequence[str], seconds: float) -> str | None:
        """Return the test that fails with the source as it lies there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"names": list(names), "seconds": seconds}) + "\n")
        self.process.stdin.flush()
        failed: str | None = json.loads(self.process.stdout.readline())
        return failed

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(orders: IO[str], answers: IO[str]) -> None:
    for library in LIBRARIES:
        __import__(library)
    for line in orders:
        order = json.loads(line)
        answers.write(json.dumps(_run(order["names"], order["seconds"])) + "\n")
        answers.flush()


def _run(names: Sequence[str], seconds: float) -> str | None:
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        os.setsid()
        _test(names, tells)
    os.close(tells)
    deadline = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)  # with all that the tests have started
            os.waitpid(child, 0)
            os.close(told)
            return ""
        time.sleep(0.02)
    with open(told, "rb") as pipe:
        os.set_blocking(told, False)
        said = (pipe.read() or b"").decode()
    return None if said == "passed" else said or "the process ended"


def _test(names: Sequence[str], tells: int) -> None:
    import pytest

    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)

    class FirstFailure:
        name = ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and not self.name:
                self.name = report.nodeid

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed and not self.name:
                self.name = report.nodeid

    first = FirstFailure()
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *names], plugins=[first])
    os.write(tells, b"passed" if code == pytest.ExitCode.OK else (first.name or str(code)).encode()[:4000])
    os._exit(0)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
