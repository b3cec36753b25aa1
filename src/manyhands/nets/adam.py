"""Adam (Kingma & Ba 2015) on one flat vector."""

from collections.abc import Mapping

import torch
from torch import Tensor

from manyhands.core.arrays import Array

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5
FUSED = hasattr(torch, "_fused_adam_")
"""Whether this version of torch has the kernel, which it does not promise."""


class Adam:
    """torch's kernel, which goes through memory once.

    Without torch's optimizer around it, which costs as much as the kernel for a small vector, and whose first
    use imports a compiler for two seconds.
    """

    def __init__(self, vector: Tensor, gradient: Tensor) -> None:
        self.vector, self.gradient = vector, gradient
        self.mean = torch.zeros_like(vector)
        self.square = torch.zeros_like(vector)
        self.steps = 0
        self.norm = torch.zeros(())  # of the last gradient that was clipped, before that
        self.too_long: Tensor | None = None  # by what factor, where the next step is to shorten the gradient

    def step(self, learning_rate: float) -> None:
        """theta -= rate * m_hat / (sqrt(v_hat) + epsilon), both moments corrected for starting at 0."""
        self.steps += 1
        if FUSED:
            self._fused(learning_rate)
        else:
            self._step_by_step(learning_rate)
        self.too_long = None

    def _fused(self, learning_rate: float) -> None:
        torch._fused_adam_(
            [self.vector],
            [self.gradient],
            [self.mean],
            [self.square],
            [],
            [torch.tensor(float(self.steps))],
            lr=learning_rate,
            beta1=BETA1,
            beta2=BETA2,
            weight_decay=0.0,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
            grad_scale=self.too_long,
        )

    def _step_by_step(self, learning_rate: float) -> None:
        """Do the same in torch's public operations, at half the speed; its last bits differ."""
        gradient = self.gradient if self.too_long is None else self.gradient / self.too_long
        self.mean.lerp_(gradient, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        size = (self.square / (1 - BETA2**self.steps)).sqrt_().add_(EPSILON)
        self.vector.addcdiv_(self.mean, size, value=-learning_rate / (1 - BETA1**self.steps))

    def clip(self, norm: float) -> None:
        """Shorten the gradient of the next step to a length of `norm` at the most."""
        # torch's norm takes care not to overflow, which for a long vector costs three times the time.
        self.norm = self.gradient.dot(self.gradient).sqrt()
        ratio = (self.norm + 1e-6) / norm
        self.too_long = ratio if ratio > 1 else None

    def state(self) -> dict[str, Array]:
        steps = torch.tensor([self.steps]).numpy()
        return {"mean": self.mean.numpy().copy(), "square": self.square.numpy().copy(), "steps": steps}

    def load_state(self, state: Mapping[str, Array]) -> None:
        self.mean.copy_(torch.from_numpy(state["mean"].copy()))
        self.square.copy_(torch.from_numpy(state["square"].copy()))
        self.steps = int(state["steps"][0])
