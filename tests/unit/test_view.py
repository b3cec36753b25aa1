"""What a person sees: rendered, and looked at line by line."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from manyhands.channels.base import WorkerStatus
from manyhands.config.resolve import resolve
from manyhands.config.settings import Config
from manyhands.core.heartbeat import BEATS, SHARD, TESTING, unshared
from manyhands.lto.view import LawView
from manyhands.roles.progress import Progress
from manyhands.runs.store import create
from manyhands.runs.under_way import SLOW
from manyhands.runs.view import View, bar

LAW = {"env": {"kwargs": {"functions": ["sphere"], "c": 2}}, "run": {"steps": 90_000, "until": "steps"}}
EACH = {"collect": {"shards": 6, "lanes": 5, "steps": 2}}


def executor(config: Config, channel: Any = None, **counts: Any) -> Any:
    channel = channel or SimpleNamespace(workers=lambda: [], backlog=lambda: None)
    return SimpleNamespace(
        config=config,
        counts=Progress(**counts),
        channel=channel,
        weights=SimpleNamespace(version=15),
        lag=0.0,
        share=counts.get("steps", 0) / config.run.steps,
        stopping=False,
    )


def drawn(view: View, of: Any, width: int = 120, colours: bool = False) -> str:
    view.config, view.solved_at = of.config, 475.0
    view.console = Console(
        file=io.StringIO(), width=width, force_terminal=colours, color_system="truecolor" if colours else None
    )
    view.under_way.watch(of)
    view.console.print(view.panel(of, 100.0))
    assert isinstance(view.console.file, io.StringIO)
    return view.console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_rows_of_workers_stand_below_their_header(width: int) -> None:
    statuses = [
        WorkerStatus("one", 1.0, True, "laptop", 50.0, 14),
        WorkerStatus("two", 2.0, True, "desk", 60.0, 15),
    ]
    channel = SimpleNamespace(workers=lambda: statuses, backlog=lambda: 3)
    lines = drawn(View(), executor(resolve("CartPole-v1"), channel, steps=1000), width).splitlines()
    (header,) = [i for i, line in enumerate(lines) if "host" in line]
    assert lines[header].strip("│ ").split() == [
        "worker",
        "host",
        "procs",
        "heard",
        "steps/s",
        "version",
        "lag",
    ]
    assert [lines[header + i].strip("│ ").split()[0] for i in (1, 2)] == ["one", "two"]
    assert all(len(line) <= width for line in lines)


def test_a_solved_run_has_a_full_green_bar_and_others_one_of_what_they_used() -> None:
    config = resolve("CartPole-v1")
    part = config.run.steps * 22 // 100
    solved = bar(executor(config, steps=part, solved=True))
    assert (solved.completed, solved.total, solved.finished_style) == (1.0, 1.0, "green")
    assert bar(executor(config, steps=part)).percentage_completed == pytest.approx(22, abs=0.1)
    red = "38;2;249;38;114"  # rich's own
    for one in (executor(config, steps=part), executor(config, steps=part, solved=True)):
        assert red not in drawn(View(), one, colours=True)


def test_what_is_played_is_told_while_no_step_is_counted_yet() -> None:
    heartbeats = [unshared(), unshared()]
    processes = [SimpleNamespace(progress=each) for each in heartbeats]
    channel = SimpleNamespace(workers=lambda: [], backlog=lambda: None, processes=processes)
    view, slow = View(), executor(resolve("CartPole-v1"), channel)
    assert "under way" not in drawn(view, slow)
    for each in heartbeats:
        each[BEATS] += 617
    assert "under way" not in drawn(view, slow), "it may come any moment"
    view.under_way.since -= 2 * SLOW
    assert "playing (+1,234 under way)" in drawn(view, slow)
    assert "0 steps (+1,234 under way)" in view.line(slow, 0.0)
    heartbeats[0][SHARD] = TESTING
    assert "under way" not in drawn(view, slow), "tests are no training"
    heartbeats[0][SHARD] = 0
    view.under_way.since -= 2 * SLOW
    assert "under way" not in drawn(view, slow), "what was played in the test does not count"
    slow.counts.steps = 2048
    heartbeats[1][BEATS] += 5
    assert "under way" not in drawn(view, slow), "the batch has arrived"


def test_a_law_is_told_in_training_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = resolve("manyhands/Lto-v0", "ppo", overrides=(LAW, EACH))
    of, view = executor(config, steps=900, seconds=2.0, last_mean=1.0), LawView()
    shown = drawn(view, of)
    assert "15 of 1,500" in shown
    assert "900" not in shown
    assert "15 training steps" in view.line(of, 7.0)
    assert "7 moves/s" in view.line(of, 7.0)
    run = create(tmp_path / "law", config)
    view.solved_at = None
    view.end(run, of)
    said = capsys.readouterr().out
    assert "Finished after 15 training steps" in said
    assert f"lto predict {run.path} --c 0 0" in said
    of.stopping = True
    view.end(run, of)
    assert f"lto --resume {run.path}" in capsys.readouterr().out


@pytest.mark.parametrize("env", ["__main__:<lambda>", "__main__:make", "module:test.<locals>.make"])
def test_a_callable_that_no_command_can_name_is_gone_on_with_from_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], env: str
) -> None:
    config = Config.from_plain({"env": {"id": env}})
    run = create(tmp_path / "run", config)
    for stopping, said in ((False, "manyhands.load("), (True, "manyhands.train(..., resume=")):
        of, view = executor(config, last_mean=1.0), View()
        of.stopping, view.solved_at = stopping, None
        view.end(run, of)
        out = capsys.readouterr().out
        assert said in out
        assert " eval " not in out
        assert "--resume" not in out
