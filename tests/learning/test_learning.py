"""Agents must actually get better: every algorithm, and every kind of space."""

from pathlib import Path
from typing import Any

import pytest

from manyhands.config import algorithms
from manyhands.config.resolve import resolve
from manyhands.config.settings import Config
from manyhands.runs.agent import judge
from manyhands.runs.store import LAST
from manyhands.runs.training import train

SEEDS = {"dqn": (21,), "apex": (), "a3c": (21,), "adqn": ()}
"""These take longer; `python -m benchmarks atari --only seeds` has five of each."""


@pytest.mark.parametrize(
    ("algo", "seed"), [(algo, seed) for algo in algorithms.BUILT_IN for seed in SEEDS.get(algo, (21, 22, 23))]
)
def test_every_algorithm_solves_cartpole(tmp_path: Path, algo: str, seed: int) -> None:
    config = resolve("CartPole-v1", algo, overrides=({"run": {"seed": seed}},))
    run = train(config, directory=tmp_path / "run")
    assert run.status()["status"] == "solved", run.status()
    result = judge(run, episodes=100, seed=987)
    assert result.goal == 475
    assert result.mean >= 475


@pytest.mark.parametrize(("algo", "steps"), [("apex", 10_000), ("adqn", 25_000)])
def test_those_that_take_longest_get_better(tmp_path: Path, algo: str, steps: int) -> None:
    layers = {"run": {"seed": 21, "steps": steps, "until": "steps", "workers": 2}}
    run = train(resolve("CartPole-v1", algo, overrides=(layers,)), directory=tmp_path / "run")
    result = judge(run, episodes=50, seed=987, which=LAST)
    assert result.mean >= 50  # an agent that does not learn gets 9


SEEN = ("box", "discrete", "multibinary", "multidiscrete", "dict", "tuple", "image")
ASKED = ("discrete", "multidiscrete", "multibinary", "box")


@pytest.mark.parametrize(
    ("seen", "asked", "squash"),
    [
        *((seen, "discrete", False) for seen in SEEN),
        *(("box", asked, False) for asked in ASKED[1:]),
        ("box", "box", True),
    ],
)
def test_every_kind_of_space_is_learned(tmp_path: Path, seen: str, asked: str, squash: bool) -> None:
    steps = 20_480 if seen != "image" else 8_192
    plain: dict[str, Any] = {
        "env": {"id": "small_envs:Target", "kwargs": {"seen": seen, "asked": asked}},
        "net": {"squash": squash, "hidden": [32], "log_std": -0.5},
        "collect": {"shards": 2, "lanes": 8, "steps": 32},
        "algo": {"learning_rate": 3e-3, "minibatch": 128, "epochs": 4},
        "run": {"workers": 2, "steps": steps, "until": "steps"},
    }
    run = train(Config.from_plain(plain), directory=tmp_path / "run")
    result = judge(run, episodes=200, seed=5, which=LAST)
    assert result.mean >= 0.9  # chance gives 0.25 to 0.5
