"""The base of algorithms whose cores learn together on one vector without a lock (Niu et al. 2011)."""

import math
from abc import abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from manyhands.algos.algorithm import Algorithm, LearnerSetup
from manyhands.config import algorithms
from manyhands.config.settings import CollectConfig, Config
from manyhands.core import decoding
from manyhands.core.arrays import Array
from manyhands.core.checks import not_negative, positive, unit
from manyhands.core.errors import UsageError
from manyhands.core.networks import NetSpec
from manyhands.core.orders import Cores, Task
from manyhands.core.roles import Learner
from manyhands.core.spaces import Spaces
from manyhands.core.trajectories import Layout
from manyhands.system.machine import usable_cores

if TYPE_CHECKING:
    from manyhands.hogwild.cores import SharedMemory

COPIES_OF_DRAWS = 3
"""Copies of a batch that a core learns from: observations, what follows them, and the network's own."""


@dataclass(frozen=True)
class HogwildConfig:
    """Settings of every algorithm whose cores learn together."""

    optimizer: Literal["sgd", "rmsprop", "adam"] = "sgd"
    """Its numbers are shared like the weights."""
    learning_rate: float = 1e-4
    """How far a step of the optimizer goes."""
    momentum: float = 0.9
    """sgd only."""
    weight_decay: float = 0.0
    """This part of every weight is added to its gradient."""
    gamma: float = 0.99
    """Discount of future rewards."""
    max_grad_norm: float = 0.0
    """Gradients are shortened to this length; 0 never shortens."""
    max_update: float = 0.0
    """rmsprop and adam: a step's root mean square over the learning rate, at most; 0 is no limit."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning."""
    batch: int = 120
    """Steps of a core, or drawn transitions, for one step of the optimizer."""
    epsilon: float = 0.01
    """Share of random actions."""
    anneal: bool = False
    """Let the learning rate fall to 0 towards the run's end, or the parent's."""

    def __post_init__(self) -> None:
        positive(self, "algo", "learning_rate", "reward_scale", "batch")
        not_negative(self, "algo", "weight_decay", "max_grad_norm", "max_update")
        unit(self, "algo", "gamma", "epsilon", "momentum")


class Core(Protocol):
    """One core of a machine: plays with a copy of the shared weights, and moves them."""

    def begin(self, rng: np.random.Generator) -> None: ...

    def act(self, obs: Array) -> Array:
        """Return one action for one observation, as it is stored."""

    def step(
        self, obs: Array, action: Array, reward: float, next_obs: Array, terminated: bool, ended: bool
    ) -> None:
        """Learn from a step when it is time to. `next_obs` is the observation after it."""


class Hogwild(Algorithm):
    """Learns where it plays, so actors record no columns; rounds of episodes are versions of the weights."""

    uses_cores = True
    general: ClassVar[dict[str, Any]] = {"run": {"mode": "sync", "max_lag": 1_000_000}}
    """Settings for every environment: no version of the weights is too old."""
    largest: ClassVar[str] = "net.hidden"
    """The setting that decides how much memory the cores share."""
    targets: ClassVar[bool] = False
    """Whether every core has a target network."""

    @classmethod
    def of(cls, cores: Cores) -> "Hogwild":
        """Return the algorithm that a task names for its cores."""
        kind = algorithms.find(cores.algo)
        if not issubclass(kind, Hogwild):
            raise ValueError(f"{cores.algo!r:.60}, which does not learn on cores")
        made: Hogwild = kind(decoding.decode(kind.config, cores.settings, "the algorithm's settings"))
        return made

    def cores(self, count: int, name: str) -> Cores:
        """Return what a task says of the cores; `name` is what the run calls the algorithm."""
        return Cores(count, name, asdict(self.settings))

    def check(self, config: Config, spaces: Spaces) -> None:
        if spaces.obs.image:
            raise UsageError(
                f"{config.run.algo} learns with dense networks, and {config.env.id} has image observations"
            )
        if config.net.normalise or config.net.state_std:
            raise UsageError(
                f"{config.run.algo} does not support net.normalise and net.state_std; leave them out"
            )

    def collecting(self, collect: CollectConfig, workers: int) -> CollectConfig:
        """Return how experience is made: each core is a shard of one lane."""
        cores = workers if workers >= 0 else usable_cores()
        return CollectConfig(shards=max(1, cores), lanes=1, steps=1)

    def memory(self, layout: Layout, shards: int, spec: NetSpec) -> dict[str, int]:
        drawn = 4 * math.prod(layout.obs_shape) * COPIES_OF_DRAWS
        return {"batches (algo.batch)": shards * self.settings.batch * drawn}

    def for_child(self, config: Config, cores: int) -> Config:
        return replace(config, collect=replace(config.collect, shards=cores))

    def learner(self, setup: LearnerSetup) -> Learner:
        from manyhands.hogwild.learner import HogwildLearner

        return HogwildLearner(setup.memory, setup.spec, setup.weights, setup.horizon, self.settings.anneal)

    @property
    def capacity(self) -> int:
        """The number of each core's transitions in a replay memory that all share."""
        return 0

    @abstractmethod
    def core(self, task: Task, index: int, memory: "SharedMemory") -> Core:
        """Return core number `index` of those that share `memory`."""
