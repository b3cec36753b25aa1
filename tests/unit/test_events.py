"""The log of what happened in a run."""

import json
import threading
import time
from pathlib import Path

import pytest
from short_runs import short_run
from small_envs import Failing

import manyhands
from manyhands.cli import main as cli
from manyhands.runs import eventlog
from manyhands.runs.eventlog import EventLog, event_text, follow_events, read_events
from manyhands.runs.store import Run


def test_a_run_writes_down_what_happens(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run", lambda: Failing("raise", str(tmp_path / "failed")))
    events = run.events()
    assert all(isinstance(event["time"], str) and isinstance(event["kind"], str) for event in events)
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    assert events[0]["kind"] == "start"
    assert events[0]["settings"] == json.loads(json.dumps(run.config().to_plain()))
    assert events[0]["resumed"] is False
    (fault,) = [event for event in events if event["kind"] == "fault"]
    assert "RuntimeError: the simulator exploded" in fault["traceback"]
    assert {"worker", "lane", "episode", "seed", "steps", "text"} <= set(fault)
    tests = [event for event in events if event["kind"] == "test"]
    assert [test["mean"] for test in tests] == [row["test_mean"] for row in run.rows() if "test_mean" in row]
    assert {event["which"] for event in events if event["kind"] == "checkpoint"} >= {"best"}
    assert events[-1]["kind"] == "end"
    assert events[-1]["status"] == "finished"
    longer = run.resume(steps=12 * 64, log="none").events()
    assert longer[: len(events)] == events
    assert [event["resumed"] for event in longer if event["kind"] == "start"] == [False, True]


def test_a_worker_that_is_lost_is_written_down_with_its_place(tmp_path: Path) -> None:
    run = manyhands.train(
        "small_envs:Fatal",
        workers=1,
        steps=512,
        until="steps",
        directory=tmp_path / "run",
        log="none",
        settings={
            "env": {"kwargs": {"how": "exit", "every": 40}},
            "collect": {"shards": 1, "lanes": 2, "steps": 32},
            "run": {"test_every": 10**9, "test_episodes": 1},
        },
    )
    lost = [event for event in run.events() if event["kind"] == "worker_lost"]
    assert lost
    assert len(lost) == run.status()["faults"] == run.workers()[0]["lost"]
    assert all(event["worker"] == "worker-0" and event["fault"] for event in lost)
    assert any("lane" in event and event["seed"] % 40 == 0 for event in lost)


def test_a_run_that_fails_says_why_at_its_end(tmp_path: Path) -> None:
    settings = {"run": {"max_faults": 0}}
    with pytest.raises(manyhands.core.errors.EnvError):
        manyhands.train(
            lambda: Failing("raise", str(tmp_path / "never"), always=True),
            workers=0,
            directory=tmp_path / "run",
            log="none",
            settings=settings,
        )
    end = Run(tmp_path / "run").events()[-1]
    assert (end["kind"], end["status"]) == ("end", "failed")
    assert "max_faults" in end["error"]


def test_what_its_caller_is_handling_is_no_failure_of_a_run(tmp_path: Path) -> None:
    try:
        raise ValueError("something else")
    except ValueError:
        run = short_run(tmp_path / "run", updates=1)
    assert "error" not in run.events()[-1]


def test_damaged_rows_are_left_out_and_told_of_and_half_a_row_spoils_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path)
    log.write("notice", text="first")
    log.close()
    with (tmp_path / eventlog.NAME).open("a") as file:
        file.write('{"time": 3}\n{"time": "2026-11-')  # and here somebody pulled the plug
    log = EventLog(tmp_path)
    log.write("notice", text="second")
    log.close()
    assert [row["text"] for row in read_events(tmp_path)] == ["first", "second"]
    assert "left out 2 damaged rows" in capsys.readouterr().err


def test_its_size_is_bounded_and_so_are_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog, "LARGEST_FILE", 5000)
    log, (older, tail) = EventLog(tmp_path), follow_events(tmp_path)
    assert older == []
    followed = []
    for number in range(300):
        log.write("notice", text=f"{number} " + "x" * 100)
        followed += tail.read()
    log.write("notice", text="\n".join(["y" * 10_000] * 1000))
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 5000 + 300_000
    numbers = [int(row["text"].split()[0]) for row in read_events(tmp_path)[:-1]]
    assert numbers == list(range(300 - len(numbers), 300))
    assert len(numbers) > 30
    assert [int(row["text"].split()[0]) for row in followed] == list(range(300))  # past every change of file
    assert len(read_events(tmp_path)[-1]["text"]) < 250_000


def test_checkpoints_that_come_all_the_time_are_told_of_now_and_then(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    for version in range(50):
        log.checkpoint("last", "last", version=version)
    log.checkpoint("best", "last", version=50)
    log.close()
    assert [(row["which"], row["version"]) for row in read_events(tmp_path)] == [("last", 0), ("best", 50)]


def test_the_command_shows_and_follows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = short_run(tmp_path / "run")
    cli.main(["events", str(run.path)])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(run.events())
    assert " start " in shown[0]
    assert "status finished" in shown[-1]
    cli.main(["events", str(run.path), "--json"])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == run.events()

    def later() -> None:
        with run.lock():
            log = EventLog(run.path)
            for number in range(3):
                time.sleep(0.3)
                log.write("notice", text=f"news {number}")
            log.close()

    thread = threading.Thread(target=later)
    thread.start()
    cli.main(["events", str(run.path), "--follow"])  # ends when nobody trains there any more
    thread.join()
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[-3:]] == ["0", "1", "2"]


def test_what_others_said_cannot_control_a_terminal() -> None:
    row = {"time": "2026\x1b[2J", "kind": "fa\x07ult", "text": "evil\x1b[2J", "traceback": "one\n\x1b[2Jtwo"}
    text = event_text({**row, "worker": "w\x1b"})
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.count("\n") == 2
