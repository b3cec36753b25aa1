"""What each command does, once its arguments are parsed."""

import argparse
import json
import os
import re
import statistics
import sys
import time

from manyhands.config.resolve import environment, parse_override, resolve
from manyhands.config.settings import Config
from manyhands.core.errors import RunError, UsageError, missing_extra
from manyhands.core.texts import figures
from manyhands.runs import store
from manyhands.system.program import program


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
        "show": runs,
        "rm": runs,
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
    from manyhands.runs.training import join
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
    if several and options.start_from is not None:
        raise UsageError("--start-from goes with one executor: each of several has an agent of its own")
    resumed = None if options.resume is None else _resumed(options)
    config = _new_config(options) if resumed is None else _continued(options, resumed)
    train_run(
        config,
        options.name,
        options.dir,
        resume=resumed,
        view=view,
        channel=channel,
        executors=options.executors,
        measures=measure_quality,
        start_from=options.start_from,
    )


def _resumed(options: argparse.Namespace) -> store.Run:
    """The run that is to go on, with its own settings."""
    refused = ("env", "algo", "mode", "barrier", "seed", "name", "dir", "config", "recipes", "start_from")
    given = [name for name in refused if getattr(options, name) is not None] + options.set
    if given:
        raise UsageError(
            f"--resume goes on with the run's own settings; only --steps, --minutes, --until, --workers, "
            f"--channel and --quiet go with it, not {', '.join(given)}"
        )
    found = store.find(options.resume)
    if (found.path / store.AVERAGING).exists():
        raise UsageError(f"{found.path} is a parent's run; manyhands parent --resume {found.path}")
    return found


def _continued(options: argparse.Namespace, run: store.Run) -> Config:
    from manyhands.runs.training import continue_config

    config = continue_config(run, options.steps, options.until, options.workers, options.minutes)
    if options.executors != 1 and config.run.mode != "async":
        raise UsageError(f"{run.path} is {config.run.mode}; only async runs have several executors")
    return config


def _new_config(options: argparse.Namespace) -> Config:
    env = options.env or environment(options.config)
    if env is None:
        raise UsageError("which environment? For example: manyhands train LunarLander-v3")
    mode = options.mode
    if options.executors != 1:
        if mode not in (None, "async"):
            raise UsageError(f"several executors share the data as it comes, so --mode is async, not {mode}")
        mode = "async"
    if options.barrier is not None:
        if mode is not None:
            raise UsageError("--barrier on is --mode sync, and off is async; give one of them")
        mode = "sync" if options.barrier == "on" else "async"
    names = ("workers", "steps", "minutes", "until", "seed", "cpus_per_worker")
    given = {"mode": mode, **{name: getattr(options, name) for name in names}}
    named = {name: value for name, value in given.items() if value is not None}
    overrides = (*(parse_override(text) for text in options.set), {"run": named})
    config = resolve(env, options.algo, options.config, overrides, recipes=options.recipes)
    if options.barrier is not None and not config.algorithm.uses_cores:
        raise UsageError(f"--barrier is for cores that learn together (a3c, adqn), not {config.run.algo}")
    return config


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
    from manyhands.cli import runs as commands

    {"runs": commands.list_runs, "show": commands.show, "rm": commands.remove}[options.command](options)


def sweep(options: argparse.Namespace) -> None:
    from manyhands.cli.sweep import main as sweep_averaging
    from manyhands.system.signals import interruptible

    with interruptible():
        sweep_averaging(options.rest)
