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
        outputs = []
        for name in names:
            head = self.spec.head(name)
            if head.free:
                outputs.append(self.views[name])
                continue
            layers = [self._layer(f"{name}{i}", layer.activation) for i, layer in enumerate(head.hidden)]
            layers.append(self._layer(name, "none"))
            outputs.append(_dense_layers(trunk, self.anchor, layers))
        return outputs

    def _trunk(self, obs: Tensor) -> Tensor:
        hidden = self._image(obs) if self.spec.image else obs.reshape(len(obs), -1)
        if self.spec.normalise:
            flat = (hidden.reshape(len(obs), -1) - self.views["input.mean"]) * self.views["input.scale"]
            hidden = flat.clamp(-NORMAL_LIMIT, NORMAL_LIMIT).view(hidden.shape)
        for i, layer in enumerate(self.spec.trunk):
            if isinstance(layer, Conv):
                weight, bias = self.views[f"trunk{i}.weight"], self.views[f"trunk{i}.bias"]
                hidden = functional.conv2d(hidden, weight, bias, stride=layer.stride)
                hidden = _activate(hidden, layer.activation)
            else:
                flat = hidden.reshape(len(obs), -1)
                hidden = _dense_layers(flat, self.anchor, [self._layer(f"trunk{i}", layer.activation)])
        return hidden.reshape(len(obs), -1)

    def _image(self, obs: Tensor) -> Tensor:
        pixels = obs.float().mul_(1 / 255) if obs.dtype == torch.uint8 else obs
        if self.spec.image == "hwc":
            return pixels.permute(0, 3, 1, 2)  # lies channels_last already, which is the faster layout
        return pixels.contiguous(memory_format=torch.channels_last)

    def _layer(self, name: str, activation: Activation) -> "_Layer":
        return _Layer(self.views[f"{name}.weight"], self.views[f"{name}.bias"], activation)


@dataclass(frozen=True)
class _Layer:
    weight: Tensor  # [in, out]
    bias: Tensor  # [out]
    activation: Activation


def _dense_layers(inputs: Tensor, anchor: Tensor, layers: list[_Layer]) -> Tensor:
    outputs: Tensor = _DenseLayers.apply(inputs, anchor, layers)  # type: ignore[no-untyped-call]
    return outputs


class _DenseLayers(torch.autograd.Function):
    """Dense layers as one step of autograd, their gradients added straight into the flat gradient.

    Fewer and larger steps than layer by layer, which is what small networks spend their time on.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, layers: list[_Layer]) -> Tensor:
        values = [inputs]
        for layer in layers:
            # tanh x = 2 sigmoid(2 x) - 1: torch's sigmoid is three times as fast as its tanh.
            twice = 2 if layer.activation == "tanh" else 1
            outputs = torch.addmm(layer.bias, values[-1], layer.weight, beta=twice, alpha=twice)
            if layer.activation == "tanh":
                outputs.sigmoid_().mul_(2).sub_(1)
            elif layer.activation == "relu":
                outputs.relu_()
            values.append(outputs)
        ctx.layers = layers
        ctx.save_for_backward(*values)
        return values[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        gradient: Tensor = gradients[0]
        values = ctx.saved_tensors
        for i in reversed(range(len(ctx.layers))):
            layer: _Layer = ctx.layers[i]
            inputs, outputs = values[i], values[i + 1]
            if layer.activation == "tanh":
                gradient = torch.ops.aten.tanh_backward(gradient, outputs)
            elif layer.activation == "relu":
                gradient = torch.ops.aten.threshold_backward(gradient, outputs, 0)
            assert layer.weight.grad is not None
            assert layer.bias.grad is not None
            layer.weight.grad.addmm_(inputs.t(), gradient)
            layer.bias.grad.add_(gradient.sum(0))
            if i > 0 or ctx.needs_input_grad[0]:
                gradient = gradient @ layer.weight.t()
        return (gradient if ctx.needs_input_grad[0] else None), None, None


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
