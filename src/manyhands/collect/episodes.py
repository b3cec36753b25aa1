"""Playing whole episodes to judge an agent."""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from manyhands.collect.policy import open_policy
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Float32
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import EnvError
from manyhands.core.evaluation import Evaluation
from manyhands.core.heartbeat import BEATS, EPISODE, LANE, NOBODY, unshared
from manyhands.core.networks import NetSpec
from manyhands.core.seeding import TEST, action_stream, hash_seed, trial_seed
from manyhands.core.weights import Weights
from manyhands.envs import make as envs
from manyhands.envs.codec import codec, reward_number
from manyhands.envs.contract import begin, is_wrong_step, wrong_step
from manyhands.envs.describe import describe

LANES = 16
"""Episodes played side by side."""
TRIES = 3
"""How often in a row an environment may fail to begin an episode."""
MAX_LENGTH = 110_000
"""Steps after which an episode that does not end by itself is counted as it stands; Atari's run to 108,000,
where a step is one frame."""
Report = Callable[[int, int, str], None]
"""Called with an environment that raised: the episode, its seed, the traceback."""


class EpisodePlayer:
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
        self.progress = progress if progress is not None else unshared()
        self.report = report
        self.progress[EPISODE] = NOBODY
        self.envs: list[envs.Env] = []
        for _ in range(lanes):
            self.envs.append(envs.make_to_play(env, callable_env))
            self.progress[BEATS] += 1
        self.encode, self.decode = codec(self.envs[0], spec.input_shape, action)
        self.obs = np.zeros((lanes, *spec.input_shape), describe(self.envs[0]).obs.dtype)
        self.policy = open_policy(spec, action)

    def play(
        self,
        weights: Weights,
        episodes: int,
        seed: int,
        sample: bool = False,
        first: int = 0,
        skip: Sequence[int] = (),
    ) -> Evaluation:
        """Play `episodes` whole episodes, counted from `first`; another one in place of each in `skip`."""
        self.policy.load(weights)
        noise_scale = self.action.noise_scale(sample)
        lanes = min(len(self.envs), episodes)
        playing = list(range(lanes))  # which episode each lane plays; -1 when there is none left
        returns, lengths = [0.0] * episodes, [0] * episodes
        streams = [self._begin(lane, seed, first + lane, skip.count(first + lane)) for lane in range(lanes)]
        begun, left, failures = lanes, episodes, 0
        while left:
            outputs = self.policy.outputs(self.obs)
            noise: Float32 | None = None
            if noise_scale:
                noise = np.zeros((len(self.obs), self.action.noises), np.float32)
                for lane in range(lanes):
                    noise[lane] = noise_scale * self.action.noise(streams[lane], 1)[0]
            actions = self.decode(self.policy.choose(outputs, noise))
            busy = [lane for lane, episode in enumerate(playing) if episode >= 0]

            def about_to_step(i: int, busy: list[int] = busy) -> None:
                self.progress[LANE], self.progress[EPISODE] = busy[i], first + playing[busy[i]]

            envs.start([self.envs[lane] for lane in busy], [actions[lane] for lane in busy], about_to_step)
            for lane in busy:
                episode = playing[lane]
                stepped = self._step(lane, actions[lane], seed, first + episode)
                if stepped is None:  # it failed: another one in its place, from its beginning
                    failures += 1
                    returns[episode], lengths[episode] = 0.0, 0
                    failed = failures + skip.count(first + episode)
                    streams[lane] = self._begin(lane, seed, first + episode, failed)
                    continue
                reward, done = stepped
                returns[episode] += reward
                lengths[episode] += 1
                if done or lengths[episode] >= MAX_LENGTH:
                    left -= 1
                    playing[lane] = -1
                    if begun < episodes:
                        failed = skip.count(first + begun)
                        streams[lane], playing[lane] = self._begin(lane, seed, first + begun, failed), begun
                        begun += 1
        if not np.isfinite(returns).all():
            raise EnvError(f"{self.env.id} broke its contract: a reward is not finite")
        return Evaluation(tuple(returns), tuple(lengths))

    def _step(self, lane: int, action: Any, seed: int, episode: int) -> tuple[float, bool] | None:
        """Return the reward and whether the episode is over; None when the environment was replaced."""
        self.progress[LANE], self.progress[EPISODE] = lane, episode
        self.progress[BEATS] += 1
        try:
            stepped = self.envs[lane].step(action)
        except Exception as error:
            if is_wrong_step(error):
                raise EnvError(f"{self.env.id} broke its contract: {wrong_step((None,) * 4)}") from error
            self._replace(lane, seed, episode, error)
            return None
        try:
            obs, reward, terminated, truncated, _ = stepped
        except (TypeError, ValueError):
            raise EnvError(f"{self.env.id} broke its contract: {wrong_step(stepped)}") from None
        self.encode(obs, self.obs[lane])
        try:
            return reward_number(reward), terminated or truncated
        except EnvError as error:
            raise EnvError(f"{self.env.id} broke its contract: {error}") from None

    def _begin(self, lane: int, seed: int, episode: int, failures: int = 0) -> np.random.Generator:
        """Begin an episode; after `failures` it is another one, by another seed."""
        for attempt in range(failures, failures + TRIES):
            self.progress[LANE], self.progress[EPISODE] = lane, episode
            self.progress[BEATS] += 1
            try:
                obs = begin(self.envs[lane], trial_seed(seed, episode, attempt))
            except EnvError as error:
                raise EnvError(f"{self.env.id} broke its contract: {error}") from error
            except Exception as error:
                self._replace(lane, seed, episode, error)
                continue
            self.encode(obs, self.obs[lane])
            return action_stream(hash_seed(seed, TEST), attempt, episode)
        raise EnvError(f"{self.env.id} failed {TRIES} times in a row to begin an episode")

    def _replace(self, lane: int, seed: int, episode: int, error: Exception) -> None:
        if self.report is None:
            raise EnvError(f"{self.env.id} failed: {type(error).__name__}: {error}") from error
        self.report(episode, trial_seed(seed, episode), "".join(traceback.format_exception(error)))
        envs.close(self.envs[lane])
        self.envs[lane] = envs.make_to_play(self.env, self.callable_env)

    def close(self) -> None:
        for env in self.envs:
            self.progress[BEATS] += 1
            envs.close(env)
