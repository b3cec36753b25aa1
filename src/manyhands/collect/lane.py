"""One environment and its position in its random streams."""

from collections.abc import Callable
from typing import Any

import numpy as np

from manyhands.core.orders import Task
from manyhands.core.seeding import action_stream, env_seed
from manyhands.envs import make as envs
from manyhands.envs.contract import begin

NOWHERE = -1


class Lane:
    """One environment and its position in its random streams."""

    def __init__(self, task: Task, index: int, make_env: Callable[[], envs.Env]) -> None:
        self.task = task
        self.index = index  # among all lanes of the run
        self.make_env = make_env
        self.env = make_env()
        self.per_seed: int = getattr(self.env.unwrapped, "episodes_per_seed", 1)
        self.stands_at = NOWHERE  # the episode that the environment has begun by itself
        self.episode = -1
        self.skip: frozenset[int] = frozenset()  # episodes that brought a process down
        self.total = 0.0
        self.length = 0
        self.rng: np.random.Generator

    @property
    def seed(self) -> int:
        """The seed of this episode, or of a few in a row where a new seed takes long."""
        return env_seed(self.task.seed, self.index, self.episode - self.episode % self.per_seed)

    def begin(self, episode: int) -> Any:
        """Starts an episode and returns its first observation."""
        self.episode = episode
        self.total, self.length = 0.0, 0
        self.rng = action_stream(self.task.seed, self.index, episode)
        after_seed = episode % self.per_seed
        goes_on = after_seed > 0 and self.stands_at == episode - 1
        self.stands_at = NOWHERE
        obs = begin(self.env, None if goes_on else self.seed)
        for _ in range(0 if goes_on else after_seed):
            obs = begin(self.env)
        self.stands_at = episode
        return obs

    def rebuild(self) -> None:
        """Put a new environment in place of one that failed; the old one may fail at closing, too."""
        self.stands_at = NOWHERE
        envs.close(self.env)
        self.env = self.make_env()
