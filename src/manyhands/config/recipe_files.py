"""Recipes: tuned settings for one environment each, built in, a user's own, or of installed packages."""

import os
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from manyhands.config import algorithms, plugins
from manyhands.config.plain_yaml import read_sections, read_yaml
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import UsageError, did_you_mean

RECIPES_VARIABLE = "MANYHANDS_RECIPES"
"""The environment variable that may name a directory of own recipes, too."""
DEFAULT_ALGO, ALL = "default_algo", "all"
"""Keys of a recipe beside algorithms: the one it is best with, and the settings that all of them share."""


@dataclass(frozen=True)
class RecipeFile:
    """One environment's settings: `plain` maps algorithms to sections."""

    where: str
    plain: dict[str, Any]
    own: bool  # of a user's or a package's, so that what is wrong with it is not our doing
    alone: bool  # in place of the general settings, not on top of them


def find_recipe(env_id: str, directory: Path | None = None) -> RecipeFile | None:
    """Return an environment's recipe: one in the user's `directory` wins over a built-in one, and that over
    those of installed packages, which therefore cannot change what a known environment is trained with.

    The environment's name stands before the version, so that `CartPole-v1` uses `CartPole.yaml`; that of
    `module:callable` is the callable's, and no built-in recipe is meant for one. A file that is named after
    the whole id, `CartPole-v1.yaml`, wins over the one without the version.
    """
    whole = env_id.rpartition(":")[2].rpartition("/")[2]
    name = EnvConfig(env_id).family or whole
    name = name.rpartition("-v")[0] or name
    if not name:
        return None
    built_in = _built_in(f"{name}.yaml", env_id)
    files = dict.fromkeys((f"{whole}.yaml", f"{name}.yaml"))
    own = (_of_user(file, directory) for file in files)
    found = next((recipe for recipe in own if recipe is not None), built_in)
    if found is None:
        packaged = (_of_packages(file) for file in files)
        found = next((recipe for recipe in packaged if recipe is not None), None)
    return found and replace(found, alone=built_in is not None)


def _of_user(file: str, directory: Path | None) -> RecipeFile | None:
    given = "--recipes"
    if directory is None:
        given, named = RECIPES_VARIABLE, os.environ.get(RECIPES_VARIABLE)
        if not named:
            return None
        directory = Path(named)
    if not directory.is_dir():
        raise UsageError(f"{given} is {directory}, which is not a directory of recipes")
    path = directory / file
    return _checked(RecipeFile(str(path), read_yaml(path), own=True, alone=False)) if path.is_file() else None


def _built_in(file: str, env_id: str) -> RecipeFile | None:
    found = resources.files("manyhands.config.recipes") / file
    if ":" in env_id or not found.is_file():
        return None
    return RecipeFile(file, read_sections(found.read_bytes(), file), own=False, alone=True)


def _of_packages(file: str) -> RecipeFile | None:
    found: dict[str, Traversable] = {}
    for points in plugins.offered(plugins.RECIPES).values():
        for point in points:
            plugins.load(point, "recipes")
            place = resources.files(point.value) / file
            if place.is_file():
                found[point.value] = place
    if len(found) > 1:
        raise UsageError(
            f"the packages {' and '.join(sorted(found))} both have a recipe {file}; copy the one that you "
            "want to a directory of your own, for --recipes"
        )
    for package, place in found.items():
        where = f"{file} of {package}"
        return _checked(RecipeFile(where, read_sections(place.read_bytes(), where), own=True, alone=False))
    return None


def _checked(recipe: RecipeFile) -> RecipeFile:
    """Return the recipe; refuse one that names no algorithm, or others than there are."""
    where, plain = recipe.where, recipe.plain
    if not isinstance(plain.get(DEFAULT_ALGO), str):
        raise UsageError(f"{where} must say which algorithm it is for by default, such as default_algo: ppo")
    try:
        algorithms.check_name(plain[DEFAULT_ALGO])
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    for name, sections in plain.items():
        if name in (DEFAULT_ALGO, ALL):
            continue
        if not isinstance(name, str) or not _is_algorithm(name):
            known = [DEFAULT_ALGO, ALL, *algorithms.names()]
            raise UsageError(
                f"{where}: {name!r:.100} is no algorithm; a recipe has default_algo, all, and a part for "
                f"each algorithm{did_you_mean(str(name), known)}"
            )
        if not isinstance(sections, dict):
            raise UsageError(f"{where}: {name} must hold sections such as algo, net, run")
    if not isinstance(plain.get(ALL, {}), dict):
        raise UsageError(f"{where}: {ALL} must hold sections such as algo, net, run")
    return recipe


def _is_algorithm(name: str) -> bool:
    try:
        algorithms.check_name(name)
    except UsageError:
        return False
    return True
