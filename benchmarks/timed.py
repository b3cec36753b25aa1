"""The speed of a training once it is under way."""

import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.core.errors import RunError
from manyhands.runs.report import last_line, manyhands
from manyhands.runs.store import Run

START_TIMEOUT = 180.0
STOP_TIMEOUT = 60.0

Steady = Callable[[Mapping[str, Any]], bool]
"""Whether a row of metrics belongs to the steady stretch, after all start-up."""


def training_speed(words: Sequence[object], seconds: float, steady: Steady) -> float:
    """Return the steps/s of a `manyhands` command that trains for `seconds` after its start-up."""
    with tempfile.TemporaryDirectory(prefix="manyhands-speed-") as temporary:
        run = Run(Path(temporary) / "run")
        endless = ("--until", "steps", "--steps", 10**12, "--dir", run.path, "--quiet")
        command = manyhands(*words, *endless)
        with (Path(temporary) / "stderr").open("w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            try:
                if _wait_until(steady, run, process):
                    time.sleep(seconds)
                process.send_signal(signal.SIGINT)
                code = process.wait(STOP_TIMEOUT)
            finally:
                process.kill()
                process.wait()
            rows = [row for row in run.rows() if steady(row)]
            if code or len(rows) < 2:
                errors.seek(0)
                raise RunError(f"{shlex.join(command)} left no steady stretch: {last_line(errors.read())}")
    first, last = rows[0], rows[-1]
    return float((last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"]))


def _wait_until(steady: Steady, run: Run, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        if any(steady(row) for row in run.rows()):
            return True
        time.sleep(0.2)
    return False


def flags(numbers: Mapping[str, float]) -> list[str]:
    return [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
