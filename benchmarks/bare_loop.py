"""The ceiling: environments stepped with random actions and nothing else. A script, one process per core.

Plays until `--start` (seconds since 1970, so that all processes count the same stretch), then counts for
`--seconds`. Prints one JSON object: steps, seconds, speed.
"""

import argparse
import json
import time
from itertools import cycle

import gymnasium

from manyhands.core.env_config import EnvConfig
from manyhands.envs.make import make_to_play

WARM_ROUNDS = 200
CHECK_EVERY = 50
"""Rounds over the lanes between two checks of the clock."""
CHOICES = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("--mended", type=int, default=0, help="1: made as manyhands makes them for a lane")
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--start", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    lanes = [
        make_to_play(EnvConfig(options.env))
        if options.mended
        else gymnasium.make(options.env, disable_env_checker=True)
        for _ in range(options.lanes)
    ]
    space = lanes[0].action_space
    space.seed(options.seed)
    actions = [space.sample() for _ in range(CHOICES)]
    if isinstance(space, gymnasium.spaces.Discrete):
        actions = [int(action) for action in actions]
    for i, lane in enumerate(lanes):
        lane.reset(seed=options.seed + i)
    choices = cycle(actions)

    def play(rounds: int) -> int:
        for _ in range(rounds):
            for lane in lanes:
                _, _, terminated, truncated, _ = lane.step(next(choices))
                if terminated or truncated:
                    lane.reset()
        return rounds * len(lanes)

    play(WARM_ROUNDS)
    while time.time() < options.start:
        play(CHECK_EVERY)
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < options.seconds:
        steps += play(CHECK_EVERY)
    seconds = time.perf_counter() - began
    print(json.dumps({"steps": steps, "seconds": seconds, "speed": steps / seconds}))


if __name__ == "__main__":
    main()
