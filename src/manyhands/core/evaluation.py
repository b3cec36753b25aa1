"""The result of whole episodes that judge an agent."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Evaluation:
    """The returns and lengths of whole episodes, in the order of their seeds."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def sd(self) -> float:
        return float(np.std(self.returns))

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(len(self.returns))

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def steps(self) -> int:
        return sum(self.lengths)

    def promising(self, goal: float, episodes: int, margin: float) -> bool:
        """Return whether a test of `episodes` could still end `margin` standard errors above the goal.

        It should unless its mean is now a whole standard error below what it will have to be then.
        """
        needed = goal + margin * self.sd / math.sqrt(episodes)
        return self.mean + self.error >= needed

    def __add__(self, more: "Evaluation") -> "Evaluation":
        return Evaluation(self.returns + more.returns, self.lengths + more.lengths)

    def to_plain(self) -> dict[str, Any]:
        return {"returns": list(self.returns), "lengths": list(self.lengths)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Evaluation":
        return cls(tuple(map(float, plain["returns"])), tuple(map(int, plain["lengths"])))

    def summary(self, solved_at: float | None) -> dict[str, float | int | bool | None]:
        return {
            "mean": self.mean,
            "sd": self.sd,
            "min": min(self.returns),
            "max": max(self.returns),
            "median": float(np.median(self.returns)),
            "episodes": self.episodes,
            "solved": None if solved_at is None else self.mean >= solved_at,
        }
