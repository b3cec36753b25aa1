"""`manyhands runs`, `show`, `events` and `rm`: for the runs on disk."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from manyhands.cli.options import add_debug
from manyhands.config.plain_yaml import read_yaml
from manyhands.core.errors import ManyhandsError, UsageError
from manyhands.core.texts import figures, one_line
from manyhands.runs import store

FOLLOW_INTERVAL = 0.5
"""Seconds between two checks for new events."""
WIDE = 200
"""Columns of a table that does not go to a terminal."""


STATUSES = ("running", "solved", "finished", "stopped", "failed", "interrupted", "no checkpoint", "damaged")


def add_runs(runs: Any) -> None:
    runs.add_argument(
        "--status", choices=STATUSES, metavar="STATUS", help=f"only these: {', '.join(STATUSES)}"
    )
    runs.add_argument("--json", action="store_true", help="one JSON list on stdout")
    add_debug(runs)


def add_show(show: Any) -> None:
    show.add_argument("run", metavar="RUN", help="a run's name or path")
    show.add_argument("--out", type=Path, help="where to write the learning curve (default: RUN/plots/)")
    add_debug(show)


def add_events(events: Any) -> None:
    events.add_argument("run", metavar="RUN", help="a run's name or path")
    events.add_argument("--follow", action="store_true", help="go on with what happens now")
    events.add_argument("--json", action="store_true", help="one JSON object a line")
    add_debug(events)


def add_rm(rm: Any) -> None:
    rm.description = "Remove runs from the disk, for good. Runs in use and directories that are no runs stay."
    rm.add_argument(
        "run", metavar="RUN", nargs="+", help="a run's name or path, or a pattern of names: 'CartPole-*'"
    )
    rm.add_argument("--yes", action="store_true", help="do not ask")
    add_debug(rm)


def list_runs(options: argparse.Namespace) -> None:
    found = [_facts(item) for item in store.all_runs()]
    chosen = [facts for facts in found if options.status in (None, facts["status"])]
    if options.json:
        print(json.dumps(chosen, indent=2))
        return
    if not chosen:
        some = f"No run under runs/ is {options.status}." if found else "No runs under runs/ yet."
        print(some if found else f"{some} Make one: manyhands train LunarLander-v3")
        return
    table = Table(box=None)
    for heading in ("run", "environment", "algo", "seed", "status", "steps", "time", "best test"):
        table.add_column(heading, justify="right" if heading in ("steps", "time", "best test") else "left")
    for facts in chosen:  # whose files may hold markup, or a terminal's codes
        table.add_row(*(Text(one_line(cell)) for cell in _run_row(facts)))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE  # names are for other programs to read, so they are not shortened
    console.print(table)


def _facts(item: store.Run) -> dict[str, Any]:
    """Return what is known of a run in a line; of a damaged one its name, and what is wrong is told."""
    facts: dict[str, Any] = {"run": item.name, "path": str(item.path)}
    try:
        config, status = item.config(), item.status()
    except ManyhandsError as error:
        print(f"manyhands: {one_line(error)}", file=sys.stderr)
        return {**facts, "status": "damaged"}
    return {
        **facts,
        "environment": config.env.id,
        "algo": config.run.algo,
        "seed": config.run.seed,
        "status": _state(item, status),
        "steps": status.get("steps", 0),
        "seconds": status.get("seconds", 0.0),
        "best_test": status.get("best_mean", status.get("last_mean")),  # a parent judges its last agent alone
    }


def _run_row(facts: dict[str, Any]) -> tuple[str, ...]:
    if facts["status"] == "damaged" and "algo" not in facts:
        return (facts["run"], "", "", "", "damaged", "", "", "")
    best = facts["best_test"]
    return (
        facts["run"],
        facts["environment"],
        facts["algo"],
        str(facts["seed"]),
        facts["status"],
        f"{facts['steps']:,}",
        f"{facts['seconds']:.1f} s",
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

    names = [name for word in options.run for name in removal.matching(word)]
    found = {run.path.resolve(): run for run in map(removal.removable, names)}
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


COMMANDS = {
    "runs": (add_runs, list_runs),
    "show": (add_show, show),
    "events": (add_events, events),
    "rm": (add_rm, remove),
}
"""Commands by name: what adds its options, and what it does."""
