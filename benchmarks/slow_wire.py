"""A proxy that delays what it carries, as a network far away would."""

import random
import socket
import threading
import time
from contextlib import suppress
from queue import SimpleQueue

PIECE = 65536
PACKET = 1448
"""Bytes of a packet: they are lost together."""


class SlowWire:
    """Listens on `address` and carries everything to `port` and back, each way `delay` seconds later.

    A share `loss` of the packets counts as lost, and what needed one of them comes a round trip later.
    """

    def __init__(self, port: int, delay: float, loss: float = 0.0) -> None:
        self.port, self.delay, self.loss = port, delay, loss
        self.ends: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"ws://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:  # as a parent that is being restarted
                near.close()
                continue
            self.ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                line: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                threading.Thread(target=self._take, args=(source, line), daemon=True).start()
                threading.Thread(target=self._give, args=(sink, line), daemon=True).start()

    def _take(self, source: socket.socket, line: SimpleQueue[tuple[float, bytes]]) -> None:
        dice, due = random.Random(source.fileno()), 0.0
        piece = b"?"
        while piece:
            try:
                piece = source.recv(PIECE)
            except OSError:
                piece = b""
            whole = (1 - self.loss) ** -(-len(piece) // PACKET)  # the chance that nothing of it is lost
            late = self.delay if dice.random() < whole else 3 * self.delay
            due = max(due, time.monotonic() + late)  # what follows a lost piece waits for it
            line.put((due, piece))

    def _give(self, sink: socket.socket, line: SimpleQueue[tuple[float, bytes]]) -> None:
        while True:
            due, piece = line.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not piece:
                    sink.shutdown(socket.SHUT_RDWR)
                    return
                sink.sendall(piece)
            except OSError:
                return  # one of them is gone, and so will the other be

    def cut(self) -> None:
        """Close all connections that there are; others may be made."""
        self._end(self.ends)

    def close(self) -> None:
        self._end([self.listener, *self.ends])

    def _end(self, ends: list[socket.socket]) -> None:
        for end in ends:
            with suppress(OSError):  # it is gone already
                end.shutdown(socket.SHUT_RDWR)
            end.close()
