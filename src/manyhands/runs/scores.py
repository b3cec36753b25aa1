"""The scores of an agent: the returns of whole episodes, and what can be said of their mean."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from manyhands.core.evaluation import Evaluation
from manyhands.core.texts import figures

RESAMPLES = 2000
"""Samples of a bootstrap."""
CONFIDENCE = 0.95
CUT = 0.25
"""The share of the episodes at either end that an interquartile mean leaves out."""


@dataclass(frozen=True)
class Scores(Evaluation):
    """The returns and lengths of whole episodes, and the mean at which their environment counts as solved."""

    goal: float | None = None

    @property
    def solved(self) -> bool | None:
        """Whether the mean reaches the goal; None where there is no goal."""
        return None if self.goal is None else self.mean >= self.goal

    @property
    def iqm(self) -> float:
        """The interquartile mean: of the returns without the lowest and the highest quarter of them.

        It moves less than the mean with a few lucky or unlucky episodes (Agarwal et al. 2021).
        """
        cut = int(CUT * self.episodes)
        return float(np.sort(self.returns)[cut : self.episodes - cut].mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds of the true mean, with a confidence of 95 %: a bootstrap over the episodes.

        The same returns always give the same interval.
        """
        rng, returns = np.random.default_rng(0), np.array(self.returns)
        means = [returns[rng.integers(len(returns), size=len(returns))].mean() for _ in range(RESAMPLES)]
        low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return float(low), float(high)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that sum it up, for JSON."""
        low, high = self.interval
        return {**self.summary(self.goal), "iqm": self.iqm, "low": low, "high": high}

    def __str__(self) -> str:
        low, high = self.interval
        solved = ""
        if self.goal is not None:
            solved = f" (goal {self.goal:g}: {'reached' if self.solved else 'not reached'})"
        return (
            f"{self.episodes} episodes, mean {figures(self.mean)}, sd {figures(self.sd)}, "
            f"min {figures(min(self.returns))}, median {figures(float(np.median(self.returns)))}, "
            f"max {figures(max(self.returns))}, interquartile mean {figures(self.iqm)}, "
            f"95 % interval of the mean {figures(low)} to {figures(high)}{solved}"
        )
