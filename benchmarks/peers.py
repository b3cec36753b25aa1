"""A virtual environment for the other libraries, made when it is missing."""

import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.timed import START_TIMEOUT
from manyhands.core.errors import RunError
from manyhands.runs.report import last_line, run_json

VENV = Path(".venv-peers")
CONSTRAINTS = Path("constraints.txt")


def python(venv: Path) -> Path:
    """Return the interpreter of a `venv` that has Stable-Baselines3, installed first if need be."""
    interpreter = venv / "bin" / "python"
    if not interpreter.exists():
        print(f"making {venv}", flush=True)
        _run([sys.executable, "-m", "venv", str(venv)])
    check = [str(interpreter), "-c", "import stable_baselines3, Box2D, ale_py, cv2"]
    if subprocess.run(check, capture_output=True, check=False).returncode:
        print(f"installing Stable-Baselines3 into {venv}", flush=True)
        _run([str(interpreter), "-m", "pip", "install", "--quiet", *_constraints(), *_requirements()])
    return interpreter


def _constraints() -> list[str]:
    return ["--constraint", str(CONSTRAINTS)] if CONSTRAINTS.is_file() else []


def _requirements() -> list[str]:
    """Return the same torch, numpy and Gymnasium as ours, so that only the library differs."""
    torch, numpy, gymnasium = (version(name).partition("+")[0] for name in ("torch", "numpy", "gymnasium"))
    ours = [f"torch=={torch}", f"numpy=={numpy}", f"gymnasium[box2d]=={gymnasium}", "ale-py"]
    return ["stable-baselines3", *ours, "opencv-python-headless"]


def versions(interpreter: Path) -> str:
    names = ("stable_baselines3", "torch", "numpy", "gymnasium")
    code = (
        "import json; from importlib.metadata import version; "
        f"print(json.dumps({{name: version(name) for name in {names}}}))"
    )
    found = run_json([str(interpreter), "-c", code], START_TIMEOUT)
    return ", ".join(f"{name} {number}" for name, number in found.items())


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{shlex.join(command)} failed: {last_line(done.stderr)}")
