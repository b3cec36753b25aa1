"""A run as a library user holds it."""

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from short_runs import BATCH, short_run
from small_envs import Chain

import manyhands
from manyhands.core.errors import RunError, UsageError
from manyhands.runs.scores import Scores
from manyhands.runs.store import Run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return short_run(tmp_path_factory.mktemp("trained") / "run")


def weights(run: Run) -> bytes:
    return run.checkpoint("last").weights.vector.tobytes()


def test_metrics_are_columns_with_nan_where_a_row_lacks_a_number(trained: Run) -> None:
    metrics, rows = trained.metrics(), trained.rows()
    assert set(metrics) == {name for row in rows for name in row}
    assert all(len(column) == len(rows) for column in metrics.values())
    assert metrics["steps"].tolist() == [row["steps"] for row in rows]
    tested = np.array(["test_mean" in row for row in rows])
    assert 0 < tested.sum() < len(rows)
    assert np.array_equal(np.isnan(metrics["test_mean"]), ~tested)
    assert np.array_equal(np.isnan(metrics["version"]), tested)
    assert "kl" in repr(metrics)
    with pytest.raises(KeyError):
        metrics["no_such_name"]


def test_numbers_that_no_array_can_hold_are_nan(tmp_path: Path) -> None:
    run = Run(tmp_path)
    odd = {"steps": 1, "seconds": 0.5, "huge": 10**400, "children": {"a": 1}, "text": "x", "none": None}
    run.metrics_path.write_text(json.dumps(odd) + "\n" + json.dumps({**odd, "huge": 2, "none": 3}) + "\n")
    metrics = run.metrics()
    assert set(metrics) == {"steps", "seconds", "huge", "none"}
    assert np.isnan(metrics["huge"][0])
    assert np.isnan(metrics["none"][0])
    assert (metrics["huge"][1], metrics["none"][1]) == (2, 3)


def test_the_last_number_of_a_name_is_of_the_last_row_that_has_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    numbers: list[dict[str, Any]] = [{"loss": 0.5, "bad": None}, {"loss": 0.25}, {"mine": 9}]
    rows = [{"steps": number, "seconds": 0.5, **row} for number, row in enumerate(numbers)]
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = run.metrics()
    assert (metrics.last("loss"), metrics.last("mine"), metrics.last("steps")) == (0.25, 9.0, 2.0)
    assert np.isnan(metrics.last("bad"))
    with pytest.raises(KeyError, match=r"no column 'los'; did you mean loss\?"):
        metrics.last("los")


def test_a_frame_has_the_same_columns_and_needs_pandas(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = trained.metrics().frame()
    assert list(frame.columns) == list(trained.metrics())
    assert np.array_equal(frame["kl"], trained.metrics()["kl"], equal_nan=True)
    with pytest.raises(KeyError, match=r"no column 'return_men'; did you mean return_mean"):
        trained.metrics()["return_men"]
    with pytest.raises(KeyError, match=r"no column 'nope'; there are steps, .*test_mean"):
        trained.metrics()["nope"]
    assert "nope" not in trained.metrics()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"a DataFrame needs pandas; .*\.\[pandas\]"):
        trained.metrics().frame()


def test_what_a_learner_did_is_among_the_metrics(trained: Run) -> None:
    metrics = trained.metrics()
    for name in ("length_mean", "policy_loss", "value_loss", "clip_fraction", "gradient_norm"):
        column = metrics[name][~np.isnan(metrics[name])]
        assert len(column), name
        assert np.isfinite(column).all()
    assert np.nanmax(metrics["gradient_norm"]) > 0
    assert np.nanmax(metrics["learning_rate"]) == trained.config().algo.learning_rate
    lengths = metrics["length_mean"][~np.isnan(metrics["length_mean"])]
    assert ((lengths >= 1) & (lengths <= 30)).all()


def test_scores_sum_up_returns() -> None:
    returns = tuple(float(value) for value in range(1, 101))
    scores = Scores(returns, (1,) * 100, goal=50.0)
    assert scores.mean == 50.5
    assert scores.iqm == np.mean(range(26, 76))  # 25 of either end are left out
    low, high = scores.interval
    assert low < scores.mean < high
    assert 0.5 * 4 * scores.error < high - low < 1.5 * 4 * scores.error
    assert scores.interval == (low, high)
    assert scores.solved
    assert not Scores(returns, (1,) * 100, goal=51.0).solved
    assert Scores(returns, (1,) * 100).solved is None
    outlier = Scores((*returns[:-1], 1e6), (1,) * 100)
    assert outlier.iqm == scores.iqm
    assert "mean 50.5" in str(scores)
    assert "(goal 50: reached)" in str(scores)
    assert Scores((3.0,), (1,)).interval == (3.0, 3.0)


def test_an_evaluation_is_the_same_for_the_same_seed_and_that_of_the_command(
    trained: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    from manyhands.cli import main as cli

    scores = trained.evaluate(episodes=10)
    assert scores == trained.evaluate(episodes=10)
    assert scores.lengths != trained.evaluate(episodes=10, seed=3).lengths
    assert scores.episodes == len(scores.lengths) == 10
    cli.main(["eval", str(trained.path), "--episodes", "10", "--json"])
    assert json.loads(capsys.readouterr().out) == scores.numbers()
    with pytest.raises(UsageError, match="give 1 or more"):
        trained.evaluate(episodes=0)


class Outside(Chain):
    """A chain whose space is said to be smaller than it is."""

    def __init__(self) -> None:
        super().__init__(4)
        self.observation_space = gymnasium.spaces.Box(0.0, 0.5, (4,), np.float32)


def test_observations_outside_of_their_space_are_told_of_once(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run", Outside)
    notices = [event["text"] for event in run.events() if event["kind"] == "notice"]
    assert len(notices) == 1
    assert notices[0].endswith(", where its space goes from 0 to 0.5")
    assert "Outside: an observation has 1 at [" in notices[0]


def test_a_run_on_a_callable_knows_its_environment(tmp_path: Path) -> None:
    def environment() -> Chain:
        return Chain(4)

    run = short_run(tmp_path / "run", environment)
    assert run.evaluate(episodes=3).episodes == 3
    assert run.agent().act(np.eye(4, dtype=np.float32)[0]) in (0, 1)
    assert run.plot(tmp_path / "curve.png").stat().st_size > 1000
    assert run.resume(steps=9 * BATCH, log="none").make_env is environment
    assert manyhands.train(resume=run, steps=10 * BATCH, log="none").evaluate(episodes=3).episodes == 3
    with pytest.raises(UsageError, match=r"was trained on a callable.*give it again"):
        Run(run.path).evaluate(episodes=3)
    assert manyhands.find(run.path, environment).evaluate(episodes=3) == run.evaluate(episodes=3)


def test_resume_goes_on_with_the_run(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run")
    longer = run.resume(steps=12 * BATCH, log="none")
    whole = short_run(tmp_path / "whole", updates=12)
    assert (
        longer.checkpoint("last").weights.vector.tobytes()
        == whole.checkpoint("last").weights.vector.tobytes()
    )
    assert longer.metrics()["steps"][-1] == 12 * BATCH
    with pytest.raises(UsageError, match=r"it takes steps, .* not algo, seed"):
        manyhands.train(resume=run, algo="a2c", seed=4)
    with pytest.raises(TypeError):
        run.resume(algo="a2c", no_such_argument=1)


def test_workers_are_rows_with_documented_columns(tmp_path: Path, trained: Run) -> None:
    assert trained.workers() == []  # it played in its own process
    run = manyhands.train(
        "small_envs:Chain",
        workers=2,
        steps=40 * BATCH,
        until="steps",
        directory=tmp_path / "run",
        log="none",
        settings={"collect": {"shards": 2, "lanes": 2, "steps": 16}, "run": {"mode": "sync"}},
    )
    rows = run.workers()
    assert [row["name"] for row in rows] == ["worker-0", "worker-1"]
    assert all(word in (Run.workers.__doc__ or "") for row in rows for word in row)
    assert sum(row["steps"] for row in rows) == run.status()["steps"] + 2 * 32  # one batch was not learned
    assert all(row["rollouts"] == 41 and row["lost"] == 0 and row["playing"] > 0 for row in rows)
    (run.path / "workers.json").write_text("{")
    with pytest.raises(RunError, match=r"workers\.json is damaged"):
        run.workers()


def test_a_film_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Run) -> None:
    assert trained.plot() == trained.path / "plots" / "learning_curve.png"
    assert trained.plot().exists()
    asked: list[Any] = []
    monkeypatch.setattr("manyhands.runs.video.record", lambda *given: asked.append(given) or [1.0])
    assert trained.video(str(tmp_path / "film.gif"), episodes=2) == [1.0]
    assert asked == [(trained, tmp_path / "film.gif", 2, 0, None, None)]
