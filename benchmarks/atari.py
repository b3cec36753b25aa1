"""Deep Q-learning: speed beside Stable-Baselines3, Breakout, seeds, MinAtar, overestimation, replay."""

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import parts, peers
from benchmarks.parts import Measured
from benchmarks.q_learning import board, draw_board, judged, replay, seeds, train
from benchmarks.timed import START_TIMEOUT, flags, training_speed
from manyhands.runs.plots import BLUE, GREY, ORANGE, new_figure, tidy
from manyhands.runs.report import Table, cores, manyhands, run_json, settings
from manyhands.runs.store import BEST, LAST, Run

SEEDS = (601, 602, 603, 604, 605)
"""Seeds reserved for this benchmark."""
GAME = "BreakoutNoFrameskip-v4"
BATCH, RATIO, MEMORY, WARMUP = 32, 4, 20_000, 1000
SPEED_ROUNDS, SPEED_SECONDS = 7, 15.0
MILLION = 250_000
"""Agent steps in a million frames."""
SPARING = {"algo.steps_per_update": 6, "algo.n_step": 3}
"""Settings in place of 4 and 1, the published: half an hour allows fewer updates; three steps teach more."""
HOUR_SECONDS = 3600.0
HOUR = ("--algo", "dqn", "--until", "steps", "--steps", 600_000)
GAMES, TRIALS = 30, 10
NOTES = (
    f"speed: {GAME}, batch {BATCH}, one update per {RATIO} steps, the network of Mnih et al. 2015, in turns. "
    "A step is four frames. Stable-Baselines3 with 8 environments makes two updates after every eight steps.",
    "million: the published settings, but an update per six steps (not four) towards returns of three steps "
    "(not one); the published time is ten hours. Scores are whole games with random actions one time in a "
    "hundred.",
    "best: the same for an hour from the command to the end.",
    "seeds: solved means a mean of 100 fresh episodes at the environment's threshold.",
    "board: MinAtar's Breakout, the mean of 100 fresh episodes. The published scores are those of MinAtar's "
    "own example, ten episodes of one run, as a user noted in public; the paper has curves, no numbers.",
    "overestimation: what the network says a state is worth, and what came of it (discounted), over 100 "
    "episodes with the greedy policy.",
    "replay: prioritised, one million transitions; drawing and updating counted together.",
)


def main(arguments: list[str]) -> None:
    options = parts.parse("atari", __doc__, PARTS, SEEDS, arguments)
    with tempfile.TemporaryDirectory(prefix="manyhands-atari-") as temporary:
        path = Path(temporary)
        made: dict[str, parts.Part] = {
            "speed": partial(_speed, options),
            "million": partial(_million, path, options),
            "best": partial(_best, path, options),
            "seeds": partial(seeds, path, options),
            "board": partial(board, path, options),
            "replay": replay,
        }
        parts.measure("atari", "Deep Q-learning", made, options, NOTES, _picture)


PARTS = ("speed", "million", "best", "seeds", "board", "replay")


def _speed(options: argparse.Namespace) -> Measured:
    interpreter = peers.python(peers.VENV)
    contenders: dict[str, Callable[[int], float]] = {"manyhands": _our_speed}
    for lanes in (1, 8):
        contenders[f"Stable-Baselines3, {lanes} env"] = partial(_sb3_speed, interpreter, lanes)
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(SPEED_ROUNDS):
        for name, measure in contenders.items():
            speeds[name].append(measure(options.seeds[number % len(options.seeds)]))
            print(f"round {number + 1}  {name}: {speeds[name][-1]:.0f} steps/s", flush=True)
    best = [max(pair) for pair in zip(*list(speeds.values())[1:], strict=True)]
    ratios = [ours / theirs for ours, theirs in zip(speeds["manyhands"], best, strict=True)]
    rows = [
        (name, f"{statistics.median(values):.0f}", *(f"{value:.0f}" for value in values))
        for name, values in speeds.items()
    ]
    rows.append(
        (
            "manyhands over the better one",
            f"{statistics.median(ratios):.2f}",
            *(f"{value:.2f}" for value in ratios),
        )
    )
    rounds = [f"round {number + 1}" for number in range(SPEED_ROUNDS)]
    table = Table(f"DQN on {GAME}, agent steps/s", ("", "median", *rounds), rows)
    return [table], {"speeds": speeds, "ratios": ratios, "peers": peers.versions(interpreter)}


def _our_speed(seed: int) -> float:
    chosen = {"algo.memory": MEMORY, "algo.warmup": WARMUP, "run.test_every": 10**12, "algo.batch": BATCH}
    words = ("train", GAME, "--algo", "dqn", "--seed", seed, *settings(chosen))
    return training_speed(words, SPEED_SECONDS, lambda row: row.get("updates", 0) >= 100)


def _sb3_speed(interpreter: Path, lanes: int, seed: int) -> float:
    script = str(Path(__file__).with_name("peers_sb3_dqn.py"))
    numbers = {"lanes": lanes, "batch": BATCH, "ratio": RATIO, "memory": MEMORY, "warmup": WARMUP}
    command = [str(interpreter), script, GAME, *flags({**numbers, "seconds": SPEED_SECONDS, "seed": seed})]
    return float(run_json(command, START_TIMEOUT + 10 * SPEED_SECONDS)["speed"])


def _million(path: Path, options: argparse.Namespace) -> Measured:
    seed, began = options.seeds[0], time.perf_counter()
    words = ("--algo", "dqn", "--steps", MILLION, "--seed", seed, *settings(SPARING))
    run = train(path / "million", GAME, *words)
    minutes = (time.perf_counter() - began) / 60
    tests = [(row["steps"], row["test_mean"]) for row in run.rows() if "test_mean" in row]
    final = judged(run, GAMES, seed)
    rows = [
        ("wall clock, from the command to the end", f"{minutes:.1f} minutes"),
        ("published", "about 10 hours"),
        *((f"score after {steps:,} steps", f"{mean:.1f}") for steps, mean in tests),
        (f"best agent, {GAMES} whole games", f"{final['mean']:.1f} (sd {final['sd']:.1f})"),
    ]
    table = Table(f"A million frames of {GAME}", ("", "DQN"), rows)
    training = [(row["steps"], row["return_mean"]) for row in run.rows() if "return_mean" in row]
    return [table], {"minutes": minutes, "tests": tests, "training": training[:: 1 + len(training) // 300]}


def _best(path: Path, options: argparse.Namespace) -> Measured:
    """Train until the hour is over, judge the best agent by whole games, and film it."""
    seed, began = options.seeds[0], time.perf_counter()
    chosen = settings({**SPARING, "algo.threads": cores()})
    words = manyhands("train", GAME, *HOUR, *chosen, "--seed", seed, "--dir", path / "best", "--quiet")
    process = subprocess.Popen(words)
    try:
        process.wait(HOUR_SECONDS - 20)  # it stops and saves within seconds
    except subprocess.TimeoutExpired:
        process.terminate()
    process.wait(120)
    return _shown(Run(path / "best"), (time.perf_counter() - began) / 60, options)


def _shown(run: Run, minutes: float, options: argparse.Namespace) -> Measured:
    """Judge and film the last agent or the best tested one, whichever does better in a few other games."""
    seed = options.seeds[0]
    which = max((LAST, BEST), key=lambda name: float(judged(run, TRIALS, seed + 1000, name)["mean"]))
    final = judged(run, GAMES, seed, which)
    film = options.out / "breakout.gif"
    words = ("play", run.path, "--which", which, "--out", film, "--seed", seed)
    subprocess.run(manyhands(*words), check=True, capture_output=True)
    training = [(row["steps"], row["return_mean"]) for row in run.rows() if "return_mean" in row]
    steps = int(run.status()["steps"])
    rows = [
        ("wall clock", f"{minutes:.1f} minutes"),
        ("cores", str(cores())),
        ("agent steps", f"{steps:,}"),
        ("steps/s", f"{steps / minutes / 60:,.0f}"),
        (f"mean of {GAMES} whole games", f"{final['mean']:.1f}"),
        ("sd, lowest, median, highest", ", ".join(f"{final[k]:.0f}" for k in ("sd", "min", "median", "max"))),
    ]
    table = Table(f"The best agent of an hour on {GAME}", ("", " ".join(map(str, HOUR[:2]))), rows)
    return [table], {"final": final, "training": training[:: 1 + len(training) // 300]}


def _picture(results: Mapping[str, Any]) -> Figure:
    figure = new_figure(13, 7.5)
    speed, breakout, board, over = figure.subplots(2, 2).ravel()
    speeds = results.get("speed", {}).get("speeds", {})
    for x, found in enumerate(speeds.values()):
        speed.bar(x, statistics.median(found), color=BLUE if x == 0 else GREY, alpha=0.8, width=0.6)
        speed.scatter([x] * len(found), found, color="#222222", s=12, zorder=3)
    speed.set_xticks(range(len(speeds)), list(speeds))
    speed.set_title(f"DQN on {GAME}: agent steps/s")
    for name, colour in (("million", ORANGE), ("best", BLUE)):
        curve = results.get(name, {}).get("training", [])
        if curve:
            breakout.plot(*zip(*curve, strict=True), color=colour, lw=1.2, label=LABELS[name])
            breakout.legend(frameon=False)
    breakout.set_title(f"{GAME}: mean score of recent games in training")
    breakout.set_xlabel("agent steps")
    draw_board(board, over, results.get("board", {}))
    for axes in (speed, breakout, board, over):
        tidy(axes)
    return figure


LABELS = {"million": "a million frames", "best": "an hour"}
