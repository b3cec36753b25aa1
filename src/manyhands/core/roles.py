"""The roles that the parts of a run play for one another, each as a protocol.

The loop that they add up to, in `roles/executor.py`, `roles/worker.py` and `collect/collector.py`:

    executor                                    worker
      channel.publish(learner.weights())          while order := channel.next_order():
      channel.order(Order(group, number, ...))        trajectory = group.play(weights, ...)
      trajectories = channel.receive(timeout)         channel.send(trajectory)
      metrics = learner.learn(trajectories)
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from manyhands.core.arrays import Array, Float32
from manyhands.core.events import Fault, Notice
from manyhands.core.lanes import ShardState
from manyhands.core.orders import EvalResult, Order
from manyhands.core.trajectories import ReplayChunk, Trajectory
from manyhands.core.weights import Weights


class Actor(Protocol):
    """A network that only goes forward."""

    def load(self, vector: Float32, beside: Mapping[str, Array] = {}) -> None:
        """Act with these weights; the statistics of its inputs, where it has any, are `beside` them."""

    def forward(self, obs: Float32, head_name: str) -> Float32: ...


Tensor = Any
"""A tensor of torch, which this package does not import."""


class Net(Protocol):
    """A network that learns. All that it learns is one flat vector, and its gradient another."""

    flat: Tensor  # [n], all that it learns
    gradient: Tensor  # [n]
    views: dict[str, Tensor]  # parameters by name

    def load(self, vector: Float32, beside: Mapping[str, Array] = {}) -> None:
        """Go on with these weights and, where it has any, the statistics of inputs `beside` them."""

    def vector(self) -> Float32:
        """Return a copy of the whole vector."""

    def beside(self) -> dict[str, Array]:
        """Return copies of the statistics of its inputs, by name."""

    def average_into(self, vector: Float32, share: float) -> None:
        """Move towards `vector`, by this share of the way."""

    def forward(self, obs: Tensor, *names: str) -> list[Tensor]:
        """Return the outputs [B, size] of the named heads for observations [B, ...]."""

    def backward(self, gradients: Sequence[Tensor], wanted: bool = False) -> Tensor | None:
        """Add to `gradient`, given those of the last outputs; return that of the observations if `wanted`."""

    def gradient_of(self, name: str) -> Tensor:
        """Return the part of `gradient` that belongs to a parameter."""

    def set_input_moments(self, count: float, mean: Array, square: Array) -> None:
        """Shift and scale observations by their mean and sum of squared deviations from now on."""

    def check_finite(self, steps: int) -> None:
        """Refuse to go on with weights that are not finite."""


class Group(Protocol):
    """Environments that are played together. Its bits depend on nothing beside it."""

    sequence: int  # of the rollout that comes next

    def begin(self) -> None:
        """Begin the first episodes, where nobody has played it before."""

    def restore(self, state: ShardState) -> None:
        """Go to where `state` says."""

    def play(self, weights: Weights, out: dict[str, Array], sequence: int) -> Trajectory:
        """Play one rollout with these weights, written into `out`."""

    def close(self) -> None: ...


class OrderIO(Protocol):
    """The interface through which a worker gets what an order needs, and sends its result."""

    def weights(self, version: int) -> Weights: ...

    def arrays(self, order: Order) -> dict[str, Array]:
        """Return the arrays to write the rollout into."""

    def send(self, made: Trajectory | EvalResult) -> None: ...

    def report(self, event: Fault | Notice) -> None: ...


class Learner(Protocol):
    """Learns from trajectories. Knows nothing of processes, brokers or files."""

    chunks: int  # of what is remembered, so far

    def weights(self) -> Weights: ...

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Update the weights once, to the next version; return what is worth plotting."""

    def average_into(self, vector: Float32, share: float) -> None:
        """Move the weights towards `vector`, by this share of the way."""

    def state(self) -> Mapping[str, Array]:
        """Return all that the next `learn` depends on."""

    def load_state(self, version: int, state: Mapping[str, Array]) -> None: ...

    def replay_chunk(self) -> ReplayChunk | None:
        """Return what is new since the last call and belongs to `state`, but is too large for each save."""

    def oldest_needed(self) -> Array:
        """Return the rows from which on a resume would need what they hold."""

    def restore_replay(self, chunks: Iterable[ReplayChunk]) -> None:
        """Take in all chunks again, after `load_state`."""
