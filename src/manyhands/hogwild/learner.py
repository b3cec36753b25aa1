"""The learner of a run whose cores learn by themselves: counts versions, saves, replaces."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from manyhands.core.arrays import Array, Float32
from manyhands.core.errors import RunError
from manyhands.core.horizon import Horizon
from manyhands.core.networks import NetSpec
from manyhands.core.trajectories import ReplayChunk, Trajectory
from manyhands.core.weights import Weights, average
from manyhands.hogwild.cores import SharedMemory


class HogwildLearner:
    """A learner whose version of the weights is a round of episodes, in which the cores learn."""

    chunks = 0  # of what is remembered

    def __init__(
        self, memory: SharedMemory, spec: NetSpec, first: Weights, horizon: Horizon, anneal: bool
    ) -> None:
        """With `anneal` cores learn ever more slowly, and at the horizon not at all."""
        self.memory, self.spec, self.version = memory, spec, first.version
        self.horizon, self.anneal, self.steps = horizon, anneal, np.zeros(1, np.int64)
        memory.vector[...] = first.vector
        memory.left[...] = 1.0
        self._slow_down()
        self.kept = self._copied()

    def weights(self) -> Weights:
        return Weights(self.version, self.memory.vector.copy(), self.spec.schema)

    def average_into(self, vector: Float32, share: float) -> None:
        """Average with the present weights, which cores may have moved while others were asked."""
        self.memory.vector[...] = average(self.memory.vector, vector, share)

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        self.version += 1
        self.steps += sum(trajectory.steps for trajectory in trajectories)
        self._slow_down()
        if not np.isfinite(self.memory.vector).all():
            raise RunError(
                f"the weights are no longer finite after {self.version} rounds; "
                "try a smaller algo.learning_rate or algo.reward_scale"
            )
        self.kept = self._copied()
        return {"updates": float(self.memory.clock[0])}

    def _slow_down(self) -> None:
        if self.anneal:
            self.memory.left[...] = self.horizon.left(int(self.steps[0]), self.version)

    def _copied(self) -> dict[str, Array]:
        """Return a copy of what belongs to this version's weights; between two rounds no core changes it."""
        return {name: array.copy() for name, array in self._small().items()}

    def _small(self) -> dict[str, Array]:
        memory = self.memory
        return {
            "optimizer": memory.state,
            "clock": memory.clock,
            "steps": self.steps,
            "played": memory.played,
            "targets": memory.target_params,
            "counts": memory.replay.counts,
        }

    def state(self) -> dict[str, Array]:
        """Return the state. Rows written since are not counted; in a full memory they replaced the oldest."""
        return {**self.kept, "rows": self.memory.replay.rows.copy()}

    def load_state(self, version: int, state: Mapping[str, Array]) -> None:
        for name, array in {**self._small(), "rows": self.memory.replay.rows}.items():
            array[...] = state[name]
        self._slow_down()
        self.kept = self._copied()

    def replay_chunk(self) -> None:
        """Return nothing: nothing is remembered beside the state."""

    def oldest_needed(self) -> Array:
        return np.zeros(0, np.int64)

    def restore_replay(self, chunks: Iterable[ReplayChunk]) -> None:
        """Do nothing: there are no chunks."""
