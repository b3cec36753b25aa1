"""Every command and snippet of the README is run, in order, as a reader would."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.averaging.network import Network

ROOT = Path(__file__).parents[2]


def blocks(kind: str, file: str = "README.md") -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / file).read_text(), re.M | re.S)


def run_in(path: Path, block: str) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", block], cwd=path, capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, block + done.stdout + done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the README's commands have been run."""
    path = tmp_path_factory.mktemp("reader")
    for block in blocks("sh"):
        run_in(path, block)
    return path


def test_the_commands_run(home: Path) -> None:
    assert len(blocks("sh")) >= 2
    assert (home / "runs" / "pole" / "plots" / "learning_curve.png").exists()
    assert (home / "pole.gif").exists()


def test_the_python_snippets_run(home: Path) -> None:
    for block in blocks("python"):
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=home, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr


def test_the_commands_for_atari_run(tmp_path: Path) -> None:
    for block in blocks("sh", "docs/atari.md"):
        run_in(tmp_path, block)


def test_the_commands_for_cores_that_learn_together_run(tmp_path: Path) -> None:
    for block in blocks("sh", "docs/averaging.md"):
        run_in(tmp_path, block)


def averaging_commands(name: str) -> list[list[str]]:
    text = (ROOT / "docs" / "averaging.md").read_text()
    return [
        line.partition("#")[0].split() for line in text.splitlines() if line.startswith(f"manyhands {name} ")
    ]


def test_the_commands_for_averaging_run(tmp_path: Path) -> None:
    parent, child = averaging_commands("parent")[0], averaging_commands("child")[0]
    address = child[2]
    with Network(tmp_path / "parent") as network:
        network.start_parent(*parent[2:], "--exchanges", 3, "--listen", "127.0.0.1:0")
        assert network.address.rpartition(":")[0] == address.rpartition(":")[0]
        network.start_child("small", "--cores", 1)
        run = network.wait(120)
    assert run.status()["exchanges"] >= 3
    assert "Done after" in network.said("parent")


def test_the_commands_for_averaging_beyond_one_machine_run(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "averaging.md").read_text()
    making = [line for line in text.splitlines() if line.startswith("openssl ")]
    assert len(making) == 2
    run_in(tmp_path, "\n".join(making).replace("DNS:parent.example", "IP:127.0.0.1"))
    files = {name: tmp_path / name for name in ("token", "cert.pem", "key.pem")}
    files["0.0.0.0:8765"] = "127.0.0.1:0"
    parent, child = (
        [files.get(word, word) for word in averaging_commands(who)[1]] for who in ("parent", "child")
    )
    with Network(tmp_path / "parent") as network:
        network.start_parent(*parent[2:], "--exchanges", 3)
        assert network.address.startswith("wss://")
        network.start_child("far", *child[3:], "--cores", 1)
        network.wait(120)


def test_the_commands_for_several_machines_run(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "several-machines.md").read_text()
    address = "amqp://manyhands:PASSWORD@127.0.0.1:5672/"
    commands = [line for line in text.splitlines() if line.startswith("manyhands ")]
    assert commands[0] == "manyhands broker"
    worker, train = (line for line in commands if address in line)
    manyhands = [sys.executable, "-m", "manyhands"]
    broker = subprocess.Popen([*manyhands, "broker", "--port", "0"], stdout=subprocess.PIPE, text=True)
    players = None
    try:
        assert broker.stdout is not None
        assert "its address is" in broker.stdout.readline()
        url = broker.stdout.readline().strip()
        words = worker.replace(address, url).split()[1:]
        players = subprocess.Popen([*manyhands, *words], stdout=subprocess.DEVNULL)
        words = train.replace(address, url).split()[1:]
        done = subprocess.run([*manyhands, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert "Solved in" in done.stdout, done.stdout + done.stderr
    finally:
        for process in (players, broker):
            if process is not None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=30)
    assert (players.returncode, broker.returncode) == (0, 0)


def test_files_that_the_readme_points_to_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_make_targets_exist() -> None:
    for target in ("train", "test"):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
