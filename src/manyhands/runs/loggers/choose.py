"""Finds the loggers that a user names, and makes one of all loggers of a run."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from manyhands.core.errors import ManyhandsError, RunError, UsageError, did_you_mean
from manyhands.core.texts import one_line
from manyhands.envs.importing import imported
from manyhands.runs.checkpoint import write_atomically
from manyhands.runs.loggers.base import Logger
from manyhands.runs.store import Run

Log = str | Logger | Iterable[str | Logger] | None
"""A user's choice of loggers: names, objects, several of them, or nothing for the usual ones."""
GROUP = "manyhands.loggers"
"""Entry points of packages that bring loggers: a name, and a class or function that makes one."""
NONE = "none"
REMEMBERED = "log.json"
"""The file, in a run's directory, with the names of its loggers."""


def _tensorboard() -> Logger:
    from manyhands.runs.loggers.tensorboard import TensorBoard

    return TensorBoard()


def _csv() -> Logger:
    from manyhands.runs.loggers.csv_file import CsvFile

    return CsvFile()


def _wandb(*project: str) -> Logger:
    from manyhands.runs.loggers.wandb_run import Wandb

    return Wandb(*project)


def _mlflow(*experiment: str) -> Logger:
    from manyhands.runs.loggers.mlflow_run import Mlflow

    return Mlflow(*experiment)


BUILT_IN: Mapping[str, Callable[..., Logger]] = {
    "tensorboard": _tensorboard,
    "csv": _csv,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
ARGUMENT = {"wandb": "PROJECT", "mlflow": "EXPERIMENT"}


def choose(log: Log) -> list[Logger]:
    """Return the loggers of a run: names, objects, or by default TensorBoard where it is installed."""
    if log is None:
        from manyhands.runs.loggers.tensorboard import installed

        return [_tensorboard()] if installed() else []
    return [_made(each) for each in _several(log) if each != NONE]


def remember(run: Run, log: Log) -> None:
    """Write down the names that were given, so that a resume logs to the same places."""
    if log is not None:
        names = [each for each in _several(log) if isinstance(each, str)]
        write_atomically(run.path / REMEMBERED, (json.dumps(names) + "\n").encode())


def remembered(run: Run) -> Log:
    """Return the names that were given before; None where none were, or nobody can read them."""
    try:
        names = json.loads((run.path / REMEMBERED).read_bytes())
    except (OSError, ValueError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _several(log: Any) -> list[Any]:
    return list(log) if isinstance(log, Iterable) and not isinstance(log, str) else [log]


def _made(wanted: Any) -> Logger:
    if isinstance(wanted, str):
        wanted = _by_name(wanted)
    if isinstance(wanted, type):
        name = wanted.__name__
        raise UsageError(f"log has the class {name}; make a logger of it: log=[{name}()]")
    methods = ("start", "log", "close")
    missing = [name for name in methods if not callable(getattr(wanted, name, None))]
    if missing:
        what = repr(wanted) if type(wanted).__module__ == "builtins" else f"a {type(wanted).__qualname__}"
        raise UsageError(
            f"{what:.100} is no logger: it lacks {' and '.join(missing)}; "
            "it needs the methods start, log and close"
        )
    logger: Logger = wanted
    return logger


def _by_name(text: str) -> Any:
    """Return a known logger, as NAME or NAME:ARGUMENT, or the user's own, as module:Name."""
    name, colon, argument = text.partition(":")
    arguments = (argument,) if argument else ()
    if name in BUILT_IN:
        if (argument and name not in ARGUMENT) or (colon and not argument):
            usual = f"{name}:{ARGUMENT[name]}" if name in ARGUMENT else name
            raise UsageError(f"there is no logger {text!r:.100}; write {usual}")
        return BUILT_IN[name](*arguments)
    found = entry_points(group=GROUP, name=name)
    if found:
        return next(iter(found)).load()(*arguments)
    if not colon:
        known = {*BUILT_IN, *(each.name for each in entry_points(group=GROUP)), NONE}
        raise UsageError(
            f"there is no logger {text!r:.100}; there are {', '.join(sorted(known))}, or "
            f"module:Name of your own{did_you_mean(text, known)}"
        )
    make = imported(text, "logger")
    try:
        return make()
    except Exception as error:  # whatever it does
        raise UsageError(
            f"cannot make the logger {text!r:.100}: {type(error).__name__}: {one_line(error, 300)}; "
            "by name it is called without arguments"
        ) from error


class Loggers:
    """All loggers of a run. One that fails is left out from then on and told of; the run goes on."""

    def __init__(self, loggers: Iterable[Logger], said: Callable[[str], None]) -> None:
        self.loggers, self.said = list(loggers), said
        self.started: list[Logger] = []

    def start(self, run: Run, resumed_at: int | None) -> None:
        """Start them all; here a failure ends the run, before it has begun."""
        for logger in self.loggers:
            try:
                logger.start(run, resumed_at)
            except ManyhandsError:
                raise
            except Exception as error:
                raise RunError(f"{_name(logger)} could not start: {error!r}") from error
            self.started.append(logger)

    def log(self, steps: int, numbers: Mapping[str, float]) -> None:
        """Give the finite ones of the numbers to every logger."""
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        for logger in tuple(self.started):
            self._call(logger, partial(logger.log, steps, finite))

    def close(self, status: str) -> None:
        """Close every logger that is still there."""
        for logger in tuple(self.started):
            self._call(logger, partial(logger.close, status))
        self.started.clear()

    def _call(self, logger: Logger, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self.started.remove(logger)
            self.said(f"{_name(logger)} failed and gets no more numbers: {one_line(repr(error), 300)}")


def _name(logger: Logger) -> str:
    return f"the logger {type(logger).__name__}"
