"""The command line: parsing only. Everything heavy is imported by the command that needs it."""

import argparse
import importlib
import os
import select
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from manyhands import __version__
from manyhands.cli.options import Parser
from manyhands.core.errors import EXTRAS, ManyhandsError, UsageError, did_you_mean, missing_extra
from manyhands.core.texts import one_line
from manyhands.system.exits import INTERRUPTED, run_and_end

COMMANDS = {
    "train": ("train", "train an agent"),
    "settings": ("settings", "every setting, its value, where that comes from, and what it means"),
    "recipe": ("settings", "an environment's tuned settings, as a file to change"),
    "check": ("check", "what is wrong with an environment, before a run finds out"),
    "eval": ("judge", "play whole episodes with a run's agent and report the scores"),
    "play": ("judge", "record a video of a run's agent"),
    "worker": ("serve", "play for whatever run a broker brings"),
    "broker": ("serve", "start a private RabbitMQ node to try things out"),
    "parent": ("averaging", "average the weights of children on other machines"),
    "child": ("averaging", "train on this machine for a parent elsewhere"),
    "lto": ("", "learn to optimise a function: train, predict, export, plot, judge"),
    "runs": ("runs", "list the runs under runs/"),
    "show": ("runs", "a run's settings, result and learning curve"),
    "events": ("runs", "what happened in a run: faults, tests, notices, its end"),
    "rm": ("runs", "remove runs"),
    "sweep": ("averaging", "try many settings: averaging"),
}
"""Commands by name: the module of this package that has it, and its help. `lto` parses its own options."""
LONGEST_ERROR = 2000
"""Most characters of an error that are shown."""

EXAMPLES = """\
examples:
  manyhands train LunarLander-v3                      train until solved, with a tuned recipe
  manyhands train CartPole-v1 --algo a2c --seed 3     another algorithm, another seed
  manyhands train ALE/Breakout-v5                     an Atari game from its pixels
  manyhands train my_module:make_env --workers 2      your own environment
  manyhands check my_module:make_env                  is it sound, and how fast?
  manyhands settings LunarLander-v3 --algo ppo        every setting, and where its value comes from
  manyhands train --resume LunarLander-v3-ppo-1       go on where a run stopped
  manyhands eval LunarLander-v3-ppo-1 --episodes 500  judge the agent
  manyhands play LunarLander-v3-ppo-1 --out play.mp4  watch it
  manyhands broker                                    a private RabbitMQ node, to try this:
  manyhands worker amqp://user:password@host/         on any machine: play for whoever asks
  manyhands train CartPole-v1 --channel amqp://...    train with those workers
  manyhands parent LunarLander-v3                     average the weights of small machines
  manyhands child ws://host:8765                      be one of them
  manyhands lto ackley                                learn to optimise a function
  manyhands runs                                      list the runs under runs/
  manyhands rm LunarLander-v3-ppo-1                   remove one of them
  manyhands show LunarLander-v3-ppo-1                 settings, result, learning curve
  manyhands events LunarLander-v3-ppo-1 --follow      what happens, as it happens
"""


class TopParser(Parser):
    """The parser of all commands."""

    commands: dict[str, Parser]


def parser(command: str = "", helping: bool = False) -> TopParser:
    """Return a parser of all commands, with the options of `command` alone."""
    top = TopParser(
        prog="manyhands",
        description="Train deep reinforcement-learning agents on every machine you have.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"manyhands {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    top.commands = {}
    for name, (module, text) in COMMANDS.items():
        one = top.commands[name] = commands.add_parser(name, help=text)
        if name == command and module:
            one.helping = helping
            _command(name)[0](one)
    return top


def _check_command(given: list[str]) -> None:
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:
        raise UsageError(
            f"there is no command {given[0]!r:.100}{did_you_mean(given[0], COMMANDS)} "
            "(see `manyhands --help`)"
        )


def _command(name: str) -> tuple[Callable[[Any], None], Callable[[argparse.Namespace], None]]:
    """Return what adds a command's options, and what it does."""
    module = importlib.import_module(f"manyhands.cli.{COMMANDS[name][0]}")
    found: tuple[Any, Any] = module.COMMANDS[name]
    return found


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; without `arguments`, the one that this process was started with, which then ends."""
    if arguments is None:
        run_and_end(lambda: _run(sys.argv[1:]))
    _run(arguments)


def _run(given: list[str]) -> None:
    """Run a command; a wrong call ends with 2, a failed one with 1, always in one line unless --debug."""
    sys.path.insert(0, os.getcwd())  # for module:callable, as `python -m` would do
    try:
        if given[:1] == ["lto"]:  # its options and verbs are its own
            from manyhands.cli.lto import main as learn_to_optimise

            learn_to_optimise(given[1:])
            return
        helping = any(word in given for word in ("-h", "--help"))
        _check_command(given)
        top = parser(given[0] if given else "", helping)
        options, unknown = top.parse_known_args(given)
        if unknown:  # argparse itself would point to the help that has none of a command's options
            (top.commands[options.command] if options.command else top).refuse(unknown)
        if options.command is None:
            parser().print_help()
            return
        _command(options.command)[1](options)
    except ManyhandsError as error:
        if "--debug" in given:
            raise
        _leave(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        if "--debug" in given or (error.name or "").partition(".")[0] not in EXTRAS:
            raise
        _leave(str(missing_extra(given[0], error.name)), UsageError.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            sys.exit(1)
        if "--debug" in given:
            raise
        where = f": {error.filename}" if error.filename else ""
        _leave(f"{error.strerror or error}{where}", 1)
    except KeyboardInterrupt:
        _leave("interrupted", INTERRUPTED)


def _nobody_reads() -> bool:
    """Return whether whoever read what this program prints has had enough, such as `head`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor complain at the end
    return True


def _leave(message: str, code: int) -> NoReturn:
    print(f"manyhands: {one_line(' '.join(message.split()), LONGEST_ERROR)}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
