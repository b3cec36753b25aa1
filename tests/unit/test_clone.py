"""Episodes out of trajectories, what is remembered of them, and what is imitated."""

from typing import Any

import numpy as np
from samples import DISCRETE, small_spec

from manyhands.algos.algorithm import LearnerSetup
from manyhands.algos.clone import Clone, CloneConfig
from manyhands.core.horizon import Horizon
from manyhands.core.trajectories import Layout, Trajectory
from manyhands.core.weights import Weights

LAYOUT = Layout(4, 2, (4,), "<f4", DISCRETE, ())


def clone(**settings: Any) -> Any:
    spec = small_spec(4, DISCRETE)
    weights = Weights(0, spec.initial_vector(1), spec.schema)
    layout = Layout(8, 3, (4,), "<f4", DISCRETE, ())
    setup = LearnerSetup(spec, layout, 2, weights, seed=3, horizon=Horizon(99))
    return Clone(CloneConfig(**settings)).learner(setup)


def rollout(
    sequence: int, ends: list[tuple[int, int]], episodes: tuple[int, int], reward: float
) -> Trajectory:
    """Observations count up, so that a stitched episode can be recognised."""
    arrays = LAYOUT.allocate()
    steps = np.arange(4) + 4 * sequence
    arrays["obs"][...] = steps[:, None, None]
    arrays["action"][...] = 0
    arrays["reward"][...] = reward
    arrays["terminated"][...] = arrays["truncated"][...] = False
    for t, lane in ends:
        arrays["terminated"][t, lane] = True
    arrays["last_obs"][...] = 0
    arrays["episode"][...] = episodes
    header = {"shard": 0, "sequence": sequence, "version": 0, "maker": "test"}
    return Trajectory.from_arrays(arrays, (), 0, 0, **header)


def test_episodes_are_joined_across_trajectories_and_never_across_episodes() -> None:
    agent = clone(choose="threshold", keep=0.0)
    agent.learn([rollout(0, [(1, 0)], (1, 0), 1.0)])
    assert agent.memory["obs"][:, 0].tolist() == [0, 1]
    agent.learn([rollout(1, [(2, 0), (3, 1)], (2, 1), 1.0)])
    assert agent.memory["obs"][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, *range(8)]
    assert list(agent.scores) == [2.0, 5.0, 8.0]


def test_an_episode_that_was_begun_anew_is_not_joined_to_the_old_one() -> None:
    agent = clone(choose="threshold", keep=0.0)
    agent.learn([rollout(0, [], (0, 0), 1.0)])
    agent.learn([rollout(1, [(3, 0), (3, 1)], (2, 1), 1.0)])  # lane 0 was in episode 1, not 0, when it began
    assert list(agent.scores) == [4.0, 8.0]


def test_only_the_newest_pairs_are_held() -> None:
    agent = clone(choose="threshold", keep=0.0, memory=3)
    agent.learn([rollout(0, [(3, 0)], (1, 0), 1.0)])
    assert agent.memory["obs"][:, 0].tolist() == [1, 2, 3]


def test_the_elite_moves_with_the_scores() -> None:
    agent = clone(choose="elite", share=0.5, window=2)
    agent.learn([rollout(0, [(3, 0), (3, 1)], (1, 1), 1.0)])
    agent.learn([rollout(1, [(3, 0), (3, 1)], (2, 2), 5.0)])
    chosen = agent.memory["score"][agent._chosen()]
    assert set(chosen) == {20.0}


def test_what_was_chosen_becomes_more_likely() -> None:
    for choose in ("threshold", "elite"):
        agent = clone(choose=choose, keep=0.0, epochs=50, learning_rate=1e-2)
        before = agent.log_prob(*_pair())
        agent.learn([rollout(0, [(3, 0), (3, 1)], (1, 1), 1.0)])
        assert (agent.log_prob(*_pair()) > before).all()


def test_nothing_to_choose_is_no_reason_to_stop() -> None:
    agent = clone(choose="published-4")
    before = agent.weights()
    metrics = agent.learn([rollout(0, [(3, 0)], (1, 0), -1.0)])
    assert metrics["pairs"] == 0
    assert agent.weights().version == 1
    np.testing.assert_array_equal(agent.weights().vector, before.vector)


def _pair() -> Any:
    import torch

    return torch.ones(1, 4), torch.zeros(1, dtype=torch.int64)
