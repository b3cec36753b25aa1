"""A user's own algorithm, given as module:Class."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import manyhands
from manyhands.config.resolve import resolve
from manyhands.config.settings import Config
from manyhands.core.errors import ManyhandsError, UsageError
from manyhands.runs.agent import judge
from manyhands.runs.store import LAST, Run
from manyhands.runs.video import record

OWN = "own_algos:Spo"


def digest(run: Run) -> str:
    return hashlib.sha256(run.checkpoint(LAST).weights.vector.tobytes()).hexdigest()


def test_it_learns_and_gives_the_same_bits_in_processes_and_after_a_stop(tmp_path: Path) -> None:
    given = {"run": {"until": "steps", "test_every": 10**9}, "collect": {"steps": 64}}
    digests = []
    for workers, steps in ((0, 24_576), (2, 24_576), (1, 12_288)):
        path = tmp_path / str(workers)
        run = manyhands.train(
            "CartPole-v1", OWN, workers=workers, steps=steps, seed=3, settings=given, directory=path
        )
        if steps < 24_576:
            run = manyhands.train("CartPole-v1", resume=path, steps=24_576)
        digests.append(digest(run))
        assert run.config().algo.penalty == 0.2
    assert len(set(digests)) == 1
    rows = [row["return_mean"] for row in Run(tmp_path / "0").rows() if row.get("return_mean")]
    assert rows[-1] > 1.5 * rows[0]


def test_a_run_is_named_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = manyhands.train("CartPole-v1", OWN, workers=0, steps=2048, until="steps")
    assert run.name == "CartPole-v1-own_algos-Spo-1"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_algos:Nothing", "cannot be imported"),
        ("no_such_module:Spo", "cannot be imported"),
        ("own_algos:NoAlgorithm", "not a class derived from"),
        ("ppoo", "did you mean ppo"),
        ("os.system", "module:Class of your own"),
    ],
)
def test_what_is_no_algorithm_is_refused_by_name(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        resolve("CartPole-v1", name)


def test_others_name_only_what_is_allowed_here() -> None:
    for allowed in ([], ["own_algos:Spo"], ["os:*"]):
        with pytest.raises(UsageError, match="os:system is not allowed here; start this with --allow"):
            Config.from_plain({"run": {"algo": "os:system"}}, allowed)
    config = Config.from_plain({"run": {"algo": OWN}}, [OWN])
    assert config.algorithm.settings.penalty == 0.2


@pytest.mark.parametrize(
    ("name", "env", "said"),
    [
        (
            "Sarsa",
            "Pendulum-v1",
            r"needs one .*\(Discrete\), and Pendulum-v1 has Box\(1\); try --algo ppo",
        ),
        ("NoActing", "CartPole-v1", r"has heads of its own \(values\), so it must define act"),
        ("BadActing", "CartPole-v1", r"act returned float32 of shape \(8, 2\); it must return one action"),
        ("FailingActing", "CartPole-v1", r"own_algos:FailingActing.act failed: KeyError: 'worth'"),
        *(
            (name, "CartPole-v1", rf"^(tests/)?own_algos\.py:\d+: {what}$")
            for name, what in (
                ("FailingActing", "own_algos:FailingActing.act failed: KeyError: 'worth'"),
                ("FailingNote", "own_algos:FailingNote.note failed: IndexError: two lines"),
                ("FailingLoss", "FailingLoss.loss failed: AttributeError: .*'no_such_method'"),
                ("FailingValue", "FailingValue.value failed: KeyError: 'nothing'"),
                ("FailingHeads", r"FailingHeads.heads\['values'\] failed: AttributeError: .*no_such_size.*"),
            )
        ),
        ("HalfHeads", "CartPole-v1", r"^HalfHeads.heads\['values'\] returned 1.0; it must return a size"),
        ("FlatValue", "CartPole-v1", r"^FlatValue.value returned shape \(\d+, 1\); .* return a tensor \[N\]"),
        *(
            (name, "CartPole-v1", rf"^{name}.loss returned {what}.*; it must return a scalar tensor \(and, ")
            for name, what in (
                ("NoLoss", "NoneType"),
                ("RowLoss", r"a tensor of shape \(\d+,\)"),
                ("ConstantLoss", "a tensor without a gradient"),
            )
        ),
    ],
)
def test_what_is_wrong_with_one_is_said_in_a_line(tmp_path: Path, name: str, env: str, said: str) -> None:
    with pytest.raises(ManyhandsError, match=said):
        manyhands.train(env, f"own_algos:{name}", workers=0, steps=2048, directory=tmp_path / "run")


def test_a_loss_may_tell_plain_numbers(tmp_path: Path) -> None:
    run = manyhands.train(
        "CartPole-v1", "own_algos:TellingLoss", workers=0, steps=2048, directory=tmp_path / "run"
    )
    assert run.metrics().last("plain") == 3
    assert run.metrics().last("tensor") > 0


@pytest.mark.parametrize("name", ["FailingLoss", "FailingActing"])
def test_what_fails_is_shown_whole_on_request(tmp_path: Path, name: str) -> None:
    words = ["train", "CartPole-v1", "--algo", f"own_algos:{name}", "--workers", "1", "--steps", "2048"]
    done = subprocess.run(
        [sys.executable, "-m", "manyhands", *words, "--quiet", "--debug", "--dir", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    method, line = {
        "FailingLoss": ("loss", "no_such_method()"),
        "FailingActing": ("act", 'outputs["worth"]'),
    }[name]
    assert f"in {method}\n    return outputs" in done.stderr
    assert line in done.stderr


def test_nobody_plays_at_random_beside_one_that_acts(tmp_path: Path) -> None:
    given = {"collect": {"random": 0.5}}
    with pytest.raises(UsageError, match=r"collect.random stays 0: own_algos:Sarsa chooses its actions"):
        manyhands.train("CartPole-v1", "own_algos:Sarsa", settings=given, directory=tmp_path / "run")


def test_one_that_acts_learns_is_killed_and_resumed_exactly_judged_and_filmed(tmp_path: Path) -> None:
    words = ["CartPole-v1", "--algo", "own_algos:Sarsa", "--workers", "2", "--seed", "3", "--quiet"]
    words += ["--steps", "40960", "--until", "steps", "--set", "run.checkpoint_every=0"]
    words += ["--set", "run.test_every=1000000000"]
    command = [sys.executable, "-m", "manyhands", "train"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    whole, cut = Run(tmp_path / "whole"), Run(tmp_path / "cut")
    subprocess.run([*command, *words, "--dir", str(whole.path)], env=environment, check=True)
    process = subprocess.Popen([*command, *words, "--dir", str(cut.path)], env=environment)
    while cut.status().get("version", 0) < 5:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert cut.status()["version"] < 20
    resumed = manyhands.train("CartPole-v1", resume=cut.path)
    assert digest(resumed) == digest(whole)
    scores = judge(resumed, episodes=20)
    assert scores.goal == 475
    assert scores.mean > 60  # an agent that does not learn gets 9
    assert record(resumed, tmp_path / "film.gif", 1)[0] > 0
