"""The counts of a run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

RECENT = 100
"""Episodes in the mean of recent returns."""


@dataclass
class Progress:
    """All counts of a run. Saved with every checkpoint and taken up by a resume."""

    steps: int = 0
    episodes: int = 0
    tests: int = 0
    test_steps: int = 0
    tested_at: int = -1  # steps at the last test
    next_test: int = 0
    first_mean: float | None = None  # recent return when the first test might have been
    last_mean: float | None = None
    best_mean: float | None = None
    best_steps: int = 0
    solved: bool = False
    faults: int = 0
    dropped: int = 0
    seconds: float = 0.0
    collecting: float = 0.0
    waiting: float = 0.0
    learning: float = 0.0
    broadcasting: float = 0.0  # handing out weights and orders
    testing: float = 0.0
    recent: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # of the same episodes

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Progress":
        return cls(**plain)

    @property
    def recent_mean(self) -> float | None:
        return float(np.mean(self.recent)) if self.recent else None

    @property
    def length_mean(self) -> float | None:
        return float(np.mean(self.lengths)) if self.lengths else None
