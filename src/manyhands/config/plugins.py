"""Parts that installed packages offer by entry points.

Looked up only for a name that is none of manyhands' own: a look takes longer than a command's whole start.
"""

from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, Any

from manyhands.core.errors import UsageError
from manyhands.core.texts import one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ALGORITHMS = "manyhands.algorithms"
"""Entry points whose name is an algorithm's, for `--algo`, and whose value is its class."""
CHANNELS = "manyhands.channels"
"""Entry points whose name is a URL's scheme, for `--channel`, and whose value opens the channel."""
RECIPES = "manyhands.recipes"
"""Entry points whose value is a package with recipes, one YAML file for each environment."""


@cache
def offered(group: str) -> "dict[str, tuple[EntryPoint, ...]]":
    """Return what installed packages offer in `group`, by name."""
    from importlib.metadata import entry_points

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=group):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def find(group: str, name: str, what: str) -> "EntryPoint | None":
    """Return the entry point called `name`; `what` it is, for the message when two packages offer it."""
    points = offered(group).get(name, ())
    if len({point.value for point in points}) > 1:
        raise UsageError(f"{_packages(points)} both offer the {what} {name!r}; uninstall one of them")
    return points[0] if points else None


def refuse_clash(group: str, name: str, own: Collection[str], what: str) -> None:
    """Refuse a package's part that is called like one of manyhands' `own`, instead of choosing silently."""
    if name in own and (points := offered(group).get(name)):
        raise UsageError(
            f"{_packages(points)} offers the {what} {name!r}, which is one of manyhands' own; uninstall it, "
            "or ask its author for another name"
        )


def load(point: "EntryPoint", what: str) -> Any:
    """Return the object behind an entry point."""
    try:
        return point.load()
    except Exception as error:  # whatever a package does when it is imported
        raise UsageError(
            f"the {what} {point.name!r} of {_packages((point,))} cannot be imported from {point.value}: "
            f"{one_line(error)}"
        ) from error


def _packages(points: "tuple[EntryPoint, ...]") -> str:
    names = sorted({point.dist.name if point.dist is not None else point.module for point in points})
    return " and ".join(f"the package {name}" for name in names)
