"""Takes Ctrl-C, SIGTERM and a closed terminal as requests to stop."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANGUP: tuple[int, ...] = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()


@contextmanager
def stop_signals(stop: Callable[[], None], again: Callable[[], None] | None = None) -> Iterator[None]:
    """Let any of them call `stop`; a second Ctrl-C calls `again`, or interrupts at once, as a third does."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop()
        if number in HANGUP:
            _say_no_more()
        signal.signal(signal.SIGINT, signal.default_int_handler if again is None else handle_again)

    def handle_again(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        assert again is not None
        again()

    with _handled(handle, signal.SIGINT, signal.SIGTERM, *HANGUP):
        yield


def _say_no_more() -> None:
    """Write no more to a terminal that is gone, as that would fail in the middle of saving."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if os.isatty(stream):
            os.dup2(nowhere, stream)
    os.close(nowhere)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn what would end a program at once into a Ctrl-C, so that it ends what it started."""
    with _handled(signal.default_int_handler, signal.SIGTERM, *HANGUP):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore all of them during what is short and must be done, such as writing down how a run ended."""
    with _handled(lambda number, frame: None, signal.SIGINT, signal.SIGTERM, *HANGUP):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], Any], *numbers: int) -> Iterator[None]:
    """Handle signals, which only a main thread gets; a hang-up that is ignored (nohup) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    before = {n: old for n, old in before.items() if n not in HANGUP or old is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
