"""Deep Q-learning on small environments: across seeds, on MinAtar's boards, and how fast the memory is."""

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parts import Measured, side_by_side
from manyhands.algos.dqn import DqnConfig
from manyhands.algos.replay import Replay
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.seeding import trial_seed
from manyhands.core.trajectories import Layout, Trajectory
from manyhands.envs import make as envs
from manyhands.runs.agent import load
from manyhands.runs.plots import BLUE, GREEN, ORANGE
from manyhands.runs.report import Table, manyhands, run_json, trained
from manyhands.runs.store import LAST, Run
from manyhands.system.memory import resident_megabytes

KINDS: dict[str, tuple[str, ...]] = {
    "DQN": ("--algo", "dqn", "--set", "algo.double=false"),
    "Double DQN": ("--algo", "dqn", "--set", "algo.double=true"),
    "Ape-X": ("--algo", "apex"),
}
BOARD, BOARD_STEPS = "MinAtar/Breakout-v1", 200_000
BOARD_SEEDS = 3
OTHERS = {"500,000": "5.8", "1,000,000": "11.1", "5,000,000": "16.7"}
"""Scores of MinAtar's own example of DQN after so many steps, as a user of it noted in public: ten episodes
of one run each. The paper (Young & Tian 2019) shows curves and gives no numbers."""
REPLAY_ROWS, REPLAY_BATCH, REPLAY_ROUNDS = 1_000_000, 512, 300
LONG_ROUNDS = 10_000
TIMEOUT = 7200.0


def train(path: Path, *words: object) -> Run:
    """Train once by command line, and return the run."""
    return trained(("train", *words), path, TIMEOUT)


def judged(run: Run, episodes: int, seed: int, which: str | None = None) -> dict[str, Any]:
    words: list[object] = ["eval", run.path, "--episodes", episodes, "--seed", seed, "--json"]
    return run_json(manyhands(*words, *(["--which", which] if which else [])), TIMEOUT)


def seeds(path: Path, options: argparse.Namespace) -> Measured:
    def job(env: str, kind: str, seed: int) -> tuple[float, int, bool]:
        run = train(path / f"{env}-{kind}-{seed}", env, *KINDS[kind], "--seed", seed, "--workers", 0)
        result = judged(run, 100, 10_000 + seed)
        return float(result["mean"]), int(run.status()["steps"]), bool(result["solved"])

    keys = [
        (env, kind, s) for env in ("CartPole-v1", "LunarLander-v3") for kind in KINDS for s in options.seeds
    ]
    found = side_by_side({key: partial(job, *key) for key in keys})
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


def board(path: Path, options: argparse.Namespace) -> Measured:
    def job(kind: str, seed: int) -> dict[str, Any]:
        words = (BOARD, *KINDS[kind], "--seed", seed, "--workers", 0, "--steps", BOARD_STEPS)
        run = train(path / f"board-{kind}-{seed}", *words)
        predicted, real = values(run, 100, seed)
        curve = [(row["steps"], row["return_mean"]) for row in run.rows() if "return_mean" in row]
        said = [(row["steps"], row["q_mean"]) for row in run.rows() if "q_mean" in row]
        return {
            "mean": float(judged(run, 100, 10_000 + seed, LAST)["mean"]),
            "predicted": predicted,
            "real": real,
            "curve": curve[:: 1 + len(curve) // 100],
            "said": said[:: 1 + len(said) // 100],
        }

    keys = [(kind, seed) for kind in KINDS for seed in options.seeds[:BOARD_SEEDS]]
    found = side_by_side({key: partial(job, *key) for key in keys})
    rows = []
    for kind in KINDS:
        runs = [found[kind, seed] for seed in options.seeds[:BOARD_SEEDS]]
        over = [run["predicted"] - run["real"] for run in runs]
        cells = ([run[name] for run in runs] for name in ("mean", "predicted", "real"))
        rows.append((kind, *map(_spread, cells), _spread(over)))
    rows += [
        (f"published: MinAtar's example, {steps} steps", mean, "", "", "") for steps, mean in OTHERS.items()
    ]
    columns = ("", "mean return", "predicted value", "real value", "predicted - real")
    title = f"{BOARD}, {BOARD_STEPS:,} steps: median and range over {BOARD_SEEDS} seeds"
    return [Table(title, columns, rows)], {" ".join(map(str, key)): value for key, value in found.items()}


def _spread(values: Array | Sequence[float]) -> str:
    return f"{float(np.median(values)):.1f} ({float(np.min(values)):.1f} to {float(np.max(values)):.1f})"


def values(run: Run, episodes: int, seed: int) -> tuple[float, float]:
    """Return the mean value that the last agent gives to states, and the mean return that followed."""
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


def replay() -> Measured:
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
    size = small.nbytes / 20_000
    before, after = _grown(small, pixels)
    rows = [
        (f"prioritised, batches of {REPLAY_BATCH} out of {REPLAY_ROWS:,}: items/s", f"{rate:,.0f}"),
        ("bytes per Atari transition", f"{size:,.0f}"),
        ("MB of the process, with the memory full", f"{before:,.0f}"),
        (f"and after {LONG_ROUNDS:,} more rounds of adding and drawing", f"{after:,.0f}"),
    ]
    numbers = {"items_per_second": rate, "bytes": size, "full": before, "later": after}
    return [Table("Replay memory", ("", ""), rows)], numbers


def _grown(memory: Replay, layout: Layout) -> tuple[float, float]:
    """Return the megabytes of this process once the memory is full, and long after."""
    arrays = layout.allocate()
    for array in arrays.values():
        array[...] = 0
    rng = np.random.default_rng(0)
    steps = 0

    def add(rounds: int) -> None:
        nonlocal steps
        for _ in range(rounds):
            for shard in range(memory.lanes // layout.lanes):
                made = Trajectory.from_arrays(
                    arrays, layout.columns, 0, 0, shard=shard, sequence=steps, version=0, maker=""
                )
                memory.add(made, made.reward, 0.6)
            steps += 1
            drawn = memory.draw(rng, 32, 0.5)
            memory.update(drawn.places, rng.normal(size=32), 0.6)

    add(memory.slots // layout.steps + 1)
    full = resident_megabytes(os.getpid())
    add(LONG_ROUNDS)
    return full, resident_megabytes(os.getpid())


def draw_board(board: Any, over: Any, found: Mapping[str, Any]) -> None:
    for kind, colour in zip(KINDS, (ORANGE, BLUE, GREEN), strict=True):
        runs = [run for key, run in found.items() if key.rpartition(" ")[0] == kind]
        for number, run in enumerate(runs):
            label = kind if number == 0 else None
            board.plot(*zip(*run["curve"], strict=True), color=colour, lw=1.0, label=label)
            over.plot(*zip(*run["said"], strict=True), color=colour, lw=1.0, label=label)
            over.plot([BOARD_STEPS], [run["real"]], "s", color=colour)
    board.set_title(f"{BOARD}: mean return in training")
    over.set_title("value of a state: predicted in training; squares: what came of it at the end")
    if found:
        board.legend(frameon=False)
        over.legend(frameon=False)
