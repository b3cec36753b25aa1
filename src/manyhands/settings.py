"""Where a run's settings come from: recipe or general ones, then a file, then overrides."""

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from manyhands.algos.configs import ALGORITHMS, HogwildConfig
from manyhands.config import CollectConfig, Config, EnvConfig, check_sections
from manyhands.errors import UsageError
from manyhands.plain_yaml import MAX_YAML, parse_yaml
from manyhands.texts import one_line


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings over one another; later ones win."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and isinstance(result.get(key), Mapping) and key != "kwargs":
                result[key] = merge(result[key], value)
            else:
                result[key] = value
    return result


def parse_override(text: str) -> dict[str, Any]:
    """`algo.learning_rate=3e-4` as {"algo": {"learning_rate": 3e-4}}."""
    path, equals, value = text.partition("=")
    section, dot, name = path.strip().partition(".")
    if not (equals and dot and section and name) or "." in name:
        raise UsageError(f"--set {text!r} is not of the form section.name=value, such as algo.gamma=0.99")
    return {section: {name: parse_yaml(value, f"--set {one_line(text, 100)}")}}


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_YAML + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    plain = parse_yaml(raw, str(path))
    if plain is None:
        return {}
    if not isinstance(plain, dict):
        raise UsageError(f"{path} must hold sections such as env, algo, run")
    return plain


GENERAL = {"net": {"normalise": True}, "algo": {"normalise_reward": True}}
"""For environments without a recipe: unknown scales are measured instead of assumed."""
GENERAL_VALUES: dict[str, Any] = {
    "net": {"normalise": True, "activation": "relu", "hidden": [128, 128]},
    "collect": {"shards": 2, "lanes": 4, "steps": 16},
    "algo": {"batch": 128, "learning_rate": 5e-4},
}
"""The same for algorithms that learn the values of actions."""
GENERAL_DQN = {"algo": {"epsilon": 0.05, "epsilon_steps": 50_000, "double": True}}


GENERAL_HOGWILD: dict[str, Any] = {"run": {"mode": "sync", "max_lag": 1_000_000}}
"""For cores that learn together. Their rounds of episodes are versions, of which none is too old."""
GENERAL_A3C: dict[str, Any] = {
    "net": {"hidden": [128]},
    "algo": {"optimizer": "adam", "learning_rate": 1e-3, "average": True, "max_grad_norm": 0.5},
}


def general(algo: str | None) -> dict[str, Any]:
    if algo == "a3c":
        return merge(GENERAL_HOGWILD, GENERAL_A3C)
    if algo == "adqn":
        return merge(GENERAL_HOGWILD, {"net": {"activation": "relu", "hidden": [128, 128]}})
    if algo == "dqn":
        return merge(GENERAL_VALUES, GENERAL_DQN)
    return GENERAL_VALUES if algo == "apex" else GENERAL


def recipe(env_id: str, algo: str | None) -> dict[str, Any]:
    """The tuned settings for an environment, or none. Without `algo`, its favourite algorithm's.

    The environment's name stands before the version, so that `CartPole-v1` uses `CartPole.yaml`.
    """
    name = EnvConfig(env_id).family or env_id.rpartition("/")[2].rpartition("-v")[0]
    file = resources.files("manyhands.recipes") / f"{name}.yaml"
    if ":" in env_id or not file.is_file():
        return {}
    plain: dict[str, Any] = yaml.safe_load(file.read_text())
    algo = algo or plain["favourite"]
    tuned = plain.get(algo) or general(algo)
    return merge(plain.get("all", {}), tuned, {"run": {"algo": algo}})


def resolve(
    env_id: str,
    algo: str | None = None,
    file: Path | None = None,
    overrides: tuple[Mapping[str, Any], ...] = (),
    default_algo: str | None = None,
) -> Config:
    """Recipe (or general settings), then the config file, then overrides; later ones win."""
    given = merge(read_yaml(file) if file else {}, *overrides)
    if algo is None:
        algo = given["run"].get("algo") if isinstance(given.get("run"), Mapping) else None
        algo = default_algo if algo is None else algo
    check_sections(given)
    base: Mapping[str, Any] = {}
    if algo is None or (isinstance(algo, str) and algo in ALGORITHMS):
        base = recipe(env_id, algo) or general(algo)
    named: dict[str, Any] = {"env": {"id": env_id}}
    if algo is not None:
        named["run"] = {"algo": algo}
    config = Config.from_plain(merge(base, given, named))
    if isinstance(config.algo, HogwildConfig) and given.get("collect"):
        raise UsageError(f"{config.run.algo} plays one lane on every core; leave collect.* out")
    return _by_core(config)


def _by_core(config: Config) -> Config:
    """Where cores learn by themselves, each is a shard of one lane."""
    if not isinstance(config.algo, HogwildConfig):
        return config
    cores = config.run.workers if config.run.workers >= 0 else usable_cores()
    return replace(config, collect=CollectConfig(shards=max(1, cores), lanes=1, steps=1))


def usable_cores() -> int:
    """Cores that this process may use, which a container or `taskset` may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
