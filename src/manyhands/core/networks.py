"""A network described as data, and where its parameters lie in one vector of numbers."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from manyhands.core.arrays import Float32
from manyhands.core.errors import UsageError
from manyhands.core.weights import Beside

Activation = Literal["tanh", "relu", "none"]
ACTIVATIONS = ("tanh", "relu", "none")
MAX_SIZE = 2**31
MAX_LAYERS = 256
MAX_DIMENSIONS = 6
KERNELS = "channels last"
"""The layout of kernels in the vector, which the description does not say."""
MEAN, SCALE = "input_mean", "input_scale"
"""The names of the statistics of inputs, which travel beside the vector; a scale is 1 / deviation."""


@dataclass(frozen=True)
class Dense:
    """A fully connected layer."""

    size: int
    """The number of its outputs."""
    activation: Activation = "tanh"


@dataclass(frozen=True)
class Conv:
    """A convolution without padding over an image whose channels come first."""

    channels: int
    """The number of its filters."""
    kernel: int
    """The side of a filter, in pixels."""
    stride: int
    """Pixels between two places of a filter."""
    activation: Activation = "relu"

    def outputs(self, image: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the shape of what it makes of an image, channels first both times."""
        height, across = ((side - self.kernel) // self.stride + 1 for side in image[1:])
        return self.channels, height, across


@dataclass(frozen=True)
class Head:
    """A named output with hidden layers of its own.

    `gain` scales the initial weights of the output layer. A `free` head ignores the input: its value is
    a plain vector of parameters that starts at `gain` (a Gaussian policy's log standard deviation).
    """

    name: str
    size: int
    hidden: tuple[Dense, ...] = ()
    gain: float = 1.0
    free: bool = False


@dataclass(frozen=True)
class Parameter:
    """One array inside the flat vector: where it lies and how it starts."""

    name: str
    shape: tuple[int, ...]
    offset: int
    gain: float
    kind: Literal["weight", "bias", "free"]

    @property
    def end(self) -> int:
        return self.offset + prod(self.shape)


@dataclass(frozen=True)
class NetSpec:
    """A network as plain data. Input -> trunk -> every head.

    `image` says how a three-dimensional input lies: "hwc", "chw", or "" for vectors. With `normalise` the
    input is shifted and scaled by running statistics, which travel beside the vector.
    """

    input_shape: tuple[int, ...]
    heads: tuple[Head, ...]
    trunk: tuple[Dense | Conv, ...] = ()
    image: Literal["", "hwc", "chw"] = ""
    normalise: bool = False

    @property
    def channels_first(self) -> tuple[int, int, int]:
        a, b, c = self.input_shape
        return (c, a, b) if self.image == "hwc" else (a, b, c)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter in vector order: trunk, then heads."""
        found: list[Parameter] = []

        def add(name: str, shape: tuple[int, ...], gain: float, kind: Any) -> None:
            found.append(Parameter(name, shape, found[-1].end if found else 0, gain, kind))

        def add_dense(name: str, size_in: int, size_out: int, gain: float) -> int:
            add(f"{name}.weight", (size_in, size_out), gain, "weight")
            add(f"{name}.bias", (size_out,), 0.0, "bias")
            return size_out

        width, shape = prod(self.input_shape), self.input_shape
        if self.image:
            shape = self.channels_first
        for i, layer in enumerate(self.trunk):
            if isinstance(layer, Conv):
                kernel = (layer.channels, layer.kernel, layer.kernel, shape[0])  # as channels_last lies
                add(f"trunk{i}.weight", kernel, hidden_gain(layer.activation), "weight")
                add(f"trunk{i}.bias", (layer.channels,), 0.0, "bias")
                shape = layer.outputs(shape)
                if min(shape) < 1:
                    raise UsageError(f"an image of {self.input_shape} is too small for {layer}")
                width = prod(shape)
            else:
                width = add_dense(f"trunk{i}", width, layer.size, hidden_gain(layer.activation))
        for head in self.heads:
            if head.free:
                add(head.name, (head.size,), head.gain, "free")
                continue
            size = width
            for i, layer in enumerate(head.hidden):
                size = add_dense(f"{head.name}{i}", size, layer.size, hidden_gain(layer.activation))
            add_dense(head.name, size, head.size, head.gain)
        return tuple(found)

    @cached_property
    def size(self) -> int:
        """The number of numbers in the vector."""
        return self.parameters[-1].end

    @cached_property
    def activations(self) -> int:
        """The size of one input and of all numbers that a forward pass through all heads makes of it."""
        shape = self.channels_first if self.image else self.input_shape
        total = prod(shape)
        for layer in self.trunk:
            if isinstance(layer, Conv):
                shape = layer.outputs(shape)
                total += prod(shape)
            else:
                total += layer.size
        heads = [head for head in self.heads if not head.free]
        return total + sum(head.size + sum(layer.size for layer in head.hidden) for head in heads)

    @cached_property
    def statistics(self) -> Beside:
        """The names and sizes of what travels beside the vector: a mean and a scale for every input."""
        size = prod(self.input_shape)
        return ((MEAN, size), (SCALE, size)) if self.normalise else ()

    def initial_statistics(self) -> dict[str, Float32]:
        """Return means of 0 and scales of 1."""
        return {name: np.full(size, float(name == SCALE), np.float32) for name, size in self.statistics}

    def head(self, name: str) -> Head:
        return next(head for head in self.heads if head.name == name)

    def check(self) -> None:
        """Refuses a description whose names, types or sizes make no network; allocates nothing."""
        layers = [*self.trunk, *(layer for head in self.heads for layer in head.hidden)]
        sizes: list[Any] = [*self.input_shape, *(head.size for head in self.heads)]
        for layer in layers:
            whole = (
                (layer.size,) if isinstance(layer, Dense) else (layer.channels, layer.kernel, layer.stride)
            )
            sizes.extend(whole)
        if not all(type(size) is int and 0 < size <= MAX_SIZE for size in sizes) or not self.input_shape:
            raise ValueError("a size that is not a whole number greater than 0")
        if len(layers) + len(self.heads) > MAX_LAYERS or len(self.input_shape) > MAX_DIMENSIONS:
            raise ValueError(f"more than {MAX_LAYERS} layers, or {MAX_DIMENSIONS} dimensions")
        if self.image not in ("", "hwc", "chw") or (bool(self.image) and len(self.input_shape) != 3):
            raise ValueError(f"an image that lies {self.image!r:.20}")
        if any(layer.activation not in ACTIVATIONS for layer in layers):
            raise ValueError("an activation that does not exist")
        names = [head.name for head in self.heads]
        if not names or not all(type(name) is str and name.isidentifier() for name in names):
            raise ValueError("heads without names")
        if len(set(names)) < len(names) or not all(type(head.free) is bool for head in self.heads):
            raise ValueError("two heads of one name, or one that is neither free nor not")
        if not all(type(head.gain) in (int, float) and abs(head.gain) < MAX_SIZE for head in self.heads):
            raise ValueError("a gain that is not a number")
        if any(isinstance(layer, Conv) for layer in self.trunk) and not self.image:
            raise ValueError("convolutions over what is no image")

    def to_json(self) -> str:
        layers = [{"type": type(layer).__name__.lower(), **asdict(layer)} for layer in self.trunk]
        return json.dumps({**asdict(self), "trunk": layers}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "NetSpec":
        try:
            plain = json.loads(text)
            spec = cls(
                input_shape=tuple(int(side) for side in plain["input_shape"]),
                heads=tuple(
                    Head(**{**head, "hidden": tuple(Dense(**layer) for layer in head["hidden"])})
                    for head in plain["heads"]
                ),
                trunk=tuple(_layer(layer) for layer in plain["trunk"]),
                image=plain["image"],
                normalise=bool(plain["normalise"]),
            )
            spec.check()
            return spec
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise UsageError(f"not a network description: {error!r}") from error

    @cached_property
    def schema(self) -> str:
        """The name of this structure, by which messages of another one are refused."""
        kernels = KERNELS if any(isinstance(layer, Conv) for layer in self.trunk) else ""
        return hashlib.sha256((self.to_json() + kernels).encode()).hexdigest()[:16]

    def initial_vector(self, seed: int, deviation: float = 0.0) -> Float32:
        """Return orthogonal weights (Saxe et al. 2014) with each layer's gain, zero biases; or all normal."""
        rng = np.random.default_rng(seed)
        vector = np.zeros(self.size, np.float32)
        for parameter in self.parameters:
            target = vector[parameter.offset : parameter.end].reshape(parameter.shape)
            if deviation and parameter.kind in ("weight", "bias"):
                target[...] = rng.normal(0.0, deviation, parameter.shape)
            elif parameter.kind == "weight":
                target[...] = _orthogonal(rng, parameter.shape, parameter.gain)
            else:
                target[...] = parameter.gain
        return vector


def _layer(plain: dict[str, Any]) -> Dense | Conv:
    kinds = {"dense": Dense, "conv": Conv}
    fields = dict(plain)
    layer: Dense | Conv = kinds[fields.pop("type")](**fields)
    return layer


def hidden_gain(activation: Activation) -> float:
    return 2**0.5 if activation in ("relu", "tanh") else 1.0


def _orthogonal(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> NDArray[np.float64]:
    """Return orthonormal rows (or columns) times `gain`; a convolution's filters count as its outputs."""
    rows, columns = (shape[0], prod(shape[1:])) if len(shape) == 4 else (shape[0], shape[1])
    noise = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(noise)
    q = q * np.sign(np.diag(r))
    result: NDArray[np.float64] = (q if rows >= columns else q.T).reshape(shape) * gain
    return result
