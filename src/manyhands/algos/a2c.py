"""Advantage actor-critic (Mnih et al. 2016), synchronous. Results: benchmarks/."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.algos.on_policy import Minibatch, OnPolicy, OnPolicyConfig, weighted_grad

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class A2cConfig(OnPolicyConfig):
    """Advantage actor-critic (Mnih et al. 2016): one step along the gradient of each short batch.

    It does not correct for the lag of one version that pipelined mode has; sync mode has none.
    """

    learning_rate: float = 7e-4
    gae_lambda: float = 1.0
    epochs: int = 1
    minibatch: int = 0
    normalise_advantage: bool = False
    """Shift and scale every batch's advantages to mean 0 and deviation 1."""


class A2c(OnPolicy):
    config = A2cConfig

    def policy_loss_grad(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        return weighted_grad(batch)
