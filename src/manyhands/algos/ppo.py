"""Proximal policy optimisation (Schulman et al. 2017). Settings: `PpoConfig`. Results: benchmarks/."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyhands.algos.base import OnPolicy, explained_variance, normalised, rows
from manyhands.algos.returns import gae
from manyhands.config import PpoConfig
from manyhands.experience import Trajectory


def ppo_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-mean min(r A, clip(r, 1 - e, 1 + e) A), with r = pi / pi_old."""
    ratio = log_ratio.exp()
    return -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


@dataclass(frozen=True)
class Losses:
    """What one minibatch showed."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    log_ratio: Tensor  # [N]


class PPO(OnPolicy):
    columns = ("logp",)

    def __init__(self, config: PpoConfig, **arguments: Any) -> None:
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
        logp = batch.columns["logp"]
        columns = [rows(column) for column in (batch.obs, batch.action, logp, advantage, target)]
        count = len(columns[0])
        kl, epochs = 0.0, 0
        for epoch in range(config.epochs):
            order = self.shuffled(epoch, count)
            shuffled = [column[order] for column in columns]
            for start in range(0, count, config.minibatch):
                losses = self._step(*(column[start : start + config.minibatch] for column in shuffled))
            epochs += 1
            # Schulman's estimate of KL(old, new), always positive; on the last minibatch, because it is dear.
            kl = (losses.log_ratio.expm1() - losses.log_ratio).mean().item()
            if config.target_kl and kl > config.target_kl:
                break
        self.end(batch)
        return {
            "policy_loss": losses.policy.item(),
            "value_loss": losses.value.item(),
            "entropy": losses.entropy.item(),
            "kl": kl,
            "epochs": float(epochs),
            "explained_variance": explained_variance(batch.value, target),
        }

    def _step(self, obs: Tensor, action: Tensor, old_logp: Tensor, advantage: Tensor, goal: Tensor) -> Losses:
        """One step along the gradient of one minibatch."""
        config = self.config
        outputs, value = self.net.forward(obs, "policy", "value")
        logp, entropies = self.distribution(outputs, action)
        log_ratio = logp - old_logp
        policy_loss = ppo_loss(log_ratio, normalised(advantage), config.clip)
        value_loss = (value[:, 0] - goal).square().mean()
        entropy = entropies.mean()
        loss = policy_loss + config.value_weight * value_loss
        if config.entropy:
            loss = loss - config.entropy * entropy
        self.descend(loss)
        return Losses(policy_loss.detach(), value_loss.detach(), entropy.detach(), log_ratio.detach())
