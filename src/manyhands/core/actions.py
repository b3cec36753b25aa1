"""How a policy's outputs become actions."""

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from manyhands.core.action_spaces import ActionSpace, Box, Discrete, MultiDiscrete
from manyhands.core.arrays import Float32
from manyhands.core.errors import UsageError
from manyhands.core.networks import MAX_SIZE

STATE_STD_RATE = 0.01
"""How fast the part of a spread that depends on the state follows the network. At the means' own speed a
policy would be certain before it is right."""


def epsilon_greedy(values: Float32, epsilon: Float32 | float, noise: Float32 | None) -> NDArray[Any]:
    """Choose the best [B] for values [B, n], or any with probability `epsilon`; without noise the best.

    `noise` [B, n + 1] is exponential.
    """
    best: NDArray[Any] = values.argmax(axis=-1)
    if noise is not None:
        with np.errstate(divide="ignore"):
            explores = noise[..., 0] < -np.log1p(-np.asarray(epsilon, np.float32))  # with that probability
        best = np.where(explores, noise[..., 1:].argmax(axis=-1), best)
    return best.astype(np.int32)


@dataclass(frozen=True)
class ActionSpec:
    """How a policy head's outputs become actions.

    - categorical: `sizes` holds the number of choices of each part (one for Discrete, several for
      MultiDiscrete); the head has their sum of logits.
    - gaussian: `sizes` holds one entry, the dimensions; the head gives means, the free head `log_std`
      the spread. `low` and `high` are the bounds of the environment (infinite when it has none). With
      `state_std` the head gives twice as many: what is to be added to `log_std` in this state, too.
    - values: one of `sizes[0]` choices; the head gives what each is worth, and what travels beside the
      weights as `epsilon` how often each lane of the run ignores that. With `dueling` the head's last output
      is the state's value, the others what each choice adds to it. When judged, an agent ignores it with
      probability `epsilon`.

    With `algo`, a user's own algorithm chooses in one of these ways' place: its name, and its `settings` as
    JSON. `kind` then says only how actions are stored.

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
    algo: str = ""
    settings: str = ""

    def with_spread(self, squash: bool, state_std: bool) -> "ActionSpec":
        """Return the same, with these switches where it is gaussian."""
        return replace(self, squash=squash, state_std=state_std) if self.kind == "gaussian" else self

    @property
    def space(self) -> ActionSpace:
        """The action space that this is a way to act in."""
        if self.kind == "gaussian":
            return Box(self.low, self.high)
        return Discrete(self.sizes[0]) if len(self.sizes) == 1 else MultiDiscrete(self.sizes)

    def noise_scale(self, sample: bool) -> np.float32:
        """Return the share of noise for a judged agent: with `sample` all of it, as when it learns."""
        return np.float32(1.0 if sample or self.epsilon > 0 else self.temperature)

    @property
    def outputs(self) -> int:
        """The number of outputs of the policy's head."""
        return 2 * sum(self.sizes) if self.state_std else sum(self.sizes) + self.dueling

    @property
    def exponential(self) -> bool:
        """Whether choices take exponential noise: the first says whether to explore, the others what."""
        return self.kind == "values" or (bool(self.algo) and self.kind == "categorical")

    @property
    def noises(self) -> int:
        """The number of random numbers that one choice takes."""
        return sum(self.sizes) + self.exponential

    def fits(self, space: "ActionSpec") -> bool:
        """Return whether this is a way to act in `space`, which `describe` found."""
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
    def limits(self) -> Any:
        """The number of choices: one number, or one for each part."""
        return self.sizes[0] if len(self.sizes) == 1 else np.asarray(self.sizes)

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
        if type(self.algo) is not str or type(self.settings) is not str:
            raise ValueError("an algorithm that is not a name with settings")
        numbers = (*self.low, *self.high, self.epsilon, self.temperature)
        if not all(type(number) in (int, float) and number == number for number in numbers):
            raise ValueError("a bound that is not a number")
        if self.kind == "gaussian" and not len(self.low) == len(self.high) == self.sizes[0]:
            raise ValueError(f"{len(self.low)} and {len(self.high)} bounds of {self.sizes[0]} actions")

    def noise(self, rng: np.random.Generator, steps: int) -> Float32:
        """Return `steps` rows of a lane's noise: Gumbel for categorical choices, normal for gaussian ones.

        For values, and for algorithms of one's own, it is exponential: the first decides whether to explore,
        the largest of the others what.

        Row after row, so that drawing 3 and then 5 rows gives the same numbers as drawing 8.
        """
        if self.kind == "gaussian":
            return rng.standard_normal((steps, self.noises), dtype=np.float32)
        exponential = rng.standard_exponential((steps, self.noises), dtype=np.float32)
        if self.exponential:
            return exponential
        gumbel: Float32 = -np.log(exponential + np.float32(1e-30))
        return gumbel

    def normal(self, outputs: Float32, log_std: Float32) -> tuple[Float32, Float32]:
        """Return a gaussian's means and log standard deviations, given the outputs [..., n] of both heads."""
        if not self.state_std:
            return outputs, log_std
        size = self.sizes[0]
        return outputs[..., :size], log_std + np.float32(STATE_STD_RATE) * outputs[..., size:]

    def values(self, outputs: Any) -> Any:
        """Return the value of each choice, for the head's outputs [..., n], NumPy's or torch's."""
        if not self.dueling:
            return outputs
        advantage = outputs[..., :-1]
        return outputs[..., -1:] + advantage - advantage.mean(-1)[..., None]

    def choose(self, outputs: Float32, exploration: Float32, noise: Float32 | None) -> NDArray[Any]:
        """Choose actions [B, ...] for the head's outputs [B, n]; without noise the most likely ones.

        `exploration` is a gaussian's log_std, or every lane's epsilon [B].
        """
        if self.kind == "gaussian":
            mean, log_std = self.normal(outputs, exploration)
            return mean.copy() if noise is None else mean + np.exp(log_std) * noise
        if self.kind == "values":
            return epsilon_greedy(outputs[..., : self.sizes[0]], exploration, noise)
        scores = outputs if noise is None else outputs + noise
        if len(self.sizes) == 1:
            single: NDArray[Any] = scores.argmax(axis=-1).astype(np.int32)
            return single
        parts = np.split(scores, np.cumsum(self.sizes)[:-1], axis=-1)
        return np.stack([part.argmax(axis=-1) for part in parts], axis=-1).astype(np.int32)

    def log_prob(self, outputs: Float32, log_std: Float32, action: NDArray[Any]) -> Float32:
        """Return log pi(action) for outputs [..., n] and actions [..., (parts)]; one number per action."""
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
        """Return what the environment receives for stored actions [B, ...]: gaussians within their bounds.

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
