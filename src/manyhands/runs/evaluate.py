"""Playing whole episodes to judge an agent."""

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyhands.collect.streams import TEST, action_stream, mix
from manyhands.config import EnvConfig
from manyhands.envs import make as envs
from manyhands.errors import EnvError
from manyhands.nets.build import Actor, actor
from manyhands.policy import ActionSpec, Float32, NetSpec, Weights

LANES = 16
"""Episodes played side by side."""
MAX_LENGTH = 30_000
"""Steps after which an episode that does not end by itself is counted as it stands; Atari's run to 27,000."""


Report = Callable[[int, int, str], None]
"""Told of an environment that raised: the episode, its seed, the traceback."""


@dataclass(frozen=True)
class Evaluation:
    """The returns and lengths of whole episodes, in the order of their seeds."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def sd(self) -> float:
        return float(np.std(self.returns))

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(len(self.returns))

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def steps(self) -> int:
        return sum(self.lengths)

    def promising(self, goal: float, episodes: int, margin: float) -> bool:
        """Whether a test of `episodes` could still end `margin` standard errors above the goal.

        It should unless its mean is now a whole standard error below what it will have to be then.
        """
        needed = goal + margin * self.sd / math.sqrt(episodes)
        return self.mean + self.error >= needed

    def __add__(self, more: "Evaluation") -> "Evaluation":
        return Evaluation(self.returns + more.returns, self.lengths + more.lengths)

    def to_plain(self) -> dict[str, Any]:
        return {"returns": list(self.returns), "lengths": list(self.lengths)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Evaluation":
        return cls(tuple(map(float, plain["returns"])), tuple(map(int, plain["lengths"])))

    def summary(self, solved_at: float | None) -> dict[str, float | int | bool | None]:
        return {
            "mean": self.mean,
            "sd": self.sd,
            "min": min(self.returns),
            "max": max(self.returns),
            "median": float(np.median(self.returns)),
            "episodes": self.episodes,
            "solved": None if solved_at is None else self.mean >= solved_at,
        }


class Player:
    """Plays episodes side by side. Episode i depends on the seed, i and the weights alone."""

    def __init__(
        self,
        env: EnvConfig,
        spec: NetSpec,
        action: ActionSpec,
        callable_env: envs.MakeEnv | None = None,
        lanes: int = LANES,
        progress: memoryview | None = None,
        report: Report | None = None,
    ) -> None:
        """`report` is told of environments that raise; without it they end the evaluation."""
        self.env, self.action = env, action
        self.callable_env = callable_env
        self.progress = progress if progress is not None else memoryview(bytearray(32)).cast("q")
        self.report = report
        self.envs = [envs.make(env, callable_env) for _ in range(lanes)]
        spaces = envs.describe(self.envs[0], action.squash)
        if spaces.obs.shape != spec.input_shape or spaces.action != action:
            raise EnvError(f"{env.id} has other spaces now than when the agent was trained")
        self.encode = envs.encoder(self.envs[0].observation_space, spaces.obs)
        self.decode = envs.decoder(self.envs[0].action_space, action)
        self.obs = np.zeros((lanes, *spaces.obs.shape), spaces.obs.dtype)
        self.actor: Actor = actor(spec)

    def play(
        self, weights: Weights, episodes: int, seed: int, sample: bool = False, first: int = 0
    ) -> Evaluation:
        """`episodes` whole episodes, counted from `first`."""
        self.actor.load(weights.vector)
        log_std = np.zeros(1, np.float32)
        if self.action.kind == "gaussian":
            log_std = self.actor.forward(self.obs, "log_std")
        lanes = min(len(self.envs), episodes)
        playing = list(range(lanes))  # which episode each lane plays; -1 when there is none left
        returns, lengths = [0.0] * episodes, [0] * episodes
        streams = [self._begin(lane, seed, first + lane) for lane in range(lanes)]
        begun, left = lanes, episodes
        while left:
            outputs = self.actor.forward(self.obs, "policy")
            noise: Float32 | None = None
            if sample:
                noise = np.zeros((len(self.obs), self.action.outputs), np.float32)
                for lane in range(lanes):
                    noise[lane] = self.action.noise(streams[lane], 1)[0]
            actions = self.decode(self.action.choose(outputs, log_std, noise))
            for lane, episode in enumerate(playing):
                if episode < 0:
                    continue
                reward, done = self._step(lane, actions[lane], seed, first + episode)
                returns[episode] += reward
                lengths[episode] += 1
                if done or lengths[episode] >= MAX_LENGTH:
                    left -= 1
                    playing[lane] = -1
                    if begun < episodes:
                        streams[lane], playing[lane] = self._begin(lane, seed, first + begun), begun
                        begun += 1
        if not np.isfinite(returns).all():
            raise EnvError(f"{self.env.id} broke its contract: a reward is not finite")
        return Evaluation(tuple(returns), tuple(lengths))

    def _step(self, lane: int, action: Any, seed: int, episode: int) -> tuple[float, bool]:
        self.progress[0] = lane
        self.progress[1] += 1
        try:
            obs, reward, terminated, truncated, _ = self.envs[lane].step(action)
        except Exception as error:
            if self.report is None:
                raise EnvError(f"{self.env.id} failed: {type(error).__name__}: {error}") from error
            self.report(episode, _env_seed(seed, episode), traceback.format_exc())
            self.envs[lane] = envs.make(self.env, self.callable_env)
            return 0.0, True
        self.encode(obs, self.obs[lane])
        return float(reward), terminated or truncated

    def _begin(self, lane: int, seed: int, episode: int) -> np.random.Generator:
        self.progress[0] = lane
        obs, _ = self.envs[lane].reset(seed=_env_seed(seed, episode))
        self.encode(obs, self.obs[lane])
        return action_stream(mix(seed, TEST), 0, episode)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _env_seed(seed: int, episode: int) -> int:
    return mix(seed, TEST, episode) >> 33
