"""Closing environments, which may raise or never return: nobody plays them any more, so the run goes on."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from manyhands.texts import one_line

LIMIT = 5.0
"""Seconds that an environment may take to close."""
NEXT_LIMIT = 0.1
"""Seconds for others of a kind that has taken longer."""


class TooLongError(BaseException):
    """Not an Exception, so that nothing in between swallows it."""


class Closer:
    """Closes environments, and says once of each kind what went wrong with it."""

    def __init__(self) -> None:
        self.slow: set[type] = set()
        self.said: set[tuple[type, str]] = set()

    def close(self, kind: type, call: Callable[[], None], limit: float = LIMIT) -> None:
        """In the thread that has made it, because some things can be closed nowhere else."""
        allowed = NEXT_LIMIT if kind in self.slow else limit
        here = threading.current_thread() is threading.main_thread()
        try:
            if here:
                with _alarm(allowed):
                    call()
            else:
                _in_thread(call, allowed)
        except TooLongError:
            self.slow.add(kind)
            self._say(kind, f"took longer than {limit:g} s")
        except (Exception, SystemExit) as error:
            self._say(kind, f"raised {type(error).__name__}: {error}")

    def _say(self, kind: type, what: str) -> None:
        if (kind, what) not in self.said:
            self.said.add((kind, what))
            text = f"close() of the environment {kind.__name__} {what}"
            print(f"manyhands: {one_line(' '.join(text.split()))}", file=sys.stderr, flush=True)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises TooLongError after `seconds`, even out of a call that sleeps; for a main thread."""

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # apart, because it may ring just before the line above, too
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, left, interval)


def _in_thread(call: Callable[[], None], seconds: float) -> None:
    """For other threads, which no signal reaches: in one that can be left behind."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="close", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TooLongError
    if raised:
        raise raised[0]
