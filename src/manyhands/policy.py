"""What an agent is: a network described as data, one vector of numbers, and how outputs become actions."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from manyhands.errors import UsageError

Float32 = NDArray[np.float32]
STATE_STD_RATE = 0.01
"""How fast the part of a spread that depends on the state follows the network. At the means' own speed a
policy would be certain before it is right."""
Activation = Literal["tanh", "relu", "none"]
ACTIVATIONS = ("tanh", "relu", "none")
MAX_SIZE = 2**31
MAX_LAYERS = 256
MAX_DIMENSIONS = 6
KERNELS = "channels last"
"""How kernels lie in the vector, which the description does not say."""


@dataclass(frozen=True)
class Dense:
    """A fully connected layer."""

    size: int
    activation: Activation = "tanh"


@dataclass(frozen=True)
class Conv:
    """A convolution without padding over an image whose channels come first."""

    channels: int
    kernel: int
    stride: int
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
    kind: Literal["weight", "bias", "free", "mean", "scale"]

    @property
    def end(self) -> int:
        return self.offset + prod(self.shape)


@dataclass(frozen=True)
class NetSpec:
    """A network as plain data. Input -> trunk -> every head.

    `image` says how a three-dimensional input lies: "hwc", "chw", or "" for vectors. With `normalise` the
    input is shifted and scaled by running statistics, which travel at the end of the vector.
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
        """Every parameter in vector order: trunk, heads, then the input statistics, which are not trained."""
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
        if self.normalise:
            add("input.mean", (prod(self.input_shape),), 0.0, "mean")
            add("input.scale", (prod(self.input_shape),), 1.0, "scale")
        return tuple(found)

    @cached_property
    def size(self) -> int:
        """How many numbers the vector has."""
        return self.parameters[-1].end

    @cached_property
    def activations(self) -> int:
        """How many numbers a forward pass through all heads makes of one input, and the input itself."""
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
    def trained(self) -> int:
        """How many of them, from the front, an optimizer may move."""
        return self.size - 2 * prod(self.input_shape) if self.normalise else self.size

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
        """Names this structure; messages of another structure are refused by it."""
        kernels = KERNELS if any(isinstance(layer, Conv) for layer in self.trunk) else ""
        return hashlib.sha256((self.to_json() + kernels).encode()).hexdigest()[:16]

    def initial_vector(self, seed: int, deviation: float = 0.0) -> Float32:
        """Orthogonal weights (Saxe et al. 2014) with each layer's gain, zero biases; or all normal."""
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
    """Rows (or columns) orthonormal, times `gain`; a convolution's filters count as its outputs."""
    rows, columns = (shape[0], prod(shape[1:])) if len(shape) == 4 else (shape[0], shape[1])
    noise = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(noise)
    q = q * np.sign(np.diag(r))
    result: NDArray[np.float64] = (q if rows >= columns else q.T).reshape(shape) * gain
    return result


@dataclass(frozen=True)
class Weights:
    """One version of an agent's numbers. `vector` is contiguous float32 and never changed in place."""

    version: int
    vector: Float32
    schema: str


@dataclass(frozen=True)
class ActionSpec:
    """How a policy head's outputs become actions.

    - categorical: `sizes` holds the number of choices of each part (one for Discrete, several for
      MultiDiscrete); the head has their sum of logits.
    - gaussian: `sizes` holds one entry, the dimensions; the head gives means, the free head `log_std`
      the spread. `low` and `high` are the bounds of the environment (infinite when it has none). With
      `state_std` the head gives twice as many: what is to be added to `log_std` in this state, too.
    - values: one of `sizes[0]` choices; the head gives what each is worth, and the free head `epsilon` how
      often each lane of the run ignores that. With `dueling` the head's last output is the state's value,
      the others what each choice adds to it. When judged, an agent ignores it with probability `epsilon`.

    When judged, an agent takes the likeliest action, or with a `temperature` any, the more so the hotter it
    is; at 1 as it does when it learns.
    """

    kind: Literal["categorical", "gaussian", "values"]
    sizes: tuple[int, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    squash: bool = False
    state_std: bool = False
    dueling: bool = False
    epsilon: float = 0.0
    temperature: float = 0.0

    def chance(self, sample: bool) -> np.float32:
        """How much of its noise a judged agent has: with `sample` all of it, as when it learns."""
        return np.float32(1.0 if sample or self.epsilon > 0 else self.temperature)

    @property
    def outputs(self) -> int:
        """Of the policy's head."""
        return 2 * sum(self.sizes) if self.state_std else sum(self.sizes) + self.dueling

    @property
    def noises(self) -> int:
        """Random numbers that one choice takes."""
        return sum(self.sizes) + (self.kind == "values")

    def fits(self, space: "ActionSpec") -> bool:
        """Whether this is a way to act in `space`, which `describe` found."""
        continuous = (self.kind == "gaussian") == (space.kind == "gaussian")
        bounds = (self.sizes, self.low, self.high) == (space.sizes, space.low, space.high)
        return continuous and bounds

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one lane's action as it is stored: () for Discrete."""
        if self.kind == "gaussian":
            return self.sizes
        return () if len(self.sizes) == 1 else (len(self.sizes),)

    @property
    def dtype(self) -> str:
        return "<f4" if self.kind == "gaussian" else "<i4"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ActionSpec":
        try:
            plain: dict[str, Any] = {"low": (), "high": (), **json.loads(text)}
            plain |= {name: tuple(plain[name]) for name in ("sizes", "low", "high")}
            spec = cls(**plain)
            spec.check()
            return spec
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise UsageError(f"not a description of actions: {error!r:.200}") from error

    def check(self) -> None:
        """Refuses a description of actions that cannot be."""
        if self.kind not in ("categorical", "gaussian", "values") or not self.sizes:
            raise ValueError(f"actions of kind {self.kind!r:.20}")
        if not all(type(size) is int and 0 < size <= MAX_SIZE for size in self.sizes):
            raise ValueError("a size that is not a whole number greater than 0")
        flags = (self.squash, self.state_std, self.dueling)
        if not all(type(flag) is bool for flag in flags):
            raise ValueError("a switch that is neither on nor off")
        numbers = (*self.low, *self.high, self.epsilon, self.temperature)
        if not all(type(number) in (int, float) and number == number for number in numbers):
            raise ValueError("a bound that is not a number")
        if self.kind == "gaussian" and not len(self.low) == len(self.high) == self.sizes[0]:
            raise ValueError(f"{len(self.low)} and {len(self.high)} bounds of {self.sizes[0]} actions")

    def noise(self, rng: np.random.Generator, steps: int) -> Float32:
        """`steps` rows of a lane's noise: Gumbel for categorical choices, normal for gaussian ones.

        For values it is exponential: the first decides whether to explore, the largest of the others what.

        Row after row, so that drawing 3 and then 5 rows gives the same numbers as drawing 8.
        """
        if self.kind == "gaussian":
            return rng.standard_normal((steps, self.noises), dtype=np.float32)
        exponential = rng.standard_exponential((steps, self.noises), dtype=np.float32)
        if self.kind == "values":
            return exponential
        gumbel: Float32 = -np.log(exponential + np.float32(1e-30))
        return gumbel

    def normal(self, outputs: Float32, log_std: Float32) -> tuple[Float32, Float32]:
        """A gaussian's means and log standard deviations, given the outputs [..., n] of both heads."""
        if not self.state_std:
            return outputs, log_std
        size = self.sizes[0]
        return outputs[..., :size], log_std + np.float32(STATE_STD_RATE) * outputs[..., size:]

    def values(self, outputs: Any) -> Any:
        """What each choice is worth, for the head's outputs [..., n], NumPy's or torch's."""
        if not self.dueling:
            return outputs
        advantage = outputs[..., :-1]
        return outputs[..., -1:] + advantage - advantage.mean(-1)[..., None]

    def choose(self, outputs: Float32, spread: Float32, noise: Float32 | None) -> NDArray[Any]:
        """Actions [B, ...] for the head's outputs [B, n]; without noise the most likely ones.

        `spread` is what the free head says: a gaussian's log_std, or every lane's epsilon [B].
        """
        if self.kind == "gaussian":
            mean, log_std = self.normal(outputs, spread)
            return mean.copy() if noise is None else mean + np.exp(log_std) * noise
        if self.kind == "values":
            best: NDArray[Any] = outputs[..., : self.sizes[0]].argmax(axis=-1)
            if noise is not None:
                with np.errstate(divide="ignore"):
                    explores = noise[..., 0] < -np.log1p(-spread)  # with probability `spread`
                best = np.where(explores, noise[..., 1:].argmax(axis=-1), best)
            return best.astype(np.int32)
        scores = outputs if noise is None else outputs + noise
        if len(self.sizes) == 1:
            single: NDArray[Any] = scores.argmax(axis=-1).astype(np.int32)
            return single
        parts = np.split(scores, np.cumsum(self.sizes)[:-1], axis=-1)
        return np.stack([part.argmax(axis=-1) for part in parts], axis=-1).astype(np.int32)

    def log_prob(self, outputs: Float32, log_std: Float32, action: NDArray[Any]) -> Float32:
        """log pi(action) for outputs [..., n] and actions [..., (parts)]; one number per action."""
        if self.kind == "gaussian":
            mean, log_std = self.normal(outputs, log_std)
            z = (action - mean) * np.exp(-log_std)
            terms = -0.5 * z * z - log_std - np.float32(0.5 * np.log(2 * np.pi))
            log_prob: Float32 = terms.sum(axis=-1, dtype=np.float32)
            return log_prob
        actions = action[..., None] if len(self.sizes) == 1 else action
        total = np.zeros(outputs.shape[:-1], np.float32)
        start = 0
        for part, size in enumerate(self.sizes):
            logits = outputs[..., start : start + size]
            start += size
            logits = logits - logits.max(axis=-1, keepdims=True)
            chosen = np.take_along_axis(logits, actions[..., part : part + 1], axis=-1)[..., 0]
            total += chosen - np.log(np.exp(logits).sum(axis=-1))
        return total

    def to_env(self, action: NDArray[Any]) -> NDArray[Any]:
        """What the environment receives for stored actions [B, ...]: gaussians within their bounds.

        A finite range is addressed as -1..1: by tanh when `squash`, else by clipping.
        """
        if self.kind != "gaussian":
            return action
        low, high, span, bounded = self._bounds
        if not bounded.any():
            cut: NDArray[Any] = np.clip(action, low, high)
            return cut
        unit = np.tanh(action) if self.squash else np.clip(action, -1.0, 1.0)
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = low + (unit + 1) * np.float32(0.5) * span
        if not bounded.all():
            scaled = np.where(bounded, scaled, action)
        within: NDArray[Any] = np.clip(scaled, low, high).astype(np.float32, copy=False)
        return within

    @cached_property
    def _bounds(self) -> tuple[Float32, Float32, Float32, NDArray[np.bool_]]:
        """Lowest and highest actions, what lies between, and whether that is finite."""
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        with np.errstate(over="ignore"):
            span = high - low  # infinite as well where the bounds are float32's own
        return low, high, span, np.isfinite(span)
