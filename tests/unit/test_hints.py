"""What is suggested to type, and how numbers are told."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from small_envs import Chain

import manyhands
from manyhands.cli import main as cli
from manyhands.config.resolve import resolve
from manyhands.core.errors import UsageError
from manyhands.core.texts import figures
from manyhands.envs.describe import describe
from manyhands.roles.daemon import Daemon
from manyhands.runs.store import Run
from manyhands.runs.view import View
from manyhands.system.program import program


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.0275, "-0.0275"),
        (0.0, "0.0"),
        (-0.0, "0.0"),
        (8.123, "8.12"),
        (475.04, "475.0"),
        (-12.0, "-12.0"),
    ],
)
def test_a_small_mean_is_not_rounded_away(value: float, text: str) -> None:
    assert figures(value) == text


def test_a_program_that_the_shell_does_not_find_is_called_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "venv" / "bin" / "manyhands"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == "venv/bin/manyhands"
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "manyhands"
    monkeypatch.setattr(sys, "argv", ["python"])
    assert program() == "manyhands"


def ended(tmp_path: Path, capsys: Any, env: str = "CartPole-v1", **counts: Any) -> str:
    """What a view says at the end of a run."""
    view = View()
    view.solved_at = 8.0
    given = {"steps": 100, "seconds": 1.0, "last_mean": 8.1, "best_mean": 8.1, "solved": False, **counts}
    executor: Any = SimpleNamespace(
        counts=SimpleNamespace(**given),
        stopping=False,
        config=SimpleNamespace(env=SimpleNamespace(id=env), run=SimpleNamespace(until="solved")),
    )
    view.end(Run(tmp_path), executor)
    said: str = capsys.readouterr().out
    return said


def test_a_best_test_above_the_goal_is_explained_where_it_was_not_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "but by less than run.margin asks for" in ended(tmp_path, capsys)
    assert "best test 7.9, goal 8" in ended(tmp_path, capsys, best_mean=7.9)
    assert "eval" in ended(tmp_path, capsys)
    assert "manyhands.load(" in ended(tmp_path, capsys, env="__main__:<lambda>")


def test_one_layer_needs_no_list() -> None:
    assert resolve("CartPole-v1", overrides=({"net": {"hidden": 256}},)).net.hidden == (256,)


def test_a_file_of_settings_may_name_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("env: {id: No-such-v0}\n")
    with pytest.raises(SystemExit):
        cli.main(["train", "--config", str(file)])
    file.write_text("run: {seed: 1}\n")
    with pytest.raises(UsageError, match="which environment"):
        cli.main(["train", "--config", str(file), "--debug"])


class Stacked(gymnasium.Env[Any, Any]):
    """Four colour images in one observation."""

    observation_space = spaces.Box(0, 255, (4, 64, 64, 3), np.uint8)
    action_space = spaces.Discrete(2)


def test_images_in_a_fourth_dimension_are_refused() -> None:
    with pytest.raises(UsageError, match=r"\(4, 64, 64, 3\) are not supported.*ReshapeObservation"):
        describe(Stacked())


def test_an_environment_that_a_broker_takes_by_name_only_is_named(tmp_path: Path) -> None:
    for env, said in (
        (Chain, 'give the environment by its name, "small_envs:Chain", and start workers with --allow small'),
        (lambda: Chain(), "give the environment as a Gymnasium id or module:callable"),
    ):
        with pytest.raises(UsageError, match=said):
            manyhands.train(env, channel="amqp://nobody:none@127.0.0.1:9/", directory=tmp_path / "run")


def test_a_module_that_is_not_there_is_noticed_when_a_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(Daemon, "check", lambda self: None)
    monkeypatch.setattr(Daemon, "run", lambda self: 0)
    (tmp_path / "my_envs.py").write_text("raise SystemExit('imported')")
    allowed = ["my_envs:Grid", "my_env:Grid", "os.path:*"]
    cli.main(["worker", "amqp://a:b@127.0.0.1:9/", *(word for name in allowed for word in ("--allow", name))])
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"manyhands: --allow my_env:Grid: there is no module my_env here, neither in {tmp_path} nor installed"
        "; did you mean my_envs?"
    )
