"""The errors that a user may meet. Each says in one line what was given, what is allowed, what to try."""

import difflib
from collections.abc import Iterable


class ManyhandsError(Exception):
    """Anything that manyhands reports without a traceback; `exit_code` is the process's."""

    exit_code = 1


class UsageError(ManyhandsError):
    """A wrong call: an unknown name, an impossible number, an unsupported space."""

    exit_code = 2


class MissingCodeError(UsageError):
    """Code of a user's own that is not found by the name that was given."""


class RunError(ManyhandsError):
    """A run that could not go on or could not be read."""


class EnvError(RunError):
    """An environment that broke its own contract: NaN, a wrong shape, too many crashes."""


class WireError(ManyhandsError):
    """Bytes that are not a message of ours, or not the one that was expected."""


def missing_extra(what: str, error: ModuleNotFoundError, extra: str) -> UsageError:
    """Return the error for a part whose library is not installed."""
    how = f"in manyhands' own directory: pip install -c constraints.txt '.[{extra}]'"
    return UsageError(f"{what} needs {error.name}; {how}")


def did_you_mean(given: str, allowed: Iterable[str], prefix: str = "") -> str:
    """Return a hint such as `; did you mean LunarLander-v3?`, or nothing when no name is near.

    `prefix` is shown before each suggested name.
    """
    by_lower = {name.lower(): name for name in allowed}
    matches = difflib.get_close_matches(given.lower(), by_lower, n=3, cutoff=0.6)
    near = " or ".join(prefix + by_lower[match] for match in matches)
    return f"; did you mean {near}?" if near else ""
