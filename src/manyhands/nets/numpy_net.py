"""NumPy's interpreter of a NetSpec: dense networks, forward only. This is what acts."""

from collections.abc import Mapping

import numpy as np

from manyhands.core.arrays import Array, Float32
from manyhands.core.networks import MEAN, SCALE, Activation, Conv, NetSpec

NORMAL_LIMIT = 10.0
"""Normalised inputs are cut at this many deviations, in both interpreters."""


class NumpyNet:
    """Holds a copy of a vector as views, and for every head the chain of layers that leads to it."""

    def __init__(self, spec: NetSpec) -> None:
        self.spec = spec
        self.vector = np.zeros(spec.size, np.float32)
        self.statistics = spec.initial_statistics()
        self.views = {p.name: self.vector[p.offset : p.end].reshape(p.shape) for p in spec.parameters}
        self.chains = {head.name: self._chain(head.name) for head in spec.heads if not head.free}
        self.buffers: dict[tuple[str, int], list[Float32]] = {}

    def _chain(self, head_name: str) -> list[tuple[Float32, Float32, Activation]]:
        names: list[tuple[str, Activation]] = []
        for i, layer in enumerate(self.spec.trunk):
            if isinstance(layer, Conv):
                raise ValueError("convolutions act with torch")
            names.append((f"trunk{i}", layer.activation))
        hidden = self.spec.head(head_name).hidden
        names += [(f"{head_name}{i}", layer.activation) for i, layer in enumerate(hidden)]
        names.append((head_name, "none"))
        return [
            (self.views[f"{name}.weight"], self.views[f"{name}.bias"], activation)
            for name, activation in names
        ]

    def load(self, vector: Float32, beside: Mapping[str, Array] = {}) -> None:
        self.vector[...] = vector
        for name, array in self.statistics.items():
            array[...] = beside[name]

    def forward(self, obs: Float32, head_name: str) -> Float32:
        """Return one head's outputs [B, size] for observations [B, ...]; the next call reuses them."""
        if head_name not in self.chains:
            return self.views[head_name]
        chain = self.chains[head_name]
        outs = self.buffers.get((head_name, len(obs)))
        if outs is None:
            outs = [np.empty((len(obs), weight.shape[1]), np.float32) for weight, _, _ in chain]
            self.buffers[head_name, len(obs)] = outs
        hidden = obs.reshape(len(obs), -1)
        if self.spec.normalise:
            hidden = (hidden - self.statistics[MEAN]) * self.statistics[SCALE]
            np.clip(hidden, -NORMAL_LIMIT, NORMAL_LIMIT, out=hidden)
        for (weight, bias, activation), out in zip(chain, outs, strict=True):
            np.matmul(hidden, weight, out=out)
            out += bias
            if activation == "tanh":
                np.tanh(out, out=out)
            elif activation == "relu":
                np.maximum(out, 0.0, out=out)
            hidden = out
        return hidden
