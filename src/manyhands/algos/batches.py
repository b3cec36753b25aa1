"""What an update learns from: trajectories side by side, rows of them, and the losses of one step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from manyhands.algos.distributions import Distribution
from manyhands.core.arrays import Array


@dataclass(frozen=True)
class Batch:
    """Trajectories side by side along the lane axis, rewards scaled, with V of what came after each step."""

    obs: Array  # [T, B, ...]
    action: Array  # [T, B, ...]
    reward: Array  # [T, B]
    done: Array  # [T, B]
    value: Array  # [T, B]
    next_value: Array  # [T, B]
    columns: Mapping[str, Array]  # each [T, B]


@dataclass(frozen=True)
class Losses:
    """The losses of one step, and what they are made of."""

    policy: Distribution | None = None  # where there is a head of that name
    error: Tensor | None = None  # [N, 1], of the values, where they learned as well
    told: Mapping[str, Tensor] = field(default_factory=dict)  # by the algorithm's loss

    @property
    def log_prob(self) -> Tensor:
        """The log pi [N] of the actions taken."""
        assert self.policy is not None
        return self.policy.log_prob

    def metrics(self) -> dict[str, float]:
        found = {name: float(number) for name, number in self.told.items()}
        if self.error is not None:
            found["value_loss"] = self.error.square().mean().item()
        if self.policy is not None:
            found["entropy"] = self.policy.entropy().mean().item()
        return found


def rows(array: Array) -> Tensor:
    """Return [T, B, ...] as a tensor [T * B, ...]; whole numbers become indices."""
    tensor = torch.from_numpy(np.ascontiguousarray(array.reshape(-1, *array.shape[2:])))
    return tensor.long() if tensor.dtype == torch.int32 else tensor


def ranked(advantage: Tensor) -> Tensor:
    """Replace advantages, by rank, by what a normal distribution would have in their place."""
    ranks = advantage.argsort(stable=True).argsort(stable=True)
    normal: Tensor = torch.special.ndtri((ranks + 0.5) / len(ranks))
    return normal.to(advantage.dtype)
