"""torch's interpreter of a NetSpec: dense and convolutional, forward and backward. This is what learns."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from manyhands.errors import RunError
from manyhands.experience import Array
from manyhands.nets.numpy_net import NORMAL_LIMIT
from manyhands.policy import Activation, Conv, Float32, NetSpec, Parameter

MINUS_ONE = torch.tensor(-1.0)


class TorchNet:
    """Parameters are leaf views into one flat tensor, gradients views into one flat gradient.

    So the optimizer sees a single tensor, clipping is one norm, and sending is one copy.
    """

    def __init__(self, spec: NetSpec, vector: Float32) -> None:
        self.spec = spec
        self.flat = torch.from_numpy(np.array(vector, np.float32))
        self.gradient = torch.zeros(spec.trained)
        self.trained = self.flat[: spec.trained].detach()
        self.heads: dict[tuple[str, ...], list[_DenseHeads | _FreeHead]] = {}
        self.last: tuple[Tensor, list[_DenseHeads | _FreeHead]]
        self.views: dict[str, Tensor] = {}
        for p in spec.parameters:
            view = _view(self.flat, p)
            if p.kind not in ("mean", "scale"):
                view.requires_grad_()
                view.grad = _view(self.gradient, p)
            self.views[p.name] = view

    def gradient_of(self, name: str) -> Tensor:
        gradient = self.views[name].grad
        assert gradient is not None
        return gradient

    def load(self, vector: Float32) -> None:
        self.flat.numpy()[...] = vector  # not through torch, which warns of read-only arrays

    def set_input_moments(self, count: float, mean: Array, square: Array) -> None:
        """Observations are shifted and scaled by their mean and sum of squared deviations from now on."""
        self.views["input.mean"].copy_(torch.from_numpy(mean))
        self.views["input.scale"].copy_(torch.from_numpy(1.0 / np.sqrt(square / count + 1e-6)))

    def check_finite(self, steps: int) -> None:
        if not bool(torch.isfinite(self.flat).all()):
            raise RunError(
                f"the weights are no longer finite after {steps} steps; "
                "try a smaller algo.learning_rate or algo.reward_scale"
            )

    def vector(self) -> Float32:
        copy: Float32 = self.flat.numpy().copy()
        return copy

    def forward(self, obs: Tensor, *names: str) -> list[Tensor]:
        """The outputs [B, size] of the named heads for observations [B, ...]."""
        if names not in self.heads:
            groups = (names,) if self._alike(names) else tuple((name,) for name in names)
            self.heads[names] = [self._group(group) for group in groups]
        trunk = self._trunk(obs)
        inputs = trunk.detach()
        self.last = trunk, self.heads[names]
        return [output for group in self.heads[names] for output in group.forward(inputs)]

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Adds to the flat gradient, given those of the last `forward`'s outputs."""
        trunk, groups = self.last
        left = list(gradients)
        for group in groups:
            mine, left = left[: group.count], left[group.count :]
            of_inputs = group.backward(mine, trunk.requires_grad)
            if of_inputs is not None:
                trunk.backward(of_inputs, retain_graph=bool(left))  # type: ignore[no-untyped-call]

    def _group(self, names: tuple[str, ...]) -> "_DenseHeads | _FreeHead":
        if self.spec.head(names[0]).free:
            return _FreeHead(self.views[names[0]].detach(), self.gradient_of(names[0]))
        layers = self.spec.head(names[0]).hidden
        hidden = [self._stack(names, i, layer.activation) for i, layer in enumerate(layers)]
        return _DenseHeads(hidden, [self._stack((name,), None, "none") for name in names])

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
        hidden = self._image(obs) if self.spec.image else obs.flatten(1)
        if self.spec.normalise:
            flat = (hidden.reshape(len(obs), -1) - self.views["input.mean"]) * self.views["input.scale"]
            hidden = flat.clamp(-NORMAL_LIMIT, NORMAL_LIMIT).view(hidden.shape)
        for i, layer in enumerate(self.spec.trunk):
            weight, bias = self.views[f"trunk{i}.weight"], self.views[f"trunk{i}.bias"]
            if isinstance(layer, Conv):
                hidden = functional.conv2d(hidden, weight, bias, stride=layer.stride)
            else:
                hidden = torch.addmm(bias, _flat(hidden), weight)
            hidden = _activate(hidden, layer.activation)
        return _flat(hidden)

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


class _DenseHeads:
    """Dense heads, forward and backward without autograd, their hidden layers multiplied side by side.

    A small network spends its time on the number of calls, not on the multiplications.
    """

    def __init__(self, hidden: list[_Stack], last: list[_Stack]) -> None:
        self.hidden, self.last, self.count = hidden, last, len(last)
        self.values: list[Tensor] = []  # [H, B, n] each, what went into every layer

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> list[Tensor]:
        values = [inputs.expand(len(self.last), *inputs.shape)]
        for layer in self.hidden:
            # tanh x = 2 sigmoid(2 x) - 1: torch's sigmoid is three times as fast as its tanh.
            twice = 2 if layer.activation == "tanh" else 1
            outputs = torch.baddbmm(layer.bias, values[-1], layer.weight, beta=twice, alpha=twice)
            if layer.activation == "tanh":
                torch.add(MINUS_ONE, outputs.sigmoid_(), alpha=2, out=outputs)
            elif layer.activation == "relu":
                outputs.relu_()
            values.append(outputs)
        self.values = values
        # Few outputs for many rows: three times as fast with the outputs as rows, turned round again.
        return [
            torch.addmm(layer.bias[0].t(), layer.weight[0].t(), value.t()).t()
            for layer, value in zip(self.last, values[-1].unbind(), strict=True)
        ]

    @torch.no_grad()
    def backward(self, gradients: Sequence[Tensor], wanted: bool) -> Tensor | None:
        """Adds to the flat gradient; also the gradient of the inputs [B, n], where it is wanted."""
        values = self.values
        gradient = torch.empty(values[-1].shape)
        for k, (layer, of_output) in enumerate(zip(self.last, gradients, strict=True)):
            layer.of_weight[0].add_(torch.mm(of_output.t(), values[-1][k]).t())
            layer.of_bias[0, 0].add_(of_output.sum(0))
            torch.mm(of_output, layer.weight[0].t(), out=gradient[k])
        for i in reversed(range(len(self.hidden))):
            layer, outputs = self.hidden[i], values[i + 1]
            if layer.activation == "tanh":
                gradient = torch.ops.aten.tanh_backward(gradient, outputs)
            elif layer.activation == "relu":
                gradient = torch.ops.aten.threshold_backward(gradient, outputs, 0)
            layer.of_weight.baddbmm_(values[i].transpose(1, 2), gradient)
            layer.of_bias.add_(gradient.sum(1, keepdim=True))
            if i > 0 or wanted:
                gradient = torch.bmm(gradient, layer.weight.transpose(1, 2))
        return gradient.sum(0) if wanted else None


class _FreeHead:
    """A head that ignores the input."""

    count = 1

    def __init__(self, value: Tensor, gradient: Tensor) -> None:
        self.value, self.gradient = value, gradient

    def forward(self, inputs: Tensor) -> list[Tensor]:
        return [self.value]

    def backward(self, gradients: Sequence[Tensor], wanted: bool) -> None:
        self.gradient.add_(gradients[0])


class TorchActor:
    """Acts with torch behind NumpyNet's interface, for networks with convolutions."""

    def __init__(self, spec: NetSpec) -> None:
        self.net = TorchNet(spec, np.zeros(spec.size, np.float32))

    def load(self, vector: Float32) -> None:
        self.net.load(vector)

    def forward(self, obs: Float32, head_name: str) -> Float32:
        if self.net.spec.head(head_name).free:
            free: Float32 = self.net.views[head_name].detach().numpy()
            return free
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


def _view(flat: Tensor, parameter: Parameter) -> Tensor:
    """A parameter's place in a flat vector; kernels as [out, in, height, width], which lie channels_last."""
    view = flat[parameter.offset : parameter.end].view(parameter.shape).detach()
    return view.permute(0, 3, 1, 2) if view.ndim == 4 else view


def _flat(hidden: Tensor) -> Tensor:
    """[B, n]. What convolutions make lies channels_last, so in that order it need not be copied."""
    return (hidden.permute(0, 2, 3, 1) if hidden.ndim == 4 else hidden).flatten(1)


def _activate(outputs: Tensor, activation: Activation) -> Tensor:
    """In place: nobody needs what went into it."""
    if activation == "tanh":
        return outputs.tanh_()
    return outputs.relu_() if activation == "relu" else outputs
