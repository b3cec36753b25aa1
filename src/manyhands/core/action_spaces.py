"""An environment's action space as plain data, as an algorithm is asked about it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Discrete:
    """One choice among `n`."""

    n: int

    def __str__(self) -> str:
        return f"Discrete({self.n})"


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, the i-th among `sizes[i]`."""

    sizes: tuple[int, ...]

    @property
    def n(self) -> int:
        """The number of choices of all parts together."""
        return sum(self.sizes)

    def __str__(self) -> str:
        return f"MultiDiscrete{list(self.sizes)}"


@dataclass(frozen=True)
class Box:
    """Continuous actions, each between `low` and `high`, which may be infinite."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def n(self) -> int:
        """The number of dimensions."""
        return len(self.low)

    def __str__(self) -> str:
        return f"Box({self.n})"


ActionSpace = Discrete | MultiDiscrete | Box
KINDS = {
    Discrete: "one choice among a few actions (Discrete)",
    MultiDiscrete: "several choices at once (MultiDiscrete)",
    Box: "continuous actions (Box)",
}
"""The name of each kind in messages."""
