"""Ending a process in time, whatever an environment has left running in it."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from manyhands.core.texts import one_line

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C has ended."""
GRACE = 3.0
"""Seconds that threads, and what is registered to be done at the end, have."""


def run_and_end(run: Callable[[], None], grace: float = GRACE) -> NoReturn:
    """Runs all that a process is for, and ends the process in time."""
    code: int | str | None = 1  # of an error that nobody expected; Python prints its traceback
    try:
        run()
        code = 0
    except SystemExit as left:
        code = left.code
    except KeyboardInterrupt:  # one more, while the first was being told of
        code = INTERRUPTED
    finally:
        _ignore_ctrl_c()
        end_within(code if isinstance(code, int) else int(code is not None), grace)
    sys.exit(code)


def _ignore_ctrl_c() -> None:
    """Ignore Ctrl-C: all is saved, and the process ends by itself in time; one more would end it noisily."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_within(code: int, grace: float = GRACE) -> None:
    """Ends this process with `code` if it has not ended by itself in time; all must be saved by now.

    Python waits for threads that are no daemons, and for processes of its own, as long as they like.
    """
    threading.Thread(target=_end, args=(code, grace), name="end", daemon=True).start()


def _end(code: int, grace: float) -> None:
    time.sleep(grace)
    main = threading.main_thread()
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main]
    what = f"the thread {left[0]!r}" if left else "something that is done at the end"
    with suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        text = f"{what} does not end; left without it after {grace:g} s"
        print(f"manyhands: {one_line(text)}", file=sys.stderr, flush=True)
    os._exit(code)
