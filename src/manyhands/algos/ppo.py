"""Proximal policy optimisation (Schulman et al. 2017). Settings: `PpoConfig`. Results: benchmarks/."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from manyhands.algos.base import OnPolicy, explained_variance, normalised, ranked, rows
from manyhands.algos.configs import PpoConfig
from manyhands.experience import Trajectory


def ppo_coefficient(old_logp: Tensor, advantage: Tensor, clip: float, logp: Tensor) -> Tensor:
    """The gradient of -mean min(r A, clip(r, 1 - e, 1 + e) A) for log pi, with r = pi / pi_old.

    It is -r A / N, and 0 where the probability has moved past the clip in the advantage's direction.
    """
    ratio = (logp - old_logp).exp_()
    inside = torch.where(advantage > 0, ratio < 1 + clip, ratio > 1 - clip)
    # Chosen, not multiplied by 0: a ratio that is infinite lies outside as well.
    return torch.where(inside, ratio.mul_(advantage), 0.0).mul_(-1 / len(ratio))


class PPO(OnPolicy):
    def __init__(self, config: PpoConfig, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self.config = config

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config = self.config
        batch, advantage, target = self.begin(trajectories)
        columns = [
            rows(batch.obs),
            rows(batch.action),
            rows(batch.columns["logp"]),
            ranked(rows(advantage)) if config.rank_advantage else normalised(rows(advantage)),
            rows(target),
        ]
        for epoch in range(config.epochs):
            order = self.shuffled(epoch, len(columns[0]))
            minibatches = zip(
                *(torch.split(column[order], config.minibatch) for column in columns), strict=True
            )
            for obs, action, old, adv, goal in minibatches:
                losses = self.descend(obs, action, goal, partial(ppo_coefficient, old, adv, config.clip))
            # Schulman's estimate of KL(old, new), always positive; on the last minibatch, because it is dear.
            log_ratio = losses.policy.log_prob - old
            kl = (log_ratio.expm1() - log_ratio).mean().item()
            if config.target_kl and kl > config.target_kl:
                break
        self.end(batch.obs)
        return {
            **losses.metrics(),
            "kl": kl,
            "epochs": epoch + 1.0,
            "explained_variance": explained_variance(batch.value, target),
        }
