"""Closing environments, which may raise or never return: nobody plays them any more, so the run goes on.

An environment is closed in a thread that can be left behind. Only one that draws (`render_mode`, or images as
observations) is closed in the main thread, and so is one whose `close` raises elsewhere: windows and the like
can be closed nowhere else. There a signal ends a `close` that is Python or sleeps, but not native code.

What remains: such a one, and one that hangs in native code and keeps Python's lock, in whichever thread, stop
the whole process. faulthandler's watchdog, which needs no lock, then prints where it hangs and ends the
process with exit code 1.
"""

import faulthandler
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from manyhands.core.texts import one_line

LIMIT = 5.0
"""Seconds that an environment may take to close."""
NEXT_LIMIT = 0.1
"""Seconds for others of a kind that has taken longer."""
SLACK = 1.0
"""Seconds after the limit in which a signal ends a `close`, unless that hangs in native code."""
LAST_LIMIT = 30.0
"""Seconds after the limit until a process is ended that its `close` has stopped."""


class TooLongError(BaseException):
    """An environment took too long; not an Exception, so that nothing in between swallows it."""


class Closer:
    """Closes environments, and reports what went wrong, once for each kind."""

    def __init__(self) -> None:
        self.slow: set[type] = set()
        self.said: set[tuple[type, str]] = set()

    def close(self, kind: type, call: Callable[[], None], limit: float = LIMIT, shows: bool = False) -> None:
        """`shows`: whether it has windows, or whatever else belongs to the thread that made it."""
        allowed = NEXT_LIMIT if kind in self.slow else limit
        try:
            with _watchdog(allowed + LAST_LIMIT):
                self._close(kind, call, allowed, shows)
        except TooLongError:
            self.slow.add(kind)
            self._say(kind, f"took longer than {limit:g} s")
        except (Exception, SystemExit) as error:
            self._say(kind, f"raised {type(error).__name__}: {error}")

    def _close(self, kind: type, call: Callable[[], None], seconds: float, shows: bool) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if not (shows and in_main):
            try:
                _in_thread(call, seconds)
                return
            except (Exception, SystemExit):
                if not in_main:
                    raise
        self._close_here(kind, call, seconds)

    def _close_here(self, kind: type, call: Callable[[], None], seconds: float) -> None:
        """Close in a main thread, which a signal reaches."""
        stuck = f"hangs in native code; this process is ended in {LAST_LIMIT - SLACK:g} s unless it returns"
        teller = threading.Timer(seconds + SLACK, self._say, (kind, stuck))
        teller.daemon = True
        with suppress(RuntimeError):  # there is no memory for a thread
            teller.start()
        try:
            with _alarm(seconds):
                call()
        finally:
            teller.cancel()

    def _say(self, kind: type, what: str) -> None:
        if (kind, what) not in self.said:
            self.said.add((kind, what))
            text = f"close() of the environment {kind.__name__} {what}"
            print(f"manyhands: {one_line(' '.join(text.split()))}", file=sys.stderr, flush=True)


@contextmanager
def _watchdog(seconds: float) -> Iterator[None]:
    """Ends the process, and prints where it hangs, when Python has not come back in time."""
    with suppress(OSError, ValueError, RuntimeError):  # stderr is closed, or there is no memory for a thread
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


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
    """Call in a thread that can be left behind. Raises RuntimeError where there is no memory for one."""
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
