"""Trains a tuning law: from the user's arguments to a run with the settings for it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.config.resolve import merge, resolve
from manyhands.config.settings import Config
from manyhands.core.errors import UsageError
from manyhands.envs.lto import ENV_ID, STRATEGIES, Problem, function_of
from manyhands.lto.judge import measure_quality
from manyhands.lto.law import problem_of
from manyhands.lto.view import LawView
from manyhands.runs import store
from manyhands.runs.launch import GivenCallbacks, Settings, continue_config, find_callbacks, usual_channel
from manyhands.runs.loggers.choose import Log
from manyhands.runs.store import Run
from manyhands.runs.training import train

GROUPS = 8
"""Groups of episodes, at most, where no more drivers than that are asked for."""
STEPS, EPISODES = 5000, 30
"""Steps of a training, and episodes in each, unless others are asked for."""
ALGOS = ("ppo", "reinforce")

Function = str | Callable[..., Any]
Bounds = tuple[float, float] | Sequence[tuple[float, float]]


def learn(
    function: Function | Sequence[Function] | None = None,
    *,
    x: int = 1,
    c: int = 1,
    bounds: Bounds = (),
    starts: str | Sequence[str] = "random",
    variants: int = 1,
    jitter: float = 0.0,
    horizon: int = 2,
    intervals: int = 20,
    candidates: int = 8,
    algo: str = "ppo",
    steps: int | None = None,
    episodes: int = EPISODES,
    groups: int | None = None,
    drivers: int | None = None,
    mode: str = "sync",
    seed: int = 0,
    settings: Settings | None = None,
    channel: str | None = None,
    name: str | None = None,
    directory: str | Path | None = None,
    callbacks: GivenCallbacks = (),
    log: Log = None,
    quiet: bool | None = None,
) -> Run:
    """Train a law, and return its run; `manyhands.learn_to_optimise` says what the arguments are."""
    problem = Problem(
        functions=_names(function),
        x=x,
        c=c,
        bounds=_pairs(bounds),
        horizon=horizon,
        starts=_strategies(starts),
        variants=variants,
        jitter=jitter,
        intervals=intervals,
        candidates=candidates,
    )
    channel, called = usual_channel(channel), find_callbacks(callbacks)
    if channel is None:  # workers elsewhere may have modules that this machine has not
        for imported in problem.imports:
            function_of(imported)
    run = {"mode": mode, "seed": seed, "workers": _workers(drivers)}
    config = configure(
        problem, algo, STEPS if steps is None else steps, episodes, groups, run, settings or {}
    )
    path = None if directory is None else Path(directory)
    told: dict[str, Any] = {"view": LawView(quiet), "callbacks": called, "log": log}
    return train(config, name, path, channel=channel, measures=measure_quality, **told)


def learn_on(
    resume: str | Path | Run,
    *,
    steps: int | None = None,
    drivers: int | None = None,
    channel: str | None = None,
    callbacks: GivenCallbacks = (),
    log: Log = None,
    quiet: bool | None = None,
) -> Run:
    """Go on with a law's training, up to so many training steps."""
    found = resume if isinstance(resume, Run) else store.find(resume)
    problem_of(found)
    batch, made = found.config().collect.batch, found.status().get("version", 0)
    wanted = found.config().run.steps // batch if steps is None else steps
    if wanted <= made:
        raise UsageError(f"{found.path} has made {made:,} training steps; give more: --steps N")
    return train(
        continue_config(found, wanted * batch, None, drivers),
        resume=found,
        view=LawView(quiet),
        channel=usual_channel(channel),
        measures=measure_quality,
        callbacks=find_callbacks(callbacks),
        log=log,
    )


def configure(
    problem: Problem,
    algo: str,
    steps: int,
    episodes: int,
    groups: int | None,
    run: Mapping[str, Any],
    settings: Settings,
) -> Config:
    """Return the settings of a run whose every update learns from `episodes`, in equal groups."""
    if algo not in ALGOS:
        raise UsageError(f"a law is learned by {' or '.join(ALGOS)}, not by {algo}")
    for what, value in (("--steps", steps), ("--episodes", episodes)):
        if value < 1:
            raise UsageError(f"{what} is {value}; it must be 1 or more")
    drivers = run["workers"]
    if drivers > episodes:
        raise UsageError(f"{drivers} drivers are more than {episodes} episodes; give --episodes {drivers}")
    wanted = max(drivers, 1, len(problem.starts), problem.members)
    even = problem.members * len(problem.starts)
    groups = groups_for(episodes, wanted, even) if groups is None else groups
    if groups < 1 or episodes % groups or groups < wanted:
        raise UsageError(
            f"{episodes} episodes cannot be {groups} equal groups for {wanted} drivers, starts or functions"
        )
    all_steps = steps * episodes * problem.horizon
    plain: dict[str, Any] = {
        "env": {"kwargs": problem.to_plain()},
        "collect": {"shards": groups, "lanes": episodes // groups, "steps": problem.horizon},
        "run": {"steps": all_steps, "until": "steps", "test_every": all_steps, **run},
    }
    config = resolve(ENV_ID, algo, None, (merge(plain, settings),))
    if config.net.squash or config.collect.steps != problem.horizon:
        raise UsageError("a law's net.squash stays false and its collect.steps is --horizon")
    return config


def groups_for(episodes: int, wanted: int, even: int) -> int:
    """Return the largest divisor up to GROUPS, which does not depend on the drivers; more if they are more.

    A multiple of `even` if there is one, so that every function and start has the same share.
    """
    every = [number for number in range(1, episodes + 1) if episodes % number == 0]
    divisors = [number for number in every if number % even == 0] or every
    fitting = [number for number in divisors if number >= wanted] or [episodes]
    usual = [number for number in fitting if number <= GROUPS]
    return max(usual) if usual else min(fitting)


def _names(function: Function | Sequence[Function] | None) -> tuple[str, ...]:
    """Return names by which every worker knows a function: a known one's, or module:function."""
    if function is None:
        raise UsageError("which function? For example: manyhands lto ackley (or --functions ackley,sphere)")
    several = (function,) if isinstance(function, str) or callable(function) else function
    return tuple(each if isinstance(each, str) else _name(each) for each in several)


def _name(function: Callable[..., Any]) -> str:
    module, name = function.__module__, getattr(function, "__qualname__", "")
    if module == "__main__" or not name.isidentifier():
        raise UsageError(
            f"{module}:{name} cannot be imported by workers; write the function into a module of its own"
        )
    return f"{module}:{name}"


def _strategies(starts: str | Sequence[str]) -> tuple[str, ...]:
    if starts == "heterogeneous":
        return STRATEGIES
    return (starts,) if isinstance(starts, str) else tuple(starts)


def _pairs(bounds: Bounds) -> tuple[tuple[float, float], ...]:
    """Return one pair, or one for each variable."""
    try:
        pairs = np.asarray(bounds, np.float64)
    except (TypeError, ValueError):
        pairs = np.zeros(1)
    if not pairs.size:
        return ()
    if pairs.shape[-1] != 2 or pairs.ndim > 2:
        raise UsageError(f"bounds are (low, high), or a list of such pairs, not {bounds!r:.100}")
    return tuple((float(low), float(high)) for low, high in pairs.reshape(-1, 2))


def _workers(drivers: int | None) -> int:
    if drivers is not None and drivers < 0:
        raise UsageError(f"--drivers is {drivers}; it must be 0 (in this process) or more")
    return -1 if drivers is None else drivers
