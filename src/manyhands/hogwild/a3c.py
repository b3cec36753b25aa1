"""A3C (Mnih et al. 2016) as one core of a machine sees it: play, learn on the shared weights, play on.

No torch: a core's process stays small. Results: benchmarks/.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from manyhands.config.settings import NetConfig
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array, Float32
from manyhands.core.checks import not_negative, unit
from manyhands.core.networks import NetSpec
from manyhands.core.orders import Task
from manyhands.core.spaces import Spaces
from manyhands.hogwild.algorithm import Core, Hogwild, HogwildConfig
from manyhands.hogwild.shared_optimizer import SharedOptimizer
from manyhands.nets.build import actor_critic
from manyhands.nets.numpy_gradient import NumpyGradient

if TYPE_CHECKING:
    from manyhands.hogwild.cores import SharedMemory

NO_SPREAD = np.zeros(1, np.float32)
AHEAD = 64
"""Steps for which random numbers are drawn at once."""


@dataclass(frozen=True)
class A3cConfig(HogwildConfig):
    """Asynchronous advantage actor-critic (Mnih et al. 2016), with a barrier round every episode."""

    entropy: float = 0.0
    """Weight of the entropy bonus, against settling too early."""
    value_weight: float = 1.0
    """Weight of the value's loss beside the policy's."""
    average: bool = False
    """Gradients are means over the steps of a batch, not sums."""
    gae_lambda: float = 1.0
    """Trust in returns (1) against values (0), which vary less but may be wrong (Schulman et al. 2016)."""
    limit_ends: bool = False
    """Nothing is expected after an episode that a time limit has cut, as if it had ended by itself; so
    nothing is gained by waiting for the limit."""
    temperature: float = 0.0
    """How agents are judged: by their likeliest actions (0), as they learned (1), or between the two, by
    sampling from their policy sharpened, its logits divided by this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "algo", "entropy", "value_weight")
        unit(self, "algo", "gae_lambda", "temperature")


def bootstrapped(reward: Float32, value: Float32, last_value: float, gamma: float, mix: float) -> Float32:
    """R_t = r_t + gamma (V_{t+1} + mix (R_{t+1} - V_{t+1})), from V of what follows the last step, or 0."""
    returns = np.empty_like(reward)
    after = value_after = np.float32(last_value)
    discount, share = np.float32(gamma), np.float32(mix)
    for t in range(len(reward) - 1, -1, -1):
        returns[t] = after = reward[t] + discount * (value_after + share * (after - value_after))
        value_after = value[t]
    return returns


def log_prob_grad(
    action_spec: ActionSpec, outputs: Float32, log_std: Float32, action: Array, weight: Float32
) -> tuple[Float32, Float32 | None]:
    """Return the gradient of sum_i weight_i log pi(a_i): for the outputs [N, n], and for any log_std.

    d log p_a / d logits = onehot(a) - p. For normals, with z = (a - mean) / sd, it is z / sd and z^2 - 1.
    """
    if action_spec.kind == "gaussian":
        deviation: Float32 = np.exp(log_std)
        z: Float32 = (action - outputs) / deviation
        column = weight[:, None]
        mean_grad: Float32 = column * z / deviation
        return mean_grad, (column * (z * z - 1)).sum(0)
    result = np.empty_like(outputs)
    choices = action.reshape(len(action), -1)
    start = 0
    for part, size in enumerate(action_spec.sizes):
        probs = softmax(outputs[:, start : start + size])
        gradient = -probs
        gradient[np.arange(len(gradient)), choices[:, part]] += 1
        result[:, start : start + size] = weight[:, None] * gradient
        start += size
    return result, None


def entropy_grad(action_spec: ActionSpec, outputs: Float32) -> Float32:
    """Return the gradient of sum_i H_i for the outputs: -p (log p + H). A normal's mean has none."""
    result = np.zeros_like(outputs)
    if action_spec.kind == "gaussian":
        return result
    start = 0
    for size in action_spec.sizes:
        probs = softmax(outputs[:, start : start + size])
        log_probs = np.log(probs + np.float32(1e-30))
        entropy = -(probs * log_probs).sum(1, keepdims=True)
        result[:, start : start + size] = -probs * (log_probs + entropy)
        start += size
    return result


def softmax(logits: Float32) -> Float32:
    exponential = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs: Float32 = exponential / exponential.sum(axis=1, keepdims=True)
    return probs


class A3cCore:
    """Plays with a copy of the shared weights and sends its gradients back to them.

    Gradients every `batch` steps and at the end of an episode, a fresh copy every second time and then.
    """

    def __init__(
        self,
        config: A3cConfig,
        spec: NetSpec,
        action: ActionSpec,
        shared: Float32,
        optimizer: SharedOptimizer,
    ) -> None:
        self.config, self.action = config, action
        self.shared, self.optimizer = shared, optimizer
        self.net = NumpyGradient(spec)
        self.obs = np.zeros((config.batch, *spec.input_shape), np.float32)
        self.actions = np.zeros((config.batch, *action.shape), action.dtype)
        self.reward = np.zeros(config.batch, np.float32)
        self.filled, self.learned, self.acted = 0, 0, 0
        self.rng: np.random.Generator
        self.noise, self.dice = np.zeros((0, action.noises), np.float32), np.zeros(0)

    def begin(self, rng: np.random.Generator) -> None:
        self.rng, self.filled, self.learned, self.acted = rng, 0, 0, 0
        self.net.net.load(self.shared)

    def act(self, obs: Array) -> Array:
        """Return one action for one observation, as it is stored."""
        now = self.acted % AHEAD
        if now == 0:
            self.noise, self.dice = self.action.noise(self.rng, AHEAD), self.rng.random(AHEAD)
        self.acted += 1
        outputs = self.net.net.forward(obs[None], "policy")
        exploration = self.net.net.views.get("log_std", NO_SPREAD)
        if self.dice[now] < self.config.epsilon:
            outputs = np.zeros_like(outputs)  # every choice alike
        action: Array = self.action.choose(outputs, exploration, self.noise[now : now + 1])
        return action

    def step(
        self, obs: Array, action: Array, reward: float, next_obs: Array, terminated: bool, ended: bool
    ) -> None:
        """Record a step, and learn when it is time to. `next_obs` is the observation after it."""
        row = self.filled
        self.obs[row], self.actions[row] = obs, action[0]
        self.reward[row] = reward * self.config.reward_scale
        self.filled += 1
        if self.filled < self.config.batch and not ended:
            return
        over = terminated or (ended and self.config.limit_ends)
        self._learn(0.0 if over else float(self.net.net.forward(next_obs[None], "value")[0, 0]))
        self.filled = 0
        self.learned += 1
        if self.learned % 2 == 0 or ended:
            self.net.net.load(self.shared)

    def _learn(self, last_value: float) -> None:
        """Lower the loss -sum A log pi - entropy sum H + value_weight sum (V - R)^2, with A = R - V."""
        config, rows = self.config, slice(self.filled)
        outputs, value = self.net.forward(self.obs[rows], "policy", "value")
        values = value[:, 0]
        returns = bootstrapped(self.reward[rows], values, last_value, config.gamma, config.gae_lambda)
        error = values - returns
        log_std = self.net.net.views.get("log_std", NO_SPREAD)
        outputs_grad, log_std_grad = log_prob_grad(self.action, outputs, log_std, self.actions[rows], error)
        if config.entropy:
            outputs_grad -= np.float32(config.entropy) * entropy_grad(self.action, outputs)
        value_grad = np.float32(2 * config.value_weight) * error[:, None]
        self.net.backward([outputs_grad, value_grad])
        gradient = self.net.gradient
        if log_std_grad is not None:
            self.net.of["log_std"][...] = log_std_grad - np.float32(config.entropy * self.filled)
        if config.average:
            gradient /= np.float32(self.filled)
        self.optimizer.step(gradient)


class A3c(Hogwild):
    config = A3cConfig
    general: ClassVar[dict[str, Any]] = {
        **Hogwild.general,
        "net": {"hidden": [128]},
        "algo": {"optimizer": "adam", "learning_rate": 1e-3, "average": True, "max_grad_norm": 0.5},
    }

    def action_spec(self, space: ActionSpec, net: NetConfig, name: str) -> ActionSpec:
        return replace(space.with_spread(net.squash, net.state_std), temperature=self.settings.temperature)

    def network(self, net: NetConfig, spaces: Spaces) -> NetSpec:
        return actor_critic(net, spaces)

    def core(self, task: Task, index: int, memory: "SharedMemory") -> Core:
        return A3cCore(self.settings, task.spec, task.layout.action, memory.vector, memory.optimizer)
