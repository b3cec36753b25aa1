"""The package as it is installed, without extras, in an environment of its own and far from the checkout."""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from brokers import broker, wait_for

from manyhands.config.settings import Config
from manyhands.core.errors import missing_extra
from manyhands.runs.store import LAST, Run
from manyhands.runs.training import train

ROOT = Path(__file__).parents[2]
MOST = 200 * 10**6
"""Bytes on disk, with everything that it depends on."""
NOT_OURS = ("pip", "setuptools", "_distutils_hack", "pkg_resources")
ABSENT = ("torch", "matplotlib", "Box2D", "tensorboard", "ale_py", "imageio", "ray")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of its commands."""
    home = tmp_path_factory.mktemp("core")
    wheel = ("wheel", "--quiet", "--no-deps", "--wheel-dir", home / "wheels", ROOT)
    subprocess.run([sys.executable, "-m", "pip", *map(str, wheel)], check=True, env=outside())
    venv.create(home / "venv", with_pip=True)
    (made,) = (home / "wheels").glob("manyhands-*.whl")
    install = ("install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", made)
    python = str(home / "venv/bin/python")
    subprocess.run([python, "-m", "pip", *map(str, install)], check=True, env=outside())
    return home / "venv/bin"


def outside() -> dict[str, str]:
    """An environment in which nothing of this checkout can be imported."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def call(core: Path, place: Path, *words: object, code: int = 0) -> str:
    """What a command prints."""
    command = [str(core / "manyhands"), *map(str, words)]
    done = subprocess.run(command, cwd=place, env=outside(), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_it_is_small_and_holds_none_of_the_large_libraries(core: Path) -> None:
    (packages,) = (core.parent / "lib").glob("python*/site-packages")
    files = [path for path in packages.rglob("*") if path.is_file() and not path.is_symlink()]
    ours = [path for path in files if path.relative_to(packages).parts[0].split("-")[0] not in NOT_OURS]
    assert sum(path.stat().st_size for path in ours) < MOST
    assert not [name for name in ABSENT if (packages / name).exists()]
    assert not (packages / "benchmarks").exists()


def test_it_trains_without_torch_judges_and_averages(core: Path, tmp_path: Path) -> None:
    cores = ("--workers", 1, "--steps", 3000, "--until", "steps", "--name")
    call(core, tmp_path, "train", "CartPole-v1", "--algo", "a3c", *cores, "one")
    call(core, tmp_path, "train", "CartPole-v1", "--algo", "adqn", *cores, "two")
    assert "5 episodes" in call(core, tmp_path, "eval", "one", "--episodes", 5)
    assert "two" in call(core, tmp_path, "runs")
    words = ("CartPole-v1", "--listen", "127.0.0.1:0", "--exchanges", "5", "--dir", tmp_path / "parent")
    command = [core / "manyhands", "parent", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=outside()) as parent:
        assert parent.stdout is not None
        address = next(word for line in parent.stdout for word in line.split() if word.startswith("ws://"))
        call(core, tmp_path, "child", address, "--cores", 1)
        assert parent.wait(60) == 0
    assert Run(tmp_path / "parent").status()["version"] == 5


def test_a_worker_plays_dense_policies_and_gives_the_same_bits(core: Path, tmp_path: Path) -> None:
    config = Config.from_plain(
        {
            "env": {"id": "CartPole-v1"},
            "collect": {"shards": 2, "lanes": 2, "steps": 32},
            "run": {"steps": 512, "until": "steps", "workers": 0},
        }
    )
    worker = subprocess.Popen(
        [core / "manyhands", "worker", broker().url, "--procs", "2", "--once"], cwd=tmp_path, env=outside()
    )
    try:
        far = train(config, directory=tmp_path / "far", channel=broker().url)
        wait_for(lambda: worker.poll() is not None)
    finally:
        worker.kill()
        worker.wait()
    near = train(config, directory=tmp_path / "near")
    digests = [
        hashlib.sha256(run.checkpoint(LAST).weights.vector.tobytes()).hexdigest() for run in (far, near)
    ]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("words", "what", "library"),
    [
        (("train", "CartPole-v1"), "ppo", "torch"),
        (("train", "LunarLander-v3", "--algo", "a3c"), "LunarLander-v3", "Box2D"),
        (("train", "ALE/Pong-v5", "--algo", "dqn"), "ALE/Pong-v5", "ale_py"),
        (
            ("train", "CartPole-v1", "--algo", "a3c", "--log", "tensorboard"),
            "--log tensorboard",
            "tensorboard",
        ),
        (("lto", "ackley"), "ppo", "torch"),
    ],
)
def test_what_is_missing_is_one_line_that_names_its_extra(
    core: Path, tmp_path: Path, words: tuple[str, ...], what: str, library: str
) -> None:
    said = call(core, tmp_path, *words, code=2)
    assert said == f"manyhands: {missing_extra(what, library)}\n"
    assert not (tmp_path / "runs").exists()


def test_plots_and_films_need_their_extras(core: Path, tmp_path: Path) -> None:
    words = ("--workers", 1, "--steps", 1000, "--until", "steps", "--name", "pole")
    call(core, tmp_path, "train", "CartPole-v1", "--algo", "a3c", *words)
    assert "'.[plots]'" in call(core, tmp_path, "show", "pole", code=2)
    assert "'.[video]'" in call(core, tmp_path, "play", "pole", code=2)
