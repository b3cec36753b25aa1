"""Advantage actor-critic (Mnih et al. 2016), synchronous. Results: benchmarks/."""

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
from manyhands.core.trajectories import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.algos.on_policy_learner import OnPolicyLearner


@dataclass(frozen=True)
class A2cConfig(OnPolicyConfig):
    """Advantage actor-critic (Mnih et al. 2016): one step along the gradient of each short batch.

    It does not correct for the lag of one version that pipelined mode has; sync mode has none.
    """

    learning_rate: float = 7e-4
    gae_lambda: float = 1.0
    normalise_advantage: bool = False


class A2c(OnPolicy):
    name, config = "a2c", A2cConfig

    def policy_loss_grad(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        return weighted_grad(batch)

    def learn(self, learner: "OnPolicyLearner", trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config: A2cConfig = self.settings
        batch, advantage, target = learner.begin(trajectories)
        rows = learner.rows
        weight = normalised(rows(advantage)) if config.normalise_advantage else rows(advantage)
        losses = learner.update(Minibatch(rows(batch.obs), rows(batch.action), weight, rows(target)))
        learner.end(batch.obs)
        return {**losses.metrics(), "explained_variance": explained_variance(batch.value, target)}
