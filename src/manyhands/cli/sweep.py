"""`manyhands sweep averaging`: alpha times beta, each cell a real parent with real children."""

import argparse
import json
import multiprocessing
import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib.figure import Figure

from manyhands.averaging.network import averaged
from manyhands.averaging.protocol import DEFAULT_ALGO, AveragingConfig
from manyhands.cli.options import Parser, add_settings
from manyhands.config.resolve import parse_override, resolve
from manyhands.core.errors import UsageError
from manyhands.runs.agent import judge
from manyhands.runs.plan import plan
from manyhands.runs.plots import BLUE, GREY, new_figure, tidy
from manyhands.runs.report import Report, Table, cores
from manyhands.runs.store import Run
from manyhands.system.processes import die_with_parent
from manyhands.system.temporary import temporary

T = TypeVar("T", int, float)
NAME, CALLED = "averaging-sweep", ("sweep", "averaging")
TIMEOUT = 7200.0
SAME = ("env", "algo", "exchanges", "children", "cores", "episodes", "set")
"""Options that all runs of a sweep have alike."""
Curve = list[tuple[int, list[float]]]
"""Exchanges, and the returns of the episodes that judged the parent then."""


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    alphas = numbers("--alpha", options.alpha, float, "0.1,0.5")
    betas = numbers("--beta", options.beta, float, "0,0.5")
    seeds = numbers("--seeds", options.seeds, int, "1,2,3")
    for alpha, beta in product(alphas, betas):
        AveragingConfig(alpha, beta, options.exchanges)  # refuses what no parent would take
    cells: dict[str, dict[str, Any]] = {f"{alpha:g} {beta:g}": {} for alpha, beta in product(alphas, betas)}
    cells.update(_begun(options))
    chosen = [word for text in options.set for word in ("--set", text)]
    overrides = tuple(map(parse_override, options.set))
    plan(resolve(options.env, options.algo, overrides=overrides))  # refuses, too
    options.out.mkdir(parents=True, exist_ok=True)
    todo = list(product(alphas, betas, seeds))
    for number, (alpha, beta, seed) in enumerate(todo, 1):
        name = f"{number} of {len(todo)}: alpha {alpha:g}, beta {beta:g}, seed {seed}"
        runs = cells[f"{alpha:g} {beta:g}"]
        if str(seed) in runs:
            continue
        print(f"{name} ...", flush=True)
        how = ("--alpha", alpha, "--beta", beta, "--seed", seed, "--exchanges", options.exchanges)
        words = (options.env, "--algo", options.algo, *how, *chosen)
        runs[str(seed)] = cell(words, options.children, options.cores, options.episodes)
        print(f"{name}: {spread(runs[str(seed)][-1][1])}", flush=True)
        report = Report(  # after every cell, so that an accident costs one
            NAME,
            f"Averaging on {options.env}: alpha (rows) and beta (columns)",
            [word for word in arguments if word != "--go-on"],
            sorted({int(seed) for runs in cells.values() for seed in runs}),
            [grid(cells)],
            [
                f"Mean and deviation of {options.episodes} episodes after {options.exchanges} exchanges of "
                f"{options.children} children of {options.cores} processes each."
            ],
            cells,
            called=CALLED,
        )
        report.save(options.out, picture(options.env, cells))
    print(f"All {len(todo)} runs are done; see {options.out / NAME}.md")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog=f"manyhands {' '.join(CALLED)}",
        description="Runs a parent with real children for every pair of alpha and beta, judges the parent at "
        "every hundredth exchange, and saves curves, boxes and a table after every run. Interrupted, the "
        "same command with --go-on does what is left.",
        epilog="example: manyhands sweep averaging --env CartPole-v1 --algo ppo --alpha 0.5,0.9 --beta 0,0.5 "
        "--exchanges 200 --cores 1 --episodes 100 --seeds 1,2,3",
    )
    parser.add_argument("--env", default="LunarLander-v3", help="(default: LunarLander-v3)")
    parser.add_argument("--algo", default=DEFAULT_ALGO, help="what the children learn with (default: a3c)")
    parser.add_argument(
        "--alpha", default="0.1,0.5,0.9", help="shares of a child in the parent (default: 0.1,0.5,0.9)"
    )
    parser.add_argument(
        "--beta", default="0,0.5,0.9", help="shares of the parent in a child (default: 0,0.5,0.9)"
    )
    parser.add_argument("--exchanges", type=int, default=2000, help="of every cell (default: 2000)")
    parser.add_argument("--children", type=int, default=2, help="(default: 2)")
    parser.add_argument("--cores", type=int, default=4, help="processes of each child (default: 4)")
    parser.add_argument(
        "--episodes", type=int, default=500, help="that judge every checkpoint (default: 500)"
    )
    parser.add_argument("--seeds", default="0", help="one run each for every cell (default: 0)")
    add_settings(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("sweep-averaging"), help="where to save (default: sweep-averaging)"
    )
    parser.add_argument("--go-on", action="store_true", help="with what lies there: more cells, more seeds")
    options = parser.parse_args(arguments)
    for name in ("children", "cores", "episodes"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} is {getattr(options, name)}; it must be 1 or more")
    return options


def _begun(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the cells of an earlier sweep with the same settings, to go on with."""
    path: Path = options.out / f"{NAME}.json"
    if not path.exists():
        return {}
    if not options.go_on:
        raise UsageError(f"{path} holds a sweep already; --go-on goes on with it, or choose another --out")
    try:
        found = json.loads(path.read_text())
        before = _parse(shlex.split(found["command"])[1 + len(CALLED) :])
        cells: dict[str, dict[str, Any]] = found["results"]
    except (ValueError, KeyError, TypeError, UsageError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    differ = [name for name in SAME if getattr(before, name) != getattr(options, name)]
    if differ:
        raise UsageError(f"{path} is of another sweep, with another --{differ[0]}; choose another --out")
    return cells


def numbers(name: str, text: str, kind: Callable[[str], T], such: str) -> tuple[T, ...]:
    try:
        return tuple(map(kind, text.split(",")))
    except ValueError as error:
        raise UsageError(f"{name} {text!r} is not a list of numbers such as {such}") from error


def cell(words: Sequence[object], children: int, cores: int, episodes: int) -> Curve:
    """Train one network of machines and judge every checkpoint that it kept."""
    with temporary("sweep") as place:
        allowed = ("--allow", words[0]) if ":" in str(words[0]) else ()
        run = averaged(place / "parent", words, children, cores, TIMEOUT, allowed)
        return judged(run, episodes)


def judged(run: Run, episodes: int) -> Curve:
    """Judge a run's checkpoints in as many processes as there are cores."""
    kept = sorted((run.path / "checkpoints").glob("exchange-*.safetensors"))
    names = [path.name.removesuffix(".safetensors") for path in kept]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores(), context, _begin, (os.getpid(),)) as pool:
        try:
            results = list(pool.map(_returns, [(run, name, episodes) for name in names]))
        except BaseException:  # such as Ctrl-C: what is being judged is no longer of interest
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return [(int(name.rpartition("-")[2]), found) for name, found in zip(names, results, strict=True)]


def _begin(parent: int) -> None:
    """Set up a process that judges: it ends with the sweep, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)


def _returns(job: tuple[Run, str, int]) -> list[float]:
    run, name, episodes = job
    return list(judge(run, episodes, which=name).returns)


def spread(returns: Sequence[float]) -> str:
    return f"{np.mean(returns):.1f} +- {np.std(returns):.1f}"


def _sides(cells: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return all alphas and betas, in order."""
    pairs = [tuple(map(float, key.split())) for key in cells]
    return sorted({alpha for alpha, _ in pairs}), sorted({beta for _, beta in pairs})


def grid(cells: Mapping[str, Any]) -> Table:
    alphas, betas = _sides(cells)
    rows = []
    for alpha in alphas:
        found = [
            "; ".join(spread(curve[-1][1]) for curve in cells.get(f"{alpha:g} {beta:g}", {}).values()) or "-"
            for beta in betas
        ]
        rows.append((f"{alpha:g}", *found))
    columns = ("alpha \\ beta", *(f"{beta:g}" for beta in betas))
    return Table("After the last exchange, every seed", columns, rows)


def picture(env: str, cells: Mapping[str, Any]) -> Figure:
    """Draw a learning curve for every cell, and on its right a box for the episodes at the end."""
    alphas, betas = _sides(cells)
    figure = new_figure(4 * len(betas), 2.6 * len(alphas) + 0.4)
    figure.suptitle(env)
    panels = figure.subplots(len(alphas), len(betas), squeeze=False, sharex=True, sharey=True)
    for row, alpha in enumerate(alphas):
        for column, beta in enumerate(betas):
            axes = panels[row][column]
            axes.set_title(f"alpha {alpha:g}, beta {beta:g}", fontsize=9)
            for curve in cells.get(f"{alpha:g} {beta:g}", {}).values():
                at = np.array([exchanges for exchanges, _ in curve])
                mean = np.array([np.mean(returns) for _, returns in curve])
                deviation = np.array([np.std(returns) for _, returns in curve])
                axes.plot(at, mean, color=BLUE, lw=1.2)
                axes.fill_between(at, mean - deviation, mean + deviation, color=BLUE, alpha=0.12, lw=0)
                axes.boxplot(
                    curve[-1][1],
                    positions=[at[-1] * 1.08],
                    widths=at[-1] * 0.08,
                    showfliers=False,
                    manage_ticks=False,
                    medianprops={"color": GREY},
                )
            tidy(axes)
    figure.supxlabel("exchanges")
    figure.supylabel("return")
    return figure
