"""A run that starts from another's agent really does, with its input statistics and new settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyhands
from manyhands.algos.on_policy_learner import OnPolicyLearner
from manyhands.algos.q_learner import QLearner
from manyhands.config.resolve import resolve
from manyhands.core.errors import UsageError
from manyhands.core.horizon import Horizon
from manyhands.runs.journal import Journal
from manyhands.runs.learners import open_learner
from manyhands.runs.plan import plan
from manyhands.runs.store import BEST, LAST, Run
from manyhands.runs.warm_start import warm_start

SMALL: dict[str, Any] = {
    "net": {"normalise": True, "hidden": [16, 8]},
    "collect": {"lanes": 4, "steps": 64},
    "run": {"test_episodes": 4},
}


def train(path: Path, algo: str = "ppo", **more: Any) -> Run:
    given = {"workers": 0, "steps": 4096, "until": "steps", "settings": SMALL, "directory": path, **more}
    return manyhands.train("CartPole-v1", algo, **given)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("source") / "a:run")  # a colon in its name


def view(run: Run, which: str, name: str) -> np.ndarray:
    checkpoint = run.checkpoint(which)
    (found,) = [each for each in checkpoint.spec.parameters if each.name == name]
    return checkpoint.weights.vector[found.offset : found.end]


@pytest.mark.parametrize("which", ["", ":last", ":best"])
def test_it_starts_with_every_number_of_the_other(source: Run, which: str) -> None:
    planned = plan(resolve("CartPole-v1", "ppo", overrides=(SMALL, {"run": {"seed": 9}})))
    start = warm_start(f"{source.path}{which}", planned)
    expected = source.checkpoint(which[1:] or BEST).weights.vector
    np.testing.assert_array_equal(start.weights.vector, expected)
    for name, array in source.checkpoint(which[1:] or BEST).weights.beside.items():
        np.testing.assert_array_equal(start.weights.beside[name], array)
        assert (start.weights.beside[name] != planned.first_weights().beside[name]).any()
    assert start.weights.version == 0
    assert start.weights.schema == planned.spec.schema
    assert (start.weights.vector != planned.first_weights().vector).any()


def test_new_settings_hold_and_an_update_that_learns_nothing_shows_where_it_started(
    source: Run, tmp_path: Path
) -> None:
    settings = {**SMALL, "algo": {"learning_rate": 1e-12}}
    run = train(tmp_path / "run", start_from=source.path, settings=settings, steps=512, seed=5)
    assert run.config().algo.learning_rate == 1e-12
    for name in ("policy0.weight", "policy.weight", "value.bias"):
        np.testing.assert_allclose(view(run, LAST, name), view(source, BEST, name), atol=1e-6)
    fresh = train(tmp_path / "fresh", settings=settings, steps=512, seed=5)
    assert np.abs(view(fresh, LAST, "policy0.weight") - view(source, BEST, "policy0.weight")).max() > 0.01


def test_the_first_update_keeps_the_statistics_of_all_earlier_observations(
    source: Run, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", start_from=f"{source.path}:last", steps=512, seed=5)
    count = float(source.checkpoint(LAST).learner["obs_moments"][0])
    assert count == 4096
    assert float(run.checkpoint(LAST).learner["obs_moments"][0]) == count + 512
    old, new = source.checkpoint(LAST).learner["obs_moments"], run.checkpoint(LAST).learner["obs_moments"]
    fresh = train(tmp_path / "fresh", steps=512, seed=5).checkpoint(LAST).learner["obs_moments"]
    moved, thrown_away = np.abs(new[1:5] - old[1:5]).max(), np.abs(fresh[1:5] - old[1:5]).max()
    assert moved < 0.5 * thrown_away


@pytest.mark.parametrize(("algo", "kind"), [("a2c", OnPolicyLearner), ("clone", OnPolicyLearner)])
def test_moments_come_back_out_of_the_weights_as_they_were(
    source: Run, tmp_path: Path, algo: str, kind: type[Any]
) -> None:
    planned = plan(resolve("CartPole-v1", algo, overrides=(SMALL,)))
    start = warm_start(f"{source.path}:last", planned)
    journal = Journal(tmp_path / "memory", planned.task.layout, planned.spec.schema)
    learner: Any = open_learner(planned, start.weights, None, journal, Horizon(512, 0), start=start).load()
    assert isinstance(learner, kind)
    kept = source.checkpoint(LAST).learner["obs_moments"]
    count, mean, square = learner.obs_moments
    np.testing.assert_allclose(np.concatenate([[count], mean, square]), kept, rtol=1e-4, atol=1e-3)
    before = learner.net.beside()["input_scale"]
    learner.net.set_input_moments(*learner.obs_moments)
    np.testing.assert_allclose(learner.net.beside()["input_scale"], before, rtol=1e-5)


def test_a_learner_of_values_starts_so_too_and_with_any_number_of_lanes(tmp_path: Path) -> None:
    dqn = {**SMALL, "algo": {"warmup": 256, "memory": 2000}}
    first = train(tmp_path / "first", "dqn", steps=1024, settings=dqn)
    more = {**dqn, "collect": {"lanes": 7, "steps": 16}}
    planned = plan(resolve("CartPole-v1", "dqn", overrides=(more,)))
    start = warm_start(f"{first.path}:last", planned)
    journal = Journal(tmp_path / "memory", planned.task.layout, planned.spec.schema)
    learner: Any = open_learner(planned, start.weights, None, journal, Horizon(512, 0), start=start).load()
    assert isinstance(learner, QLearner)
    assert learner.obs_moments[0] == float(first.checkpoint(LAST).learner["obs_moments"][0]) > 0
    for net in (learner.net, learner.target):
        np.testing.assert_array_equal(
            net.views["policy0.weight"].numpy().ravel(), view(first, LAST, "policy0.weight")
        )


@pytest.mark.parametrize(
    ("algo", "settings", "said"),
    [
        ("ppo", {"hidden": [16, 9]}, ["policy 16-8-2", "policy 16-9-2", "try --set net.hidden=[16,8]"]),
        ("ppo", {"normalise": False}, ["normalised", "--set net.normalise=true"]),
        ("ppo", {"activation": "relu"}, ["tanh", "relu", "--set net.activation=tanh"]),
        ("dqn", {"activation": "relu"}, ["value 16-8-1", "(relu, values, normalised)."]),
    ],
)
def test_another_network_is_one_line_that_says_what_differs(
    source: Run, tmp_path: Path, algo: str, settings: dict[str, Any], said: list[str]
) -> None:
    given = {**SMALL, "net": {**SMALL["net"], **settings}}
    with pytest.raises(UsageError) as caught:
        train(tmp_path / "run", algo, start_from=source.path, settings=given)
    for word in said:
        assert word in f"{caught.value}."
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_another_environment_with_other_spaces_is_refused_and_what_is_no_run_as_well(
    source: Run, tmp_path: Path
) -> None:
    other = plan(resolve("Acrobot-v1", "ppo", overrides=(SMALL,)))
    with pytest.raises(UsageError, match=r"its agent has 4 inputs.* this run 6 inputs"):
        warm_start(str(source.path), other)
    same = plan(resolve("CartPole-v1", "ppo", overrides=(SMALL,)))
    with pytest.raises(UsageError, match="there is no run 'nothing'"):
        warm_start("nothing:last", same)
    with pytest.raises(UsageError, match="no checkpoint 'lost'"):
        warm_start(f"{source.path}:lost", same)


def test_a_run_that_goes_on_has_an_agent_already(source: Run) -> None:
    with pytest.raises(UsageError, match=r"goes on with the run's own settings; .*not start_from"):
        manyhands.train("CartPole-v1", resume=source.path, steps=9000, start_from=source.path)


def test_a_network_without_statistics_brings_none(tmp_path: Path) -> None:
    plain = {**SMALL, "net": {"normalise": False, "hidden": [8]}}
    run = train(tmp_path / "run", settings=plain, steps=512)
    start = warm_start(str(run.path), plan(resolve("CartPole-v1", "ppo", overrides=(plain,))))
    assert start.moments is None
