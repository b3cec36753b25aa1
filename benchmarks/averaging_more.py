"""Questions that the published averaging left open: crowds, swarms, small messages, slow networks, speed."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from benchmarks.averaging_tables import (
    BETTER,
    BETTER_EXCHANGES,
    CHILDREN,
    ENV,
    EXCHANGES,
    SLOWING,
    TIMEOUT,
    UNTESTED,
    ended,
    said,
)
from benchmarks.parts import Measured
from benchmarks.slow_wire import SlowWire
from benchmarks.timed import training_speed
from manyhands.averaging.network import Network, averaged
from manyhands.runs.report import Table, manyhands, settings
from manyhands.system.memory import resident_megabytes

CROWDS = (1, 2, 4, 8)
CROWD_EVERY, CROWD_EXCHANGES = 2048, 2400
CROWD_RATE, CROWD_POWER = 1e-3, 2 / 3
"""The learning rate of one child, and the power of their number with which that of several grows, as their
mean moves less than each of them."""
SWARMS, SWARM_SECONDS = (64, 256), 20.0
FORMATS = ("float32", "float16", "int8")
SLOWLY: tuple[object, ...] = (*BETTER, *SLOWING, "--exchanges", EXCHANGES)
"""Options for as many exchanges as published, slowing down, so that runs end alike and damage is seen."""
SPEED_SECONDS = 15.0
HOGWILD: dict[str, tuple[int, str]] = {
    "1 process": (1, "on"),
    "2 processes": (2, "on"),
    "2 processes, no barrier": (2, "off"),
}
"""The number of processes, and whether they wait for one another after every episode."""
OPEN: dict[str, tuple[str, float, tuple[object, ...]]] = {
    "a shared replay memory": (
        "CartPole-v1",
        475.0,
        ("--algo", "adqn", "--every", 500, "--exchanges", 400, "--beta", 0.5, "--alpha", 0.5),
    ),
    "Hogwild! at the parent": (ENV, 200.0, (*BETTER, "--parent-hogwild", "--exchanges", BETTER_EXCHANGES)),
    "another task": ("Acrobot-v1", -100.0, (*BETTER, "--exchanges", 200)),
}
DELAY, LOSS = 0.2, 0.01
SETTLED = 8.0
"""Seconds after which a core's process holds all the memory that it needs."""
WARM = 20
"""Rounds that count as start-up."""


def crowd(path: Path, options: argparse.Namespace) -> Iterator[Measured]:
    found: dict[str, dict[str, float]] = options.begun.get("crowd", {})
    for children, seed in product(CROWDS, options.seeds):
        key = f"{children} {seed}"
        if key in found:
            continue
        rate = CROWD_RATE * children**CROWD_POWER
        how = ("--every", CROWD_EVERY, "--exchanges", CROWD_EXCHANGES, "--seed", seed)
        chosen = settings({"algo.learning_rate": f"{rate:.2g}", "run.mode": "sync"})
        words = (ENV, *BETTER, *SLOWING, *how, *chosen)
        run = averaged(path / f"crowd {key}", words, children, 1, TIMEOUT)
        rows = run.rows()
        first, last = next(row for row in rows if _all_there(row, children)), rows[-1]  # without any start-up
        clock = (last["seconds"] - first["seconds"]) / (last["steps"] - first["steps"])
        found[key] = {"mean": ended(run)["mean"], "clock": clock * 1e6}
        print(f"crowd, children and seed {key}: {found[key]}", flush=True)
        yield [_crowd_table(found, options.seeds)], found


def _crowd_table(found: Mapping[str, Mapping[str, float]], seeds: Sequence[int]) -> Table:
    rows = []
    for children in CROWDS:
        ran = [found[key] for seed in seeds if (key := f"{children} {seed}") in found]
        if ran:
            spread = _spread([run["mean"] for run in ran])
            clock = statistics.median(run["clock"] for run in ran)
            rows.append((str(children), f"{CROWD_RATE * children**CROWD_POWER:.2g}", spread, f"{clock:.0f}"))
    columns = ("children", "first rate", "mean return", "microseconds a step")
    return Table("More children, the same number of steps", columns, rows)


def _all_there(row: Mapping[str, Any], children: int) -> bool:
    """Return whether every child has exchanged by then, so that none is starting any more."""
    counts = [child["exchanges"] for child in row["children"].values()]
    return len(counts) == children and min(counts) > 0


def swarm(path: Path) -> Measured:
    rows, numbers = [], {}
    for children in SWARMS:
        with Network(path / f"swarm-{children}") as network:
            words = ("--exchanges", 10**9, "--checkpoint-every", 10**9, "--listen", "127.0.0.1:0")
            network.start_parent("CartPole-v1", *words)
            command = [sys.executable, "-m", "benchmarks.swarm", network.address]
            command += ["--children", str(children), "--seconds", str(SWARM_SECONDS)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert network.parent is not None
            assert process.stdout is not None
            memory, before = 0.0, _processor_seconds(network.parent.pid)
            while process.poll() is None:
                memory = max(memory, resident_megabytes(network.parent.pid))
                time.sleep(0.5)
            found = json.loads(process.stdout.read())
            busy = (_processor_seconds(network.parent.pid) - before) / found["seconds"]
        numbers[str(children)] = {**found, "memory": memory, "busy": busy}
        rows.append(
            (
                str(children),
                f"{found['rate']:,.0f}",
                f"{found['p50']:.1f}",
                f"{found['p99']:.1f}",
                f"{memory:.0f}",
                f"{busy:.0%}",
            )
        )
    columns = ("children", "exchanges/s", "round trip p50, ms", "p99, ms", "parent, MB", "of a core")
    return [Table("A swarm", columns, rows)], numbers


def formats(path: Path, options: argparse.Namespace) -> Iterator[Measured]:
    found: dict[str, dict[str, float]] = options.begun.get("formats", {})
    for how, seed in product(FORMATS, options.seeds):
        key = f"{how} {seed}"
        if key in found:
            continue
        words = (ENV, *SLOWLY, "--seed", seed, "--format", how)
        run = averaged(path / f"formats {key}", words, CHILDREN, 1, TIMEOUT)
        children = run.status()["children"].values()
        size = sum(child["bytes_in"] for child in children) / sum(child["exchanges"] for child in children)
        found[key] = {**_short(ended(run)), "bytes": size}
        print("formats", key, found[key], flush=True)
        yield [_formats_table(found, options.seeds)], found


def _formats_table(found: Mapping[str, Mapping[str, float]], seeds: Sequence[int]) -> Table:
    rows = []
    for how in FORMATS:
        ran = [found[key] for seed in seeds if (key := f"{how} {seed}") in found]
        if ran:
            size = statistics.median(run["bytes"] for run in ran)
            rows.append(
                (how, f"{size:,.0f}", _spread([run["mean"] for run in ran]), "; ".join(map(said, ran)))
            )
    return Table("How weights travel", ("", "bytes an exchange", "mean return", "every seed"), rows)


def slow(path: Path, options: argparse.Namespace) -> Iterator[Measured]:
    found: dict[str, dict[str, Any]] = options.begun.get("slow", {})
    for seed in options.seeds:
        if str(seed) in found:
            continue
        with Network(path / f"slow {seed}") as network:
            network.start_parent(ENV, *SLOWLY, "--seed", seed, "--listen", "127.0.0.1:0")
            wire = SlowWire(int(network.address.rpartition(":")[2]), DELAY, LOSS)
            network.address = wire.address
            for number in range(CHILDREN):
                network.start_child(f"child-{number}", "--cores", 1, "--quiet")
            run = network.wait(TIMEOUT)
            wire.close()
        found[str(seed)] = {**_short(ended(run)), "children": run.status()["children"]}
        print("slow", seed, said(found[str(seed)]), flush=True)
        yield [_slow_table(found)], found


def _slow_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for seed, run in found.items():
        children = run["children"].values()
        trips = ", ".join(f"{1000 * child['round_trip']:.0f} ms" for child in children)
        counts = ", ".join(str(child["exchanges"]) for child in children)
        rows.append((f"seed {seed}", said(run), counts, trips))
    return Table("A slow network", ("", "mean return", "exchanges", "round trips"), rows)


def _short(result: Mapping[str, Any]) -> dict[str, float]:
    return {"mean": result["mean"], "sd": result["sd"]}


def _spread(means: Sequence[float]) -> str:
    return f"{statistics.median(means):.1f} ({min(means):.1f} to {max(means):.1f})"


def hogwild(options: argparse.Namespace) -> Measured:
    speeds: dict[str, list[float]] = {name: [] for name in HOGWILD}
    for seed in options.seeds:
        for name, found in speeds.items():
            cores, barrier = HOGWILD[name]
            how = ("--algo", "a3c", "--workers", cores, "--barrier", barrier, "--seed", seed)
            words = ("train", ENV, *how, *settings(UNTESTED))
            found.append(training_speed(words, SPEED_SECONDS, lambda row: bool(row.get("version", 0) > WARM)))
            print(f"hogwild, {name}, seed {seed}: {found[-1]:,.0f} steps/s", flush=True)
    rows, numbers = [], {}
    for name, found in speeds.items():
        ratio = statistics.median(
            more / one for more, one in zip(found, next(iter(speeds.values())), strict=True)
        )
        memory = _memory_of_a_core(HOGWILD[name][0])
        numbers[name] = {"speeds": found, "memory": memory}
        rows.append((name, f"{statistics.median(found):,.0f}", f"{ratio:.2f}", f"{memory:.0f}"))
    columns = ("", "steps/s", "over one", "MB of each")
    return [Table("A3C by Hogwild!", columns, rows)], numbers


def left_open(path: Path, options: argparse.Namespace) -> Measured:
    """Measure what the published system left open, beside crowds, formats and slow networks."""
    rows, numbers = [], {}
    for name, (env, goal, words) in OPEN.items():
        means = []
        for seed in options.seeds:
            whole = (env, *words, "--seed", seed)
            means.append(ended(averaged(path / f"open {name} {seed}", whole, CHILDREN, 1, TIMEOUT))["mean"])
            print(f"{name}, seed {seed}: {means[-1]:.1f}", flush=True)
        rows.append((name, " ".join(map(str, words)), _spread(means), f"{goal:g}"))
        numbers[name] = means
    return [Table("Left open by its authors", ("", "settings", "mean return", "solved at"), rows)], numbers


def _memory_of_a_core(cores: int) -> float:
    """Return the MB of the largest of a run's core processes after some seconds."""
    with tempfile.TemporaryDirectory(prefix="manyhands-hogwild-") as temporary:
        words = ("train", ENV, "--algo", "a3c", "--workers", cores, "--quiet")
        process = subprocess.Popen(manyhands(*words, "--dir", Path(temporary) / "run"))
        try:
            time.sleep(SETTLED)
            return max(resident_megabytes(child.pid) for child in psutil.Process(process.pid).children())
        finally:
            process.terminate()
            process.wait(30)


def _processor_seconds(process: int) -> float:
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)
