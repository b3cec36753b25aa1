"""Pictures of a run: how its returns grew, how fast it went, and where the time went."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter
from numpy.typing import NDArray

from manyhands.core.errors import RunError
from manyhands.runs.checkpoint import write_atomically
from manyhands.runs.store import Run

DPI = 120
BLUE, ORANGE, GREEN, RED, VIOLET, GREY = "#2f6db5", "#e08a1e", "#3d9a60", "#c8443c", "#7d5ba6", "#8a8f98"
SPEED_PARTS = 60
"""Steps/s are measured over about this many parts of the run, and no shorter ones than a second."""

Row = dict[str, Any]
Floats = NDArray[np.float64]


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of `width` x `height` inches, without pyplot and its global state."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes) -> None:
    """Draw a light grid behind the lines and no box around them."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#e4e6ea", linewidth=0.8)
    axes.set_axisbelow(True)


def save_png(figure: Figure, out: Path) -> None:
    """Save all of the picture or none of it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, buffer.getvalue())


def learning_curve(run: Run, out: Path, goal: float | None = None) -> None:
    """Draw returns, speed and the booked time over environment steps, as a PNG of 1,200 pixels across."""
    rows = run.rows()
    progress = [row for row in rows if "version" in row]
    tests = [row for row in rows if "test_mean" in row]
    if not progress:
        raise RunError(f"{run.path} has no metrics yet, so there is nothing to draw")
    config = run.config()
    inline = config.run.workers == 0
    figure = new_figure(10, 8)
    figure.suptitle(_title(run, progress[-1]), fontsize=12, fontweight="bold")
    booked = [row for row in progress if "learning" in row]
    heights = (5, 1.6, 2.4) if booked else (5, 1.6)  # a parent does not learn
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    _draw_returns(panels[0], progress, tests, goal)
    _draw_speed(panels[1], progress)
    if len(panels) == 3:
        _draw_booked(panels[2], booked, inline)
    panels[-1].set_xlabel("environment steps")
    panels[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[-1].set_xlim(0, 1.02 * max(1, *(row["steps"] for row in rows)))
    for axes in panels:
        tidy(axes)
    figure.align_ylabels()
    save_png(figure, out)


def _title(run: Run, last: Row) -> str:
    config, status = run.config(), run.status()
    end = {"solved": "solved after ", "failed": "failed after ", "stopped": "stopped after "}
    state = end.get(str(status.get("status")), "")
    return (
        f"{config.env.id}   {config.run.algo}, {config.run.mode}, seed {config.run.seed}   "
        f"{state}{last['steps']:,} steps, {last['seconds']:.1f} s"
    )


def _draw_returns(axes: Axes, progress: list[Row], tests: list[Row], goal: float | None) -> None:
    training = [row for row in progress if row.get("return_mean") is not None]
    axes.plot(
        *_columns(training, "steps", "return_mean"),
        color=BLUE,
        linewidth=1.6,
        label="training, mean of the last 100 episodes"
        + (" of each child" if "children" in progress[-1] else ""),
    )
    if tests:
        steps, mean, sd = _columns(tests, "steps", "test_mean", "test_sd")
        axes.fill_between(steps, mean - sd, mean + sd, color=ORANGE, alpha=0.18, linewidth=0)
        axes.plot(
            steps,
            mean,
            color=ORANGE,
            linewidth=1.6,
            marker="o",
            markersize=5,
            markeredgecolor="white",
            label="greedy test, mean ± sd of its episodes",
        )
    if goal is not None:
        axes.axhline(goal, color=GREEN, linewidth=1.4, linestyle=(0, (5, 3)), label=f"goal {goal:g}")
    axes.set_ylabel("episode return")
    axes.legend(loc="best", frameon=True, framealpha=0.9, edgecolor="none", fontsize=9)


def _draw_speed(axes: Axes, progress: list[Row]) -> None:
    steps, seconds = _columns(progress, "steps", "seconds")
    axes.plot(*speed_over(steps, seconds), color=VIOLET, linewidth=1.6)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("steps/s")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def speed_over(steps: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Return steps and the steps/s around them, each over a part of the run long enough to mean something."""
    if len(steps) < 2:
        return np.zeros(0), np.zeros(0)
    shortest = max(1.0, (seconds[-1] - seconds[0]) / SPEED_PARTS)
    marks = [0]
    for i in range(1, len(seconds)):
        if seconds[i] - seconds[marks[-1]] >= shortest:
            marks.append(i)
    if len(marks) == 1:
        marks.append(len(seconds) - 1)
    at, when = steps[marks], seconds[marks]
    spans = np.maximum(np.diff(when), 1e-9)
    return (at[1:] + at[:-1]) / 2, np.diff(at) / spans


def _draw_booked(axes: Axes, rows: list[Row], inline: bool) -> None:
    """Draw the executor's seconds, stacked; workers collect beside it, so theirs are a line."""
    steps, whole = _columns(rows, "steps", "seconds")
    shares = {"learning": BLUE, "broadcasting": GREEN, "testing": ORANGE, "waiting": GREY}
    if inline:
        shares = {"collecting": VIOLET, **shares}
    parts = [_columns(rows, name)[0] for name in shares]
    axes.stackplot(steps, *parts, labels=list(shares), colors=list(shares.values()), alpha=0.75)
    if not inline:
        collecting = _columns(rows, "collecting")[0]
        axes.plot(steps, collecting, color=VIOLET, linewidth=1.8, label="collecting (workers, beside it)")
    axes.plot(steps, whole, color="#333333", linewidth=1.0, linestyle=":", label="wall clock")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("time booked")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    axes.legend(loc="upper left", frameon=True, framealpha=0.9, edgecolor="none", fontsize=8, ncols=2)


def _columns(rows: Sequence[Row], *names: str) -> list[Floats]:
    return [np.array([row[name] for row in rows], np.float64) for name in names]
