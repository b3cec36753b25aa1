"""What the algorithms share that learn from what their present policy has just played."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.algos.algorithm import Algorithm, LearnerSetup
from manyhands.config.settings import NetConfig
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.checks import not_negative, positive, unit
from manyhands.core.networks import NetSpec
from manyhands.core.roles import Learner
from manyhands.core.spaces import Spaces
from manyhands.core.trajectories import Trajectory
from manyhands.nets.build import actor_critic

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.algos.distributions import Distribution
    from manyhands.algos.on_policy_learner import OnPolicyLearner


@dataclass(frozen=True)
class Minibatch:
    """What one step of the optimizer learns from: N steps of any lanes."""

    obs: "Tensor"  # [N, ...]
    action: "Tensor"  # [N, ...]
    advantage: "Tensor"  # [N], how much each action counts
    target: "Tensor | None" = None  # [N], of the values; None where the policy learns alone
    old_logp: "Tensor | None" = None  # [N], log pi of the actions when they were played


@dataclass(frozen=True)
class OnPolicyConfig:
    """What the on-policy algorithms share."""

    learning_rate: float = 3e-4
    gamma: float = 0.99
    """Discount of future rewards."""
    gae_lambda: float = 0.95
    """How far advantages look ahead before they trust the value estimate (Schulman et al. 2016)."""
    entropy: float = 0.0
    """Weight of the entropy bonus, against settling too early."""
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning; values near 1 learn best."""
    reward_clip: float = 0.0
    """Scaled rewards are cut at plus and minus this before learning; 0 never cuts."""
    normalise_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    rank_advantage: bool = False
    """Let only the order of a batch's advantages count, not their sizes; ppo and reinforce. For rewards whose
    few largest would drown the rest."""
    anneal: bool = False
    """Let the learning rate fall to 0 over `run.steps`, or a parent's exchanges, as (1 - t)^anneal_power."""
    anneal_power: float = 1.0
    log_std_end: float | None = None
    """Let a gaussian policy's log standard deviation go to this in a straight line over `run.steps`, instead
    of learning it (what depends on the state is learned all the same)."""
    threads: int = 1
    """Of the learner. Part of the result: another number sums in another order."""

    def __post_init__(self) -> None:
        positive(self, "algo", "learning_rate", "max_grad_norm", "reward_scale", "threads", "anneal_power")
        not_negative(self, "algo", "entropy", "value_weight", "reward_clip")
        unit(self, "algo", "gamma", "gae_lambda")


class OnPolicy(Algorithm):
    """A policy and a value, from trajectories that are learned from once."""

    general: ClassVar[dict[str, Any]] = {
        "net": {"normalise": True},
        "algo": {"normalise_reward": True},
    }
    """Unknown scales are measured instead of assumed."""

    def actions(self, space: ActionSpec, net: NetConfig, env_id: str) -> ActionSpec:
        if space.kind == "gaussian":
            return replace(space, squash=net.squash, state_std=net.state_std)
        return space

    def network(self, net: NetConfig, spaces: Spaces, lanes: int) -> NetSpec:
        return actor_critic(net, spaces)

    def learner(self, setup: LearnerSetup) -> Learner:
        from manyhands.algos.on_policy_learner import OnPolicyLearner

        return OnPolicyLearner(self, setup)

    def loss(self, policy: "Distribution", value: "Tensor | None", batch: Minibatch) -> "Tensor":
        """What a step of the optimizer lowers, given the distribution over the actions taken and V [N].

        The policy's loss - entropy mean H + value_weight mean (V - target)^2, the last where V is learned.
        """
        config: OnPolicyConfig = self.settings
        loss = self.policy_loss(policy.log_prob, batch) - config.entropy * policy.entropy().mean()
        if value is not None and batch.target is not None:
            loss = loss + config.value_weight * (value - batch.target).square().mean()
        return loss

    def policy_loss(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        """The policy's part, given log pi(a) [N]: by default -mean A log pi."""
        return -(batch.advantage * logp).mean()

    def policy_loss_grad(self, logp: "Tensor", batch: Minibatch) -> "Tensor | None":
        """The gradient [N] of `policy_loss` for `logp` as a formula; None leaves that of `loss` to autograd.

        With small networks a formula saves a third of a step; a test holds it against autograd. Whoever
        changes one of the losses changes this as well, or returns None.
        """
        return None

    def learn(self, learner: "OnPolicyLearner", trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """One update of the weights; what is worth plotting."""
        raise NotImplementedError


def normalised(advantage: "Tensor") -> "Tensor":
    return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)


def explained_variance(value: Array, target: Array) -> float:
    """1 when values predict the returns, 0 when they say no more than their mean."""
    spread = float(target.var())
    return 1.0 - float((target - value).var()) / spread if spread > 0 else 0.0


def weighted_grad(batch: Minibatch) -> "Tensor":
    """The gradient of -mean A log pi for log pi."""
    return -batch.advantage / len(batch.advantage)
