"""`manyhands parent`, `child` and `sweep averaging`: from options to the calls of the library."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from manyhands.averaging.listening import ListenConfig
from manyhands.averaging.protocol import DEFAULT_ALGO, AveragingConfig
from manyhands.cli.options import (
    add_allow,
    add_debug,
    add_field,
    add_log,
    add_quiet,
    add_run,
    add_setting,
    parse_int,
)
from manyhands.config.resolve import merge, parse_override
from manyhands.system.signals import interruptible


def step_length(text: str) -> float | str:
    """Return a number, or the word auto."""
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor a length") from None


def add_parent(parent: Any) -> None:
    parent.description = (
        "Holds one network, and averages it with what its children send after every update, "
        "which is an episode for a3c: theta <- (1 - alpha) theta + alpha theta_child, and on the child's "
        "side the same with beta. Children come and go as they like. Settings are those of `train`. "
        "Ctrl-C stops and saves; --resume goes on at the same address with the same token, and takes all "
        "options but those of a new run (ENV, --algo, --set, --config, --seed, --name, --dir)."
    )
    parent.add_argument("env", nargs="?", metavar="ENV", help="a Gymnasium id, or module:callable")
    parent.add_argument("--algo", help=f"what children learn with, as in train (default: {DEFAULT_ALGO})")
    add_field(parent, "--alpha", AveragingConfig, type=float)
    add_field(parent, "--beta", AveragingConfig, type=float)
    add_field(parent, "--exchanges", AveragingConfig, type=parse_int)
    add_field(parent, "--every", AveragingConfig, type=parse_int)
    add_field(parent, "--format", AveragingConfig)
    parent.add_argument(
        "--max-step",
        type=step_length,
        metavar="auto|LENGTH",
        help="how far one exchange may move it (default: auto, which refuses weights that are absurdly far "
        "away); a LENGTH shortens every longer step, and 0 takes whatever comes",
    )
    add_field(parent, "--parent-hogwild", AveragingConfig, dest="hogwild", action="store_true", default=None)
    add_field(parent, "--checkpoint-every", AveragingConfig, type=parse_int)
    parent.add_argument(
        "--listen", metavar="HOST:PORT", help="(default: 127.0.0.1:8765; a port of 0 is any that is free)"
    )
    parent.add_argument("--token-file", type=Path, help="children must know its first line")
    parent.add_argument("--tls-cert", type=Path, help="speak TLS, with this certificate")
    parent.add_argument("--tls-key", type=Path, help="and this key")
    parent.add_argument(
        "--silence", type=float, help="seconds after which a silent child is disconnected (default: 600)"
    )
    add_setting(parent, "--seed", type=int)
    add_run(parent)
    add_log(parent)
    parent.add_argument("--quiet", action="store_true", help="no progress and no report")
    add_debug(parent)


def add_child(child: Any) -> None:
    from manyhands.averaging.limits import MAX_ENVS, MAX_MESSAGE_MB

    child.description = (
        "Joins a parent, learns from it what to train, trains with all cores, and exchanges "
        "weights. It comes back by itself when the connection is lost; Ctrl-C ends it."
    )
    child.add_argument("url", metavar="URL", help="ws://host:8765 (the default port), or wss:// for TLS")
    child.add_argument("--cores", type=int, help="processes that train (default: all cores)")
    child.add_argument(
        "--max-memory",
        type=parse_int,
        metavar="MB",
        help="memory that the parent's task may take (default: half of what is free)",
    )
    child.add_argument(
        "--max-envs",
        type=parse_int,
        default=MAX_ENVS,
        help="environments that the parent may ask for (default: %(default)s)",
    )
    child.add_argument(
        "--max-message",
        type=parse_int,
        default=MAX_MESSAGE_MB,
        metavar="MB",
        help="the largest message to take from the parent (default: %(default)s)",
    )
    child.add_argument("--token-file", type=Path, help="the parent's token")
    child.add_argument(
        "--patience",
        type=float,
        default=3600.0,
        help="seconds to look for a lost parent before ending (default: 3600)",
    )
    child.add_argument(
        "--wait",
        type=float,
        default=0.0,
        help="seconds to wait for a parent that is not there yet (default: 0)",
    )
    child.add_argument("--tls-ca", type=Path, help="a certificate to trust, such as the parent's own")
    child.add_argument("--name", help="how the parent calls this child (default: host and a few letters)")
    add_allow(child)
    add_quiet(child)
    add_debug(child)


def parent(options: argparse.Namespace) -> None:
    from manyhands.averaging.serving import serve

    names = [field.name for kind in (AveragingConfig, ListenConfig) for field in fields(kind)]
    with interruptible():
        serve(
            options.env,
            options.algo,
            seed=options.seed,
            name=options.name,
            directory=options.dir,
            resume=options.resume,
            config=options.config,
            recipes=options.recipes,
            settings=merge(*map(parse_override, options.set)),
            log=options.log,
            quiet=options.quiet,
            **{name: getattr(options, name) for name in names},
        )


def child(options: argparse.Namespace) -> None:
    from manyhands.averaging.visiting import visit

    with interruptible():
        visit(
            options.url,
            name=options.name,
            cores=options.cores,
            token_file=options.token_file,
            tls_ca=options.tls_ca,
            patience=options.patience,
            wait=options.wait,
            max_memory=options.max_memory,
            max_envs=options.max_envs,
            max_message=options.max_message,
            allow=options.allow,
            quiet=options.quiet,
        )


def add_sweep(sweep: Any) -> None:
    sweep.add_argument("sweep", metavar="NAME", choices=("averaging",), help="averaging: alpha times beta")
    sweep.add_argument("rest", nargs="...", metavar="...", help="its options; --help lists them")


def sweep(options: argparse.Namespace) -> None:
    from manyhands.cli.sweep import main

    with interruptible():
        main(options.rest)


COMMANDS = {
    "parent": (add_parent, parent),
    "child": (add_child, child),
    "sweep": (add_sweep, sweep),
}
"""Commands by name: what adds its options, and what it does."""
