"""A dense network in NumPy that also goes backward, for learning in a process too small for torch."""

from dataclasses import dataclass

import numpy as np

from manyhands.core.arrays import Float32
from manyhands.core.networks import MEAN, SCALE, Activation, NetSpec
from manyhands.nets.numpy_net import NORMAL_LIMIT, NumpyNet


@dataclass(frozen=True)
class _Layer:
    """One dense layer, and where its gradients go."""

    weight: Float32  # [in, out]
    bias: Float32  # [out]
    weight_grad: Float32
    bias_grad: Float32
    activation: Activation

    def forward(self, inputs: Float32) -> Float32:
        outputs: Float32 = inputs @ self.weight + self.bias
        if self.activation == "tanh":
            return np.tanh(outputs, out=outputs)
        return np.maximum(outputs, 0.0, out=outputs) if self.activation == "relu" else outputs

    def backward(self, inputs: Float32, outputs: Float32, gradient: Float32) -> Float32:
        """Add to the gradients; return that of the inputs."""
        if self.activation == "tanh":
            gradient = gradient * (1 - outputs * outputs)
        elif self.activation == "relu":
            gradient = gradient * (outputs > 0)
        self.weight_grad[...] += inputs.T @ gradient
        self.bias_grad[...] += gradient.sum(0)
        inputs_grad: Float32 = gradient @ self.weight.T
        return inputs_grad


class NumpyGradient:
    """Parameters are views of one flat vector, gradients views of another."""

    def __init__(self, spec: NetSpec) -> None:
        self.spec, self.net = spec, NumpyNet(spec)  # which acts with the same numbers
        self.gradient = np.zeros(spec.size, np.float32)
        self.of = {p.name: self.gradient[p.offset : p.end].reshape(p.shape) for p in spec.parameters}
        self.trunk = [self._layer(f"trunk{i}", layer.activation) for i, layer in enumerate(spec.trunk)]
        self.heads = {
            head.name: [
                *(self._layer(f"{head.name}{i}", layer.activation) for i, layer in enumerate(head.hidden)),
                self._layer(head.name, "none"),
            ]
            for head in spec.heads
            if not head.free
        }
        self.trunk_values: list[Float32] = []
        self.head_values: list[tuple[list[_Layer], list[Float32]]] = []

    def _layer(self, name: str, activation: Activation) -> _Layer:
        weight, bias = (self.net.views[f"{name}.{part}"] for part in ("weight", "bias"))
        weight_grad, bias_grad = (self.of[f"{name}.{part}"] for part in ("weight", "bias"))
        return _Layer(weight, bias, weight_grad, bias_grad, activation)

    def forward(self, obs: Float32, *names: str) -> list[Float32]:
        """Return the outputs [B, size] of heads that look at the observations [B, ...]."""
        hidden = obs.reshape(len(obs), -1)
        if self.spec.normalise:
            hidden = (hidden - self.net.statistics[MEAN]) * self.net.statistics[SCALE]
            hidden = np.clip(hidden, -NORMAL_LIMIT, NORMAL_LIMIT)
        self.trunk_values = _through(self.trunk, hidden)
        chains = [self.heads[name] for name in names]
        self.head_values = [(chain, _through(chain, self.trunk_values[-1])) for chain in chains]
        return [values[-1] for _, values in self.head_values]

    def backward(self, gradients: list[Float32]) -> None:
        """Set the flat gradient, given those of the last `forward`'s outputs."""
        self.gradient[...] = 0.0
        trunk_grad = [
            _back(chain, values, gradient)
            for (chain, values), gradient in zip(self.head_values, gradients, strict=True)
        ]
        if self.trunk:
            _back(self.trunk, self.trunk_values, np.sum(trunk_grad, axis=0))


def _through(layers: list[_Layer], inputs: Float32) -> list[Float32]:
    """Return what goes into every layer, and what comes out of the last."""
    values = [inputs]
    for layer in layers:
        values.append(layer.forward(values[-1]))
    return values


def _back(layers: list[_Layer], values: list[Float32], gradient: Float32) -> Float32:
    for i in reversed(range(len(layers))):
        gradient = layers[i].backward(values[i], values[i + 1], gradient)
    return gradient
