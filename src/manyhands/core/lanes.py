"""The state of every lane between two rollouts."""

from dataclasses import dataclass, replace

import numpy as np

from manyhands.core.arrays import Array
from manyhands.core.trajectories import Layout, Trajectory

REPLAY_LIMIT = 30_000
"""Steps of an unfinished episode that are remembered, so that it can be played again after a crash.
A longer one is begun anew: remembering an endless episode would be a leak."""


@dataclass(frozen=True)
class LaneState:
    """Where a lane stands between two rollouts: its episode, and the actions played in it so far.

    Episodes are seeded by (seed, lane, episode), so playing `actions` again leads to the same place in
    any environment that is deterministic given its seed; `obs` is kept to check that it did.
    """

    episode: int
    actions: Array  # [n, ...]
    obs: Array
    lost: bool = False  # longer than REPLAY_LIMIT: the actions are no longer all there
    skip: tuple[int, ...] = ()  # episodes from this one on that brought a process down, and are not played

    def after(self, trajectory: Trajectory, lane: int) -> "LaneState":
        """Return this lane's state once `trajectory` is played."""
        episode, obs = int(trajectory.episode[lane]), trajectory.last_obs[lane].copy()
        skip = tuple(each for each in self.skip if each >= episode)
        played = trajectory.action[:, lane]
        ends = np.flatnonzero(trajectory.done[:, lane])
        if len(ends):
            return LaneState(episode, played[ends[-1] + 1 :].copy(), obs, skip=skip)
        if episode != self.episode:  # begun anew when the shard changed players
            return LaneState(episode, played.copy(), obs, skip=skip)
        if self.lost or len(self.actions) + len(played) > REPLAY_LIMIT:
            return LaneState(episode, played[:0].copy(), obs, lost=True, skip=skip)
        return LaneState(episode, np.concatenate([self.actions, played]), obs, skip=skip)


@dataclass(frozen=True)
class ShardState:
    """Where a shard stands: the next rollout's number, and every lane."""

    sequence: int
    lanes: tuple[LaneState, ...]

    @classmethod
    def fresh(cls, layout: Layout) -> "ShardState":
        nothing = np.empty((0, *layout.action.shape), layout.action.dtype)
        unseen = np.zeros(layout.obs_shape, layout.obs_dtype)
        return cls(0, tuple(LaneState(0, nothing, unseen) for _ in range(layout.lanes)))

    def after(self, trajectory: Trajectory) -> "ShardState":
        lanes = (state.after(trajectory, lane) for lane, state in enumerate(self.lanes))
        return ShardState(trajectory.sequence + 1, tuple(lanes))

    def still_skipping(self, before: "ShardState") -> "ShardState":
        """Return the same, still without the episodes that were not to be played `before`."""
        lanes = [
            replace(lane, skip=tuple(episode for episode in old.skip if episode >= lane.episode))
            for lane, old in zip(self.lanes, before.lanes, strict=True)
        ]
        return ShardState(self.sequence, tuple(lanes))

    def fits(self, layout: Layout) -> bool:
        """Return whether its arrays are those of lanes with this layout."""
        action, obs = layout.action, (np.dtype(layout.obs_dtype), layout.obs_shape)
        return len(self.lanes) == layout.lanes and all(
            (lane.obs.dtype, lane.obs.shape) == obs
            and lane.actions.dtype == np.dtype(action.dtype)
            and lane.actions.shape[1:] == action.shape
            for lane in self.lanes
        )

    def skipping(self, lane: int, episode: int) -> "ShardState":
        """Return the same, but `lane` will not play `episode`, which brought its process down."""
        lanes = list(self.lanes)
        if 0 <= lane < len(lanes) and episode >= lanes[lane].episode:
            skip = {*lanes[lane].skip, episode}
            lanes[lane] = replace(lanes[lane], skip=tuple(sorted(skip)))
        return ShardState(self.sequence, tuple(lanes))
