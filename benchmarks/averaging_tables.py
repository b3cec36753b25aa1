"""The published tables of A3C and of averaging, run by run, beside ours; and what beats them."""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parts import Measured
from manyhands.averaging.network import averaged
from manyhands.cli.sweep import Curve, judged
from manyhands.core.errors import RunError
from manyhands.runs.report import Table, manyhands, run_json, settings, trained
from manyhands.runs.store import LAST, Run

ENV = "LunarLander-v3"
EPISODES = 500
ROUNDS, EXCHANGES = 2000, 2000
TIMEOUT = 7200.0
UNTESTED = {"run.test_every": 10**12}
PUBLISHED_A3C = {
    (8, 0.999, 120): (255.9, 36.9),
    (8, 0.99, 120): (254.0, 59.7),
    (8, 0.99, 60): (243.7, 58.0),
    (4, 0.999, 120): (230.0, 87.1),
    (8, 0.99, 30): (149.1, 45.0),
    (8, 0.95, 120): (-51.3, 21.3),
}
"""Published results by cores, gamma and batch: mean and deviation of 500 episodes."""
PUBLISHED_GRID = {
    (0.1, 0.0): (248.6, 59.1),
    (0.1, 0.5): (-18.4, 59.5),
    (0.1, 0.9): (-70.5, 56.7),
    (0.5, 0.0): (102.4, 124.1),
    (0.5, 0.5): (120.5, 41.3),
    (0.5, 0.9): (209.8, 94.7),
    (0.9, 0.0): (257.2, 39.9),
    (0.9, 0.5): (237.2, 71.7),
    (0.9, 0.9): (231.8, 78.9),
}
"""Published results by alpha and beta: mean and deviation."""
BEST_CELL = (0.9, 0.0)
CHILDREN, CORES = 2, 4
SLOWING = ("--set", "algo.anneal=true")
"""Options with which learning slows down towards the parent's last exchange, as the recipe of a3c has it."""
RARELY = ("--every", 8192)
"""Options for so many steps of a child between two exchanges that few of them are enough."""
CHILD: dict[str, tuple[object, ...]] = {
    "ppo": (
        *("--algo", "ppo", *SLOWING, "--every", 4096),
        *("--set", f"collect.shards={CORES}", "--set", "collect.lanes=4"),
    ),
    "a3c": ("--algo", "a3c"),
    "a3c-twice": ("--algo", "a3c", "--exchanges", 2 * EXCHANGES),
    "a3c-rarely": ("--algo", "a3c", *RARELY),
}
"""Options of the children in the grid: as published, and in the best cell also by ppo, whose lanes are spread
over as many processes, with as many episodes as eight cores of one machine play, and with some eight
episodes of every core between two exchanges."""
GRID = (*((how, *BEST_CELL) for how in CHILD), *(("a3c", *c) for c in PUBLISHED_GRID if c != BEST_CELL))
BETTER = ("--algo", "ppo", "--alpha", 0.5, "--beta", 0.5)
BETTER_EXCHANGES = EXCHANGES // 4
GOAL = 250.0
"""The return that `better` is to reach."""
ALIKE = 25.0
"""The difference up to which returns are alike, however small their published deviation."""

Point = tuple[int, float, float]
"""A number of exchanges, and the mean and deviation of returns after them."""


def a3c(path: Path, options: argparse.Namespace) -> Iterator[Measured]:
    found: dict[str, Any] = options.begun.get("a3c", {})
    for (cores, gamma, batch), _ in PUBLISHED_A3C.items():
        for seed in options.seeds[:2]:
            key = f"{cores} {gamma:g} {batch} {seed}"
            chosen = {"algo.gamma": gamma, "algo.batch": batch, "run.updates": ROUNDS, **UNTESTED}
            words = ("train", ENV, "--algo", "a3c", "--workers", cores, "--seed", seed, "--until", "steps")
            whole = (*words, "--steps", 10**9, *settings(chosen))
            if key not in found:
                found[key] = _attempt(whole, path / f"a3c {key}")
                print("a3c", key, said(found[key]), flush=True)
                yield _a3c_tables(found, options.seeds[:2]), found


def _a3c_tables(found: Mapping[str, Any], seeds: Sequence[int]) -> list[Table]:
    rows = []
    for row, published in PUBLISHED_A3C.items():
        cells = [found.get(" ".join(f"{value:g}" for value in (*row, seed))) for seed in seeds]
        name = f"{row[0]} cores, gamma {row[1]:g}, batch {row[2]}"
        both = (f"{said(cell)} ({said(cell and cell.get('as learned'))})" for cell in cells)
        rows.append((name, _pair(published), *both, verdict(cells, published)))
    columns = ("", "published", *(f"seed {seed}" for seed in seeds), "so")
    return [Table("A3C on one machine", columns, rows)]


def grid(path: Path, options: argparse.Namespace) -> Iterator[Measured]:
    """Measure the grid seed by seed, so that an interrupted measurement has whole grids."""
    found: dict[str, list[Point]] = options.begun.get("grid", {})
    for seed, (algo, alpha, beta) in product(options.seeds, GRID):
        key = f"{algo} {alpha:g} {beta:g} {seed}"
        if key in found:
            continue
        words = (ENV, "--alpha", alpha, "--beta", beta, "--exchanges", EXCHANGES, *CHILD[algo])
        run = averaged(path / f"grid {key}", (*words, "--seed", seed), CHILDREN, CORES, TIMEOUT)
        found[key] = slim(judged(run, EPISODES))
        print("grid", key, said(last(found[key])), flush=True)
        yield _grid_tables(found, options.seeds), found


def _grid_tables(found: Mapping[str, list[Point]], seeds: Sequence[int]) -> list[Table]:
    rows, curves = [], []
    for algo, alpha, beta in GRID:
        name = f"{algo}, alpha {alpha:g}, beta {beta:g}"
        ran = {seed: found[key] for seed in seeds if (key := f"{algo} {alpha:g} {beta:g} {seed}") in found}
        ends = [last(curve) for curve in ran.values()]
        middle = "-"
        if ends:
            middle = _pair(tuple(statistics.median(end[of] for end in ends) for of in ("mean", "sd")))
        published = PUBLISHED_GRID[alpha, beta]
        every = "; ".join(map(said, ends)) or "-"
        reached = ", ".join(str(_reached(curve, published) or "-") for curve in ran.values()) or "-"
        rows.append((name, _pair(published), every, middle, verdict(ends, published), reached))
        for seed, curve in ran.items():
            curves.append((f"{name}, seed {seed}", " ".join(f"{mean:.0f}" for _, mean, _ in curve)))
    columns = ("", "published", "every seed", "medians", "so", "reached after")
    tables = [Table("Two children of four processes, after the last exchange", columns, rows)]
    tables.append(Table("Their means at the start and after every 100 exchanges", ("", ""), curves))
    return tables


def _reached(curve: Sequence[Point], published: tuple[float, float]) -> int | None:
    """Return the exchanges after which it was first as good as published, with no larger deviation."""
    return next((at for at, mean, sd in curve if mean >= published[0] and sd <= published[1]), None)


def better(path: Path, options: argparse.Namespace) -> Measured:
    rows, numbers = [], {}
    for seed in options.seeds:
        words = (ENV, *BETTER, *SLOWING, *RARELY, "--exchanges", BETTER_EXCHANGES, "--seed", seed)
        curve = slim(judged(averaged(path / f"better {seed}", words, CHILDREN, 1, TIMEOUT), EPISODES))
        first = next((at for at, mean, _ in curve if mean >= GOAL), None)
        rows.append((f"seed {seed}", said(last(curve)), "-" if first is None else str(first)))
        numbers[str(seed)] = curve
        print("better", *rows[-1], flush=True)
    columns = ("", f"after {BETTER_EXCHANGES} exchanges", f"{GOAL:g} reached after")
    return [Table("Better than published", columns, rows)], numbers


def ended(run: Run, *how: object) -> dict[str, Any]:
    """Evaluate the last agent."""
    words = ("eval", run.path, "--episodes", EPISODES, "--which", LAST, "--json", *how)
    return run_json(manyhands(*words), TIMEOUT)


def _attempt(words: Sequence[object], path: Path) -> dict[str, Any]:
    """Train and evaluate; a run whose weights grow past all bounds is a result too."""
    try:
        run = trained(words, path, TIMEOUT)
        return {**ended(run), "as learned": ended(run, "--sample")}
    except RunError as error:
        if "no longer finite" not in str(error):
            raise
        return {"failed": str(error)}


def slim(curve: Curve) -> list[Point]:
    return [(at, float(np.mean(returns)), float(np.std(returns))) for at, returns in curve]


def last(curve: Sequence[Point]) -> dict[str, float]:
    return {"mean": curve[-1][1], "sd": curve[-1][2]}


def said(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "-"
    return "failed" if "failed" in result else _pair((result["mean"], result["sd"]))


def verdict(results: Sequence[Mapping[str, Any] | None], published: tuple[float, float]) -> str:
    """Say whether the median lies within the published deviation. What failed is worse than any."""
    means = [result.get("mean", -np.inf) for result in results if result is not None]
    if not means:
        return "-"
    away, near = statistics.median(means) - published[0], max(published[1], ALIKE)
    return "as published" if abs(away) <= near else "better" if away > 0 else "worse"


def _pair(pair: Sequence[float]) -> str:
    mean, deviation = pair
    return f"{mean:.1f} +- {deviation:.1f}"
