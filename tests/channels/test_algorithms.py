"""The table of algorithms and channels: every algorithm gives the same bits wherever it is played.

Built-in ones by name, and two of a user's own: one with another loss, one that also acts by itself.
"""

import hashlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from brokers import crew
from clusters import cluster
from own_algos import Sarsa

from manyhands.config import algorithms
from manyhands.config.resolve import merge
from manyhands.config.settings import Config
from manyhands.core.actions import epsilon_greedy
from manyhands.core.errors import UsageError
from manyhands.runs.store import LAST
from manyhands.runs.training import train

OWN = ("own_algos:Spo", "own_algos:Sarsa")
SMALL: dict[str, Any] = {
    "env": {"id": "CartPole-v1"},
    "net": {"normalise": True},
    "collect": {"shards": 4, "lanes": 2, "steps": 32},
    "run": {"steps": 4096, "until": "steps", "seed": 11, "test_every": 2048, "test_episodes": 4},
}
CHANNELS: dict[str, tuple[int, str | None]] = {
    "one process": (1, None),
    "three processes": (3, None),
    "broker": (-1, "broker"),
    "ray": (2, "ray"),
}
"""Worker processes, and where they are."""


def digest(path: Path, algo: str, mode: str, workers: int, where: str | None) -> str:
    run = {"algo": algo, "mode": mode, "workers": workers}
    channel = where
    if where == "broker":
        channel = crew(2)
    elif where == "ray":
        cluster()
    trained = train(Config.from_plain(merge(SMALL, {"run": run})), directory=path / "run", channel=channel)
    weights = trained.checkpoint(LAST).weights
    assert weights.version == 16
    return hashlib.sha256(weights.vector.tobytes()).hexdigest()


@cache
def inline(algo: str, mode: str) -> str:
    with TemporaryDirectory() as temporary:
        return digest(Path(temporary), algo, mode, 0, None)


@pytest.mark.parametrize("mode", ["sync", "pipelined"])
@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("algo", [*algorithms.anywhere(), *OWN])
def test_every_algorithm_gives_the_same_bits_on_every_channel(
    tmp_path: Path, algo: str, channel: str, mode: str
) -> None:
    assert digest(tmp_path, algo, mode, *CHANNELS[channel]) == inline(algo, mode)


@pytest.mark.parametrize("channel", ["three processes", "ray"])
def test_a_class_that_only_this_program_has_acts_in_other_processes(tmp_path: Path, channel: str) -> None:
    class Greedy(Sarsa):
        """Less chance than its parent."""

        def act(self, outputs: Any, noise: Any) -> Any:
            return epsilon_greedy(outputs["values"], 0.01, noise)

    name = algorithms.register(Greedy)
    assert name == "__main__:Greedy"
    workers, where = CHANNELS[channel]
    here = digest(tmp_path / "here", name, "pipelined", 0, None)
    assert digest(tmp_path / "there", name, "pipelined", workers, where) == here
    with pytest.raises(UsageError, match="put the class into a module"):
        digest(tmp_path / "broker", name, "pipelined", 0, "broker")
