"""What a parent knows of each child, over all its connections."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


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
        """Totals of its present life."""
        self.steps += max(0, steps - self.life_steps)
        self.episodes += max(0, episodes - self.life_episodes)
        self.life_steps, self.life_episodes = steps, episodes

    def to_plain(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "name"}

    @classmethod
    def from_plain(cls, name: str, plain: Mapping[str, Any]) -> "Child":
        return cls(name, **{**plain, "connected": False})
