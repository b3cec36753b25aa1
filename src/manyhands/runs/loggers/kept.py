"""Keeps what a logger notes for a resume, such as what the run is called elsewhere, beside the run."""

import json

from manyhands.runs.checkpoint import write_atomically
from manyhands.runs.store import Run


def keep(run: Run, name: str, facts: dict[str, str]) -> None:
    """Write it to the file `name` in the run's directory."""
    write_atomically(run.path / name, (json.dumps(facts) + "\n").encode())


def kept(run: Run, name: str) -> dict[str, str]:
    """Return what was written there; {} where there is nothing, or nothing sound."""
    try:
        facts = json.loads((run.path / name).read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in facts.items()} if isinstance(facts, dict) else {}
