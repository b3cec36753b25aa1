"""Plays learn-to-optimise: all lanes of a group at once in NumPy, one whole episode of each per rollout."""

import time
from collections.abc import Callable

import numpy as np

from manyhands.collect import starts
from manyhands.collect.policy import Policy
from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError
from manyhands.core.events import Fault
from manyhands.core.heartbeat import BEATS, EPISODE, LANE, unshared
from manyhands.core.lanes import ShardState
from manyhands.core.orders import Task
from manyhands.core.roles import Actor
from manyhands.core.seeding import MOVES, START, hash_seed
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.envs.lto import Problem

Report = Callable[[Fault], None]


class MoveShard:
    """A group of episodes that share their kind of start and their member of the problem.

    Its random numbers depend on (seed, group, rollout) alone, and every episode begins and ends in its
    rollout, so there is nothing to remember between two of them: whoever plays it plays the same.
    """

    def __init__(
        self,
        task: Task,
        index: int,
        worker: str,
        report: Report,
        policy: Policy,
        progress: memoryview | None,
    ) -> None:
        self.problem = Problem.of(task.env.kwargs)
        self.task, self.layout, self.index, self.policy = task, task.layout, index, policy
        self.worker, self.report = worker, report
        self.progress = progress if progress is not None else unshared()
        self.member = index % self.problem.members
        self.start = self.problem.starts[index // self.problem.members % len(self.problem.starts)]
        self.sequence = 0
        self.skip: frozenset[int] = frozenset()  # rollouts whose points brought a process down
        if task.layout.steps != self.problem.horizon:
            raise EnvError(f"collect.steps must be the horizon, {self.problem.horizon}")

    def begin(self) -> None:
        """Do nothing: an episode begins when its rollout is played."""

    def restore(self, state: ShardState) -> None:
        self.sequence = state.sequence
        self.skip = frozenset(state.lanes[0].skip)

    def play(self, weights: Weights, out: dict[str, Array], sequence: int) -> Trajectory:
        began = time.perf_counter()
        problem, layout, policy = self.problem, self.layout, self.policy
        policy.load(weights)
        # A rollout that is not to be played again has other points, and other noise.
        words = (self.task.seed, MOVES, self.index, sequence, *([1] if sequence in self.skip else []))
        rng = np.random.Generator(np.random.PCG64(hash_seed(*words)))
        point = self._starts(policy.actor, rng, sequence)
        time_lane = (layout.steps, layout.lanes)
        noise = rng.standard_normal((*time_lane, layout.action.noises), dtype=np.float32)
        outputs = {name: np.empty((*time_lane, size), np.float32) for name, size in policy.sizes.items()}
        value = first = self._evaluate(point, sequence)
        for t in range(layout.steps):
            out["obs"][t] = point
            said = policy.outputs(point)
            for name, output in said.items():
                outputs[name][t] = output
            action = policy.choose(said, noise[t])
            out["action"][t] = action
            point[:, : problem.x] = layout.action.to_env(action)
            before, value = value, self._evaluate(point, sequence)
            out["reward"][t] = before - value
        if not np.isfinite(out["reward"]).all():
            raise EnvError(f"{problem.name(self.member)} has values that are too large; rescale it")
        out["terminated"][...] = out["truncated"][...] = False
        out["terminated"][-1] = True
        out["last_obs"][...] = point
        out["episode"][...] = sequence + 1
        out["episode_return"][: layout.lanes] = first - value
        out["episode_length"][: layout.lanes] = layout.steps
        for name, column in policy.notes(outputs, out["action"], layout.columns).items():
            out[name][...] = column
        self.sequence = sequence + 1
        return Trajectory.from_arrays(
            out,
            layout.columns,
            0,
            layout.lanes,
            shard=self.index,
            sequence=sequence,
            version=weights.version,
            maker=self.worker,
            seconds=time.perf_counter() - began,
        )

    def _starts(self, actor: Actor, rng: np.random.Generator, sequence: int) -> Array:
        problem, lanes = self.problem, self.layout.lanes
        if self.start == "latin":
            seed = hash_seed(self.task.seed, START, self.index)
            return starts.latin(rng, lanes, problem.size, seed, sequence * lanes, problem.intervals)
        if self.start == "uncertainty":

            def entropy(points: Array) -> Array:
                """Return the entropy of the policy at these points, up to a constant."""
                spread = self.layout.action.normal(
                    actor.forward(points, "policy"), actor.forward(points, "log_std")
                )[1]
                doubts: Array = np.broadcast_to(spread, (len(points), problem.x)).sum(-1)
                return doubts

            return starts.uncertain(rng, lanes, problem.size, problem.candidates, entropy)
        return starts.uniform(rng, lanes, problem.size)

    def _evaluate(self, point: Array, sequence: int) -> Array:
        self.progress[LANE], self.progress[EPISODE] = 0, sequence

        def failed(text: str) -> None:
            self.report(Fault(self.worker, self.index, 0, sequence, self.task.seed, text))

        return self.problem.evaluate(point, self.member, self._beat, failed)

    def _beat(self) -> None:
        self.progress[BEATS] += 1

    def close(self) -> None:
        """Do nothing: no environment is held."""
