"""Keeps a process that an environment forks from coming back into our code and training beside us."""

import os
import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


@cache
def keep_children_out() -> None:
    """Let a forked child do what it likes from now on, but end where it would return into this package.

    Else it would go on playing with what it shares with its parent: sockets, memory, the run's directory.
    """
    os.register_at_fork(after_in_child=_end_on_return)


def _end_on_return() -> None:
    """Watches those functions of ours that wait for the call that forked, and no other: it costs nothing in
    the parent, and in every place from which an environment is called."""
    frame: FrameType | None = sys._getframe(1)
    found = False
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            frame.f_trace = _end
            found = True
        frame = frame.f_back
    if found:
        sys.settrace(lambda frame, event, argument: None)


def _end(frame: FrameType, event: str, argument: Any) -> None:
    """End at the first line, exception or return, without flushing what the parent has not yet written."""
    os._exit(0)
