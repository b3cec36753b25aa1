"""Environments that crash or hang again and again at one place: that episode is skipped, and no other."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from brokers import Workers, broker
from clusters import cluster

from manyhands.config.resolve import merge
from manyhands.config.settings import Config
from manyhands.core.errors import EnvError
from manyhands.runs.store import LAST, Run
from manyhands.runs.training import train
from manyhands.runs.view import View

SMALL: dict[str, Any] = {
    "collect": {"shards": 2, "lanes": 2, "steps": 32},
    "algo": {"minibatch": 64, "epochs": 1},
    "run": {"steps": 768, "until": "steps", "workers": 2, "mode": "sync", "seed": 5, "test_episodes": 1},
}
CHANNELS = ("processes", "amqp", "ray")


class Listener(View):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def said(self, text: str) -> None:
        self.lines.append(text)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def played(path: Path, channel: str, env: dict[str, Any], view: View, **layers: Any) -> Run:
    config = Config.from_plain(merge(SMALL, {"env": env}, layers))
    if channel == "ray":
        cluster()
    if channel == "amqp":
        with Workers(broker().url, 2):
            return train(config, directory=path, view=view, channel=broker().url)
    return train(config, directory=path, view=view, channel="ray" if channel == "ray" else None)


def digest(run: Run) -> str:
    return hashlib.sha256(run.checkpoint(LAST).weights.vector.tobytes()).hexdigest()


KNOWN: dict[str, str] = {}


CRASHES = [
    *(("processes", how) for how in ("segfault", "exit", "exit-0", "hang", "reset")),
    *(("amqp", how) for how in ("segfault", "hang", "hang-locked", "reset", "exit", "exit-0", "leave")),
    *(("ray", how) for how in ("segfault", "leave", "hang-locked")),
]


@pytest.mark.parametrize(("channel", "how"), CRASHES)
def test_an_episode_that_crashes_is_skipped_and_the_bits_are_the_same_everywhere(
    tmp_path: Path, channel: str, how: str
) -> None:
    view = Listener()
    env = {"id": "small_envs:Fatal", "kwargs": {"how": how}}
    locked = channel == "amqp" and how == "hang-locked"
    layers = {"hang_timeout": 5.0 if locked else 2.0}  # longer than silence is borne
    if how == "reset":  # of a first episode as well
        layers["seed"] = 9
    run = played(tmp_path / "run", channel, env, view, run=layers)
    crashes = [line for line in view.lines if "which is not played again" in line]
    places = [line.partition(", in ")[2] for line in crashes]
    assert crashes
    assert len(set(places)) == len(places), "an episode brought two workers down"
    assert run.status()["faults"] == len([line for line in view.lines if "was lost" in line])
    place = "reset" if how == "reset" else "step"
    assert digest(run) == KNOWN.setdefault(place, digest(run))


def test_an_episode_of_a_test_that_crashes_is_replaced_alone(tmp_path: Path) -> None:
    view = Listener()
    env = {"id": "small_envs:Fatal", "kwargs": {"every": 20}}
    layers = {"steps": 64, "test_every": 64, "test_episodes": 60}
    run = played(tmp_path / "run", "processes", env, view, run=layers)
    assert "in a test, episode" in view.text
    assert run.status()["tests"] == 1


def test_episodes_to_skip_are_remembered_when_a_run_is_resumed(tmp_path: Path) -> None:
    """Killed and resumed in the middle, it ends with the weights of the run that was not."""
    env = {"id": "small_envs:Fatal", "kwargs": {}}
    whole = played(tmp_path / "whole", "processes", env, Listener())
    first = played(tmp_path / "parts", "processes", env, Listener(), run={"steps": 384})
    resumed = Config.from_plain(merge(first.config().to_plain(), {"run": {"steps": 768}}))
    assert digest(train(resumed, resume=first, view=Listener())) == digest(whole)


@pytest.mark.parametrize("channel", ["inline", "processes", "amqp", "ray"])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nan", "is not finite"),
        ("shape", "where its observation space"),
        ("reward-text", "much"),
        ("only", "returned the same environment twice"),
    ],
)
def test_a_broken_contract_ends_the_run_on_every_channel(
    tmp_path: Path, channel: str, how: str, said: str
) -> None:
    env = {"id": "small_envs:Failing", "kwargs": {"how": how, "marker": str(tmp_path / "m"), "after": 10}}
    if how == "only":
        env = {"id": "small_envs:only"}
    with pytest.raises(EnvError, match=said):
        played(tmp_path / "run", channel, env, Listener(), run={"workers": 0 if channel == "inline" else 2})
