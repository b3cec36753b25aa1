"""What each command does, once its arguments are parsed."""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from manyhands.cli import BENCHES
from manyhands.errors import UsageError, near
from manyhands.runs import store
from manyhands.settings import parse_override, resolve

WIDE = 200
"""Columns of a table that does not go to a terminal."""


def run(options: argparse.Namespace) -> None:
    commands = {"train": train, "eval": evaluate, "play": play, "runs": runs, "show": show, "bench": bench}
    commands[options.command](options)


def train(options: argparse.Namespace) -> None:
    from manyhands.runs.view import View
    from manyhands.training import continue_config
    from manyhands.training import train as train_run

    view = View(quiet=options.quiet)
    if options.resume is not None:
        refused = ("env", "algo", "mode", "seed", "name", "dir", "config")
        given = [name for name in refused if getattr(options, name) is not None] + options.set
        if given:
            raise UsageError(
                f"--resume goes on with the run's own settings; only --steps, --until, --workers and --quiet "
                f"go with it, not {', '.join(given)}"
            )
        found = store.find(options.resume)
        config = continue_config(found, options.steps, options.until, options.workers)
        train_run(config, resume=found, view=view)
        return
    if options.env is None:
        raise UsageError("which environment? For example: manyhands train LunarLander-v3")
    names = ("workers", "mode", "steps", "until", "seed")
    named = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    overrides = (*(parse_override(text) for text in options.set), {"run": named})
    config = resolve(options.env, options.algo, options.config, overrides)
    train_run(config, options.name, options.dir, view=view)


def evaluate(options: argparse.Namespace) -> None:
    from manyhands.agent import judge

    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be 1 or more")
    found = store.find(options.run)
    result, solved_at = judge(found, options.episodes, options.seed, options.sample, options.which)
    summary = result.summary(solved_at)
    if options.json:
        print(json.dumps(summary))
        return
    goal = (
        ""
        if solved_at is None
        else f" (goal {solved_at:g}: {'solved' if summary['solved'] else 'not solved'})"
    )
    print(
        f"{found.name}: {result.episodes} episodes, mean {result.mean:.1f}, sd {result.sd:.1f}, "
        f"min {summary['min']:.1f}, median {summary['median']:.1f}, max {summary['max']:.1f}{goal}"
    )


def play(options: argparse.Namespace) -> None:
    from manyhands.runs.video import record

    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be 1 or more")
    returns = record(store.find(options.run), options.out, options.episodes, options.seed)
    scores = ", ".join(f"{score:.1f}" for score in returns)
    print(f"Wrote {options.out}; score {scores}")


def runs(options: argparse.Namespace) -> None:
    found = store.all_runs()
    if not found:
        print("No runs under runs/ yet. Make one: manyhands train LunarLander-v3")
        return
    table = Table(box=None)
    for heading in ("run", "environment", "algo", "seed", "status", "steps", "time", "best test"):
        table.add_column(heading, justify="right" if heading in ("steps", "time", "best test") else "left")
    for item in found:
        config, status = item.config(), item.status()
        best = status.get("best_mean")
        table.add_row(
            item.name,
            config.env.id,
            config.run.algo,
            str(config.run.seed),
            _state(item, status),
            f"{status.get('steps', 0):,}",
            f"{status.get('seconds', 0.0):.1f} s",
            "-" if best is None else f"{best:.1f}",
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE  # names are for other programs to read, so they are not shortened
    console.print(table)


def _state(run: store.Run, status: dict[str, Any]) -> str:
    state = str(status.get("status", "no checkpoint"))
    return "interrupted" if state == "running" and not run.in_use() else state


def show(options: argparse.Namespace) -> None:
    from manyhands.agent import goal
    from manyhands.runs.plots import learning_curve

    found = store.find(options.run)
    status = found.status()
    print(yaml.safe_dump(found.config().to_plain(), sort_keys=False), end="")
    print("result:")
    for name, value in status.items():
        print(f"  {name}: {value}")
    if not found.metrics():
        print("No metrics yet, so no learning curve.")
        return
    out: Path = options.out or found.path / "plots" / "learning_curve.png"
    out.parent.mkdir(parents=True, exist_ok=True)
    learning_curve(found, out, goal(found))
    print(f"learning curve: {out}")


def bench(options: argparse.Namespace) -> None:
    if options.bench not in BENCHES:
        raise UsageError(
            f"there is no benchmark {options.bench!r}; there are {', '.join(BENCHES)}"
            f"{near(options.bench, BENCHES)}"
        )
    module: Any = importlib.import_module(f"manyhands.bench.{options.bench}")
    module.main(options.rest)
