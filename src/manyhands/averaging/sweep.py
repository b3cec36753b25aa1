"""`manyhands sweep averaging`: alpha times beta, each cell a real parent with real children."""

import multiprocessing
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from manyhands.agent import judge
from manyhands.averaging.network import averaged
from manyhands.averaging.protocol import AveragingConfig
from manyhands.bench.report import Report, Table, cores
from manyhands.cli import Parser
from manyhands.errors import UsageError
from manyhands.runs.plots import BLUE, GREY, new_figure, tidy
from manyhands.runs.store import Run

TIMEOUT = 7200.0
EVALUATION_SEED = 1_000_000
Curve = list[tuple[int, list[float]]]
"""Exchanges, and the returns of the episodes that judged the parent then."""


def main(arguments: list[str]) -> None:
    parser = Parser(prog="manyhands sweep averaging", description=__doc__)
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--alpha", default="0.1,0.5,0.9", help="shares of a child in the parent")
    parser.add_argument("--beta", default="0,0.5,0.9", help="shares of the parent in a child")
    parser.add_argument("--exchanges", type=int, default=2000)
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--cores", type=int, default=4, help="processes of each child")
    parser.add_argument("--episodes", type=int, default=500, help="that judge every checkpoint")
    parser.add_argument("--seeds", default="0", help="one run each for every cell")
    parser.add_argument("--out", type=Path, default=Path("sweep-averaging"))
    options = parser.parse_args(arguments)
    for name in ("children", "cores", "episodes"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} is {getattr(options, name)}; it must be 1 or more")
    alphas, betas = numbers("--alpha", options.alpha), numbers("--beta", options.beta)
    seeds = tuple(map(int, numbers("--seeds", options.seeds)))
    for alpha in alphas:
        for beta in betas:
            AveragingConfig(alpha, beta, options.exchanges)  # refuses what no parent would take
    cells: dict[str, dict[str, Any]] = {f"{alpha:g} {beta:g}": {} for alpha in alphas for beta in betas}
    for alpha, beta, seed in product(alphas, betas, seeds):
        how = ("--alpha", alpha, "--beta", beta, "--seed", seed, "--exchanges", options.exchanges)
        curve = cell((options.env, *how), options.children, options.cores, options.episodes)
        cells[f"{alpha:g} {beta:g}"][str(seed)] = curve
        print(f"alpha {alpha:g}, beta {beta:g}, seed {seed}: {spread(curve[-1][1])}", flush=True)
        report = Report(  # after every cell, so that an accident costs one
            "averaging-sweep",
            f"Averaging on {options.env}: alpha (rows) and beta (columns)",
            arguments,
            seeds,
            [grid(cells, alphas, betas)],
            [
                f"Mean and deviation of {options.episodes} episodes after {options.exchanges} exchanges of "
                f"{options.children} children of {options.cores} processes each."
            ],
            cells,
            called=("sweep", "averaging"),
        )
        report.save(options.out, picture(cells, alphas, betas))


def numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError as error:
        raise UsageError(f"{name} {text!r} is not a list of numbers such as 0.1,0.5") from error


def cell(words: Sequence[object], children: int, cores: int, episodes: int) -> Curve:
    """Trains one network of machines and judges every checkpoint that it kept."""
    with tempfile.TemporaryDirectory(prefix="manyhands-averaging-") as temporary:
        run = averaged(Path(temporary) / "parent", words, children, cores, TIMEOUT)
        return judged(run, episodes)


def judged(run: Run, episodes: int) -> Curve:
    """By as many processes as there are cores."""
    kept = sorted((run.path / "checkpoints").glob("exchange-*.safetensors"))
    names = [path.name.removesuffix(".safetensors") for path in kept]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores(), context) as pool:
        results = list(pool.map(_returns, [(run, name, episodes) for name in names]))
    return [(int(name.rpartition("-")[2]), found) for name, found in zip(names, results, strict=True)]


def _returns(job: tuple[Run, str, int]) -> list[float]:
    run, name, episodes = job
    return list(judge(run, episodes, EVALUATION_SEED, False, name)[0].returns)


def spread(returns: Sequence[float]) -> str:
    return f"{np.mean(returns):.1f} +- {np.std(returns):.1f}"


def grid(cells: Mapping[str, Any], alphas: Sequence[float], betas: Sequence[float]) -> Table:
    rows = []
    for alpha in alphas:
        found = [
            "; ".join(spread(curve[-1][1]) for curve in cells[f"{alpha:g} {beta:g}"].values()) or "-"
            for beta in betas
        ]
        rows.append((f"{alpha:g}", *found))
    columns = ("alpha \\ beta", *(f"{beta:g}" for beta in betas))
    return Table("After the last exchange, every seed", columns, rows)


def picture(cells: Mapping[str, Any], alphas: Sequence[float], betas: Sequence[float]) -> Figure:
    """A learning curve for every cell, and on its right a box for the episodes at the end."""
    figure = new_figure(4 * len(betas), 2.6 * len(alphas))
    panels = figure.subplots(len(alphas), len(betas), squeeze=False, sharex=True, sharey=True)
    for row, alpha in enumerate(alphas):
        for column, beta in enumerate(betas):
            axes = panels[row][column]
            axes.set_title(f"alpha {alpha:g}, beta {beta:g}", fontsize=9)
            for curve in cells[f"{alpha:g} {beta:g}"].values():
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
