"""Which algorithms there are, by name. Each is imported when it is asked for."""

import importlib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from manyhands.core.action_spaces import ActionSpace
from manyhands.core.errors import UsageError, did_you_mean
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
"""An algorithm of the user's own: `module:Class`."""


def check_name(name: str) -> None:
    """Refuse what is no algorithm's name; imports nothing."""
    if name not in BUILT_IN and not OWN.fullmatch(name):
        raise UsageError(
            f"run.algo is {name!r:.100}; it must be one of {', '.join(BUILT_IN)}, or module:Class of your own"
            f"{did_you_mean(name, BUILT_IN)}"
        )


@cache
def find(name: str) -> Any:
    """The class of the algorithm that is called `name`; see `algos/algorithm.py`."""
    check_name(name)
    module_name, _, class_name = BUILT_IN.get(name, name).partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"run.algo is {name}, which cannot be imported: {error}") from error
    if not isinstance(found, type) or not hasattr(found, "learner"):
        raise UsageError(f"run.algo is {name}, which is not a class derived from manyhands.algos.Algorithm")
    return found


def check_allowed(name: str, allowed: Sequence[str]) -> None:
    """Refuse an algorithm that somebody else names unless it is built in or the owner of this machine allows
    exactly that; imports nothing."""
    check_name(name)
    if name not in BUILT_IN and name not in allowed:
        raise UsageError(f"{one_line(name, 100)} is not allowed here; start this with --allow {name}")


def supports(name: str, space: ActionSpace) -> bool:
    """Whether the algorithm has actions of this kind."""
    return isinstance(space, find(name).actions)


def anywhere() -> tuple[str, ...]:
    """The built-in ones that do not care where their data is made."""
    return tuple(name for name in BUILT_IN if not find(name).uses_cores)
