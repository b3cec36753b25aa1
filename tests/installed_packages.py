"""Packages that look installed: a module and the entry points that it offers."""

import sys
from pathlib import Path

import pytest

from manyhands.config import algorithms, plugins


def install(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    files: dict[str, str],
    points: dict[str, list[str]],
) -> Path:
    """A directory on the path with `files` and the metadata of a package that offers these entry points."""
    home = path / name
    metadata = home / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    text = "".join(f"[{group}]\n" + "".join(f"{line}\n" for line in lines) for group, lines in points.items())
    (metadata / "entry_points.txt").write_text(text)
    for file, content in files.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(content)
    monkeypatch.syspath_prepend(str(home))
    forget(monkeypatch)
    return home


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before is looked for again, now and after the test."""
    plugins.offered.cache_clear()
    algorithms._imported.cache_clear()
    monkeypatch.setattr(sys, "path_importer_cache", {})
