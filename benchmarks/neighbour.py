"""How much of its speed a learner loses to a neighbour that takes one core: alone and beside it, in turns."""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from manyhands.core.errors import RunError
from manyhands.runs.plots import BLUE, ORANGE, new_figure, tidy
from manyhands.runs.report import OUT, Report, Table, at_least_one, manyhands
from manyhands.runs.store import Run

LEARNERS = {
    "ALE/Breakout-v5": ("dqn", "algo.warmup=1000"),
    "LunarLander-v3": ("ppo", "run.checkpoint_every=10"),
    "CartPole-v1": ("ppo", "run.checkpoint_every=10"),
}
SECONDS = {"ALE/Breakout-v5": 45.0, "LunarLander-v3": 15.0, "CartPole-v1": 12.0}
"""Seconds of one measurement, with starting."""
LEARNED = 0.3
"""The first share of the rows of metrics, which is not counted: starting, and warming up."""
MOST_LOST = 0.5
BUSY = "while True: pass"


@dataclass(frozen=True)
class Speed:
    env: str
    algo: str
    round: int
    neighbour: bool
    steps_per_second: float


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks neighbour", description=__doc__)
    parser.add_argument("--env", nargs="+", choices=sorted(LEARNERS), default=sorted(LEARNERS))
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    speeds: list[Speed] = []
    for number in range(options.rounds):
        for env in options.env:
            for busy in (False, True) if number % 2 else (True, False):
                speeds.append(_measure(env, number, busy))
                print(speeds[-1], flush=True)
    _report(speeds, options.rounds, arguments).save(options.out, _picture(speeds))
    slow = [env for env in options.env if _kept(speeds, env) < MOST_LOST]
    if slow:
        raise RunError(f"more than half of the speed is lost: {', '.join(slow)}")


@contextmanager
def _neighbour(there: bool) -> Iterator[None]:
    """Run a process that never sleeps, if one is to be there."""
    if not there:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _measure(env: str, number: int, busy: bool) -> Speed:
    algo, setting = LEARNERS[env]
    with tempfile.TemporaryDirectory(prefix="manyhands-neighbour-") as temporary, _neighbour(busy):
        path = Path(temporary) / "run"
        words = ("--algo", algo, "--seed", number, "--until", "steps", "--steps", 10**9, "--quiet")
        sets = ("--set", setting, "--set", "run.test_every=1000000000")
        process = subprocess.Popen(manyhands("train", env, *words, *sets, "--dir", path))
        try:
            process.wait(SECONDS[env])
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
        # Q-learning tells of a loss, and PPO of a distance, once it learns.
        rows = [row for row in Run(path).rows() if "loss" in row or "kl" in row]
        rows = rows[int(LEARNED * len(rows)) :]
        if len(rows) < 2:
            raise RunError(f"{env} made no progress in {SECONDS[env]:g} s")
        first, last = rows[0], rows[-1]
        speed = (last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"])
    return Speed(env, algo, number, busy, speed)


def _median(speeds: Sequence[Speed], env: str, busy: bool) -> float:
    return statistics.median(s.steps_per_second for s in speeds if (s.env, s.neighbour) == (env, busy))


def _kept(speeds: Sequence[Speed], env: str) -> float:
    """Return the share of its speed that a learner keeps: the median of the rounds."""
    ratios = []
    for number in {speed.round for speed in speeds if speed.env == env}:
        found = {s.neighbour: s.steps_per_second for s in speeds if (s.env, s.round) == (env, number)}
        ratios.append(found[True] / found[False])
    return statistics.median(ratios)


def _report(speeds: Sequence[Speed], rounds: int, arguments: list[str]) -> Report:
    envs = list(dict.fromkeys(speed.env for speed in speeds))
    rows = [
        (
            f"{env}, {LEARNERS[env][0]}",
            f"{_median(speeds, env, False):,.0f}",
            f"{_median(speeds, env, True):,.0f}",
            f"{_kept(speeds, env):.0%}",
        )
        for env in envs
    ]
    return Report(
        name="neighbour",
        title="A learner and a busy neighbour",
        arguments=arguments,
        seeds=list(range(rounds)),
        tables=(Table("Steps/s", ("learner", "alone", "beside a busy process", "kept"), rows),),
        notes=(
            "The neighbour is one process that never sleeps. Alone and beside it take turns; speeds are "
            "medians of the rounds, and what is kept is the median of the rounds' ratios.",
            "No learner may lose more than half of its speed.",
        ),
        results={"speeds": [asdict(speed) for speed in speeds]},
    )


def _picture(speeds: Sequence[Speed]) -> Figure:
    envs = list(dict.fromkeys(speed.env for speed in speeds))
    figure = new_figure(9, 0.9 + 0.7 * len(envs))
    axes = figure.subplots()
    for offset, busy, colour in ((-0.2, False, BLUE), (0.2, True, ORANGE)):
        parts = [_median(speeds, env, busy) / _median(speeds, env, False) for env in envs]
        places = [place + offset for place in range(len(envs))]
        label = "beside a busy process" if busy else "alone"
        axes.barh(places, parts, height=0.38, color=colour, label=label)
    axes.set_yticks(range(len(envs)), [f"{env}, {LEARNERS[env][0]}" for env in envs])
    axes.invert_yaxis()
    axes.set_xlabel("steps/s, as a part of those alone")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2)
    tidy(axes)
    axes.grid(False, axis="y")
    return figure
