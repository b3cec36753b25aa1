"""Averaging over WebSockets and A3C by Hogwild!: the published tables, and what their author left open."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from manyhands.averaging.network import Network, averaged
from manyhands.bench import parts
from manyhands.bench.averaging_tables import (
    BEST_CELL,
    BETTER,
    BETTER_EXCHANGES,
    CHILDREN,
    CORES,
    ENV,
    EPISODES,
    EXCHANGES,
    PUBLISHED_GRID,
    ROUNDS,
    SLOWING,
    TIMEOUT,
    UNTESTED,
    a3c,
    better,
    ended,
    grid,
)
from manyhands.bench.parts import Measured
from manyhands.bench.report import Table, manyhands, settings
from manyhands.bench.slow_wire import SlowWire
from manyhands.bench.timed import training_speed
from manyhands.channels.processes import resident_megabytes
from manyhands.runs.plots import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, new_figure, tidy

SEEDS = (621, 622, 623)
"""Reserved for this benchmark."""
CROWDS = (1, 2, 4, 8)
CROWD_EVERY, CROWD_EXCHANGES = 2048, 1200
CROWD_RATE, CROWD_POWER = 1e-3, 2 / 3
"""The rate of learning of one child, and how that of several grows with their number, as their mean moves
less than each of them."""
SWARMS, SWARM_SECONDS = (64, 256), 20.0
FORMATS = ("float32", "float16", "int8")
SPEED_SECONDS = 15.0
HOGWILD: dict[str, tuple[int, str]] = {
    "1 process": (1, "on"),
    "2 processes": (2, "on"),
    "2 processes, no barrier": (2, "off"),
}
"""Processes, and whether they wait for one another after every episode."""
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
"""Seconds after which a core's process has all that it needs."""
WARM = 20
"""Rounds that count as start-up."""
NOTES = (
    f"Every mean and deviation is of {EPISODES} episodes of {ENV}. Agents of a3c sample their actions, as "
    "they do when they learn; the others take the likeliest ones.",
    f"a3c: after {ROUNDS} rounds of one episode on every core, as published. Network, gamma, batch and share "
    "of random actions are the published ones; the optimizer is the recipe's, a shared RMSprop with bounded "
    "steps that slows down.",
    f"grid: {CHILDREN} children of {CORES} processes each, {EXCHANGES} exchanges of both together, half the "
    "episodes of eight cores in the table above; a3c, and for the best cell ppo as well. Reached: when its "
    "mean was first as high and its deviation as small as published.",
    f"better: {' '.join(map(str, BETTER))}, after {BETTER_EXCHANGES} exchanges.",
    f"crowd: {' '.join(map(str, (*BETTER, *SLOWING)))} with children of one core that exchange every "
    f"{CROWD_EVERY} steps, {CROWD_EXCHANGES} exchanges in all, so the same number of steps for any number of "
    "children. Rates of learning grow with their number to the power of two thirds. A child plays and learns "
    "in turns (run.mode=sync), so it keeps one core busy.",
    "swarm: children in one process, each with a CartPole-v1 of its own that it plays at random, and an "
    "exchange after every episode; round trips as they see them.",
    "formats: as better.",
    "slow: as better, with every byte of every child 200 ms late each way and one packet in a hundred lost, "
    "by a proxy: namespaces could be made here, but the kernel has no netem to delay and lose packets.",
    "hogwild: steps/s of A3C with one process and with two, in turns, and what each process holds.",
    "open: two children of one core, the last agent.",
)


def main(arguments: list[str]) -> None:
    options = parts.parse("averaging", __doc__, PARTS, SEEDS, arguments)
    with tempfile.TemporaryDirectory(prefix="manyhands-averaging-") as temporary:
        path = Path(temporary)
        made: dict[str, parts.Part] = {
            "a3c": partial(a3c, path, options),
            "grid": partial(grid, path, options),
            "better": partial(better, path, options),
            "crowd": partial(_crowd, path, options),
            "swarm": partial(_swarm, path),
            "formats": partial(_formats, path, options),
            "slow": partial(_slow, path, options),
            "hogwild": partial(_hogwild, options),
            "open": partial(_open, path, options),
        }
        parts.measure("averaging", "Averaging weights", made, options, NOTES, _picture)


PARTS = ("a3c", "grid", "better", "crowd", "swarm", "formats", "slow", "hogwild", "open")


def _crowd(path: Path, options: argparse.Namespace) -> Iterator[Measured]:
    found: dict[str, dict[str, float]] = options.begun.get("crowd", {})
    for children, seed in product(CROWDS, options.seeds):
        key = f"{children} {seed}"
        if key in found:
            continue
        rate = CROWD_RATE * children**CROWD_POWER
        chosen = settings({"algo.learning_rate": f"{rate:.2g}", "run.mode": "sync"})
        words = (
            ENV,
            *BETTER,
            *SLOWING,
            "--every",
            CROWD_EVERY,
            "--exchanges",
            CROWD_EXCHANGES,
            "--seed",
            seed,
        )
        run = averaged(path / f"crowd {key}", (*words, *chosen), children, 1, TIMEOUT)
        rows = run.metrics()
        first, last = next(row for row in rows if _all_there(row, children)), rows[-1]
        clock = (last["seconds"] - first["seconds"]) / (
            last["steps"] - first["steps"]
        )  # without any start-up
        found[key] = {"mean": ended(run)["mean"], "clock": clock * 1e6}
        print(f"crowd, children and seed {key}: {found[key]}", flush=True)
        yield [_crowd_table(found, options.seeds)], found


def _crowd_table(found: Mapping[str, Mapping[str, float]], seeds: Sequence[int]) -> Table:
    rows = []
    for children in CROWDS:
        ran = [found[key] for seed in seeds if (key := f"{children} {seed}") in found]
        if ran:
            means = [run["mean"] for run in ran]
            spread = f"{statistics.median(means):.1f} ({min(means):.1f} to {max(means):.1f})"
            clock = statistics.median(run["clock"] for run in ran)
            rows.append((str(children), f"{CROWD_RATE * children**CROWD_POWER:.2g}", spread, f"{clock:.0f}"))
    columns = ("children", "first rate", "mean return", "microseconds a step")
    return Table("More children, the same number of steps", columns, rows)


def _all_there(row: Mapping[str, Any], children: int) -> bool:
    """Whether every child has exchanged by then, so that none is starting any more."""
    counts = [child["exchanges"] for child in row["children"].values()]
    return len(counts) == children and min(counts) > 0


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
            means.append(ended(run)["mean"])
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
            wire = SlowWire(int(network.address.rpartition(":")[2]), DELAY, LOSS)
            network.address = wire.address
            for number in range(CHILDREN):
                network.start_child(f"child-{number}", "--cores", 1, "--quiet")
            run = network.wait(TIMEOUT)
            wire.close()
        result, children = ended(run), run.status()["children"]
        trips = ", ".join(f"{1000 * child['round_trip']:.0f} ms" for child in children.values())
        counts = ", ".join(str(child["exchanges"]) for child in children.values())
        rows.append((f"seed {seed}", f"{result['mean']:.1f} +- {result['sd']:.1f}", counts, trips))
        numbers[str(seed)] = {"result": result, "children": children}
        print(*rows[-1], flush=True)
    return [Table("A slow network", ("", "mean return", "exchanges", "round trips"), rows)], numbers


def _hogwild(options: argparse.Namespace) -> Measured:
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


def _open(path: Path, options: argparse.Namespace) -> Measured:
    """What the published system left open, beside crowds, formats and slow networks."""
    rows, numbers = [], {}
    for name, (env, goal, words) in OPEN.items():
        means = []
        for seed in options.seeds:
            whole = (env, *words, "--seed", seed)
            means.append(ended(averaged(path / f"open {name} {seed}", whole, CHILDREN, 1, TIMEOUT))["mean"])
            print(f"{name}, seed {seed}: {means[-1]:.1f}", flush=True)
        middle = f"{statistics.median(means):.1f} ({min(means):.1f} to {max(means):.1f})"
        rows.append((name, " ".join(map(str, words)), middle, f"{goal:g}"))
        numbers[name] = means
    return [Table("Left open by its authors", ("", "settings", "mean return", "solved at"), rows)], numbers


def _memory_of_a_core(cores: int) -> float:
    """The largest of them after some seconds."""
    with tempfile.TemporaryDirectory(prefix="manyhands-hogwild-") as temporary:
        words = ("train", ENV, "--algo", "a3c", "--workers", cores, "--quiet")
        process = subprocess.Popen(manyhands(*words, "--dir", Path(temporary) / "run"))
        try:
            time.sleep(SETTLED)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            return max(resident_megabytes(int(child)) for child in children)
        finally:
            process.terminate()
            process.wait(30)


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _picture(results: Mapping[str, Any]) -> Figure:
    figure = new_figure(13, 4.5)
    curves, crowd = figure.subplots(1, 2)
    colours = (BLUE, ORANGE, GREEN, RED, VIOLET, GREY)
    drawn: list[str] = []
    for key, curve in results.get("grid", {}).items():
        at, mean, _ = zip(*curve, strict=True)
        algo, alpha, beta, _ = key.split()
        name = f"{algo}, alpha {alpha}, beta {beta}"
        label = None if name in drawn else name
        drawn += [name] if label else []
        number = drawn.index(name)
        style = "-" if number < len(colours) else "--"
        curves.plot(at, mean, style, color=colours[number % len(colours)], lw=1.2, label=label)
    for order, curve in enumerate(results.get("better", {}).values()):
        at, mean, _ = zip(*curve, strict=True)
        curves.plot(at, mean, color="#222222", lw=1.8, label="better" if order == 0 else None)
    curves.axhline(PUBLISHED_GRID[BEST_CELL][0], color=GREY, lw=0.7, ls=":")
    curves.set_title(f"{ENV}: mean of {EPISODES} episodes (dotted: best published)")
    curves.set_xlabel("exchanges")
    if results.get("grid") or results.get("better"):
        curves.legend(frameon=False, fontsize=7)
    for key, found in results.get("crowd", {}).items():
        crowd.scatter(int(key.split()[0]), found["mean"], color=BLUE, s=16)
    crowd.set_title("the same number of steps by more children: mean return")
    crowd.set_xlabel("children")
    for axes in (curves, crowd):
        tidy(axes)
    return figure
