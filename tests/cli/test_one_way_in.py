"""The library does what the commands do, by the same code."""

import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_functions
from short_runs import short_run

import manyhands
from manyhands.averaging.serving import serve
from manyhands.averaging.visiting import visit
from manyhands.cli import main as cli
from manyhands.core.errors import UsageError
from manyhands.lto.training import learn
from manyhands.runs.launch import launch, launch_joining
from manyhands.runs.store import Run
from manyhands.runs.view import View, is_watched

SMALL = ["--set", "net.hidden=[8]", "--set", "collect.lanes=2", "--set", "collect.steps=16"]


def weights(run: Run) -> bytes:
    return run.checkpoint("last").weights.vector.tobytes()


@pytest.mark.parametrize(
    ("public", "behind"),
    [
        (manyhands.train, launch),
        (manyhands.join, launch_joining),
        (manyhands.parent, serve),
        (manyhands.child, visit),
        (manyhands.learn_to_optimise, learn),
    ],
)
def test_arguments_have_the_same_names_and_defaults(
    public: Callable[..., Any], behind: Callable[..., Any]
) -> None:
    def defaults(function: Callable[..., Any]) -> dict[str, Any]:
        found = {name: each.default for name, each in inspect.signature(function).parameters.items()}
        found.pop("measures", None)
        return {name: None if value is inspect.Parameter.empty else value for name, value in found.items()}

    ours, theirs = defaults(public), defaults(behind)
    assert ours == {**theirs, **({"steps": 5000} if behind is learn else {})}


@pytest.mark.parametrize(
    ("function", "command", "others"),
    [
        (manyhands.train, "train", {"join": "", "allow_env": "", "set": "settings", "dir": "directory"}),
        (manyhands.parent, "parent", {"set": "settings", "dir": "directory"}),
        (manyhands.child, "child", {}),
    ],
)
def test_every_option_of_a_command_is_an_argument(
    function: Callable[..., Any], command: str, others: dict[str, str]
) -> None:
    parsers = next(action for action in cli.parser()._actions if action.dest == "command")
    assert isinstance(parsers.choices, dict)
    options = {action.dest for action in parsers.choices[command]._actions} - {"help", "debug"}
    known = {**others, "callback": "callbacks"}
    arguments = {known.get(name, name) for name in options} - {""}
    assert arguments <= set(inspect.signature(function).parameters)


def test_the_library_and_the_command_train_to_the_same_bits(tmp_path: Path) -> None:
    words = ["train", "small_envs:Chain", "--algo", "ppo", "--workers", "0", "--steps", "512", "--seed", "5"]
    words += ["--until", "steps", "--quiet", "--log", "none", "--dir", str(tmp_path / "command")]
    cli.main([*words, *SMALL])
    run = manyhands.train(
        "small_envs:Chain",
        "ppo",
        workers=0,
        steps=512,
        seed=5,
        until="steps",
        log="none",
        directory=tmp_path / "library",
        settings={"net": {"hidden": [8]}, "collect": {"lanes": 2, "steps": 16}},
    )
    assert weights(run) == weights(Run(tmp_path / "command"))
    assert run.config() == Run(tmp_path / "command").config()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"executors": 2}, "only with --channel amqp"),
        ({"executors": 0}, "--executors takes 1 or more"),
        (
            {"channel": "amqp://nobody@127.0.0.1:1/", "executors": 2, "mode": "sync"},
            "--mode is async, not sync",
        ),
        ({"barrier": True}, "--barrier is for cores"),
        ({"barrier": True, "mode": "sync"}, "give one of them"),
        ({"env": None}, "which environment"),
    ],
)
def test_wrong_calls_are_refused_as_by_the_command(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        manyhands.train(**{"env": "CartPole-v1", "directory": tmp_path / "run", **given})
    assert not (tmp_path / "run").exists()


def test_a_config_file_may_name_the_environment(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run", updates=1)
    again = manyhands.train(config=run.path / "config.yaml", directory=tmp_path / "again", log="none")
    assert weights(again) == weights(run)


def test_the_channel_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHANDS_CHANNEL", "ray:nowhere")
    with pytest.raises(UsageError, match="ray:nowhere is not"):
        manyhands.train("CartPole-v1", directory=tmp_path / "run")


@pytest.mark.parametrize("watched", [True, False])
def test_progress_shows_where_somebody_watches(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: watched, raising=False)
    assert View(None).brief is not watched
    for quiet in (True, False):
        assert (View(quiet).quiet, View(quiet).brief) == (quiet, False)


@pytest.mark.parametrize(("quiet", "lines"), [(None, 4), (True, 0)])
def test_how_a_run_begins_and_ends_is_told_where_nobody_watches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool | None, lines: int
) -> None:
    run = short_run(tmp_path / "run", updates=2, quiet=quiet)
    shown = capsys.readouterr()
    assert shown.out == "", "it is the program's own"
    said = shown.err.splitlines()
    assert len(said) == lines
    if said:
        assert said[0].startswith("small_envs:Chain with ppo, sync, seed 0")
        assert said[0].endswith(f"run in {run.path}")
        assert said[1].startswith(
            ("Finished after 128 steps", "Not solved in 128 steps", "Solved in 128 steps")
        )
        assert said[2] == f"Saved to {run.path}. Try next:"


def test_a_notebook_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    for config, watched in (({"IPKernelApp": {}}, True), ({"TerminalIPythonApp": {}}, False)):
        ipython = ModuleType("IPython")
        ipython.get_ipython = lambda config=config: SimpleNamespace(config=config)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        assert is_watched() is watched
    ipython.get_ipython = lambda: None  # type: ignore[attr-defined]
    assert not is_watched()


def test_a_parent_and_a_child_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "parent"
    code = (
        "import sys, time, pathlib, yaml, manyhands\n"
        "listen = pathlib.Path(sys.argv[1])\n"
        "while not listen.exists(): time.sleep(0.05)\n"
        "url = 'ws://' + yaml.safe_load(listen.read_text())['listen']\n"
        "print(manyhands.child(url, cores=1, wait=10, name='one', quiet=True))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, path / "listen.yaml"], stdout=-1, text=True)

    async def in_a_notebook() -> Run:
        """Where a loop runs already."""
        return manyhands.parent(
            "CartPole-v1",
            "ppo",
            alpha=0.5,
            exchanges=3,
            listen="127.0.0.1:0",
            directory=path,
            settings={"collect": {"lanes": 2, "steps": 16}, "net": {"hidden": [8]}},
            log="csv",
            quiet=True,
        )

    run = asyncio.run(in_a_notebook())
    said = child.communicate(timeout=60)[0]
    assert run.status()["exchanges"] == 3
    assert "Visit(exchanges=3, steps=" in said
    assert "over=True)" in said
    kinds = [event["kind"] for event in run.events()]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert (path / "metrics.csv").read_text().startswith("steps,")
    assert run.evaluate(episodes=2).episodes == 2
    with pytest.raises(UsageError, match="has made 3 exchanges"):
        manyhands.parent(resume=run)
    with pytest.raises(UsageError, match="own settings, not env"):
        manyhands.parent("CartPole-v1", resume=run, exchanges=5)
    with pytest.raises(UsageError, match="is a parent's run"):
        manyhands.train(resume=run)


def test_a_law_of_the_library_is_that_of_the_command(tmp_path: Path) -> None:
    words = [
        "lto",
        "small_functions:square",
        "--bounds=-1:1",
        "--drivers",
        "0",
        "--steps",
        "10",
        "--seed",
        "2",
    ]
    cli.main([*words, "--episodes", "8", "--quiet", "--log", "none", "--dir", str(tmp_path / "command")])
    run = manyhands.learn_to_optimise(
        small_functions.square,
        bounds=(-1, 1),
        drivers=0,
        steps=10,
        seed=2,
        episodes=8,
        directory=tmp_path / "library",
        log="none",
    )
    assert weights(run) == weights(Run(tmp_path / "command"))
    x, _ = manyhands.law(run).predict(np.zeros((1, 1)))
    assert x.shape == (1, 1)
    for wrong, said in ((lambda x: 0.0, "module of its own"), ((), "no function"), ("ackly", "did you mean")):
        with pytest.raises(UsageError, match=said):
            manyhands.learn_to_optimise(wrong, bounds=(-1, 1))
    with pytest.raises(UsageError, match="bounds are"):
        manyhands.learn_to_optimise("sphere", bounds=(1, 2, 3))  # type: ignore[arg-type]


def test_a_law_that_goes_on_is_measured_on(tmp_path: Path) -> None:
    run = manyhands.learn_to_optimise(
        "sphere", drivers=0, steps=20, episodes=8, directory=tmp_path, log="none"
    )
    batch = run.config().collect.batch
    for going_on in (run, manyhands.find(run.path)):
        steps = run.status()["steps"] + 10 * batch
        going_on.resume(steps=steps, log="none")
    measured = [json.loads(line)["version"] for line in (run.path / "quality.jsonl").read_text().splitlines()]
    assert measured == [10, 20, 30, 40]
