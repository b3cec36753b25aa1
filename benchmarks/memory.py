"""Whether a long run grows: resident memory of the executor and every worker over the steps of one run."""

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks import resident
from manyhands.core.errors import RunError, UsageError
from manyhands.runs.jsonl import Tail
from manyhands.runs.plots import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, new_figure, tidy
from manyhands.runs.report import OUT, Report, Table, at_least_one, last_line, manyhands
from manyhands.runs.store import Run

INTERVAL = 0.5
"""Seconds between two measurements."""
WARM_UP = 0.2
"""Share of the steps after which nothing should grow any more."""
LIMIT = 100.0
"""MB that a worker of a dense policy may hold."""
GROWTH = 5.0
"""Percent that a process may grow after the warm-up."""
EXECUTOR = "executor"


@dataclass
class History:
    """One process's memory while the run went on."""

    name: str
    pid: int
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    had_torch: bool = False

    def warm(self, total: int) -> float:
        """Return the MB at the end of the warm-up."""
        return next(
            mb for step, mb in zip(self.steps, self.megabytes, strict=True) if step >= WARM_UP * total
        )

    def growth(self, total: int) -> float:
        """Return the growth, in percent, from the end of the warm-up to the end of the run."""
        return 100 * (self.megabytes[-1] / self.warm(total) - 1)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--steps", type=at_least_one, default=1_250_000, help="a fifth is warm-up")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--set", action="append", default=[], help="more settings for manyhands train")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    if not sys.platform.startswith("linux"):
        raise UsageError("this benchmark reads /proc, so it needs Linux")
    how = ("--workers", options.workers, "--seed", options.seed, "--until", "steps", "--steps", options.steps)
    extra = [word for text in options.set for word in ("--set", text)]
    histories = _watch(options.env, [*map(str, how), *extra], options.steps)
    report = _report(options.env, histories, options.steps, arguments, options.seed)
    report.save(options.out, _picture(options.env, histories, options.steps))


def _watch(env: str, flags: list[str], total: int) -> list[History]:
    """Train in a process of its own and measure it until it ends."""
    with tempfile.TemporaryDirectory(prefix="manyhands-memory-") as temporary:
        run = Run(Path(temporary) / "run")
        command = manyhands("train", env, "--dir", run.path, "--quiet", *flags)
        with (Path(temporary) / "stderr").open("w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            try:
                histories = _sample(run, process)
            finally:
                process.kill()
                code = process.wait()
            errors.seek(0)
            if code:
                raise RunError(f"{shlex.join(command)} failed: {last_line(errors.read())}")
    whole = [history for history in histories if history.steps and history.steps[-1] >= WARM_UP * total]
    if not whole:
        raise RunError(f"the run of {total:,} steps was too short to be watched; give more: --steps N")
    return whole


def _sample(run: Run, process: subprocess.Popen[bytes]) -> list[History]:
    histories: dict[int, History] = {}
    began = time.monotonic()
    executor = psutil.Process(process.pid)
    tail, steps = Tail(run.metrics_path), 0
    while process.poll() is None:
        steps = max([steps, *(int(row["steps"]) for row in tail.read())])
        seconds = time.monotonic() - began
        for seen in (executor, *resident.workers(executor)):
            megabytes = resident.megabytes(seen)
            if megabytes is None:
                continue
            name = EXECUTOR if seen.pid == process.pid else f"worker {len(histories)}"
            history = histories.setdefault(seen.pid, History(name, seen.pid))
            history.steps.append(steps)
            history.seconds.append(seconds)
            history.megabytes.append(megabytes)
            history.had_torch = history.had_torch or resident.has_torch(seen.pid)
        time.sleep(INTERVAL)
    return list(histories.values())


def _report(env: str, histories: Sequence[History], total: int, arguments: list[str], seed: int) -> Report:
    rows, results = [], []
    workers = [history for history in histories if history.name != EXECUTOR]
    for history in histories:
        growth, peak = history.growth(total), max(history.megabytes)
        rows.append(
            (
                history.name,
                f"{history.warm(total):.1f} MB",
                f"{history.megabytes[-1]:.1f} MB",
                f"{growth:+.1f} %",
                f"{peak:.1f} MB",
                "yes" if history.had_torch else "no",
            )
        )
        results.append(
            {
                "process": history.name,
                "warm_mb": history.warm(total),
                "end_mb": history.megabytes[-1],
                "growth_percent": growth,
                "peak_mb": peak,
                "loaded_torch": history.had_torch,
                "samples": [
                    list(sample)
                    for sample in zip(history.steps, history.seconds, history.megabytes, strict=True)
                ],
            }
        )
    flat = all(abs(history.growth(total)) <= GROWTH for history in histories)
    small = all(max(history.megabytes) < LIMIT for history in workers)
    return Report(
        name="memory",
        title="Memory of a long run",
        arguments=arguments,
        seeds=[seed],
        tables=(
            Table(
                f"{env}, {total:,} steps",
                ("process", "after warm-up", "at the end", "growth", "peak", "loaded torch"),
                rows,
            ),
        ),
        notes=(
            f"Resident memory with shared pages, looked at every {INTERVAL:g} s; "
            f"the warm-up is the first {WARM_UP:.0%} of the steps.",
            f"Within {GROWTH:g} % after the warm-up: {'yes' if flat else 'NO'}.",
            f"Workers under {LIMIT:g} MB: {_answer(small, workers)}; without torch: "
            f"{_answer(not any(history.had_torch for history in workers), workers)}.",
        ),
        results={"env": env, "steps": total, "flat": flat, "workers_small": small, "processes": results},
    )


def _answer(holds: bool, workers: Sequence[History]) -> str:
    if not workers:
        return "there were none"
    return "yes" if holds else "NO"


def _picture(env: str, histories: Sequence[History], total: int) -> Figure:
    figure = new_figure(10, 5)
    axes = figure.subplots()
    colours = (BLUE, ORANGE, GREEN, VIOLET, RED)
    for i, history in enumerate(histories):
        axes.plot(
            history.steps,
            history.megabytes,
            color=colours[i % len(colours)],
            linewidth=1.6,
            label=f"{history.name} ({history.growth(total):+.1f} % after warm-up)",
        )
    axes.axvline(WARM_UP * total, color=GREY, linewidth=1, linestyle="--", label="end of warm-up")
    axes.set_title(env, loc="left", fontweight="bold", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("resident memory, MB")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)
    return figure
