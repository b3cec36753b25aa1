"""How this program was called, so that what it suggests to type works as it stands."""

import os
import shutil
import sys
from pathlib import Path

NAME = "manyhands"


def program() -> str:
    """Return `manyhands`, or a path where the shell would not find that one."""
    script = Path(sys.argv[0])
    if script.name != NAME or not script.is_file():
        return NAME if shutil.which(NAME) else f"{Path(sys.executable).name} -m {NAME}"
    found = shutil.which(NAME)
    if found is not None and Path(found).resolve() == script.resolve():
        return NAME
    path = os.path.relpath(script)
    return path if not path.startswith(os.pardir) else str(script)
