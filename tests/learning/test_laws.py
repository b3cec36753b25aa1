"""Learn-to-optimise: sequential and distributed collection are the same, bit for bit, and it learns."""

import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.reference
import pytest
from brokers import TESTS, crew
from clusters import cluster

from manyhands.cli import lto as commands
from manyhands.cli import main as cli
from manyhands.core.errors import EnvError, RunError, UsageError
from manyhands.lto.judge import read
from manyhands.lto.law import Law
from manyhands.runs.store import LAST, Run

STRATEGIES = ("random", "latin", "uncertainty", "heterogeneous")


def lto(path: Path, *words: str) -> Run:
    commands.main([*words, "--dir", str(path), "--quiet"])
    return Run(path)


def digest(run: Run) -> str:
    weights = run.checkpoint(LAST).weights
    return f"{weights.version} {hashlib.sha256(weights.vector.tobytes()).hexdigest()}"


@pytest.mark.parametrize(
    ("starts", "algo"), [*((starts, "ppo") for starts in STRATEGIES), ("heterogeneous", "reinforce")]
)
def test_any_number_of_drivers_gives_the_same_weights(tmp_path: Path, starts: str, algo: str) -> None:
    """More of them, and longer, in `python -m benchmarks lto`."""
    words = ("ackley", "--starts", starts, "--algo", algo, "--steps", "100")
    found = {n: digest(lto(tmp_path / str(n), *words, "--drivers", str(n))) for n in (0, 2, 5)}
    assert len(set(found.values())) == 1, found
    assert found[0].startswith("100 ")


def test_so_do_workers_behind_a_broker_and_on_ray(tmp_path: Path) -> None:
    words = ("rosenbrock", "--starts", "heterogeneous", "--steps", "100")
    here = lto(tmp_path / "here", *words, "--drivers", "0")
    there = lto(tmp_path / "there", *words, "--channel", crew(2))
    assert digest(there) == digest(here)
    cluster()
    there = lto(tmp_path / "ray", *words, "--drivers", "3", "--channel", "ray")
    assert digest(there) == digest(here)


def test_a_resumed_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    words = ("sphere", "--drivers", "0", "--starts", "latin", "--steps", "400")
    whole = lto(tmp_path / "whole", *words)
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "manyhands", "lto"]
    cut = Run(tmp_path / "cut")
    start = [*command, *words, "--dir", str(cut.path), "--set", "run.checkpoint_every=0.05", "--quiet"]
    process = subprocess.Popen(start, env=environment)
    while cut.status().get("version", 0) < 50:
        assert process.poll() is None
    process.kill()
    process.wait()
    assert cut.status()["version"] < 400
    subprocess.run([*command, "--resume", str(cut.path), "--quiet"], env=environment, check=True, timeout=60)
    assert digest(cut) == digest(whole)
    assert read(cut.path / "quality.jsonl") == read(whole.path / "quality.jsonl")


@pytest.fixture(scope="module")
def law(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("lto") / "run"
    return lto(path, "rosenbrock", "--steps", "1500", "--drivers", "2", "--starts", "latin")


def test_it_learns_rosenbrock(law: Run) -> None:
    rows = read(law.path / "quality.jsonl")
    assert [row["version"] for row in rows] == list(range(10, 1501, 10))
    assert rows[-1]["msle"] < 0.4 * rows[0]["msle"]
    assert law.status()["broadcasting"] > 0


def test_predictions_exports_and_pictures(
    law: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Law.load(law)
    own = np.linspace(-2, 2, 9)[:, None]
    x, values = made.predict(own)
    np.testing.assert_allclose(values, 100 * (own[:, 0] - x[:, 0] ** 2) ** 2 + (1 - x[:, 0]) ** 2, rtol=1e-6)

    commands.main(["predict", str(law.path), "--c", "-1.5", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["x"][0] == pytest.approx(made.predict(np.array([[-1.5]]))[0][0, 0])

    table, minima = tmp_path / "c.csv", tmp_path / "x.csv"
    table.write_text("c1\n" + "".join(f"{c}\n" for c in own[:, 0]))
    commands.main(["predict", str(law.path), "--csv", str(table), "--out", str(minima)])
    rows = list(csv.DictReader(minima.read_text().splitlines()))
    np.testing.assert_allclose([float(row["x1"]) for row in rows], x[:, 0], rtol=1e-9)

    commands.main(["export", str(law.path), str(tmp_path / "law.onnx")])
    told = onnx.reference.ReferenceEvaluator(str(tmp_path / "law.onnx")).run(
        None, {"c": own.astype(np.float32)}
    )
    np.testing.assert_allclose(told[0], x, atol=1e-5)

    commands.main(["export", str(law.path), str(tmp_path / "law.npz")])
    np.testing.assert_allclose(by_numpy_alone(tmp_path / "law.npz", own), x, atol=1e-5)

    commands.main(["plot", str(law.path), "--out", str(tmp_path / "law.png")])
    assert (tmp_path / "law.png").stat().st_size > 20_000


def by_numpy_alone(path: Path, own: np.ndarray) -> np.ndarray:
    """As docs/tuning-laws.md shows it."""
    law = np.load(path)
    k, low, high = int(law["x"]), law["low"], law["high"]
    hidden = np.zeros((len(own), len(low)))
    hidden[:, k:] = 2 * (own - low[k:]) / (high - low)[k:] - 1
    for i in range(sum(name.startswith("weight") for name in law)):
        hidden = hidden @ law[f"weight{i}"] + law[f"bias{i}"]
        if law[f"activation{i}"] == "tanh":
            hidden = np.tanh(hidden)
    return low[:k] + (np.clip(hidden, -1, 1) + 1) / 2 * (high - low)[:k]


def test_one_law_for_several_variants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = lto(
        tmp_path / "run", "sphere", "--variants", "5", "--jitter", "0.1", "--steps", "300", "--drivers", "2"
    )
    commands.main(["judge", str(run.path), "--unseen", "7"])
    said = capsys.readouterr().out
    assert "seen: 5 functions" in said
    assert "unseen: 7 functions" in said


def test_a_function_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = lto(
        tmp_path / "run",
        *("small_functions:square", "--bounds=-1:1,0:2", "--steps", "500", "--drivers", "2"),
    )
    x, values = Law.load(run).predict(np.array([[0.2], [1.0], [1.8]]))
    np.testing.assert_allclose(x[:, 0], [0.1, 0.5, 0.9], atol=0.15)
    assert values.max() < 0.03
    commands.main(["judge", str(run.path), "--calls", "40"])
    told, result = capsys.readouterr().out.splitlines()
    assert "at 21 conditions: 840 calls of small_functions:square" in told, "before it begins"
    found = float(result.partition("mean regret ")[2].partition(";")[0])
    assert 0 <= found < 0.03
    commands.main(["plot", str(run.path)])
    assert (run.path / "plots" / "law.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="--calls is 3; it must be 20 or more"):
        commands.main(["judge", str(run.path), "--calls", "3"])
    with pytest.raises(UsageError, match="has made 500 training steps; give more: --steps N"):
        commands.main(["--resume", str(run.path)])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "RuntimeError: the device is off"),
        ("nan", "returned nan"),
        ("text", "it must return a number"),
    ],
)
@pytest.mark.parametrize("drivers", ["0", "2"])
def test_a_bad_function_ends_the_run_with_one_line(
    tmp_path: Path, name: str, said: str, drivers: str
) -> None:
    words = (f"small_functions:{name}", "--bounds=-1:1", "--drivers", drivers)
    with pytest.raises((EnvError, RunError), match=said):
        lto(tmp_path / "run", *words)


def test_a_function_that_hangs_is_given_up(tmp_path: Path) -> None:
    words = ("small_functions:hangs", "--bounds=-1:1", "--drivers", "2", "--set", "run.hang_timeout=0.5")
    with pytest.raises(EnvError, match=r"longer than 0\.5 s"):
        lto(tmp_path / "run", *words, "--set", "run.max_faults=1")


def test_a_function_that_fails_once_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = lto(tmp_path / "run", "small_functions:flaky", "--bounds=-1:1", "--drivers", "0", "--steps", "20")
    assert run.status()["faults"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ackley", "--drivers", "31"], "31 drivers are more than 30 episodes"),
        (["ackly"], "did you mean ackley"),
        (["small_functions:square"], "needs --bounds"),
        (["sphere", "--bounds=5:-5"], "not a low and a higher"),
        (["sphere", "--bounds=5"], "is not LOW:HIGH"),
        (["small_functions:nothing", "--bounds=-1:1"], "cannot import the function"),
        ([], "which function"),
        (["ackley", "--algo", "dqn"], "a law is learned by ppo or reinforce"),
        (["--functions", ""], "there is no function ''"),
        (["ackley", "--set", "net.squash=true"], "net.squash stays false"),
        (["ackley", "--resume", "law"], "goes on with the run's own settings"),
    ],
)
def test_a_wrong_call_is_one_line(
    tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["lto", *words, "--dir", str(tmp_path / "run")])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_condition_out_of_bounds_and_a_run_of_another_kind(
    law: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swapped = tmp_path / "swapped.csv"
    swapped.write_text("x1,c1\n0.1,0.2\n")
    for words, said in (
        (["predict", str(law.path), "--c", "3"], "outside of its bounds -2.048 to 2.048"),
        (["predict", str(law.path), "--c", "1", "1"], "a condition is 1 numbers here, not 2"),
        (["export", str(law.path), "law.txt"], "neither .onnx nor .npz"),
        (["predict", str(law.path), "--csv", str(swapped)], "not a table of c1"),
        (["predict", str(law.path)], "give one condition with --c"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["lto", *words])
        assert said in capsys.readouterr().err
    other = tmp_path / "other"
    cli.main(["train", "CartPole-v1", "--steps", "600", "--until", "steps", "--dir", str(other), "--quiet"])
    with pytest.raises(SystemExit):
        cli.main(["lto", "predict", str(other), "--c", "0"])
    assert "is a run of CartPole-v1, not of `manyhands lto`" in capsys.readouterr().err
