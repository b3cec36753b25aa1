"""`manyhands worker` and `manyhands broker`: what runs until it is stopped, for runs elsewhere."""

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from manyhands.cli.options import add_allow, add_debug
from manyhands.core.errors import RunError, UsageError
from manyhands.envs.importing import missing_module
from manyhands.system.program import program


def add_worker(worker: Any) -> None:
    worker.description = (
        "A daemon that knows nothing but the broker. It waits for runs, plays for all of them, and waits "
        "again. Start it before or after `manyhands train --channel URL`, on any machine; Ctrl-C ends it."
    )
    worker.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="amqp://user:password@host:5672/, or amqps:// for TLS (default: $MANYHANDS_CHANNEL)",
    )
    worker.add_argument("--procs", type=int, help="processes that play (default: one per core)")
    worker.add_argument("--once", action="store_true", help="leave when the first run is over")
    worker.add_argument(
        "--max-memory", type=int, metavar="MB", help="that a process may hold (default: 80 %% of all, shared)"
    )
    worker.add_argument(
        "--max-lanes", type=int, default=4096, help="environments that a process plays (default: 4096)"
    )
    worker.add_argument(
        "--max-message", type=int, default=64, metavar="MB", help="of one message (default: 64)"
    )
    worker.add_argument("--name", help="how runs call this worker (default: host and process number)")
    add_allow(worker)
    add_debug(worker)


def add_broker(broker: Any) -> None:
    broker.description = (
        "Runs RabbitMQ until Ctrl-C and prints its address, with a password of its own. On loopback unless "
        "--listen says otherwise; a temporary directory unless --dir keeps it."
    )
    broker.add_argument("--listen", default="127.0.0.1", metavar="ADDRESS", help="(default: 127.0.0.1)")
    broker.add_argument("--port", type=int, default=5672, help="(default: 5672; 0 takes a free one)")
    broker.add_argument("--dir", type=Path, help="keep its queues and settings here")
    broker.add_argument("--password-file", type=Path, help="the password's first line (default: a new one)")
    broker.add_argument("--tls-cert", type=Path, help="speak TLS, with this certificate")
    broker.add_argument("--tls-key", type=Path, help="and this key")
    add_debug(broker)


def worker(options: argparse.Namespace) -> None:
    from manyhands.channels.amqp.address import Address
    from manyhands.channels.limits import OwnLimits, default_memory
    from manyhands.roles.daemon import Daemon, default_name
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
    for pattern in options.allow:
        if (warning := missing_module(pattern)) is not None:
            print(f"manyhands: {warning}", file=sys.stderr, flush=True)
    limits = OwnLimits(memory, options.max_lanes, options.max_message)
    daemon = Daemon(url, procs, name, options.once, options.allow, limits)
    daemon.check()
    wait = "1 process waits" if procs == 1 else f"{procs} processes wait"
    print(f"{name}: {wait} for runs at {Address.parse(url)}", flush=True)
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


COMMANDS = {
    "worker": (add_worker, worker),
    "broker": (add_broker, broker),
}
"""Commands by name: what adds its options, and what it does."""
