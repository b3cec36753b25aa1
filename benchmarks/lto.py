"""Learn-to-optimise: exactness, quality by sampler, speed-up, one shot against optimisers, dimensions."""

import argparse
import hashlib
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks import parts
from benchmarks.broker import _workers
from benchmarks.lto_speed import speed_up, steps_per_second, uneven
from benchmarks.one_shot import one_shot
from benchmarks.parts import Measured, side_by_side
from manyhands.lto.judge import read
from manyhands.roles.broker import Broker
from manyhands.runs.plots import BLUE, GREEN, GREY, ORANGE, VIOLET, new_figure, tidy
from manyhands.runs.report import Table, trained
from manyhands.runs.store import LAST, Run

SEEDS = (501, 502, 503, 504, 505)
"""Seeds reserved for this benchmark."""
SAMPLERS = ("random", "latin", "uncertainty", "heterogeneous")
DRIVERS = (1, 2, 3, 5, 6)
PUBLISHED = {
    "ackley": {
        "random": (1.6, 0.6, 0.018),
        "latin": (1.9, 0.4, 0.00081),
        "uncertainty": (2.3, 0.4, 0.04),
        "heterogeneous": (1.3, 0.6, 0.15),
    },
    "rosenbrock": {
        "random": (17.1, 15.3, 3.0),
        "latin": (19.4, 16.1, 2.8),
        "uncertainty": (16.0, 14.5, 1.1),
        "heterogeneous": (15.1, 9.7, 1.4),
    },
}
QUALITY = {"ackley": (5000, "mse"), "rosenbrock": (10_000, "msle")}
"""Training steps, and the measure of the published table."""
STRETCH = 1000
"""Training steps in the first and the last mean."""
DIMENSIONS = ((2, 1), (2, 2), (2, 5), (5, 1), (5, 2), (5, 5), (10, 1), (10, 2), (10, 5))
DIMENSION_STEPS = 3000
TIMEOUT = 3600.0
NOTES = (
    "bits: 200 training steps of 30 episodes; the first 12 digits of the weights' hash, the same for every "
    "number of drivers on processes, for two workers behind a broker, and for three actors on Ray.",
    "quality: 30 episodes a training step, measured every 10 training steps at c = -1, -0.9 .. 1. Ackley's "
    "error is the mean squared difference of f and the true minimum, Rosenbrock's that of log(1 + f). "
    "The best is that of the second half: Ackley's minimum lies at the centre, where a new law begins.",
    "speed-up: rho* = (collecting with one driver) / (collecting + broadcasting); 64 episodes a step.",
    "one shot: a law trained once (its time is given) against optimisers that begin anew for each condition.",
)


def main(arguments: list[str]) -> None:
    options = parts.parse("lto", __doc__, PARTS, SEEDS, arguments)
    with tempfile.TemporaryDirectory(prefix="manyhands-lto-") as temporary:
        path = Path(temporary)
        made = {
            "bits": partial(_bits, path, options),
            "quality": partial(_quality, path, options),
            "rate": partial(steps_per_second, path),
            "speed-up": partial(speed_up, path),
            "one-shot": partial(one_shot, path, options.seeds[0]),
            "dimensions": partial(_dimensions, path, options),
            "uneven": partial(uneven, path, options.seeds[:3]),
        }
        parts.measure("lto", "Learn to optimise", made, options, NOTES, _picture)


PARTS = ("bits", "quality", "rate", "speed-up", "one-shot", "dimensions", "uneven")


def train(path: Path, *words: object) -> Run:
    """Train once by command line, and return the run."""
    return trained(("lto", *words), path, TIMEOUT)


def _runs(jobs: Mapping[tuple[Any, ...], Sequence[object]], path: Path) -> dict[tuple[Any, ...], Run]:
    """Train all jobs, each of which plays in its own process."""
    return side_by_side(
        {
            key: partial(train, path / "-".join(map(str, key)), *words, "--drivers", 0)
            for key, words in jobs.items()
        }
    )


def _digest(run: Run) -> str:
    return hashlib.sha256(run.checkpoint(LAST).weights.vector.tobytes()).hexdigest()[:12]


def _bits(path: Path, options: argparse.Namespace) -> Measured:
    rows, found = [], {}
    with Broker() as broker:
        for algo in ("ppo", "reinforce"):
            for starts in SAMPLERS:
                words = ("ackley", "--starts", starts, "--algo", algo, "--steps", 200)
                name = f"bits-{algo}-{starts}"
                digests = {"in one process": _digest(train(path / name, *words, "--drivers", 0))}
                for drivers in DRIVERS:
                    run = train(path / f"{name}-{drivers}", *words, "--drivers", drivers)
                    digests[f"{drivers} drivers"] = _digest(run)
                with ExitStack() as held:
                    held.enter_context(_workers(broker, 2))
                    there = train(path / f"{name}-amqp", *words, "--channel", broker.url)
                    digests["2 workers, amqp"] = _digest(there)
                there = train(path / f"{name}-ray", *words, "--drivers", 3, "--channel", "ray")
                digests["3 actors, ray"] = _digest(there)
                same = len(set(digests.values())) == 1
                rows.append(
                    (algo, starts, digests["in one process"], str(len(digests)), "yes" if same else "NO")
                )
                found[f"{algo} {starts}"] = digests
                print(*rows[-1], flush=True)
    columns = ("algorithm", "starts", "weights after 200 steps", "ways to collect", "same bits")
    return [Table("Sequential = distributed, bit for bit", columns, rows)], found


def _quality(path: Path, options: argparse.Namespace) -> Measured:
    from scipy.stats import mannwhitneyu

    jobs = {
        (function, starts, seed): (function, "--starts", starts, "--steps", steps, "--seed", seed)
        for function, (steps, _) in QUALITY.items()
        for starts in SAMPLERS
        for seed in options.seeds
    }
    runs = _runs(jobs, path)
    tables, numbers = [], {}
    for function, (steps, measure) in QUALITY.items():
        rows, scores = [], {}
        for starts in SAMPLERS:
            curves = np.array([_curve(runs[function, starts, seed], measure) for seed in options.seeds])
            stretch = STRETCH // 10
            first, last, best = (
                curves[:, :stretch].mean(1),
                curves[:, -stretch:].mean(1),
                curves[:, curves.shape[1] // 2 :].min(1),
            )
            scores[starts] = {"first": first.tolist(), "last": last.tolist(), "best": best.tolist()}
            cells = [f"{_spread(values)}" for values in (first, last, best)]
            theirs = PUBLISHED[function][starts]
            rows.append((starts, *(f"{a} ({b:g})" for a, b in zip(cells, theirs, strict=True))))
            numbers[f"{function} {starts}"] = {**scores[starts], "curve": np.median(curves, 0).tolist()}
        columns = ("starts", "first 1000 mean", "last 1000 mean", "best")
        title = f"{function}, {steps:,} training steps: {measure}, median and range over seeds (published)"
        tables.append(Table(title, columns, rows))
        lines = []
        for other in SAMPLERS[:3]:
            cells = []
            for stretch_name in ("first", "last"):
                ours, theirs_ = scores["heterogeneous"][stretch_name], scores[other][stretch_name]
                p = float(mannwhitneyu(ours, theirs_).pvalue)
                ratio = statistics.median(ours) / statistics.median(theirs_)
                cells.append(f"{ratio:.2f} x, p = {p:.2f}")
            lines.append((f"heterogeneous over {other}", *cells))
        title = f"{function}: does mixing starts help? Ratio of medians, two-sided Mann-Whitney"
        tables.append(Table(title, ("", "first 1000", "last 1000"), lines))
    return tables, numbers


def _curve(run: Run, measure: str) -> list[float]:
    return [row[measure] for row in read(run.path / "quality.jsonl")]


def _spread(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{statistics.median(found):.2g} ({found[0]:.2g} to {found[-1]:.2g})"


def _dimensions(path: Path, options: argparse.Namespace) -> Measured:
    jobs = {
        (function, f"x{x}", f"c{c}"): (
            *(function, "--x", x, "--c", c, "--steps", DIMENSION_STEPS, "--episodes", 60),
            *("--starts", "latin", "--seed", options.seeds[0]),
        )
        for function in ("sphere", "rosenbrock")
        for x, c in DIMENSIONS
    }
    runs = _runs(jobs, path)
    rows, numbers = [], {}
    for key, run in runs.items():
        found = read(run.path / "quality.jsonl")
        marks = [found[i]["regret"] for i in (0, len(found) // 10, len(found) // 2, len(found) - 1)]
        rows.append(
            (" ".join(key), *(f"{mark:.3g}" for mark in marks), f"{min(r['regret'] for r in found):.3g}")
        )
        numbers[" ".join(key)] = [row["regret"] for row in found]
    columns = ("", "at 10 steps", "a tenth", "half", f"{DIMENSION_STEPS:,} steps", "best")
    return [
        Table("Higher dimensions: f above the true minimum, mean over conditions", columns, rows)
    ], numbers


def _picture(results: Mapping[str, Any]) -> Figure:
    figure = new_figure(13, 7.5)
    axes = figure.subplots(2, 2)
    colours = dict(zip(SAMPLERS, (GREY, BLUE, ORANGE, GREEN), strict=True))
    for panel, function in zip(axes[0], QUALITY, strict=True):
        for starts in SAMPLERS:
            curve = results.get("quality", {}).get(f"{function} {starts}", {}).get("curve", [])
            panel.plot(10 * np.arange(1, len(curve) + 1), curve, color=colours[starts], lw=1.0, label=starts)
        panel.set_yscale("log")
        panel.set_title(f"{function}: {QUALITY[function][1]}, median over seeds")
        panel.set_xlabel("training steps")
        panel.legend(frameon=False, fontsize=8)
    _draw_speed_up(axes[1, 0], results.get("speed-up", {}))
    for key, curve in results.get("dimensions", {}).items():
        style = {"colour": GREEN if key.startswith("sphere") else VIOLET}
        axes[1, 1].plot(
            10 * np.arange(1, len(curve) + 1), np.maximum(curve, 1e-6), color=style["colour"], lw=0.8
        )
    axes[1, 1].set_yscale("log")
    axes[1, 1].set_title("regret: sphere (green) and rosenbrock (violet), x 2 to 10, c 1 to 5")
    axes[1, 1].set_xlabel("training steps")
    for panel in axes.ravel():
        tidy(panel)
    return figure


def _draw_speed_up(axes: Any, numbers: Mapping[str, Any]) -> None:
    for name, colour in (("50 ms", BLUE), ("plain", ORANGE)):
        pairs = sorted((int(drivers), rho) for drivers, rho in numbers.get(name, {}).items())
        if pairs:
            axes.loglog(*zip(*pairs, strict=True), "o-", color=colour, base=2, label=f"f takes {name}")
    published = {1: 1.0, 2: 1.95, 4: 3.64, 8: 6.13, 16: 9.44, 32: 11.48, 64: 11.93}
    axes.loglog(
        list(published), list(published.values()), "s--", color=GREY, base=2, label="published, 24 cores"
    )
    axes.loglog([1, 64], [1, 64], color=GREY, lw=0.7, ls=":", base=2)
    axes.set_title("speed-up of collection, rho*, on two cores")
    axes.set_xlabel("drivers")
    axes.legend(frameon=False, fontsize=8)
