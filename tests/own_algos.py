"""An algorithm that is not part of the package: a user's own file, with settings and a loss."""

from dataclasses import dataclass
from typing import Any

from manyhands.algos.on_policy import Minibatch
from manyhands.algos.ppo import Ppo, PpoConfig


@dataclass(frozen=True)
class SpoConfig(PpoConfig):
    """Simple policy optimisation (Xie et al. 2024)."""

    penalty: float = 0.2
    """How far the probability of an action may move before the penalty outweighs what it gains."""


class Spo(Ppo):
    """PPO with a quadratic penalty in place of the clip."""

    name, config = "spo", SpoConfig

    def policy_loss(self, logp: Any, batch: Minibatch) -> Any:
        ratio = (logp - batch.old_logp).exp()
        gained, moved = ratio * batch.advantage, (ratio - 1).square() * batch.advantage.abs()
        return (moved / (2 * self.settings.penalty) - gained).mean()

    def policy_loss_grad(self, logp: Any, batch: Minibatch) -> None:
        return None  # by autograd


class NoAlgorithm:
    """Something else."""
