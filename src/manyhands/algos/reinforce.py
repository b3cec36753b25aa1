"""REINFORCE with a learned baseline (Williams 1992). Settings: `ReinforceConfig`. Results: benchmarks/.

Returns run to the end of the episode. Where a rollout ends inside one, the baseline stands in for the part
that is not played yet, so that no step has to wait for its episode.
"""

from collections.abc import Sequence
from typing import Any

import torch

from manyhands.algos.base import OnPolicy, explained_variance, fixed, normalised, ranked, rows
from manyhands.algos.configs import ReinforceConfig
from manyhands.experience import Trajectory


class Reinforce(OnPolicy):
    def __init__(self, config: ReinforceConfig, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self.config = config

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config = self.config
        batch, advantage, target = self.begin(trajectories)
        obs, targets = rows(batch.obs), rows(target)

        weight = normalised(rows(advantage)) if config.normalise_advantage else rows(advantage)
        if config.rank_advantage:
            weight = ranked(weight)
        coefficient = -weight / len(weight)  # the loss is -mean A log pi
        policy = self.descend_policy(obs, rows(batch.action), fixed(coefficient))
        for epoch in range(config.baseline_epochs):
            for part in torch.split(self.shuffled(epoch, len(obs)), config.minibatch):
                error = self.descend_value(obs[part], targets[part])
        self.end(batch.obs)
        return {
            "value_loss": error.square().mean().item(),
            "entropy": policy.entropy().mean().item(),
            "explained_variance": explained_variance(batch.value, target),
        }
