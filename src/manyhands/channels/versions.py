"""The versions of the weights that orders may name."""

from typing import Generic, TypeVar

from manyhands.core.orders import NEWEST

T = TypeVar("T")
KEPT = 3
"""Versions; orders name one that is at most two behind the newest."""


class Versions(Generic[T]):
    """The last few versions, each as whatever a channel keeps of it."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self.held: dict[int, T] = {}

    def add(self, version: int, weights: T) -> None:
        """Keep one more, and drop the oldest. One that comes late does not become the newest."""
        self.held[version] = weights
        for old in sorted(self.held)[: -self.kept]:
            del self.held[old]

    def __contains__(self, version: int) -> bool:
        return bool(self.held) if version == NEWEST else version in self.held

    def find(self, version: int) -> T:
        """Return the version that an order names; `NEWEST` is the newest."""
        return self.held[max(self.held) if version == NEWEST else version]

    def in_order(self) -> list[T]:
        held = dict(self.held)  # another thread may add to it meanwhile
        return [held[version] for version in sorted(held)]

    def clear(self) -> None:
        self.held.clear()
