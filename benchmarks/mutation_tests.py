"""Which quick tests run which line, and how long each takes."""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.mutants import SOURCE

TESTS = "tests/unit"
SLOWEST = 5.0
"""Seconds that a quick test takes at the most."""
TOGETHER = 30.0
"""Seconds that the tests for one mutant take, when all pass."""
PROCESSES = (
    "tests/channels/test_contract.py::test_all_channels_make_the_same_bits",
    "tests/channels/test_contract.py::test_finishing_twice_is_fine_and_leaves_no_process",
    "tests/channels/test_broker.py::test_commands_end_with_one_line_and_leave_nothing",
)
BROKER = (
    "tests/faults/test_broker_password.py",
    "tests/channels/test_broker.py::test_a_port_that_is_taken_is_said_before_anything_starts",
    "tests/channels/test_broker.py::test_a_broker_does_not_outlive_whoever_started_it_and_keeps_its_password",
    "tests/channels/test_broker.py::test_tls_with_an_own_authority_works_and_without_it_is_refused",
)
ELSEWHERE = {
    "roles/broker.py": BROKER,
    "roles/broker_files.py": BROKER,
    "roles/daemon.py": PROCESSES,
    "roles/player_process.py": PROCESSES,
    "roles/worker.py": PROCESSES,
}
"""Tests of modules that run in processes of their own, which coverage does not see. They need RabbitMQ."""
ELSEWHERE_SECONDS = 30.0
"""How long these take together."""
SETTINGS = """[run]
branch = False
dynamic_context = test_function
source = {source}
data_file = {data}
"""


@dataclass(frozen=True)
class QuickTests:
    """Tests by name, file::function, with all parameters."""

    lasting: Mapping[str, float]  # seconds
    lines: Mapping[tuple[str, int], frozenset[str]]  # tests by module and line

    def covering(self, module: str, line: int) -> list[str]:
        """Those that run the line; for one that runs at import, those that run any line of its module."""
        names = self.lines.get((module, line), frozenset())
        if not names:
            everywhere = (tests for (where, _), tests in self.lines.items() if where == module)
            names = frozenset[str]().union(*everywhere) if (module, line) in self.lines else names
        if not names:
            return list(ELSEWHERE.get(module, ()))
        chosen: list[str] = []
        for name in sorted(names, key=lambda name: (self.lasting[name], name)):
            if self.seconds([*chosen, name]) > TOGETHER:
                break
            chosen.append(name)
        return chosen

    def seconds(self, names: Sequence[str]) -> float:
        elsewhere = [name for name in names if name not in self.lasting]
        return sum(self.lasting.get(name, 0.0) for name in names) + ELSEWHERE_SECONDS * bool(elsewhere)


def measured_tests(place: Path) -> QuickTests:
    """All of them run once, with coverage."""
    settings, data, times = place / "coveragerc", place / "coverage", place / "junit.xml"
    settings.write_text(SETTINGS.format(source=SOURCE.resolve(), data=data))
    options = ("-q", "-p", "no:cacheprovider", "--junitxml", str(times), "-o", "junit_family=xunit1")
    command = (sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest")
    print("running all quick tests once, to see what they cover", flush=True)
    subprocess.run([*command, TESTS, *options], check=True)
    lasting = _times(times)
    return QuickTests(lasting, _lines(data, lasting))


def _times(path: Path) -> dict[str, float]:
    """Of tests that are quick; all parameters of one together."""
    lasting: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        module, function = case.attrib["classname"], case.attrib["name"].split("[")[0]
        lasting[f"{module.replace('.', '/')}.py::{function}"] += float(case.attrib["time"])
    return {name: seconds for name, seconds in lasting.items() if seconds <= SLOWEST}


def _lines(data: Path, lasting: Mapping[str, float]) -> dict[tuple[str, int], frozenset[str]]:
    from coverage import CoverageData

    coverage = CoverageData(str(data))
    coverage.read()
    found = {}
    for file in coverage.measured_files():
        module = str(Path(file).relative_to(SOURCE.resolve()))
        for line, contexts in coverage.contexts_by_lineno(file).items():
            names = {_name(context) for context in contexts if context}
            found[module, line] = frozenset(name for name in names if name in lasting)
    return found


def _name(context: str) -> str:
    """file::function, from module.function."""
    module, _, function = context.rpartition(".")
    return f"{TESTS}/{module.rpartition('.')[2]}.py::{function}"
