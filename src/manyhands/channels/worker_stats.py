"""The counts of what each worker of this machine, or of a Ray cluster, has done for a run."""

from dataclasses import asdict, dataclass
from typing import Any

from manyhands.core.trajectories import Trajectory


@dataclass
class WorkerCounts:
    """The counts of all processes that bore one name; `Run.workers` says what they mean."""

    rollouts: int = 0
    steps: int = 0
    episodes: int = 0
    return_sum: float = 0.0
    playing: float = 0.0
    lost: int = 0


class WorkerStats:
    """The counts of every worker, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, WorkerCounts] = {}

    def of(self, name: str) -> WorkerCounts:
        """Return the counts of `name`, which begin at 0."""
        return self.by_name.setdefault(name, WorkerCounts())

    def add(self, name: str, trajectory: Trajectory) -> None:
        """Count a rollout that `name` has played."""
        counts = self.of(name)
        counts.rollouts += 1
        counts.steps += trajectory.steps
        counts.episodes += len(trajectory.episode_return)
        counts.return_sum += float(trajectory.episode_return.sum())
        counts.playing += trajectory.seconds

    def to_plain(self) -> dict[str, Any]:
        """Return them as `workers.json` holds them; {} where nobody has played yet."""
        players = {name: asdict(counts) for name, counts in self.by_name.items()}
        for row in players.values():
            row["playing"] = round(row["playing"], 3)
        return {"players": players} if players else {}
