"""The programs that measure manyhands, and their results beside them. Not part of what is installed."""

import os
import sys
from pathlib import Path


def module_environment() -> dict[str, str]:
    """Return the environment variables of a process that runs a module of this package from elsewhere."""
    here = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}
