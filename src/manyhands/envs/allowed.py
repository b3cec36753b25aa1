"""The code that a machine's owner lets others name: environments and functions as `module:name`.

Who sends a name is not trusted; who wrote the allowed module is. So a name reaches only what that module
itself defines at its top level, and only what is meant to be named: an environment, or a maker of one; a
function to optimise. Arguments are plain data, and only those that the signature names.
"""

import importlib
import inspect
import re
import typing
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import Error as GymnasiumError

from manyhands.core.decoding import check_plain
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import UsageError, WireError
from manyhands.core.texts import one_line
from manyhands.envs.importing import MODULE, check_pattern

CALLABLE = re.compile(rf"(?P<module>{MODULE}):(?P<name>[A-Za-z_]\w*)", re.ASCII)
REGISTERED = re.compile(rf"(?P<module>{MODULE}):(?P<name>(?:[\w-]+/)?[\w-]+-v\d+)", re.ASCII)
MAX_ARGUMENTS = 10_000
"""Most values in an environment's arguments; the largest maps of toy worlds have a few thousand."""
GYMNASIUM_ARGUMENTS = ("max_episode_steps", "render_mode")
"""Arguments that Gymnasium takes for any of its environments."""
EVERYTHING = "*"
Kind = Literal["environment", "function"]
WANTED: dict[Kind, str] = {
    "environment": "an environment, or annotated -> gymnasium.Env",
    "function": "annotated -> float",
}


def check(config: EnvConfig, patterns: Sequence[str]) -> None:
    """Refuses an environment from elsewhere unless making it runs only what the owner allowed."""
    for pattern in patterns:
        check_pattern(pattern)
    arguments = dict(config.kwargs)
    try:
        check_plain(arguments, "env.kwargs", MAX_ARGUMENTS)
    except WireError as error:
        raise UsageError(str(error)) from error
    for function in functions(arguments):
        if ":" in function:
            _check_name(function, patterns, "function")
    if ":" in config.id:
        found = _check_name(config.id, patterns, "environment")
        if found is not None:
            _check_arguments(config.id, found, arguments)
            return
    _check_registered(config, arguments)


def functions(arguments: dict[str, Any]) -> list[str]:
    """Return functions to optimise, whatever the id: Gymnasium knows more than one spelling of it."""
    given = arguments.get("functions", ())
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple):
        raise UsageError(f"functions are {type(given).__name__}, not a list of names")
    return [str(name) for name in names]


def _check_name(name: str, patterns: Sequence[str], kind: Kind) -> Any:
    """Return what `name` stands for; None for an id that Gymnasium knows once the module is imported."""
    shown = one_line(name, 100)
    found = REGISTERED.fullmatch(name) if kind == "environment" else None
    match = found or CALLABLE.fullmatch(name)
    if match is None:
        raise UsageError(f"{shown!r} is not of the form module:name, without dots behind the colon")
    module_name, own_name = match["module"], match["name"]
    exactly = name in patterns
    if not exactly and f"{module_name}:{EVERYTHING}" not in patterns:
        raise UsageError(f"{shown} is not allowed here; start this with --allow {shown}")
    module = _import(module_name, kind)
    if found:
        _check_origin(own_name, module)
        return None
    thing = vars(module).get(own_name)
    if not _defined_by(thing, module):
        raise UsageError(f"{shown} is not a class or function that {module_name} itself defines")
    if not exactly and not _meant_for(thing, own_name, kind):
        wanted = WANTED[kind]
        raise UsageError(
            f"{shown}: {module_name}:* covers what is public and {wanted}; "
            f"to allow this one, start with --allow {shown}"
        )
    if kind == "environment" and isinstance(thing, type) and not issubclass(thing, gymnasium.Env):
        raise UsageError(f"{shown} is a class, but not of environments (gymnasium.Env)")
    return thing


def _import(name: str, kind: Kind) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a module does when it is imported
        raise UsageError(f"cannot import {name} for its {kind}: {one_line(error, 200)}") from error


def _defined_by(thing: Any, module: ModuleType) -> bool:
    """Return whether a class or plain function has its code in the module, which does not only import it."""
    if not isinstance(thing, type | FunctionType) or thing.__module__ != module.__name__:
        return False
    if "." in thing.__qualname__:  # a method, or made inside of a function
        return False
    if isinstance(thing, FunctionType):
        return thing.__globals__ is vars(module)
    return True


def _meant_for(thing: Any, name: str, kind: Kind) -> bool:
    """Return whether it says itself that it may be named: by being an environment, or by what it returns."""
    if name.startswith("_"):
        return False
    if isinstance(thing, type):
        return kind == "environment" and issubclass(thing, gymnasium.Env)
    try:
        returned = typing.get_type_hints(thing).get("return")
    except Exception:  # a hint that cannot be resolved says nothing
        return False
    if kind == "function":
        return returned is float
    returned = typing.get_origin(returned) or returned
    return isinstance(returned, type) and issubclass(returned, gymnasium.Env)


def _check_origin(env_id: str, module: ModuleType) -> None:
    """Refuse an id behind a module's name that is not that package's own, but another installed one's."""
    spec = gymnasium.registry.get(env_id)
    entry = spec.entry_point if spec is not None else None
    where = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    if str(where).partition(".")[0] != module.__name__.partition(".")[0]:
        raise UsageError(f"{one_line(env_id, 100)} is not an environment that {module.__name__} registers")


def _check_registered(config: EnvConfig, arguments: dict[str, Any]) -> None:
    """Refuse arguments that name more code: Gymnasium's ids run only what is installed here."""
    if arguments.get("render_mode") == "human":
        raise UsageError("env.kwargs.render_mode asks for a window, which nobody else may open here")
    for name, value in arguments.items():
        if name != "functions" and _names_something(value):
            raise UsageError(
                f"env.kwargs.{one_line(name, 60)} looks like a path or a module, which nobody may send"
            )
    if config.family == "Atari":
        from manyhands.envs.atari import AtariEnv

        _check_arguments(config.id, AtariEnv, arguments)
        return
    spec = gymnasium.registry.get(config.id.rpartition(":")[2])
    if spec is None or spec.entry_point is None:
        raise UsageError(f"there is no environment {one_line(config.id, 100)!r} here")
    try:
        entry = spec.entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
    except (ImportError, AttributeError, GymnasiumError):
        return  # making it tells what is missing
    if getattr(creator, "checks_arguments", False) is not True:
        own = {name: value for name, value in arguments.items() if name not in GYMNASIUM_ARGUMENTS}
        _check_arguments(config.id, creator, own)


def _names_something(value: Any) -> bool:
    if isinstance(value, str):
        return any(letter in value for letter in "/\\:")
    if isinstance(value, dict):
        return any(_names_something(item) for item in (*value, *value.values()))
    return isinstance(value, list | tuple) and any(_names_something(item) for item in value)


def _check_arguments(shown: str, made_by: Any, arguments: dict[str, Any]) -> None:
    try:
        parameters = inspect.signature(made_by).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(f"{one_line(shown, 100)} does not say which arguments it takes") from None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {parameter.name for parameter in parameters if parameter.kind in kinds}
    for name in arguments:
        if name not in named:
            few = ", ".join(sorted(named)) or "none"
            raise UsageError(
                f"{one_line(shown, 100)} has no argument {one_line(name, 60)!r} in its signature; "
                f"it names {one_line(few, 200)}"
            )
