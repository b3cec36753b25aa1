"""Runs that take a moment: a small network on a small environment, in this process."""

from pathlib import Path
from typing import Any

import manyhands
from manyhands.runs.store import Run

BATCH = 64
SETTINGS = {
    "net": {"hidden": [8]},
    "collect": {"shards": 2, "lanes": 2, "steps": BATCH // 4},
    "algo": {"minibatch": BATCH, "epochs": 1},
    "run": {"test_every": 4 * BATCH, "test_episodes": 4, "checkpoint_every": 1e9, "mode": "sync"},
}


def short_run(path: Path, env: Any = "small_envs:Chain", updates: int = 8, **given: Any) -> Run:
    """Train for so many updates of the weights."""
    given.setdefault("log", "none")
    given.setdefault("quiet", True)
    return manyhands.train(
        env,
        "ppo",
        workers=0,
        steps=updates * BATCH,
        until="steps",
        directory=path,
        settings=SETTINGS,
        **given,
    )
