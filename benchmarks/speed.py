"""Training speed beside Stable-Baselines3 and the bare environments, in turns on the same machine.

PPO with 16 lanes, 64-64 tanh nets for policy and value, 16,384 steps a batch, minibatches of 512, 4 epochs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks import peers
from benchmarks.timed import START_TIMEOUT, flags, training_speed
from manyhands.core.errors import RunError, UsageError
from manyhands.runs.plots import BLUE, GREEN, GREY, new_figure, tidy
from manyhands.runs.report import OUT, Report, Table, at_least_one, cores, last_line, run_json, settings

ENVS = ("LunarLander-v3", "CartPole-v1")
SHARDS, LANES, STEPS, MINIBATCH, EPOCHS = 2, 8, 1024, 512, 4
SETTINGS = {
    "collect.shards": SHARDS,
    "collect.lanes": LANES,
    "collect.steps": STEPS,
    "net.hidden": [64, 64],
    "net.activation": "tanh",
    "net.shared": "false",
    "net.normalise": "false",
    "algo.minibatch": MINIBATCH,
    "algo.epochs": EPOCHS,
    "algo.target_kl": 0,
    "algo.normalise_reward": "false",
    "run.test_every": 10**12,  # nobody else tests while it is timed
}
WARM_VERSION = 4
"""Batches that count as start-up: the first ones are collected while torch loads, before the clock runs."""
HEAD_START = 4.0
"""Seconds that the processes of the bare loop get for importing before all count together."""
BARE = "Gymnasium's environments alone, no learning"
BARE_OURS = "the same as manyhands makes them"
OURS = "manyhands"


@dataclass(frozen=True)
class Contender:
    """A program that can be timed: steps/s in an environment, over some seconds, with a seed."""

    name: str
    measure: Callable[[str, float, int], float]

    @property
    def is_peer(self) -> bool:
        return self.name not in (OURS, BARE, BARE_OURS)


@dataclass(frozen=True)
class Speed:
    """One measurement."""

    env: str
    contender: str
    speed: float


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="each contender is timed per round")
    parser.add_argument("--env", nargs="+", default=list(ENVS))
    parser.add_argument("--seed", type=int, default=101, help="of the first round; each adds one")
    parser.add_argument("--set", action="append", default=[], help="more settings for manyhands train")
    parser.add_argument("--peers", type=Path, default=peers.VENV, help="the virtual environment of the peers")
    parser.add_argument("--go-on", action="store_true", help="add rounds to those that were measured before")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    interpreter = peers.python(options.peers)
    found = _contenders(interpreter, [word for text in options.set for word in ("--set", text)])
    measured, seeds = _earlier(options.out) if options.go_on else ([], [])
    new = range(options.seed + len(seeds), options.seed + len(seeds) + options.rounds)
    measured += _take_turns(found, options.env, new, options.seconds)
    envs = list(dict.fromkeys(item.env for item in measured))
    report = _report(found, measured, envs, arguments, [*seeds, *new], peers.versions(interpreter))
    report.save(options.out, _picture(found, measured, envs))


def _contenders(interpreter: Path, extra: list[str]) -> list[Contender]:
    found = [
        Contender(OURS, partial(_time_manyhands, extra)),
        Contender(BARE, partial(_time_bare, 0)),
        Contender(BARE_OURS, partial(_time_bare, 1)),
    ]
    for vector, name in (("dummy", "DummyVecEnv"), ("subproc", "SubprocVecEnv")):
        for threads, how in ((0, "torch's threads"), (1, "1 thread")):
            label = f"Stable-Baselines3, {name}, {how}"
            found.append(Contender(label, partial(_time_sb3, interpreter, vector, threads)))
    return found


def _earlier(out: Path) -> tuple[list[Speed], list[int]]:
    """Return the rounds of a report that was saved, and their seeds."""
    file = out / "speed.json"
    if not file.exists():
        raise UsageError(f"there is no {file} to go on with")
    report = json.loads(file.read_text())
    return [
        Speed(env, name, speed)
        for env, found in report["results"].items()
        for name, speeds in found["steps_per_second"].items()
        for speed in speeds
    ], report["seeds"]


def _take_turns(
    contenders: Sequence[Contender], envs: Sequence[str], seeds: Sequence[int], seconds: float
) -> list[Speed]:
    """Time contenders in turns, each round beginning with another one, so that a slow spell hits all."""
    measured = []
    for number, seed in enumerate(seeds):
        first = seed % len(contenders)
        for env in envs:
            for contender in (*contenders[first:], *contenders[:first]):
                speed = contender.measure(env, seconds, seed)
                measured.append(Speed(env, contender.name, speed))
                print(f"round {number + 1}  {env}  {contender.name}: {speed:,.0f} steps/s", flush=True)
    return measured


def _time_manyhands(extra: list[str], env: str, seconds: float, seed: int) -> float:
    how = ("--algo", "ppo", "--mode", "pipelined", "--workers", SHARDS, "--seed", seed)
    words = ("train", env, *how, *settings(SETTINGS), *extra)
    return training_speed(words, seconds, lambda row: row.get("version", 0) >= WARM_VERSION)


def _time_bare(mended: int, env: str, seconds: float, seed: int) -> float:
    """Time all cores at once, counting over the same stretch of time."""
    start = time.time() + HEAD_START
    script = Path(__file__).with_name("bare_loop.py")
    processes = []
    for core in range(cores()):
        numbers = {"mended": mended, "lanes": LANES, "seconds": seconds, "start": start}
        numbers["seed"] = seed + 1000 * core
        command = [sys.executable, str(script), env, *flags(numbers)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=HEAD_START + seconds + START_TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise RunError(f"the bare loop of {env} failed")
    return float(sum(json.loads(last_line(text))["speed"] for text in said))


def _time_sb3(interpreter: Path, vector: str, threads: int, env: str, seconds: float, seed: int) -> float:
    numbers = {
        "threads": threads,
        "lanes": SHARDS * LANES,
        "steps": STEPS,
        "minibatch": MINIBATCH,
        "epochs": EPOCHS,
        "seconds": seconds,
        "seed": seed,
    }
    script = str(Path(__file__).with_name("peers_sb3.py"))
    command = [str(interpreter), script, env, "--vector", vector, *flags(numbers)]
    return float(run_json(command, START_TIMEOUT + 10 * seconds)["speed"])


def _speeds(measured: Sequence[Speed], env: str, name: str) -> list[float]:
    """Return the speeds of one contender, round after round."""
    return [item.speed for item in measured if (item.env, item.contender) == (env, name)]


def _ratios(contenders: Sequence[Contender], measured: Sequence[Speed], env: str) -> dict[str, list[float]]:
    """Return the ratios of manyhands to the best peer and to the bare loop, within each round."""
    ours = _speeds(measured, env, OURS)
    peers_speeds = [_speeds(measured, env, contender.name) for contender in contenders if contender.is_peer]
    best = [max(round_speeds) for round_speeds in zip(*peers_speeds, strict=True)]

    def over(others: list[float]) -> list[float]:
        return [a / b for a, b in zip(ours, others, strict=True)]

    return {
        "over the best Stable-Baselines3": over(best),
        "over Gymnasium's environments alone": over(_speeds(measured, env, BARE)),
        "over its own environments alone": over(_speeds(measured, env, BARE_OURS)),
    }


def _report(
    contenders: Sequence[Contender],
    measured: Sequence[Speed],
    envs: Sequence[str],
    arguments: list[str],
    seeds: Sequence[int],
    peer_versions: str,
) -> Report:
    tables, results = [], {}
    for env in envs:
        speeds = {contender.name: _speeds(measured, env, contender.name) for contender in contenders}
        ratios = _ratios(contenders, measured, env)
        rows = [
            (name, f"{statistics.median(values):,.0f}", *(f"{value:,.0f}" for value in values))
            for name, values in sorted(speeds.items(), key=lambda item: -statistics.median(item[1]))
        ]
        rows += [
            (f"manyhands {name}", f"{statistics.median(values):.2f}", *(f"{value:.2f}" for value in values))
            for name, values in ratios.items()
        ]
        rounds = [f"round {number + 1}" for number in range(len(speeds[OURS]))]
        tables.append(Table(f"{env}, steps/s", ("", "median", *rounds), rows))
        results[env] = {"steps_per_second": speeds, "ratios": ratios}
    return Report(
        name="speed",
        title="Training speed",
        arguments=arguments,
        seeds=list(seeds),
        tables=tables,
        notes=(
            f"PPO, {SHARDS * LANES} lanes, {SHARDS * LANES * STEPS:,} steps a batch, minibatches of "
            f"{MINIBATCH}, {EPOCHS} epochs, separate 64-64 tanh nets for policy and value, on the processor.",
            f"manyhands: `manyhands train` in pipelined mode with {SHARDS} workers, from its metrics.jsonl "
            f"after batch {WARM_VERSION}; checkpoints and metrics are written as always, tests are off.",
            "Stable-Baselines3: whole batches of `PPO.learn` after a first one; the best of its four ways "
            "counts, in every round anew.",
            f"Environments alone: {cores()} processes with {LANES} lanes each, random actions, nothing else. "
            "They and Stable-Baselines3 step Gymnasium's own code; manyhands leaves out its check of every "
            "action, and has a LunarLander of its own that gives the same bits in less time.",
            f"Peers: {peer_versions}.",
        ),
        results=results,
    )


def _picture(contenders: Sequence[Contender], measured: Sequence[Speed], envs: Sequence[str]) -> Figure:
    figure = new_figure(10, 0.9 + 2.6 * len(envs))
    panels = figure.subplots(len(envs), 1, squeeze=False)[:, 0]
    for axes, env in zip(panels, envs, strict=True):
        medians = {c.name: statistics.median(_speeds(measured, env, c.name)) for c in contenders}
        names = sorted(medians, key=lambda name: medians[name])
        colours = [{OURS: BLUE, BARE: GREEN, BARE_OURS: GREEN}.get(name, GREY) for name in names]
        axes.barh(names, [medians[name] for name in names], color=colours, alpha=0.8, height=0.65)
        for y, name in enumerate(names):
            values = _speeds(measured, env, name)
            axes.scatter(values, [y] * len(values), color="#222222", s=12, zorder=3)
            axes.annotate(
                f"{medians[name]:,.0f}",
                (max(values), y),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        axes.set_title(env, loc="left", fontweight="bold", fontsize=11)
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        tidy(axes)
        axes.grid(False, axis="y")
    panels[-1].set_xlabel("environment steps per second while training (bar: median, dots: rounds)")
    return figure
