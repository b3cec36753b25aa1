"""Steps/s of Stable-Baselines3's PPO. A script for `.venv-peers`, run by path; it knows nothing of manyhands.

Prints one JSON object: steps, seconds, speed, threads and the versions it ran with.
"""

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium
import torch
from stable_baselines3 import PPO  # type: ignore[import-not-found]
from stable_baselines3.common.monitor import Monitor  # type: ignore[import-not-found]
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv  # type: ignore[import-not-found]


def maker(env_id: str) -> Callable[[], Any]:
    """Return a maker of environments without Gymnasium's checker, as manyhands and the bare loop do."""
    return lambda: Monitor(gymnasium.make(env_id, disable_env_checker=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("--vector", choices=("dummy", "subproc"), required=True)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 leaves its default")
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="per lane and batch")
    parser.add_argument("--minibatch", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    vector = DummyVecEnv if options.vector == "dummy" else SubprocVecEnv
    envs = vector([maker(options.env) for _ in range(options.lanes)])
    model = PPO(
        "MlpPolicy",  # its default is two separate nets of 64-64 tanh
        envs,
        n_steps=options.steps,
        batch_size=options.minibatch,
        n_epochs=options.epochs,
        seed=options.seed,
        device="cpu",
    )
    batch = options.lanes * options.steps
    model.learn(batch)  # the first pass through everything allocates and compiles
    before, began = model.num_timesteps, time.perf_counter()
    while time.perf_counter() - began < options.seconds:
        model.learn(batch, reset_num_timesteps=False)
    seconds, steps = time.perf_counter() - began, model.num_timesteps - before
    envs.close()
    packages = ("stable_baselines3", "torch", "gymnasium", "numpy")
    result = {
        "steps": steps,
        "seconds": seconds,
        "speed": steps / seconds,
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in packages},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
