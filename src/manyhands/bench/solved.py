"""Is what a run calls solved really solved, and what does being sure cost? Two versions in turns."""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from manyhands.agent import goal
from manyhands.bench.report import OUT, Report, Table, at_least_one, last_line, manyhands, run_json
from manyhands.errors import RunError
from manyhands.runs.plots import GREEN, RED, new_figure, tidy
from manyhands.runs.store import Run

ENVIRONMENTS = ("LunarLander-v3", "CartPole-v1")
FIRST_SEED, SEEDS = 5001, 50
"""Reserved for this benchmark: nothing is tuned with these."""
EPISODES = 1000
FRESH = 20_000
"""Added to a seed for the evaluation, whose episodes no training or test has seen."""
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
    mean: float
    sd: float

    @property
    def false(self) -> bool:
        return self.said_solved and self.mean < self.goal


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="manyhands bench solved", description=__doc__)
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
                print(
                    f"{version} {env} seed {seed}: {outcome.wall:.1f} s, {outcome.steps:,} steps, said "
                    f"{outcome.said_mean:.1f}, {options.episodes} episodes {outcome.mean:.1f}"
                    f"{', NOT solved' if outcome.false else ''}",
                    flush=True,
                )
    _report(outcomes, options.episodes, arguments).save(options.out, _picture(outcomes))


def _known(log: Path | None) -> list[Outcome]:
    if log is None or not log.exists():
        return []
    return [Outcome(**json.loads(line)) for line in log.read_text().splitlines()]


def _reported(out: Path) -> list[Outcome]:
    """What an earlier report holds."""
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
        judge = manyhands("eval", path, "--episodes", episodes, "--seed", FRESH + seed, "--json")
        judged = run_json(judge, timeout)
        return Outcome(
            version=version,
            env=env,
            seed=seed,
            goal=float(goal(run) or 0.0),
            wall=wall,
            steps=int(status["steps"]),
            said_solved=bool(status["solved"]),
            said_mean=float(status["best_mean"]),
            mean=float(judged["mean"]),
            sd=float(judged["sd"]),
        )


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
            rows.append(
                (
                    env,
                    version,
                    f"{len(said)} of {len(group)}",
                    str(sum(each.false for each in group)),
                    f"{min(each.mean for each in said):.1f}" if said else "-",
                    f"{statistics.median(each.mean for each in group):.1f}",
                    f"{statistics.median(each.steps for each in group):,.0f}",
                    f"{statistics.median(each.wall for each in group):.1f} s",
                    f"{max(each.wall for each in group):.1f} s",
                )
            )
    columns = ("environment", "version", "said solved", "below the goal", "worst mean", "median mean")
    columns += ("steps (median)", "wall clock (median)", "slowest")  # type: ignore[assignment]
    notes = [
        f"Below the goal: runs that said solved and whose agent has a mean below the goal over {episodes} "
        f"episodes that no training or test has seen (their seed is the run's + {FRESH:,}).",
        "A run is solved when a test of 100 episodes lies two standard errors above the goal, and a second "
        "one, of 100 other episodes, one standard error above it.",
        "Wall clock: from starting `manyhands train ENV --seed S --quiet` to the exit of the process. The "
        "versions take turns, seed by seed.",
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
    """New over old."""
    notes = []
    for env in envs:
        old, new = ({each.seed: each.wall for each in _group(outcomes, v, env)} for v in (OLD, NEW))
        pairs = [new[seed] / old[seed] for seed in new if seed in old]
        if pairs:
            medians = statistics.median(new.values()) / statistics.median(old.values())
            notes.append(
                f"{env}: the median wall clock is {medians:.2f} times the old one; seed by seed the median "
                f"ratio is {statistics.median(pairs):.2f} ({len(pairs)} pairs)."
            )
    return notes


def _picture(outcomes: Sequence[Outcome]) -> Figure:
    envs = list(dict.fromkeys(each.env for each in outcomes))
    figure = new_figure(9, 1.2 + 2.6 * len(envs))
    for axes, env in zip(figure.subplots(len(envs), 1, squeeze=False)[:, 0], envs, strict=True):
        for y, version in enumerate((OLD, NEW)):
            group = _group(outcomes, version, env)
            colours = [RED if each.false else GREEN for each in group]
            spread = [y + 0.3 * ((each.seed * 7) % 11 / 10 - 0.5) for each in group]
            axes.scatter([each.mean for each in group], spread, color=colours, s=28, edgecolors="white")
        axes.axvline(next(each.goal for each in outcomes if each.env == env), color="#555555", linestyle="--")
        axes.set_yticks([0, 1], [OLD, NEW])
        axes.set_ylim(-0.5, 1.5)
        axes.set_title(env, loc="left")
        axes.set_xlabel(
            "mean return of the agent over fresh episodes (dashed: goal; red: said solved, is not)"
        )
        tidy(axes)
    return figure


if __name__ == "__main__":
    main(sys.argv[1:])
