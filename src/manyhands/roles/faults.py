"""The number of faults that a run survives."""

from collections import deque

FAULT_WINDOW = 3600.0
"""Seconds within which `run.max_faults` counts."""


class FaultBudget:
    """A budget of up to `limit` faults within an hour."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.times: deque[float] = deque()

    def allows(self, now: float) -> bool:
        """Count one more fault, and say whether the run survives it."""
        self.times.append(now)
        while now - self.times[0] > FAULT_WINDOW:
            self.times.popleft()
        return len(self.times) <= self.limit
