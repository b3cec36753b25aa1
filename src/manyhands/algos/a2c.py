"""Advantage actor-critic (Mnih et al. 2016), synchronous. Settings: `A2cConfig`. Results: benchmarks/."""

from collections.abc import Sequence
from typing import Any

from manyhands.algos.base import OnPolicy, explained_variance, normalised, rows
from manyhands.algos.returns import gae
from manyhands.config import A2cConfig
from manyhands.experience import Trajectory


class A2C(OnPolicy):
    columns = ()

    def __init__(self, config: A2cConfig, **arguments: Any) -> None:
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
        outputs, value = self.net.forward(rows(batch.obs), "policy", "value")
        logp, entropies = self.distribution(outputs, rows(batch.action))
        weight = normalised(rows(advantage)) if config.normalise_advantage else rows(advantage)
        policy_loss = -(logp * weight).mean()
        value_loss = (value[:, 0] - rows(target)).square().mean()
        entropy = entropies.mean()
        self.descend(policy_loss + config.value_weight * value_loss - config.entropy * entropy)
        self.end(batch)
        return {
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "entropy": entropy.item(),
            "explained_variance": explained_variance(batch.value, target),
        }
