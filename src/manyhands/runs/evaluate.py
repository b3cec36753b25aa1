"""Playing whole episodes to judge an agent."""

import math
from dataclasses import dataclass

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
HOPELESS = 3.0
"""Standard errors below the goal after which a test is not worth finishing."""


@dataclass(frozen=True)
class Evaluation:
    """The returns and lengths of whole episodes, in the order of their seeds."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    steps: int  # played for it, those of abandoned episodes included

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
    ) -> None:
        self.env, self.action = env, action
        self.envs = [envs.make(env, callable_env) for _ in range(lanes)]
        spaces = envs.describe(self.envs[0], action.squash)
        if spaces.obs.shape != spec.input_shape or spaces.action != action:
            raise EnvError(f"{env.id} has other spaces now than when the agent was trained")
        self.encode = envs.encoder(self.envs[0].observation_space, spaces.obs)
        self.decode = envs.decoder(self.envs[0].action_space, action)
        self.obs = np.zeros((lanes, *spaces.obs.shape), spaces.obs.dtype)
        self.actor: Actor = actor(spec)

    def play(
        self,
        weights: Weights,
        episodes: int,
        seed: int,
        sample: bool = False,
        goal: float | None = None,
    ) -> Evaluation:
        """`episodes` whole episodes; with a `goal`, fewer when the first of them leave no hope of it."""
        self.actor.load(weights.vector)
        log_std = np.zeros(1, np.float32)
        if self.action.kind == "gaussian":
            log_std = self.actor.forward(self.obs, "log_std")
        lanes = min(len(self.envs), episodes)
        playing = list(range(lanes))  # which episode each lane plays; -1 when done
        returns, lengths = np.zeros(episodes), np.zeros(episodes, int)
        finished = np.zeros(episodes, bool)
        streams = [self._begin(lane, lane, seed) for lane in range(lanes)]
        begun = lanes
        while not finished.all():
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
                obs, reward, terminated, truncated, _ = self.envs[lane].step(actions[lane])
                self.encode(obs, self.obs[lane])
                returns[episode] += float(reward)
                lengths[episode] += 1
                if terminated or truncated or lengths[episode] >= MAX_LENGTH:
                    finished[episode] = True
                    playing[lane] = -1
                    if begun < episodes:
                        streams[lane], playing[lane] = self._begin(lane, begun, seed), begun
                        begun += 1
            if goal is not None and finished[:lanes].all():
                first = Evaluation(tuple(returns[:lanes]), tuple(lengths[:lanes]), int(lengths.sum()))
                if first.mean + HOPELESS * first.error < goal:
                    return first
                goal = None
        return Evaluation(tuple(map(float, returns)), tuple(map(int, lengths)), int(lengths.sum()))

    def _begin(self, lane: int, episode: int, seed: int) -> np.random.Generator:
        obs, _ = self.envs[lane].reset(seed=mix(seed, TEST, episode) >> 33)
        self.encode(obs, self.obs[lane])
        return action_stream(mix(seed, TEST), lane, episode)

    def close(self) -> None:
        for env in self.envs:
            env.close()
