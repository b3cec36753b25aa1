"""The share of a run that is left, for what falls or rises towards its end."""

from dataclasses import dataclass


@dataclass
class Horizon:
    """Where a run ends: after so many steps or updates (0 is no limit), or where somebody else says."""

    steps: int
    updates: int = 0
    told: float | None = None
    """The share that is left, when somebody else counts: a parent counts its exchanges."""

    def left(self, steps: float, updates: int = 0) -> float:
        """Return the share of the run that is left after so many of them, from 1 to 0."""
        if self.told is not None:
            return self.told
        done = max(steps / self.steps, updates / self.updates if self.updates else 0.0)
        return max(0.0, 1.0 - done)
