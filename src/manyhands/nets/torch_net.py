"""torch's interpreter of a NetSpec: dense and convolutional, forward and backward. This is what learns."""

import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from manyhands.core.arrays import Array, Float32
from manyhands.core.errors import RunError
from manyhands.core.networks import MEAN, SCALE, Activation, Conv, NetSpec, Parameter
from manyhands.core.weights import average
from manyhands.nets.numpy_net import NORMAL_LIMIT
from manyhands.nets.torch_layers import ConvLayer, DenseHeads, DenseLayer, FreeHead, Trunk, shaped

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT = 2**30
"""Bytes up to which freed memory is kept."""


class TorchNet:
    """Parameters are leaf views into one flat tensor, gradients views into one flat gradient.

    So the optimizer sees a single tensor, clipping is one norm, and sending is one copy.
    """

    def __init__(self, spec: NetSpec, vector: Float32, beside: Mapping[str, Array] = {}) -> None:
        if spec.image:
            keep_memory()
        self.spec = spec
        self.flat = torch.from_numpy(np.array(vector, np.float32))
        self.gradient = torch.zeros(spec.size)
        self.statistics = {
            name: torch.from_numpy(np.array(beside[name], np.float32)) for name, _ in spec.statistics
        }
        self.heads: dict[tuple[str, ...], list[DenseHeads | FreeHead]] = {}
        self.last: list[DenseHeads | FreeHead] = []
        self.inputs: Tensor  # of the last `forward`, as the first layer saw them
        self.pixels = False  # whether they were bytes
        self.views: dict[str, Tensor] = {}
        for p in spec.parameters:
            view = _view(self.flat, p)
            view.grad = _view(self.gradient, p)
            self.views[p.name] = view
        self.trunk = Trunk([self._trunk_layer(i) for i in range(len(spec.trunk))])

    def gradient_of(self, name: str) -> Tensor:
        gradient = self.views[name].grad
        assert gradient is not None
        return gradient

    def load(self, vector: Float32, beside: Mapping[str, Array] = {}) -> None:
        self.flat.numpy()[...] = vector  # not through torch, which warns of read-only arrays
        for name, numbers in self.statistics.items():
            numbers.numpy()[...] = beside[name]

    def average_into(self, vector: Float32, share: float) -> None:
        """Move towards `vector`, by this share of the way; the statistics of inputs stay its own."""
        self.flat.numpy()[...] = average(self.vector(), vector, share)

    def set_input_moments(self, count: float, mean: Array, square: Array) -> None:
        """Shift and scale observations by their mean and sum of squared deviations from now on."""
        self.statistics[MEAN].copy_(torch.from_numpy(mean))
        self.statistics[SCALE].copy_(torch.from_numpy(1.0 / np.sqrt(square / count + 1e-6)))

    def check_finite(self, steps: int) -> None:
        total = sum((numbers.sum() for numbers in self.statistics.values()), self.flat.sum())
        if not bool(torch.isfinite(total)):  # of which one that is not finite makes another
            raise RunError(
                f"the weights are no longer finite after {steps} steps; "
                "try a smaller algo.learning_rate or algo.reward_scale"
            )

    def vector(self) -> Float32:
        copy: Float32 = self.flat.numpy().copy()
        return copy

    def beside(self) -> dict[str, Array]:
        return {name: numbers.numpy().copy() for name, numbers in self.statistics.items()}

    def forward(self, obs: Tensor, *names: str) -> list[Tensor]:
        """Return the outputs [B, size] of the named heads for observations [B, ...]."""
        if names not in self.heads:
            groups = (names,) if self._alike(names) else tuple((name,) for name in names)
            self.heads[names] = [self._group(group) for group in groups]
        self.last = self.heads[names]
        self.inputs, self.pixels = self._inputs(obs), obs.dtype == torch.uint8
        hidden = self.trunk.forward(self.inputs)
        return [output for group in self.last for output in group.forward(hidden)]

    def backward(self, gradients: Sequence[Tensor], wanted: bool = False) -> Tensor | None:
        """Add to the flat gradient, given those of the last `forward`'s outputs.

        Returns the gradient of the observations [B, ...] if it is `wanted`.
        """
        left = list(gradients)
        hidden_grad: list[Tensor] = []
        for group in self.last:
            mine, left = left[: group.count], left[group.count :]
            group_grad = group.backward(mine, wanted or bool(self.spec.trunk))
            if group_grad is not None:
                hidden_grad.append(group_grad)
        if not hidden_grad:
            return None
        inputs_grad = self.trunk.backward(sum(hidden_grad[1:], hidden_grad[0]), wanted)
        return self._obs_grad(inputs_grad) if wanted else None

    def _obs_grad(self, inputs_grad: Tensor) -> Tensor:
        """Return the gradient of the observations, given that of what `_inputs` made of them."""
        gradient = shaped(inputs_grad, self.inputs)
        if self.spec.normalise:
            inside = self.inputs.abs() < NORMAL_LIMIT
            rows = gradient.reshape(len(gradient), -1) * self.statistics[SCALE]
            gradient = rows.view(gradient.shape).where(inside, 0.0)
        if self.spec.image == "hwc":
            gradient = gradient.permute(0, 2, 3, 1)
        if self.pixels:
            gradient = gradient / 255
        return gradient.reshape(-1, *self.spec.input_shape)

    def _group(self, names: tuple[str, ...]) -> DenseHeads | FreeHead:
        if self.spec.head(names[0]).free:
            return FreeHead(self.views[names[0]], self.gradient_of(names[0]))
        layers = self.spec.head(names[0]).hidden
        hidden = [self._stack(names, i, layer.activation) for i, layer in enumerate(layers)]
        return DenseHeads(hidden, [self._stack((name,), None, "none") for name in names])

    def _alike(self, names: tuple[str, ...]) -> bool:
        """Return whether the heads can be computed side by side: the same hidden layers, evenly spaced."""
        heads = [self.spec.head(name) for name in names]
        if any(head.free or head.hidden != heads[0].hidden for head in heads):
            return False
        return len(names) == 2 or not heads[0].hidden

    def _stack(self, names: tuple[str, ...], layer: int | None, activation: Activation) -> DenseLayer:
        """Return the same layer of several heads as one view of the flat vector, the heads first."""
        where = {p.name: p for p in self.spec.parameters}
        suffix = "" if layer is None else str(layer)
        weights = [where[f"{name}{suffix}.weight"] for name in names]
        size_in, size_out = weights[0].shape
        apart = weights[1].offset - weights[0].offset if len(names) == 2 else 0
        offset = weights[0].offset
        shape, stride = (len(names), size_in, size_out), (apart, size_out, 1)
        bias_shape, bias_stride = (len(names), 1, size_out), (apart, size_out, 1)
        bias = where[f"{names[0]}{suffix}.bias"].offset
        return DenseLayer(
            self.flat.as_strided(shape, stride, offset),
            self.flat.as_strided(bias_shape, bias_stride, bias),
            self.gradient.as_strided(shape, stride, offset),
            self.gradient.as_strided(bias_shape, bias_stride, bias),
            activation,
        )

    def _trunk_layer(self, number: int) -> ConvLayer | DenseLayer:
        layer = self.spec.trunk[number]
        weight, bias = (self.views[f"trunk{number}.{part}"] for part in ("weight", "bias"))
        weight_grad, bias_grad = (self.gradient_of(f"trunk{number}.{part}") for part in ("weight", "bias"))
        if isinstance(layer, Conv):
            return ConvLayer(weight, bias, weight_grad, bias_grad, layer.stride, layer.activation)
        return DenseLayer(
            weight[None], bias[None, None], weight_grad[None], bias_grad[None, None], layer.activation
        )

    def _inputs(self, obs: Tensor) -> Tensor:
        """Return observations as the trunk takes them: images channels_last, else rows, scaled if so set."""
        inputs = self._image(obs) if self.spec.image else obs.flatten(1)
        if self.spec.normalise:
            rows = (inputs.reshape(len(obs), -1) - self.statistics[MEAN]) * self.statistics[SCALE]
            inputs = rows.clamp(-NORMAL_LIMIT, NORMAL_LIMIT).view(inputs.shape)
        return inputs

    def _image(self, obs: Tensor) -> Tensor:
        pixels = obs.float().mul_(1 / 255) if obs.dtype == torch.uint8 else obs
        if self.spec.image == "hwc":
            return pixels.permute(0, 3, 1, 2)  # lies channels_last already, which is the faster layout
        return pixels.contiguous(memory_format=torch.channels_last)


class TorchActor:
    """Acts with torch behind NumpyNet's interface, for networks with convolutions."""

    def __init__(self, spec: NetSpec) -> None:
        self.net = TorchNet(spec, np.zeros(spec.size, np.float32), spec.initial_statistics())

    def load(self, vector: Float32, beside: Mapping[str, Array] = {}) -> None:
        self.net.load(vector, beside)

    def forward(self, obs: Float32, head_name: str) -> Float32:
        if self.net.spec.head(head_name).free:
            free: Float32 = self.net.views[head_name].numpy()
            return free
        with torch_threads(1), torch.inference_mode():
            outputs: Float32 = self.net.forward(torch.from_numpy(obs), head_name)[0].numpy()
        return outputs


def keep_memory() -> None:
    """Keep freed memory in this process, where its C library can be told so.

    Batches of pictures are large enough for every one to be taken from the system anew and cleared page by
    page, which took five times as long as filling it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT)
        mallopt(M_TRIM_THRESHOLD, KEPT)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Use another number of threads, which is part of the result, and restore the caller's own afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _view(flat: Tensor, parameter: Parameter) -> Tensor:
    """Return a parameter's place in a flat vector; kernels as [out, in, height, width], channels_last."""
    view = flat[parameter.offset : parameter.end].view(parameter.shape).detach()
    return view.permute(0, 3, 1, 2) if view.ndim == 4 else view
