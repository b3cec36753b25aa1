"""Reads the sentence under each setting's field from the source of the dataclass.

There is one text for readers of the code, `manyhands settings`, `--help` and the documentation.
"""

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from manyhands.config import algorithms
from manyhands.config.settings import Config, RunConfig

WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "mapping"}


@dataclass(frozen=True)
class Setting:
    """One setting of a section."""

    section: str
    name: str
    kind: str  # what it takes, in words
    choices: bool  # whether that is one of a few words
    default: Any
    sentence: str  # "" where its field has none

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"


def settings_of(algo: str = RunConfig.algo) -> Iterator[Setting]:
    """Yield every setting of a run with this algorithm, by section, in the order in which they stand."""
    for section, cls in sections_of(algo).items():
        yield from settings_in(section, cls)


def settings_in(section: str, cls: type[Any]) -> Iterator[Setting]:
    """Yield the settings of one dataclass."""
    texts, hints = sentences(cls), typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        made = field.default_factory
        default = made() if made is not dataclasses.MISSING else field.default
        hint, text = hints[field.name], texts.get(field.name, "")
        yield Setting(section, field.name, _kind(hint), get_origin(hint) is Literal, default, text)


def sections_of(algo: str) -> dict[str, type[Any]]:
    """Return the dataclass of every section of a run with this algorithm."""
    hints = typing.get_type_hints(Config)
    own = {"algo": algorithms.find(algo).config}
    return {field.name: own.get(field.name, hints[field.name]) for field in dataclasses.fields(Config)}


def sentences(cls: type[Any]) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, in one line; those of its base classes, too."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found.update(_own_sentences(base))
    return found


def _own_sentences(cls: type[Any]) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # it was typed at a prompt, so there is no file to read
        return {}
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = _text(following)
            if text:
                found[field.target.id] = " ".join(text.split())
    return found


def _text(statement: ast.stmt) -> str:
    """Return what a docstring says; "" for any other statement."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _kind(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(map(str, arguments[:-1])) + f" or {arguments[-1]}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if part is type(None) else _kind(part) for part in arguments)
    if origin is tuple:
        return f"list of {WORDS.get(arguments[0], 'values')}s"
    return WORDS.get(origin or hint, str(hint))
