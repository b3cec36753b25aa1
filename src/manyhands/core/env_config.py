"""The choice of an environment, as data."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EnvConfig:
    """Which environment to play."""

    id: str = "CartPole-v1"
    """A Gymnasium id, or `module:callable` that returns an environment."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for making it, such as {is_slippery: false}."""

    @property
    def family(self) -> str:
        """The family of environments that are made alike and share a recipe; "" for all others."""
        if self.id.startswith("ALE/") or self.id.endswith("NoFrameskip-v4"):
            return "Atari"
        return "MinAtar" if self.id.startswith("MinAtar/") else ""
