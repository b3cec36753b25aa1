"""A user's own code, by name: why it is not found."""

import sys
from pathlib import Path, PurePath

from manyhands.core.errors import did_you_mean

MOST_NAMES = 8
"""Names of a module that are listed."""


def why_not_imported(path: str, error: Exception) -> str:
    """Return what is wrong with `path`, module:name, given the error of importing it; in words, if known."""
    module, _, name = path.partition(":")
    loaded = sys.modules.get(module)
    if isinstance(error, AttributeError) and loaded is not None and not hasattr(loaded, name):
        own = [key for key, value in vars(loaded).items() if getattr(value, "__module__", None) == module]
        known = sorted(key for key in own if not key.startswith("_"))[:MOST_NAMES]
        has = did_you_mean(name, known) or (f"; it has {', '.join(known)}" if known else "")
        return f"{module} has no {name}{has}"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        if module.endswith(".py"):
            file = PurePath(module)
            place = f", in the directory {file.parent}" if file.parent != PurePath() else ""
            return f"leave out .py: {file.stem}:{name}{place}"
        return f"there is no module {error.name} in {_here()} or among the installed packages"
    return str(error)


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # somebody has removed it
        return "the present directory"
