"""Deep Q-learning (Mnih et al. 2015) and Ape-X (Horgan et al. 2018). `q_learner.py` learns.

Results: benchmarks/.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from manyhands.algos.algorithm import Algorithm, LearnerSetup
from manyhands.algos.replay import row_shape, slots
from manyhands.algos.replay_memory import BESIDES, check
from manyhands.config.settings import Config, NetConfig
from manyhands.core.action_spaces import Discrete
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Float32
from manyhands.core.checks import not_negative, positive, require, unit
from manyhands.core.errors import UsageError
from manyhands.core.networks import NetSpec
from manyhands.core.roles import Learner
from manyhands.core.spaces import Spaces
from manyhands.core.trajectories import Layout
from manyhands.nets.build import q_network

if TYPE_CHECKING:
    from torch import Tensor

COPIES_OF_DRAWS = 3
"""Copies of a batch drawn from a replay memory: observations, what follows them, and the network's own."""


@dataclass(frozen=True)
class DqnConfig:
    """Deep Q-learning (Mnih et al. 2015), with the improvements that followed as switches."""

    learning_rate: float = 2.5e-4
    """How far a step of the optimizer (Adam) goes."""
    gamma: float = 0.99
    """Discount of future rewards."""
    max_grad_norm: float = 1.0
    """Gradients are shortened to this length where they are longer."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning; values near 1 learn best."""
    reward_clip: float = 0.0
    """Scaled rewards are cut at plus and minus this before learning; 0 never cuts."""
    double: bool = False
    """The online network chooses the next action, the target network judges it (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Q = V + A - mean A (Wang et al. 2016)."""
    n_step: int = 1
    """Rewards that are added up before the value estimate is trusted."""
    prioritised: bool = False
    """Replay more often what surprised more (Schaul et al. 2016)."""
    priority_power: float = 0.6
    """0 replays all alike, 1 in proportion to the error."""
    importance: float = 0.4
    """How far uneven replay is corrected for at first; wholly at `run.steps`."""
    memory: int = 100_000
    """Transitions that are held; the oldest go first."""
    memory_on_disk: bool = False
    """Hold the observations in a file beside the run instead of in memory; for more than memory can hold."""
    save_memory: bool = True
    """Save the transitions with the run, so that a resume is exact. Without, it fills the memory anew."""
    batch: int = 32
    """Transitions drawn from the memory for one step of the optimizer."""
    steps_per_update: float = 4.0
    """Environment steps for one step of the optimizer, held exactly whatever the number of actors."""
    warmup: int = 1000
    """Environment steps, played at random, before learning begins."""
    target_every: int = 1000
    """Environment steps after which the target network becomes a copy of the online one."""
    epsilon: float = 0.1
    """Share of random actions in the end."""
    epsilon_steps: int = 100_000
    """Environment steps after the warm-up in which the share falls from 1 to `epsilon`."""
    epsilon_ladder: float = 0.0
    """Lane i of N explores with epsilon^(1 + ladder i / (N - 1)) (Horgan et al. 2018 use 7)."""
    epsilon_test: float = 0.0
    """Share of random actions when the agent is judged; some games never end without."""
    threads: int = 1
    """Threads of the learner. Part of the result: another number sums in another order."""

    def __post_init__(self) -> None:
        positive(self, "algo", "learning_rate", "max_grad_norm", "reward_scale", "threads", "n_step")
        positive(self, "algo", "memory", "batch", "steps_per_update", "target_every")
        not_negative(self, "algo", "reward_clip", "warmup", "epsilon_steps", "epsilon_ladder")
        unit(self, "algo", "gamma", "priority_power", "importance", "epsilon", "epsilon_test")
        require(self.n_step <= 100, "algo.n_step", self.n_step, "at most 100")
        require(self.warmup >= self.batch, "algo.warmup", self.warmup, f"at least algo.batch, {self.batch}")
        require(self.memory >= self.batch, "algo.memory", self.memory, f"at least algo.batch, {self.batch}")


@dataclass(frozen=True)
class ApexConfig(DqnConfig):
    """Ape-X (Horgan et al. 2018): every switch of `dqn`, and lanes that explore to different degrees."""

    double: bool = True
    dueling: bool = True
    n_step: int = 3
    prioritised: bool = True
    epsilon: float = 0.4
    epsilon_steps: int = 10_000
    epsilon_ladder: float = 7.0


class Dqn(Algorithm):
    config, actions = DqnConfig, Discrete
    columns = ("q_taken", "q_max")
    """Q of the action and of the best one, as the actor saw them: from these come first priorities."""
    general: ClassVar[dict[str, Any]] = {
        "net": {"normalise": True, "activation": "relu", "hidden": [128, 128]},
        "collect": {"shards": 2, "lanes": 4, "steps": 16},
        "algo": {
            "batch": 128,
            "learning_rate": 5e-4,
            "epsilon": 0.05,
            "epsilon_steps": 50_000,
            "double": True,
        },
    }

    def action_spec(self, space: ActionSpec, net: NetConfig, name: str) -> ActionSpec:
        config: DqnConfig = self.settings
        return replace(space, kind="values", dueling=config.dueling, epsilon=config.epsilon_test)

    def network(self, net: NetConfig, spaces: Spaces) -> NetSpec:
        return q_network(net, spaces)

    def beside(self, lanes: int) -> dict[str, Float32]:
        """Return how often each lane explores, which the learner decides."""
        return {"epsilon": np.ones(lanes, np.float32)}

    def check_memory(self, layout: Layout, shards: int, here: bool) -> None:
        """Refuse a replay memory that is too small for its rollouts or, if it is to be `here`, too large."""
        config: DqnConfig = self.settings
        lanes = shards * layout.lanes
        least = 2 * layout.steps * lanes
        if config.memory < least:
            raise UsageError(
                f"algo.memory is {config.memory}; {lanes} lanes of {layout.steps} steps need at least {least}"
            )
        if here and not config.memory_on_disk:
            rows = lanes * slots(layout, shards, config.memory, config.n_step)
            spare = lanes * (slots(layout, shards, 0, config.n_step) + 1)
            check(rows, spare, row_shape(layout), layout.obs_dtype)

    def memory(self, layout: Layout, shards: int, spec: NetSpec) -> dict[str, int]:
        config: DqnConfig = self.settings
        rows = shards * layout.lanes * slots(layout, shards, config.memory, config.n_step)
        row = math.prod(row_shape(layout)) * np.dtype(layout.obs_dtype).itemsize + BESIDES
        drawn = 4 * math.prod(layout.obs_shape) * COPIES_OF_DRAWS
        return {
            "a replay memory (algo.memory)": rows * row,
            "draws from it (algo.batch)": config.batch * drawn,
        }

    def loss(self, value: "Tensor", td_target: "Tensor", weight: "Tensor") -> "Tensor":
        """Return mean w H(Q - target), with Huber's H(e) = e^2 / 2 up to 1 and |e| - 1/2 beyond; each [N]."""
        error = value - td_target
        size = error.abs()
        return (weight * (error.square() / 2).where(size < 1, size - 0.5)).mean()

    def loss_grad(self, value: "Tensor", td_target: "Tensor", weight: "Tensor") -> "Tensor | None":
        """Return the gradient [N] of `loss` for the values by a formula; None leaves it to autograd."""
        return (value - td_target).clamp(-1, 1) * weight / len(value)

    def for_child(self, config: Config, cores: int) -> Config:
        """Return a child's settings: it saves no memory."""
        config = super().for_child(config, cores)
        return replace(config, algo=replace(config.algo, save_memory=False))

    def learner(self, setup: LearnerSetup) -> Learner:
        from manyhands.algos.q_learner import QLearner

        return QLearner(self, setup)


class Apex(Dqn):
    config = ApexConfig
    general: ClassVar[dict[str, Any]] = {
        **Dqn.general,
        "algo": {"batch": 128, "learning_rate": 5e-4},
    }
