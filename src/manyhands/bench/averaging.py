"""Averaging over WebSockets and A3C by Hogwild!: the published tables, and what their author left open."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from manyhands.averaging.network import Network, averaged
from manyhands.averaging.sweep import Curve, grid, judged, spread
from manyhands.bench import parts
from manyhands.bench.parts import Measured
from manyhands.bench.report import Table, manyhands, run_json, settings, trained
from manyhands.bench.slow_wire import SlowWire
from manyhands.bench.timed import training_speed
from manyhands.channels.processes import resident_megabytes
from manyhands.runs.plots import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, new_figure, tidy
from manyhands.runs.store import LAST, Run

SEEDS = (621, 622, 623)
"""Reserved for this benchmark."""
ENV = "LunarLander-v3"
EPISODES = 500
ROUNDS, EXCHANGES = 2000, 2000
PUBLISHED_A3C = (
    (8, 0.999, 120, "255.9 +- 36.9"),
    (8, 0.99, 120, "254.0 +- 59.7"),
    (8, 0.99, 60, "243.7 +- 58.0"),
    (4, 0.999, 120, "230.0 +- 87.1"),
    (8, 0.99, 30, "149.1 +- 45.0"),
    (8, 0.95, 120, "-51.3 +- 21.3"),
)
"""Cores, gamma, batch, mean and deviation of 500 episodes."""
PUBLISHED_GRID = {
    "0.1": ("248.6 +- 59.1", "-18.4 +- 59.5", "-70.5 +- 56.7"),
    "0.5": ("102.4 +- 124.1", "120.5 +- 41.3", "209.8 +- 94.7"),
    "0.9": ("257.2 +- 39.9", "237.2 +- 71.7", "231.8 +- 78.9"),
}
ALPHAS, BETAS = (0.1, 0.5, 0.9), (0.0, 0.5, 0.9)
CHILDREN, CORES = 2, 4
BETTER = ("--algo", "ppo", "--alpha", 0.5, "--beta", 0.5)
BETTER_EXCHANGES = EXCHANGES // 4
CROWDS = (1, 2, 4, 8)
CROWD_EVERY, CROWD_EXCHANGES = 2048, 600
SWARMS, SWARM_SECONDS = (64, 256), 20.0
FORMATS = ("float32", "float16", "int8")
SPEED_SECONDS = 15.0
TIMEOUT = 7200.0
UNTESTED = {"run.test_every": 10**12}
WARM = 20
"""Rounds that count as start-up."""
NOTES = (
    f"Every mean and deviation is of {EPISODES} episodes of {ENV} with the greedy policy.",
    f"a3c: after {ROUNDS} rounds of one episode on every core, as published.",
    f"grid: {CHILDREN} children of {CORES} processes each, after {EXCHANGES} exchanges.",
    f"better: {' '.join(map(str, BETTER))}, after {BETTER_EXCHANGES} exchanges.",
    f"crowd: {' '.join(map(str, BETTER))} with children of one core that exchange every {CROWD_EVERY} steps, "
    f"{CROWD_EXCHANGES} exchanges in all, so the same number of steps for any number of children.",
    "swarm: children in one process, each with a CartPole-v1 of its own that it plays at random, and an "
    "exchange after every episode; round trips as they see them.",
    "formats: as better.",
    "slow: as better, with every byte of every child 200 ms late each way and one piece in a hundred lost.",
    "hogwild: steps/s of A3C with one process and with two, and what each process holds.",
)


def main(arguments: list[str]) -> None:
    options = parts.parse("averaging", __doc__, PARTS, SEEDS, arguments)
    with tempfile.TemporaryDirectory(prefix="manyhands-averaging-") as temporary:
        path = Path(temporary)
        made: dict[str, Callable[[], Measured]] = {
            "a3c": partial(_a3c, path, options),
            "grid": partial(_grid, path, options),
            "better": partial(_better, path, options),
            "crowd": partial(_crowd, path, options),
            "swarm": partial(_swarm, path),
            "formats": partial(_formats, path, options),
            "slow": partial(_slow, path, options),
            "hogwild": _hogwild,
        }
        parts.measure("averaging", "Averaging weights", made, options, NOTES, _picture)


PARTS = ("a3c", "grid", "better", "crowd", "swarm", "formats", "slow", "hogwild")


def _returns(run: Run, which: str = LAST) -> dict[str, Any]:
    words = ("eval", run.path, "--episodes", EPISODES, "--which", which, "--json")
    return run_json(manyhands(*words), TIMEOUT)


def _a3c(path: Path, options: argparse.Namespace) -> Measured:
    rows, numbers = [], {}
    for cores, gamma, batch, published in PUBLISHED_A3C:
        found = []
        for seed in options.seeds[:2]:
            chosen = {"algo.gamma": gamma, "algo.batch": batch, "run.updates": ROUNDS, **UNTESTED}
            words = ("train", ENV, "--algo", "a3c", "--workers", cores, "--seed", seed, "--until", "steps")
            whole = (*words, "--steps", 10**9, *settings(chosen))
            found.append(_returns(trained(whole, path / f"a3c-{cores}-{gamma}-{batch}-{seed}", TIMEOUT)))
            print(f"a3c {cores} {gamma} {batch} seed {seed}: {found[-1]['mean']:.1f}", flush=True)
        cells = [f"{result['mean']:.1f} +- {result['sd']:.1f}" for result in found]
        rows.append((f"{cores} cores, gamma {gamma:g}, batch {batch}", published, *cells))
        numbers[f"{cores} {gamma} {batch}"] = found
    columns = ("", "published", *(f"seed {seed}" for seed in options.seeds[:2]))
    return [Table("A3C on one machine", columns, rows)], numbers


def _grid(path: Path, options: argparse.Namespace) -> Measured:
    cells: dict[str, dict[str, Curve]] = {}
    for alpha in ALPHAS:
        for beta in BETAS:
            seeds = options.seeds if (alpha, beta) == (0.9, 0.0) else options.seeds[:1]
            for seed in seeds:
                words = (ENV, "--alpha", alpha, "--beta", beta, "--exchanges", EXCHANGES, "--seed", seed)
                run = averaged(path / f"grid-{alpha}-{beta}-{seed}", words, CHILDREN, CORES, TIMEOUT)
                curve = judged(run, EPISODES)
                cells.setdefault(f"{alpha:g} {beta:g}", {})[str(seed)] = curve
                print(f"alpha {alpha:g} beta {beta:g} seed {seed}: {spread(curve[-1][1])}", flush=True)
    columns = ("alpha \\ beta", *(f"{beta:g}" for beta in BETAS))
    published = Table("Published", columns, [(alpha, *row) for alpha, row in PUBLISHED_GRID.items()])
    slim = {key: {seed: _slim(curve) for seed, curve in found.items()} for key, found in cells.items()}
    return [published, grid(cells, ALPHAS, BETAS)], slim


def _slim(curve: Curve) -> list[tuple[int, float, float]]:
    """Exchanges, mean and deviation."""
    return [(at, float(np.mean(returns)), float(np.std(returns))) for at, returns in curve]


def _better(path: Path, options: argparse.Namespace) -> Measured:
    rows, numbers = [], {}
    for seed in options.seeds:
        words = (ENV, *BETTER, "--exchanges", BETTER_EXCHANGES, "--seed", seed)
        curve = judged(averaged(path / f"better-{seed}", words, CHILDREN, 1, TIMEOUT), EPISODES)
        first = next((at for at, returns in curve if np.mean(returns) >= 250), None)
        rows.append((f"seed {seed}", spread(curve[-1][1]), "-" if first is None else str(first)))
        numbers[str(seed)] = _slim(curve)
        print(*rows[-1], flush=True)
    columns = ("", f"after {BETTER_EXCHANGES} exchanges", "250 reached after")
    return [Table("Better than published", columns, rows)], numbers


def _crowd(path: Path, options: argparse.Namespace) -> Measured:
    rows, numbers = [], {}
    for children in CROWDS:
        found, clock = [], []
        for seed in options.seeds:
            words = (ENV, *BETTER, "--every", CROWD_EVERY, "--exchanges", CROWD_EXCHANGES, "--seed", seed)
            run = averaged(path / f"crowd-{children}-{seed}", words, children, 1, TIMEOUT)
            first, *_, last = (row for row in run.metrics() if row["exchanges"])
            steps = last["steps"] - first["steps"]
            clock.append((last["seconds"] - first["seconds"]) / steps * 1e6)  # without any start-up
            found.append(_returns(run)["mean"])
            print(f"{children} children, seed {seed}: {found[-1]:.1f}, {clock[-1]:.0f} us/step", flush=True)
        means = f"{statistics.median(found):.1f} ({min(found):.1f} to {max(found):.1f})"
        rows.append((str(children), means, f"{statistics.median(clock):.0f}"))
        numbers[str(children)] = {"means": found, "clock": clock}
    columns = ("children", "mean return", "microseconds a step")
    return [Table("More children, the same number of steps", columns, rows)], numbers


def _swarm(path: Path) -> Measured:
    rows, numbers = [], {}
    for children in SWARMS:
        with Network(path / f"swarm-{children}") as network:
            words = ("--exchanges", 10**9, "--checkpoint-every", 10**9, "--listen", "127.0.0.1:0")
            network.start_parent("CartPole-v1", *words)
            command = [sys.executable, "-m", "manyhands.bench.swarm", network.address]
            command += ["--children", str(children), "--seconds", str(SWARM_SECONDS)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert network.parent is not None
            assert process.stdout is not None
            memory = 0.0
            while process.poll() is None:
                memory = max(memory, resident_megabytes(network.parent.pid))
                time.sleep(0.5)
            found = json.loads(process.stdout.read())
        numbers[str(children)] = {**found, "memory": memory}
        rows.append(
            (
                str(children),
                f"{found['rate']:,.0f}",
                f"{found['p50']:.1f}",
                f"{found['p99']:.1f}",
                f"{memory:.0f}",
            )
        )
    columns = ("children", "exchanges/s", "round trip p50, ms", "p99, ms", "parent, MB")
    return [Table("A swarm", columns, rows)], numbers


def _formats(path: Path, options: argparse.Namespace) -> Measured:
    rows, numbers = [], {}
    for how in FORMATS:
        means, sizes = [], []
        for seed in options.seeds:
            words = (ENV, *BETTER, "--exchanges", BETTER_EXCHANGES, "--seed", seed, "--format", how)
            run = averaged(path / f"{how}-{seed}", words, CHILDREN, 1, TIMEOUT)
            children = run.status()["children"].values()
            received = sum(child["bytes_in"] for child in children)
            sizes.append(received / sum(child["exchanges"] for child in children))
            means.append(_returns(run)["mean"])
            print(f"{how}, seed {seed}: {means[-1]:.1f}, {sizes[-1]:.0f} bytes", flush=True)
        spread_ = f"{statistics.median(means):.1f} ({min(means):.1f} to {max(means):.1f})"
        rows.append((how, f"{statistics.median(sizes):,.0f}", spread_))
        numbers[how] = {"means": means, "bytes": sizes}
    return [Table("How weights travel", ("", "bytes an exchange", "mean return"), rows)], numbers


def _slow(path: Path, options: argparse.Namespace) -> Measured:
    rows, numbers = [], {}
    for seed in options.seeds:
        with Network(path / f"slow-{seed}") as network:
            words = (ENV, *BETTER, "--exchanges", BETTER_EXCHANGES, "--seed", seed)
            network.start_parent(*words, "--listen", "127.0.0.1:0")
            wire = SlowWire(int(network.address.rpartition(":")[2]), 0.2, 0.01)
            network.address = wire.address
            for number in range(CHILDREN):
                network.start_child(f"child-{number}", "--cores", 1, "--quiet")
            run = network.wait(TIMEOUT)
            wire.close()
        result, children = _returns(run), run.status()["children"]
        trips = ", ".join(f"{1000 * child['round_trip']:.0f} ms" for child in children.values())
        counts = ", ".join(str(child["exchanges"]) for child in children.values())
        rows.append((f"seed {seed}", f"{result['mean']:.1f} +- {result['sd']:.1f}", counts, trips))
        numbers[str(seed)] = {"result": result, "children": children}
        print(*rows[-1], flush=True)
    return [Table("A slow network", ("", "mean return", "exchanges", "round trips"), rows)], numbers


def _hogwild() -> Measured:
    rows, numbers = [], {}
    for cores in (1, 2):
        words = ("train", ENV, "--algo", "a3c", "--workers", cores, "--seed", 1, *settings(UNTESTED))
        speed = training_speed(words, SPEED_SECONDS, lambda row: bool(row.get("version", 0) > WARM))
        memory = _memory_of_a_core(cores)
        numbers[str(cores)] = {"speed": speed, "memory": memory}
        over_one = speed / numbers["1"]["speed"]
        rows.append((str(cores), f"{speed:,.0f}", f"{over_one:.2f}", f"{memory:.0f}"))
    columns = ("processes", "steps/s", "over one", "MB of each")
    return [Table("A3C by Hogwild!", columns, rows)], numbers


def _memory_of_a_core(cores: int) -> float:
    """The largest of them after some seconds."""
    with tempfile.TemporaryDirectory(prefix="manyhands-hogwild-") as temporary:
        words = ("train", ENV, "--algo", "a3c", "--workers", cores, "--quiet")
        process = subprocess.Popen(manyhands(*words, "--dir", Path(temporary) / "run"))
        try:
            time.sleep(8)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            return max(resident_megabytes(int(child)) for child in children)
        finally:
            process.terminate()
            process.wait(30)


def _picture(results: Mapping[str, Any]) -> Figure:
    figure = new_figure(13, 4.5)
    curves, crowd = figure.subplots(1, 2)
    colours = (BLUE, ORANGE, GREEN, RED, VIOLET, GREY)
    for number, (key, found) in enumerate(results.get("grid", {}).items()):
        for order, curve in enumerate(found.values()):
            at, mean, _ = zip(*curve, strict=True)
            alpha, beta = key.split()
            label = f"alpha {alpha}, beta {beta}" if order == 0 else None
            style = "-" if number < len(colours) else "--"
            curves.plot(at, mean, style, color=colours[number % len(colours)], lw=1.2, label=label)
    for order, curve in enumerate(results.get("better", {}).values()):
        at, mean, _ = zip(*curve, strict=True)
        curves.plot(at, mean, color="#222222", lw=1.8, label="better" if order == 0 else None)
    curves.axhline(257.2, color=GREY, lw=0.7, ls=":")
    curves.set_title(f"{ENV}: mean of {EPISODES} episodes (dotted: best published)")
    curves.set_xlabel("exchanges")
    if results.get("grid") or results.get("better"):
        curves.legend(frameon=False, fontsize=7)
    for children, found in results.get("crowd", {}).items():
        crowd.scatter([int(children)] * len(found["means"]), found["means"], color=BLUE, s=16)
    crowd.set_title("the same number of steps by more children: mean return")
    crowd.set_xlabel("children")
    for axes in (curves, crowd):
        tidy(axes)
    return figure
