"""Deep Q-learning by cores that share one network and one replay memory, without a lock and without torch.

Settings: `AdqnConfig`. Each core plays, writes its own share of the memory, draws from all of it, and moves
the shared weights.
"""

import numpy as np

from manyhands.algos.configs import AdqnConfig
from manyhands.algos.shared_optimizer import SharedOptimizer
from manyhands.algos.shared_replay import SharedReplay
from manyhands.experience import Array
from manyhands.nets.numpy_gradient import NumpyGradient
from manyhands.nets.numpy_net import NumpyNet
from manyhands.policy import ActionSpec, Float32, NetSpec


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
        aim: Float32,
    ) -> None:
        """`played` [1] counts this core's steps, `aim` [n] is its target network, over all its processes."""
        self.config, self.spec, self.action = config, spec, action
        self.shared, self.optimizer, self.replay, self.index = shared, optimizer, replay, index
        self.net, self.target = NumpyGradient(spec), NumpyNet(spec)
        self.played, self.aim, self.begun = played, aim, False
        self.rng: np.random.Generator

    def begin(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.net.net.load(self.shared)
        if not self.begun:
            if self.played[0] == 0:
                self.aim[...] = self.shared
            self.target.load(self.aim)
            self.begun = True

    def epsilon(self) -> float:
        """1 at first, then falling in a straight line over this core's steps."""
        config = self.config
        way = min(1.0, float(self.played[0]) / max(1, config.epsilon_steps))
        return 1 - way * (1 - config.epsilon)

    def act(self, obs: Array) -> Array:
        outputs = self.net.net.forward(obs[None], "policy")
        spread = np.full(1, self.epsilon(), np.float32)
        action: Array = self.action.choose(outputs, spread, self.action.noise(self.rng, 1))
        return action

    def step(
        self, obs: Array, action: Array, reward: float, following: Array, terminated: bool, ended: bool
    ) -> None:
        config = self.config
        discount = 0.0 if terminated else config.gamma
        self.replay.write(self.index, obs, int(action[0]), reward * config.reward_scale, discount, following)
        self.played[0] += 1
        if self.played[0] % config.target_every == 0:
            self.aim[...] = self.shared
            self.target.load(self.aim)
        if self.played[0] % config.steps_per_update == 0 and self.replay.held >= config.warmup:
            self._learn()

    def _learn(self) -> None:
        """A step along the gradient of the mean Huber loss of Q(s, a) - (r + gamma Q'(s', argmax Q(s')))."""
        config = self.config
        self.net.net.load(self.shared)
        drawn = self.replay.sample(self.rng, config.batch, config.replacement)
        rows = np.arange(config.batch)
        judged = self.target.forward(drawn.following, "policy")
        preferred = self.net.net.forward(drawn.following, "policy") if config.double else judged
        goal = drawn.reward + drawn.discount * judged[rows, preferred.argmax(1)]
        (values,) = self.net.forward(drawn.obs, "policy")
        error = values[rows, drawn.action] - goal
        gradient = np.zeros_like(values)
        gradient[rows, drawn.action] = np.clip(error, -1.0, 1.0) / np.float32(config.batch)
        self.net.backward([gradient])
        self.optimizer.step(self.net.gradient)
