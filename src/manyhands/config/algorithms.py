"""The algorithms by name: built in, offered by installed packages, or a user's own.

Each is imported when it is asked for.
"""

import dataclasses
import importlib
import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from manyhands.config import plugins
from manyhands.core.action_spaces import ActionSpace
from manyhands.core.errors import UsageError, did_you_mean
from manyhands.core.missing_code import why_not_imported
from manyhands.core.texts import one_line

BUILT_IN = {
    "ppo": "manyhands.algos.ppo:Ppo",
    "a2c": "manyhands.algos.a2c:A2c",
    "reinforce": "manyhands.algos.reinforce:Reinforce",
    "impala": "manyhands.algos.impala:Impala",
    "clone": "manyhands.algos.clone:Clone",
    "dqn": "manyhands.algos.dqn:Dqn",
    "apex": "manyhands.algos.dqn:Apex",
    "a3c": "manyhands.hogwild.a3c:A3c",
    "adqn": "manyhands.hogwild.adqn:Adqn",
}
OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""The form of a name of an algorithm of the user's own: `module:Class`."""
SCRIPT = "__main__"
GIVEN: dict[str, type[Any]] = {}
"""Classes that were given from Python, by the names that stand for them in settings."""


def names() -> list[str]:
    """Return all names that are known here: built in, then those of installed packages."""
    offered = plugins.offered(plugins.ALGORITHMS)
    return [*BUILT_IN, *sorted(name for name in offered if name not in BUILT_IN)]


def check_name(name: str) -> None:
    """Refuse what is no algorithm's name; imports nothing."""
    if name in BUILT_IN or OWN.fullmatch(name) or plugins.find(plugins.ALGORITHMS, name, "algorithm"):
        return
    raise UsageError(
        f"run.algo is {name!r:.100}; it must be one of {', '.join(names())}, or module:Class of your own"
        f"{did_you_mean(name, names())}"
    )


def find(name: str) -> Any:
    """Return the class of the algorithm that is called `name`; see `algos/algorithm.py`."""
    check_name(name)
    return GIVEN[name] if name in GIVEN else _imported(name)


def name_of(kind: type[Any]) -> str:
    """Return the name of a class in settings: a built-in one's own, else `module:Class`.

    One that cannot be imported so, because it is a script's, a notebook's or a function's, is said to be of
    `__main__`: only its own process has it.
    """
    path = f"{kind.__module__}:{kind.__name__}"
    for name, built_in in BUILT_IN.items():
        if built_in == path:
            return name
    importable = getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
    return path if importable else f"{SCRIPT}:{kind.__name__}"


def register(kind: Any) -> str:
    """Remember a class that was given from Python, and return the name that stands for it in settings."""
    _check_class(kind, f"algo is {kind!r:.100}")
    name = name_of(kind)
    if name not in BUILT_IN:
        GIVEN[name] = kind
    return name


@cache
def _imported(name: str) -> Any:
    point = None if ":" in name or name in BUILT_IN else plugins.find(plugins.ALGORITHMS, name, "algorithm")
    if point is not None:
        found = plugins.load(point, "algorithm")
    else:
        module_name, _, class_name = BUILT_IN.get(name, name).partition(":")
        try:
            found = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"run.algo is {name}, which cannot be imported: {why_not_imported(name, error)}{_again(name)}"
            ) from error
    _check_class(found, f"run.algo is {name}")
    return found


def given(name: str) -> dict[str, type[Any]]:
    """Return the class that was given from Python as `name`, for another process to know; or nothing."""
    return {name: GIVEN[name]} if name in GIVEN else {}


def check_allowed(name: str, allowed: Sequence[str]) -> None:
    """Refuse an algorithm that somebody else names unless it is built in or the owner of this machine allows
    exactly that; imports nothing."""
    check_name(name)
    if name not in BUILT_IN and name not in allowed:
        raise UsageError(f"{one_line(name, 100)} is not allowed here; start this with --allow {name}")


def supports(name: str, space: ActionSpace) -> bool:
    """Return whether the algorithm has actions of this kind."""
    return isinstance(space, find(name).actions)


def _again(name: str) -> str:
    """Say what to try where a run was made from Python with a class that only its own program has."""
    module, _, cls = name.partition(":")
    return f"; give it again, from Python: manyhands.train(..., algo={cls})" if module == SCRIPT else ""


def _check_class(found: Any, what: str) -> None:
    if not isinstance(found, type) or not hasattr(found, "learner"):
        raise UsageError(f"{what}, which is not a class derived from manyhands.algos.Algorithm")
    if not dataclasses.is_dataclass(getattr(found, "config", None)):
        raise UsageError(f"{what}, whose `config` is not a dataclass of its settings")


def anywhere() -> tuple[str, ...]:
    """Return the built-in algorithms that do not care where their data is made."""
    return tuple(name for name in BUILT_IN if not find(name).uses_cores)
