"""Environments that do not end well: close() that raises or hangs, threads that go on, processes that fork.

A run with them is as good as one without: the same weights and files, the same exit code, in time.
"""

import faulthandler
import hashlib
import os
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
import yaml
from brokers import TESTS, Workers, broker

from manyhands.envs.closing import Closer
from manyhands.runs.store import LAST, Run

ENDS_WITHIN = 60.0
"""Seconds; a sound run takes three, and a busy machine a few times as long."""
SETTINGS = ("collect.lanes=4", "collect.steps=32", "algo.minibatch=64", "run.test_episodes=4")
FILES = ["checkpoints", "config.yaml", "metrics.jsonl", "state.json"]
HOWS = (
    *("fork-returns", "fork-raises", "fork-exits"),
    *("close-raises", "close-exits", "close-hangs", "close-locks", "thread"),
)


def command_line(*words: str, channel: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    if channel:
        environment["MANYHANDS_CHANNEL"] = channel
    return subprocess.run(
        [sys.executable, "-m", "manyhands", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN,
        check=False,
    )


def trained(
    path: Path, how: str, workers: int = 0, channel: str = ""
) -> tuple[Run, subprocess.CompletedProcess[str]]:
    words = ["train", "small_envs:Lingering", "--steps", "512", "--until", "steps", "--seed", "3", "--quiet"]
    words += ["--workers", str(workers), "--mode", "sync", "--dir", str(path)]
    for pair in (*SETTINGS, f"env.kwargs={{how: '{how}'}}"):
        words += ["--set", pair]
    return Run(path), command_line(*words, channel=channel)


@cache
def sound() -> str:
    """The weights of a run with an environment that ends as it should."""
    with TemporaryDirectory() as place:
        run, done = trained(Path(place) / "run", "")
        assert (done.returncode, done.stderr) == (0, "")
        return digest(run)


def digest(run: Run) -> str:
    return hashlib.sha256(run.checkpoint(LAST).weights.vector.tobytes()).hexdigest()


def check(run: Run, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    files = sorted(path.name for path in run.path.iterdir())
    assert [name for name in files if name[0] not in ".ew"] == FILES  # not events, nor workers.json
    assert run.status()["status"] == "finished"
    assert run.status()["faults"] == 0
    assert [row["steps"] for row in run.rows()] == sorted(row["steps"] for row in run.rows())
    assert digest(run) == sound()
    assert not left_of(run), "a process is left"


def left_of(run: Run) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if str(run.path) in (p.info["cmdline"] or [])]


@pytest.mark.parametrize("how", HOWS)
def test_inside_the_executor(tmp_path: Path, how: str) -> None:
    check(*trained(tmp_path / "run", how))


@pytest.mark.parametrize("how", ["fork-returns", "close-hangs", "close-locks", "thread"])
def test_in_worker_processes(tmp_path: Path, how: str) -> None:
    check(*trained(tmp_path / "run", how, workers=2))


def test_at_a_broker(tmp_path: Path) -> None:
    """All in the same two processes, one after the other, and then those end in time."""
    with Workers(broker().url, 2) as workers:
        for how in ("fork-returns", "close-hangs", "thread"):
            check(*trained(tmp_path / how, how, channel=broker().url))
        assert workers.stop() == 0


def test_in_a_ray_cluster(tmp_path: Path) -> None:
    check(*trained(tmp_path / "run", "all", workers=2, channel="ray"))


@pytest.mark.parametrize("how", ["fork-returns", "close-hangs", "close-locks"])
def test_when_an_agent_is_judged(tmp_path: Path, how: str) -> None:
    run, _ = trained(tmp_path / "run", "")
    scores = command_line("eval", str(run.path), "--episodes", "20").stdout
    plain = yaml.safe_load((run.path / "config.yaml").read_text())
    plain["env"]["kwargs"]["how"] = how
    (run.path / "config.yaml").write_text(yaml.safe_dump(plain))
    done = command_line("eval", str(run.path), "--episodes", "20")
    assert (done.returncode, done.stdout) == (0, scores)
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == (0 if how == "fork-returns" else 1)


class Kind:
    """Some environment."""


def test_what_cannot_be_closed_is_said_once_and_costs_its_time_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    closer, began = Closer(), time.monotonic()
    for _ in range(5):
        closer.close(Kind, lambda: time.sleep(60), 0.5)
        closer.close(Kind, lambda: [][0], 0.5)
    assert time.monotonic() - began < 10
    assert capsys.readouterr().err.splitlines() == [
        "manyhands: close() of the environment Kind took longer than 0.5 s",
        "manyhands: close() of the environment Kind raised IndexError: list index out of range",
    ]


def test_an_environment_that_shows_itself_is_closed_in_the_main_thread() -> None:
    closed_in: list[threading.Thread] = []
    Closer().close(Kind, lambda: closed_in.append(threading.current_thread()), shows=True)
    assert closed_in == [threading.main_thread()]


def test_so_is_one_that_can_be_closed_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    closed_in: list[threading.Thread] = []

    def close() -> None:
        closed_in.append(threading.current_thread())
        if closed_in[-1] is not threading.main_thread():
            raise RuntimeError("this is another thread's")

    Closer().close(Kind, close)
    assert closed_in[1:] == [threading.main_thread()]
    assert capsys.readouterr().err == ""


def test_without_memory_for_a_thread_it_is_closed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", refused)
    closed: list[bool] = []
    Closer().close(Kind, lambda: closed.append(True))
    assert closed == [True]
    assert capsys.readouterr().err == ""


NATIVE = """
import ctypes
from manyhands.envs import closing
closing.SLACK, closing.LAST_LIMIT = 0.2, 1.2
lock = ctypes.create_string_buffer(64)
def hang():
    for _ in range(2):
        ctypes.{library}(None).pthread_mutex_lock(lock)
closing.Closer().close(str, hang, 0.2, shows={shows})
print("went on")
"""


@pytest.mark.parametrize("shows", [False, True])
@pytest.mark.parametrize("library", ["CDLL", "PyDLL"])  # the second keeps Python's lock
def test_a_close_that_hangs_in_native_code_is_left_or_ends_the_process(library: str, shows: bool) -> None:
    script = NATIVE.format(library=library, shows=shows)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    goes_on = library == "CDLL" and not shows
    assert (done.returncode, done.stdout) == ((0, "went on\n") if goes_on else (1, ""))
    assert ("took longer than 0.2 s" in done.stderr) == goes_on
    assert (" in hang\n" in done.stderr) == (not goes_on)
    assert ("close() of the environment str hangs in native code" in done.stderr) == (
        library == "CDLL" and shows
    )


def test_in_another_thread_it_is_given_up() -> None:
    other = threading.Thread(target=Closer().close, args=(Kind, lambda: time.sleep(5), 0.1))
    began = time.monotonic()
    other.start()
    other.join()
    assert time.monotonic() - began < 4
