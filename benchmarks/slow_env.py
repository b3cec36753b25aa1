"""An environment that takes its time, as a simulator does: for `python -m benchmarks ray`."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from manyhands.core.arrays import Array

LENGTH = 50


class Slow(gymnasium.Env[Array, Any]):
    """A walk on a line, `seconds` a step."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds, self.at, self.length = seconds, 0.0, 0
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.length = float(self.np_random.normal()), 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds)
        self.at += 0.1 if action else -0.1
        self.length += 1
        return self._obs(), -abs(self.at), False, self.length >= LENGTH, {}

    def _obs(self) -> Array:
        return np.array([self.at, self.length / LENGTH], np.float32)
