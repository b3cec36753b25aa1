"""Spreading a run over workers changes no bit of its result; by algorithm in channels/test_algorithms.py."""

import hashlib
from pathlib import Path

import pytest

from manyhands.config import algorithms
from manyhands.config.resolve import merge
from manyhands.config.settings import Config
from manyhands.runs.store import LAST
from manyhands.runs.training import train

SMALL = {
    "net": {"normalise": True},
    "collect": {"shards": 4, "lanes": 2, "steps": 32},
    "run": {"steps": 4096, "until": "steps", "seed": 11, "test_every": 2048, "test_episodes": 4},
}


def digest(path: Path, env: str, algo: str, mode: str, workers: int) -> str:
    run = {"algo": algo, "mode": mode, "workers": workers}
    config = Config.from_plain(merge(SMALL, {"env": {"id": env}, "run": run}))
    weights = train(config, directory=path / f"{algo}-{mode}-{workers}").checkpoint(LAST).weights
    assert weights.version == 16
    return hashlib.sha256(weights.vector.tobytes()).hexdigest()


@pytest.mark.parametrize("env", ["LunarLander-v3", "Pendulum-v1", "small_envs:Target"])
def test_any_number_of_workers_gives_the_same_weights(tmp_path: Path, env: str) -> None:
    assert digest(tmp_path, env, "ppo", "pipelined", 0) == digest(tmp_path, env, "ppo", "pipelined", 2)


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    plain = merge(SMALL, {"env": {"id": "CartPole-v1"}, "run": {"workers": 0}})
    runs = [
        train(Config.from_plain(merge(plain, {"run": {"seed": seed}})), directory=tmp_path / str(seed))
        for seed in (1, 2)
    ]
    one, two = (run.checkpoint(LAST).weights.vector for run in runs)
    assert (one != two).any()


@pytest.mark.parametrize("algo", algorithms.anywhere())
def test_async_runs_with_a_bounded_lag(tmp_path: Path, algo: str) -> None:
    run_settings = {"algo": algo, "mode": "async", "workers": 2, "max_lag": 4}
    config = Config.from_plain(merge(SMALL, {"env": {"id": "CartPole-v1"}, "run": run_settings}))
    run = train(config, directory=tmp_path / "run")
    lags = [row["lag"] for row in run.rows() if "lag" in row]
    assert run.status()["steps"] >= 4096
    assert max(lags) <= 4
