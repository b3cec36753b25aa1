"""Where a run's settings come from: recipe or general ones, then a file, then overrides."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from manyhands.config import algorithms
from manyhands.config.plain_yaml import MAX_YAML, parse_yaml
from manyhands.config.settings import Config, RunConfig, check_sections
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import UsageError
from manyhands.core.texts import one_line


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


def recipe(env_id: str, algo: str | None) -> dict[str, Any]:
    """The tuned settings for an environment, or none. Without `algo`, its default algorithm's.

    The environment's name stands before the version, so that `CartPole-v1` uses `CartPole.yaml`.
    """
    name = EnvConfig(env_id).family or env_id.rpartition("/")[2].rpartition("-v")[0]
    file = resources.files("manyhands.config.recipes") / f"{name}.yaml"
    if ":" in env_id or not file.is_file():
        return {}
    plain: dict[str, Any] = yaml.safe_load(file.read_text())
    algo = algo or plain["default_algo"]
    tuned = plain.get(algo) or algorithms.find(algo).general
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
    if isinstance(algo, str):
        algorithms.check_name(algo)
    base: Mapping[str, Any] = {}
    if algo is None or isinstance(algo, str):
        base = recipe(env_id, algo) or algorithms.find(algo or RunConfig().algo).general
    named: dict[str, Any] = {"env": {"id": env_id}}
    if algo is not None:
        named["run"] = {"algo": algo}
    config = Config.from_plain(merge(base, given, named))
    if config.algorithm.uses_cores and given.get("collect"):
        raise UsageError(f"{config.run.algo} plays one lane on every core; leave collect.* out")
    return replace(config, collect=config.algorithm.collecting(config.collect, config.run.workers))
