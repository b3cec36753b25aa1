"""Proximal policy optimisation (Schulman et al. 2017). Settings: `PpoConfig`. Results: benchmarks/."""

from collections.abc import Sequence
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
        columns = [
            rows(batch.obs),
            rows(batch.action),
            rows(batch.columns["logp"]),
            rows(advantage),
            rows(target),
        ]
        count = len(columns[0])
        policy_loss = value_loss = entropy = torch.zeros(())
        kl = 0.0
        epochs = 0
        for epoch in range(config.epochs):
            order = self.shuffled(epoch, count)
            shuffled = [column[order] for column in columns]
            divergence = torch.zeros(())
            for start in range(0, count, config.minibatch):
                obs, action, old_logp, adv, goal = (c[start : start + config.minibatch] for c in shuffled)
                outputs, value = self.net.forward(obs, "policy", "value")
                logp, entropies = self.distribution(outputs, action)
                log_ratio = logp - old_logp
                policy_loss = ppo_loss(log_ratio, normalised(adv), config.clip)
                value_loss = (value[:, 0] - goal).square().mean()
                entropy = entropies.mean()
                loss = policy_loss + config.value_weight * value_loss - config.entropy * entropy
                self.descend(loss)
                with torch.no_grad():  # Schulman's estimate of KL(old, new), always positive
                    divergence += (log_ratio.expm1() - log_ratio).sum()
            epochs += 1
            kl = divergence.item() / count
            if config.target_kl and kl > config.target_kl:
                break
        self.end(batch)
        return {
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "entropy": entropy.item(),
            "kl": kl,
            "epochs": float(epochs),
            "explained_variance": explained_variance(batch.value, target),
        }
