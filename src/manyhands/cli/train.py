"""`manyhands train`: from options to the call of the library."""

import argparse
from typing import Any

from manyhands.cli.options import (
    add_algo,
    add_allow,
    add_debug,
    add_quiet,
    add_run,
    add_run_settings,
    add_told,
)
from manyhands.config.resolve import merge, parse_override
from manyhands.core.errors import UsageError


def add_train(train: Any) -> None:
    train.description = (
        "Train an agent on a Gymnasium environment. Settings come from a tuned recipe where there is one for "
        "the environment, else from general ones; `manyhands settings ENV` prints them all."
    )
    train.add_argument("env", nargs="?", metavar="ENV", help="a Gymnasium id, or module:callable")
    add_algo(train)
    add_run_settings(train)
    train.add_argument(
        "--channel",
        metavar="URL",
        help="who plays: a broker's workers, amqp://user:password@host:5672/; a Ray cluster, ray (started "
        "here), ray:auto or ray://host:10001 (default: $MANYHANDS_CHANNEL, else processes here)",
    )
    train.add_argument(
        "--executors", type=int, default=1, help="learners that share a broker's data, of --steps each"
    )
    train.add_argument("--join", metavar="RUN", help="be one more executor of a run at the broker")
    add_allow(train)
    train.add_argument(
        "--start-from",
        metavar="RUN[:CHECKPOINT]",
        help="begin with the agent of another run, by name or path, whose network is the same: its best "
        "tested one, or such as last; settings are the new run's own, and its optimizer starts afresh",
    )
    add_run(train)
    add_told(train)
    add_quiet(train)
    add_debug(train)


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


COMMANDS = {
    "train": (add_train, train),
}
"""Commands by name: what adds its options, and what it does."""
