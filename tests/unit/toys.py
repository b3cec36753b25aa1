"""Small environments whose every number is known in advance."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class SpacesOnly(gymnasium.Env[Any, Any]):
    """Has spaces, and does nothing."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


LONGEST = 9


def length_of(seed: int) -> int:
    """How many steps the episode with this seed has."""
    return 1 + seed % LONGEST


def ending_of(seed: int) -> tuple[bool, bool]:
    """(terminated, truncated) at the last step of the episode with this seed."""
    return ((True, False), (False, True), (True, True))[seed // LONGEST % 3]


def observation(seed: int, step: int, action: int) -> np.ndarray:
    return np.array([seed % 9973, step, action], np.float32)


def reward_of(seed: int, step: int) -> float:
    return seed % 7 + 0.25 * step


class Clock(gymnasium.Env[np.ndarray, int]):
    """Says which episode it is in, at which step, and what was done last. The seed tells how it ends."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        assert seed is not None
        self.seed, self.step_number = seed, 0
        return observation(seed, 0, -1), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.step_number < length_of(self.seed), "stepped after its end"
        self.step_number += 1
        terminated, truncated = False, False
        if self.step_number == length_of(self.seed):
            terminated, truncated = ending_of(self.seed)
        obs = observation(self.seed, self.step_number, action)
        return obs, reward_of(self.seed, self.step_number), terminated, truncated, {}


class Spoiled(Clock):
    """A Clock whose steps and resets go through functions that may change or refuse them."""

    def __init__(
        self, on_step: Callable[..., Any] | None = None, on_reset: Callable[..., Any] | None = None
    ) -> None:
        self.on_step, self.on_reset = on_step, on_reset

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        return self.on_reset(self, *result) if self.on_reset else result

    def step(self, action: int) -> Any:
        result = super().step(action)
        return self.on_step(self, *result) if self.on_step else result
