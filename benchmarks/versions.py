"""Is this version as fast as another? Both in turns: speed, time to solve, start-up, memory of workers."""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.startup import start
from manyhands.core.errors import RunError
from manyhands.runs.plots import BLUE, RED, new_figure, tidy
from manyhands.runs.report import OUT, Report, Table, at_least_one, last_line, manyhands, trained

OLD, NEW = "old", "new"
TIMEOUT = 1800.0
LEAST = 0.95
"""Of the old version's speed."""
LEARNED = 0.3
"""The first part of a run's rows is not counted: starting, and warming up."""
QUICK = {"LunarLander-v3": 400_000, "CartPole-v1": 400_000}
"""Steps of the runs that measure speed."""
PICTURES = ("--algo", "dqn", "--steps", 16_000, "--set", "algo.warmup=2000", "--set", "algo.memory=20000")


@dataclass(frozen=True)
class Kind:
    """Something that is measured of both versions."""

    name: str
    unit: str
    more_is_better: bool
    measure: Callable[[int], float]  # given the round
    rounds: int  # in all, or 0 for as many as were asked for


@dataclass(frozen=True)
class Value:
    kind: str
    version: str
    round: int
    value: float


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks versions", description=__doc__)
    parser.add_argument("--old", type=Path, required=True, metavar="DIR", help="src of the other version")
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--seed", type=int, default=701, help="of the first round; each adds one")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="parts of names of what is measured")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    kinds = [kind for kind in _kinds(options.seed) if _wanted(kind, options.only)]
    sources = {OLD: options.old.resolve(), NEW: Path("src").resolve()}
    values: list[Value] = []
    for kind in kinds:
        for number in range(kind.rounds or options.rounds):
            for version in (OLD, NEW) if number % 2 else (NEW, OLD):
                with _version(sources[version]):
                    values.append(Value(kind.name, version, number, kind.measure(number)))
                print(values[-1], flush=True)
    seeds = range(options.seed, options.seed + options.rounds)
    _report(kinds, values, arguments, seeds).save(options.out, _picture(kinds, values))
    slow = [kind.name for kind in kinds if _ratio(kind, values) < LEAST]
    if slow:
        raise RunError(f"slower than {LEAST:.0%} of the old version: {', '.join(slow)}")


def _wanted(kind: Kind, only: Sequence[str] | None) -> bool:
    return only is None or any(part in kind.name for part in only)


def _kinds(seed: int) -> list[Kind]:
    speeds = [
        Kind(f"{env}, {workers} workers", "steps/s", True, _speed(env, workers, seed), 0)
        for env in QUICK
        for workers in (0, 2)
    ]
    return [
        *speeds,
        Kind("LunarLander-v3, solved", "s", False, lambda number: _solve(seed + number), 3),
        Kind("ALE/Breakout-v5, dqn", "steps/s", True, lambda number: _pictures(seed + number), 3),
        Kind("first step, inline", "s", False, lambda number: _first_step(0, seed + number), 0),
        Kind("first step, 2 workers", "s", False, lambda number: _first_step(2, seed + number), 0),
        Kind("a worker's memory", "MB", False, lambda number: _worker_memory(seed + number), 0),
        Kind("--help", "s", False, lambda number: _help(), 0),
    ]


@contextmanager
def _version(source: Path) -> Iterator[None]:
    """Processes that are started meanwhile import this source."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(source)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _speed(env: str, workers: int, seed: int) -> Callable[[int], float]:
    words = ("train", env, "--workers", workers, "--until", "steps", "--steps", QUICK[env])
    quiet = ("--set", "run.test_every=1000000000")
    return lambda number: _rate((*words, *quiet, "--seed", seed + number))


def _pictures(seed: int) -> float:
    quiet = ("--until", "steps", "--set", "run.test_every=1000000000", "--seed", seed)
    return _rate(("train", "ALE/Breakout-v5", *PICTURES, *quiet))


def _rate(words: Sequence[object]) -> float:
    """Steps a second, of a run that is given by its command, but for its beginning."""
    with tempfile.TemporaryDirectory(prefix="manyhands-versions-") as temporary:
        rows = trained(words, Path(temporary) / "run", TIMEOUT).rows()
    first, last = rows[int(LEARNED * len(rows))], rows[-1]
    return float((last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"]))


def _solve(seed: int) -> float:
    """Seconds from starting the process to its exit."""
    with tempfile.TemporaryDirectory(prefix="manyhands-versions-") as temporary:
        began = time.perf_counter()
        run = trained(("train", "LunarLander-v3", "--seed", seed), Path(temporary) / "run", TIMEOUT)
        seconds = time.perf_counter() - began
        if not run.status()["solved"]:
            raise RunError(f"seed {seed} was not solved")
    return seconds


def _first_step(workers: int, seed: int) -> float:
    return start("LunarLander-v3", workers, seed).first_step


def _worker_memory(seed: int) -> float:
    return max(start("LunarLander-v3", 2, seed).worker_mb)


def _help() -> float:
    began = time.perf_counter()
    done = subprocess.run(manyhands("--help"), capture_output=True, text=True, check=False, timeout=TIMEOUT)
    if done.returncode:
        raise RunError(f"--help failed: {last_line(done.stderr)}")
    return time.perf_counter() - began


def _ratio(kind: Kind, values: Sequence[Value]) -> float:
    """How good the new version is as a part of the old one: the median over rounds; above 1 is better."""
    by = {(value.version, value.round): value.value for value in values if value.kind == kind.name}
    rounds = sorted({number for _, number in by})
    ratios = [by[NEW, number] / by[OLD, number] for number in rounds]
    middle = statistics.median(ratios)
    return middle if kind.more_is_better else 1 / middle


def _report(
    kinds: Sequence[Kind], values: Sequence[Value], arguments: list[str], seeds: Sequence[int]
) -> Report:
    rows = []
    for kind in kinds:
        both = [
            [value.value for value in values if (value.kind, value.version) == (kind.name, version)]
            for version in (OLD, NEW)
        ]
        shown = (f"{statistics.median(each):,.3g} ({min(each):,.3g}-{max(each):,.3g})" for each in both)
        rows.append((f"{kind.name}, {kind.unit}", str(len(both[0])), *shown, f"{_ratio(kind, values):.2f}"))
    return Report(
        name="versions",
        title="This version beside an earlier one",
        arguments=arguments,
        seeds=list(seeds),
        tables=(Table("In turns", ("what", "rounds", OLD, NEW, "how good the new one is"), rows),),
        notes=[
            "Median (least-most) over the rounds; both versions in turns within each round, with the same "
            "seed, the order changing from round to round.",
            "How good: the median over the rounds of new / old, or of old / new where less is better; 1 is "
            "equal, and 0.95 is asked for.",
            "Speed does not count starting, the first 30 % of a run, or tests.",
        ],
        results={"values": [asdict(value) for value in values]},
    )


def _picture(kinds: Sequence[Kind], values: Sequence[Value]) -> Figure:
    figure = new_figure(8, 0.45 * len(kinds) + 1)
    axes = figure.subplots()
    for y, kind in enumerate(reversed(kinds)):
        by = {(value.version, value.round): value.value for value in values if value.kind == kind.name}
        for number in sorted({number for _, number in by}):
            ratio = by[NEW, number] / by[OLD, number]
            axes.plot(ratio if kind.more_is_better else 1 / ratio, y, "o", color=BLUE, alpha=0.5)
        axes.plot(_ratio(kind, values), y, "|", color=BLUE, markersize=18)
    axes.axvline(LEAST, color=RED, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(kinds)), [kind.name for kind in reversed(kinds)])
    axes.set_xlabel("how good the new version is, as a part of the old one (line: asked for)")
    tidy(axes)
    return figure
