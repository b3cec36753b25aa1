"""IMPALA (Espeholt et al. 2018): actor-critic on old trajectories, corrected by V-trace.

Settings: `ImpalaConfig`. Results: benchmarks/.
"""

from collections.abc import Sequence
from typing import Any

import torch

from manyhands.algos.base import OnPolicy, explained_variance, normalised, rows
from manyhands.algos.returns import vtrace
from manyhands.config import ImpalaConfig
from manyhands.experience import Trajectory


class Impala(OnPolicy):
    columns = ("logp",)

    def __init__(self, config: ImpalaConfig, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self.config = config

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config = self.config
        batch = self.assemble(trajectories)
        self.begin(batch)
        steps, lanes = batch.reward.shape
        policy_loss = value_loss = entropy = torch.zeros(())
        for lane in torch.tensor_split(self.shuffled(0, lanes), min(config.minibatches, lanes)):
            part = lane.numpy()
            outputs, value = self.net.forward(rows(batch.obs[:, part]), "policy", "value")
            logp, entropies = self.distribution(outputs, rows(batch.action[:, part]))
            with torch.no_grad():
                log_ratio = logp.view(steps, -1).numpy() - batch.columns["logp"][:, part]
            target, advantage = vtrace(
                log_ratio,
                batch.reward[:, part],
                batch.value[:, part],
                batch.next_value[:, part],
                batch.done[:, part],
                config.gamma,
                config.gae_lambda,
                config.rho_clip,
                config.c_clip,
            )
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
            "explained_variance": explained_variance(batch.value[:, part], target),
        }
