"""`manyhands lto`: train a tuning law, ask it, take it elsewhere, look at it."""

import argparse
import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.cli.options import Parser, add_quiet, add_settings, add_told
from manyhands.config.resolve import merge, parse_override
from manyhands.core.errors import UsageError
from manyhands.envs.lto import KNOWN, STRATEGIES, Problem, function_of
from manyhands.lto.law import Law, export_npz, export_onnx, problem_of
from manyhands.runs import store

VERBS = ("predict", "export", "plot", "judge")

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
        _use(given)
    else:
        _train(given)


def _train(arguments: list[str]) -> None:
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
    options = parser.parse_args(arguments)

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
    problem = problem_of(run)
    if not problem.imports:
        from manyhands.lto.judge import read

        rows = read(run.path / "quality.jsonl")
        if rows:
            best = min(row["mse"] for row in rows)
            print(f"error of the law's f: mse {rows[-1]['mse']:.3g} now, {best:.3g} at best")
    example = " ".join(["0"] * problem.c)
    print(f"try: manyhands lto predict {run.name}" + (f" --c {example}" if problem.c else ""))


def _use(arguments: list[str]) -> None:
    parser = Parser(prog=f"manyhands lto {arguments[0]}")
    parser._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")  # -1e-3, too
    parser.add_argument("run", metavar="RUN", help="a run's name or path")
    if arguments[0] == "predict":
        parser.add_argument("--c", nargs="+", type=float, help="a condition, in the function's own units")
        parser.add_argument("--csv", type=Path, help="conditions, one a line: columns c1, c2 ...")
        parser.add_argument("--out", type=Path, help="where the answers go, as CSV (default: stdout)")
        parser.add_argument("--json", action="store_true")
    elif arguments[0] == "export":
        parser.add_argument("out", type=Path, help="law.onnx or law.npz")
    elif arguments[0] == "plot":
        parser.add_argument("--out", type=Path, help="(default: RUN/plots/law.png)")
    else:
        parser.add_argument("--unseen", type=int, default=20, help="fresh variants (default: 20)")
    options = parser.parse_args(arguments[1:])
    run = store.find(options.run)
    {"predict": _predict, "export": _export, "plot": _plot, "judge": _judge}[arguments[0]](run, options)


def _predict(run: store.Run, options: argparse.Namespace) -> None:
    law = Law.load(run)
    conditions = _conditions(law.problem, options)
    for name in law.problem.imports:
        try:
            function_of(name)
        except UsageError:  # it lives where the workers are
            x = law.x_alone(conditions)
            _write_csv(options.out, conditions, x, np.full(len(x), np.nan))
            return
    x, values = law.predict(conditions)
    if options.csv is not None:
        _write_csv(options.out, conditions, x, values)
    elif options.json:
        print(json.dumps({"c": conditions[0].tolist(), "x": x[0].tolist(), "f": float(values[0])}))
    else:
        print(f"x = {', '.join(f'{each:.6g}' for each in x[0])}   f = {values[0]:.6g}")


def _conditions(problem: Problem, options: argparse.Namespace) -> Any:
    if (options.c is not None) == (options.csv is not None) and problem.c:
        raise UsageError("give one condition with --c, or many with --csv FILE")
    if options.csv is None:
        return np.array([options.c or []], np.float64)
    headings = [f"c{i + 1}" for i in range(problem.c)]
    try:
        with options.csv.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if any(cell.strip() for cell in line)]
        if lines and [cell.strip() for cell in lines[0]] == headings:
            lines = lines[1:]
        if any(len(line) != problem.c for line in lines):
            raise ValueError(f"not {problem.c} columns everywhere")
        rows = np.array(lines, np.float64).reshape(len(lines), problem.c)
    except (ValueError, csv.Error) as error:  # text that cannot be decoded is a ValueError as well
        raise UsageError(
            f"{options.csv} is not a table of {', '.join(headings)} and numbers: {error}"
        ) from error
    if not len(rows):
        raise UsageError(f"{options.csv} holds no conditions")
    return rows


def _write_csv(out: Path | None, conditions: Any, x: Any, values: Any) -> None:
    headings = [f"c{i + 1}" for i in range(conditions.shape[1])] + [f"x{i + 1}" for i in range(x.shape[1])]
    table = np.concatenate([conditions, x, values[:, None]], axis=1)
    file = out.open("w", newline="") if out is not None else sys.stdout
    writer = csv.writer(file)
    writer.writerow([*headings, "f"])
    writer.writerows(table.tolist())
    if out is not None:
        file.close()
        print(f"Wrote {len(table):,} minima to {out}")


def _export(run: store.Run, options: argparse.Namespace) -> None:
    law = Law.load(run)
    if options.out.suffix == ".onnx":
        export_onnx(law, options.out)
    elif options.out.suffix == ".npz":
        export_npz(law, options.out)
    else:
        raise UsageError(f"{options.out} is neither .onnx nor .npz")
    print(f"Wrote {options.out}")


def _plot(run: store.Run, options: argparse.Namespace) -> None:
    from manyhands.lto.plots import draw

    out: Path = options.out or run.path / "plots" / "law.png"
    draw(run, out)
    print(f"Wrote {out}")


def _judge(run: store.Run, options: argparse.Namespace) -> None:
    """The variants of training, and others: how well one law fits devices that it never saw."""
    from manyhands.lto.judge import Judge

    law = Law.load(run)
    problem = law.problem
    if problem.imports:
        raise UsageError("the true minimum of your own function is not known here")
    seen = Judge(problem).quality(law)
    print(f"seen: {problem.members} functions, mse {seen.mse:.4g}, mean regret {seen.regret:.4g}")
    if problem.jitter and options.unseen > 0:
        wider = problem.fresh_variants(options.unseen)
        judge = Judge(wider, range(problem.members, wider.members))
        unseen = judge.quality(law)
        count = wider.members - problem.members
        print(f"unseen: {count} functions, mse {unseen.mse:.4g}, mean regret {unseen.regret:.4g}")
