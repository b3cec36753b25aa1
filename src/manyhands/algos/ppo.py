"""Proximal policy optimisation (Schulman et al. 2017). Results: benchmarks/."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.algos.on_policy import Minibatch, OnPolicy, OnPolicyConfig, explained_variance
from manyhands.core.checks import not_negative, positive
from manyhands.core.trajectories import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.algos.on_policy_learner import OnPolicyLearner


@dataclass(frozen=True)
class PpoConfig(OnPolicyConfig):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    clip: float = 0.2
    """How far the probability of an action may move in one batch."""
    target_kl: float = 0.0
    """Stop the epochs once the policy has moved this far; 0 never stops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "clip")
        not_negative(self, "algo", "target_kl")


class Ppo(OnPolicy):
    config = PpoConfig
    columns = ("logp",)

    def policy_loss(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        """-mean min(r A, clip(r, 1 - e, 1 + e) A), with r = pi / pi_old."""
        ratio = (logp - batch.columns["logp"]).exp()
        clipped = ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip)
        return -(ratio * batch.advantage).minimum(clipped * batch.advantage).mean()

    def policy_loss_grad(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        """-r A / N, and 0 where the probability has moved past the clip in the advantage's direction."""
        clip, advantage = self.settings.clip, batch.advantage
        ratio = (logp - batch.columns["logp"]).exp_()
        inside = (ratio < 1 + clip).where(advantage > 0, ratio > 1 - clip)
        # Chosen, not multiplied by 0: a ratio that is infinite lies outside as well.
        return ratio.mul_(advantage).where(inside, 0.0).mul_(-1 / len(ratio))

    def learn(self, learner: "OnPolicyLearner", trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config: PpoConfig = self.settings
        batch, advantage, target = learner.begin(trajectories)
        whole = learner.minibatch(batch, advantage, target)
        for epoch in range(config.epochs):
            for part in learner.parts(whole, epoch):
                losses = learner.update(part)
            # Schulman's estimate of KL(old, new), always positive; on the last minibatch, because it is dear.
            log_ratio = losses.log_prob - part.columns["logp"]
            moved = log_ratio.expm1()
            kl = (moved - log_ratio).mean().item()
            if config.target_kl and kl > config.target_kl:
                break
        learner.end(batch.obs)
        return {
            **learner.measured(losses, part),
            "kl": kl,
            "clip_fraction": (moved.abs() > config.clip).float().mean().item(),
            "epochs": epoch + 1.0,
            "explained_variance": explained_variance(batch.value, target),
        }
