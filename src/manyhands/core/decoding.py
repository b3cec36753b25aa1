"""Plain data from elsewhere as dataclasses: every name, type and size is checked before it is believed."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin

from manyhands.core.errors import WireError

T = TypeVar("T")
MAX_TEXT = 100_000
"""Most characters of one text; a long traceback has a few thousand."""
MAX_ITEMS = 100_000
MAX_INT = 2**64
"""The limit of whole numbers: seeds are made of 64 bits."""
MAX_DEPTH = 8


def decode(cls: type[T], plain: object, what: str = "") -> T:
    """Return `plain` as a `cls`. Names without a default must be there, and no others may be."""
    name = what or f"a {cls.__name__.lower()}"
    if not isinstance(plain, Mapping):
        raise WireError(f"{name} is {type(plain).__name__}, not a set of named values")
    hints, needed = _fields(cls)  # type: ignore[arg-type]
    for given in plain:
        if given not in hints:
            raise WireError(f"{name} has no {given!r:.60}")
    missing = needed - plain.keys()
    if missing:
        raise WireError(f"{name} lacks {', '.join(sorted(missing))}")
    values = {given: _checked(hints[given], value, f"{name}'s {given}") for given, value in plain.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise WireError(f"not {name}: {error!s:.200}") from error


@cache
def _fields(cls: type[Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return every field's type, and the names of those that have no default."""
    fields = dataclasses.fields(cls)
    hints = typing.get_type_hints(cls)
    none = dataclasses.MISSING
    needed = frozenset(f.name for f in fields if f.default is none and f.default_factory is none)
    return {f.name: hints[f.name] for f in fields}, needed


def _checked(hint: Any, value: Any, name: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _checked(next(each for each in arguments if each is not type(None)), value, name)
    if origin is Literal:
        if not any(type(value) is type(each) and value == each for each in arguments):
            raise WireError(f"{name} is {value!r:.60}")
        return value
    if origin in (tuple, list):
        return _items(origin, arguments, value, name)
    if hint is dict or origin is dict:
        check_plain(value, name)
        if not isinstance(value, dict):
            raise WireError(f"{name} is {type(value).__name__}, not named values")
        return value
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast(type, hint), value, name)
    return _scalar(hint, value, name)


def _items(origin: Any, arguments: tuple[Any, ...], value: Any, name: str) -> Any:
    if not isinstance(value, list | tuple) or len(value) > MAX_ITEMS:
        raise WireError(f"{name} is not a list of at most {MAX_ITEMS} values")
    if origin is tuple and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise WireError(f"{name} has {len(value)} values, not {len(arguments)}")
        return tuple(_checked(hint, item, name) for hint, item in zip(arguments, value, strict=True))
    return origin(_checked(arguments[0], item, name) for item in value)


def _scalar(hint: Any, value: Any, name: str) -> Any:
    if hint is float and type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e300:
        return float(value)
    if hint is int and type(value) is int and abs(value) < MAX_INT:
        return value
    if hint is str and type(value) is str and len(value) <= MAX_TEXT:
        return value
    if hint is bool and type(value) is bool:
        return value
    raise WireError(f"{name} is {value!r:.60}")


def check_plain(value: Any, name: str, most: int = MAX_ITEMS) -> int:
    """Refuse what is not numbers, texts, lists and named values, or more than `most`; return how many."""
    return _count_plain(value, name, most, MAX_DEPTH)


def _count_plain(value: Any, name: str, most: int, depth: int) -> int:
    if depth == 0:
        raise WireError(f"{name} is nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        if not all(type(key) is str and len(key) <= MAX_TEXT for key in value):
            raise WireError(f"{name} has a name that is not text")
        items: list[Any] = list(value.values())
    elif type(value) in (list, tuple):
        items = list(value)
    elif _is_scalar(value):
        return 1
    else:
        raise WireError(f"{name} holds {type(value).__name__}, which is not plain data")
    count = 1 + len(items)
    if count > most:
        raise WireError(f"{name} has more than {most} values")
    for item in items:
        count += _count_plain(item, name, most - count, depth - 1)
        if count > most:
            raise WireError(f"{name} has more than {most} values")
    return count


def _is_scalar(value: Any) -> bool:
    return (
        value is None or type(value) in (bool, int, float) or (type(value) is str and len(value) <= MAX_TEXT)
    )
