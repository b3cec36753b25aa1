"""REINFORCE with a learned baseline (Williams 1992). Results: benchmarks/.

Returns run to the end of the episode. Where a rollout ends inside one, the baseline stands in for the part
that is not played yet, so that no step has to wait for its episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.algos.on_policy import (
    Minibatch,
    OnPolicy,
    OnPolicyConfig,
    explained_variance,
    normalised,
    weighted_grad,
)
from manyhands.core.checks import positive
from manyhands.core.trajectories import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.algos.on_policy_learner import OnPolicyLearner


@dataclass(frozen=True)
class ReinforceConfig(OnPolicyConfig):
    """REINFORCE with a baseline (Williams 1992): returns to the episode's end, one policy step a batch.

    It does not correct for the lag of one version that pipelined mode has; sync mode has none.
    """

    learning_rate: float = 1e-3
    gae_lambda: float = 1.0
    baseline_epochs: int = 4
    """Passes of the value network over each batch; the policy takes one."""
    minibatch: int = 512
    normalise_advantage: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "baseline_epochs", "minibatch")


class Reinforce(OnPolicy):
    name, config = "reinforce", ReinforceConfig

    def policy_loss_grad(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        return weighted_grad(batch)

    def learn(self, learner: "OnPolicyLearner", trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config: ReinforceConfig = self.settings
        batch, advantage, target = learner.begin(trajectories)
        rows = learner.rows
        obs, targets = rows(batch.obs), rows(target)
        weight = normalised(rows(advantage)) if config.normalise_advantage else rows(advantage)
        if config.rank_advantage:
            weight = learner.ranked(weight)
        policy = learner.update(Minibatch(obs, rows(batch.action), weight)).policy
        for epoch in range(config.baseline_epochs):
            for part in learner.parts(learner.shuffled(epoch, len(obs)), config.minibatch):
                error = learner.update_value(obs[part], targets[part])
        learner.end(batch.obs)
        return {
            "value_loss": error.square().mean().item(),
            "entropy": policy.entropy().mean().item(),
            "explained_variance": explained_variance(batch.value, target),
        }
