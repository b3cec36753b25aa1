"""Averaging over WebSockets and A3C by Hogwild!: the published tables, and what their author left open."""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import parts
from benchmarks.averaging_more import (
    CROWD_EVERY,
    CROWD_EXCHANGES,
    CROWDS,
    SLOWLY,
    crowd,
    formats,
    hogwild,
    left_open,
    slow,
    swarm,
)
from benchmarks.averaging_tables import (
    BETTER,
    BETTER_EXCHANGES,
    CHILDREN,
    CORES,
    ENV,
    EPISODES,
    EXCHANGES,
    PUBLISHED_GRID,
    RARELY,
    ROUNDS,
    SLOWING,
    a3c,
    better,
    grid,
)
from manyhands.runs.plots import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, new_figure, tidy

SEEDS = (631, 632, 633)
"""Seeds reserved for this benchmark."""
COLOURS = {"a3c": BLUE, "a3c-twice": RED, "a3c-rarely": VIOLET, "ppo": ORANGE}
PARTS = ("a3c", "grid", "better", "crowd", "swarm", "formats", "slow", "hogwild", "open")
NOTES = (
    f"Every mean and deviation is of {EPISODES} episodes of {ENV}. Agents of a3c sample from their policy, "
    "sharpened by the recipe's temperature; the others take the likeliest actions.",
    f"a3c: after {ROUNDS} rounds of one episode on every core, as published. Network, gamma, batch and share "
    "of random actions are the published ones; the optimizer is the recipe's, a shared RMSprop with bounded "
    "steps that slows down. In brackets: the same agents, sampling as they learned (temperature 1).",
    f"grid: {CHILDREN} children of {CORES} processes each, {EXCHANGES} exchanges of both together, half the "
    "episodes of eight cores in the table above; a3c with an exchange after every episode. For the best cell "
    "also ppo, which exchanges every 4096 steps; a3c-twice, with as many exchanges of each child; and "
    "a3c-rarely, which exchanges every 8192 steps (every 4096 was tried, on one seed that is not among "
    "these). Reached: when its mean was first as high and its deviation as small as published.",
    f"better: {' '.join(map(str, (*BETTER, *SLOWING, *RARELY)))}, after {BETTER_EXCHANGES} exchanges.",
    f"crowd: {' '.join(map(str, (*BETTER, *SLOWING)))} with children of one core that exchange every "
    f"{CROWD_EVERY} steps, {CROWD_EXCHANGES} exchanges in all, so the same number of steps for any number of "
    "children. Rates of learning grow with their number to the power of two thirds. A child plays and learns "
    "in turns (run.mode=sync), so it keeps one core busy.",
    "swarm: children in one process, each with a CartPole-v1 of its own that it plays at random, and an "
    "exchange after every episode; round trips as they see them.",
    f"formats: {' '.join(map(str, SLOWLY))}.",
    "slow: as formats, with every byte of every child 200 ms late each way and one packet in a hundred lost, "
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
            "crowd": partial(crowd, path, options),
            "swarm": partial(swarm, path),
            "formats": partial(formats, path, options),
            "slow": partial(slow, path, options),
            "hogwild": partial(hogwild, options),
            "open": partial(left_open, path, options),
        }
        parts.measure("averaging", "Averaging weights", made, options, NOTES, _picture)


def _picture(results: Mapping[str, Any]) -> Figure:
    """Draw the grid as it was published, cell by cell, and beside it what goes further."""
    figure = new_figure(14, 8.5)
    panels = figure.subplots(3, 4)
    for axes, (cell, (published, _)) in zip(panels[:, :3].flat, PUBLISHED_GRID.items(), strict=True):
        _draw_cell(axes, f"{cell[0]:g} {cell[1]:g}", results.get("grid", {}))
        axes.axhline(published, color=GREY, lw=0.8, ls=":")
        axes.set_title(f"alpha {cell[0]:g}, beta {cell[1]:g} (dotted: published)", fontsize=9)
    _draw_further(panels[:, 3], results)
    for axes in panels.flat:
        tidy(axes)
    return figure


def _draw_cell(axes: Any, cell: str, grid: Mapping[str, Any]) -> None:
    """Draw a curve for every seed, with a colour for every way to learn."""
    drawn: set[str] = set()
    for key, curve in grid.items():
        algo, alpha, beta, _ = key.split()
        if f"{alpha} {beta}" == cell:
            at, mean, _ = zip(*curve, strict=True)
            axes.plot(at, mean, color=COLOURS[algo], lw=1.2, label=None if algo in drawn else algo)
            drawn.add(algo)
    axes.set_ylim(-250, 300)  # first weights may be far below
    axes.set_xlabel("exchanges")
    if drawn - {"a3c"}:
        axes.legend(frameon=False, fontsize=7, loc="lower right")


def _draw_further(column: Any, results: Mapping[str, Any]) -> None:
    curves, crowds, travelling = column
    for curve in results.get("better", {}).values():
        at, mean, _ = zip(*curve, strict=True)
        curves.plot(at, mean, color=ORANGE, lw=1.2)
    curves.set_title("better: ppo, alpha and beta 0.5", fontsize=9)
    curves.set_xlabel("exchanges")
    curves.set_ylim(-250, 300)
    for key, found in results.get("crowd", {}).items():
        crowds.scatter(int(key.split()[0]), found["mean"], color=BLUE, s=16)
    crowds.set_title("children, the same number of steps", fontsize=9)
    crowds.set_xscale("log", base=2)
    crowds.set_xticks(CROWDS, map(str, CROWDS))
    ends = {**results.get("formats", {}), **{f"slow {s}": run for s, run in results.get("slow", {}).items()}}
    for key, found in ends.items():
        travelling.scatter(key.split()[0], found["mean"], color=GREEN, s=16)
    travelling.set_title("ways to travel", fontsize=9)
    for axes in (crowds, travelling):
        axes.set_ylim(0, 300)
