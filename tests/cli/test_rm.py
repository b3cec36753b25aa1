"""`manyhands rm` removes runs, after asking, and nothing else."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_cli import TESTS, call, refused

from manyhands.config.resolve import resolve
from manyhands.core.errors import UsageError
from manyhands.runs import store
from manyhands.runs.remove import removable, remove


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two", "three"):
        store.create(tmp_path / "runs" / name, resolve("CartPole-v1"))
    return tmp_path


def names(home: Path) -> set[str]:
    return {path.name for path in (home / "runs").iterdir()}


def test_by_name_or_path_and_several_at_once(home: Path) -> None:
    done = call("rm", "one", "runs/two", "--yes", cwd=home)
    assert done.returncode == 0, done.stderr
    assert "Removed 2 runs." in done.stdout
    assert names(home) == {"three"}


def test_by_a_pattern_of_names(home: Path) -> None:
    refused(call("rm", "f*", "--yes", cwd=home), 2, "no run under runs/ is called like 'f*'")
    done = call("rm", "t*", "runs/t[w]o", "--yes", cwd=home)
    assert "Removed 2 runs." in done.stdout, done.stderr
    assert names(home) == {"one"}


@pytest.mark.parametrize(("answer", "left"), [("n\n", 3), ("\n", 3), ("y\n", 2)])
def test_it_asks_a_person_first(home: Path, answer: str, left: int) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "manyhands", "rm", "one"], cwd=home, stdin=theirs, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)}, text=True,
    )  # fmt: skip
    os.write(ours, answer.encode())
    said, _ = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert "Remove it for good? [y/N]" in said
    assert len(names(home)) == left


def test_without_a_person_or_a_yes_nothing_goes(home: Path) -> None:
    refused(call("rm", "one", cwd=home), 2, "--yes")
    refused(call("rm", "one", "nothing", "--yes", cwd=home), 2, "no run 'nothing'")
    assert names(home) == {"one", "two", "three"}


def test_a_run_in_use_stays_and_one_with_another_executor_in_it(home: Path) -> None:
    run = store.find("one")
    with run.lock(), pytest.raises(UsageError, match=r"training in .*one; stop it"):
        removable("one")
    inner = store.create(run.path / "executor-2", resolve("CartPole-v1"))
    with inner.lock(), pytest.raises(UsageError, match="executor-2"):
        removable("one")
    remove(removable("one"))
    assert names(home) == {"two", "three"}


def test_what_is_no_run_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = yaml.safe_dump(resolve("CartPole-v1").to_plain())
    project = home / "project"
    project.mkdir()
    (project / "config.yaml").write_text(settings)
    (home / "other" / "checkpoints").mkdir(parents=True)
    (home / "other" / "config.yaml").write_text("model: {name: bert}\n")
    (home / "runs" / "two" / ".git").mkdir()
    (home / "runs" / "link").symlink_to(home / "runs" / "three")
    for name, said in (
        ("project", "no run that manyhands has made"),
        ("other", "no run that manyhands has made"),
        ("two", "no run that manyhands has made"),
        ("link", "is a link to"),
        ("runs", "is a directory, but not a run"),
        ("runs/one/checkpoints", "is a directory, but not a run"),
        (".", "is a directory, but not a run"),
    ):
        with pytest.raises(UsageError, match=said):
            removable(name)
    monkeypatch.chdir(home / "runs" / "one" / "checkpoints")
    with pytest.raises(UsageError, match="the directory that you are in"):
        removable(str(home / "runs" / "one"))
    assert (home / "runs" / "three" / "config.yaml").exists()
