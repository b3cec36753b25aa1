"""manyhands: train deep reinforcement-learning agents on every machine you have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands.runs.agent import Agent
    from manyhands.runs.store import Run

__version__ = "0.4.0"
__all__ = ["__version__", "load", "train"]


def train(
    env: str | Callable[..., Any],
    algo: str | type[Any] | None = None,
    *,
    workers: int | None = None,
    mode: str | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    until: str | None = None,
    seed: int | None = None,
    name: str | None = None,
    directory: str | Path | None = None,
    resume: str | Path | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    start_from: str | Path | None = None,
    quiet: bool = True,
) -> Run:
    """Trains an agent and returns its run; the arguments are those of `manyhands train`.

    `env` is a Gymnasium id, `module:callable`, or a callable that returns an environment. `settings` are
    overrides by section, such as {"algo": {"learning_rate": 3e-4}}. `algo` may be a class derived from
    `manyhands.algos.algorithm.Algorithm`; a run of one that cannot be imported is resumed with it given
    again. `start_from` is a run, or RUN:CHECKPOINT, whose agent a new run begins with.
    """
    from manyhands.config import algorithms
    from manyhands.config.resolve import resolve
    from manyhands.lto.judge import measure_quality
    from manyhands.runs import store, training
    from manyhands.runs.view import View

    env_id = env if isinstance(env, str) else f"{env.__module__}:{getattr(env, '__qualname__', 'callable')}"
    callable_env = None if isinstance(env, str) else env
    view = View(quiet)
    if algo is not None and not isinstance(algo, str):
        algo = algorithms.register(algo)
    if resume is not None:
        found = store.find(resume)
        continued = training.continue_config(found, steps, until, workers, minutes)
        return training.train(
            continued, resume=found, callable_env=callable_env, view=view, measures=measure_quality
        )
    given = {
        "workers": workers,
        "mode": mode,
        "steps": steps,
        "until": until,
        "seed": seed,
        "minutes": minutes,
    }
    named = {key: value for key, value in given.items() if value is not None}
    file = Path(config) if config is not None else None
    resolved = resolve(env_id, algo, file, (settings or {}, {"run": named}))
    path = Path(directory) if directory is not None else None
    return training.train(
        resolved,
        name,
        path,
        callable_env=callable_env,
        view=view,
        measures=measure_quality,
        start_from=None if start_from is None else str(start_from),
    )


def load(run: str | Path, which: str | None = None, env: Callable[..., Any] | None = None) -> Agent:
    """The agent of a run, by name or path, ready to `act`. `env` where it was trained on a callable."""
    from manyhands.runs.agent import load as load_agent
    from manyhands.runs.store import find

    return load_agent(find(run), which, env)
