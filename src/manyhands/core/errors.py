"""The errors that a user may meet. Each says in one line what was given, what is allowed, what to try."""

import difflib
import importlib.util
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


class OwnCodeError(RunError):
    """Code of the user's own, such as an algorithm, that raised or returned what it must not."""


class WireError(ManyhandsError):
    """Bytes that are not a message of ours, or not the one that was expected."""


EXTRAS = {
    **{"torch": "learn", "matplotlib": "plots", "tensorboard": "tensorboard", "ray": "ray"},
    **{"imageio": "video", "imageio_ffmpeg": "video", "PIL": "video", "pygame": "video"},
    **{"Box2D": "box2d", "mujoco": "mujoco", "ale_py": "atari", "minatar": "minatar"},
    **{"onnx": "lto", "scipy": "lto", "pandas": "pandas", "wandb": "wandb", "mlflow": "mlflow"},
}
"""Libraries that are not always installed, and the extra that brings each."""


def missing_extra(what: str, library: str | None) -> UsageError:
    """Return the error for a part whose library is not installed."""
    extra = EXTRAS.get((library or "").partition(".")[0], "all")
    how = f"in manyhands' own directory: pip install -c constraints.txt '.[{extra}]'"
    return UsageError(f"{what} needs {library}; {how}")


def need_library(what: str, library: str) -> None:
    """Refuse a part whose library is not installed, without importing it."""
    if importlib.util.find_spec(library) is None:
        raise missing_extra(what, library)


def did_you_mean(given: str, allowed: Iterable[str], prefix: str = "") -> str:
    """Return a hint such as `; did you mean LunarLander-v3?`, or nothing when no name is near.

    `prefix` is shown before each suggested name.
    """
    by_lower = {name.lower(): name for name in allowed}
    matches = difflib.get_close_matches(given.lower(), by_lower, n=3, cutoff=0.6)
    near = " or ".join(prefix + by_lower[match] for match in matches)
    return f"; did you mean {near}?" if near else ""
