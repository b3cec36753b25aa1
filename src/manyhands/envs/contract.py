"""What an environment's methods must take and return, checked where they are called."""

import traceback
from pathlib import Path
from typing import Any

import gymnasium

from manyhands.core.errors import EnvError
from manyhands.envs.make import Env

STEP = "(observation, reward, terminated, truncated, info)"
RESET = "reset(self, *, seed=None, options=None)"
WRAP = "wrap it with shimmy.GymV21CompatibilityV0, or bring it up to date with Gymnasium"
GYMNASIUM_UNPACKS = "expected 5, got 4"
"""What Gymnasium's own wrappers raise around an environment whose step returns four values."""


def begin(env: Env, seed: int | None = None) -> Any:
    """Reset an environment, by a seed if one is given, and return its first observation."""
    try:
        returned = env.reset() if seed is None else env.reset(seed=seed)
    except TypeError as error:
        if "unexpected keyword argument 'seed'" in str(error):
            raise EnvError(f"reset takes no seed; it must be {RESET}; {WRAP}") from error
        raise
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise EnvError(f"reset returned {_counted(returned)}, not (observation, info); {WRAP}")
    return returned[0]


def wrong_step(returned: Any) -> str:
    """Return what is wrong with what `step` returned, where that is not five values."""
    return f"step returned {_counted(returned)}, not {STEP}; {WRAP}"


def is_wrong_step(error: Exception) -> bool:
    """Return whether one of Gymnasium's wrappers raised because a step below it returned four values."""
    if not (isinstance(error, ValueError) and GYMNASIUM_UNPACKS in str(error)):
        return False
    where = traceback.extract_tb(error.__traceback__)[-1].filename
    return Path(where).is_relative_to(Path(gymnasium.__file__).parent)


def _counted(returned: Any) -> str:
    if isinstance(returned, tuple):
        return f"{len(returned)} values" if len(returned) != 1 else "1 value"
    return f"{type(returned).__name__} alone"
