"""A worker process as its executor keeps it: what it is to do, and messages to it that never wait."""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import SimpleQueue

from manyhands.channels.supervision import PlayingProcess
from manyhands.core.orders import EvalOrder, Order

SMALL = 1024
"""Most bytes of a message of which a pipe holds a hundred; no worker has as many orders."""


@dataclass(eq=False, kw_only=True)
class WorkerProcess(PlayingProcess):
    """A worker as its executor keeps it."""

    connection: Connection
    shards: list[int]
    orders: deque[Order | EvalOrder] = field(default_factory=deque)
    outbox: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)
    posted: int = 0  # to the thread; counted by the executor
    sent: int = 0  # counted by the thread
    ready: bool = False
    gone: bool = False
    last_words: str = ""
    traceback: str = ""  # of what the last words are about

    def post(self, raw: bytes) -> None:
        """Send without ever waiting. What a pipe has room for anyway goes at once, the rest by a thread:
        handing over to that costs more, and with 64 workers the last one waits for 64 of it.
        """
        if len(raw) <= SMALL and self.posted == self.sent:
            with suppress(OSError):  # its end is noticed, and its orders given again, by `receive`
                self.connection.send_bytes(raw)
        else:
            self.posted += 1
            self.outbox.put(raw)

    def send_all(self) -> None:
        """Send what is queued, in its own thread: a worker that does not read never blocks the executor."""
        while (raw := self.outbox.get()) is not None:
            try:
                self.connection.send_bytes(raw)
            except OSError:
                return  # as above
            self.sent += 1

    def end(self, grace: float) -> int:
        code = super().end(grace)
        self.outbox.put(None)
        self.connection.close()
        return code
