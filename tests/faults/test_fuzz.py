"""A few seconds of the fuzzer for everything that reads messages of others; benchmarks/ has longer ones."""

import pytest

from benchmarks.fuzz import TARGETS
from benchmarks.fuzz_report import run

SECONDS = 3.0


@pytest.mark.parametrize("target", TARGETS)
def test_only_the_errors_that_are_meant(target: str) -> None:
    outcome = run(target, SECONDS, seed=11)
    assert outcome.executions > 50
    assert [(finding["error"], finding["where"]) for finding in outcome.findings] == []
