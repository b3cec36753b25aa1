"""Resolves a run's settings: recipe or general ones, then a file, then overrides; later ones win."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyhands.config import algorithms, plugins
from manyhands.config.plain_yaml import parse_yaml, read_yaml
from manyhands.config.recipe_files import ALL, DEFAULT_ALGO, find_recipe
from manyhands.config.settings import CollectConfig, Config, RunConfig, check_sections
from manyhands.core.errors import UsageError
from manyhands.core.texts import one_line

OVERRIDE = "--set"
"""The source of settings that were given one by one."""


@dataclass(frozen=True)
class Layer:
    """Settings by section, and where they come from."""

    source: str
    plain: Mapping[str, Any]


@dataclass(frozen=True)
class Resolved:
    """A run's settings, and where each that is no default comes from, by `section.name`."""

    config: Config
    sources: Mapping[str, str]


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings laid over one another; later ones win."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and isinstance(result.get(key), Mapping) and key != "kwargs":
                result[key] = merge(result[key], value)
            else:
                result[key] = value
    return result


def parse_override(text: str) -> dict[str, Any]:
    """Return `algo.learning_rate=3e-4` as {"algo": {"learning_rate": 3e-4}}."""
    path, equals, value = text.partition("=")
    section, dot, name = path.strip().partition(".")
    if not (equals and dot and section and name) or "." in name:
        raise UsageError(f"--set {text!r} is not of the form section.name=value, such as algo.gamma=0.99")
    return {section: {name: parse_yaml(value, f"--set {one_line(text, 100)}")}}


def environment(file: Path | None) -> str | None:
    """Return the environment that a file of settings names, such as a run's `config.yaml`."""
    section = read_yaml(file).get("env") if file is not None else None
    found = section.get("id") if isinstance(section, Mapping) else None
    return found if isinstance(found, str) else None


def recipe(env_id: str, algo: str | None, directory: Path | None = None) -> tuple[Layer, ...]:
    """Return the tuned settings for an environment, or none. Without `algo`, its default algorithm's.

    They lie on top of the general settings, unless the environment has a built-in recipe, which needs none.
    """
    found = find_recipe(env_id, directory)
    if found is None:
        return ()
    algo = algo or str(found.plain[DEFAULT_ALGO])
    source = f"recipe {found.where}"
    tuned, shared = found.plain.get(algo), Layer(source, found.plain.get(ALL, {}))
    layers: tuple[Layer, ...]
    if found.alone:
        layers = shared, Layer(source, tuned) if tuned else general(algo)
    else:
        layers = general(algo), shared, Layer(source, tuned or {})
    layers = (*layers, Layer(source, {"run": {"algo": algo}}))
    if found.own:
        _check_recipe(found.where, layers)
    return layers


def general(algo: str) -> Layer:
    """Return an algorithm's settings for environments without a recipe."""
    return Layer(f"general settings of {algo}", algorithms.find(algo).general)


def _check_recipe(where: str, layers: Sequence[Layer]) -> None:
    """Tell what is wrong with somebody's recipe by its file's name, before others are laid over it."""
    plains = [layer.plain for layer in layers]
    try:
        for plain in plains:
            check_sections(plain)
        Config.from_plain(merge(*plains))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def resolve(
    env_id: str,
    algo: str | None = None,
    file: Path | None = None,
    overrides: Sequence[Mapping[str, Any]] = (),
    default_algo: str | None = None,
    recipes: Path | None = None,
) -> Config:
    """Return the settings: recipe (or general ones), then config file, then overrides; later ones win."""
    return resolve_with_sources(env_id, algo, file, overrides, default_algo, recipes).config


def resolve_with_sources(
    env_id: str | None,
    algo: str | None = None,
    file: Path | None = None,
    overrides: Sequence[Mapping[str, Any]] = (),
    default_algo: str | None = None,
    recipes: Path | None = None,
) -> Resolved:
    """Return the same, and each setting's source; without an environment, the algorithm's general ones."""
    given = [Layer(str(file), read_yaml(file))] if file is not None else []
    given += [Layer(OVERRIDE, override) for override in overrides]
    for layer in given:
        _check_sections(layer, file)
    together = merge(*(layer.plain for layer in given))
    played = env_id if env_id is not None else together.get("env", {}).get("id")
    named = [] if env_id is None else [Layer("ENV", {"env": {"id": env_id}})]
    if algo is not None:
        named.append(Layer("--algo", {"run": {"algo": algo}}))
    wanted = algo if algo is not None else together.get("run", {}).get("algo", default_algo)
    layers = [*_base(played, wanted, recipes), *given, *named]
    try:
        config = Config.from_plain(merge(*(layer.plain for layer in layers)))
    except UsageError as error:
        if file is not None and _is_wrong([layer for layer in layers if layer.source != OVERRIDE], error):
            raise UsageError(f"{file}: {error}") from error
        raise
    sources = {
        f"{section}.{name}": layer.source
        for layer in layers
        for section, settings in layer.plain.items()
        for name in settings
    }
    collect = _collecting(config, "collect" in together)
    changed = [name for name, value in vars(collect).items() if value != getattr(config.collect, name)]
    sources.update({f"collect.{name}": config.run.algo for name in changed})
    return Resolved(replace(config, collect=collect), sources)


def _check_sections(layer: Layer, file: Path | None) -> None:
    try:
        check_sections(layer.plain)
    except UsageError as error:
        if layer.source == str(file):
            raise UsageError(f"{file}: {error}") from error
        raise


def _is_wrong(layers: Sequence[Layer], error: UsageError) -> bool:
    """Return whether these layers alone are refused for the same reason."""
    try:
        Config.from_plain(merge(*(layer.plain for layer in layers)))
    except UsageError as same:
        return str(same) == str(error)
    return False


def _base(env_id: Any, algo: Any, recipes: Path | None) -> tuple[Layer, ...]:
    """Return what others lie over: a recipe, else general settings; nothing for what cannot be looked up."""
    if not isinstance(env_id, str | None) or not isinstance(algo, str | None):
        return ()  # refused with all the rest
    if algo is not None:
        algorithms.check_name(algo)
        plugins.refuse_clash(plugins.ALGORITHMS, algo, algorithms.BUILT_IN, "algorithm")
    found = recipe(env_id, algo, recipes) if env_id else ()
    named = () if algo is None else (Layer("default", {"run": {"algo": algo}}),)
    return found or (general(algo or RunConfig().algo), *named)


def _collecting(config: Config, given: bool) -> CollectConfig:
    """Return how experience is made; the algorithm may have a say in that."""
    one_lane = config.collect.lanes == config.collect.steps == 1  # as a run of it writes into config.yaml
    if config.algorithm.uses_cores and given and not one_lane:
        raise UsageError(f"{config.run.algo} plays one lane on every core; leave collect.* out")
    collect: CollectConfig = config.algorithm.collecting(config.collect, config.run.workers)
    return collect
