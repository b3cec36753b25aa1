"""How torch's threads wait is settled before torch is loaded, unless the user has settled it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.system.threads import COUNT, POLICY, SPIN

RUN = "'train', 'CartPole-v1', '--workers', '0', '--steps', '64', '--until', 'steps', '--quiet'"
TOLD = """
import os, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == 'torch':
            print('torch with', os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))

sys.meta_path.insert(0, Finder())
"""
SMALL = "'--set', 'collect.lanes=2', '--set', 'collect.steps=32', '--set', 'run.test_episodes=1'"


def trained(script: str, place: Path, **given: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in (COUNT, POLICY)}
    return subprocess.run(
        [sys.executable, "-c", f"{script}\nfrom manyhands.cli.main import main\nmain([{RUN}, {SMALL}])"],
        cwd=place,
        env={**environment, **given},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, f"{SPIN} None"),
        ({COUNT: "7"}, "7 None"),
        ({POLICY: "active"}, "None active"),
    ],
)
def test_torch_finds_it_when_it_is_loaded(tmp_path: Path, given: dict[str, str], found: str) -> None:
    done = trained(TOLD, tmp_path, **given)
    assert {*done.stdout.splitlines()} == {f"torch with {found}"}  # whenever it is looked for
    assert done.stderr == ""


@pytest.mark.parametrize("given", [{}, {POLICY: "passive"}])
def test_that_it_comes_too_late_is_said_once(tmp_path: Path, given: dict[str, str]) -> None:
    again = f"import torch\nfrom manyhands.cli.main import main\nmain([{RUN}, {SMALL}])"
    done = trained(again, tmp_path, **given)
    assert done.stderr.count("torch was imported before") == (0 if given else 1)
