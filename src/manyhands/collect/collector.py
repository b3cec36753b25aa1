"""Plays orders for any number of shards of one task."""

from collections.abc import Callable

from manyhands.collect.episodes import EpisodePlayer
from manyhands.collect.moves import MoveShard
from manyhands.collect.policy import Policy, open_policy
from manyhands.collect.shard import Report, Shard
from manyhands.core.arrays import Array
from manyhands.core.events import Fault
from manyhands.core.heartbeat import SHARD, TESTING, unshared
from manyhands.core.orders import EvalOrder, EvalResult, Order, Task
from manyhands.core.roles import Group, OrderIO
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.envs import lto
from manyhands.envs import make as envs

TEST_LANES = 8
"""Episodes of a test that a worker plays side by side."""


OpenGroup = Callable[[Task, int, str, Report, envs.MakeEnv | None, memoryview, Policy], Group]
"""Opens a group of a task, given its number, the worker, the receiver of faults, a callable environment, the
heartbeat, and the policy."""


def play_lanes(
    task: Task,
    index: int,
    worker: str,
    report: Report,
    callable_env: envs.MakeEnv | None,
    progress: memoryview,
    policy: Policy,
) -> Group:
    """Open a group of any environment's lanes; learn-to-optimise computes all of its lanes at once."""
    if task.env.id == lto.ENV_ID:
        return MoveShard(task, index, worker, report, policy, progress)
    return Shard(task, index, worker, report, policy, callable_env, progress)


class OutOfTurnError(ValueError):
    """An order for another rollout than the one that its shard comes to next."""


class Collector:
    """Plays orders for any number of shards of one task."""

    def __init__(
        self,
        task: Task,
        worker: str,
        report: Report,
        callable_env: envs.MakeEnv | None = None,
        progress: memoryview | None = None,
        open_group: "OpenGroup | None" = None,
    ) -> None:
        """`open_group` is given where groups learn by themselves."""
        self.task, self.worker, self.report = task, worker, report
        self.callable_env, self.open_group = callable_env, open_group or play_lanes
        self.progress = progress if progress is not None else unshared()
        self.policy = open_policy(task.spec, task.layout.action, task.random_lanes)
        self.shards: dict[int, Group] = {}
        self.player: EpisodePlayer | None = None

    def run(self, order: Order | EvalOrder, io: OrderIO) -> None:
        """Play one order and send its result."""
        weights = io.weights(order.version)
        if isinstance(order, EvalOrder):
            io.send(self.test(order, weights))
        else:
            io.send(self.collect(order, weights, io.arrays(order)))

    def collect(self, order: Order, weights: Weights, out: dict[str, Array]) -> Trajectory:
        shard = self.shards.get(order.shard)
        self.progress[SHARD] = order.shard
        if shard is None:
            shard = self.shards[order.shard] = self.open_group(
                self.task,
                order.shard,
                self.worker,
                self.report,
                self.callable_env,
                self.progress,
                self.policy,
            )
            if order.start is None:
                shard.begin()
        if order.start is not None:
            shard.restore(order.start)
        if shard.sequence != order.sequence:
            raise OutOfTurnError(f"shard {order.shard} stands at {shard.sequence}, not {order.sequence}")
        return shard.play(weights, out, order.sequence)

    @property
    def lanes(self) -> int:
        """The number of environments that are held."""
        return len(self.shards) * self.task.layout.lanes

    def drop(self, shard: int) -> None:
        """Close a shard, which someone else plays from now on."""
        if shard in self.shards:
            self.shards.pop(shard).close()

    def test(self, eval_order: EvalOrder, weights: Weights) -> EvalResult:
        self.progress[SHARD] = TESTING
        if self.player is None:
            task = self.task
            self.player = EpisodePlayer(
                task.env,
                task.spec,
                task.layout.action,
                self.callable_env,
                TEST_LANES,
                self.progress,
                self._test_fault,
            )
        played = self.player.play(
            weights, eval_order.count, eval_order.seed, first=eval_order.first, skip=eval_order.skip
        )
        return EvalResult(eval_order.part, played)

    def _test_fault(self, episode: int, seed: int, text: str) -> None:
        self.report(Fault(self.worker, -1, -1, episode, seed, text))

    def close(self) -> None:
        for shard in self.shards.values():
            shard.close()
        if self.player is not None:
            self.player.close()
