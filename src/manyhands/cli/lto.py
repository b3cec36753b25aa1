"""`manyhands lto`: train a tuning law. What is done with one is in `cli/law.py`."""

import argparse
from pathlib import Path

from manyhands.cli.law import VERBS, use
from manyhands.cli.options import Parser, add_quiet, add_settings, add_told
from manyhands.config.resolve import merge, parse_override
from manyhands.core.errors import UsageError
from manyhands.envs.lto import STRATEGIES
from manyhands.envs.lto_functions import KNOWN
from manyhands.runs import store

EXAMPLES = """\
examples:
  manyhands lto ackley --drivers 3 --starts heterogeneous --steps 5000 --episodes 30
  manyhands lto rosenbrock --x 2 --c 1 --algo reinforce
  manyhands lto my_module:f --bounds=-5:5 --drivers 16    your own function of an array
  manyhands lto sphere --variants 5 --jitter 0.1          one law for five prototypes
  manyhands lto predict RUN --c 0.3                       the minimum, in one shot
  manyhands lto predict RUN --csv conditions.csv --out minima.csv
  manyhands lto export RUN law.onnx                       or law.npz, for NumPy alone
  manyhands lto plot RUN                                  the function, the law, the error
  manyhands lto judge RUN --unseen 20                     variants that training never saw
"""


def main(arguments: list[str]) -> None:
    given = [argument for argument in arguments if argument != "--debug"]
    if given and given[0] in VERBS:
        use(given)
    else:
        _train(given)


def _parser() -> Parser:
    parser = Parser(
        prog="manyhands lto",
        description="Learn to optimise: an agent that, given conditions c, says which x makes f smallest. "
        "FUNCTION is one of " + ", ".join(KNOWN) + ", or module:function of an array of x and c.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_problem(parser)
    parser.add_argument("--algo", help="ppo (default) or reinforce")
    parser.add_argument("--steps", type=int, help="training steps (default: 5000)")
    parser.add_argument("--episodes", type=int, help="in each training step (default: 30)")
    parser.add_argument(
        "--groups", type=int, help="of episodes: a group is played by one driver (default: by the episodes)"
    )
    parser.add_argument("--drivers", type=int, help="processes that play; 0 = in this one (default: cores)")
    parser.add_argument("--mode", help="sync (default), pipelined or async")
    parser.add_argument(
        "--channel", help="amqp://user:password@host:5672/, ray, ray:auto or ray://host:10001"
    )
    parser.add_argument("--seed", type=int, help="same seed, same result (default: 0)")
    parser.add_argument("--name", help="a name for the run, under runs/")
    parser.add_argument("--dir", type=Path, help="a directory for the run, anywhere")
    parser.add_argument("--resume", metavar="RUN", help="go on with a run")
    add_settings(parser)
    add_told(parser)
    add_quiet(parser)
    return parser


def _train(arguments: list[str]) -> None:
    options = _parser().parse_args(arguments)

    from manyhands.lto.training import learn, learn_on

    told = {"callbacks": options.callback, "log": options.log, "quiet": options.quiet}
    how = {"steps": options.steps, "drivers": options.drivers, "channel": options.channel}
    if options.resume is not None:
        if options.function or options.functions or options.set:
            raise UsageError(
                "--resume goes on with the run's own settings; only --steps and --drivers change"
            )
        learn_on(options.resume, **how, **told)
        return
    names = (*PROBLEM, "algo", "episodes", "groups", "mode", "seed", "name")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    run = learn(
        _functions(options),
        bounds=_bounds(options.bounds),
        starts=_starts(options.starts),
        directory=options.dir,
        settings=merge(*map(parse_override, options.set)),
        **given,
        **how,
        **told,
    )
    if not options.quiet:
        _report(run)


PROBLEM = ("x", "c", "variants", "jitter", "horizon", "intervals", "candidates")
"""Options that describe what is to be optimised, beside the functions, their bounds and the starts."""


def _add_problem(parser: Parser) -> None:
    parser.add_argument("function", nargs="?", metavar="FUNCTION")
    parser.add_argument("--functions", help="several, with commas: each driver its own, one law for all")
    parser.add_argument("--x", type=int, help="variables to move (default: 1)")
    parser.add_argument("--c", type=int, help="conditions, which cannot be moved (default: 1)")
    parser.add_argument(
        "--bounds",
        help="LOW:HIGH for all variables, or one pair for each with commas: --bounds=-5:5,0:1 (x first)",
    )
    parser.add_argument(
        "--starts",
        default="random",
        help=f"{', '.join(STRATEGIES)}, heterogeneous (all three, in turn), or a list, one per driver",
    )
    parser.add_argument("--variants", type=int, help="prototypes that differ a little (default: 1)")
    parser.add_argument("--jitter", type=float, help="how much: 0.1 is a tenth of the range (default: 0)")
    parser.add_argument("--horizon", type=int, help="moves in an episode (default: 2)")
    parser.add_argument("--intervals", type=int, help="of a latin hypercube (default: 20)")
    parser.add_argument("--candidates", type=int, help="of an uncertain start (default: 8)")


def _functions(options: argparse.Namespace) -> tuple[str, ...]:
    if (options.function is None) == (options.functions is None):
        raise UsageError("which function? For example: manyhands lto ackley (or --functions ackley,sphere)")
    names = options.functions.split(",") if options.functions is not None else [options.function]
    return tuple(names)


def _starts(text: str) -> str | tuple[str, ...]:
    return text if text == "heterogeneous" else tuple(text.split(","))


def _bounds(text: str | None) -> tuple[tuple[float, float], ...]:
    if text is None:
        return ()
    try:
        pairs = [tuple(map(float, pair.split(":"))) for pair in text.split(",")]
        return tuple((low, high) for low, high in pairs)
    except ValueError:
        raise UsageError(
            f"--bounds={text} is not LOW:HIGH, such as --bounds=-5:5 or --bounds=-5:5,0:1"
        ) from None


def _report(run: store.Run) -> None:
    from manyhands.lto.judge import read

    rows = read(run.path / "quality.jsonl")  # none of a function of the user's
    if rows:
        best = min(row["mse"] for row in rows)
        print(f"error of the law's f: mse {rows[-1]['mse']:.3g} now, {best:.3g} at best")
