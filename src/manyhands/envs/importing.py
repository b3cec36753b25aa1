"""Code of the user's, by name: `module:callable`."""

import importlib
from collections.abc import Callable
from typing import Any

from manyhands.errors import UsageError


def imported(path: str, what: str) -> Callable[..., Any]:
    """The callable at `path`, where `what` is said to be found."""
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever a module does when it is imported
        raise UsageError(f"cannot import the {what} {path!r}: {error}") from error
    if not callable(found):
        raise UsageError(f"{path!r} is {type(found).__name__}, not a callable, so not the {what}")
    made: Callable[..., Any] = found
    return made
