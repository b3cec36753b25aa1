"""The closed gradients of the policy losses, against autograd."""

import pytest
import torch
from torch import Tensor

from manyhands.algos.distributions import distribution
from manyhands.core.actions import ActionSpec

SPECS = [
    ActionSpec("categorical", (4,)),
    ActionSpec("categorical", (3, 2, 5)),
    ActionSpec("gaussian", (3,), (-1.0,) * 3, (1.0,) * 3),
]


def sample(spec: ActionSpec, count: int = 50) -> tuple[Tensor, Tensor | None, Tensor]:
    """Outputs and log_std that ask for gradients, and actions."""
    torch.manual_seed(count)
    outputs = torch.randn(count, spec.outputs, requires_grad=True)
    if spec.kind == "gaussian":
        return outputs, torch.randn(spec.outputs, requires_grad=True), torch.randn(count, spec.outputs)
    action = torch.stack([torch.randint(size, (count,)) for size in spec.sizes], -1)
    return outputs, None, action[:, 0] if len(spec.sizes) == 1 else action


@pytest.mark.parametrize("entropy_weight", [0.0, 0.3])
@pytest.mark.parametrize("spec", SPECS)
def test_the_policy_gradient_equals_autograds(spec: ActionSpec, entropy_weight: float) -> None:
    outputs, log_std, action = sample(spec)
    coefficient = torch.randn(len(outputs))
    policy = distribution(spec, outputs, log_std, action)
    loss = (coefficient * policy.log_prob).sum() - entropy_weight * policy.entropy().mean()
    loss.backward()
    with torch.no_grad():
        found = distribution(spec, outputs, log_std, action).gradient(coefficient, entropy_weight)
    torch.testing.assert_close(found[0], outputs.grad, rtol=1e-4, atol=1e-5)
    if log_std is None:
        assert found[1] is None
    else:
        torch.testing.assert_close(found[1], log_std.grad, rtol=1e-4, atol=1e-4)
