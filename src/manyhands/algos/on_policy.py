"""The base of the algorithms that learn from what their present policy has just played."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from manyhands.algos.algorithm import Algorithm, LearnerSetup
from manyhands.config.settings import Config, NetConfig
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.checks import not_negative, positive, unit
from manyhands.core.errors import OwnCodeError, UsageError
from manyhands.core.networks import NetSpec
from manyhands.core.own_code import failure
from manyhands.core.roles import Learner
from manyhands.core.spaces import Spaces
from manyhands.core.trajectories import Trajectory
from manyhands.nets.build import actor_critic, own_heads

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.algos.distributions import Distribution
    from manyhands.algos.on_policy_learner import OnPolicyLearner


@dataclass(frozen=True)
class Minibatch:
    """The data that one step of the optimizer learns from: N steps of any lanes."""

    obs: "Tensor"
    """Observations [N, ...]."""
    action: "Tensor"
    """Actions [N, ...]."""
    advantage: "Tensor"
    """How much each action counts [N]."""
    target: "Tensor | None" = None
    """Lambda-returns for the values [N]; None where the policy learns alone."""
    columns: "Mapping[str, Tensor]" = field(default_factory=dict)
    """What actors noted down, by name, each [N]."""
    action_spec: ActionSpec | None = None
    """The space of the actions."""

    def distribution(self, outputs: "Mapping[str, Tensor]") -> "Distribution":
        """Return the distribution that these outputs describe, with `log_prob` of the actions taken."""
        from manyhands.algos.distributions import distribution

        assert self.action_spec is not None
        return distribution(self.action_spec, outputs["policy"], outputs.get("log_std"), self.action)

    def map(self, change: "Callable[[Tensor], Tensor]") -> "Minibatch":
        """Return the same with every array changed."""
        target = None if self.target is None else change(self.target)
        columns = {name: change(column) for name, column in self.columns.items()}
        arrays = change(self.obs), change(self.action), change(self.advantage)
        return Minibatch(*arrays, target, columns, self.action_spec)


@dataclass(frozen=True)
class OnPolicyConfig:
    """Settings that the on-policy algorithms share."""

    learning_rate: float = 3e-4
    """How far a step of the optimizer (Adam) goes."""
    gamma: float = 0.99
    """Discount of future rewards."""
    gae_lambda: float = 0.95
    """How far advantages look ahead before they trust the value estimate (Schulman et al. 2016)."""
    entropy: float = 0.0
    """Weight of the entropy bonus, against settling too early."""
    value_weight: float = 0.5
    """Weight of the value's loss beside the policy's."""
    max_grad_norm: float = 0.5
    """Gradients are shortened to this length where they are longer."""
    epochs: int = 4
    """Passes over each batch."""
    minibatch: int = 256
    """Steps from which one step of the optimizer learns; 0 takes the whole batch."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning; values near 1 learn best."""
    reward_clip: float = 0.0
    """Scaled rewards are cut at plus and minus this before learning; 0 never cuts."""
    normalise_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    normalise_advantage: bool = True
    """Shift and scale the advantages of a batch to mean 0 and deviation 1."""
    rank_advantage: bool = False
    """Let only the order of a batch's advantages count, not their sizes. For rewards whose few largest would
    drown the rest."""
    anneal: bool = False
    """Let the learning rate fall to 0 over `run.steps`, or a parent's exchanges, as (1 - t)^anneal_power."""
    anneal_power: float = 1.0
    """How the learning rate falls with `anneal`: 1 in a straight line, more faster at first."""
    log_std_end: float | None = None
    """Let a gaussian policy's log standard deviation go to this in a straight line over `run.steps`, instead
    of learning it (what depends on the state is learned all the same)."""
    threads: int = 1
    """Threads of the learner. Part of the result: another number sums in another order."""

    def __post_init__(self) -> None:
        positive(self, "algo", "learning_rate", "max_grad_norm", "reward_scale", "threads", "anneal_power")
        positive(self, "algo", "epochs")
        not_negative(self, "algo", "entropy", "value_weight", "reward_clip", "minibatch")
        unit(self, "algo", "gamma", "gae_lambda")


class OnPolicy(Algorithm):
    """An algorithm with a policy and a value, which learns from every trajectory once."""

    general: ClassVar[dict[str, Any]] = {
        "net": {"normalise": True},
        "algo": {"normalise_reward": True},
    }
    """Settings for environments without a recipe: unknown scales are measured instead of assumed."""

    def action_spec(self, space: ActionSpec, net: NetConfig, name: str) -> ActionSpec:
        return super().action_spec(space.with_spread(net.squash, net.state_std), net, name)

    def network(self, net: NetConfig, spaces: Spaces) -> NetSpec:
        if not self.heads:
            return actor_critic(net, spaces)
        sizes = {name: self._size(name, spaces.action.space) for name in self.heads}
        return own_heads(net, spaces, sizes)

    def _size(self, head: str, space: Any) -> int:
        """Return the size of a head of its own."""
        where = f"{type(self).__name__}.heads[{head!r}]"
        try:
            size = self.heads[head](space)
        except Exception as error:
            raise failure(where, error) from error
        if not isinstance(size, int | np.integer) or size < 1:
            raise OwnCodeError(f"{where} returned {size!r:.100}; it must return a size, 1 or more")
        return int(size)

    def check(self, config: Config, spaces: Spaces) -> None:
        if self.heads and "policy" not in self.heads and not self.acts():
            raise UsageError(
                f"{config.run.algo} has heads of its own ({', '.join(self.heads)}), so it must define act"
            )

    def learner(self, setup: LearnerSetup) -> Learner:
        from manyhands.algos.on_policy_learner import OnPolicyLearner

        return OnPolicyLearner(self, setup)

    def value(self, outputs: "Mapping[str, Tensor]") -> "Tensor":
        """Return the values of states [N], given the outputs of all heads [N, n]."""
        if "value" not in outputs:
            raise UsageError(f"{type(self).__name__} has no head called value, so it must define value")
        return outputs["value"][:, 0]

    def epsilon_greedy_value(self, values: "Tensor") -> "Tensor":
        """Return the values of states [N] for acting by `epsilon_greedy`, given those of the choices."""
        epsilon: float = self.settings.epsilon
        return (1 - epsilon) * values.amax(-1) + epsilon * values.mean(-1)

    def loss(
        self, outputs: "Mapping[str, Tensor]", batch: Minibatch
    ) -> "Tensor | tuple[Tensor, Mapping[str, Tensor]]":
        """Return the loss of a step of the optimizer, given all heads' outputs; and what is worth plotting.

        The policy's loss - entropy mean H + value_weight mean (V - target)^2, the last where V is learned.
        """
        config: OnPolicyConfig = self.settings
        policy = batch.distribution(outputs)
        loss = self.policy_loss(policy.log_prob, batch) - config.entropy * policy.entropy().mean()
        if batch.target is not None:
            loss = loss + config.value_weight * (outputs["value"][:, 0] - batch.target).square().mean()
        return loss

    def policy_loss(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        """Return the policy's part of the loss, given log pi(a) [N]: by default -mean A log pi."""
        return -(batch.advantage * logp).mean()

    def policy_loss_grad(self, logp: "Tensor", batch: Minibatch) -> "Tensor | None":
        """Return the gradient [N] of `policy_loss` for `logp` by a formula; None leaves `loss` to autograd.

        With small networks a formula saves a third of a step; a test holds it against autograd. Whoever
        changes one of the losses changes this as well, or returns None.
        """
        return None

    def learn(self, learner: "OnPolicyLearner", trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Update the weights once: `epochs` passes in minibatches; return what is worth plotting."""
        batch, advantage, target = learner.begin(trajectories)
        whole = learner.minibatch(batch, advantage, target)
        for epoch in range(self.settings.epochs):
            for part in learner.parts(whole, epoch):
                losses = learner.update(part)
        learner.end(batch.obs)
        told = learner.measured(losses, part)
        return {**told, "explained_variance": explained_variance(batch.value, target)}


def normalised(advantage: "Tensor") -> "Tensor":
    return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)


def explained_variance(value: Array, target: Array) -> float:
    """Return 1 when values predict the returns, 0 when they say no more than their mean."""
    spread = float(target.var())
    return 1.0 - float((target - value).var()) / spread if spread > 0 else 0.0


def weighted_grad(batch: Minibatch) -> "Tensor":
    """Return the gradient of -mean A log pi for log pi."""
    return -batch.advantage / len(batch.advantage)
