"""Every command and snippet of the README and the documentation is run, in order, as a reader would.

`doc_pages.py` says which blocks run, and which are only checked.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
from doc_pages import (
    LANGUAGES,
    PAGES,
    README,
    ROOT,
    blocks,
    check_command,
    check_syntax,
    commands,
    follow,
    save,
)

from manyhands.algos import LearnerSetup, Minibatch, OnPolicyConfig
from manyhands.averaging.network import Network
from manyhands.channels.base import WorkerStatus
from manyhands.core.events import FaultReport
from manyhands.core.networks import Conv, Dense
from manyhands.runs.callbacks import RunEvent

ADDRESS = "amqp://manyhands:PASSWORD@127.0.0.1:5672/"
MADE = {
    README: ["first.gif", "runs/mine", "runs/stopped/metrics.csv"],
    "docs/index.md": ["pole.gif", "runs/pole/plots/learning_curve.png", "runs/other", "runs/exact"],
    "docs/python.md": ["curve.png", "pole.gif", "runs/logged/metrics.csv"],
    "docs/tuning-laws.md": ["law.npz", "runs/rig", "runs/law/plots/law.png"],
    "docs/your-own-environment.md": ["corridor.gif", "runs/tuned"],
    "docs/extending/algorithm.md": ["runs/sarsa/checkpoints/best.safetensors"],
    "docs/extending/logger.md": ["runs/told/best.txt"],
}
"""What some pages leave behind, so that nobody empties one without noticing."""
RUN = [page for page in PAGES if any(block.language in ("sh", "python") for block in blocks(page))]
LONGEST_README = 200
REQUEST = re.compile(
    r"<(?:script|img|iframe|source|link(?! rel=\"canonical\"))[^>]*(?:src|href)=\"(?:https?:)?//"
)
"""What a browser would ask the network for, unlike a link that somebody may follow."""


@pytest.mark.parametrize("page", RUN)
def test_what_a_page_shows_runs(page: str, tmp_path: Path) -> None:
    assert list(follow(page, tmp_path))
    missing = [name for name in MADE.get(page, []) if not (tmp_path / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_what_cannot_run_is_checked(page: str) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.where}: a block says what it is for"
        check_syntax(block)
        for line in block.commands() if block.language == "console" else []:
            check_command(line)
        hidden = block.language == "text" and re.search(r"^(me@\w+)?\$ |^manyhands [a-z]+ ", block.text, re.M)
        assert not hidden, f"{block.where}: a command is in a block that nobody checks"


def test_wrong_commands_are_noticed() -> None:
    for line in (
        "manyhands tran CartPole-v1",
        "manyhands train CartPole-v1 --stepz 3",
        "manyhands train CartPole-v1 --set algo.gama=0.9",
        "manyhands worker amqp://host/ --allow my_algos",
        "manyhands lto predict law --d 3",
        "manyhands sweep averaging --alfa 1",
        "pip install '.[amqq]'",
        "make trainn",
    ):
        with pytest.raises((AssertionError, subprocess.CalledProcessError)):
            check_command(line)
    assert check_command("manyhands train CartPole-v1 --algo my_algos:Sarsa --set algo.epsilon=0.1")
    assert not check_command("ray start --head")


def averaging_commands(name: str) -> list[list[str]]:
    return commands("docs/averaging.md", name)


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
    shown = [line for block in blocks("docs/averaging.md") for line in block.commands()]
    making = [line for line in shown if line.startswith("openssl ")]
    assert len(making) == 2
    script = "\n".join(making).replace("DNS:parent.example", "IP:127.0.0.1")
    subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, check=True, capture_output=True)
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


@contextmanager
def broker() -> Iterator[str]:
    """The address that `manyhands broker` prints, on a free port."""
    words = [sys.executable, "-m", "manyhands", "broker", "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "its address is" in process.stdout.readline()
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize("page", ["docs/several-machines.md", "docs/extending/algorithm.md"])
def test_the_commands_for_a_broker_run(page: str, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.file is not None:
            save(block, tmp_path)
    worker, train = (next(filter(lambda w: ADDRESS in w, commands(page, who))) for who in ("worker", "train"))
    assert commands(page, "broker")[0] == ["manyhands", "broker"]
    players = None
    with broker() as url:

        def typed(words: list[str]) -> list[str]:
            return [sys.executable, "-m", *(word.replace(ADDRESS, url) for word in words)]

        try:
            players = subprocess.Popen(typed(worker), cwd=tmp_path, stdout=subprocess.DEVNULL)
            done = subprocess.run(typed(train), cwd=tmp_path, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "Saved to" in done.stdout
        finally:
            if players is not None:
                players.send_signal(signal.SIGINT)
                players.wait(timeout=30)
    assert players.returncode == 0


def test_files_that_the_readme_points_to_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", (ROOT / README).read_text())
    assert len(links) > 20
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_the_readme_is_short() -> None:
    assert len((ROOT / README).read_text().splitlines()) <= LONGEST_README


def test_the_documentation_builds_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        assert not REQUEST.search(page.read_text()), f"{page.name}: {REQUEST.search(page.read_text())}"
        assert not re.search(r'(href|src)="/', page.read_text()), f"{page.name} cannot be opened as a file"
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text()), style.name
    settings = (tmp_path / "site" / "settings.html").read_text()
    assert "algo.gae_lambda" in settings
    assert "How far advantages look ahead" in settings
    api = (tmp_path / "site" / "api.html").read_text()
    missing = [name for name in fields_in_the_api() if f'id="manyhands.{name}"' not in api]
    assert not missing


def fields_in_the_api() -> list[str]:
    shown = {
        "algos.on_policy": (Minibatch, OnPolicyConfig),
        "algos.algorithm": (LearnerSetup,),
        "channels.base": (WorkerStatus,),
        "core.events": (FaultReport,),
        "core.networks": (Dense, Conv),
        "runs.callbacks": (RunEvent,),
    }
    named = [
        f"{module}.{kind.__name__}.{field.name}"
        for module, kinds in shown.items()
        for kind in kinds
        for field in fields(kind)
        if not (kind is RunEvent and field.name in ("numbers", "stopped"))
    ]
    return [*named, "core.errors.UsageError", "core.errors.EnvError", "core.errors.RunError"]


def test_make_targets_exist() -> None:
    for target in ("train", "test", "docs"):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
