"""Cores of one machine that learn together: each plays whole episodes and moves the shared weights itself."""

import mmap
import time
import traceback
from collections.abc import Callable

import numpy as np

from manyhands.algos.a3c import A3cCore
from manyhands.algos.configs import A3cConfig, HogwildConfig
from manyhands.algos.shared_optimizer import KEPT, SharedOptimizer
from manyhands.collect.player import TRIES
from manyhands.collect.signs import BEATS, EPISODE, LANE, unshared
from manyhands.collect.streams import action_stream, env_seed
from manyhands.envs import make as envs
from manyhands.errors import EnvError
from manyhands.experience import Array, ShardState, Trajectory
from manyhands.nets.build import Actor
from manyhands.orders import Fault, Notice, Task
from manyhands.policy import NetSpec, Weights

Report = Callable[[Fault | Notice], None]
CLOCK = 64
"""Bytes before the vector, the first eight of which count the optimizer's steps."""


class SharedMemory:
    """One vector of weights and what its optimizer keeps, in memory that all cores map."""

    def __init__(self, buffer: bytearray | mmap.mmap, spec: NetSpec, config: HogwildConfig) -> None:
        kept = KEPT[config.optimizer]
        self.clock = np.frombuffer(buffer, np.int64, 1)
        self.vector = np.frombuffer(buffer, np.float32, spec.size, CLOCK)
        flat = np.frombuffer(buffer, np.float32, kept * spec.trained, CLOCK + 4 * spec.size)
        self.state = flat.reshape(kept, spec.trained)
        self.optimizer = SharedOptimizer(config, self.vector[: spec.trained], self.state, self.clock)

    @staticmethod
    def size(spec: NetSpec, config: HogwildConfig) -> int:
        return CLOCK + 4 * (spec.size + KEPT[config.optimizer] * spec.trained)


class HogwildShard:
    """One core: its environment, and an episode of learning for every order."""

    def __init__(
        self,
        task: Task,
        index: int,
        worker: str,
        report: Report,
        memory: SharedMemory,
        callable_env: envs.MakeEnv | None = None,
        progress: memoryview | None = None,
    ) -> None:
        assert isinstance(task.hogwild, A3cConfig)
        self.task, self.index, self.worker, self.report = task, index, worker, report
        self.callable_env = callable_env
        self.progress = progress if progress is not None else unshared()
        self.env = envs.make_to_play(task.env, callable_env)
        spaces = envs.describe(self.env)
        if spaces.obs.shape != task.layout.obs_shape or not task.layout.action.fits(spaces.action):
            raise EnvError(f"{task.env.id} has other spaces here than where the run was started")
        self.encode = envs.encoder(self.env.observation_space, spaces.obs)
        self.decode = envs.decoder(self.env.action_space, task.layout.action)
        self.core = A3cCore(task.hogwild, task.spec, task.layout.action, memory.vector, memory.optimizer)
        self.memory = memory
        self.obs = np.zeros((2, *task.layout.obs_shape), task.layout.obs_dtype)
        self.sequence, self.episode = 0, 0

    def restore(self, state: ShardState) -> None:
        """Learning cannot be done again, so an episode that was cut short is over."""
        self.sequence, self.episode = state.sequence, state.lanes[0].episode

    def play(self, actor: Actor, weights: Weights, out: dict[str, Array], sequence: int) -> Trajectory:
        """One whole episode, learned from on the way."""
        began = time.perf_counter()
        for attempt in range(TRIES):
            try:
                total, length = self._episode()
                break
            except EnvError:
                raise
            except Exception as error:
                seed = env_seed(self.task.seed, self.index, self.episode)
                text = traceback.format_exc()
                self.report(Fault(self.worker, self.index, self.index, self.episode, seed, text))
                if attempt == TRIES - 1:
                    raise EnvError(f"{self.task.env.id} failed {TRIES} times in a row: {error}") from error
                self.env = envs.make_to_play(self.task.env, self.callable_env)
                self.episode += 1
        self.episode += 1
        self.sequence = sequence + 1
        for name in ("obs", "action", "reward"):
            out[name][...] = 0
        out["terminated"][...], out["truncated"][...] = True, False
        out["last_obs"][...], out["episode"][...] = self.obs[0], self.episode
        out["episode_return"][0], out["episode_length"][0] = total, length
        return Trajectory.from_arrays(
            out,
            self.task.layout.columns,
            0,
            1,
            shard=self.index,
            sequence=sequence,
            version=weights.version,
            maker=self.worker,
            seconds=time.perf_counter() - began,
            played=length,
        )

    def _episode(self) -> tuple[float, int]:
        now, following = self.obs
        self.progress[LANE], self.progress[EPISODE] = 0, self.episode
        self.progress[BEATS] += 1
        first, _ = self.env.reset(seed=env_seed(self.task.seed, self.index, self.episode))
        self.encode(first, now)
        self.core.begin(action_stream(self.task.seed, self.index, self.episode))
        total, length = 0.0, 0
        while True:
            action = self.core.act(now)
            self.progress[BEATS] += 1
            seen, reward, terminated, truncated, _ = self.env.step(self.decode(action)[0])
            self.encode(seen, following)
            amount = float(reward)
            total += amount
            length += 1
            if not np.isfinite(amount) or not np.isfinite(following).all():
                raise EnvError(f"{self.task.env.id} broke its contract: what it gave is not finite")
            self.core.step(now, action, amount, following, terminated, terminated or truncated)
            now[...] = following
            if terminated or truncated:
                return total, length

    def close(self) -> None:
        self.env.close()
