"""REINFORCE with a learned baseline (Williams 1992). Settings: `ReinforceConfig`. Results: benchmarks/.

Returns run to the end of the episode. Where a rollout ends inside one, the baseline stands in for the part
that is not played yet, so that no step has to wait for its episode.
"""

from collections.abc import Sequence
from typing import Any

import torch

from manyhands.algos.base import OnPolicy, explained_variance, normalised, rows
from manyhands.algos.returns import gae
from manyhands.config import ReinforceConfig
from manyhands.experience import Trajectory


class Reinforce(OnPolicy):
    columns = ()

    def __init__(self, config: ReinforceConfig, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self.config = config

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config = self.config
        batch = self.assemble(trajectories)
        self.begin(batch)
        advantage = gae(
            batch.reward, batch.value, batch.next_value, batch.done, config.gamma, config.gae_lambda
        )
        target = advantage + batch.value
        obs, targets = rows(batch.obs), rows(target)

        outputs = self.net.forward(obs, "policy")[0]
        logp, entropies = self.distribution(outputs, rows(batch.action))
        weight = normalised(rows(advantage)) if config.normalise_advantage else rows(advantage)
        policy_loss = -(logp * weight).mean()
        entropy = entropies.mean()
        self.descend(policy_loss - config.entropy * entropy)

        value_loss = policy_loss
        for epoch in range(config.baseline_epochs):
            for part in torch.split(self.shuffled(epoch, len(obs)), config.minibatch):
                value = self.net.forward(obs[part], "value")[0]
                value_loss = (value[:, 0] - targets[part]).square().mean()
                self.descend(config.value_weight * value_loss)
        self.end(batch)
        return {
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "entropy": entropy.item(),
            "explained_variance": explained_variance(batch.value, target),
        }
