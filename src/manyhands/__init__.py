"""manyhands: train deep reinforcement-learning agents on every machine you have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands.averaging.visiting import Visit
    from manyhands.lto.law import Law
    from manyhands.runs.agent import Agent
    from manyhands.runs.callbacks import Callback
    from manyhands.runs.loggers.choose import Log
    from manyhands.runs.store import Run

__version__ = "0.4.0"
__all__ = ["__version__", "child", "find", "join", "law", "learn_to_optimise", "load", "parent", "train"]


def train(
    env: str | Callable[..., Any] | None = None,
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
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    start_from: str | Path | None = None,
    channel: str | None = None,
    executors: int = 1,
    callbacks: str | Callback | Sequence[str | Callback] = (),
    log: Log = None,
    quiet: bool | None = None,
) -> Run:
    """Train an agent and return its run; the arguments are those of `manyhands train`.

    `env` is a Gymnasium id, `module:callable`, or a callable that returns an environment. `settings` are
    overrides by section, such as {"algo": {"learning_rate": 3e-4}}. `algo` may be a class derived from
    `manyhands.algos.Algorithm`; a run of one that cannot be imported is resumed with it given again.
    `start_from` is a run, or RUN:CHECKPOINT, whose agent a new run begins with. `channel` is a broker or a
    Ray cluster (default: $MANYHANDS_CHANNEL, else processes here).

    `callbacks` are called with a `RunEvent` of the kind start, update, test, fault, checkpoint or end; they
    may `event.stop()` the run and `event.log(name=number)`. One that raises ends the run, which is saved and
    marked failed, with a RunError. `log` is where the numbers go beside the run's directory: "tensorboard"
    (the default where it is installed), "csv", "wandb:PROJECT", "mlflow:EXPERIMENT", `module:Name` or an
    object of your own, several of these in a list, or "none"; a resume logs where the run did. Progress is
    shown in a terminal and in a notebook; elsewhere how a run begins and ends, on stderr. `quiet` may be
    False (progress anywhere) or True (nothing but faults). `recipes` is a directory of recipes of your own.
    """
    from manyhands.lto.judge import measure_quality
    from manyhands.runs.launch import launch

    return launch(
        env,
        algo,
        workers=workers,
        mode=mode,
        barrier=barrier,
        steps=steps,
        minutes=minutes,
        until=until,
        seed=seed,
        cpus_per_worker=cpus_per_worker,
        name=name,
        directory=directory,
        resume=resume,
        config=config,
        recipes=recipes,
        settings=settings,
        start_from=start_from,
        channel=channel,
        executors=executors,
        callbacks=callbacks,
        log=log,
        quiet=quiet,
        measures=measure_quality,
    )


def join(
    run: str | Path,
    channel: str | None = None,
    *,
    name: str | None = None,
    directory: str | Path | None = None,
    allow: Sequence[str] = (),
    callbacks: str | Callback | Sequence[str | Callback] = (),
    log: Log = None,
    quiet: bool | None = None,
) -> Run:
    """Be one more executor of a run at a broker, as `manyhands train --join` is, and return its own run.

    `allow` names the environments and algorithms, as module:name, whose code may be imported for it.
    """
    from manyhands.runs.launch import launch_joining

    return launch_joining(
        run,
        channel,
        name=name,
        directory=directory,
        allow=allow,
        callbacks=callbacks,
        log=log,
        quiet=quiet,
    )


def parent(
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
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    log: Log = None,
    quiet: bool | None = None,
) -> Run:
    """Average the weights of children on other machines until `exchanges` are made, and return the run.

    The arguments are those of `manyhands parent`, whose help says what they do and what they are by default;
    `max_step` takes a length or "auto". `settings`, `log` and `quiet` are as in `train`.
    """
    from manyhands.averaging.serving import serve

    return serve(
        env,
        algo,
        alpha=alpha,
        beta=beta,
        exchanges=exchanges,
        every=every,
        format=format,
        max_step=max_step,
        hogwild=hogwild,
        checkpoint_every=checkpoint_every,
        listen=listen,
        token_file=token_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
        silence=silence,
        seed=seed,
        name=name,
        directory=directory,
        resume=resume,
        config=config,
        recipes=recipes,
        settings=settings,
        log=log,
        quiet=quiet,
    )


def child(
    url: str,
    *,
    name: str | None = None,
    cores: int | None = None,
    token_file: str | Path | None = None,
    tls_ca: str | Path | None = None,
    patience: float = 3600.0,
    wait: float = 0.0,
    max_memory: int | None = None,
    max_envs: int = 1024,
    max_message: int = 64,
    allow: Sequence[str] = (),
    quiet: bool | None = None,
) -> Visit:
    """Train on this machine for the parent at `url`, and return the counts of what was done for it.

    The arguments are those of `manyhands child`, whose help says what they do and what they are by default.
    """
    from manyhands.averaging.visiting import visit

    return visit(
        url,
        name=name,
        cores=cores,
        token_file=token_file,
        tls_ca=tls_ca,
        patience=patience,
        wait=wait,
        max_memory=max_memory,
        max_envs=max_envs,
        max_message=max_message,
        allow=allow,
        quiet=quiet,
    )


def learn_to_optimise(
    function: str | Callable[..., Any] | Sequence[str | Callable[..., Any]],
    *,
    x: int = 1,
    c: int = 1,
    bounds: tuple[float, float] | Sequence[tuple[float, float]] = (),
    starts: str | Sequence[str] = "random",
    variants: int = 1,
    jitter: float = 0.0,
    horizon: int = 2,
    intervals: int = 20,
    candidates: int = 8,
    algo: str = "ppo",
    steps: int = 5000,
    episodes: int = 30,
    groups: int | None = None,
    drivers: int | None = None,
    mode: str = "sync",
    seed: int = 0,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    channel: str | None = None,
    name: str | None = None,
    directory: str | Path | None = None,
    callbacks: str | Callback | Sequence[str | Callback] = (),
    log: Log = None,
    quiet: bool | None = None,
) -> Run:
    """Learn which x make a function smallest, given conditions c; return the run, whose law `law` takes up.

    `function` is a known one (such as ackley), `module:function`, or a function that workers can import, or
    several of these; it takes an array of x and c. The rest is as in `manyhands lto --help`; `bounds` is
    (low, high), or such a pair for each variable, and `starts` one name or a list.
    """
    from manyhands.lto.training import learn

    return learn(
        function,
        x=x,
        c=c,
        bounds=bounds,
        starts=starts,
        variants=variants,
        jitter=jitter,
        horizon=horizon,
        intervals=intervals,
        candidates=candidates,
        algo=algo,
        steps=steps,
        episodes=episodes,
        groups=groups,
        drivers=drivers,
        mode=mode,
        seed=seed,
        settings=settings,
        channel=channel,
        name=name,
        directory=directory,
        callbacks=callbacks,
        log=log,
        quiet=quiet,
    )


def law(run: str | Path | Run) -> Law:
    """Return what a run of `learn_to_optimise` has learned: `law(run).predict(conditions)` gives x and f."""
    from manyhands.lto.law import Law
    from manyhands.runs import store

    return Law.load(store.find(run.path if isinstance(run, store.Run) else run))


def find(run: str | Path, env: Callable[..., Any] | None = None) -> Run:
    """Return a run by name or path. `env` is the callable that it was trained on, where it was one."""
    from dataclasses import replace

    from manyhands.lto.judge import measure_quality
    from manyhands.runs import store

    return replace(store.find(run), make_env=env, measures=measure_quality)


def load(run: str | Path, which: str | None = None, env: Callable[..., Any] | None = None) -> Agent:
    """Return the agent of a run, by name or path, ready to `act`. `env` as in `find`."""
    return find(run, env).agent(which)
