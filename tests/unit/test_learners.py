"""What every on-policy algorithm owes the rest of the house; test_dqn.py has the others."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import DISCRETE, GAUSSIAN, MULTI, random_trajectory, small_spec

from manyhands.algos.algorithm import LearnerSetup
from manyhands.algos.on_policy import OnPolicy
from manyhands.config import algorithms
from manyhands.config.resolve import resolve
from manyhands.core import payloads
from manyhands.core.actions import ActionSpec
from manyhands.core.horizon import Horizon
from manyhands.core.trajectories import Layout, Trajectory
from manyhands.core.weights import Weights
from manyhands.runs.journal import Journal
from manyhands.runs.learners import open_learner
from manyhands.runs.plan import plan

ON_POLICY = [name for name in algorithms.BUILT_IN if issubclass(algorithms.find(name), OnPolicy)]


@pytest.fixture(autouse=True)
def every_warning() -> Iterator[None]:
    """torch warns once per process by default; here every test must see it."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def make(name: str, action: ActionSpec = DISCRETE, **settings: Any) -> Any:
    spec = small_spec(4, action, normalise=True)
    kind = algorithms.find(name)
    weights = Weights(0, spec.initial_vector(1), spec.schema, spec.initial_statistics())
    layout = Layout(8, 3, (4,), "<f4", action, algorithms.find(name).columns)
    setup = LearnerSetup(spec, layout, 2, weights, seed=3, horizon=Horizon(1000))
    return kind(kind.config(normalise_reward=True, **settings)).learner(setup)


def experience(name: str, number: int, action: ActionSpec = DISCRETE) -> list[Trajectory]:
    layout = Layout(8, 3, (4,), "<f4", action, algorithms.find(name).columns)
    return [random_trajectory(layout, 10 * number + shard, sequence=number) for shard in range(2)]


@pytest.mark.parametrize("action", [DISCRETE, MULTI, GAUSSIAN], ids=["discrete", "multi", "gaussian"])
@pytest.mark.parametrize("name", ON_POLICY)
def test_learning_makes_a_new_version_with_finite_weights_and_metrics(name: str, action: ActionSpec) -> None:
    algorithm = make(name, action)
    before = algorithm.weights()
    metrics = algorithm.learn(experience(name, 0, action))
    after = algorithm.weights()
    assert (before.version, after.version) == (0, 1)
    assert not np.array_equal(before.vector, after.vector)
    assert np.isfinite(after.vector).all()
    assert all(isinstance(value, float) and np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", ON_POLICY)
def test_trajectories_off_the_wire_teach_the_same_as_those_in_memory(name: str) -> None:
    layout = Layout(8, 3, (4,), "<f4", DISCRETE, algorithms.find(name).columns)
    here, there = make(name), make(name)
    for number in range(3):
        trajectories = experience(name, number)
        raw = [payloads.encode_trajectory(t, "schema") for t in trajectories]
        here.learn(trajectories)
        there.learn([payloads.decode_trajectory(message, layout, "schema") for message in raw])
        assert np.array_equal(here.weights().vector, there.weights().vector)


@pytest.mark.parametrize("name", ON_POLICY)
def test_learning_goes_on_from_a_saved_state_to_the_same_weights(name: str) -> None:
    whole, resumed = make(name, anneal=True), make(name, anneal=True)
    for number in range(3):
        whole.learn(experience(name, number))
    state = {key: array.copy() for key, array in whole.state().items()}
    for array in state.values():
        array.flags.writeable = False
    resumed.load_state(whole.weights().version, state)
    for number in range(3, 6):
        assert whole.learn(experience(name, number)) == resumed.learn(experience(name, number))
    assert np.array_equal(whole.weights().vector, resumed.weights().vector)
    for key, array in whole.weights().beside.items():
        assert np.array_equal(resumed.weights().beside[key], array)
    assert whole.weights().version == resumed.weights().version == 6


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_final_observation_changes_what_is_learned_only_where_an_episode_was_truncated(name: str) -> None:
    trajectories = experience(name, 1)
    assert len(trajectories[0].final_obs)
    moved = [replace(trajectories[0], final_obs=trajectories[0].final_obs + 1), trajectories[1]]
    without = [
        replace(t, final_obs=t.final_obs[:0], final_at=t.final_at[:0], terminated=t.done)
        for t in trajectories
    ]
    vectors = []
    for batch in (trajectories, moved, without):
        algorithm = make(name)
        algorithm.learn(batch)
        vectors.append(algorithm.weights().vector)
    assert not np.array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])


def test_a_learner_takes_its_share_of_its_parent_and_keeps_what_is_its_own(tmp_path: Path) -> None:
    planned = plan(resolve("CartPole-v1", "ppo", overrides=({"net": {"normalise": True}},)))
    journal = Journal(tmp_path, planned.task.layout, planned.spec.schema)
    first = planned.first_weights()
    late = open_learner(planned, first, None, journal, Horizon(1000))
    late.load().learn([random_trajectory(planned.task.layout, 0)])
    before = late.weights()
    late.load().average_into(np.full(planned.spec.size, 2.0, np.float32), 0.25)
    after = late.weights()
    np.testing.assert_allclose(after.vector, 0.75 * before.vector + 0.5, atol=1e-6)
    for name, array in first.beside.items():
        assert (before.beside[name] != array).any()
        assert np.array_equal(after.beside[name], before.beside[name])


@pytest.mark.parametrize(("clip", "fraction"), [(1e-9, 1.0), (1e9, 0.0)])
def test_the_clip_fraction_counts_what_has_moved_past_the_clip(clip: float, fraction: float) -> None:
    metrics = make("ppo", clip=clip).learn(experience("ppo", 0))
    assert metrics["clip_fraction"] == pytest.approx(fraction, abs=0.1)


def test_ppo_ends_its_epochs_once_the_policy_has_moved_far_enough() -> None:
    epochs = {}
    for target_kl in (0.0, 1e-9, 1e9):
        learner = make("ppo", epochs=5, minibatch=8, learning_rate=1e-2, target_kl=target_kl)
        metrics = learner.learn(experience("ppo", 0))
        assert metrics["kl"] > 1e-9
        epochs[target_kl] = metrics["epochs"]
    assert epochs == {0.0: 5, 1e-9: 1, 1e9: 5}


@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_epochs_and_minibatches_say_how_many_steps_an_update_takes(name: str) -> None:
    rows = sum(trajectory.steps for trajectory in experience(name, 0))
    for epochs, minibatch, steps in ((1, 0, 1), (3, 0, 3), (2, rows // 4, 8), (1, rows // 4 + 1, 4)):
        learner = make(name, epochs=epochs, minibatch=minibatch)
        learner.learn(experience(name, 0))
        assert learner.optimizer.steps == steps


def test_ranked_advantages_keep_their_order_alone() -> None:
    learner = make("ppo", rank_advantage=True)
    plain = torch.tensor([3.0, -1.0, 1e6, 0.5])
    ranked = learner.weights_of(plain)
    assert ranked.argsort().tolist() == plain.argsort().tolist()
    assert torch.equal(ranked, learner.weights_of(torch.tensor([3.0, -1.0, 4.0, 0.5])))
    assert float(ranked.sum()) == pytest.approx(0.0, abs=1e-6)
    unchanged = make("ppo", normalise_advantage=False)
    assert torch.equal(unchanged.weights_of(plain), plain)
