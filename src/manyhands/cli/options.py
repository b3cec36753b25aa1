"""Options that several commands share, spelled once. Cheap to import, because `--help` needs all of them."""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from manyhands.core.errors import UsageError, did_you_mean
from manyhands.envs.importing import check_pattern


class Parser(argparse.ArgumentParser):
    """Reports a wrong call in one line, with the help that would have avoided it."""

    helping = False
    """Whether its help is asked for: only then are texts looked up in settings and packages, slowly."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.known: list[argparse.Action] = []
        """All options and arguments that it has."""
        super().__init__(*arguments, **named)

    def add_argument(self, *names: Any, **named: Any) -> argparse.Action:
        action = super().add_argument(*names, **named)
        self.known.append(action)
        return action

    def error(self, message: str) -> NoReturn:
        if wrong := WRONG_NUMBER.fullmatch(message):
            name, kind, given = wrong.groups()
            message = f"{name} is {given}; it must be {NUMBERS[kind]}"
        elif wrong := WRONG_CHOICE.fullmatch(message):
            name, given = wrong.groups()
            choices = [str(each) for action in self.known for each in _choices(action, name)]
            near = did_you_mean(given.strip("'"), choices)
            message = f"{name} is {given}; it must be {' or '.join(choices)}{near}"
        raise UsageError(f"{message} (see `{self.prog} --help`)")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Refuse words of a call that it has no options or arguments for."""
        option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
        several = [name for action in self.known if (name := SEVERAL.get(str(action.metavar)))]
        if option is None and several:
            raise UsageError(f"{' '.join(unknown)}: {several[0]} at a time (see `{self.prog} --help`)")
        options = [name for action in self.known for name in action.option_strings]
        near = did_you_mean(option, options) if option is not None and option.startswith("--") else ""
        raise UsageError(f"{' '.join(unknown)}: there is no such option{near} (see `{self.prog} --help`)")


WRONG_NUMBER = re.compile(r"argument (.+?): invalid (int|float|parse_int) value: (.*)", re.DOTALL)
WRONG_CHOICE = re.compile(r"argument (.+?): invalid choice: (.*) \(choose from .*\)", re.DOTALL)
"""What argparse says of a value that an option does not take."""
WHOLE = "a whole number such as 2"
NUMBERS = {"float": "a number such as 0.5", "int": WHOLE, "parse_int": WHOLE}
SEVERAL = {"ENV": "one environment", "RUN": "one run"}
"""What there is one of in a call, by the name of the argument."""


def _choices(action: argparse.Action, name: str) -> Iterable[Any]:
    """Return what the option or argument called `name` takes; nothing for any other."""
    called = name in ("/".join(action.option_strings), action.metavar)
    return action.choices if called and action.choices is not None else ()


def parse_int(text: str) -> int:
    """Accepts 1000000, 1_000_000 and 1e6."""
    number = float(text)
    if not number.is_integer():
        raise ValueError(text)
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


RUN_SETTINGS = ("workers", "mode", "cpus_per_worker", "steps", "minutes", "until", "seed")
"""Settings of a run that have options of their own."""


def add_run_settings(parser: Any) -> None:
    """Add the options for `RUN_SETTINGS`, and the other way to say the mode."""
    add_setting(parser, "--workers", type=int)
    add_setting(parser, "--mode")
    parser.add_argument(
        "--barrier",
        choices=("on", "off"),
        help="a3c, adqn: whether cores wait for one another after every episode (default: on)",
    )
    add_setting(parser, "--cpus-per-worker", type=float)
    add_setting(parser, "--steps", type=parse_int)
    add_setting(parser, "--minutes", type=float)
    add_setting(parser, "--until")
    add_setting(parser, "--seed", type=int)


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
