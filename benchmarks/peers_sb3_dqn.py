"""Steps/s of Stable-Baselines3's DQN on an Atari game. A script for `.venv-peers`, run by path.

Prints one JSON object: steps, seconds, speed.
"""

import argparse
import json
import time

import ale_py
import gymnasium
from stable_baselines3 import DQN  # type: ignore[import-not-found]
from stable_baselines3.common.env_util import make_atari_env  # type: ignore[import-not-found]
from stable_baselines3.common.vec_env import VecFrameStack  # type: ignore[import-not-found]

STRETCH = 400
"""Steps of one call of `learn`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--ratio", type=int, required=True, help="environment steps for one update")
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    gymnasium.register_envs(ale_py)
    envs = VecFrameStack(make_atari_env(options.env, n_envs=options.lanes, seed=options.seed), n_stack=4)
    rounds = max(1, options.ratio // options.lanes)  # of all lanes, between two times of learning
    model = DQN(
        "CnnPolicy",  # its default is the network of Mnih et al. 2015
        envs,
        buffer_size=options.memory,
        learning_starts=options.warmup,
        batch_size=options.batch,
        train_freq=rounds,
        gradient_steps=rounds * options.lanes // options.ratio,
        target_update_interval=1000,
        seed=options.seed,
        device="cpu",
    )
    model.learn(options.warmup + STRETCH)
    before, began = model.num_timesteps, time.perf_counter()
    while time.perf_counter() - began < options.seconds:
        model.learn(STRETCH, reset_num_timesteps=False)
    seconds, steps = time.perf_counter() - began, model.num_timesteps - before
    envs.close()
    print(json.dumps({"steps": steps, "seconds": seconds, "speed": steps / seconds}))


if __name__ == "__main__":
    main()
