"""The one entry point of a run, from a shell and from Python: turns what was asked for into settings."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium

from manyhands.config import algorithms
from manyhands.config.resolve import environment, resolve
from manyhands.config.settings import Config
from manyhands.core.errors import UsageError
from manyhands.runs import store
from manyhands.runs.callbacks import Callback, find_callback
from manyhands.runs.loggers.choose import Log
from manyhands.runs.open_channel import CHANNEL_VARIABLE, broker_name
from manyhands.runs.own_code import explained
from manyhands.runs.store import Run
from manyhands.runs.training import Measures, join, train
from manyhands.runs.view import View

Env = str | Callable[..., Any]
Settings = Mapping[str, Mapping[str, Any]]
GivenCallbacks = str | Callback | Sequence[str | Callback]


def launch(
    env: Env | None,
    algo: str | type[Any] | None = None,
    *,
    workers: int | None = None,
    mode: str | None = None,
    barrier: bool | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    until: str | None = None,
    seed: int | None = None,
    cpus_per_worker: float | None = None,
    name: str | None = None,
    directory: str | Path | None = None,
    resume: str | Path | Run | None = None,
    config: str | Path | None = None,
    recipes: str | Path | None = None,
    settings: Settings | None = None,
    start_from: str | Path | None = None,
    channel: str | None = None,
    executors: int = 1,
    callbacks: GivenCallbacks = (),
    log: Log = None,
    quiet: bool | None = None,
    measures: Measures | None = None,
) -> Run:
    """Train, and return the run; `manyhands.train` says what the arguments are."""
    channel = usual_channel(channel)
    _check_executors(executors, channel, start_from)
    if algo is not None and not isinstance(algo, str):
        algo = algorithms.register(algo)
    _check_env(env)
    called = find_callbacks(callbacks)
    run: dict[str, Any] = {"workers": workers, "mode": mode, "steps": steps, "until": until, "seed": seed}
    run |= {"minutes": minutes, "cpus_per_worker": cpus_per_worker}
    make_env = None if isinstance(env, str) else env
    found = None
    if resume is not None:
        again = algo if algo not in algorithms.GIVEN else None  # which only this program has
        own: dict[str, Any] = {"algo": again, "mode": mode, "barrier": barrier, "seed": seed}
        own |= {"config": config, "name": name, "directory": directory, "recipes": recipes}
        own |= {"cpus_per_worker": cpus_per_worker, "settings": settings or None, "start_from": start_from}
        found = resumable(resume, own, executors)
        make_env = make_env or found.make_env
        made = continue_config(found, steps, until, workers, minutes)
    else:
        run["mode"] = _async_mode(mode) if executors > 1 else mode
        made = _configure(env, algo, config, settings or {}, run, barrier, recipes)
    path = None if directory is None else Path(directory)
    start = None if start_from is None else str(start_from)
    with nullcontext() if found is None else explained(found):
        return train(
            made,
            name,
            path,
            resume=found,
            callable_env=make_env,
            view=View(quiet),
            channel=channel,
            executors=executors,
            measures=measures,
            callbacks=called,
            log=log,
            start_from=start,
        )


def _check_env(env: object) -> None:
    """Refuse what makes no environments: every lane plays one of its own."""
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise UsageError(
            "env is an environment already; pass its id, or a function that makes one: "
            "lambda: gymnasium.make(...)"
        )
    if not (env is None or isinstance(env, str) or callable(env)):
        raise UsageError(f"env is {env!r:.100}; it must be an id, or a function that makes an environment")


def _check_executors(executors: int, channel: str | None, start_from: str | Path | None) -> None:
    if executors != 1 and (executors < 1 or channel is None or not channel.startswith("amqp")):
        raise UsageError("--executors takes 1 or more, and more than 1 only with --channel amqp://...")
    if executors > 1 and start_from is not None:
        raise UsageError("--start-from goes with one executor: each of several has an agent of its own")


def launch_joining(
    run: str | Path,
    channel: str | None,
    *,
    name: str | None = None,
    directory: str | Path | None = None,
    allow: Sequence[str] = (),
    callbacks: GivenCallbacks = (),
    log: Log = None,
    quiet: bool | None = None,
) -> Run:
    """Be one more executor of a run at a broker; `manyhands.join` says what the arguments are."""
    channel = usual_channel(channel)
    if channel is None:
        raise UsageError("--join needs the broker's address: --channel amqp://user:password@host:5672/")
    path = None if directory is None else Path(directory)
    called = find_callbacks(callbacks)
    return join(_name_at_broker(run), channel, name, path, View(quiet), allow, called, log)


def usual_channel(channel: str | None) -> str | None:
    """Return the channel that was given, or else that of $MANYHANDS_CHANNEL."""
    return channel or os.environ.get(CHANNEL_VARIABLE) or None


def find_callbacks(callbacks: GivenCallbacks) -> tuple[Callback, ...]:
    """Return one or several callbacks, each given as it is or as module:callable."""
    several = (callbacks,) if isinstance(callbacks, str) or callable(callbacks) else callbacks
    return tuple(find_callback(callback) for callback in several)


def resumable(resume: str | Path | Run, own: Mapping[str, Any], executors: int = 1) -> Run:
    """Return the run that is to go on; `own` are settings of its own, of which none may be given again."""
    given = [name for name, value in own.items() if value is not None]
    if given:
        raise UsageError(
            "a resume goes on with the run's own settings; it takes steps, minutes, until, workers, channel, "
            f"callbacks, log and quiet, not {', '.join(given)}"
        )
    found = resume if isinstance(resume, Run) else store.find(resume)
    if (found.path / store.AVERAGING).exists():
        raise UsageError(f"{found.path} is a parent's run; manyhands parent --resume {found.path}")
    mode = found.config().run.mode
    if executors > 1 and mode != "async":
        raise UsageError(f"{found.path} is {mode}; only async runs have several executors")
    return found


def _configure(
    env: Env | None,
    algo: str | None,
    config: str | Path | None,
    settings: Settings,
    run: Mapping[str, Any],
    barrier: bool | None,
    recipes: str | Path | None,
) -> Config:
    """Return the settings of a new run; `run` are those that have an argument of their own."""
    file = None if config is None else Path(config)
    env = env or environment(file)
    if env is None:
        raise UsageError("which environment? For example: manyhands train LunarLander-v3")
    env_id = env if isinstance(env, str) else f"{env.__module__}:{getattr(env, '__qualname__', 'callable')}"
    named = {name: value for name, value in run.items() if value is not None}
    if barrier is not None:
        if "mode" in named:
            raise UsageError("--barrier on is --mode sync, and off is async; give one of them")
        named["mode"] = "sync" if barrier else "async"
    folder = None if recipes is None else Path(recipes)
    made = resolve(env_id, algo, file, (settings, {"run": named}), recipes=folder)
    if barrier is not None and not made.algorithm.uses_cores:
        raise UsageError(f"--barrier is for cores that learn together (a3c, adqn), not {made.run.algo}")
    return made


def _async_mode(mode: str | None) -> str:
    if mode not in (None, "async"):
        raise UsageError(f"several executors share the data as it comes, so --mode is async, not {mode}")
    return "async"


def _name_at_broker(run: str | Path) -> str:
    """Return the name of a run of this machine, by name or path, or a name as its executor shows it."""
    try:
        return broker_name(store.find(run).path)
    except UsageError:
        return str(run)


def continue_config(
    run: Run, steps: int | None, until: str | None, workers: int | None, minutes: float | None = None
) -> Config:
    """Return a run's own settings; only how long and with how many workers may change on resume."""
    plain = run.config().to_plain()
    for name, value in (("steps", steps), ("until", until), ("workers", workers), ("minutes", minutes)):
        if value is not None:
            plain["run"][name] = value
    if workers is not None and run.config().algorithm.uses_cores:
        raise UsageError(f"{run.path} goes on with its own cores, which share what they learn; no --workers")
    status = run.status()
    if status.get("solved") and plain["run"]["until"] == "solved":
        raise UsageError(f"{run.path} is solved already; go on with --until steps --steps N")
    used, tested = status.get("steps", 0), status.get("tested_at")
    if plain["run"]["until"] != "external" and used >= plain["run"]["steps"] and used == tested:
        raise UsageError(f"{run.path} has used its {plain['run']['steps']} steps; give more: --steps N")
    return Config.from_plain(plain)
