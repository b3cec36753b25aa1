"""What code of the user's own raises, told in one line that begins with its file and line."""

import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhands.core.errors import ManyhandsError, OwnCodeError
from manyhands.core.texts import one_line

PACKAGE = Path(__file__).parents[1]
STANDARD = Path(sysconfig.get_path("stdlib"))


@contextmanager
def own_code(name: str, method: str = "") -> Iterator[None]:
    """Turn what the user's code raises meanwhile into an OwnCodeError; `name` is whose code it is.

    Without `method` it is the first function of theirs on the way. What code of ours raises by itself stays.
    """
    try:
        yield
    except ManyhandsError:
        raise
    except Exception as error:
        frames = _own_frames(error)
        if not (frames or method):
            raise
        raise failure(f"{name}.{method or frames[0].name}", error) from error


def failure(what: str, error: Exception) -> OwnCodeError:
    """Return the error to raise from one of the user's code; `what` is what they call it."""
    frames = _own_frames(error)
    place = f"{_shown(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""
    text = one_line(" ".join(str(error).split()))
    return OwnCodeError(f"{place}{what} failed: {type(error).__name__}: {text}")


def _own_frames(error: Exception) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]


def _is_own(file: str) -> bool:
    path = Path(file)
    libraries = path.is_relative_to(STANDARD) or bool({"site-packages", "dist-packages"} & {*path.parts})
    return not (libraries or path.is_relative_to(PACKAGE) or file.startswith("<frozen"))


def _shown(file: str) -> str:
    here = os.path.relpath(file) if os.path.isabs(file) else file
    return file if here.startswith("..") else here
