"""Code of the user's own, by name: `module:callable`."""

import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manyhands.core.errors import MissingCodeError, UsageError, did_you_mean
from manyhands.core.missing_code import why_not_imported

MODULE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
PATTERN = re.compile(rf"{MODULE}:(\*|[A-Za-z_]\w*|(?:[\w-]+/)?[\w-]+-v\d+)", re.ASCII)


def check_pattern(pattern: str) -> str:
    """Return `pattern`, if it is `module:name` or `module:*`: what `--allow` takes."""
    if not PATTERN.fullmatch(pattern):
        raise UsageError(
            f"--allow {pattern[:100]!r} is not of the form module:name, or module:* for all environments "
            "and functions that the module itself defines"
        )
    return pattern


def missing_module(pattern: str) -> str | None:
    """Return a warning where Python finds no module for a pattern of `--allow`; imports nothing."""
    top = pattern.partition(":")[0].partition(".")[0]
    if importlib.util.find_spec(top) is not None:
        return None
    here = [path.stem for path in Path.cwd().glob("*.py")]
    return (
        f"--allow {pattern}: there is no module {top} here, neither in {Path.cwd()} nor installed"
        f"{did_you_mean(top, here)}"
    )


def imported(path: str, what: str) -> Callable[..., Any]:
    """Return the callable at `path`, a module and a name at its top level; `what` says what it is for."""
    module, _, name = path.partition(":")
    if not name.isidentifier():
        raise MissingCodeError(f"{path!r} is not of the form module:name, without dots behind the colon")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a module does when it is imported
        why = why_not_imported(path, error)
        raise MissingCodeError(f"cannot import the {what} {path!r}: {why}") from error
    if not callable(found):
        raise UsageError(f"{path!r} is {type(found).__name__}, not a callable, so not the {what}")
    made: Callable[..., Any] = found
    return made
