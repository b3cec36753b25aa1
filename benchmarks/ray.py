"""Ray beside worker processes: speed with the same workers, and how far a slow environment scales."""

import argparse
import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from benchmarks import parts
from benchmarks.parts import Measured
from benchmarks.timed import training_speed
from manyhands.runs.plots import BLUE, GREY, ORANGE, new_figure, tidy
from manyhands.runs.report import Table, settings

SEEDS = (611, 612, 613)
CHANNELS: dict[str, tuple[str, ...]] = {"processes": (), "ray": ("--channel", "ray")}
SECONDS = 15.0
WARM = 6
"""Updates that count as start-up."""
ENV = "LunarLander-v3"
ACTORS = (1, 2, 4, 8, 16, 32)
SLOW = "benchmarks.slow_env:Slow"
SLOW_STEP = 0.01
NOTES = (
    f"rate: PPO on {ENV} with its recipe and two workers, in turns; steps/s once it is under way.",
    f"scale: an environment of {1000 * SLOW_STEP:.0f} ms a step, one lane for each actor, PPO in pipelined "
    "mode with the default rollouts of 128 steps; the share is steps/s over actors times what one actor "
    "makes on the same channel.",
)


def main(arguments: list[str]) -> None:
    options = parts.parse("ray", __doc__, PARTS, SEEDS, arguments)
    made = {"rate": partial(_rate, options), "scale": partial(_scale, options)}
    parts.measure("ray", "On Ray", made, options, NOTES, _picture)


PARTS = ("rate", "scale")


def _steady(row: Mapping[str, Any]) -> bool:
    return bool(row.get("version", 0) >= WARM)


def _rate(options: argparse.Namespace) -> Measured:
    speeds: dict[str, list[float]] = {name: [] for name in CHANNELS}
    for seed in options.seeds:
        for name, channel in CHANNELS.items():
            words = (
                "train",
                ENV,
                "--workers",
                2,
                "--seed",
                seed,
                *channel,
                "--set",
                "run.test_every=1000000000",
            )
            speeds[name].append(training_speed(words, SECONDS, _steady))
            print(f"{name} seed {seed}: {speeds[name][-1]:,.0f} steps/s", flush=True)
    ratios = [a / b for a, b in zip(speeds["ray"], speeds["processes"], strict=True)]
    rows = [
        (name, f"{statistics.median(found):,.0f}", *(f"{value:,.0f}" for value in found))
        for name, found in speeds.items()
    ]
    rows.append(
        ("ray over processes", f"{statistics.median(ratios):.2f}", *(f"{value:.2f}" for value in ratios))
    )
    columns = ("", "median", *(f"seed {seed}" for seed in options.seeds))
    return [Table(f"PPO on {ENV}, two workers: steps/s", columns, rows)], {"speeds": speeds, "ratios": ratios}


def _scale(options: argparse.Namespace) -> Measured:
    speeds: dict[str, dict[int, float]] = {name: {} for name in CHANNELS}
    for actors in ACTORS:
        for name, channel in CHANNELS.items():
            chosen = {
                "collect.shards": actors,
                "collect.lanes": 1,
                "env.kwargs": {"seconds": SLOW_STEP},
                "algo.minibatch": 256,
                "algo.epochs": 2,
                "run.test_every": 10**12,
                "run.cpus_per_worker": 0.05,
            }
            words = ("train", SLOW, "--workers", actors, "--seed", options.seeds[0], *channel)
            speeds[name][actors] = training_speed((*words, *settings(chosen)), SECONDS, _steady)
            print(f"{name}, {actors} actors: {speeds[name][actors]:,.0f} steps/s", flush=True)
    rows = []
    for actors in ACTORS:
        row = [str(actors)]
        for found in speeds.values():
            row += [f"{found[actors]:,.0f}", f"{found[actors] / actors / found[1]:.2f}"]
        rows.append(tuple(row))
    columns = ["actors"]
    for name in CHANNELS:
        columns += [f"{name}: steps/s", "share of linear"]
    return [Table("An environment of 10 ms a step", columns, rows)], {
        name: {str(actors): value for actors, value in found.items()} for name, found in speeds.items()
    }


def _picture(results: Mapping[str, Any]) -> Figure:
    figure = new_figure(11, 4.5)
    rate, scale = figure.subplots(1, 2)
    for x, (name, found) in enumerate(results.get("rate", {}).get("speeds", {}).items()):
        rate.bar(name, statistics.median(found), color=BLUE if name == "ray" else GREY, alpha=0.8, width=0.6)
        rate.scatter([x] * len(found), found, color="#222222", s=12, zorder=3)
    rate.set_title(f"PPO on {ENV}, two workers: steps/s")
    for name, colour in (("processes", ORANGE), ("ray", BLUE)):
        pairs = sorted(
            (int(actors), speed) for actors, speed in results.get("scale", {}).get(name, {}).items()
        )
        if pairs:
            scale.loglog(*zip(*pairs, strict=True), "o-", base=2, color=colour, label=name)
            scale.legend(frameon=False)
    scale.loglog([1, 32], [100, 3200], base=2, color=GREY, lw=0.7, ls=":")
    scale.set_title("10 ms a step on two cores: steps/s (dotted: linear)")
    scale.set_xlabel("actors")
    for axes in (rate, scale):
        tidy(axes)
    return figure
