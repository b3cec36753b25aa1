"""`manyhands settings` and `manyhands recipe`: what a run would be made of, and why."""

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from manyhands.cli.options import (
    RUN_SETTINGS,
    add_algo,
    add_debug,
    add_recipes,
    add_run_settings,
    add_settings,
)
from manyhands.config.resolve import general, merge, parse_override, recipe, resolve_with_sources
from manyhands.config.sentences import Setting, sections_of, settings_of
from manyhands.config.settings import Config, RunConfig
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import UsageError
from manyhands.core.texts import one_line
from manyhands.envs import lto  # noqa: F401 (which registers its environment)
from manyhands.envs.make import check_known
from manyhands.runs import store

DEFAULT = "default"
"""The source of settings that nobody has given."""
WIDE = 100
"""Columns from which on a table has room for sentences; with fewer they stand below their settings."""
WIDEST = 24
"""Columns for a name, a value or a source."""
CHANGED = "bold"
DIM = "dim"


@dataclass(frozen=True)
class Row:
    """A setting, its value here, and where that comes from."""

    setting: Setting
    value: Any
    source: str

    @property
    def shown(self) -> str:
        return as_yaml(self.value)

    @property
    def short_source(self) -> str:
        """The source without a recipe's name, which stands above the table."""
        return (
            self.source.partition(" ")[0] if self.source.startswith(("recipe ", "general ")) else self.source
        )

    @property
    def changed(self) -> bool:
        """Whether it differs from the setting's default."""
        default = self.setting.default
        return bool(self.value != (list(default) if isinstance(default, tuple) else default))

    @property
    def style(self) -> str:
        return DIM if self.source == DEFAULT else CHANGED


def add_show_settings(settings: Any) -> None:
    settings.description = (
        "Every setting of a run, its value here, where that comes from, and what it means; without ENV the "
        "algorithm's general settings, and of a run what its config.yaml says. Nothing is started."
    )
    settings.add_argument(
        "env", nargs="?", metavar="ENV", help="a Gymnasium id, or module:callable; or a run's name or path"
    )
    add_algo(settings)
    settings.add_argument("--config", type=Path, metavar="FILE", help="settings from a YAML file")
    add_settings(settings)
    add_run_settings(settings)
    add_recipes(settings)
    settings.add_argument("--changed", action="store_true", help="only what differs from the defaults")
    settings.add_argument("--json", action="store_true", help="one JSON list on stdout")
    add_debug(settings)


def add_print_recipe(recipe: Any) -> None:
    recipe.description = (
        "Print the tuned settings for an environment as YAML: save them, change them, and train with "
        "--config FILE. Recipes of your own lie in a directory, one file for each environment: "
        "LunarLander.yaml holds default_algo, settings for all algorithms under `all`, and those of each "
        "under its name."
    )
    recipe.add_argument("env", metavar="ENV", help="a Gymnasium id, or module:callable")
    add_algo(recipe)
    add_recipes(recipe)
    add_debug(recipe)


def show_settings(options: argparse.Namespace) -> None:
    env, file = _env_or_run(options.env, options.config)
    own = _own_options(options)
    overrides = [parse_override(text) for text in options.set]
    overrides += [{"run": {name: value}} for name, (value, _) in own.items()]
    found = resolve_with_sources(env, options.algo, file, overrides, recipes=options.recipes)
    sources = {**found.sources, **{f"run.{name}": option for name, (_, option) in own.items()}}
    rows = [row for row in rows_of(found.config, sources) if row.changed or not options.changed]
    if options.json:
        print(json.dumps([_plain(row) for row in rows], indent=2))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        _print_lines(rows)
        return
    console.print(_opening(found.config, found.sources), soft_wrap=True)
    console.print(tables(rows, found.config.run.algo, console.width))


def _env_or_run(given: str | None, file: Path | None) -> tuple[str | None, Path | None]:
    """Return the environment and the file of settings; those of a run where that is what is `given`."""
    if given is None:
        return None, file
    try:
        check_known(EnvConfig(given))
    except UsageError:
        run = store.find_or_none(given)
        if run is None:
            raise
        if file is not None:
            raise UsageError(f"{run.path} is a run, with a config.yaml of its own; no --config") from None
        return None, run.path / "config.yaml"
    return given, file


def _own_options(options: argparse.Namespace) -> dict[str, tuple[Any, str]]:
    """Return the values of settings of a run that have options of their own, each with its option."""
    given = {
        name: (value, f"--{name.replace('_', '-')}")
        for name in RUN_SETTINGS
        if (value := getattr(options, name)) is not None
    }
    if options.barrier is not None:
        if "mode" in given:
            raise UsageError("--barrier on is --mode sync, and off is async; give one of them")
        given["mode"] = ("sync" if options.barrier == "on" else "async", "--barrier")
    return given


def rows_of(config: Config, sources: Mapping[str, str]) -> Iterable[Row]:
    plain = config.to_plain()
    for setting in settings_of(config.run.algo):
        value = plain[setting.section][setting.name]
        yield Row(setting, value, sources.get(setting.path, DEFAULT))


def as_yaml(value: Any) -> str:
    """Return `value` as it is typed behind `--set section.name=`."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=float("inf"))
    return one_line(text.removesuffix("\n...\n").strip())


def _plain(row: Row) -> dict[str, Any]:
    setting = asdict(row.setting)
    del setting["section"], setting["name"]
    return {"setting": row.setting.path, "value": row.value, "source": row.source, **setting}


def _print_lines(rows: list[Row]) -> None:
    """Print one line for each, for `grep`."""
    if not rows:
        return
    cells = [(row.setting.path, row.shown, row.source, row.setting.sentence) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    for line in cells:
        print(
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]
            ).rstrip()
        )


def _opening(config: Config, sources: Mapping[str, str]) -> Text:
    named = f"{config.env.id} with {config.run.algo}" if "env.id" in sources else config.run.algo
    bases = sorted({source for source in sources.values() if source.startswith(("recipe ", "general "))})
    return Text(one_line(f"{named}: {', '.join(bases) or 'defaults'}. Change one with --set NAME=VALUE."))


def tables(rows: list[Row], algo: str, width: int) -> Group:
    """Return tables of the settings by section."""
    parts: list[Any] = []
    for section, cls in sections_of(algo).items():
        own = [row for row in rows if row.setting.section == section]
        if not own:
            continue
        about = " ".join((cls.__doc__ or "").partition("\n\n")[0].split())
        parts += [Text(), Text.assemble((section, "bold cyan"), "  ", (about, DIM))]
        parts.append(_wide_table(own, rows) if width >= WIDE else _narrow_table(own, rows))
    return Group(*parts)


def _wide_table(rows: list[Row], everything: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for cells in zip(*((row.setting.path, row.shown, row.short_source) for row in everything), strict=True):
        table.add_column(overflow="fold", width=min(WIDEST, max(map(len, cells))))
    table.add_column(ratio=1)
    for row in rows:
        cells = (Text(row.setting.path), Text(row.shown), Text(one_line(row.short_source)))
        table.add_row(*cells, Text(row.setting.sentence, style="not bold"), style=row.style)
    return table


def _narrow_table(rows: list[Row], everything: list[Row]) -> Table:
    table = Table.grid()
    table.add_column()
    widths = max(len(row.setting.path) for row in everything), 14
    for row in rows:
        first = (
            f"{row.setting.path.ljust(widths[0])}  {row.shown.ljust(widths[1])}  {one_line(row.short_source)}"
        )
        table.add_row(Text(first, style=row.style))
        if row.setting.sentence:
            table.add_row(Padding(Text(row.setting.sentence, style=DIM), (0, 0, 0, 4)))
    return table


def print_recipe(options: argparse.Namespace) -> None:
    """Print what a run of this environment starts from, as a file that `--config` takes."""
    check_known(EnvConfig(options.env))
    layers = recipe(options.env, options.algo, options.recipes)
    algo = options.algo or (
        merge(*(layer.plain for layer in layers))["run"]["algo"] if layers else RunConfig.algo
    )
    if not layers:
        layers = (general(algo),)
    plain = merge({"env": {"id": options.env}}, *(layer.plain for layer in layers), {"run": {"algo": algo}})
    where = ", ".join(dict.fromkeys(layer.source for layer in layers))
    print(f"# {one_line(options.env)} with {algo}: {one_line(where)}.")
    print("# Save this, change what you like, and train with it: manyhands train --config FILE")
    ordered = {section: plain[section] for section in sections_of(algo) if plain.get(section)}
    print(yaml.safe_dump(ordered, sort_keys=False), end="")


COMMANDS = {
    "settings": (add_show_settings, show_settings),
    "recipe": (add_print_recipe, print_recipe),
}
"""Commands by name: what adds its options, and what it does."""
