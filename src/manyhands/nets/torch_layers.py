"""The layers of a network in torch, forward and backward without autograd.

Every layer is views of one flat vector, and adds its gradients to views of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from manyhands.core.networks import Activation

MINUS_ONE = torch.tensor(-1.0)
LARGE = 2**18
"""Numbers of a dense layer from which on other orders of multiplying are faster."""
PARTS = 4
FEW_CHANNELS = 8
"""Up to this many input channels torch's own gradient of a kernel is the faster one."""


def activate(outputs: Tensor, activation: Activation) -> Tensor:
    """Apply an activation in place: its inputs are not needed any more."""
    if activation == "tanh":
        return outputs.tanh_()
    return outputs.relu_() if activation == "relu" else outputs


def before_activation(gradient: Tensor, outputs: Tensor, activation: Activation) -> Tensor:
    """Return the gradient of an activation's inputs, given that of its outputs."""
    if activation == "tanh":
        gradient = torch.ops.aten.tanh_backward(gradient, outputs)
    elif activation == "relu":
        gradient = torch.ops.aten.threshold_backward(gradient, outputs, 0)
    return gradient


@dataclass(frozen=True)
class ConvLayer:
    """Images [B, channels, height, width] that lie channels_last, as do the kernels."""

    weight: Tensor  # [out, in, side, side]
    bias: Tensor  # [out]
    weight_grad: Tensor
    bias_grad: Tensor
    stride: int
    activation: Activation

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = functional.conv2d(inputs, self.weight, self.bias, stride=self.stride)
        return activate(outputs, self.activation)

    def backward(self, inputs: Tensor, outputs: Tensor, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Add to the gradients; return also that of the inputs, where it is wanted."""
        gradient = before_activation(gradient, outputs, self.activation)
        many = self.weight.shape[1] > FEW_CHANNELS
        if many:
            self._add_by_patches(inputs, gradient)
        inputs_grad, weight_grad, bias_grad = torch.ops.aten.convolution_backward(
            gradient,
            inputs,
            self.weight,
            [len(self.bias)],
            [self.stride] * 2,
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            [wanted, not many, not many],
        )
        if not many:
            self.weight_grad.add_(weight_grad)
            self.bias_grad.add_(bias_grad)
        return inputs_grad if wanted else None

    def _add_by_patches(self, inputs: Tensor, gradient: Tensor) -> None:
        """Add the kernels' gradient as one product with all patches of the images that they looked at."""
        count, _, height, width = gradient.shape
        out, channels, *sides = self.weight.shape
        n, y, x, c = inputs.permute(0, 2, 3, 1).stride()
        shape = (count, height, width, *sides, channels)
        stride = (n, self.stride * y, self.stride * x, y, x, c)
        patches = inputs.as_strided(shape, stride).reshape(count * height * width, -1)
        rows = gradient.permute(0, 2, 3, 1).reshape(-1, out)
        self.weight_grad.permute(0, 2, 3, 1).view(out, -1).add_(torch.mm(patches.t(), rows).t())
        self.bias_grad.add_(rows.sum(0))


@dataclass(frozen=True)
class DenseLayer:
    """The same layer of H heads side by side: of a small network, most of the time is the number of calls."""

    weight: Tensor  # [H, in, out]
    bias: Tensor  # [H, 1, out]
    weight_grad: Tensor
    bias_grad: Tensor
    activation: Activation

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [H, B, out] from [H, B, in]."""
        # tanh x = 2 sigmoid(2 x) - 1: torch's sigmoid is three times as fast as its tanh.
        twice = 2 if self.activation == "tanh" else 1
        parts = PARTS if self._is_large() and torch.get_num_threads() > 1 else 1
        outputs = self._multiply(inputs, parts, twice)
        if self.activation == "tanh":
            return torch.add(MINUS_ONE, outputs.sigmoid_(), alpha=2, out=outputs)
        return activate(outputs, self.activation)

    def _is_large(self) -> bool:
        return len(self.weight) == 1 and self.weight.numel() >= LARGE and self.weight.shape[2] % PARTS == 0

    def _multiply(self, inputs: Tensor, parts: int, factor: int) -> Tensor:
        """Return factor (x W + b), some outputs after others: threads share out parts better than rows."""
        if parts == 1:
            return torch.baddbmm(self.bias, inputs, self.weight, beta=factor, alpha=factor)
        _, size_in, size_out = self.weight.shape
        weight = self.weight.view(size_in, parts, size_out // parts).transpose(0, 1)
        bias = self.bias.view(parts, 1, size_out // parts)
        rows = inputs.expand(parts, *inputs.shape[1:])
        outputs = torch.baddbmm(bias, rows, weight, beta=factor, alpha=factor)
        return outputs.transpose(0, 1).reshape(1, -1, size_out)

    def backward(self, inputs: Tensor, outputs: Tensor, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Add to the gradients; return also that of the inputs [H, B, in], where it is wanted."""
        gradient = before_activation(gradient, outputs, self.activation)
        self.weight_grad.baddbmm_(inputs.transpose(1, 2), gradient)
        self.bias_grad.add_(gradient.sum(1, keepdim=True))
        if not wanted:
            return None
        if self._is_large():
            return torch.bmm(self.weight, gradient.transpose(1, 2)).transpose(1, 2)
        return torch.bmm(gradient, self.weight.transpose(1, 2))


class Trunk:
    """Layers one after the other: convolutions, then dense ones."""

    def __init__(self, layers: Sequence[ConvLayer | DenseLayer]) -> None:
        self.layers = layers
        self.passed: list[tuple[Tensor, Tensor]] = []  # what went into every layer, and what came out

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs [B, n]."""
        self.passed = []
        for layer in self.layers:
            if isinstance(layer, DenseLayer):
                inputs = flat(inputs)[None]
            outputs = layer.forward(inputs)
            self.passed.append((inputs, outputs))
            inputs = outputs[0] if isinstance(layer, DenseLayer) else outputs
        return flat(inputs)

    def backward(self, gradient: Tensor, wanted: bool) -> Tensor:
        """Add to the gradients of all layers, given that of the outputs; return the inputs' if `wanted`."""
        for number, layer in reversed(list(enumerate(self.layers))):
            inputs, outputs = self.passed[number]
            inputs_grad = layer.backward(inputs, outputs, shaped(gradient, outputs), wanted or number > 0)
            if inputs_grad is not None:
                gradient = inputs_grad
        return gradient


def flat(hidden: Tensor) -> Tensor:
    """Return [B, n]. What convolutions make lies channels_last, so in that order it need not be copied."""
    return (hidden.permute(0, 2, 3, 1) if hidden.ndim == 4 else hidden).flatten(1)


def shaped(gradient: Tensor, like: Tensor) -> Tensor:
    """Return [B, n] or [1, B, n] in the shape of what was made flat; what has its shape already stays."""
    if like.ndim == 4 and gradient.ndim < 4:
        count, channels, height, width = like.shape
        return gradient.reshape(count, height, width, channels).permute(0, 3, 1, 2)
    return gradient.reshape(like.shape)


class DenseHeads:
    """Dense heads, their hidden layers multiplied side by side."""

    def __init__(self, hidden: list[DenseLayer], last: list[DenseLayer]) -> None:
        self.hidden, self.last, self.count = hidden, last, len(last)
        self.values: list[Tensor] = []  # [H, B, n] each, what went into every layer

    def forward(self, inputs: Tensor) -> list[Tensor]:
        self.values = [inputs.expand(len(self.last), *inputs.shape)]
        for layer in self.hidden:
            self.values.append(layer.forward(self.values[-1]))
        # Few outputs for many rows: three times as fast with the outputs as rows, turned round again.
        return [
            torch.addmm(layer.bias[0].t(), layer.weight[0].t(), value.t()).t()
            for layer, value in zip(self.last, self.values[-1].unbind(), strict=True)
        ]

    def backward(self, gradients: Sequence[Tensor], wanted: bool) -> Tensor | None:
        """Add to the flat gradient; return also the gradient of the inputs [B, n], where it is wanted."""
        values = self.values
        gradient = torch.empty(values[-1].shape)
        for k, (layer, output_grad) in enumerate(zip(self.last, gradients, strict=True)):
            layer.weight_grad[0].add_(torch.mm(output_grad.t(), values[-1][k]).t())
            layer.bias_grad[0, 0].add_(output_grad.sum(0))
            torch.mm(output_grad, layer.weight[0].t(), out=gradient[k])
        for i in reversed(range(len(self.hidden))):
            inputs_grad = self.hidden[i].backward(values[i], values[i + 1], gradient, wanted or i > 0)
            if inputs_grad is not None:
                gradient = inputs_grad
        return gradient.sum(0) if wanted else None


class FreeHead:
    """A head that ignores the input."""

    count = 1

    def __init__(self, value: Tensor, gradient: Tensor) -> None:
        self.value, self.gradient = value, gradient

    def forward(self, inputs: Tensor) -> list[Tensor]:
        return [self.value]

    def backward(self, gradients: Sequence[Tensor], wanted: bool) -> None:
        self.gradient.add_(gradients[0])
