"""The generate-send loop: take an order, play it with the weights it asks for, send the trajectory."""

import os
import signal
import sys
import traceback

from manyhands.channels.base import WorkerChannel
from manyhands.channels.processes.worker import WorkerSide
from manyhands.collect.collector import Collector
from manyhands.core.errors import ManyhandsError
from manyhands.core.events import Notice
from manyhands.envs.make import ignore_versions
from manyhands.hogwild.cores import open_core
from manyhands.system.exits import run_and_end
from manyhands.system.processes import FAILED, die_with_parent

NICENESS = 10
"""Workers give way to the learner. It is one process and they are many, so on a full machine it would get the
smallest share and they would wait for it: CartPole-v1, 2 workers on 2 cores, trains 1.25 times as fast."""
END_GRACE = 1.0
"""Seconds that threads of environments have at the end; whoever started this process waits little longer."""


def work(channel: WorkerChannel, collector: Collector) -> None:
    """Play orders until the executor says that the run is over."""
    while (order := channel.next_order()) is not None:
        collector.run(order, channel)
    collector.close()


def main(arguments: list[str]) -> None:
    """Run a worker process from start to end; `arguments` are the executor's id and inherited descriptors."""
    parent, socket_fd, progress_fd, board_fd, *rollout_fds = map(int, arguments)
    die_with_parent(parent)
    os.nice(NICENESS)
    # Ctrl-C reaches the whole process group; the executor decides when workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignore_versions()
    channel = WorkerSide(socket_fd, progress_fd, board_fd, rollout_fds)
    try:
        collector = Collector(
            channel.task(),
            channel.name,
            channel.report,
            channel.callable_env,
            channel.progress,
            None if channel.memory is None else open_core(channel.memory),
        )
        channel.ready()
        work(channel, collector)
    except ManyhandsError as error:
        channel.failed(str(error), traceback.format_exc())
        sys.exit(1)
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the executor is gone
    except Exception:
        channel.report(Notice(channel.name, f"failed by itself\n{traceback.format_exc()}"))
        sys.exit(FAILED)


if __name__ == "__main__":
    run_and_end(lambda: main(sys.argv[1:]), END_GRACE)
