"""Do the quick tests notice a mistake? Hundreds, each made by itself in a copy of the source."""

import argparse
import json
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml
from matplotlib.figure import Figure

from benchmarks.mutants import PACKAGES, Mutant, all_mutants, complete
from benchmarks.mutation_tests import QuickTests, measured_tests
from benchmarks.mutation_worker import Worker, workspace
from manyhands.core.errors import RunError
from manyhands.runs.plots import BLUE, RED, new_figure, tidy
from manyhands.runs.report import OUT, Report, Table, at_least_one

LEAST_SCORE = 0.85
CALM, CALM_SECONDS = "tests/unit/test_losses.py", 300.0
"""Tests that must pass in a copy of the source that nothing has changed."""
REASONS = Path("benchmarks/mutation_reasons.yaml")
"""Why mutants survive: by module, then by the line as it was, stripped."""
KILLED, SLOW, SURVIVED, UNCOVERED = "failed", "timed out", "survived", "not covered"


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    result: str
    killer: str  # the test that failed
    seconds: float

    @property
    def noticed(self) -> bool:
        return self.result in (KILLED, SLOW)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks mutation", description=__doc__)
    parser.add_argument("--mutants", type=at_least_one, default=600, help="how many, drawn evenly from all")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--package", nargs="+", choices=sorted(PACKAGES), default=sorted(PACKAGES))
    parser.add_argument("--at-once", type=at_least_one, default=2, help="how many processes test")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--explain", action="store_true", help="write the tables of the last result again")
    options = parser.parse_args(arguments)
    path = options.out / "mutation.json"
    if options.explain:
        saved = json.loads(path.read_text())
        outcomes = [_outcome(row) for row in saved["results"]["outcomes"]]
        report = _report(outcomes, saved["results"]["all"], saved["command"].split()[4:], saved["seeds"])
        report = Report(**{**vars(report), "facts": saved["facts"]})
    else:
        mutants = all_mutants(options.package)
        drawn = random.Random(options.seed).sample(mutants, min(options.mutants, len(mutants)))
        chosen = [complete(mutant) for mutant in drawn]
        with tempfile.TemporaryDirectory(prefix="manyhands-mutation-") as temporary:
            tests = measured_tests(Path(temporary))
            outcomes = _run(chosen, tests, Path(temporary), options.at_once)
        report = _report(outcomes, len(mutants), arguments, [options.seed])
    report.save(options.out, _picture(outcomes))
    if _score(outcomes) < LEAST_SCORE:
        raise RunError(f"the tests notice {_score(outcomes):.1%} of the mistakes")


def _outcome(row: dict[str, object]) -> Outcome:
    mutant = row.pop("mutant")
    assert isinstance(mutant, dict)
    return Outcome(Mutant(**mutant), **row)  # type: ignore[arg-type]


def _run(chosen: Sequence[Mutant], tests: QuickTests, place: Path, at_once: int) -> list[Outcome]:
    """Every mutant in one of the workspaces; in the order of `chosen`."""
    free: SimpleQueue[Worker] = SimpleQueue()
    for i in range(at_once):
        worker = Worker(workspace(place / f"worker-{i}"))
        if failed := worker.run([CALM], CALM_SECONDS):
            raise RunError(f"{failed} fails without any mistake")
        free.put(worker)
    done: list[int] = []

    def one(mutant: Mutant) -> Outcome:
        worker = free.get()
        try:
            names = tests.covering(mutant.module, mutant.line)
            outcome = _outcome_of(worker, mutant, names, tests.seconds(names))
        finally:
            free.put(worker)
        done.append(1)
        mark = "" if outcome.noticed else f"{outcome.result.upper()}: "
        print(f"{len(done)}/{len(chosen)} {mark}{mutant} ({outcome.seconds:.1f} s)", flush=True)
        return outcome

    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(one, chosen))
    while not free.empty():
        free.get().close()
    return outcomes


def _outcome_of(worker: Worker, mutant: Mutant, names: Sequence[str], expected: float) -> Outcome:
    if not names:
        return Outcome(mutant, UNCOVERED, "", 0.0)
    failed, seconds = worker.test(mutant, names, expected)
    if failed is None:
        return Outcome(mutant, SURVIVED, "", seconds)
    return Outcome(mutant, KILLED if failed else SLOW, failed, seconds)


def _score(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.noticed for outcome in outcomes) / len(outcomes)


def _package(outcome: Outcome) -> str:
    return outcome.mutant.module.split("/")[0]


def _report(outcomes: Sequence[Outcome], total: int, arguments: list[str], seeds: Sequence[int]) -> Report:
    reasons = yaml.safe_load(REASONS.read_text()) if REASONS.exists() else {}
    summary, survivors = [], []
    for package in (*sorted({_package(outcome) for outcome in outcomes}), "all"):
        mine = [outcome for outcome in outcomes if package in (_package(outcome), "all")]
        counts = Counter(outcome.result for outcome in mine)
        columns = (str(counts[result]) for result in (KILLED, SLOW, SURVIVED, UNCOVERED))
        summary.append((package, str(len(mine)), *columns, f"{_score(mine):.1%}"))
    for outcome in sorted(outcomes, key=lambda each: (each.mutant.module, each.mutant.line)):
        if not outcome.noticed:
            mutant = outcome.mutant
            reason = reasons.get(mutant.module, {}).get(mutant.before, "")
            code = (f"`{text}`".replace("|", "\\|") for text in (mutant.before, mutant.after))
            survivors.append((f"{mutant.module}:{mutant.line}", *code, reason))
    headers = ("package", "mutants", KILLED, SLOW, SURVIVED, UNCOVERED, "score")
    return Report(
        name="mutation",
        title="What the quick tests notice",
        arguments=arguments,
        seeds=seeds,
        tables=(
            Table("Score", headers, summary),
            Table("What survives", ("where", "before", "after", "why"), survivors),
        ),
        notes=[
            f"Drawn evenly from {total:,} places in the source where cosmic-ray can change an operator, a "
            "comparison, a number, a condition, a loop or an exception; one change at each. Type annotations "
            "are left out.",
            "Tests are those of tests/unit that take at most a few seconds and, by coverage, run the line: "
            "the quickest first, as many as take half a minute together. Mutants survive that none notices.",
            "Modules that only run in processes of their own (a broker, a worker) are held against a few "
            "tests of these processes.",
            "Score: mutants with which a test fails or takes far too long, over all, also over those that no "
            "test covers.",
        ],
        results={"all": total, "outcomes": [asdict(outcome) for outcome in outcomes]},
    )


def _picture(outcomes: Sequence[Outcome]) -> Figure:
    figure = new_figure(8, 3)
    axes = figure.subplots()
    packages = sorted({_package(outcome) for outcome in outcomes}, reverse=True)
    for y, package in enumerate(packages):
        mine = [outcome for outcome in outcomes if _package(outcome) == package]
        score = 100 * _score(mine)
        axes.barh(y, score, color=BLUE)
        axes.text(score + 1, y, f"{score:.0f} % of {len(mine)}", va="center")
    axes.axvline(100 * LEAST_SCORE, color=RED, linestyle="--")
    axes.set_yticks(range(len(packages)), packages)
    axes.set_xlim(0, 118)
    axes.set_xlabel("% of mutants that a test notices (line: asked for)")
    tidy(axes)
    return figure


def git_files() -> list[str]:
    """What the project consists of, new files included."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "src", "tests", "benchmarks")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
