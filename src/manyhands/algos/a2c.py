"""Advantage actor-critic (Mnih et al. 2016), synchronous. Results: benchmarks/."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.algos.on_policy import OnPolicy, OnPolicyConfig, explained_variance, fixed, normalised
from manyhands.core.trajectories import Trajectory

if TYPE_CHECKING:
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

    def learn(self, learner: "OnPolicyLearner", trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config: A2cConfig = self.settings
        batch, advantage, target = learner.begin(trajectories)
        rows = learner.rows
        weight = normalised(rows(advantage)) if config.normalise_advantage else rows(advantage)
        coefficient = -weight / len(weight)  # the loss is -mean A log pi
        losses = learner.update(rows(batch.obs), rows(batch.action), rows(target), fixed(coefficient))
        learner.end(batch.obs)
        return {**losses.metrics(), "explained_variance": explained_variance(batch.value, target)}
