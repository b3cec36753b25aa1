"""Removing runs, and nothing that is not a run."""

import fnmatch
import shutil
from pathlib import Path

from manyhands.config.plain_yaml import read_yaml
from manyhands.core.errors import ManyhandsError, UsageError
from manyhands.runs import store
from manyhands.runs.store import Run


def removable(name_or_path: str) -> Run:
    """Return the run that is to go, which must be one and not in use."""
    run = store.find(name_or_path)
    _check_is_run(run)
    for inner in _runs_in(run):
        if inner.in_use():
            raise UsageError(f"a process is training in {inner.path}; stop it before you remove {run.path}")
    return run


def matching(word: str) -> list[str]:
    """Return the names of the runs under runs/ that a pattern such as 'CartPole-*' matches; else the word."""
    if not any(letter in word for letter in "*?[") or Path(word).exists() or (store.HOME / word).exists():
        return [word]
    names = [run.name for run in store.all_runs()]
    if found := fnmatch.filter(names, Path(word).name if Path(word).parent == store.HOME else word):
        return found
    raise UsageError(f"no run under {store.HOME}/ is called like {word!r:.100}; `manyhands runs` lists them")


def size(run: Run) -> int:
    """Return the bytes that a run takes on disk."""
    return sum(path.lstat().st_size for path in run.path.rglob("*") if not path.is_dir())


def remove(run: Run) -> None:
    """Remove a run's directory and all in it. While it goes, nobody can begin to train in it."""
    with run.lock():
        shutil.rmtree(run.path)


def _check_is_run(run: Run) -> None:
    """Refuse a directory that only happens to hold a config.yaml, such as a project's."""
    path = run.path
    try:
        plain = read_yaml(path / "config.yaml")
    except ManyhandsError:
        plain = {}
    env, settings = plain.get("env"), plain.get("run")
    written = isinstance(env, dict) and "id" in env and isinstance(settings, dict) and "algo" in settings
    if not written or not (path / "checkpoints").is_dir() or (path / ".git").exists():
        raise UsageError(f"{path} is no run that manyhands has made, so it is not removed")
    if path.is_symlink():
        raise UsageError(f"{path} is a link to {path.resolve()}; give that one, or remove the link yourself")
    if Path.cwd().resolve().is_relative_to(path.resolve()):
        raise UsageError(f"{path} holds the directory that you are in; go elsewhere first")


def _runs_in(run: Run) -> list[Run]:
    """Return the run itself, and those of other executors in it."""
    return [Run(file.parent) for file in run.path.rglob("config.yaml")]
