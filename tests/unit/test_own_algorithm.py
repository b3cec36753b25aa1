"""A user's own algorithm, given as module:Class."""

import hashlib
from pathlib import Path

import pytest

import manyhands
from manyhands.config.resolve import resolve
from manyhands.config.settings import Config
from manyhands.core.errors import UsageError
from manyhands.runs.store import LAST, Run

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
    rows = [row["return_mean"] for row in Run(tmp_path / "0").metrics() if row.get("return_mean")]
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


def test_others_cannot_name_one() -> None:
    with pytest.raises(UsageError, match="none of manyhands' own"):
        Config.from_plain({"run": {"algo": "os:system"}}, foreign=True)
