"""The command line: parsing only. Everything heavy is imported by the command that needs it."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from manyhands import __version__
from manyhands.cli.averaging_options import add_child, add_parent
from manyhands.cli.options import Parser, add_allow, add_debug, add_quiet, add_run, parse_int
from manyhands.config.algorithms import BUILT_IN
from manyhands.core.errors import ManyhandsError, UsageError
from manyhands.core.texts import one_line
from manyhands.system.exits import INTERRUPTED, run_and_end

LONGEST_ERROR = 2000
"""Characters."""

EXAMPLES = """\
examples:
  manyhands train LunarLander-v3                      train until solved, with a tuned recipe
  manyhands train CartPole-v1 --algo a2c --seed 3     another algorithm, another seed
  manyhands train ALE/Breakout-v5                     an Atari game from its pixels
  manyhands train my_module:make_env --workers 2      your own environment
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
  manyhands show LunarLander-v3-ppo-1                 settings, result, learning curve
"""


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="manyhands",
        description="Train deep reinforcement-learning agents on every machine you have.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"manyhands {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    _add_train(commands)
    _add_eval(commands)
    _add_play(commands)
    _add_worker(commands)
    _add_broker(commands)
    add_parent(commands)
    add_child(commands)
    commands.add_parser("lto", help="learn to optimise a function: train, predict, export, plot, judge")
    add_debug(commands.add_parser("runs", help="list the runs under runs/"))
    show = commands.add_parser("show", help="a run's settings, result and learning curve")
    show.add_argument("run", metavar="RUN", help="a run's name or path")
    show.add_argument("--out", type=Path, help="where to write the learning curve (default: RUN/plots/)")
    add_debug(show)
    sweep = commands.add_parser("sweep", help="try many settings: averaging")
    sweep.add_argument("sweep", metavar="NAME", choices=("averaging",), help="averaging: alpha times beta")
    sweep.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="its options; --help lists them")
    return top


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="train an agent",
        description="Train an agent on a Gymnasium environment. Settings come from a tuned recipe when there "
        "is one for the environment, else from general ones; `manyhands show RUN` prints them all.",
    )
    train.add_argument("env", nargs="?", metavar="ENV", help="a Gymnasium id, or module:callable")
    train.add_argument(
        "--algo", help=f"{', '.join(BUILT_IN)}, or module:Class of your own (default: the recipe's)"
    )
    train.add_argument(
        "--workers", type=int, help="worker processes; 0 = inside this process (default: cores)"
    )
    train.add_argument(
        "--mode",
        help="sync (lag 0), pipelined (default: collects while it learns, lag exactly 1) or async",
    )
    train.add_argument(
        "--barrier",
        choices=("on", "off"),
        help="a3c, adqn: whether cores wait for one another after every episode (default: on)",
    )
    train.add_argument(
        "--channel",
        metavar="URL",
        help="who plays: a broker's workers, amqp://user:password@host:5672/; a Ray cluster, ray (started "
        "here), ray:auto or ray://host:10001 (default: $MANYHANDS_CHANNEL, else processes here)",
    )
    train.add_argument("--cpus-per-worker", type=float, help="that Ray sets aside for each (default: 1)")
    train.add_argument(
        "--executors", type=int, default=1, help="learners that share a broker's data, of --steps each"
    )
    train.add_argument("--join", metavar="RUN", help="be one more executor of a run at the broker")
    add_allow(train)
    train.add_argument("--steps", type=parse_int, help="stop after this many environment steps at the latest")
    train.add_argument("--until", help="solved (default) or steps")
    train.add_argument("--seed", type=int, help="same seed, same result (default: 0)")
    add_run(train)
    add_quiet(train)
    add_debug(train)


def _add_eval(commands: Any) -> None:
    judge = commands.add_parser("eval", help="play whole episodes with a run's agent and report the scores")
    judge.add_argument("run", metavar="RUN", help="a run's name or path")
    judge.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    judge.add_argument("--seed", type=int, help="of the episodes (default: 1000000)")
    judge.add_argument("--sample", action="store_true", help="sample actions instead of taking the likeliest")
    _add_which(judge)
    judge.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_debug(judge)


def _add_which(parser: Any) -> None:
    parser.add_argument(
        "--which",
        metavar="CHECKPOINT",
        help="best, last or, of a parent, such as exchange-000500 (default: the best tested, else the last)",
    )


def _add_play(commands: Any) -> None:
    play = commands.add_parser("play", help="record a video of a run's agent")
    play.add_argument("run", metavar="RUN", help="a run's name or path")
    play.add_argument("--out", type=Path, default=Path("play.mp4"), help=".mp4 or .gif (default: play.mp4)")
    play.add_argument("--episodes", type=int, default=1, help="how many, one after the other (default: 1)")
    play.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    _add_which(play)
    add_debug(play)


def _add_worker(commands: Any) -> None:
    worker = commands.add_parser(
        "worker",
        help="play for whatever run a broker brings",
        description="A daemon that knows nothing but the broker. It waits for runs, plays for all of them, "
        "and waits again. Start it before or after `manyhands train --channel URL`, on any machine; Ctrl-C "
        "ends it.",
    )
    worker.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="amqp://user:password@host:5672/, or amqps:// for TLS (default: $MANYHANDS_CHANNEL)",
    )
    worker.add_argument("--procs", type=int, help="processes that play (default: one per core)")
    worker.add_argument("--once", action="store_true", help="leave when the first run is over")
    worker.add_argument(
        "--max-memory", type=int, metavar="MB", help="that a process may hold (default: 80 %% of all, shared)"
    )
    worker.add_argument(
        "--max-lanes", type=int, default=4096, help="environments that a process plays (default: 4096)"
    )
    worker.add_argument(
        "--max-message", type=int, default=64, metavar="MB", help="of one message (default: 64)"
    )
    worker.add_argument("--name", help="how runs call this worker (default: host and process number)")
    add_allow(worker)
    add_debug(worker)


def _add_broker(commands: Any) -> None:
    broker = commands.add_parser(
        "broker",
        help="start a private RabbitMQ node to try things out",
        description="Runs RabbitMQ until Ctrl-C and prints its address, with a password of its own. On "
        "loopback unless --listen says otherwise; a temporary directory unless --dir keeps it.",
    )
    broker.add_argument("--listen", default="127.0.0.1", metavar="ADDRESS", help="(default: 127.0.0.1)")
    broker.add_argument("--port", type=int, default=5672, help="(default: 5672; 0 takes a free one)")
    broker.add_argument("--dir", type=Path, help="keep its queues and settings here")
    broker.add_argument("--password-file", type=Path, help="the password's first line (default: a new one)")
    broker.add_argument("--tls-cert", type=Path, help="speak TLS, with this certificate")
    broker.add_argument("--tls-key", type=Path, help="and this key")
    add_debug(broker)


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; without `arguments`, the one that this process was started with, which then ends."""
    if arguments is None:
        run_and_end(lambda: _run(sys.argv[1:]))
    _run(arguments)


def _run(given: list[str]) -> None:
    """A wrong call ends with 2, a failed one with 1, always in one line unless --debug."""
    sys.path.insert(0, os.getcwd())  # for module:callable, as `python -m` would do
    try:
        if given[:1] == ["lto"]:  # its options and verbs are its own
            from manyhands.cli.lto import main as learn_to_optimise

            learn_to_optimise(given[1:])
            return
        options, unknown = parser().parse_known_args(given)
        if unknown:  # argparse itself would point to the help that has none of a command's options
            command = f"manyhands {options.command}" if options.command else "manyhands"
            raise UsageError(f"{' '.join(unknown)}: there is no such option (see `{command} --help`)")
        if options.command is None:
            parser().print_help()
            return
        from manyhands.cli import commands

        commands.run(options)
    except ManyhandsError as error:
        if "--debug" in given:
            raise
        _leave(str(error), error.exit_code)
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
    """Whether whoever read what this program prints has had enough, such as `head`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor complain at the end
        return True
    return False


def _leave(message: str, code: int) -> NoReturn:
    print(f"manyhands: {one_line(' '.join(message.split()), LONGEST_ERROR)}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
