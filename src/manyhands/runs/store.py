"""A run's directory: where it lies, what it holds, who may write to it."""

import fcntl
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from manyhands.config.plain_yaml import read_yaml
from manyhands.config.settings import Config
from manyhands.core.errors import RunError, UsageError, did_you_mean
from manyhands.core.texts import one_line
from manyhands.runs import checkpoint
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.eventlog import read_events
from manyhands.runs.jsonl import read_rows
from manyhands.runs.series import Metrics
from manyhands.runs.soundness import is_row, is_status
from manyhands.system.locks import try_lock

if TYPE_CHECKING:
    from manyhands.runs.agent import Agent
    from manyhands.runs.launch import GivenCallbacks
    from manyhands.runs.loggers.choose import Log
    from manyhands.runs.scores import Scores

HOME = Path("runs")
"""The directory of runs, below the working directory, unless told otherwise."""
LAST, BEST = "last", "best"
AVERAGING = "averaging.yaml"
"""The file that says how a parent averages; a run that has it is a parent's."""
WORKERS = "workers.json"
"""The file with what every worker has done; `Run.workers` says what its columns are."""
LISTEN = "listen.yaml"
"""The file that says where a parent listens and whom it lets in."""


@dataclass(frozen=True)
class Run:
    """A finished or unfinished run on disk: its settings, its results, its agent.

    `make_env` is the callable that its environment comes from, where that has no name to be found by.
    """

    path: Path
    make_env: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    measures: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    """What measures a law's weights when it goes on; see `runs/training.py`."""

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.name

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def config(self) -> Config:
        """Return the settings that the run has, all of them."""
        path = self.path / "config.yaml"
        plain = read_yaml(path)
        try:
            return Config.from_plain(plain)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error

    def status(self) -> dict[str, Any]:
        """Return how far the run is or how it ended; {} before the first checkpoint."""
        path = self.path / "state.json"
        try:
            status = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged: {one_line(error, 200)}") from error
        if not isinstance(status, dict) or not is_status(status):
            raise RunError(f"{path} is damaged: it does not say how far the run is")
        return status

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl that are sound, as they were written."""
        return read_rows(self.metrics_path, is_row)

    def metrics(self) -> Metrics:
        """Return the metrics as columns: `metrics()["return_mean"]`; `metrics().frame()` with pandas."""
        return Metrics(self.rows())

    def events(self) -> list[dict[str, Any]]:
        """Return what happened, in order: rows with a `time`, a `kind` and what belongs to it."""
        return read_events(self.path)

    def workers(self) -> list[dict[str, Any]]:
        """Return a row for every worker that has played for the run; none for a run without worker processes.

        Columns: name; steps, episodes and rollouts (trajectories) played; return_sum, of the episodes;
        playing, the seconds it took; lost, how often it was replaced. Of workers at a broker, in place of
        rollouts and lost: worker, host, process (its number there), player (its queue), idle and blocked
        (seconds without an order, and before a full queue), sent (trajectories), version (of the weights it
        played with last).
        """
        players = self.worker_stats().get("players")
        if not isinstance(players, dict):
            return []
        return [{"name": name, **row} for name, row in sorted(players.items()) if isinstance(row, dict)]

    def agent(self, which: str | None = None) -> "Agent":
        """Return the agent, ready to `act`: the best tested, else the last, or the checkpoint `which`."""
        from manyhands.runs.agent import load

        return load(self, which, self.make_env)

    def evaluate(
        self, episodes: int = 100, seed: int | None = None, sample: bool = False, which: str | None = None
    ) -> "Scores":
        """Play whole episodes with the agent, which takes its best actions unless it is to `sample` them.

        The same seed plays the same episodes; none of them were those of training or of its tests.
        """
        from manyhands.runs.agent import JUDGED_SEED, judge

        chosen = JUDGED_SEED if seed is None else seed
        return judge(self, episodes, chosen, sample, which, self.make_env)

    def video(
        self, path: str | Path = "play.mp4", episodes: int = 1, seed: int = 0, which: str | None = None
    ) -> list[float]:
        """Film the agent into `path` (.mp4 or .gif) and return what it scored."""
        from manyhands.runs.video import record

        return record(self, Path(path), episodes, seed, which, self.make_env)

    def plot(self, path: str | Path | None = None) -> Path:
        """Draw returns, speed and where the time went, as a PNG; by default below the run's directory."""
        from manyhands.runs.agent import goal
        from manyhands.runs.plots import learning_curve

        out = self.path / "plots" / "learning_curve.png" if path is None else Path(path)
        learning_curve(self, out, goal(self, self.make_env))
        return out

    def resume(
        self,
        *,
        steps: int | None = None,
        until: str | None = None,
        workers: int | None = None,
        channel: str | None = None,
        executors: int = 1,
        callbacks: "GivenCallbacks" = (),
        log: "Log" = None,
        quiet: bool | None = None,
    ) -> "Run":
        """Go on where the run stopped, with its own settings; arguments as of `manyhands.train`."""
        from manyhands.runs.launch import launch

        return launch(
            self.make_env,
            resume=self,
            steps=steps,
            until=until,
            workers=workers,
            channel=channel,
            executors=executors,
            callbacks=callbacks,
            log=log,
            quiet=quiet,
            measures=self.measures,
        )

    def checkpoint_path(self, which: str) -> Path:
        return self.path / "checkpoints" / f"{which}.safetensors"

    def checkpoint(self, which: str | None = None) -> Checkpoint:
        """Return the named one; by default the best tested, or the last where none was tested."""
        if which is None:
            which = BEST if self.checkpoint_path(BEST).exists() else LAST
        kept = sorted(path.stem for path in (self.path / "checkpoints").glob("*.safetensors"))
        if not kept and not self.checkpoint_path(which).exists():
            raise RunError(f"{self.path} has no checkpoint{self._why_none()}")
        if kept and which not in kept:
            raise UsageError(f"{self.path} has no checkpoint {which!r}; it has {_few(kept)}")
        return checkpoint.read(self.checkpoint_path(which))

    def _why_none(self) -> str:
        """Say how a run without a checkpoint ended, or that it has not ended."""
        ends = [row for row in self.events() if row["kind"] == "end"]
        if self.in_use():
            return " yet: it is running"
        if not ends:
            return ": it was interrupted before its first one"
        why = f": {one_line(ends[-1]['error'], 500)}" if "error" in ends[-1] else ""
        return f"; it is {one_line(ends[-1].get('status'), 50)}{why}"

    def save(self, which: str, made: Checkpoint) -> None:
        checkpoint.write(self.checkpoint_path(which), made)

    def save_status(self, status: dict[str, Any]) -> None:
        text = json.dumps(status, indent=2) + "\n"
        checkpoint.write_atomically(self.path / "state.json", text.encode())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second process from training in the same directory; ends with this process."""
        with (self.path / ".lock").open("a") as file:
            if not try_lock(file):
                raise UsageError(f"another process is training in {self.path}")
            for place in ("checkpoints", "memory"):
                for leftover in (self.path / place).glob(".*"):
                    leftover.unlink()  # half a file of a process that was killed
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # not by closing: a process that was forked holds it, too

    def in_use(self) -> bool:
        """Return whether a process is training in it now."""
        try:
            with (self.path / ".lock").open("a") as file:
                return not try_lock(file)
        except OSError:
            return False

    def save_worker_stats(self, stats: dict[str, Any]) -> None:
        """Save what the workers have done so far, written while the run goes."""
        if stats:
            text = json.dumps(stats, indent=2) + "\n"
            checkpoint.write_atomically(self.path / WORKERS, text.encode())

    def worker_stats(self) -> dict[str, Any]:
        """Return what `workers.json` holds; {} where there is none."""
        try:
            stats = json.loads((self.path / WORKERS).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{self.path / WORKERS} is damaged: {one_line(error, 200)}") from error
        return stats if isinstance(stats, dict) else {}

    def discard(self) -> None:
        """Remove a run that never started, so that it leaves nothing behind."""
        shutil.rmtree(self.path)

    def save_config(self, config: Config) -> None:
        text = yaml.safe_dump(config.to_plain(), sort_keys=False)
        checkpoint.write_atomically(self.path / "config.yaml", text.encode())


def _few(names: list[str]) -> str:
    """Return all of a few names, or the first and the last ones."""
    return ", ".join(names if len(names) <= 6 else [*names[:3], "...", *names[-3:]])


def choose_path(name: str | None, directory: Path | None) -> Path | None:
    """Return where a new run will lie; None leaves the name to `create`. Refuses a path that is taken."""
    if name is not None and directory is not None:
        raise UsageError("give --name (a run under runs/) or --dir (any path), not both")
    if name is not None and (not name or "/" in name or name.startswith(".")):
        raise UsageError(f"{name!r} is not a name for a run; use --dir for a path")
    path = directory if directory is not None else HOME / name if name is not None else None
    if path is not None and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} exists already; choose another --name, or go on with it: --resume {path}")
    return path


def create(path: Path | None, config: Config) -> Run:
    """Make the directory. Without a path it counts up to a free name, even beside runs that start now."""
    if path is None:
        stem = re.sub("[/:]", "-", f"{config.env.id}-{config.run.algo}")
        HOME.mkdir(exist_ok=True)
        for number in count(1):
            path = HOME / f"{stem}-{number}"
            try:
                path.mkdir()
                break
            except FileExistsError:
                continue
    assert path is not None
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    run = Run(path)
    run.save_config(config)
    return run


def find(name_or_path: str | Path) -> Run:
    """Return a run by path, or by its name under runs/."""
    given = Path(name_or_path)
    if (run := find_or_none(name_or_path)) is not None:
        return run
    if given.is_dir():
        raise UsageError(f"{given} is a directory, but not a run: it has no config.yaml")
    names = [run.name for run in all_runs()]
    hint = did_you_mean(str(given), names) or "; `manyhands runs` lists those under runs/"
    raise UsageError(f"there is no run {str(given)!r}{hint}")


def find_or_none(name_or_path: str | Path) -> Run | None:
    """Return the same, or None where there is no such run."""
    given = Path(name_or_path)
    return next((Run(path) for path in (given, HOME / given) if (path / "config.yaml").is_file()), None)


def all_runs() -> list[Run]:
    if not HOME.is_dir():
        return []
    found = [Run(path) for path in HOME.iterdir() if (path / "config.yaml").is_file()]
    return sorted(found, key=lambda run: (run.path / "config.yaml").stat().st_mtime)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
