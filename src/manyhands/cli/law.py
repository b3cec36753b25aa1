"""`manyhands lto predict`, `export`, `plot` and `judge`: ask a tuning law, take it elsewhere, look at it."""

import argparse
import csv
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.cli.options import Parser
from manyhands.core.errors import UsageError
from manyhands.envs.lto import Problem, function_of
from manyhands.lto.law import Law, export_npz, export_onnx
from manyhands.lto.truth import CALLS
from manyhands.runs import store

SAMPLE = 3
"""Calls that tell how long a function of the user's takes."""
VERBS = ("predict", "export", "plot", "judge")


def use(arguments: list[str]) -> None:
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
        parser.add_argument(
            "--calls",
            type=int,
            default=CALLS,
            help="of a function of your own, for each condition, in search of what is to be reached "
            f"(default: {CALLS})",
        )
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
    """Judge on the variants of training, and on others: how well one law fits devices that it never saw."""
    from manyhands.lto.judge import Judge

    law = Law.load(run)
    problem = law.problem
    if problem.imports:
        _judge_by_search(law, options.calls)
        return
    seen = Judge(problem).quality(law)
    print(f"seen: {problem.members} functions, mse {seen.mse:.4g}, mean regret {seen.regret:.4g}")
    if problem.jitter and options.unseen > 0:
        wider = problem.fresh_variants(options.unseen)
        judge = Judge(wider, range(problem.members, wider.members))
        unseen = judge.quality(law)
        count = wider.members - problem.members
        print(f"unseen: {count} functions, mse {unseen.mse:.4g}, mean regret {unseen.regret:.4g}")


def _judge_by_search(law: Law, calls: int) -> None:
    """Judge on a function of the user's own: what it costs is said before it is asked so often."""
    from manyhands.lto.judge import Judge, conditions
    from manyhands.lto.truth import LEAST_CALLS, Search

    if calls < LEAST_CALLS:
        raise UsageError(f"--calls is {calls}; it must be {LEAST_CALLS} or more")
    problem = law.problem
    places = conditions(problem)
    law.values(places[:1])  # the first call may load much
    began = time.perf_counter()
    law.values(places[:SAMPLE])
    seconds = (time.perf_counter() - began) / len(places[:SAMPLE])
    count = calls * len(places) * problem.members
    print(
        f"Searching for what can be reached at {len(places)} conditions: {count:,} calls of "
        f"{', '.join(problem.imports)}, about {_duration(count * seconds)} here; --calls N makes it fewer.",
        flush=True,
    )
    judge = Judge(problem, find=Search(law, calls))
    found = judge.quality(law)
    unbeaten = sum(
        int((judge.law_values(law, member) <= judge.truth[member]).sum()) for member in judge.members
    )
    print(
        f"against the best that differential evolution found: mse {found.mse:.4g}, mean regret "
        f"{found.regret:.4g}; at {unbeaten} of {len(places) * problem.members} conditions it found nothing "
        "better than the law"
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
