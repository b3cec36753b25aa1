"""Small mistakes that can be made in the source, found and made by cosmic-ray's operators."""

import ast
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path("src/manyhands")
PACKAGES = {
    "core": "core/*.py",
    "algos": "algos/*.py",
    "collect": "collect/*.py",
    "roles": "roles/*.py",
    "averaging": "averaging/maths.py",
}
OTHERS = ("core/RemoveDecorator", "core/VariableReplacer", "core/VariableInserter", "core/ExceptionReplacer")
"""Operators that are not used: without a decorator or with an unknown exception a module cannot even be
imported, and the other two need to be told names."""
SEED = 1
"""Which of several changes is made at one place."""


@dataclass(frozen=True)
class Mutant:
    """One change at one place."""

    module: str  # relative to the package
    line: int
    operator: str
    occurrence: int  # of what the operator can change in this module
    before: str  # the line, stripped
    after: str = ""  # filled in for those that are chosen

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.before!r} -> {self.after!r}"


def all_mutants(packages: Iterable[str]) -> list[Mutant]:
    """One at every place where there can be one."""
    modules = [path for package in packages for path in sorted(SOURCE.glob(PACKAGES[package]))]
    return [mutant for path in modules for mutant in _mutants(path)]


def complete(mutant: Mutant) -> Mutant:
    """The same with the first line that is another, as it becomes."""
    source = (SOURCE / mutant.module).read_text()
    changed = mutated(source, mutant.operator, mutant.occurrence)
    lines = zip(source.splitlines(), changed.splitlines(), strict=False)
    return replace(mutant, after=next((new.strip() for old, new in lines if old != new), ""))


def mutated(source: str, operator: str, occurrence: int) -> str:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code: str | None = mutate_code(source, get_operator(operator)(), occurrence)
    assert code is not None
    return code


def _mutants(path: Path) -> Iterator[Mutant]:
    source = path.read_text()
    module, rng = str(path.relative_to(SOURCE)), random.Random(f"{SEED} {path.name}")
    places: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    annotated = _annotations(source)
    for place, operator, occurrence in _positions(source):
        if place not in annotated:
            places[place].append((operator, occurrence))
    for (line, _), choices in sorted(places.items()):
        operator, occurrence = rng.choice(choices)
        yield Mutant(module, line, operator, occurrence, source.splitlines()[line - 1].strip())


def _positions(source: str) -> Iterator[tuple[tuple[int, int], str, int]]:
    from cosmic_ray.ast import ast_nodes, get_ast

    nodes = list(ast_nodes(get_ast(source)))
    for name, operator in _operators():
        found = (start for node in nodes for start, _ in operator.mutation_positions(node))
        yield from ((place, name, occurrence) for occurrence, place in enumerate(found))


@cache
def _operators() -> tuple[tuple[str, Any], ...]:
    from cosmic_ray.plugins import get_operator, operator_names

    return tuple((name, get_operator(name)()) for name in operator_names() if name not in OTHERS)


def _annotations(source: str) -> set[tuple[int, int]]:
    """Places inside of type annotations, which nothing evaluates when a program runs."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            found.append(node.returns)
    lines = source.splitlines()
    places = set()
    for expression in found:
        assert expression.end_lineno is not None
        assert expression.end_col_offset is not None
        for line in range(expression.lineno, expression.end_lineno + 1):
            first = expression.col_offset if line == expression.lineno else 0
            last = expression.end_col_offset if line == expression.end_lineno else len(lines[line - 1])
            places |= {(line, column) for column in range(first, last)}
    return places
