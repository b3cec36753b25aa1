"""torch's interpreter of a NetSpec: dense and convolutional, forward and backward. This is what learns."""

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
        self.trained.grad = self.gradient
        self.views: dict[str, Tensor] = {}
        for p in spec.parameters:
            view = self.flat[p.offset : p.end].view(p.shape).detach()
            if p.kind not in ("mean", "scale"):
                view.requires_grad_()
                view.grad = self.gradient[p.offset : p.end].view(p.shape)
            self.views[p.name] = view

    def load(self, vector: Float32) -> None:
        self.flat.copy_(torch.from_numpy(vector))

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
            hidden = trunk
            for i, layer in enumerate(head.hidden):
                hidden = self._dense(f"{name}{i}", hidden, layer.activation)
            outputs.append(self._dense(name, hidden, "none"))
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
                hidden = self._dense(f"trunk{i}", hidden.reshape(len(obs), -1), layer.activation)
        return hidden.reshape(len(obs), -1)

    def _image(self, obs: Tensor) -> Tensor:
        pixels = obs.float().mul_(1 / 255) if obs.dtype == torch.uint8 else obs
        if self.spec.image == "hwc":
            return pixels.permute(0, 3, 1, 2)  # lies channels_last already, which is the faster layout
        return pixels.contiguous(memory_format=torch.channels_last)

    def _dense(self, name: str, inputs: Tensor, activation: Activation) -> Tensor:
        outputs = torch.addmm(self.views[f"{name}.bias"], inputs, self.views[f"{name}.weight"])
        return _activate(outputs, activation)


class TorchActor:
    """Acts with torch behind NumpyNet's interface, for networks with convolutions."""

    def __init__(self, spec: NetSpec) -> None:
        torch.set_num_threads(1)
        self.net = TorchNet(spec, np.zeros(spec.size, np.float32))

    def load(self, vector: Float32) -> None:
        self.net.load(vector)

    def forward(self, obs: Float32, head_name: str) -> Float32:
        with torch.inference_mode():
            outputs: Float32 = self.net.forward(torch.from_numpy(obs), head_name)[0].numpy()
        return outputs


def _activate(inputs: Tensor, activation: Activation) -> Tensor:
    if activation == "tanh":
        return torch.tanh(inputs)
    return torch.relu(inputs) if activation == "relu" else inputs
