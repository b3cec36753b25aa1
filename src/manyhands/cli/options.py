"""Options that several commands share, spelled once. Cheap to import, because `--help` needs all of them."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from manyhands.core.errors import UsageError
from manyhands.envs.importing import check_pattern


class Parser(argparse.ArgumentParser):
    """Reports a wrong call in one line, with the help that would have avoided it."""

    helping = False
    """Whether its help is asked for: only then are texts looked up in settings and packages, slowly."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def parse_int(text: str) -> int:
    """Accepts 1000000, 1_000_000 and 1e6."""
    try:
        number = float(text)
    except ValueError:
        number = 0.5
    if not number.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(number)


def add_run(parser: Any) -> None:
    """Add the options for where a run lies, and for settings that have no option of their own."""
    parser.add_argument("--name", help="a name for the run, under runs/")
    parser.add_argument("--dir", type=Path, help="a directory for the run, anywhere")
    parser.add_argument("--resume", metavar="RUN", help="go on with a run, by name or path")
    add_settings(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings from a YAML file")
    add_recipes(parser)


def add_recipes(parser: Any) -> None:
    parser.add_argument(
        "--recipes",
        type=Path,
        metavar="DIR",
        help="recipes of your own, which win over built-in ones (default: $MANYHANDS_RECIPES)",
    )


def add_algo(parser: Any) -> None:
    from manyhands.config import algorithms

    names = algorithms.names() if parser.helping else algorithms.BUILT_IN
    text = f"{', '.join(names)}, or module:Class of your own (default: the recipe's)"
    parser.add_argument("--algo", help=text)


def add_setting(parser: Any, option: str, **more: Any) -> None:
    """Add an option for the setting of a run that is called like it."""
    text = None
    if parser.helping:
        from manyhands.config.settings import RunConfig

        text = field_help(option, RunConfig, ", or the recipe's", more)
    parser.add_argument(option, help=text, **more)


def add_field(parser: Any, option: str, cls: type[Any], **more: Any) -> None:
    """Add an option for a field of a dataclass."""
    parser.add_argument(option, help=field_help(option, cls, "", more) if parser.helping else None, **more)


def field_help(option: str, cls: type[Any], otherwise: str, more: Mapping[str, Any]) -> str:
    """Return the field's own sentence, choices and default; `otherwise` is what else may decide."""
    from manyhands.config.sentences import settings_in

    name = more.get("dest") or option.removeprefix("--").replace("-", "_")
    setting = next(each for each in settings_in("", cls) if each.name == name)
    text = setting.sentence.removesuffix(".")
    text = f"{text[0].lower()}{text[1:]}"
    if more.get("action") != "store_true":
        choices = f"{setting.kind}; " if setting.choices else ""
        text += f" ({choices}default: {_shown(setting.default)}{otherwise})"
    return text.replace("%", "%%")


def add_told(parser: Any) -> None:
    """Add the options for where a run shows its progress, beside its directory."""
    add_log(parser)
    parser.add_argument(
        "--callback",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="call this with every update, test, fault and checkpoint; may be given again",
    )


def add_log(parser: Any) -> None:
    parser.add_argument(
        "--log",
        action="append",
        metavar="LOGGER",
        help="tensorboard (default, if installed), csv, wandb:PROJECT, mlflow:EXPERIMENT, module:Name of "
        "your own, or none; may be given again",
    )


def _shown(default: Any) -> str:
    if isinstance(default, float):
        return f"{default:g}"
    return f"{default:,}" if isinstance(default, int) else str(default)


def add_settings(parser: Any) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.NAME=VALUE",
        help="override a setting, such as algo.learning_rate=3e-4; may be given again",
    )


def add_allow(parser: Any) -> None:
    parser.add_argument(
        "--allow",
        "--allow-env",
        dest="allow",
        action="append",
        default=[],
        type=check_pattern,
        metavar="MODULE:NAME",
        help="let others name this environment or algorithm, or with 'MODULE:*' all environments that the "
        "module itself defines; without it only environments that are registered with Gymnasium here and "
        "built-in algorithms",
    )


def add_quiet(parser: Any) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress; faults still go to stderr")


def add_debug(parser: Any) -> None:
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
