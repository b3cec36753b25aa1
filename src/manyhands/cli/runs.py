"""`manyhands runs`, `show`, `events` and `rm`: for the runs on disk."""

import argparse
import json
import sys
import time
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from manyhands.config.resolve import read_yaml
from manyhands.core.errors import ManyhandsError, UsageError
from manyhands.core.texts import figures, one_line
from manyhands.runs import store

FOLLOW_INTERVAL = 0.5
"""Seconds between two checks for new events."""
WIDE = 200
"""Columns of a table that does not go to a terminal."""


def list_runs(options: argparse.Namespace) -> None:
    found = store.all_runs()
    if not found:
        print("No runs under runs/ yet. Make one: manyhands train LunarLander-v3")
        return
    table = Table(box=None)
    for heading in ("run", "environment", "algo", "seed", "status", "steps", "time", "best test"):
        table.add_column(heading, justify="right" if heading in ("steps", "time", "best test") else "left")
    for item in found:
        try:
            row = _run_row(item)
        except ManyhandsError as error:
            row = (item.name, "", "", "", "damaged", "", "", "")
            print(f"manyhands: {one_line(error)}", file=sys.stderr)
        table.add_row(*(Text(one_line(cell)) for cell in row))  # files may hold markup, or a terminal's codes
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE  # names are for other programs to read, so they are not shortened
    console.print(table)


def _run_row(item: store.Run) -> tuple[str, ...]:
    config, status = item.config(), item.status()
    best = status.get("best_mean", status.get("last_mean"))  # a parent judges its last agent alone
    return (
        item.name,
        config.env.id,
        config.run.algo,
        str(config.run.seed),
        _state(item, status),
        f"{status.get('steps', 0):,}",
        f"{status.get('seconds', 0.0):.1f} s",
        "-" if best is None else figures(best),
    )


def _state(run: store.Run, status: dict[str, Any]) -> str:
    state = str(status.get("status", "no checkpoint"))
    return "interrupted" if state == "running" and not run.in_use() else state


def show(options: argparse.Namespace) -> None:
    found = store.find(options.run)
    status = found.status()
    shown: dict[str, Any] = found.config().to_plain()
    if (found.path / store.AVERAGING).exists():
        shown["averaging"] = read_yaml(found.path / store.AVERAGING)
    print(yaml.safe_dump({**shown, "result": status}, sort_keys=False), end="")
    if not found.rows():
        print("No metrics yet, so no learning curve.")
        return
    print(f"learning curve: {found.plot(options.out)}")


def events(options: argparse.Namespace) -> None:
    """Print old events first; with --follow those to come as well, until the run is over."""
    from manyhands.runs.eventlog import event_text, follow_events

    found = store.find(options.run)
    older, tail = follow_events(found.path)
    shown = [*older, *tail.read()]
    while True:
        for row in shown:
            print(json.dumps(row) if options.json else event_text(row), flush=True)
        if not options.follow or not (shown or found.in_use()):
            return
        time.sleep(FOLLOW_INTERVAL)
        shown = tail.read()


def remove(options: argparse.Namespace) -> None:
    """Remove all of them or none: every name is looked at before the first run goes."""
    from manyhands.runs import remove as removal

    found = {run.path.resolve(): run for run in map(removal.removable, options.run)}
    if not options.yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody is here to be asked; give --yes to remove them")
        for run in found.values():
            print(f"{run.path}  {removal.size(run) / 1e6:,.1f} MB")
        answer = input(f"Remove {'it' if len(found) == 1 else f'all {len(found)}'} for good? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            print("Nothing was removed.")
            return
    for run in found.values():
        removal.remove(run)
    print(f"Removed {len(found)} run{'s' if len(found) > 1 else ''}.")
