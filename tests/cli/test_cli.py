"""The commands as a person types them: right ones work, wrong ones end in one clear line."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from manyhands.runs.store import Run

TESTS = Path(__file__).parents[1]
QUICK = ["--steps", "4096", "--until", "steps", "--workers", "2", "--quiet"]


def call(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "manyhands", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(TESTS), **environment},
    )


def refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("manyhands: ")
    for word in words:
        assert word in lines[0], lines[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one finished run, `quick`."""
    home = tmp_path_factory.mktemp("home")
    result = call("train", "CartPole-v1", "--name", "quick", *QUICK, cwd=home)
    assert result.returncode == 0, result.stderr
    return home


def test_a_run_directory_holds_everything(trained: Path) -> None:
    run = trained / "runs" / "quick"
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "state.json", "checkpoints"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    rows = Run(run).rows()
    assert rows[-1]["steps"] == 4096
    assert {"collecting", "waiting", "learning", "testing", "lag", "workers"} <= set(rows[-1])
    assert json.loads((run / "state.json").read_text())["status"] in ("finished", "solved")


def test_eval_prints_json_with_its_keys(trained: Path) -> None:
    result = call("eval", "quick", "--episodes", "8", "--json", cwd=trained)
    names = {"mean", "sd", "min", "max", "median", "episodes", "solved", "iqm", "low", "high"}
    assert set(json.loads(result.stdout)) == names
    by_path = call("eval", "runs/quick", "--episodes", "8", "--json", cwd=trained)
    assert by_path.stdout == result.stdout
    sampled = call("eval", "quick", "--episodes", "8", "--json", "--sample", cwd=trained)
    assert sampled.stdout != result.stdout


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(trained: Path) -> None:
    words = ("eval", "quick", "--episodes", "1", "--which")
    assert call(*words, "last", cwd=trained).returncode == 0
    refused(call(*words, "exchange-000100", cwd=trained), 2, "no checkpoint 'exchange-000100'", "last")


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_play_writes_a_video(trained: Path, suffix: str) -> None:
    result = call("play", "quick", "--out", f"play.{suffix}", cwd=trained)
    assert result.returncode == 0, result.stderr
    assert (trained / f"play.{suffix}").stat().st_size > 1000


def test_play_makes_no_directories(trained: Path) -> None:
    refused(call("play", "quick", "--out", "no/dir/x.gif", cwd=trained), 2, "there is no directory no/dir")
    assert not (trained / "no").exists()


def test_an_old_name_of_an_environment_is_warned_of_once(tmp_path: Path) -> None:
    words = ["--steps", "512", "--until", "steps", "--workers", "2", "--quiet", "--dir", "run"]
    done = call("train", "CartPole", *words, cwd=tmp_path)
    assert done.stderr.count("latest versioned environment `CartPole-v1`") == 1, done.stderr


def test_runs_and_show_tell_about_the_run(trained: Path) -> None:
    assert "quick" in call("runs", cwd=trained).stdout
    shown = call("show", "quick", cwd=trained)
    assert "learning_rate" in shown.stdout
    assert (trained / "runs" / "quick" / "plots" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_plain_lines_and_the_closing_words_without_a_terminal(tmp_path: Path) -> None:
    result = call("train", "CartPole-v1", "--steps", "4096", "--until", "steps", cwd=tmp_path)
    assert "steps/s" in result.stdout
    assert "Saved to runs/CartPole-v1-ppo-1" in result.stdout
    assert "manyhands eval" in result.stdout


def test_help_is_quick_and_teaches() -> None:
    best = 10.0
    for _ in range(5):
        began = time.perf_counter()
        result = call("--help", cwd=TESTS)
        best = min(best, time.perf_counter() - began)
    assert "manyhands train LunarLander-v3" in result.stdout
    assert best < 0.5


def test_a_finished_run_can_be_given_more_steps(tmp_path: Path) -> None:
    call("train", "CartPole-v1", "--name", "more", *QUICK, cwd=tmp_path)
    refused(call("train", "--resume", "more", cwd=tmp_path), 2, "give more: --steps")
    assert call("train", "--resume", "more", "--steps", "8e3", "--quiet", cwd=tmp_path).returncode == 0
    assert Run(tmp_path / "runs" / "more").status()["steps"] >= 8000


def test_overrides_and_a_config_file_reach_the_run(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("algo: {gamma: 0.9}\nnet: {hidden: [16]}\n")
    words = ["--config", "mine.yaml", "--set", "algo.learning_rate=3e-4", "--name", "set"]
    assert call("train", "CartPole-v1", *words, *QUICK, cwd=tmp_path).returncode == 0
    config = Run(tmp_path / "runs" / "set").config()
    assert (config.algo.gamma, config.algo.learning_rate, config.net.hidden) == (0.9, 3e-4, (16,))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], ["which environment"]),
        (["train", "LunarLandr-v3"], ["LunarLandr-v3", "did you mean LunarLander-v3"]),
        (["train", "CartPole-v1", "--algo", "pppo"], ["pppo", "did you mean ppo"]),
        (["train", "CartPole-v1", "--mode", "fast"], ["fast", "sync, pipelined, async"]),
        (["train", "CartPole-v1", "--until", "dawn"], ["dawn", "solved, steps"]),
        (
            ["train", "CartPole-v1", "--workers", "-3"],
            ["workers", "0 (inline) or more, or -1 (one per core)"],
        ),
        (["train", "CartPole-v1", "--steps", "-5"], ["steps", "greater than 0"]),
        (["train", "CartPole-v1", "--steps", "many"], ["--steps is 'many'; it must be a whole number such"]),
        (["train", "CartPole-v1", "--seed", "-1"], ["seed"]),
        (["train", "CartPole-v1", "--colour", "red"], ["--colour red", "manyhands train --help"]),
        (["--colour"], ["--colour", "manyhands --help"]),
        (["train", "CartPole-v1", "--sed", "3"], ["--sed 3: there is no such option; did you mean --seed"]),
        (["train", "CartPole-v1", "LunarLander-v3"], ["LunarLander-v3: one environment at a time"]),
        (["eval", "nothing", "something"], ["something: one run at a time"]),
        (
            ["train", "CartPole-v1", "--workers", "two"],
            ["--workers is 'two'; it must be a whole number such"],
        ),
        (["train", "CartPole-v1", "--minutes", "two"], ["--minutes is 'two'; it must be a number such"]),
        (["train", "CartPole-v1", "--barrier", "of"], ["--barrier is 'of'; it must be on or off; did"]),
        (["evall", "nothing"], ["there is no command 'evall'; did you mean eval?", "manyhands --help"]),
        (["train", "CartPole-v1", "--set", "algo.lerning_rate=1"], ["did you mean algo.learning_rate"]),
        (["train", "CartPole-v1", "--set", "algo.gamma=2"], ["algo.gamma", "between 0 and 1"]),
        (["train", "CartPole-v1", "--set", "algo.gamma=high"], ["algo.gamma", "a number"]),
        (["train", "CartPole-v1", "--set", "gamma"], ["section.name=value"]),
        (["train", "CartPole-v1", "--set", "alog.gamma=1"], ["alog", "did you mean algo"]),
        (["train", "CartPole-v1", "--config", "none.yaml"], ["none.yaml"]),
        (["train", "CartPole-v1", "--name", "a/b"], ["a/b", "--dir"]),
        (["train", "--resume", "nothing"], ["there is no run 'nothing'"]),
        (["train", "nowhere:make"], ["nowhere"]),
        (["train", "small_envs:Chain2"], ["Chain2"]),
        (["eval", "nothing"], ["there is no run 'nothing'"]),
        (["eval", "nothing", "--episodes", "0"], ["--episodes"]),
        (["teach"], ["teach"]),
    ],
)
def test_a_wrong_call_ends_with_2_and_one_line(tmp_path: Path, words: list[str], said: list[str]) -> None:
    refused(call(*words, cwd=tmp_path), 2, *said)
    assert list(tmp_path.iterdir()) == [], "nothing half-written"


def test_a_run_directory_that_exists_is_refused(trained: Path) -> None:
    refused(call("train", "CartPole-v1", "--name", "quick", cwd=trained), 2, "exists already", "--resume")


def test_no_permission_to_write_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    result = call("train", "CartPole-v1", "--dir", "file/run", *QUICK, cwd=tmp_path)
    refused(result, 1, "Not a directory")


def test_a_file_size_limit_is_one_line_and_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    words = [
        "train",
        "CartPole-v1",
        "--name",
        "big",
        *QUICK,
        "--workers",
        "0",
        "--set",
        "net.hidden=[256,256]",
    ]
    limited = f"ulimit -f 100; exec {sys.executable} -m manyhands.cli.main {' '.join(words)}"
    result = subprocess.run(["bash", "-c", limited], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    refused(result, 1, "File too large")
    assert list((tmp_path / "runs" / "big" / "checkpoints").iterdir()) == []


def damaged(trained: Path, tmp_path: Path, content: bytes) -> Path:
    copy = tmp_path / "copy"
    (copy / "checkpoints").mkdir(parents=True)
    (copy / "config.yaml").write_text((trained / "runs" / "quick" / "config.yaml").read_text())
    (copy / "checkpoints" / "last.safetensors").write_bytes(content)
    return copy


@pytest.mark.parametrize("command", ["eval", "train"])
def test_damaged_checkpoints_are_refused(trained: Path, tmp_path: Path, command: str) -> None:
    whole = (trained / "runs" / "quick" / "checkpoints" / "last.safetensors").read_bytes()
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": np.zeros(3)}, foreign)
    contents = {
        "half": whole[: len(whole) // 2],
        "empty": b"",
        "garbage": os.urandom(500),
        "foreign": foreign.read_bytes(),
    }
    for name, content in contents.items():
        copy = damaged(trained, tmp_path / name, content)
        words = (
            ["eval", str(copy)] if command == "eval" else ["train", "--resume", str(copy), "--steps", "9000"]
        )
        refused(call(*words, cwd=tmp_path), 1, "last.safetensors")


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = call("train", "Nothing-v0", "--debug", cwd=tmp_path)
    assert "Traceback" in result.stderr
