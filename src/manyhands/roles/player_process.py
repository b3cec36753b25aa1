"""One process of a worker daemon, which plays for runs at the broker."""

import argparse
import mmap
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from manyhands.channels.amqp.address import Address
from manyhands.channels.amqp.session import Leave
from manyhands.channels.amqp.worker import Player
from manyhands.channels.limits import OwnLimits, confine
from manyhands.core.errors import ManyhandsError
from manyhands.core.heartbeat import BYTES
from manyhands.core.texts import one_line
from manyhands.roles.worker import END_GRACE, NICENESS
from manyhands.system.exits import run_and_end
from manyhands.system.processes import die_with_parent


def _limits(text: str) -> OwnLimits:
    return OwnLimits(*map(int, text.split(",")))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int)
    parser.add_argument("--progress", type=int)
    parser.add_argument("--worker")
    parser.add_argument("--process")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument("--limits", type=_limits)
    parser.add_argument("--refuse-run", action="append", default=[], type=int)
    options = parser.parse_args(arguments)
    die_with_parent(options.parent)
    os.nice(NICENESS)
    confine(options.limits or OwnLimits())
    sys.path.insert(0, os.getcwd())  # for environments by module:callable
    url = sys.stdin.readline().strip()  # not an argument, because arguments are everyone's to read
    progress = memoryview(mmap.mmap(options.progress, BYTES)).cast("q")

    def say(text: str) -> None:
        print(f"{options.process.rpartition('.')[2]}: {one_line(' '.join(text.split()))}", flush=True)

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Leave

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the daemon decides
    signal.signal(signal.SIGTERM, leave)
    player = None
    try:
        address = Address.parse(url)
        player = Player(
            address,
            options.worker,
            options.process,
            options.allow,
            progress,
            options.once,
            say,
            options.limits,
            options.refuse_run,
        )
        player.serve()
        player.leave()
    except Leave:
        if player is not None:
            player.leave()
    except ManyhandsError as error:
        print(f"manyhands: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    run_and_end(lambda: main(sys.argv[1:]), END_GRACE)
