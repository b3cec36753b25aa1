"""An environment's spaces as plain data."""

from dataclasses import dataclass
from typing import Literal

from manyhands.core.actions import ActionSpec


@dataclass(frozen=True)
class ObsSpec:
    """Observations as they are stored: one array of `shape` and `dtype` per lane and step."""

    shape: tuple[int, ...]
    dtype: str
    image: Literal["", "hwc", "chw"] = ""
    stack: int = 1  # pictures in one observation, each of which was the last one of an earlier observation


@dataclass(frozen=True)
class Spaces:
    """An environment's two spaces as plain data, and the mean return at which it calls itself solved.

    With `life_loss` it reports lost lives, which learning shall treat as ends.
    """

    obs: ObsSpec
    action: ActionSpec
    threshold: float | None
    life_loss: bool = False
