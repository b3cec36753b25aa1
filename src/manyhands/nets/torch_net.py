"""torch's interpreter of a NetSpec: dense and convolutional, forward and backward. This is what learns."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from manyhands.nets.numpy_net import NORMAL_LIMIT
from manyhands.policy import Activation, Conv, Float32, NetSpec


class TorchNet:
    """Parameters are leaf views into one flat tensor, gradients views into one flat gradient.

    So the optimizer sees a single tensor, clipping is one norm, and sending is one copy.
    """

    def __init__(self, spec: NetSpec, vector: Float32) -> None:
        self.spec = spec
        self.flat = torch.from_numpy(np.array(vector, np.float32))
        self.gradient = torch.zeros(spec.trained)
        self.trained = self.flat[: spec.trained].detach()
        self.anchor = torch.zeros((), requires_grad=True)  # makes autograd visit the dense layers
        self.stacks: dict[tuple[str, ...], tuple[list[_Stack], list[_Stack]]] = {}
        self.views: dict[str, Tensor] = {}
        for p in spec.parameters:
            view = self.flat[p.offset : p.end].view(p.shape).detach()
            if p.kind not in ("mean", "scale"):
                view.requires_grad_()
                view.grad = self.gradient[p.offset : p.end].view(p.shape)
            self.views[p.name] = view

    def gradient_of(self, name: str) -> Tensor:
        gradient = self.views[name].grad
        assert gradient is not None
        return gradient

    def load(self, vector: Float32) -> None:
        self.flat.numpy()[...] = vector  # not through torch, which warns of read-only arrays

    def vector(self) -> Float32:
        copy: Float32 = self.flat.numpy().copy()
        return copy

    def forward(self, obs: Tensor, *names: str) -> list[Tensor]:
        """The outputs [B, size] of the named heads for observations [B, ...]."""
        trunk = self._trunk(obs)
        if len(names) > 1 and not self._alike(names):
            return [output for name in names for output in self._heads(trunk, (name,))]
        return self._heads(trunk, names)

    def _heads(self, inputs: Tensor, names: tuple[str, ...]) -> list[Tensor]:
        if self.spec.head(names[0]).free:
            return [self.views[names[0]]]
        if names not in self.stacks:
            layers = self.spec.head(names[0]).hidden
            hidden = [self._stack(names, i, layer.activation) for i, layer in enumerate(layers)]
            self.stacks[names] = hidden, [self._stack((name,), None, "none") for name in names]
        hidden, last = self.stacks[names]
        return list(_DenseHeads.apply(inputs, self.anchor, hidden, last))  # type: ignore[no-untyped-call]

    def _alike(self, names: tuple[str, ...]) -> bool:
        """Whether the heads can be computed side by side: the same hidden layers, evenly spaced."""
        heads = [self.spec.head(name) for name in names]
        if any(head.free or head.hidden != heads[0].hidden for head in heads):
            return False
        return len(names) == 2 or not heads[0].hidden

    def _stack(self, names: tuple[str, ...], layer: int | None, activation: Activation) -> "_Stack":
        """The same layer of several heads as one view of the flat vector, with a first axis for the heads."""
        where = {p.name: p for p in self.spec.parameters}
        suffix = "" if layer is None else str(layer)
        weights = [where[f"{name}{suffix}.weight"] for name in names]
        size_in, size_out = weights[0].shape
        apart = weights[1].offset - weights[0].offset if len(names) == 2 else 0
        offset = weights[0].offset
        shape, stride = (len(names), size_in, size_out), (apart, size_out, 1)
        bias_shape, bias_stride = (len(names), 1, size_out), (apart, size_out, 1)
        bias = where[f"{names[0]}{suffix}.bias"].offset
        return _Stack(
            self.flat.as_strided(shape, stride, offset),
            self.flat.as_strided(bias_shape, bias_stride, bias),
            self.gradient.as_strided(shape, stride, offset),
            self.gradient.as_strided(bias_shape, bias_stride, bias),
            activation,
        )

    def _trunk(self, obs: Tensor) -> Tensor:
        hidden = self._image(obs) if self.spec.image else obs.reshape(len(obs), -1)
        if self.spec.normalise:
            flat = (hidden.reshape(len(obs), -1) - self.views["input.mean"]) * self.views["input.scale"]
            hidden = flat.clamp(-NORMAL_LIMIT, NORMAL_LIMIT).view(hidden.shape)
        for i, layer in enumerate(self.spec.trunk):
            weight, bias = self.views[f"trunk{i}.weight"], self.views[f"trunk{i}.bias"]
            if isinstance(layer, Conv):
                hidden = functional.conv2d(hidden, weight, bias, stride=layer.stride)
            else:
                hidden = torch.addmm(bias, hidden.reshape(len(obs), -1), weight)
            hidden = _activate(hidden, layer.activation)
        return hidden.reshape(len(obs), -1)

    def _image(self, obs: Tensor) -> Tensor:
        pixels = obs.float().mul_(1 / 255) if obs.dtype == torch.uint8 else obs
        if self.spec.image == "hwc":
            return pixels.permute(0, 3, 1, 2)  # lies channels_last already, which is the faster layout
        return pixels.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class _Stack:
    """One dense layer of H heads, and where its gradients go."""

    weight: Tensor  # [H, in, out]
    bias: Tensor  # [H, 1, out]
    of_weight: Tensor  # [H, in, out]
    of_bias: Tensor  # [H, 1, out]
    activation: Activation


class _DenseHeads(torch.autograd.Function):
    """All dense heads as one step of autograd, their gradients added straight into the flat gradient.

    Hidden layers of the heads are multiplied side by side. A small network spends its time on the number of
    calls, not on the multiplications.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, anchor: Tensor, hidden: list[_Stack], last: list[_Stack]
    ) -> tuple[Tensor, ...]:
        values = [inputs.expand(len(last), *inputs.shape)]
        for layer in hidden:
            # tanh x = 2 sigmoid(2 x) - 1: torch's sigmoid is three times as fast as its tanh.
            twice = 2 if layer.activation == "tanh" else 1
            outputs = torch.baddbmm(layer.bias, values[-1], layer.weight, beta=twice, alpha=twice)
            if layer.activation == "tanh":
                outputs.sigmoid_().mul_(2).sub_(1)
            elif layer.activation == "relu":
                outputs.relu_()
            values.append(outputs)
        ctx.hidden, ctx.last = hidden, last
        ctx.save_for_backward(*values)
        return tuple(
            torch.addmm(layer.bias[0], value, layer.weight[0])
            for layer, value in zip(last, values[-1].unbind(), strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        hidden: list[_Stack] = ctx.hidden
        values = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0]
        gradient = torch.empty(values[-1].shape)
        for k, (layer, of_output) in enumerate(zip(ctx.last, gradients, strict=True)):
            layer.of_weight[0].addmm_(values[-1][k].t(), of_output)
            layer.of_bias[0, 0].add_(of_output.sum(0))
            torch.mm(of_output, layer.weight[0].t(), out=gradient[k])
        for i in reversed(range(len(hidden))):
            layer, outputs = hidden[i], values[i + 1]
            if layer.activation == "tanh":
                gradient = torch.ops.aten.tanh_backward(gradient, outputs)
            elif layer.activation == "relu":
                gradient = torch.ops.aten.threshold_backward(gradient, outputs, 0)
            layer.of_weight.baddbmm_(values[i].transpose(1, 2), gradient)
            layer.of_bias.add_(gradient.sum(1, keepdim=True))
            if i > 0 or wanted:
                gradient = torch.bmm(gradient, layer.weight.transpose(1, 2))
        return (gradient.sum(0) if wanted else None), None, None, None


class TorchActor:
    """Acts with torch behind NumpyNet's interface, for networks with convolutions."""

    def __init__(self, spec: NetSpec) -> None:
        self.net = TorchNet(spec, np.zeros(spec.size, np.float32))

    def load(self, vector: Float32) -> None:
        self.net.load(vector)

    def forward(self, obs: Float32, head_name: str) -> Float32:
        with torch_threads(1), torch.inference_mode():
            outputs: Float32 = self.net.forward(torch.from_numpy(obs), head_name)[0].numpy()
        return outputs


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """With another number of threads, which is part of the result; a caller's own number is given back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _activate(inputs: Tensor, activation: Activation) -> Tensor:
    if activation == "tanh":
        return torch.tanh(inputs)
    return torch.relu(inputs) if activation == "relu" else inputs
