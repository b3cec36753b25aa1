"""The programs that measure manyhands, and their results beside them. Not part of what is installed."""

import os
import sys
from pathlib import Path


def module_environment() -> dict[str, str]:
    """For a process that runs a module of this package from another directory."""
    here = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}
