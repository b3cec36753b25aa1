"""Where lanes stand after rollouts, against bookkeeping that goes step by step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import DISCRETE, GAUSSIAN, MULTI, random_trajectory

from manyhands.core import lanes
from manyhands.core.lanes import LaneState, ShardState
from manyhands.core.trajectories import Layout, Trajectory


class Ledger:
    """One lane's episode and its actions so far, written down after every single step."""

    def __init__(self) -> None:
        self.episode = 0
        self.actions: list[Any] = []

    def step(self, action: Any, done: bool) -> None:
        self.actions.append(action)
        if done:
            self.episode += 1
            self.actions = []


def check(state: ShardState, ledgers: list[Ledger], last: Trajectory) -> None:
    for lane, (lane_state, ledger) in enumerate(zip(state.lanes, ledgers, strict=True)):
        assert lane_state.episode == ledger.episode
        assert lane_state.actions.tolist() == [np.asarray(a).tolist() for a in ledger.actions]
        assert np.array_equal(lane_state.obs, last.last_obs[lane])
        assert not lane_state.lost


@given(
    st.sampled_from([DISCRETE, MULTI, GAUSSIAN]),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 2**32),
)
def test_states_follow_episodes_and_the_actions_in_flight(
    action: Any, steps: int, lanes: int, rollouts: int, seed: int
) -> None:
    layout = Layout(steps, lanes, (2,), "<f4", action, ())
    state = ShardState.fresh(layout)
    assert state.sequence == 0
    ledgers = [Ledger() for _ in range(lanes)]
    for number in range(rollouts):
        trajectory = random_trajectory(layout, seed + number, sequence=number)
        for t in range(steps):
            for lane, ledger in enumerate(ledgers):
                ledger.step(trajectory.action[t, lane], bool(trajectory.done[t, lane]))
        trajectory.episode[...] = [ledger.episode for ledger in ledgers]
        state = state.after(trajectory)
        assert state.sequence == number + 1
        check(state, ledgers, trajectory)


LAYOUT = Layout(4, 2, (3,), "<f4", DISCRETE, ())


def quiet_rollout(number: int, layout: Layout = LAYOUT) -> Trajectory:
    """A rollout in which no episode ends."""
    trajectory = random_trajectory(layout, number, sequence=number)
    trajectory.terminated[...] = False
    trajectory.truncated[...] = False
    trajectory.episode[...] = 0
    return trajectory


def test_states_keep_copies_because_rollouts_are_overwritten() -> None:
    trajectory = quiet_rollout(0)
    expected = trajectory.action[:, 1].tolist(), trajectory.last_obs[1].tolist()
    state = ShardState.fresh(LAYOUT).after(trajectory)
    trajectory.action[...] = 99
    trajectory.last_obs[...] = 99
    assert (state.lanes[1].actions.tolist(), state.lanes[1].obs.tolist()) == expected


def test_an_episode_that_ends_at_the_last_step_leaves_nothing_in_flight() -> None:
    trajectory = quiet_rollout(0)
    trajectory.terminated[-1, 0] = True
    trajectory.episode[0] = 1
    state = ShardState.fresh(LAYOUT).after(trajectory)
    assert (state.lanes[0].episode, len(state.lanes[0].actions)) == (1, 0)
    assert (state.lanes[1].episode, len(state.lanes[1].actions)) == (0, 4)


def test_a_lane_that_was_begun_anew_forgets_the_actions_before() -> None:
    """Where a replay failed, the worker goes on with the episode after, without an end in between."""
    before = ShardState.fresh(LAYOUT).after(quiet_rollout(0))
    trajectory = quiet_rollout(1)
    trajectory.episode[0] = 1
    state = before.after(trajectory)
    assert state.lanes[0].episode == 1
    assert state.lanes[0].actions.tolist() == trajectory.action[:, 0].tolist()
    assert len(state.lanes[1].actions) == 8


def long_lane(count: int) -> LaneState:
    return LaneState(0, np.zeros(count, np.int32), np.zeros(3, np.float32))


def test_episodes_up_to_the_replay_limit_are_remembered_and_longer_ones_are_not() -> None:
    limit = lanes.REPLAY_LIMIT
    kept = long_lane(limit - 4).after(quiet_rollout(0), 0)
    assert (len(kept.actions), kept.lost) == (limit, False)
    lost = long_lane(limit - 3).after(quiet_rollout(0), 0)
    assert (len(lost.actions), lost.lost, lost.actions.dtype) == (0, True, np.int32)
    assert kept.after(quiet_rollout(1), 0).lost


def test_a_lost_episode_stays_lost_until_it_ends() -> None:
    lost = replace(long_lane(0), lost=True)
    still = lost.after(quiet_rollout(0), 0)
    assert still.lost
    assert len(still.actions) == 0
    trajectory = quiet_rollout(1)
    trajectory.truncated[1, 0] = True
    trajectory.episode[0] = 1
    found = still.after(trajectory, 0)
    assert not found.lost
    assert found.actions.tolist() == trajectory.action[2:, 0].tolist()


def test_a_lost_episode_that_was_begun_anew_is_no_longer_lost() -> None:
    trajectory = quiet_rollout(0)
    trajectory.episode[0] = 1
    found = replace(long_lane(0), lost=True).after(trajectory, 0)
    assert not found.lost
    assert len(found.actions) == 4


def test_an_episode_to_skip_is_noted_in_one_lane_alone_and_kept_until_it_is_passed() -> None:
    before = ShardState.fresh(LAYOUT).after(quiet_rollout(0))
    skipped = before.skipping(1, 2).skipping(1, 0)
    assert skipped.sequence == before.sequence
    assert skipped.lanes[0] is before.lanes[0]
    assert skipped.lanes[1].skip == (0, 2)
    assert len(skipped.lanes[1].actions) == 4
    following = quiet_rollout(1)
    following.episode[1] = 1
    assert skipped.after(following).lanes[1].skip == (2,)
    following.episode[1] = 3
    assert skipped.after(following).lanes[1].skip == ()


def test_an_episode_that_is_over_is_not_noted() -> None:
    before = ShardState(3, (replace(long_lane(0), episode=5),))
    assert before.skipping(0, 4) == before
    assert before.skipping(7, 9) == before


@pytest.mark.parametrize("action", [DISCRETE, MULTI, GAUSSIAN])
def test_layouts_allocate_what_they_list(action: Any) -> None:
    layout = Layout(3, 2, (5, 6, 3), "|u1", action, ("logp", "value"))
    arrays = layout.allocate()
    assert list(arrays) == [field.name for field in layout.fields]
    for field in layout.fields:
        assert (arrays[field.name].shape, arrays[field.name].dtype.str) == (field.shape, field.dtype)
        assert arrays[field.name].nbytes == field.nbytes
    assert arrays["obs"].shape == (3, 2, 5, 6, 3)
    assert arrays["action"].shape == (3, 2, *action.shape)
    assert arrays["logp"].shape == arrays["value"].shape == (3, 2)


def test_a_trajectory_counts_its_steps_and_its_ends() -> None:
    trajectory = random_trajectory(LAYOUT, 4)
    assert trajectory.steps == 8
    assert np.array_equal(trajectory.done, trajectory.terminated | trajectory.truncated)
    assert len(trajectory.final_obs) == trajectory.truncated.sum()
