"""REINFORCE with a learned baseline (Williams 1992). Results: benchmarks/.

Returns run to the end of the episode. Where a rollout ends inside one, the baseline stands in for the part
that is not played yet, so that no step has to wait for its episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from manyhands.algos.on_policy import (
    Minibatch,
    OnPolicy,
    OnPolicyConfig,
    explained_variance,
    weighted_grad,
)
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
    epochs: int = 4
    """Passes of the value network over each batch; the policy takes one."""
    minibatch: int = 512
    """Steps from which one step of the value network learns; 0 takes the whole batch."""


class Reinforce(OnPolicy):
    config = ReinforceConfig

    def policy_loss_grad(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        return weighted_grad(batch)

    def learn(self, learner: "OnPolicyLearner", trajectories: Sequence[Trajectory]) -> dict[str, float]:
        batch, advantage, target = learner.begin(trajectories)
        whole = learner.minibatch(batch, advantage, target)
        alone = replace(whole, target=None)
        measured = learner.measured(learner.update(alone), alone)
        for epoch in range(self.settings.epochs):
            for part in learner.parts(whole, epoch):
                error = learner.update_value(part)
        learner.end(batch.obs)
        return {
            **measured,
            "value_loss": error.square().mean().item(),
            "explained_variance": explained_variance(batch.value, target),
        }
