"""A limit on how often something that others cause is reported."""

import time


class Throttle:
    """Lets `burst` through in any `seconds`, and counts all."""

    def __init__(self, seconds: float, burst: int = 1) -> None:
        self.seconds, self.burst = seconds, burst
        self.total = 0
        self.recent: list[float] = []

    def lets_through(self) -> bool:
        """Count one more, and return whether it may be reported."""
        self.total += 1
        now = time.monotonic()
        self.recent = [when for when in self.recent if now - when < self.seconds]
        if len(self.recent) >= self.burst:
            return False
        self.recent.append(now)
        return True

    def so_far(self) -> str:
        """Return how many there were, as a suffix of a report; "" for the first."""
        return f" ({self.total} so far)" if self.total > 1 else ""
