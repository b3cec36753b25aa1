"""How long it takes from typing the command to a solved environment, and does it hold on fresh episodes."""

import argparse
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from manyhands.core.errors import RunError
from manyhands.runs.agent import goal
from manyhands.runs.plots import GREEN, RED, new_figure, tidy
from manyhands.runs.report import OUT, Report, Table, at_least_one, last_line, manyhands, run_json
from manyhands.runs.store import Run

FIVE, THREE = (301, 302, 303, 304, 305), (301, 302, 303)
"""Seeds reserved for this benchmark: recipes are to be tuned with others."""
PLAN: dict[str, tuple[int, ...]] = {
    "CartPole-v1": FIVE,
    "LunarLander-v3": FIVE,
    "Acrobot-v1": THREE,
    "Pendulum-v1": THREE,
    "MountainCarContinuous-v0": THREE,
    "FrozenLake-v1": THREE,
    "CliffWalking-v1": THREE,
}
EPISODES = 100
FRESH = 10_000
"""The number added to a seed for the evaluation, whose episodes no training or test has seen."""


@dataclass(frozen=True)
class Outcome:
    """One training by command line and the evaluation of its agent."""

    env: str
    seed: int
    goal: float | None
    wall: float  # seconds from starting the process to its exit
    steps: int
    said_solved: bool  # the training itself
    solved: bool  # the evaluation
    mean: float
    sd: float


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks solve", description=__doc__)
    parser.add_argument("--env", nargs="+", help=f"default: {' '.join(PLAN)}")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 301 to 305, or 301 to 303")
    parser.add_argument("--algo", help="default: the recipe's")
    parser.add_argument("--steps", type=at_least_one, help="at most; default: the recipe's")
    parser.add_argument("--workers", type=int, help="default: one per core")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one training")
    parser.add_argument("--keep", type=Path, help="keep the runs in this directory")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    plan = {
        env: tuple(options.seeds or (PLAN.get(env, FIVE) if options.env is None else FIVE))
        for env in options.env or PLAN
    }
    names = ("algo", "steps", "workers")
    extra = [word for name in names for word in _flag(name, getattr(options, name))]
    with tempfile.TemporaryDirectory(prefix="manyhands-solve-") as temporary:
        outcomes, failures = _measure(plan, extra, options.timeout, options.keep or Path(temporary))
    if outcomes:
        _report(plan, outcomes, failures, arguments).save(options.out, _picture(outcomes))
    if failures:
        raise RunError(f"{len(failures)} of {len(failures) + len(outcomes)} trainings failed: {failures[0]}")


def _flag(name: str, value: object) -> list[str]:
    return [] if value is None else [f"--{name}", str(value)]


def _measure(
    plan: Mapping[str, Sequence[int]], extra: list[str], timeout: float, home: Path
) -> tuple[list[Outcome], list[str]]:
    outcomes, failures = [], []
    for env, seeds in plan.items():
        for seed in seeds:
            try:
                outcome = _solve(env, seed, extra, timeout, home)
            except RunError as error:
                failures.append(f"{env} seed {seed}: {error}")
                print(failures[-1], flush=True)
                continue
            outcomes.append(outcome)
            print(
                f"{env} seed {seed}: {outcome.wall:.1f} s, {outcome.steps:,} steps, "
                f"evaluated {_score(outcome.mean)} ± {_score(outcome.sd)}, {_verdict(outcome)}",
                flush=True,
            )
    return outcomes, failures


def _score(value: float) -> str:
    """Format a score: two decimals where returns are as small as FrozenLake's."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _verdict(outcome: Outcome) -> str:
    return "solved" if outcome.solved else "NOT solved"


def _solve(env: str, seed: int, extra: list[str], timeout: float, home: Path) -> Outcome:
    directory = home / f"{env.replace('/', '-').replace(':', '-')}-{seed}"
    command = manyhands("train", env, "--seed", seed, "--dir", directory, *extra)
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise RunError(f"{shlex.join(command)} took longer than {timeout:g} s") from None
    wall = time.perf_counter() - began
    if done.returncode:
        raise RunError(f"{shlex.join(command)} failed: {last_line(done.stderr)}")
    run = Run(directory)
    status = run.status()
    judged = run_json(
        manyhands("eval", directory, "--episodes", EPISODES, "--seed", FRESH + seed, "--json"), timeout
    )
    return Outcome(
        env=env,
        seed=seed,
        goal=goal(run),
        wall=wall,
        steps=int(status["steps"]),
        said_solved=bool(status["solved"]),
        solved=bool(judged["solved"]),
        mean=float(judged["mean"]),
        sd=float(judged["sd"]),
    )


def _by_env(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.env, []).append(outcome)
    return grouped


def _report(
    plan: Mapping[str, Sequence[int]],
    outcomes: Sequence[Outcome],
    failures: Sequence[str],
    arguments: list[str],
) -> Report:
    summary, single = [], []
    for env, group in _by_env(outcomes).items():
        walls = [outcome.wall for outcome in group]
        summary.append(
            (
                env,
                "-" if group[0].goal is None else f"{group[0].goal:g}",
                f"{sum(outcome.solved for outcome in group)} of {len(plan[env])}",
                _score(statistics.mean(outcome.mean for outcome in group)),
                _score(min(outcome.mean for outcome in group)),
                f"{statistics.median(outcome.steps for outcome in group):,.0f}",
                f"{statistics.median(walls):.1f} s",
                f"{min(walls):.1f} s",
                f"{max(walls):.1f} s",
            )
        )
        for outcome in group:
            evaluated = f"{_score(outcome.mean)} ± {_score(outcome.sd)}"
            wall = f"{outcome.wall:.1f} s"
            single.append((env, str(outcome.seed), _verdict(outcome), evaluated, f"{outcome.steps:,}", wall))
    columns = ("environment", "goal", "solved", "mean", "worst mean", "steps", "median", "fastest", "slowest")
    notes = [
        f"Solved: the greedy mean of {EPISODES} fresh episodes reaches the goal; "
        f"their seed is the run's + {FRESH:,}.",
        "Wall clock: from starting `manyhands train ENV --seed S` to the exit of the process, with all "
        "imports, tests and checkpoints.",
        *(f"Failed, counted as not solved, in no other number: {failure}" for failure in failures),
    ]
    return Report(
        name="solve",
        title="From the command to a solved environment",
        arguments=arguments,
        seeds=sorted({seed for seeds in plan.values() for seed in seeds}),
        tables=(
            Table("Summary", columns, summary),
            Table(
                "Every run",
                ("environment", "seed", "eval_result", "100 fresh episodes", "steps", "wall clock"),
                single,
            ),
        ),
        notes=notes,
        results={"runs": [asdict(outcome) for outcome in outcomes], "failures": list(failures)},
    )


def _picture(outcomes: Sequence[Outcome]) -> Figure:
    grouped = _by_env(outcomes)
    figure = new_figure(9, 1.6 + 0.5 * len(grouped))
    axes = figure.subplots()
    for y, group in enumerate(grouped.values()):
        walls = [outcome.wall for outcome in group]
        axes.plot([min(walls), max(walls)], [y, y], color="#c9ccd2", linewidth=2, zorder=1)
        axes.plot(
            [statistics.median(walls)] * 2, [y - 0.22, y + 0.22], color="#333333", linewidth=2, zorder=2
        )
        colours = [GREEN if outcome.solved else RED for outcome in group]
        axes.scatter(walls, [y] * len(walls), color=colours, s=55, edgecolors="white", zorder=3)
    axes.set_xscale("log")
    axes.set_yticks(range(len(grouped)), list(grouped))
    axes.invert_yaxis()
    for axis_format in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis_format(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("wall clock from the command to its end, seconds (one dot a seed, bar: median)")
    tidy(axes)
    axes.grid(True, which="minor", axis="x", color="#f0f1f3", linewidth=0.6)
    dots = [
        Line2D([], [], marker="o", linestyle="", color=colour, label=label)
        for colour, label in ((GREEN, "solved"), (RED, "not solved"))
    ]
    figure.legend(handles=dots, loc="outside upper right", ncols=2, frameon=False)
    return figure
