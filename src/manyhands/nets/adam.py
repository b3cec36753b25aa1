"""Adam (Kingma & Ba 2015) on one flat vector."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from manyhands.experience import Array

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5
LARGE = 200_000
"""Numbers from which on torch's fused Adam is faster: it goes through memory once, not six times."""


class Adam:
    """Six calls on one tensor, or torch's kernel for a long one.

    The kernel without torch's optimizer around it, whose first use imports a compiler for two seconds.
    """

    def __init__(self, vector: Tensor, gradient: Tensor) -> None:
        self.vector, self.gradient = vector, gradient
        self.mean = torch.zeros_like(vector)
        self.square = torch.zeros_like(vector)
        self.steps = 0
        self.fused = len(vector) >= LARGE
        self.too_long: Tensor | None = None  # by what factor, where the kernel is to shorten the gradient

    def step(self, learning_rate: float) -> None:
        """theta -= rate * m_hat / (sqrt(v_hat) + epsilon), both moments corrected for starting at 0."""
        self.steps += 1
        if self.fused:
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
            return
        self.mean.lerp_(self.gradient, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(self.gradient, self.gradient, value=1 - BETA2)
        deviation = self.square.sqrt().mul_(1 / math.sqrt(1 - BETA2**self.steps)).add_(EPSILON)
        self.vector.addcdiv_(self.mean, deviation, value=-learning_rate / (1 - BETA1**self.steps))

    def clip(self, norm: float) -> None:
        """Shortens the gradient to a length of `norm` at the most, now or in the next step."""
        gradient = self.gradient
        if self.fused:
            # torch's norm takes care not to overflow, which for a long vector costs three times the time.
            ratio = (gradient.dot(gradient).sqrt() + 1e-6) / norm
            self.too_long = ratio if ratio > 1 else None
            return
        factor = norm / (gradient.norm() + 1e-6)
        if factor < 1:
            gradient.mul_(factor)

    def state(self) -> dict[str, Array]:
        steps = torch.tensor([self.steps]).numpy()
        return {"mean": self.mean.numpy().copy(), "square": self.square.numpy().copy(), "steps": steps}

    def load_state(self, state: Mapping[str, Array]) -> None:
        self.mean.copy_(torch.from_numpy(state["mean"].copy()))
        self.square.copy_(torch.from_numpy(state["square"].copy()))
        self.steps = int(state["steps"][0])
