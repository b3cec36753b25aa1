"""The commands: what each does, once its arguments are parsed."""

import argparse
import json
import os
import re
import sys
import time

from manyhands.config.resolve import merge, parse_override
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
        "events": runs,
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
    from manyhands.runs.launch import launch, launch_joining

    told = {"callbacks": options.callback, "log": options.log, "quiet": options.quiet}
    place = {"name": options.name, "directory": options.dir}
    if options.join is not None:
        launch_joining(options.join, options.channel, allow=options.allow, **place, **told)
        return
    if options.allow:
        raise UsageError("--allow goes with --join, where others name the environment")
    if options.resume is not None and options.env is not None:
        raise UsageError(f"--resume goes on with the run's own environment, not with {options.env}")
    launch(
        options.env,
        options.algo,
        workers=options.workers,
        mode=options.mode,
        barrier=None if options.barrier is None else options.barrier == "on",
        steps=options.steps,
        minutes=options.minutes,
        until=options.until,
        seed=options.seed,
        cpus_per_worker=options.cpus_per_worker,
        resume=options.resume,
        config=options.config,
        recipes=options.recipes,
        settings=merge(*map(parse_override, options.set)),
        start_from=options.start_from,
        channel=options.channel,
        executors=options.executors,
        measures=measure_quality,
        **place,
        **told,
    )


def evaluate(options: argparse.Namespace) -> None:
    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be 1 or more")
    found = store.find(options.run)
    scores = found.evaluate(options.episodes, options.seed, options.sample, options.which)
    print(json.dumps(scores.numbers()) if options.json else f"{found.name}: {scores}")


def play(options: argparse.Namespace) -> None:
    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be 1 or more")
    found = store.find(options.run)
    returns = found.video(options.out, options.episodes, options.seed, options.which)
    scores = ", ".join(map(figures, returns))
    print(f"Wrote {options.out}; score {scores}")


def worker(options: argparse.Namespace) -> None:
    try:
        from manyhands.channels.amqp.address import Address
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

    shown = {"runs": commands.list_runs, "show": commands.show, "events": commands.events}
    {**shown, "rm": commands.remove}[options.command](options)


def sweep(options: argparse.Namespace) -> None:
    from manyhands.cli.sweep import main as sweep_averaging
    from manyhands.system.signals import interruptible

    with interruptible():
        sweep_averaging(options.rest)
