"""How long until something happens: `manyhands --help`, and from `manyhands train` to the first step."""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from matplotlib.figure import Figure

from benchmarks import resident
from manyhands.core.errors import RunError
from manyhands.runs.plots import BLUE, ORANGE, new_figure, tidy
from manyhands.runs.report import OUT, Report, Table, at_least_one, last_line, manyhands

MODULE = "first_step_env"
STAMPED = '''\
import os
import time

import gymnasium


class Stamped(gymnasium.Wrapper):
    """Leaves the time of the first step of all in a file."""

    stamped = False

    def step(self, action):
        if not Stamped.stamped:
            Stamped.stamped = True
            try:
                file = os.open(os.environ["FIRST_STEP_FILE"], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                pass  # another process was first
            else:
                os.write(file, repr(time.time()).encode())
                os.close(file)
        return super().step(action)


def make():
    return Stamped(gymnasium.make(os.environ["FIRST_STEP_ENV"], disable_env_checker=True))
'''
"""An environment that records when it is first stepped, wherever that happens."""
TIMEOUT = 120.0
WATCH = 3.0
"""Seconds of training after the first step during which the workers' memory is looked at."""
POLL = 0.05


@dataclass(frozen=True)
class Start:
    """One start of `manyhands train`."""

    workers: int
    first_step: float  # seconds from starting the process
    worker_mb: tuple[float, ...]  # the most that each worker held
    worker_torch: bool


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks startup", description=__doc__)
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--rounds", type=at_least_one, default=5, help="starts of train, each way")
    parser.add_argument("--helps", type=at_least_one, default=10, help="calls of --help")
    parser.add_argument("--seed", type=int, default=101, help="of the first round; each adds one")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    helps = [_time_help() for _ in range(options.helps)]
    seeds = range(options.seed, options.seed + options.rounds)
    starts = [start(options.env, workers, seed) for seed in seeds for workers in (2, 0)]
    report = _report(options.env, helps, starts, arguments, seeds)
    report.save(options.out, _picture(helps, starts))


def _time_help() -> float:
    """Time `--help` by the installed command where there is one, as a user types it."""
    installed = Path(sys.executable).with_name("manyhands")
    command = [str(installed), "--help"] if installed.exists() else manyhands("--help")
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RunError(f"--help failed: {last_line(done.stderr)}")
    return seconds


def start(env: str, workers: int, seed: int) -> Start:
    """Starts a training, waits for its first step, watches it a little and interrupts it."""
    with tempfile.TemporaryDirectory(prefix="manyhands-startup-") as temporary:
        home = Path(temporary)
        stamp = home / "first_step"
        (home / f"{MODULE}.py").write_text(STAMPED)
        paths = os.pathsep.join(filter(None, (temporary, os.environ.get("PYTHONPATH"))))
        surroundings = {"PYTHONPATH": paths, "FIRST_STEP_FILE": str(stamp), "FIRST_STEP_ENV": env}
        how = ("--workers", workers, "--seed", seed, "--until", "steps", "--steps", 10**12, "--quiet")
        command = manyhands("train", f"{MODULE}:make", "--dir", home / "run", *how)
        with (home / "stderr").open("w+") as errors:
            began = time.time()
            process = subprocess.Popen(
                command, env={**os.environ, **surroundings}, stdout=subprocess.DEVNULL, stderr=errors
            )
            try:
                stepped = _wait_for(stamp, process)
                held, torch = _watch_workers(process) if stepped else ({}, False)
                process.send_signal(signal.SIGINT)
                process.wait(TIMEOUT)
            finally:
                process.kill()
                process.wait()
            errors.seek(0)
            if stepped is None:
                raise RunError(f"{MODULE}:make made no step: {last_line(errors.read())}")
    return Start(workers, stepped - began, tuple(held.values()), torch)


def _wait_for(stamp: Path, process: subprocess.Popen[bytes]) -> float | None:
    """Return the time of the first step; None when there was none."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        if stamp.exists() and (text := stamp.read_text()):
            return float(text)
        time.sleep(POLL)
    return None


def _watch_workers(process: subprocess.Popen[bytes]) -> tuple[dict[int, float], bool]:
    """Return the most MB that each worker held, and whether one of them loaded torch."""
    held: dict[int, float] = {}
    torch = False
    executor = psutil.Process(process.pid)
    deadline = time.monotonic() + WATCH
    while time.monotonic() < deadline and process.poll() is None:
        for worker in resident.workers(executor):
            held[worker.pid] = max(held.get(worker.pid, 0.0), resident.megabytes(worker) or 0.0)
            torch = torch or resident.has_torch(worker.pid)
        time.sleep(POLL)
    return held, torch


def _report(
    env: str, helps: Sequence[float], starts: Sequence[Start], arguments: list[str], seeds: Sequence[int]
) -> Report:
    rows = [_row("manyhands --help", helps)]
    for workers, name in ((2, "2 workers"), (0, "inline")):
        times = [start.first_step for start in starts if start.workers == workers]
        rows.append(_row(f"manyhands train, first step, {name}", times))
    held = [mb for start in starts for mb in start.worker_mb]
    memory = (f"{statistics.median(held):.1f} MB", f"{max(held):.1f} MB") if held else ("-", "-")
    torch = any(start.worker_torch for start in starts)
    return Report(
        name="startup",
        title="Starting",
        arguments=arguments,
        seeds=list(seeds),
        tables=(
            Table("From the command", ("", "median", "fastest", "slowest", "times"), rows),
            Table(
                "A worker process",
                ("", "median", "most"),
                (("resident memory", *memory), ("loaded torch", "yes" if torch else "no", "")),
            ),
        ),
        notes=(
            f"First step: from starting the process to the first `step` of a wrapped {env}, wherever it is "
            "played; the environment itself writes down the time.",
            f"Memory: the most each worker held in {WATCH:g} s of training, resident, with shared pages.",
        ),
        results={"env": env, "help_seconds": list(helps), "starts": [asdict(start) for start in starts]},
    )


def _row(name: str, times: Sequence[float]) -> tuple[str, ...]:
    numbers = (statistics.median(times), min(times), max(times))
    return name, *(f"{number:.2f} s" for number in numbers), str(len(times))


def _picture(helps: Sequence[float], starts: Sequence[Start]) -> Figure:
    groups = {
        "--help": list(helps),
        "first step, 2 workers": [start.first_step for start in starts if start.workers == 2],
        "first step, inline": [start.first_step for start in starts if start.workers == 0],
    }
    figure = new_figure(9, 2.8)
    axes = figure.subplots()
    medians = [statistics.median(times) for times in groups.values()]
    axes.barh(list(groups), medians, color=BLUE, alpha=0.8, height=0.6)
    for y, times in enumerate(groups.values()):
        axes.scatter(
            times, [y] * len(times), color=ORANGE, s=18, edgecolors="white", linewidths=0.5, zorder=3
        )
    axes.invert_yaxis()
    axes.set_xlabel("seconds from the command (bar: median, dots: every start)")
    tidy(axes)
    axes.grid(False, axis="y")
    return figure
