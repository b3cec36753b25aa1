"""Cores of one machine that learn together: each plays whole episodes and moves the shared weights itself."""

import math
import mmap
import time
import traceback
from collections.abc import Callable

import numpy as np

from manyhands.collect.collector import OpenGroup
from manyhands.collect.episodes import MAX_LENGTH, TRIES
from manyhands.collect.policy import Policy
from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError
from manyhands.core.events import Fault, Notice
from manyhands.core.heartbeat import BEATS, EPISODE, LANE, unshared
from manyhands.core.lanes import ShardState
from manyhands.core.orders import Task
from manyhands.core.seeding import action_stream, env_seed
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.envs import make as envs
from manyhands.envs.codec import codec
from manyhands.envs.contract import begin, wrong_step
from manyhands.hogwild.algorithm import Hogwild
from manyhands.hogwild.shared_optimizer import KEPT, SharedOptimizer
from manyhands.hogwild.shared_replay import SharedReplay, width

Report = Callable[[Fault | Notice], None]
ALIGNMENT = 64


class SharedMemory:
    """The memory that all cores map: the weights, their optimizer's state, and perhaps a replay memory."""

    def __init__(self, buffer: bytearray | mmap.mmap, task: Task) -> None:
        assert task.cores is not None
        shapes = _shapes(task)
        at, arrays = 0, []
        for dtype, shape in shapes:
            arrays.append(np.frombuffer(buffer, dtype, math.prod(shape), at).reshape(shape))
            at += _aligned(dtype, shape)
        self.clock, self.left, self.vector, self.state, self.played, self.target_params, rows, counts = arrays
        self.optimizer = SharedOptimizer(
            Hogwild.of(task.cores).settings, self.vector, self.state, self.clock, self.left
        )
        self.replay = SharedReplay(rows, counts)

    @staticmethod
    def size(task: Task) -> int:
        return sum(_aligned(dtype, shape) for dtype, shape in _shapes(task))


def _shapes(task: Task) -> list[tuple[str, tuple[int, ...]]]:
    """Return the type and shape of the clock, the share of the learning rate that is left, the vector, the
    optimizer's state, every core's steps and target, a replay memory.
    """
    assert task.cores is not None
    algorithm, cores, spec = Hogwild.of(task.cores), task.cores.count, task.spec
    targets = cores if algorithm.targets else 0
    return [
        ("<i8", (1,)),
        ("<f4", (1,)),
        ("<f4", (spec.size,)),
        ("<f4", (KEPT[algorithm.settings.optimizer], spec.size)),
        ("<i8", (cores,)),
        ("<f4", (targets, spec.size)),
        ("<f4", (cores, algorithm.capacity, width(math.prod(spec.input_shape)))),
        ("<i8", (cores,)),
    ]


def _aligned(dtype: str, shape: tuple[int, ...]) -> int:
    size = np.dtype(dtype).itemsize * math.prod(shape)
    return size + -size % ALIGNMENT


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
        self.task, self.index, self.worker, self.report = task, index, worker, report
        self.callable_env = callable_env
        self.progress = progress if progress is not None else unshared()
        self.env = envs.make_to_play(task.env, callable_env)
        self.encode, self.decode = codec(self.env, task.layout.obs_shape, task.layout.action)
        assert task.cores is not None
        self.core = Hogwild.of(task.cores).core(task, index, memory)
        self.obs, self.next_obs, self.zeros = (
            np.zeros(task.layout.obs_shape, task.layout.obs_dtype) for _ in range(3)
        )
        self.sequence, self.episode = 0, 0
        self.skip: frozenset[int] = frozenset()  # episodes that brought a process down

    def begin(self) -> None:
        """Do nothing: an episode begins when it is played."""

    def restore(self, state: ShardState) -> None:
        """Go to where `state` says. An episode that was cut short is over: learning cannot be redone."""
        self.sequence, self.episode = state.sequence, state.lanes[0].episode
        self.skip = frozenset(state.lanes[0].skip)

    def play(self, weights: Weights, out: dict[str, Array], sequence: int) -> Trajectory:
        """Play one whole episode, and learn from it on the way."""
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
                envs.close(self.env)
                self.env = envs.make_to_play(self.task.env, self.callable_env)
                self.episode += 1
        self.episode += 1
        self.sequence = sequence + 1
        for name in ("obs", "action", "reward"):
            out[name][...] = 0
        out["terminated"][...], out["truncated"][...] = True, False
        out["last_obs"][...], out["episode"][...] = self.obs, self.episode
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
        while self.episode in self.skip:
            self.episode += 1
        self.progress[LANE], self.progress[EPISODE] = 0, self.episode
        self.progress[BEATS] += 1
        try:
            first = begin(self.env, env_seed(self.task.seed, self.index, self.episode))
        except EnvError as error:
            raise EnvError(f"{self.task.env.id} broke its contract: {error}") from error
        self.encode(first, self.obs)
        self.core.begin(action_stream(self.task.seed, self.index, self.episode))
        total, length = 0.0, 0
        while True:
            action = self.core.act(self.obs)
            self.progress[BEATS] += 1
            stepped = self.env.step(self.decode(action)[0])
            try:
                seen, reward, terminated, truncated, _ = stepped
            except (TypeError, ValueError):
                raise EnvError(f"{self.task.env.id} broke its contract: {wrong_step(stepped)}") from None
            self.encode(seen, self.next_obs)
            amount = float(reward)
            total += amount
            length += 1
            # 0 times what is not finite is not a number.
            if not math.isfinite(amount + float(np.vdot(self.next_obs, self.zeros))):
                raise EnvError(f"{self.task.env.id} broke its contract: what it gave is not finite")
            ended = terminated or truncated or length == MAX_LENGTH
            self.core.step(self.obs, action, amount, self.next_obs, terminated, ended)
            self.obs, self.next_obs = self.next_obs, self.obs
            if ended:
                return total, length

    def close(self) -> None:
        envs.close(self.env)


def open_core(memory: SharedMemory) -> OpenGroup:
    """Return what opens the cores of a task that share `memory`."""

    def opened(
        task: Task,
        index: int,
        worker: str,
        report: Report,
        callable_env: envs.MakeEnv | None,
        progress: memoryview,
        policy: Policy,
    ) -> HogwildShard:
        return HogwildShard(task, index, worker, report, memory, callable_env, progress)

    return opened
