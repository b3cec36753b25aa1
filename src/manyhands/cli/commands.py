"""What each command does, once its arguments are parsed."""

import argparse
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from manyhands.config.resolve import environment, parse_override, read_yaml, resolve
from manyhands.core.errors import ManyhandsError, RunError, UsageError, missing_extra
from manyhands.core.texts import figures, one_line
from manyhands.runs import store
from manyhands.system.program import program

WIDE = 200
"""Columns of a table that does not go to a terminal."""


def run(options: argparse.Namespace) -> None:
    commands = {
        "train": train,
        "settings": settings,
        "recipe": recipe,
        "eval": evaluate,
        "play": play,
        "worker": worker,
        "broker": broker,
        "parent": averaging,
        "child": averaging,
        "runs": runs,
        "show": show,
        "sweep": sweep,
    }
    commands[options.command](options)


def settings(options: argparse.Namespace) -> None:
    from manyhands.cli.settings import show_settings

    show_settings(options)


def recipe(options: argparse.Namespace) -> None:
    from manyhands.cli.settings import print_recipe

    print_recipe(options)


def train(options: argparse.Namespace) -> None:
    from manyhands.lto.judge import measure_quality
    from manyhands.runs.open_channel import CHANNEL_VARIABLE
    from manyhands.runs.training import continue_config, join
    from manyhands.runs.training import train as train_run
    from manyhands.runs.view import View

    view = View(quiet=options.quiet)
    channel = options.channel or os.environ.get(CHANNEL_VARIABLE) or None
    several = options.executors != 1
    if several and (options.executors < 1 or channel is None or not channel.startswith("amqp")):
        raise UsageError("--executors takes 1 or more, and more than 1 only with --channel amqp://...")
    if options.join is not None:
        if channel is None:
            raise UsageError("--join needs the broker's address: --channel amqp://user:password@host:5672/")
        run_name = _name_at_broker(options.join)
        join(run_name, channel, options.name, options.dir, view, options.allow)
        return
    if options.allow:
        raise UsageError("--allow goes with --join, where others name the environment")
    if options.resume is not None:
        refused = ("env", "algo", "mode", "barrier", "seed", "name", "dir", "config")
        given = [name for name in refused if getattr(options, name) is not None] + options.set
        if given:
            raise UsageError(
                f"--resume goes on with the run's own settings; only --steps, --until, --workers, --channel "
                f"and --quiet go with it, not {', '.join(given)}"
            )
        found = store.find(options.resume)
        if (found.path / store.AVERAGING).exists():
            raise UsageError(f"{found.path} is a parent's run; manyhands parent --resume {found.path}")
        config = continue_config(found, options.steps, options.until, options.workers)
        if several and config.run.mode != "async":
            raise UsageError(f"{found.path} is {config.run.mode}; only async runs have several executors")
        train_run(
            config,
            resume=found,
            view=view,
            channel=channel,
            executors=options.executors,
            measures=measure_quality,
        )
        return
    env = options.env or environment(options.config)
    if env is None:
        raise UsageError("which environment? For example: manyhands train LunarLander-v3")
    if several:
        if options.mode not in (None, "async"):
            raise UsageError(
                f"several executors share the data as it comes, so --mode is async, not {options.mode}"
            )
        options.mode = "async"
    if options.barrier is not None:
        if options.mode is not None:
            raise UsageError("--barrier on is --mode sync, and off is async; give one of them")
        options.mode = "sync" if options.barrier == "on" else "async"
    names = ("workers", "mode", "steps", "until", "seed", "cpus_per_worker")
    named = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    overrides = (*(parse_override(text) for text in options.set), {"run": named})
    config = resolve(env, options.algo, options.config, overrides, recipes=options.recipes)
    if options.barrier is not None and not config.algorithm.uses_cores:
        raise UsageError(f"--barrier is for cores that learn together (a3c, adqn), not {config.run.algo}")
    train_run(config, options.name, options.dir, view=view, channel=channel, executors=options.executors)


def _name_at_broker(text: str) -> str:
    """A run of this machine by name or path, or a name as its executor shows it."""
    from manyhands.runs.open_channel import broker_name

    try:
        return broker_name(store.find(text).path)
    except UsageError:
        return text


def evaluate(options: argparse.Namespace) -> None:
    from manyhands.runs.agent import JUDGED_SEED, judge

    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be 1 or more")
    found = store.find(options.run)
    seed = JUDGED_SEED if options.seed is None else options.seed
    result, solved_at = judge(found, options.episodes, seed, options.sample, options.which)
    summary = result.summary(solved_at)
    if options.json:
        print(json.dumps(summary))
        return
    goal = (
        ""
        if solved_at is None
        else f" (goal {solved_at:g}: {'reached' if summary['solved'] else 'not reached'})"
    )
    print(
        f"{found.name}: {result.episodes} episodes, mean {figures(result.mean)}, sd {figures(result.sd)}, "
        f"min {figures(min(result.returns))}, median {figures(statistics.median(result.returns))}, "
        f"max {figures(max(result.returns))}{goal}"
    )


def play(options: argparse.Namespace) -> None:
    from manyhands.runs.video import record

    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be 1 or more")
    returns = record(store.find(options.run), options.out, options.episodes, options.seed, options.which)
    scores = ", ".join(f"{score:.1f}" for score in returns)
    print(f"Wrote {options.out}; score {scores}")


def worker(options: argparse.Namespace) -> None:
    try:
        from manyhands.channels.amqp.connection import Address
        from manyhands.roles.daemon import Daemon, default_name
    except ModuleNotFoundError as error:
        raise missing_extra("a worker", error, "amqp") from error
    from manyhands.channels.limits import OwnLimits, default_memory
    from manyhands.runs.open_channel import CHANNEL_VARIABLE
    from manyhands.system.machine import usable_cores

    url = options.url or os.environ.get(CHANNEL_VARIABLE)
    if not url:
        raise UsageError("which broker? For example: manyhands worker amqp://user:password@host:5672/")
    if options.procs is not None and options.procs < 1:
        raise UsageError(f"--procs is {options.procs}; it must be 1 or more")
    name = options.name or default_name()
    if not re.fullmatch(r"[\w.-]{1,100}", name):
        raise UsageError(f"--name {name!r} must be letters, digits, dots, dashes and underscores")
    procs = usable_cores() if options.procs is None else options.procs
    memory = default_memory(procs) if options.max_memory is None else options.max_memory
    limits = OwnLimits(memory, options.max_lanes, options.max_message)
    daemon = Daemon(url, procs, name, options.once, options.allow, limits)
    daemon.check()
    print(f"{name}: {procs} processes wait for runs at {Address.parse(url)}", flush=True)
    code = daemon.run()
    if code:
        sys.exit(code)


def broker(options: argparse.Namespace) -> None:
    from manyhands.roles.broker import Broker
    from manyhands.system.secret_files import read_secret
    from manyhands.system.signals import stop_signals

    file = options.password_file
    password = read_secret(file, "--password-file") if file is not None else ""
    node = Broker(
        options.listen, options.port, options.dir, options.tls_cert, options.tls_key, password=password
    )
    stopped: list[bool] = []  # not an Event: setting one in a signal handler can lock up its waiter
    with stop_signals(lambda: stopped.append(True)), node:
        print(f"RabbitMQ listens; its address is\n  {node.url}", flush=True)
        print(
            f"Try: {program()} worker {node.url}\nand: {program()} train CartPole-v1 --channel {node.url}",
            flush=True,
        )
        while not stopped:
            time.sleep(0.2)
            if node.process is None or node.process.poll() is not None:
                raise RunError("RabbitMQ has ended by itself")


def averaging(options: argparse.Namespace) -> None:
    from manyhands.cli import averaging as commands
    from manyhands.system.signals import interruptible

    with interruptible():
        (commands.parent if options.command == "parent" else commands.child)(options)


def runs(options: argparse.Namespace) -> None:
    found = store.all_runs()
    if not found:
        print("No runs under runs/ yet. Make one: manyhands train LunarLander-v3")
        return
    table = Table(box=None)
    for heading in ("run", "environment", "algo", "seed", "status", "steps", "time", "best test"):
        table.add_column(heading, justify="right" if heading in ("steps", "time", "best test") else "left")
    for item in found:
        try:
            row = _run_row(item)
        except ManyhandsError as error:
            row = (item.name, "", "", "", "damaged", "", "", "")
            print(f"manyhands: {one_line(error)}", file=sys.stderr)
        table.add_row(*(Text(one_line(cell)) for cell in row))  # files may hold markup, or a terminal's codes
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE  # names are for other programs to read, so they are not shortened
    console.print(table)


def _run_row(item: store.Run) -> tuple[str, ...]:
    config, status = item.config(), item.status()
    best = status.get("best_mean", status.get("last_mean"))  # a parent judges its last agent alone
    return (
        item.name,
        config.env.id,
        config.run.algo,
        str(config.run.seed),
        _state(item, status),
        f"{status.get('steps', 0):,}",
        f"{status.get('seconds', 0.0):.1f} s",
        "-" if best is None else f"{best:.1f}",
    )


def _state(run: store.Run, status: dict[str, Any]) -> str:
    state = str(status.get("status", "no checkpoint"))
    return "interrupted" if state == "running" and not run.in_use() else state


def show(options: argparse.Namespace) -> None:
    from manyhands.runs.agent import goal
    from manyhands.runs.plots import learning_curve

    found = store.find(options.run)
    status = found.status()
    shown: dict[str, Any] = found.config().to_plain()
    if (found.path / store.AVERAGING).exists():
        shown["averaging"] = read_yaml(found.path / store.AVERAGING)
    print(yaml.safe_dump({**shown, "result": status}, sort_keys=False), end="")
    if not found.metrics():
        print("No metrics yet, so no learning curve.")
        return
    out: Path = options.out or found.path / "plots" / "learning_curve.png"
    out.parent.mkdir(parents=True, exist_ok=True)
    learning_curve(found, out, goal(found))
    print(f"learning curve: {out}")


def sweep(options: argparse.Namespace) -> None:
    from manyhands.cli.sweep import main as sweep_averaging
    from manyhands.system.signals import interruptible

    with interruptible():
        sweep_averaging(options.rest)
