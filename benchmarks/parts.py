"""A benchmark of several parts, saved after each, so that one can be measured again without the others."""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from manyhands.runs.report import OUT, Report, Table, cores

Measured = tuple[list[Table], dict[str, Any]]
"""Tables to read, and numbers to compute and draw with."""
Part = Callable[[], Measured | Iterator[Measured]]
"""Measures a part: at once, or piece by piece, each time with all that there is so far."""


def parse(
    name: str, description: str | None, parts: Sequence[str], seeds: Sequence[int], arguments: list[str]
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=description)
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="some parts")
    parser.add_argument("--go-on", action="store_true", help="with parts that were measured piece by piece")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    before = _kept(name, options.out) if options.go_on else {}
    options.begun = {part: found["numbers"] for part, found in before.items()}
    return options


def measure(
    name: str,
    title: str,
    parts: Mapping[str, Part],
    options: argparse.Namespace,
    notes: Sequence[str],
    picture: Callable[[Mapping[str, Any]], Figure],
) -> None:
    """Measure the parts that `options.only` names; the others stay as they were measured before."""
    measured = _kept(name, options.out) if options.go_on or set(options.only) != set(parts) else {}
    for part in options.only:
        result = parts[part]()
        for tables, numbers in [result] if isinstance(result, tuple) else result:
            measured[part] = {
                "date": time.strftime("%Y-%m-%d %H:%M"),
                "seeds": options.seeds,
                "notes": [note for note in notes if note.startswith(f"{part}:")],
                "tables": [asdict(table) for table in tables],
                "numbers": numbers,
            }
            found = {each: measured[each] for each in parts if each in measured}
            dates = "; ".join(map(_when, found, found.values()))
            report = Report(
                name,
                title,
                (),
                options.seeds,
                [Table(**table) for part in found.values() for table in part["tables"]],
                [*_as_measured(notes, found), f"Measured, each part by itself with `--only`: {dates}."],
                found,
            )
            report.save(options.out, picture({each: part["numbers"] for each, part in found.items()}))


def _when(name: str, part: Mapping[str, Any]) -> str:
    seeds = ", ".join(map(str, part.get("seeds", ())))
    return f"{name} {part['date']}" + (f" with seeds {seeds}" if seeds else "")


def _as_measured(notes: Sequence[str], found: Mapping[str, Any]) -> list[str]:
    """Return the notes; one that begins with a part's name says how that was when it was measured."""
    kept = {name: part["notes"] for name, part in found.items() if "notes" in part}
    others = [note for note in notes if note.partition(":")[0] not in kept]
    return [*others, *(note for own in kept.values() for note in own)]


def side_by_side(jobs: Mapping[tuple[Any, ...], Callable[[], Any]]) -> dict[tuple[Any, ...], Any]:
    """Run the jobs, as many at a time as there are cores, each in processes of its own."""
    with ThreadPoolExecutor(cores()) as pool:
        made = {key: pool.submit(job) for key, job in jobs.items()}
        found = {}
        for key, future in made.items():
            found[key] = future.result()
            print(*key, flush=True)
    return found


def _kept(name: str, out: Path) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads((out / f"{name}.json").read_text())["results"]
    except (OSError, ValueError, KeyError):
        return {}
    return kept
