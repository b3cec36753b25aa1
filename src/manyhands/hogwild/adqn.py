"""Deep Q-learning by cores that share one network and one replay memory, without a lock and without torch.

Each core plays, writes its own share of the memory, draws from all of it, and moves
the shared weights.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from manyhands.config.settings import NetConfig
from manyhands.core.action_spaces import Discrete
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array, Float32
from manyhands.core.checks import not_negative, positive, require
from manyhands.core.networks import NetSpec
from manyhands.core.orders import Task
from manyhands.core.spaces import Spaces
from manyhands.hogwild.algorithm import Core, Hogwild, HogwildConfig
from manyhands.hogwild.shared_optimizer import SharedOptimizer
from manyhands.hogwild.shared_replay import MARGIN, SharedReplay
from manyhands.nets.build import q_network
from manyhands.nets.numpy_gradient import NumpyGradient
from manyhands.nets.numpy_net import NumpyNet

if TYPE_CHECKING:
    from manyhands.hogwild.cores import SharedMemory


@dataclass(frozen=True)
class AdqnConfig(HogwildConfig):
    """Deep Q-learning by cores that share a network and a replay memory."""

    optimizer: Literal["sgd", "rmsprop", "adam"] = "adam"
    learning_rate: float = 5e-4
    batch: int = 64
    max_grad_norm: float = 10.0
    epsilon: float = 0.05
    epsilon_steps: int = 10_000
    """A core's steps in which the share of random actions falls from 1 to `epsilon`."""
    memory: int = 50_000
    """Transitions that each core's share of the memory holds."""
    replacement: bool = True
    """Whether one transition may be drawn twice for a batch."""
    steps_per_update: int = 2
    """A core's steps for one step of the optimizer."""
    warmup: int = 2000
    """Transitions of all cores before learning begins."""
    target_every: int = 500
    """A core's steps after which its target network becomes a copy of the shared one."""
    double: bool = True
    """The online network chooses the next action, the target network judges it (van Hasselt et al. 2016)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "memory", "steps_per_update", "target_every")
        not_negative(self, "algo", "epsilon_steps")
        require(self.warmup >= self.batch, "algo.warmup", self.warmup, f"at least algo.batch, {self.batch}")
        least = self.warmup + MARGIN
        require(self.memory >= least, "algo.memory", self.memory, f"at least {least}, for algo.warmup")


class AdqnCore:
    """One core. Its target network is a copy of the shared weights as they were some steps ago."""

    def __init__(
        self,
        config: AdqnConfig,
        spec: NetSpec,
        action: ActionSpec,
        shared: Float32,
        optimizer: SharedOptimizer,
        replay: SharedReplay,
        index: int,
        played: Array,
        target_params: Float32,
    ) -> None:
        """`played` [1] counts its steps, `target_params` [n] is its target network, over all processes."""
        self.config, self.spec, self.action = config, spec, action
        self.shared, self.optimizer, self.replay, self.index = shared, optimizer, replay, index
        self.net, self.target = NumpyGradient(spec), NumpyNet(spec)
        self.played, self.target_params, self.begun = played, target_params, False
        self.rng: np.random.Generator

    def begin(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.net.net.load(self.shared)
        if not self.begun:
            if self.played[0] == 0:
                self.target_params[...] = self.shared
            self.target.load(self.target_params)
            self.begun = True

    def epsilon(self) -> float:
        """The share of random actions: 1 at first, then falling in a straight line over this core's steps."""
        config = self.config
        way = min(1.0, float(self.played[0]) / max(1, config.epsilon_steps))
        return 1 - way * (1 - config.epsilon)

    def act(self, obs: Array) -> Array:
        outputs = self.net.net.forward(obs[None], "policy")
        exploration = np.full(1, self.epsilon(), np.float32)
        action: Array = self.action.choose(outputs, exploration, self.action.noise(self.rng, 1))
        return action

    def step(
        self, obs: Array, action: Array, reward: float, next_obs: Array, terminated: bool, ended: bool
    ) -> None:
        config = self.config
        discount = 0.0 if terminated else config.gamma
        self.replay.write(self.index, obs, int(action[0]), reward * config.reward_scale, discount, next_obs)
        self.played[0] += 1
        if self.played[0] % config.target_every == 0:
            self.target_params[...] = self.shared
            self.target.load(self.target_params)
        if self.played[0] % config.steps_per_update == 0 and self.replay.held >= config.warmup:
            self._learn()

    def _learn(self) -> None:
        """Step along the gradient of the mean Huber loss of Q(s, a) - (r + gamma Q'(s', argmax Q(s')))."""
        config = self.config
        self.net.net.load(self.shared)
        drawn = self.replay.sample(self.rng, config.batch, config.replacement)
        rows = np.arange(config.batch)
        judged = self.target.forward(drawn.next_obs, "policy")
        preferred = self.net.net.forward(drawn.next_obs, "policy") if config.double else judged
        td_target = drawn.reward + drawn.discount * judged[rows, preferred.argmax(1)]
        (values,) = self.net.forward(drawn.obs, "policy")
        error = values[rows, drawn.action] - td_target
        gradient = np.zeros_like(values)
        gradient[rows, drawn.action] = np.clip(error, -1.0, 1.0) / np.float32(config.batch)
        self.net.backward([gradient])
        self.optimizer.step(self.net.gradient)


class Adqn(Hogwild):
    config, actions = AdqnConfig, Discrete
    general: ClassVar[dict[str, Any]] = {
        **Hogwild.general,
        "net": {"activation": "relu", "hidden": [128, 128]},
    }
    largest = "algo.memory (steps of each core)"
    targets = True

    @property
    def capacity(self) -> int:
        return int(self.settings.memory)

    def action_spec(self, space: ActionSpec, net: NetConfig, name: str) -> ActionSpec:
        return replace(space, kind="values")

    def network(self, net: NetConfig, spaces: Spaces) -> NetSpec:
        return q_network(net, spaces)

    def core(self, task: Task, index: int, memory: "SharedMemory") -> Core:
        played = memory.played[index : index + 1]
        shared = (memory.vector, memory.optimizer, memory.replay)
        return AdqnCore(
            self.settings, task.spec, task.layout.action, *shared, index, played, memory.target_params[index]
        )
