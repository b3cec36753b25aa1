"""How collection for learn-to-optimise scales with drivers, and what unequal ones cost."""

import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import measured
from benchmarks.parts import Measured
from manyhands.core.errors import RunError
from manyhands.envs.lto import Problem
from manyhands.lto.judge import Judge
from manyhands.lto.law import Law
from manyhands.runs.report import Table, manyhands, settings
from manyhands.runs.store import Run

DRIVERS = (1, 2, 4, 8, 16, 32, 64)
EPISODES, MOVES = 64, 2
PUBLISHED_SECONDS = 30_341 / 10_000
"""Published seconds of collection per training step of 64 episodes, one after the other."""
WARM = 3
"""Training steps that count as start-up."""
COSTS = (0.0, 0.0001, 0.0003, 0.001, 0.003)
UNEVEN_DRIVERS, UNEVEN_STEPS, UNEVEN_SECONDS = 6, 200, 0.001
REACH = "-32.768:32.768"


def _train(path: Path, seconds: float, *words: object, ranks: Path | None = None) -> Run:
    command = manyhands("lto", *words, "--dir", path, "--quiet", *settings({"run.checkpoint_every": 1e9}))
    environment = {**os.environ, measured.SECONDS: str(seconds), measured.RANKS: str(ranks or "")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    return Run(path)


def _per_step(run: Run) -> dict[str, float]:
    """Return the seconds booked per training step, once training is under way."""
    rows = [row for row in run.rows() if row.get("version", 0) >= WARM]
    first, last = rows[0], rows[-1]
    steps = last["version"] - first["version"]
    names = ("waiting", "collecting", "broadcasting", "learning", "seconds")
    return {name: (last[name] - first[name]) / steps for name in names}


def steps_per_second(path: Path) -> Measured:
    """Measure one process with the plain function and 64 episodes a training step."""
    run = _train(
        path / "rate", 0, "ackley", "--episodes", EPISODES, "--drivers", 0, "--steps", 2000, "--seed", 501
    )
    booked = _per_step(run)
    ratio = PUBLISHED_SECONDS / booked["collecting"]
    rows = [
        ("training steps/s, everything counted", f"{1 / booked['seconds']:.0f}"),
        ("collecting, per training step", f"{1000 * booked['collecting']:.2f} ms"),
        ("training, per training step", f"{1000 * booked['learning']:.2f} ms"),
        ("published: collecting alone", f"{PUBLISHED_SECONDS:.2f} s"),
        ("collecting, times as fast as published", f"{ratio:,.0f}"),
        (
            "everything, times as fast as published collecting",
            f"{PUBLISHED_SECONDS / booked['seconds']:,.0f}",
        ),
    ]
    title = f"One process, Ackley, {EPISODES} episodes a training step"
    return [Table(title, ("", "measured"), rows)], booked


def _timed(
    path: Path, function: Sequence[object], seconds: float, drivers: int, steps: int
) -> dict[str, float]:
    words = (*function, "--episodes", EPISODES, "--groups", EPISODES, "--drivers", drivers, "--steps", steps)
    run = _train(path / f"speed-{seconds}-{drivers}-{time.monotonic_ns()}", seconds, *words)
    booked = _per_step(run)
    print(f"{seconds * 1000:g} ms, {drivers} drivers: {booked}", flush=True)
    return booked


def speed_up(path: Path) -> Measured:
    slow = ("benchmarks.measured:slow", f"--bounds={REACH}")
    tables: list[Table] = []
    numbers: dict[str, Any] = {}
    for name, function, seconds in (("plain", ("ackley",), 0.0), ("50 ms", slow, 0.05)):
        booked = {}
        for drivers in DRIVERS:
            alone = EPISODES * (MOVES + 1) * seconds / drivers + 0.05
            steps = WARM + (max(3, min(60, int(12 / alone))) if seconds else 300)
            booked[drivers] = _timed(path, function, seconds, drivers, steps)
        whole = booked[1]["waiting"]
        rows = []
        rho = {}
        for drivers, found in booked.items():
            rho[drivers] = whole / (found["waiting"] + found["broadcasting"])
            cells = [f"{1000 * found[key]:.1f} ms" for key in ("broadcasting", "waiting", "learning")]
            rows.append((str(drivers), *cells, f"{rho[drivers]:.2f}"))
        columns = ("drivers", "broadcasting", "collecting", "training", "rho*")
        tables.append(
            Table(f"Speed-up, f takes {name}, per training step of {EPISODES} episodes", columns, rows)
        )
        numbers[name] = {str(drivers): value for drivers, value in rho.items()}
        numbers[f"{name} booked"] = {str(drivers): value for drivers, value in booked.items()}
    lines = []
    for cost in COSTS:
        one, eight = (_timed(path, slow, cost, drivers, 40) for drivers in (1, 8))
        ratio = one["waiting"] / (eight["waiting"] + eight["broadcasting"])
        lines.append((f"{1000 * cost:g} ms", f"{1000 * one['waiting']:.1f} ms", f"{ratio:.2f}"))
        numbers.setdefault("costs", {})[str(cost)] = ratio
    heads = ("one evaluation of f takes", "collecting with 1 driver", "rho* of 8 drivers")
    tables.append(Table("From which cost on distribution pays, two cores", heads, lines))
    return tables, numbers


def uneven(path: Path, seeds: Sequence[int]) -> Measured:
    """Measure six drivers, the last six times as slow as the first: all wait for it, or none."""
    rows = []
    numbers: dict[str, Any] = {}
    problem = Problem(("ackley",))
    judge = Judge(problem)
    for mode in ("sync", "pipelined", "async"):
        walls, errors = [], []
        for seed in seeds:
            ranks = path / f"ranks-{mode}-{seed}"
            ranks.mkdir()
            words = ("benchmarks.measured:uneven", f"--bounds={REACH}", "--mode", mode, "--seed", seed)
            size = ("--drivers", UNEVEN_DRIVERS, "--steps", UNEVEN_STEPS, "--episodes", 30)
            run = _train(path / f"uneven-{mode}-{seed}", UNEVEN_SECONDS, *words, *size, ranks=ranks)
            walls.append(run.status()["seconds"])
            checkpoint = run.checkpoint("last")
            errors.append(judge.quality(Law.of(problem, checkpoint.spec, checkpoint.weights)).mse)
            print(mode, seed, walls[-1], errors[-1], flush=True)
        rows.append(
            (
                mode,
                f"{statistics.median(walls):.1f} s",
                _span(walls),
                f"{statistics.median(errors):.3g}",
                _span(errors),
            )
        )
        numbers[mode] = {"seconds": walls, "mse": errors}
    columns = ("mode", "wall clock", "over seeds", "mse at the end", "over seeds")
    steps = UNEVEN_STEPS * 30 * MOVES
    title = f"Six drivers of speed 1 to 1/6, {steps:,} evaluated moves, Ackley, 1 ms at the fastest"
    return [Table(title, columns, rows)], numbers


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}"
