"""Is what a run calls solved really solved, and what does being sure cost? Two versions in turns."""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from manyhands.core.errors import RunError
from manyhands.runs.agent import goal
from manyhands.runs.jsonl import read_rows
from manyhands.runs.plots import GREEN, RED, new_figure, tidy
from manyhands.runs.report import OUT, Report, Table, at_least_one, last_line, manyhands, run_json
from manyhands.runs.store import Run

ENVIRONMENTS = ("LunarLander-v3", "CartPole-v1")
FIRST_SEED, SEEDS = 5001, 50
"""Seeds reserved for this benchmark: nothing is tuned with these."""
EPISODES = 1000
FRESH, PARTS = 20_000, 2
"""An agent is judged on episodes of the seeds FRESH + PARTS * seed + part, which no training has seen."""
OLD, NEW = "old", "new"


@dataclass(frozen=True)
class Outcome:
    """One training by command line and what its agent is worth on fresh episodes."""

    version: str
    env: str
    seed: int
    goal: float
    wall: float  # seconds from starting the process to its exit
    steps: int
    said_solved: bool
    said_mean: float
    mean: float | None  # None where it was not judged
    sd: float | None

    @property
    def false(self) -> bool:
        return self.said_solved and self.mean is not None and self.mean < self.goal


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks solved", description=__doc__)
    parser.add_argument("--old", type=Path, metavar="DIR", help="the src directory of the other version")
    parser.add_argument("--env", nargs="+", default=list(ENVIRONMENTS))
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--seeds", type=at_least_one, default=SEEDS, help=f"how many (default: {SEEDS})")
    parser.add_argument("--episodes", type=at_least_one, default=EPISODES)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one training")
    parser.add_argument("--log", type=Path, help="keep outcomes here as they come, and go on with them")
    parser.add_argument("--go-on", action="store_true", help="add to what the report holds already")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    outcomes = _known(options.log) or (_reported(options.out) if options.go_on else [])
    versions = (OLD, NEW) if options.old is not None else (NEW,)
    done = {(each.version, each.env, each.seed) for each in outcomes}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for env in options.env:
            for version in versions if seed % 2 else versions[::-1]:
                if (version, env, seed) in done:
                    continue
                source = options.old if version == OLD else None
                outcome = _train(version, source, env, seed, options.episodes, options.timeout)
                outcomes.append(outcome)
                _keep(options.log, outcome)
                judged = "" if outcome.mean is None else f", {options.episodes} episodes {outcome.mean:.1f}"
                print(
                    f"{version} {env} seed {seed}: {outcome.wall:.1f} s, {outcome.steps:,} steps, said "
                    f"{outcome.said_mean:.1f}{judged}{', NOT solved' if outcome.false else ''}",
                    flush=True,
                )
    _report(outcomes, options.episodes, arguments).save(options.out, _picture(outcomes))


def _known(log: Path | None) -> list[Outcome]:
    return [] if log is None else [Outcome(**row) for row in read_rows(log)]


def _reported(out: Path) -> list[Outcome]:
    """Return what an earlier report holds."""
    path = out / "solved.json"
    plain = json.loads(path.read_text())["results"]["runs"] if path.exists() else []
    return [Outcome(**run) for run in plain]


def _keep(log: Path | None, outcome: Outcome) -> None:
    if log is not None:
        with log.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


def _train(version: str, source: Path | None, env: str, seed: int, episodes: int, timeout: float) -> Outcome:
    environment = dict(os.environ)
    if source is not None:
        environment["PYTHONPATH"] = str(source.resolve())
    with tempfile.TemporaryDirectory(prefix="manyhands-solved-") as temporary:
        path = Path(temporary) / "run"
        command = manyhands("train", env, "--seed", seed, "--dir", path, "--quiet")
        began = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=environment, check=False
        )
        wall = time.perf_counter() - began
        if done.returncode:
            raise RunError(f"{shlex.join(command)} failed: {last_line(done.stderr)}")
        run = Run(path)
        status = run.status()
        mean, sd = _judge(path, seed, episodes, timeout) if version == NEW else (None, None)
        return Outcome(
            version=version,
            env=env,
            seed=seed,
            goal=float(goal(run) or 0.0),
            wall=wall,
            steps=int(status["steps"]),
            said_solved=bool(status["solved"]),
            said_mean=float(status["best_mean"]),
            mean=mean,
            sd=sd,
        )


def _judge(path: Path, seed: int, episodes: int, timeout: float) -> tuple[float, float]:
    """Return the mean and deviation of the agent's return; half of the episodes on each of two cores."""
    halves = (episodes - episodes // 2, episodes // 2)
    commands = [
        manyhands("eval", path, "--episodes", count, "--seed", FRESH + PARTS * seed + part, "--json")
        for part, count in enumerate(halves)
        if count
    ]
    with ThreadPoolExecutor(PARTS) as pool:
        judged = list(pool.map(lambda command: run_json(command, timeout), commands))
    weights = [each["episodes"] / episodes for each in judged]
    mean = sum(w * each["mean"] for w, each in zip(weights, judged, strict=True))
    square = sum(w * (each["sd"] ** 2 + each["mean"] ** 2) for w, each in zip(weights, judged, strict=True))
    return mean, math.sqrt(max(0.0, square - mean**2))


def _group(outcomes: Sequence[Outcome], version: str, env: str) -> list[Outcome]:
    return [each for each in outcomes if (each.version, each.env) == (version, env)]


def _report(outcomes: Sequence[Outcome], episodes: int, arguments: list[str]) -> Report:
    envs = list(dict.fromkeys(each.env for each in outcomes))
    rows = []
    for env in envs:
        for version in (OLD, NEW):
            group = _group(outcomes, version, env)
            if not group:
                continue
            said = [each for each in group if each.said_solved]
            means = [each.mean for each in group if each.mean is not None]
            claimed = [each.mean for each in said if each.mean is not None]
            rows.append(
                (
                    env,
                    version,
                    f"{len(said)} of {len(group)}",
                    str(sum(each.false for each in group)) if means else "-",
                    f"{min(claimed):.1f}" if claimed else "-",
                    f"{statistics.median(means):.1f}" if means else "-",
                    f"{statistics.median(each.steps for each in group):,.0f}",
                    f"{statistics.median(each.wall for each in group):.1f} s",
                    f"{max(each.wall for each in group):.1f} s",
                )
            )
    columns = ("environment", "version", "said solved", "below the goal", "worst mean", "median mean")
    columns += ("steps (median)", "wall clock (median)", "slowest")  # type: ignore[assignment]
    notes = [
        f"Below the goal: runs that said solved and whose agent has a mean below the goal over {episodes} "
        "episodes that no training or test has seen. The old version is here for its wall clock alone.",
        "A run is solved when a test of 100 episodes lies two standard errors above the goal, and a second "
        "one, of 100 other episodes, one standard error above it.",
        "Wall clock: from starting `manyhands train ENV --seed S --quiet` to the exit of the process.",
        *_ratios(outcomes, envs),
    ]
    return Report(
        name="solved",
        title="Is what a run calls solved really solved?",
        arguments=[word for word in arguments if "/" not in word and word not in ("--log", "--old")],
        seeds=sorted({each.seed for each in outcomes}),
        tables=(Table("Summary", columns, rows),),
        notes=notes,
        results={"runs": [asdict(each) for each in outcomes]},
    )


def _ratios(outcomes: Sequence[Outcome], envs: Sequence[str]) -> list[str]:
    """Compare the wall clock of the new version with that of the old one."""
    notes = []
    for env in envs:
        old, new = ({each.seed: each.wall for each in _group(outcomes, v, env)} for v in (OLD, NEW))
        pairs = [new[seed] / old[seed] for seed in new if seed in old]  # measured in turns
        if pairs:
            both = [seed for seed in new if seed in old]
            medians = statistics.median(new[i] for i in both) / statistics.median(old[i] for i in both)
            notes.append(
                f"{env}: over the seeds of both versions, which took turns, the median wall clock is "
                f"{medians:.2f} times the old one; seed by seed the median "
                f"ratio is {statistics.median(pairs):.2f} ({len(pairs)} pairs)."
            )
    return notes


def _picture(outcomes: Sequence[Outcome]) -> Figure:
    envs = list(dict.fromkeys(each.env for each in outcomes))
    figure = new_figure(11, 1.2 + 2.2 * len(envs))
    for (left, right), env in zip(figure.subplots(len(envs), 2, squeeze=False), envs, strict=True):
        group = _group(outcomes, NEW, env)
        colours = [RED if each.false else GREEN for each in group]
        places = [(each.seed * 7) % 11 / 10 for each in group]
        left.scatter([each.mean or 0.0 for each in group], places, color=colours, s=28, edgecolors="white")
        left.axvline(group[0].goal, color="#555555", linestyle="--")
        left.set_yticks([])
        left.set_title(f"{env}: what the agents are worth", loc="left")
        left.set_xlabel("mean return over fresh episodes (dashed: goal; red: said solved, is not)")
        walls = {version: [each.wall for each in _group(outcomes, version, env)] for version in (OLD, NEW)}
        measured = [version for version in walls if walls[version]]
        right.boxplot([walls[version] for version in measured], orientation="horizontal", widths=0.6)
        right.set_yticks(range(1, len(measured) + 1), measured)
        right.set_title("wall clock until it says so", loc="left")
        right.set_xlabel("seconds")
        tidy(left)
        tidy(right)
    return figure


if __name__ == "__main__":
    main(sys.argv[1:])
