"""Averaging over WebSockets and A3C by Hogwild!: the published tables, and what their author left open."""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from manyhands.bench import parts
from manyhands.bench.averaging_more import (
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
    RARELY,
    ROUNDS,
    SLOWING,
    a3c,
    better,
    grid,
)
from manyhands.runs.plots import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, new_figure, tidy

SEEDS = (631, 632, 633)
"""Reserved for this benchmark."""
PARTS = ("a3c", "grid", "better", "crowd", "swarm", "formats", "slow", "hogwild", "open")
NOTES = (
    f"Every mean and deviation is of {EPISODES} episodes of {ENV}. Agents of a3c sample from their policy, "
    "sharpened by the recipe's temperature; the others take the likeliest actions.",
    f"a3c: after {ROUNDS} rounds of one episode on every core, as published. Network, gamma, batch and share "
    "of random actions are the published ones; the optimizer is the recipe's, a shared RMSprop with bounded "
    "steps that slows down. In brackets: the same agents, sampling as they learned (temperature 1).",
    f"grid: {CHILDREN} children of {CORES} processes each, {EXCHANGES} exchanges of both together, half the "
    "episodes of eight cores in the table above; a3c, and for the best cell ppo as well, which exchanges "
    "every 4096 steps, and a3c-twice: with as many exchanges of each child. Reached: when its mean was first "
    "as high and its deviation as small as published.",
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
    figure = new_figure(13, 4.5)
    curves, crowds = figure.subplots(1, 2)
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
    curves.set_ylim(-250, 300)  # first weights may be far below
    if results.get("grid") or results.get("better"):
        curves.legend(frameon=False, fontsize=7)
    for key, found in results.get("crowd", {}).items():
        crowds.scatter(int(key.split()[0]), found["mean"], color=BLUE, s=16)
    crowds.set_title("the same number of steps by more children: mean return")
    crowds.set_xlabel("children")
    crowds.set_xscale("log", base=2)
    crowds.set_xticks(CROWDS, map(str, CROWDS))
    crowds.set_ylim(0, 300)
    for axes in (curves, crowds):
        tidy(axes)
    return figure
