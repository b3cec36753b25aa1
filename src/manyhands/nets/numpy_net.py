"""NumPy's interpreter of a NetSpec: dense networks, forward only. This is what acts."""

import numpy as np

from manyhands.policy import Activation, Conv, Dense, Float32, NetSpec

NORMAL_LIMIT = 10.0
"""Normalised inputs are cut at this many deviations, in both interpreters."""


class NumpyNet:
    """Holds a copy of a vector as views, and buffers for one batch size at a time."""

    def __init__(self, spec: NetSpec) -> None:
        if any(isinstance(layer, Conv) for layer in spec.trunk):
            raise ValueError("convolutions act with torch")
        self.spec = spec
        self.vector = np.zeros(spec.size, np.float32)
        self.views = {p.name: self.vector[p.offset : p.end].reshape(p.shape) for p in spec.parameters}
        self._buffers: dict[tuple[str, int], Float32] = {}

    def load(self, vector: Float32) -> None:
        self.vector[...] = vector

    def forward(self, obs: Float32, head_name: str) -> Float32:
        """One head's outputs [B, size] for observations [B, ...]. The result is reused by the next call."""
        head = self.spec.head(head_name)
        if head.free:
            return self.views[head.name]
        hidden = obs.reshape(len(obs), -1)
        if self.spec.normalise:
            hidden = (hidden - self.views["input.mean"]) * self.views["input.scale"]
            np.clip(hidden, -NORMAL_LIMIT, NORMAL_LIMIT, out=hidden)
        for i, layer in enumerate(self.spec.trunk):
            assert isinstance(layer, Dense)
            hidden = self._dense(f"trunk{i}", hidden, layer.activation)
        for i, layer in enumerate(head.hidden):
            hidden = self._dense(f"{head.name}{i}", hidden, layer.activation)
        return self._dense(head.name, hidden, "none")

    def _dense(self, name: str, inputs: Float32, activation: Activation) -> Float32:
        weight = self.views[f"{name}.weight"]
        key = (name, len(inputs))
        out = self._buffers.get(key)
        if out is None:
            out = self._buffers[key] = np.empty((len(inputs), weight.shape[1]), np.float32)
        np.matmul(inputs, weight, out=out)
        out += self.views[f"{name}.bias"]
        if activation == "tanh":
            np.tanh(out, out=out)
        elif activation == "relu":
            np.maximum(out, 0.0, out=out)
        return out
