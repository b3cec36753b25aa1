"""What a few small runs compute, held against numbers that were kept: none changes without being noticed.

Where numbers are to change, say so in the changelog, and write them anew:
`PYTHONPATH=tests python tests/unit/test_numbers.py`.
"""

import ast
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import manyhands
from manyhands.averaging.protocol import AveragingConfig
from manyhands.config import algorithms
from manyhands.config.resolve import merge
from manyhands.config.settings import Config
from manyhands.runs.plan import plan
from manyhands.runs.store import LAST
from manyhands.runs.training import train

KEPT = Path(__file__).with_name("numbers.json")
SOURCE = Path(manyhands.__file__).parent
PACKAGES = ("core/", "algos/", "collect/", "roles/", "averaging/maths")
TOLERANCE = 1e-3
"""Other processors sum in another order. A mistake in a formula moves numbers much further."""
SMALL: dict[str, Any] = {
    "env": {"id": "CartPole-v1"},
    "net": {"normalise": True, "hidden": [16]},
    "collect": {"shards": 2, "lanes": 3, "steps": 24},
    "run": {"seed": 5, "workers": 0, "until": "steps", "steps": 576, "test_every": 288, "test_episodes": 4},
}
PENDULUM = {"env": {"id": "Pendulum-v1"}}
SQUASHED = merge(PENDULUM, {"net": {"squash": True, "state_std": True}})
REPLAY = {"algo": {"warmup": 144, "batch": 16, "memory": 1000, "target_every": 100, "steps_per_update": 8}}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {"run": {"algo": "ppo", "test_share": 10.0}},
    "ppo, sync, other settings": {
        "run": {"algo": "ppo", "mode": "sync"},
        "algo": {
            "normalise_reward": True,
            "rank_advantage": True,
            "anneal": True,
            "anneal_power": 2.0,
            "entropy": 0.01,
            "minibatch": 32,
            "epochs": 2,
            "target_kl": 0.001,
        },
    },
    "ppo, rewards cut, whole batches": {
        "run": {"algo": "ppo", "mode": "async"},
        "algo": {"reward_scale": 3.0, "reward_clip": 2.0, "minibatch": 0, "normalise_advantage": False},
    },
    "ppo, gaussian": merge(PENDULUM, {"run": {"algo": "ppo"}, "algo": {"log_std_end": -2.0}}),
    "ppo, gaussian, squashed": merge(SQUASHED, {"run": {"algo": "ppo"}, "algo": {"entropy": 0.1}}),
    "ppo, played at random in part": {"run": {"algo": "ppo"}, "collect": {"random": 0.4}},
    "a2c": {"run": {"algo": "a2c"}, "algo": {"entropy": 0.02}},
    "a2c, gaussian": merge(PENDULUM, {"run": {"algo": "a2c"}}),
    "reinforce": {"run": {"algo": "reinforce"}},
    "impala": {"run": {"algo": "impala"}, "algo": {"minibatch": 48, "epochs": 2}},
    "impala, gaussian": merge(
        PENDULUM, {"run": {"algo": "impala"}, "algo": {"rho_clip": 0.9, "c_clip": 0.8}}
    ),
    "clone": {"run": {"algo": "clone"}},
    "clone, the elite": {
        "run": {"algo": "clone"},
        "algo": {"choose": "elite", "share": 0.3, "minibatch": 32},
    },
    "clone, by scores": {
        "run": {"algo": "clone"},
        "algo": {"choose": "threshold", "keep": 20.0, "clean": 10.0, "minibatch": 32},
    },
    "dqn": merge(REPLAY, {"run": {"algo": "dqn"}, "algo": {"epsilon_steps": 300, "n_step": 2}}),
    "dqn, double": merge(REPLAY, {"run": {"algo": "dqn", "mode": "sync"}, "algo": {"double": True}}),
    "apex": merge(REPLAY, {"run": {"algo": "apex"}, "algo": {"epsilon_steps": 300, "reward_clip": 0.5}}),
    "lunar": {"env": {"id": "LunarLander-v3"}, "run": {"algo": "ppo"}},
}
COUNTS = ("steps", "episodes", "tests", "test_steps", "tested_at", "last_mean", "best_mean", "first_mean")


def numbers_of_a_run(given: Mapping[str, Any]) -> dict[str, float]:
    """Train, and return what came of it: weights, learner and what the last row of metrics says."""
    with TemporaryDirectory() as temporary:
        run = train(Config.from_plain(merge(SMALL, given)), directory=Path(temporary) / "run")
        checkpoint, row, status = run.checkpoint(LAST), run.rows()[-1], run.status()
    found = summary("weights", checkpoint.weights.vector)
    for name, array in checkpoint.weights.beside.items():
        found |= summary(name, array)
    for name, array in checkpoint.learner.items():
        if array.dtype.kind == "f" and name != "vector":
            found |= summary(f"learner {name}", array)
    told = set(row) - {"seconds", "steps", "collecting", "waiting", "learning", "broadcasting", "testing"}
    found |= {f"row {name}": float(row[name]) for name in told if isinstance(row[name], int | float)}
    return found | {name: float(status[name]) for name in COUNTS if status[name] is not None}


def summary(name: str, array: np.ndarray) -> dict[str, float]:
    flat = array.astype(np.float64).ravel()
    if not len(flat):
        return {}
    places = np.linspace(0, len(flat) - 1, 3).astype(int)
    facts = {"size": len(flat), "mean": flat.mean(), "deviation": flat.std()}
    facts |= {str(place): flat[place] for place in places}
    return {f"{name} {fact}": float(f"{value:.7g}") for fact, value in facts.items()}


def defaults() -> dict[str, Any]:
    """Return every default of every setting, and what algorithms change of them in general."""
    found: dict[str, Any] = {"run": asdict(Config())}
    found["run"]["algo"] = None
    for name in algorithms.BUILT_IN:
        kind = algorithms.find(name)
        found[name] = {"settings": asdict(kind.config()), "general": kind.general}
    found["averaging"] = asdict(AveragingConfig())
    plain: dict[str, Any] = json.loads(json.dumps(found, default=list))
    return plain


def constants() -> dict[str, Any]:
    """Return every number that has a name in a module: limits, timeouts, seeds of streams."""
    found = {}
    for package in PACKAGES:
        for path in sorted(SOURCE.glob(f"{package}*.py")):
            module = f"manyhands.{path.relative_to(SOURCE).with_suffix('').as_posix().replace('/', '.')}"
            for node in ast.parse(path.read_text()).body:
                names = [name.id for name in ast.walk(node) if isinstance(name, ast.Name)]
                for name in names if isinstance(node, ast.Assign) else []:
                    value = getattr(importlib.import_module(module), name, None)
                    if name.isupper() and isinstance(value, int | float | tuple):
                        found[f"{module}.{name}"] = value
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def estimates() -> dict[str, Any]:
    """Return the memory that algorithms are expected to take, by what they hold."""
    found = {}
    for name in algorithms.BUILT_IN:
        given = {"run": {"algo": name}}
        planned = plan(Config.from_plain(merge(SMALL, {"net": {"normalise": False}}, given)))
        shards = planned.config.collect.shards
        found[name] = planned.algorithm.memory(planned.task.layout, shards, planned.spec)
    return found


MADE: dict[str, Callable[[], Any]] = {
    "defaults": defaults,
    "constants": constants,
    "estimates": estimates,
    **{name: partial(numbers_of_a_run, given) for name, given in RUNS.items()},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_computes_what_it_always_did(name: str) -> None:
    kept = json.loads(KEPT.read_text())[name]
    assert MADE[name]() == pytest.approx(kept, rel=TOLERANCE, abs=1e-6)


@pytest.mark.parametrize("name", ["defaults", "constants", "estimates"])
def test_no_default_limit_or_estimate_changes_by_the_way(name: str) -> None:
    assert MADE[name]() == json.loads(KEPT.read_text())[name]


if __name__ == "__main__":
    wanted = sys.argv[1:] or list(MADE)
    held = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    held |= {name: MADE[name]() for name in wanted}
    KEPT.write_text(json.dumps({name: held[name] for name in MADE}, indent=1) + "\n")
