"""Deep Q-learning: speed beside Stable-Baselines3, Breakout, seeds, MinAtar, overestimation, replay."""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from manyhands.agent import load
from manyhands.algos.configs import DqnConfig
from manyhands.algos.replay import Replay
from manyhands.bench import parts, peers
from manyhands.bench.parts import Measured
from manyhands.bench.report import Table, last_line, manyhands, run_json, settings
from manyhands.bench.timed import START_TIMEOUT, flags, training_speed
from manyhands.collect.streams import trial_seed
from manyhands.envs import make as envs
from manyhands.errors import RunError
from manyhands.experience import Array, Layout
from manyhands.policy import ActionSpec
from manyhands.runs.plots import BLUE, GREEN, GREY, ORANGE, new_figure, tidy
from manyhands.runs.store import LAST, Run

SEEDS = (601, 602, 603, 604, 605)
"""Reserved for this benchmark."""
GAME = "BreakoutNoFrameskip-v4"
BATCH, RATIO, MEMORY, WARMUP = 32, 4, 20_000, 1000
SPEED_ROUNDS, SPEED_SECONDS = 3, 25.0
MILLION = 250_000
"""Agent steps: a million frames."""
BEST_SECONDS = 3600.0
BEST = (
    *("--algo", "ppo", "--until", "steps", "--steps", 5_000_000),
    *settings({"net.filters": "small", "net.hidden": [256]}),
)
GAMES = 30
KINDS: dict[str, tuple[str, ...]] = {
    "DQN": ("--algo", "dqn", "--set", "algo.double=false"),
    "Double DQN": ("--algo", "dqn", "--set", "algo.double=true"),
    "Ape-X": ("--algo", "apex"),
}
BOARD, BOARD_STAGES = "MinAtar/Breakout-v1", (100_000, 250_000, 500_000)
BOARD_SEEDS = 3
REPLAY_ROWS, REPLAY_BATCH, REPLAY_ROUNDS = 1_000_000, 512, 300
TIMEOUT = 7200.0
NOTES = (
    f"speed: {GAME}, batch {BATCH}, one update per {RATIO} steps, the network of Mnih et al. 2015, in turns. "
    "A step is four frames. Stable-Baselines3 with 8 environments makes two updates after every eight steps.",
    "million: the published settings, with their time of ten hours beside ours; scores are whole games "
    "with random actions one time in a hundred.",
    "best: any algorithm of the house, for an hour from the command to the end.",
    "seeds: solved means a mean of 100 fresh episodes at the environment's threshold.",
    "board: MinAtar's Breakout, the mean of 100 fresh episodes.",
    "overestimation: what the network says a state is worth, and what came of it (discounted), over 100 "
    "episodes with the greedy policy.",
    "replay: prioritised, one million transitions; drawing and updating counted together.",
)


def main(arguments: list[str]) -> None:
    options = parts.parse("atari", __doc__, PARTS, SEEDS, arguments)
    with tempfile.TemporaryDirectory(prefix="manyhands-atari-") as temporary:
        path = Path(temporary)
        made: dict[str, Callable[[], Measured]] = {
            "speed": partial(_speed, options),
            "million": partial(_million, path, options),
            "best": partial(_best, path, options),
            "seeds": partial(_seeds, path, options),
            "board": partial(_board, path, options),
            "replay": _replay,
        }
        parts.measure("atari", "Deep Q-learning", made, options, arguments, NOTES, _picture)


PARTS = ("speed", "million", "best", "seeds", "board", "replay")


def _train(path: Path, *words: object) -> Run:
    command = manyhands("train", *words, "--dir", path, "--quiet")
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise RunError(f"{' '.join(command)} failed: {last_line(done.stderr)}")
    return Run(path)


def _judged(run: Run, episodes: int, seed: int, which: str | None = None) -> dict[str, Any]:
    words: list[object] = ["eval", run.path, "--episodes", episodes, "--seed", seed, "--json"]
    return run_json(manyhands(*words, *(["--which", which] if which else [])), TIMEOUT)


def _speed(options: argparse.Namespace) -> Measured:
    interpreter = peers.python(peers.VENV)
    contenders: dict[str, Callable[[int], float]] = {"manyhands": _our_speed}
    for lanes in (1, 8):
        contenders[f"Stable-Baselines3, {lanes} env"] = partial(_sb3_speed, interpreter, lanes)
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(SPEED_ROUNDS):
        for name, measure in contenders.items():
            speeds[name].append(measure(options.seeds[number]))
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
    run = _train(path / "million", GAME, "--algo", "dqn", "--steps", MILLION, "--seed", seed)
    minutes = (time.perf_counter() - began) / 60
    tests = [(row["steps"], row["test_mean"]) for row in run.metrics() if "test_mean" in row]
    final = _judged(run, GAMES, seed)
    rows = [
        ("wall clock, from the command to the end", f"{minutes:.1f} minutes"),
        ("published", "about 10 hours"),
        *((f"score after {steps:,} steps", f"{mean:.1f}") for steps, mean in tests),
        (f"best agent, {GAMES} whole games", f"{final['mean']:.1f} (sd {final['sd']:.1f})"),
    ]
    table = Table(f"A million frames of {GAME} with the published settings", ("", "DQN"), rows)
    training = [(row["steps"], row["return_mean"]) for row in run.metrics() if "return_mean" in row]
    return [table], {"minutes": minutes, "tests": tests, "training": training[:: 1 + len(training) // 300]}


def _best(path: Path, options: argparse.Namespace) -> Measured:
    """Trains until the hour is over, judges the best agent by whole games, and films it."""
    seed, began = options.seeds[0], time.perf_counter()
    words = manyhands("train", GAME, *BEST, "--seed", seed, "--dir", path / "best", "--quiet")
    process = subprocess.Popen(words)
    try:
        process.wait(BEST_SECONDS - 20)  # it stops and saves within seconds
    except subprocess.TimeoutExpired:
        process.terminate()
    process.wait(120)
    minutes = (time.perf_counter() - began) / 60
    run = Run(path / "best")
    final = _judged(run, GAMES, seed)
    film = path / "breakout.gif"
    subprocess.run(
        manyhands("play", run.path, "--out", film, "--seed", seed), check=True, capture_output=True
    )
    shutil.copy(film, options.out / film.name)
    training = [(row["steps"], row["return_mean"]) for row in run.metrics() if "return_mean" in row]
    steps = int(run.status()["steps"])
    rows = [
        ("wall clock", f"{minutes:.1f} minutes"),
        ("agent steps", f"{steps:,}"),
        ("steps/s", f"{steps / minutes / 60:,.0f}"),
        (f"mean of {GAMES} whole games", f"{final['mean']:.1f}"),
        ("sd, lowest, median, highest", ", ".join(f"{final[k]:.0f}" for k in ("sd", "min", "median", "max"))),
    ]
    table = Table(f"The best agent of an hour on {GAME}", ("", " ".join(map(str, BEST[:2]))), rows)
    return [table], {"final": final, "training": training[:: 1 + len(training) // 300]}


def _side_by_side(jobs: Mapping[tuple[Any, ...], Callable[[], Any]]) -> dict[tuple[Any, ...], Any]:
    """As many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        made = {key: pool.submit(job) for key, job in jobs.items()}
        found = {}
        for key, future in made.items():
            found[key] = future.result()
            print(*key, found[key], flush=True)
    return found


def _seeds(path: Path, options: argparse.Namespace) -> Measured:
    def job(env: str, kind: str, seed: int) -> tuple[float, int, bool]:
        run = _train(path / f"{env}-{kind}-{seed}", env, *KINDS[kind], "--seed", seed, "--workers", 0)
        judged = _judged(run, 100, 10_000 + seed)
        return float(judged["mean"]), int(run.status()["steps"]), bool(judged["solved"])

    keys = [
        (env, kind, s) for env in ("CartPole-v1", "LunarLander-v3") for kind in KINDS for s in options.seeds
    ]
    found = _side_by_side({key: partial(job, *key) for key in keys})
    rows = []
    for env in ("CartPole-v1", "LunarLander-v3"):
        for kind in KINDS:
            results = [found[env, kind, seed] for seed in options.seeds]
            means, steps = [mean for mean, _, _ in results], [count for _, count, _ in results]
            rows.append(
                (
                    f"{env}, {kind}",
                    f"{sum(solved for _, _, solved in results)} of {len(results)}",
                    f"{statistics.median(means):.0f} ({min(means):.0f} to {max(means):.0f})",
                    f"{statistics.median(steps):,.0f} ({min(steps):,} to {max(steps):,})",
                )
            )
    table = Table("Learning across seeds", ("", "solved", "mean return", "steps"), rows)
    return [table], {" ".join(map(str, key)): value for key, value in found.items()}


def _board(path: Path, options: argparse.Namespace) -> Measured:
    def job(kind: str, seed: int) -> list[tuple[float, float, float]]:
        """Score, predicted and real value after every stage; a resume goes on exactly."""
        directory, stages = path / f"board-{kind}-{seed}", []
        for steps in BOARD_STAGES:
            words = (BOARD, *KINDS[kind], "--seed", seed, "--workers", 0, "--steps", steps)
            if directory.exists():
                _resume(directory, steps)
            else:
                _train(directory, *words)
            judged = _judged(Run(directory), 100, 10_000 + seed, LAST)
            stages.append((float(judged["mean"]), *values(Run(directory), 100, seed)))
        return stages

    keys = [(kind, seed) for kind in KINDS for seed in options.seeds[:BOARD_SEEDS]]
    found = _side_by_side({key: partial(job, *key) for key in keys})
    scores, predictions = [], []
    for kind in KINDS:
        table = np.array([found[kind, seed] for seed in options.seeds[:BOARD_SEEDS]])  # [seed, stage, 3]
        scores.append((kind, *(_spread(table[:, stage, 0]) for stage in range(len(BOARD_STAGES)))))
        over = table[:, :, 1] - table[:, :, 2]
        said, came = np.median(table[:, -1, 1]), np.median(table[:, -1, 2])
        predictions.append((kind, f"{said:.2f}", f"{came:.2f}", _spread(over[:, -1])))
    stages = tuple(f"{steps:,} steps" for steps in BOARD_STAGES)
    return [
        Table(f"{BOARD}: mean return, median and range over seeds", ("", *stages), scores),
        Table(
            "Overestimation at the end", ("", "predicted", "real", "predicted - real (range)"), predictions
        ),
    ], {" ".join(map(str, key)): value for key, value in found.items()}


def _resume(directory: Path, steps: int) -> None:
    command = manyhands("train", "--resume", directory, "--steps", steps, "--quiet")
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise RunError(f"{' '.join(command)} failed: {last_line(done.stderr)}")


def _spread(values: Array | Sequence[float]) -> str:
    return f"{float(np.median(values)):.1f} ({float(np.min(values)):.1f} to {float(np.max(values)):.1f})"


def values(run: Run, episodes: int, seed: int) -> tuple[float, float]:
    """What the last agent thinks that states are worth, and what came of them: means over its episodes."""
    config = run.config()
    assert isinstance(config.algo, DqnConfig)
    agent, env = load(run, LAST), envs.make(config.env)
    said, came = [], []
    for episode in range(episodes):
        obs, _ = env.reset(seed=trial_seed(seed, episode))
        rewards: list[float] = []
        over = False
        while not over and len(rewards) < 2000:
            said.append(float(agent.values(obs).max()))
            obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
            rewards.append(float(reward) * config.algo.reward_scale)
            over = terminated or truncated
        total = 0.0
        for reward in reversed(rewards):
            total = reward + config.algo.gamma * total
            came.append(total)
    env.close()
    return float(np.mean(said)), float(np.mean(came))


def _replay() -> Measured:
    layout = Layout(64, 1, (4,), "<f4", ActionSpec("values", (4,)), ("q_taken", "q_max"))
    replay = Replay(layout, 8, REPLAY_ROWS, 0.99, 3, True)
    assert replay.tree is not None
    rng = np.random.default_rng(0)
    replay.ahead[:] = 1
    replay.tree.put(np.arange(replay.tree.size), rng.random(replay.tree.size))
    for tail in replay.tails:
        tail.count = replay.slots
    began = time.perf_counter()
    for _ in range(REPLAY_ROUNDS):
        drawn = replay.draw(rng, REPLAY_BATCH, 0.5)
        replay.update(drawn.places, rng.normal(size=REPLAY_BATCH), 0.6)
    rate = REPLAY_ROUNDS * REPLAY_BATCH / (time.perf_counter() - began)
    pixels = Layout(4, 1, (4, 84, 84), "|u1", ActionSpec("values", (4,)), ("q_taken", "q_max"), 4)
    small = Replay(pixels, 8, 20_000, 0.99, 3, True)
    assert small.tree is not None
    columns = (small.obs, small.action, small.reward, small.discount, small.ahead, small.age)
    size = sum(array.nbytes for array in (*columns, *small.tree.levels)) / 20_000
    rows = [
        (f"prioritised, batches of {REPLAY_BATCH} out of {REPLAY_ROWS:,}: items/s", f"{rate:,.0f}"),
        ("bytes per Atari transition", f"{size:,.0f}"),
    ]
    return [Table("Replay memory", ("", ""), rows)], {"items_per_second": rate, "bytes": size}


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
    _draw_board(board, over, results.get("board", {}))
    for axes in (speed, breakout, board, over):
        tidy(axes)
    return figure


LABELS = {"million": "DQN, a million frames", "best": "PPO, an hour"}


def _draw_board(board: Any, over: Any, found: Mapping[str, Any]) -> None:
    for kind, colour in zip(KINDS, (ORANGE, BLUE, GREEN), strict=True):
        runs = [np.array(stages) for key, stages in found.items() if key.rpartition(" ")[0] == kind]
        for number, stages in enumerate(runs):
            label = kind if number == 0 else None
            board.plot(BOARD_STAGES, stages[:, 0], "o-", color=colour, lw=1.2, label=label)
            over.plot(BOARD_STAGES, stages[:, 1], "o-", color=colour, lw=1.2, label=label)
            over.plot(BOARD_STAGES, stages[:, 2], "s:", color=colour, lw=0.8)
    board.set_title(f"{BOARD}: mean return")
    over.set_title("value of a state: predicted (solid) and real (dotted)")
    if found:
        board.legend(frameon=False)
        over.legend(frameon=False)
