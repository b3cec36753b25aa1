"""The generate-send loop: take an order, play it with the weights it asks for, send the trajectory."""

import ctypes
import os
import signal
import sys
import traceback

from manyhands.channels.base import Counter, WorkerChannel
from manyhands.channels.processes import FAILED, WorkerSide
from manyhands.collect.collector import Collector
from manyhands.errors import ManyhandsError
from manyhands.exits import run_and_end
from manyhands.orders import Notice, Order, Trial

NICENESS = 10
"""Workers give way to the learner. It is one process and they are many, so on a full machine it would get the
smallest share and they would wait for it: CartPole-v1, 2 workers on 2 cores, trains 1.25 times as fast."""

END_GRACE = 1.0
"""Seconds that threads of environments have at the end; whoever started this process waits little longer."""


def work(channel: WorkerChannel, collector: Collector) -> None:
    """Until the executor says that the run is over."""
    while (order := channel.next_order()) is not None:
        fulfil(order, channel, collector)
    collector.close()


def fulfil(order: Order | Trial, channel: Counter, collector: Collector) -> None:
    """Plays one order and sends what came of it."""
    weights = channel.weights(order.version)
    if isinstance(order, Trial):
        channel.send(collector.test(order, weights))
    else:
        channel.send(collector.collect(order, weights, channel.arrays(order)))


def main(arguments: list[str]) -> None:
    """The whole life of a worker process; its arguments are the executor's id and inherited descriptors."""
    parent, socket_fd, progress_fd, board_fd, *rollout_fds = map(int, arguments)
    die_with_parent(parent)
    os.nice(NICENESS)
    # Ctrl-C reaches the whole process group; the executor decides when workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = WorkerSide(socket_fd, progress_fd, board_fd, rollout_fds)
    try:
        collector = Collector(
            channel.task(),
            channel.name,
            channel.report,
            channel.callable_env,
            channel.progress,
            channel.memory,
        )
        channel.ready()
        work(channel, collector)
    except ManyhandsError as error:
        channel.failed(str(error))
        sys.exit(1)
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the executor is gone
    except Exception:
        channel.report(Notice(channel.name, f"failed by itself\n{traceback.format_exc()}"))
        sys.exit(FAILED)


def die_with_parent(parent: int) -> None:
    """Linux ends this process when the executor dies, even by kill -9 and even inside a hung step."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it died before the line above


if __name__ == "__main__":
    run_and_end(lambda: main(sys.argv[1:]), END_GRACE)
