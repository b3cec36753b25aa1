"""A policy's distribution over actions, for learning: log-probabilities, entropies, and their gradients.

The gradients are closed formulas rather than autograd: on small networks the dozens of tiny steps of a loss
cost more than the network. A test holds them against autograd.
"""

import math
from typing import Protocol

import torch
from torch import Tensor

from manyhands.core.actions import STATE_STD_RATE, ActionSpec


class Distribution(Protocol):
    """The actions [N, ...] that were taken, under the policy head's outputs [N, n]."""

    log_prob: Tensor  # [N]

    def entropy(self) -> Tensor:
        """Return the entropies [N]."""

    def gradient(self, coefficient: Tensor, entropy_weight: float) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of sum_i coefficient_i log pi(a_i) - entropy_weight mean_i H_i.

        It is for the outputs [N, n], and for the log standard deviations where there are any.
        """


class Categorical:
    """One choice out of n. d log p_a / d logits = onehot(a) - p;  d H / d logits = -p (log p + H).

    Choices lie along the first axis inside: torch is five times as fast along long rows as along short ones.
    """

    def __init__(self, logits: Tensor, action: Tensor) -> None:
        self.log_probs = torch.log_softmax(logits.t(), 0)  # [n, N]
        self.action = action[None]
        self.log_prob = self.log_probs.gather(0, self.action)[0]

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(0)

    def gradient(self, coefficient: Tensor, entropy_weight: float) -> tuple[Tensor, None]:
        probs = self.log_probs.exp()
        result = (probs * -coefficient).scatter_add_(0, self.action, coefficient[None])
        if entropy_weight:
            away = self.log_probs + self.entropy()
            result.addcmul_(probs, away, value=entropy_weight / probs.shape[1])
        return result.t(), None


class MultiCategorical:
    """Independent choices side by side: everything adds up."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...], action: Tensor) -> None:
        pieces = torch.split(logits, list(sizes), -1)
        self.parts = [Categorical(piece, action[:, i]) for i, piece in enumerate(pieces)]
        self.log_prob = torch.stack([part.log_prob for part in self.parts]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def gradient(self, coefficient: Tensor, entropy_weight: float) -> tuple[Tensor, None]:
        return torch.cat([part.gradient(coefficient, entropy_weight)[0] for part in self.parts], -1), None


class Gaussian:
    """Independent normals. z = (a - mean) / sd, d log p / d mean = z / sd, d log p / d log sd = z^2 - 1."""

    def __init__(self, mean: Tensor, log_std: Tensor, action: Tensor) -> None:
        self.mean, self.log_std = mean, log_std
        self.z = (action - mean) * torch.exp(-log_std)
        self.log_prob = (-0.5 * self.z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 + 0.5 * math.log(2 * math.pi)).sum(-1).expand(len(self.mean))

    def gradient(self, coefficient: Tensor, entropy_weight: float) -> tuple[Tensor, Tensor]:
        column = coefficient[:, None]
        log_std_grad = (column * (self.z.square() - 1)).sum(0) - entropy_weight
        return column * self.z * torch.exp(-self.log_std), log_std_grad


class StateGaussian(Gaussian):
    """Normals whose log standard deviation is a sum: a free part, and one that depends on the state."""

    def __init__(self, outputs: Tensor, free: Tensor, action: Tensor) -> None:
        mean, of_state = outputs.chunk(2, -1)
        super().__init__(mean, free + STATE_STD_RATE * of_state, action)

    def gradient(self, coefficient: Tensor, entropy_weight: float) -> tuple[Tensor, Tensor]:
        column = coefficient[:, None]
        mean_grad = column * self.z * torch.exp(-self.log_std)
        log_std_grad = column * (self.z.square() - 1) - entropy_weight / len(self.mean)
        return torch.cat([mean_grad, STATE_STD_RATE * log_std_grad], -1), log_std_grad.sum(0)


def distribution(spec: ActionSpec, outputs: Tensor, log_std: Tensor | None, action: Tensor) -> Distribution:
    if log_std is not None and spec.state_std:
        return StateGaussian(outputs, log_std, action)
    if log_std is not None:
        return Gaussian(outputs, log_std, action)
    if len(spec.sizes) == 1:
        return Categorical(outputs, action)
    return MultiCategorical(outputs, spec.sizes, action)
