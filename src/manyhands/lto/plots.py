"""A law as a picture: the function under it, the true minimum beside it, the error over training."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from manyhands.envs.lto import Problem
from manyhands.lto.judge import conditions, read
from manyhands.lto.law import Law
from manyhands.lto.truth import minimum
from manyhands.runs.plots import BLUE, GREY, ORANGE, RED, VIOLET, new_figure, save_png, tidy
from manyhands.runs.store import Run

FINE = 241


def draw(run: Run, out: Path) -> None:
    """Draw a law, and the function over the first x and the first c; other variables stay at the centre."""
    law = Law.load(run)
    figure = new_figure(13, 4)
    field, error, booked = figure.subplots(1, 3)
    if law.problem.imports:
        _law_alone(field, law)
    else:
        _field(field, law)
    if law.problem.imports:
        _returns(error, run)
    else:
        _error(error, run)
    _booked(booked, run)
    save_png(figure, out)


def _law_alone(axes: Axes, law: Law) -> None:
    """Draw the law alone: a user's function may be a measurement, too dear for thousands of points."""
    side = np.linspace(-1, 1, FINE)
    along = np.zeros((FINE, law.problem.c))
    if law.problem.c:
        along[:, 0] = side
    axes.plot(_own(law.problem, side, law.problem.x), law.problem.to_units(law(along))[:, 0], color=RED)
    axes.set_xlabel("c1")
    axes.set_ylabel("x1")
    axes.set_title("the law")
    tidy(axes)


def _own(problem: Problem, unit: np.ndarray, variable: int) -> np.ndarray:
    if variable >= problem.size:
        return unit
    return problem.to_units(unit[:, None], variable)[:, 0]


def _field(axes: Axes, law: Law) -> None:
    problem = law.problem
    side = np.linspace(-1, 1, FINE)
    points = np.zeros((FINE * FINE, problem.size))
    first_c, first_x = np.meshgrid(side, side)
    points[:, 0] = first_x.ravel()
    if problem.c:
        points[:, problem.x] = first_c.ravel()
    values = problem.evaluate(points).reshape(FINE, FINE)
    across, up = _own(problem, side, problem.x), _own(problem, side, 0)
    axes.pcolormesh(
        across, up, np.log1p(values - values.min()), cmap="Blues_r", shading="auto", rasterized=True
    )
    along = np.zeros((FINE, problem.c))
    if problem.c:
        along[:, 0] = side
    told = problem.to_units(law(along))[:, 0]
    few = conditions(problem) if problem.c == 1 else along[::12]
    true = np.array([problem.to_units(minimum(problem, c)[0][None])[0, 0] for c in few])
    axes.plot(across, told, color=RED, lw=1.8, label="the law")
    at = _own(problem, few[:, 0], problem.x) if problem.c else across[:: len(across) - 1]
    axes.plot(
        at, true if problem.c else np.repeat(true[:1], 2), "o", color=ORANGE, ms=4, label="true minimum"
    )
    axes.set_xlabel("c1, a condition")
    axes.set_ylabel("x1, to be chosen")
    axes.set_title(f"{', '.join(problem.functions)} (dark is low)")
    axes.legend(fontsize=8, loc="upper right", framealpha=0.9)


def _error(axes: Axes, run: Run) -> None:
    rows = read(run.path / "quality.jsonl")
    steps = [row["version"] for row in rows]
    for name, colour in (("mse", BLUE), ("msle", VIOLET)):
        axes.plot(steps, [max(row[name], 1e-12) for row in rows], color=colour, lw=1.2, label=name)
    if rows:
        axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel("training steps")
    axes.set_title("error of the law's f")
    tidy(axes)


def _returns(axes: Axes, run: Run) -> None:
    """Draw, without a known minimum, by how much an episode's moves have lowered f, over training."""
    rows = [row for row in run.rows() if row.get("return_mean") is not None and "version" in row]
    axes.plot([row["version"] for row in rows], [row["return_mean"] for row in rows], color=BLUE, lw=1.2)
    axes.set_xlabel("training steps")
    axes.set_ylabel("f at the start minus f at the end")
    axes.set_title("what an episode gains")
    tidy(axes)


def _booked(axes: Axes, run: Run) -> None:
    rows = [row for row in run.rows() if "broadcasting" in row and "version" in row]
    steps = [row["version"] for row in rows]
    inline = run.config().run.workers == 0
    collecting = [row["collecting"] if inline else row["waiting"] for row in rows]
    series = {
        "collecting": (collecting, VIOLET),
        "training": ([row["learning"] for row in rows], BLUE),
        "broadcasting": ([row["broadcasting"] for row in rows], GREY),
    }
    for name, (values, colour) in series.items():
        axes.plot(steps, values, color=colour, lw=1.5, label=name)
    axes.set_xlabel("training steps")
    axes.set_title("seconds booked")
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
