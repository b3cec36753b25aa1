"""The library's front door, and what a worker process is made of."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

import manyhands
from manyhands.core.errors import EnvError, UsageError


def test_train_load_act(tmp_path: Path) -> None:
    run = manyhands.train("CartPole-v1", algo="ppo", workers=2, directory=tmp_path / "run")
    agent = manyhands.load(run.path)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    total = 0.0
    while True:
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
        total += float(reward)
        if terminated or truncated:
            break
    assert total == 500


def test_actions_of_a_continuous_agent_lie_within_bounds(tmp_path: Path) -> None:
    run = manyhands.train("Pendulum-v1", workers=0, steps=2048, until="steps", directory=tmp_path / "run")
    agent = manyhands.load(run.path)
    action = agent.act(np.array([1.0, 0.0, 0.0], np.float32), sample=True)
    assert action.shape == (1,)
    assert abs(action[0]) <= 2


def test_a_wrong_setting_raises_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean algo\.gamma"):
        manyhands.train("CartPole-v1", settings={"algo": {"gama": 1}}, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_environment_for_all_lanes_is_refused(tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(EnvError, match="return a new one every time"):
        manyhands.train(lambda: env, workers=0, directory=tmp_path / "run")


def test_an_environment_in_place_of_its_maker_is_refused(tmp_path: Path) -> None:
    made: Any = gymnasium.make("CartPole-v1")
    for env in (made, gymnasium.make_vec("CartPole-v1", 2)):
        with pytest.raises(UsageError, match=r"an environment already; pass its id, or.*lambda: gymnasium"):
            manyhands.train(env, directory=tmp_path / "run")
    number: Any = 3
    with pytest.raises(UsageError, match="env is 3; it must be an id, or a function"):
        manyhands.train(number, directory=tmp_path / "run")


def test_a_script_without_a_main_guard_may_use_workers_and_lambdas(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium, manyhands\n"
        "make = lambda: gymnasium.make('CartPole-v1')\n"
        "run = manyhands.train(make, workers=2, steps=4096, until='steps', directory='run')\n"
        "print(run.status()['steps'])\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "4096", done.stderr


def test_a_worker_is_small_and_never_imports_torch(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "manyhands", "train", "LunarLander-v3", "--quiet", "--until", "steps",
         "--dir", str(tmp_path / "run"), "--set", "run.checkpoint_every=0"],
        env=dict(os.environ),
    )  # fmt: skip
    try:
        while not (tmp_path / "run" / "state.json").exists():
            assert process.poll() is None
        workers = [
            child
            for child in psutil.Process(process.pid).children()
            if "roles.worker" in " ".join(child.cmdline())
        ]
        assert workers
        for worker in workers:
            assert worker.memory_info().rss < 100e6
            assert not any("torch" in area.path for area in worker.memory_maps())
    finally:
        process.terminate()
        process.wait()
