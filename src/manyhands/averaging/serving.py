"""Runs a parent, from its arguments to the end of its run."""

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from ssl import SSLContext
from typing import Any

import yaml

from manyhands.averaging.child_stats import Forgotten, ParentStats
from manyhands.averaging.listening import ListenConfig
from manyhands.averaging.protocol import DEFAULT_ALGO, AveragingConfig
from manyhands.averaging.recorder import ParentRecorder, ParentSetup
from manyhands.config.plain_yaml import read_yaml
from manyhands.config.resolve import environment, resolve
from manyhands.config.settings import Config
from manyhands.core.decoding import decode
from manyhands.core.errors import ManyhandsError, RunError, UsageError, WireError
from manyhands.core.texts import one_line
from manyhands.runs import checkpoint, store
from manyhands.runs.launch import Settings
from manyhands.runs.loggers.choose import Log, remember, remembered
from manyhands.runs.plan import Plan, check_network, plan
from manyhands.runs.store import Run
from manyhands.runs.view import is_watched
from manyhands.system.signals import stop_signals, uninterrupted


def serve(
    env: str | None = None,
    algo: str | None = None,
    *,
    alpha: float | None = None,
    beta: float | None = None,
    exchanges: int | None = None,
    every: int | None = None,
    format: str | None = None,
    max_step: float | str | None = None,
    hogwild: bool | None = None,
    checkpoint_every: int | None = None,
    listen: str | None = None,
    token_file: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    silence: float | None = None,
    seed: int | None = None,
    name: str | None = None,
    directory: str | Path | None = None,
    resume: str | Path | Run | None = None,
    config: str | Path | None = None,
    recipes: str | Path | None = None,
    settings: Settings | None = None,
    log: Log = None,
    quiet: bool | None = None,
) -> Run:
    """Be a parent until its exchanges are made, and return its run; `manyhands.parent` has the arguments."""
    averaging: dict[str, Any] = {
        "alpha": alpha,
        "beta": beta,
        "exchanges": exchanges,
        "every": every,
        "format": format,
    }
    averaging |= {"max_step": max_step, "hogwild": hogwild, "checkpoint_every": checkpoint_every}
    given = {name: value for name, value in averaging.items() if value is not None}
    if max_step == "auto":
        given["max_step"] = None
    files = {"token_file": token_file, "tls_cert": tls_cert, "tls_key": tls_key}
    place = {"listen": listen, "silence": silence, **files}
    if resume is not None:
        own = {"env": env, "algo": algo, "seed": seed, "name": name, "dir": directory, "config": config}
        own |= {"recipes": recipes}
        resumed = _find(resume, {**own, "--set": settings or None})
    else:
        resumed = None
    listening = ListenConfig.of(place, resumed)
    token, tls = listening.token(), listening.tls()  # where one cannot be read, no run is made
    quiet = not is_watched() if quiet is None else quiet
    with ExitStack() as held:
        if resumed is None:
            made = _settings(env, algo, seed, config, settings or {}, recipes)
            path = store.choose_path(name, None if directory is None else Path(directory))
            setup = _new(made, path, given, held)
        else:
            setup = _resumed(resumed, given, held)
        return _serve(setup, listening, token, tls, resumed is not None, log, quiet, held)


def _serve(
    setup: ParentSetup,
    listening: ListenConfig,
    token: str,
    tls: SSLContext | None,
    resumed: bool,
    log: Log,
    quiet: bool,
    held: ExitStack,
) -> Run:
    from manyhands.averaging.parent import Parent

    log = remembered(setup.run) if log is None and resumed else log
    recorder = ParentRecorder(setup, quiet, log)
    held.callback(recorder.loggers.close, "failed")  # where nobody has closed them by then
    served = Parent(
        setup.averaging,
        setup.plan.config,
        setup.plan.spec,
        setup.first,
        token,
        listening.silence,
        recorder.said,
        recorder.exchanged,
        recorder.turned,
        recorder.room,
        setup.stats,
    )

    def ready() -> None:
        """Write the run's first files: not before it listens, so that a port that is taken spoils no run."""
        listening.keep(setup.run, int(served.address.rpartition(":")[2]))
        text = yaml.safe_dump(asdict(setup.averaging), sort_keys=False)
        checkpoint.write_atomically(setup.run.path / store.AVERAGING, text.encode())
        recorder.loggers.start(setup.run, setup.stats.steps if resumed else None)
        remember(setup.run, log)
        recorder.begin(resumed)
        recorder.save(recorder.snapshot(served), "running", kept=not resumed)
        recorder.listening(served.address, listening.needed())

    try:
        with stop_signals(served.stop, served.interrupt), recorder:
            status = "failed"
            try:
                _run_to_end(served.run(*listening.address, tls, ready))
                status = "finished" if served.over else "stopped"
            except (KeyboardInterrupt, asyncio.CancelledError):
                status = "stopped"
                raise KeyboardInterrupt from None
            finally:
                if served.address:
                    with uninterrupted():
                        recorder.finish(served, status)
    except RunError:
        if not served.address and not resumed:
            setup.run.discard()  # it never listened
        raise
    recorder.loggers.close(status)
    recorder.report(served)
    return setup.run


def _run_to_end(serving: Coroutine[Any, Any, None]) -> None:
    """Run it in a loop of its own: in a notebook, whose loop runs already, in a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(serving)
        return
    with ThreadPoolExecutor(1, "parent") as thread:
        thread.submit(asyncio.run, serving).result()


def _settings(
    env: str | None,
    algo: str | None,
    seed: int | None,
    config: str | Path | None,
    settings: Settings,
    recipes: str | Path | None,
) -> Config:
    file, folder = (None if path is None else Path(path) for path in (config, recipes))
    env = env or environment(file)
    if env is None:
        raise UsageError("which environment? For example: manyhands parent LunarLander-v3")
    named: Mapping[str, Any] = {} if seed is None else {"run": {"seed": seed}}
    return resolve(env, algo, file, (settings, named), DEFAULT_ALGO, folder)


def _new(config: Config, path: Path | None, given: dict[str, Any], held: ExitStack) -> ParentSetup:
    averaging = AveragingConfig(**given)
    planned = _planned(config)
    first = planned.first_weights()  # before there is a directory, which nobody would want if that fails
    run = store.create(path, planned.config)
    held.enter_context(run.lock())
    return ParentSetup(run, planned, averaging, first, ParentStats({}, Forgotten()))


def _planned(config: Config) -> Plan:
    """Plan what a parent holds: the network alone, without the batches and memories of its children."""
    planned = plan(config, learns_here=False)
    check_network(planned.spec)
    return planned


def _find(resume: str | Path | Run, own: Mapping[str, Any]) -> Run:
    """Return the parent's run to go on with; none of `own`, settings of its own, may be given again."""
    refused = [name for name, value in own.items() if value is not None]
    if refused:
        raise UsageError(f"--resume goes on with the run's own settings, not {', '.join(refused)}")
    run = resume if isinstance(resume, Run) else store.find(resume)
    if not (run.path / store.AVERAGING).exists():
        raise UsageError(f"{run.path} is no parent's run; manyhands train --resume {run.path}")
    return run


def _resumed(run: Run, given: dict[str, Any], held: ExitStack) -> ParentSetup:
    kept = run.path / store.AVERAGING
    try:
        averaging = decode(AveragingConfig, read_yaml(kept), "it")
    except ManyhandsError as error:
        raise UsageError(f"{kept} is damaged: {one_line(error)}") from error
    averaging = replace(averaging, **given)
    held.enter_context(run.lock())
    planned, last = _planned(run.config()), run.checkpoint(store.LAST)
    if last.spec.schema != planned.spec.schema:
        raise RunError(f"{run.path} holds another network than its config.yaml describes")
    if last.weights.version >= averaging.exchanges:
        raise UsageError(f"{run.path} has made {last.weights.version} exchanges; give more: --exchanges N")
    try:
        stats = ParentStats.read(last.progress)
    except WireError as error:
        raise RunError(f"{run.checkpoint_path(store.LAST)} is damaged: {one_line(error)}") from error
    return ParentSetup(run, planned, averaging, last.weights, stats)
