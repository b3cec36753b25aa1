"""The statistics that a parent keeps of each child, over all its connections."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from manyhands.averaging.protocol import NAME
from manyhands.core.decoding import decode
from manyhands.core.errors import WireError

MOST_CHILDREN = 2000
"""Children that a parent remembers. A checkpoint's header, of 1 MiB, holds the longest records of so many."""
MOST_COUNTED = 2**62
"""The largest count, because checkpoints hold no larger ones and children may say anything."""


@dataclass
class Child:
    """A child as its parent keeps it, over all its connections."""

    name: str
    joined: int = 0  # times
    connected: bool = False
    left: bool = False  # knowing that it is not awaited
    life: str = ""
    life_steps: int = 0  # of that life, and booked below
    life_episodes: int = 0
    exchanges: int = 0
    last: int = 0  # the parent's exchanges when it made its last one
    refused: int = 0
    steps: int = 0  # over all its lives
    episodes: int = 0
    staleness: float = 0.0  # mean: others' exchanges between two of its own
    bytes_in: int = 0
    bytes_out: int = 0
    round_trip: float = 0.0  # seconds, of its last exchange, as it says
    recent: float | None = None  # mean return of its recent episodes
    size: float = 0.0  # root mean square of the last weights that it sent

    def join(self, life: str) -> None:
        self.connected, self.left, self.joined = True, False, self.joined + 1
        if life != self.life:
            self.life, self.life_steps, self.life_episodes = life, 0, 0

    def book(self, steps: int, episodes: int) -> None:
        """Count what is new in the totals of the child's present life."""
        self.steps = min(MOST_COUNTED, self.steps + max(0, steps - self.life_steps))
        self.episodes = min(MOST_COUNTED, self.episodes + max(0, episodes - self.life_episodes))
        self.life_steps, self.life_episodes = steps, episodes

    def to_plain(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "name"}

    @classmethod
    def from_plain(cls, name: str, plain: object) -> "Child":
        """Decode a child's record, as strictly as a message, because files are damaged as well."""
        if not isinstance(plain, Mapping) or not NAME.fullmatch(name):
            raise WireError(f"{name!r:.100} is not a child's record")
        return decode(cls, {**plain, "name": name, "connected": False}, f"the record of {name}")


@dataclass
class Forgotten:
    """The sums over children whose records were dropped, so that totals stay what they were."""

    children: int = 0
    exchanges: int = 0
    refused: int = 0
    steps: int = 0
    episodes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def add(self, child: Child) -> None:
        self.children += 1
        for name in ("exchanges", "refused", "steps", "episodes", "bytes_in", "bytes_out"):
            setattr(self, name, min(MOST_COUNTED, getattr(self, name) + getattr(child, name)))

    def to_plain(self) -> dict[str, int]:
        return asdict(self)


def least_missed(children: Iterable[Child], gone: Mapping[str, float]) -> Child | None:
    """Return the child to forget first, of those that are not connected: who left for good, then who did the
    least, then who has been `gone` the longest. One that comes back with its old life would be counted again.
    """
    absent = [child for child in children if not child.connected]
    if not absent:
        return None
    return min(absent, key=lambda child: (not child.left, child.exchanges, gone.get(child.name, 0.0)))


@dataclass(frozen=True)
class ParentStats:
    """The statistics in a parent's checkpoint, beside the weights."""

    children: dict[str, Child]
    forgotten: Forgotten
    seconds: float = 0.0

    @classmethod
    def read(cls, progress: Mapping[str, Any]) -> "ParentStats":
        """Decode the statistics; raise WireError for anything that `to_plain` did not write."""
        children, seconds = progress.get("children"), progress.get("seconds")
        if not isinstance(children, Mapping):
            raise WireError("it holds no children's records, so it is not a parent's")
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise WireError(f"its seconds are {seconds!r:.60}")
        return cls(
            {str(name): Child.from_plain(str(name), plain) for name, plain in children.items()},
            decode(Forgotten, progress.get("forgotten", {}), "the record of forgotten children"),
            float(seconds),
        )

    @property
    def steps(self) -> int:
        return self.forgotten.steps + sum(child.steps for child in self.children.values())

    def to_plain(self) -> dict[str, Any]:
        children = {name: child.to_plain() for name, child in self.children.items()}
        return {"children": children, "forgotten": self.forgotten.to_plain(), "seconds": self.seconds}
