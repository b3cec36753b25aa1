"""The parts that benchmarks share: what machine measured, how the program is called, how a result is kept."""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table as RichTable

from manyhands.core.errors import RunError
from manyhands.runs.checkpoint import write_atomically
from manyhands.runs.plots import save_png
from manyhands.runs.store import Run

OUT = Path("benchmarks")
WIDTH = 120
"""Columns of a table that is printed into a file."""
PACKAGES = ("manyhands", "numpy", "torch", "gymnasium")


@dataclass(frozen=True)
class Table:
    """Text in columns; the first column is on the left, the others on the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        ruler = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = (self.columns, ruler, *self.rows)
        return f"## {self.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def show(self, console: Console) -> None:
        table = RichTable(title=self.title, title_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


@dataclass(frozen=True)
class Report:
    """One benchmark's result: tables to read, numbers to compute with, a picture, and what it was made on."""

    name: str
    title: str
    arguments: Sequence[str]
    seeds: Sequence[int]
    tables: Sequence[Table]
    notes: Sequence[str]
    results: Mapping[str, Any]
    facts: Mapping[str, str] = field(default_factory=lambda: {**machine(), **versions()})
    called: tuple[str, ...] = ()  # the command of manyhands that made it, where it is no benchmark

    @property
    def command(self) -> str:
        program = ["manyhands", *self.called] if self.called else ["python", "-m", "benchmarks", self.name]
        return shlex.join([*program, *_without_place(self.arguments)])

    def save(self, out: Path, figure: Figure) -> None:
        """Prints the tables and writes NAME.md, NAME.json and NAME.png."""
        console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
        for table in self.tables:
            table.show(console)
        for note in self.notes:
            console.print(note, soft_wrap=True, markup=False)
        save_png(figure, out / f"{self.name}.png")
        plain = {
            "benchmark": self.name,
            "command": self.command,
            "facts": dict(self.facts),
            "seeds": list(self.seeds),
            "results": self.results,
        }
        write_atomically(out / f"{self.name}.json", (json.dumps(plain, indent=2) + "\n").encode())
        write_atomically(out / f"{self.name}.md", self.markdown().encode())
        console.print(f"Saved {out / self.name}.md, .json and .png", soft_wrap=True)

    def markdown(self) -> str:
        tables = "\n".join(table.markdown() for table in self.tables)
        notes = "".join(f"- {note}\n" for note in self.notes)
        facts = "".join(f"- {name}: {value}\n" for name, value in self.facts.items())
        seeds = f"- seeds: {', '.join(map(str, self.seeds))}\n" if self.seeds else ""
        return (
            f"# {self.title}\n\n`{self.command}`\n\n{tables}\n![{self.title}]({self.name}.png)\n\n"
            f"## How to read it\n\n{notes}\n## Measured on\n\n{facts}{seeds}"
        )


def _without_place(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that matter to whoever repeats it: all but the directory of the results."""
    left = list(arguments)
    while "--out" in left:
        at = left.index("--out")
        del left[at : at + 2]
    return left


def machine() -> dict[str, str]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "processor": _processor(),
        "cores": str(cores()),
        "memory": f"{memory:.1f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or "unknown"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def manyhands(*arguments: object) -> list[str]:
    """Return the words that run the real command line in a process of its own."""
    return [sys.executable, "-m", "manyhands.cli", *map(str, arguments)]


def settings(values: Mapping[str, object]) -> list[str]:
    """Return `--set section.name=value` for each value."""
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def run_json(command: Sequence[str], timeout: float) -> dict[str, Any]:
    """Return the JSON object that a command prints last; the error of one that fails has its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise RunError(f"{shlex.join(command)} took longer than {timeout:g} s") from None
    if done.returncode:
        raise RunError(f"{shlex.join(command)} failed: {last_line(done.stderr)}")
    result: dict[str, Any] = json.loads(last_line(done.stdout))
    return result


def trained(words: Sequence[object], path: Path, timeout: float) -> Run:
    """Return the run that a `manyhands` command makes in `path`."""
    command = manyhands(*words, "--dir", path, "--quiet")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise RunError(f"{shlex.join(command)} took longer than {timeout:g} s") from None
    if done.returncode:
        raise RunError(f"{shlex.join(command)} failed: {last_line(done.stderr)}")
    return Run(path)


def at_least_one(text: str) -> int:
    """Return how often something is done, which must be at least once; for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
