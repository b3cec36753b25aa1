"""YAML as plain data, bounded: a few hundred bytes of aliases can stand for more than a machine holds."""

from pathlib import Path
from typing import Any

import yaml

from manyhands.core.errors import UsageError

MAX_YAML = 256 * 1024
"""Bytes of a file of settings; the largest of ours has a few thousand."""
MAX_VALUES = 20_000
"""Values after every alias is written out."""
MAX_LETTERS = 2**20
"""Characters of these values."""
MAX_DEPTH = 50
MAX_DIGITS = 40
INTEGER = "tag:yaml.org,2002:int"


def parse_yaml(text: str | bytes, where: str) -> Any:
    """Return the plain data in `text`; `where` it comes from is named when it cannot be read."""
    if len(text) > MAX_YAML:
        raise UsageError(f"{where} is larger than {MAX_YAML // 1024} kB, so it holds no settings")
    try:
        loader = yaml.SafeLoader(text if isinstance(text, str) else text.decode())
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count(node, {}, MAX_DEPTH)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # 2021-13-45 is no date
        raise UsageError(f"{where} cannot be read as YAML: {' '.join(str(error).split())[:300]}") from error


def read_sections(raw: bytes, where: str) -> dict[str, Any]:
    """Return the sections in `raw`; {} where there is nothing in it."""
    plain = parse_yaml(raw, where)
    if plain is None:
        return {}
    if not isinstance(plain, dict):
        raise UsageError(f"{where} must hold sections such as env, algo, run")
    return plain


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the sections in a file."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_YAML + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return read_sections(raw, str(path))


def _count(node: yaml.Node, known: dict[int, tuple[int, int]], depth: int) -> tuple[int, int]:
    """Return how many values, and characters in them, `node` stands for.

    One that lies inside of itself is counted until `depth` ends it.
    """
    if id(node) in known:
        return known[id(node)]
    if depth == 0:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
    values, letters = 1, 0
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        parts = node.value
    else:
        parts, letters = [], len(node.value)
        if node.tag == INTEGER and letters > MAX_DIGITS:
            raise ValueError(f"a whole number of {letters} digits")
    for part in parts:
        more = _count(part, known, depth - 1)
        values, letters = values + more[0], letters + more[1]
        if values > MAX_VALUES or letters > MAX_LETTERS:
            most = f"{MAX_VALUES} values or {MAX_LETTERS} characters"
            raise ValueError(f"with its aliases written out it holds more than {most}")
    known[id(node)] = values, letters
    return values, letters
