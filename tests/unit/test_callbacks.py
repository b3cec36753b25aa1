"""A user's own code in a run: what it is told, what it may do, and what happens when it fails."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest
from short_runs import BATCH, short_run
from small_envs import Failing

import manyhands
from manyhands.cli import main as cli
from manyhands.core.errors import RunError, UsageError
from manyhands.roles import executor
from manyhands.runs.callbacks import RunEvent
from manyhands.runs.store import LAST, Run

KINDS = ("start", "update", "test", "fault", "checkpoint", "end")


def heard_by_command(event: RunEvent) -> None:
    """Given on a command line, as `test_callbacks:heard_by_command`."""
    if event.kind == "update":
        event.log(doubled=2 * event.version)


NOTHING_TO_CALL = 3


def weights(run: Run) -> bytes:
    return run.checkpoint(LAST).weights.vector.tobytes()


def failing_once(tmp_path: Path) -> Any:
    """An environment that fails once, so that every kind of event comes."""
    return lambda: Failing("raise", str(tmp_path / "failed"))


def test_every_kind_is_told_in_order_with_what_belongs_to_it(tmp_path: Path) -> None:
    events: list[RunEvent] = []
    run = short_run(tmp_path / "run", failing_once(tmp_path), callbacks=events.append)
    kinds = [event.kind for event in events]
    assert set(kinds) == set(KINDS)
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    updates = [event for event in events if event.kind == "update"]
    assert [event.version for event in updates] == list(range(1, 9))
    assert [event.steps for event in updates] == [BATCH * version for version in range(1, 9)]
    assert all(event.metrics["policy_loss"] == event.metrics["policy_loss"] for event in updates)
    assert all((event.test is not None) == (event.kind == "test") for event in events)
    tests = [event.test.mean for event in events if event.test is not None]
    assert tests == [row["test_mean"] for row in run.rows() if "test_mean" in row]
    (fault,) = [event.fault for event in events if event.fault is not None]
    assert "the simulator exploded" in fault.traceback
    assert None not in (fault.lane, fault.episode, fault.seed)
    assert {event.checkpoint for event in events if event.kind == "checkpoint"} == {"best", "last"}
    assert events[-1].status == "finished" == run.status()["status"]
    assert all(event.run == run for event in events)


def test_a_callback_stops_the_run_which_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    def stop(event: RunEvent) -> None:
        if event.kind == "update" and event.version == 3:
            event.stop()

    run = short_run(tmp_path / "run", callbacks=[stop])
    assert run.status()["status"] == "stopped"
    assert run.status()["version"] == 3
    assert weights(run.resume(log="none")) == weights(short_run(tmp_path / "whole"))


def test_the_line_of_the_readme_stops_at_a_good_test(tmp_path: Path) -> None:
    run = short_run(
        tmp_path / "run",
        callbacks=[lambda event: event.stop() if event.test and event.test.mean > -1 else None],
    )
    assert run.status()["steps"] == 4 * BATCH  # that of the first test


def test_what_callbacks_log_is_in_the_metrics_and_in_every_logger(tmp_path: Path) -> None:
    def log(event: RunEvent) -> None:
        match event.kind:
            case "update":
                event.log(twice=2 * event.version, bad=math.inf)
            case "test":
                event.log(**{"mine/gap": 1.5})
            case "end":
                event.log(last=7)

    run = short_run(tmp_path / "run", callbacks=log, log="csv")
    rows = run.rows()
    logged = [(row["steps"], row["twice"]) for row in rows if "twice" in row]
    assert logged[-1] == (8 * BATCH, 16)
    assert all(twice == 2 * steps / BATCH for steps, twice in logged)
    assert all(row["bad"] is None for row in rows if "bad" in row)
    assert {row.get("mine/gap") for row in rows if "test_mean" in row} == {1.5}
    assert rows[-1]["last"] == 7
    assert run.metrics()["last"][-1] == 7
    with (run.path / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    assert "16.0" in [row["own/twice"] for row in table]
    assert table[-1]["own/last"] == "7.0"
    assert "own/bad" not in table[0]
    assert "1.5" in [row["mine/gap"] for row in table]


@pytest.mark.parametrize("interval", [0.0, 1e9])
def test_the_last_row_stands_once_and_has_what_was_logged_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: float
) -> None:
    monkeypatch.setattr(executor, "LOG_INTERVAL", interval)

    def log(event: RunEvent) -> None:
        if event.kind == "update":
            event.log(newest=event.version)
            if event.version == 1:
                event.log(once=11)
            if event.version == 3:
                event.stop()

    run = short_run(tmp_path / "run", callbacks=log)
    assert run.status()["status"] == "stopped"
    versions = [row["version"] for row in run.rows() if "version" in row]
    assert versions == ([1, 2, 3] if interval == 0 else [3])
    assert run.metrics()["newest"][-1] == 3
    assert run.metrics().last("once") == 11


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"return_mean": 1}, "'return_mean' is a column of the run's own; log your number by another name"),
        ({"a b": 1}, "'a b' is not a name to log by; take up to 100 letters"),
        ({"x": "text"}, "only numbers"),
    ],
)
def test_what_cannot_be_logged_ends_the_run(tmp_path: Path, numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(RunError, match=said):
        short_run(tmp_path / "run", callbacks=lambda event: event.log(**numbers))


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_raises_ends_the_run_saved_and_marked_failed(tmp_path: Path, kind: str) -> None:
    told: list[str] = []

    def breaks(event: RunEvent) -> None:
        if event.kind == kind:
            raise ValueError("a mistake of mine")

    env = failing_once(tmp_path) if kind == "fault" else "small_envs:Chain"
    made = {"env": env, "callbacks": [breaks, lambda event: told.append(event.kind)]}
    with pytest.raises(RunError, match=rf"breaks, at {kind}, failed: ValueError\('a mistake") as raised:
        short_run(tmp_path / "run", **made)
    assert isinstance(raised.value.__cause__, ValueError)
    assert kind not in told
    run = Run(tmp_path / "run")
    assert run.status()["status"] == "failed"
    (error,) = [event for event in run.events() if event["kind"] == "error"]
    assert "in breaks\n" in error["traceback"]
    assert run.events()[-1]["status"] == "failed"
    assert run.checkpoint_path(LAST).exists()
    if kind not in ("fault", "end"):  # a fault changes what is played; after the end nothing is left to do
        assert weights(run.resume(log="none")) == weights(short_run(tmp_path / "whole"))


def test_callbacks_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "small_envs:Chain", "--workers", "0", "--steps", "512", "--until", "steps", "--quiet"]
    words += ["--set", "collect.steps=16", "--set", "collect.lanes=2", "--log", "none"]
    cli.main([*words, "--dir", str(tmp_path / "run"), "--callback", "test_callbacks:heard_by_command"])
    logged = [row["doubled"] for row in Run(tmp_path / "run").rows() if "doubled" in row]
    assert logged[-1] == 2 * 8
    for wrong in ("test_callbacks:none_such", "test_callbacks:NOTHING_TO_CALL", "no_colon"):
        with pytest.raises(SystemExit) as left:
            cli.main([*words, "--dir", str(tmp_path / "other"), "--callback", wrong])
        assert left.value.code == 2
        assert "callback" in capsys.readouterr().err or ":" not in wrong
    assert not (tmp_path / "other").exists()
    with pytest.raises(UsageError, match="no callback"):
        manyhands.train("CartPole-v1", callbacks=[3], directory=tmp_path / "other")  # type: ignore[list-item]


def test_a_resume_says_which_callbacks_are_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = short_run(tmp_path / "run", updates=2, callbacks=heard_by_command)
    run.resume(steps=3 * BATCH, callbacks=heard_by_command)
    assert "not kept" not in capsys.readouterr().err
    run.resume(steps=4 * BATCH)
    said = "callbacks are not kept; give --callback (from Python: callbacks=) again: test_callbacks:heard_by"
    assert said in capsys.readouterr().err
    run.resume(steps=5 * BATCH)
    assert "not kept" not in capsys.readouterr().err, "the run has none any more"


def test_stopping_at_the_start_plays_nothing(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run", callbacks=lambda event: event.stop())
    assert run.status()["steps"] == 0
    assert run.status()["status"] == "stopped"
