"""Runs the fuzzer on every target, and saves the results."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import module_environment
from benchmarks.fuzz import TARGETS
from manyhands.runs.plots import BLUE, ORANGE, new_figure, tidy
from manyhands.runs.report import Report, Table, last_line

COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")
START = 120.0
"""Seconds that a process may take beside fuzzing."""


@dataclass(frozen=True)
class Outcome:
    """One target's result."""

    target: str
    seconds: float = 0.0
    executions: int = 0
    slowest: float = 0.0  # seconds
    growth_mb: float = 0.0
    edges: int = 0  # branches of manyhands that were taken
    features: int = 0  # the same, by how often
    findings: list[dict[str, Any]] = field(default_factory=list)


def report(
    targets: Sequence[str], seconds: float, seed: int, at_once: int, arguments: Sequence[str], out: Path
) -> list[Outcome]:
    def fuzz_and_tell(target: str) -> Outcome:
        outcome = run(target, seconds, seed)
        print(f"{target}: {outcome.executions:,} inputs, {len(outcome.findings)} findings", flush=True)
        for finding in outcome.findings:
            print(f"  {finding['error']} ({finding['where']})", flush=True)
        return outcome

    before = _reported(out) if set(targets) < set(TARGETS) else {}
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        after = {outcome.target: outcome for outcome in pool.map(fuzz_and_tell, targets)}
    found = before | after
    outcomes = [found[target] for target in TARGETS if target in found]
    _report(outcomes, seed, arguments).save(out, _picture(outcomes))
    return outcomes


def _reported(out: Path) -> dict[str, Outcome]:
    """Return what an earlier report holds, by target."""
    path = out / "fuzz.json"
    plain = json.loads(path.read_text())["results"]["targets"] if path.exists() else []
    return {each["target"]: Outcome(**each) for each in plain}


def run(target: str, seconds: float, seed: int) -> Outcome:
    """Fuzzes in a process of its own, so that one that dies or hangs is a finding as well."""
    with tempfile.TemporaryDirectory(prefix="manyhands-fuzz-") as directory:
        words = ("--target", target, "--seconds", str(seconds), "--seed", str(seed))
        command = [sys.executable, "-m", "benchmarks.fuzz", *words]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds + START,
                cwd=directory,
                env=module_environment(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(target, findings=[{"error": "the process hung", "where": "", "input": ""}])
        if done.returncode:
            # The fuzzer leaves the input that ended it in a file.
            left = next(iter(sorted(Path(directory).iterdir())), None)
            error = f"the process ended with {done.returncode}: {last_line(done.stderr)}"
            data = left.read_bytes().hex() if left is not None else ""
            return Outcome(target, findings=[{"error": error, "where": "", "input": data}])
    edges, features = map(int, (COVERAGE.findall(done.stderr) or [(0, 0)])[-1])
    return Outcome(target, edges=edges, features=features, **json.loads(last_line(done.stdout)))


def _report(outcomes: Sequence[Outcome], seed: int, arguments: Sequence[str]) -> Report:
    columns = ("target", "seconds", "inputs", "edges", "features", "slowest", "growth", "unexpected errors")
    rows = [
        (
            outcome.target,
            f"{outcome.seconds:.0f}",
            f"{outcome.executions:,}",
            f"{outcome.edges:,}",
            f"{outcome.features:,}",
            f"{1000 * outcome.slowest:.0f} ms",
            f"{outcome.growth_mb:.0f} MB",
            str(len(outcome.findings)),
        )
        for outcome in outcomes
    ]
    found = [
        f"`{outcome.target}`: {finding['error']} ({finding['where']})".replace("\n", " ")
        for outcome in outcomes
        for finding in outcome.findings
    ]
    return Report(
        name="fuzz",
        title="Fuzzing",
        arguments=arguments,
        seeds=[seed],
        tables=(Table("Nearly right messages", columns, rows),),
        notes=(
            "An input is up to six messages, made from valid ones; most have the right lengths and checksum, "
            "and values that are not.",
            "Unexpected is any error but the refusals that are meant, a warning, text that would not be "
            "printable on a screen, an input that takes more than 1 s, or more than 300 MB of growth.",
            "Edges and features: branches of manyhands that were taken, and how often, as atheris counts.",
            *found,
        ),
        results={"targets": [asdict(outcome) for outcome in outcomes]},
    )


def _picture(outcomes: Sequence[Outcome]) -> Figure:
    figure = new_figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    names = [outcome.target for outcome in outcomes]
    left.barh(names, [outcome.executions for outcome in outcomes], color=BLUE, alpha=0.8, height=0.6)
    left.set_xlabel("inputs")
    right.barh(names, [outcome.edges for outcome in outcomes], color=ORANGE, alpha=0.8, height=0.6)
    right.set_xlabel("edges reached")
    for axes in (left, right):
        axes.invert_yaxis()
        tidy(axes)
        axes.grid(False, axis="y")
    return figure
