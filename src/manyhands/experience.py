"""What workers make: trajectories, the table of their arrays, and where every lane stands afterwards."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyhands.policy import ActionSpec

Array = NDArray[Any]

REPLAY_LIMIT = 30_000
"""Steps of an unfinished episode that are remembered, so that it can be played again after a crash.
A longer one is begun anew: remembering an endless episode would be a leak."""

SPARSE = ("final_obs", "final_at", "episode_return", "episode_length")
"""Arrays of which only as much is used as episodes end."""
LIFE_LOST = "life_lost"
"""The column that marks, with 1, steps at which a life was lost and the game went on."""


@dataclass(frozen=True)
class Field:
    """One array of a trajectory."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return np.dtype(self.dtype).itemsize * prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The arrays that a shard fills in one rollout. T steps, B lanes; columns are [T, B, ...]."""

    steps: int
    lanes: int
    obs_shape: tuple[int, ...]
    obs_dtype: str
    action: ActionSpec
    columns: tuple[str, ...]
    stack: int = 1  # pictures in one observation, of which all but the last were in the one before

    @property
    def fields(self) -> tuple[Field, ...]:
        time_lane = (self.steps, self.lanes)
        return (
            Field("obs", self.obs_dtype, (*time_lane, *self.obs_shape)),
            Field("action", self.action.dtype, (*time_lane, *self.action.shape)),
            Field("reward", "<f4", time_lane),
            Field("terminated", "|b1", time_lane),
            Field("truncated", "|b1", time_lane),
            *(Field(name, "<f4", time_lane) for name in self.columns),
            Field("last_obs", self.obs_dtype, (self.lanes, *self.obs_shape)),
            Field("episode", "<i8", (self.lanes,)),
            # At worst every step ends an episode; pages never written cost no memory.
            Field("final_obs", self.obs_dtype, (prod(time_lane), *self.obs_shape)),
            Field("final_at", "<i4", (prod(time_lane), 2)),
            Field("episode_return", "<f8", (prod(time_lane),)),
            Field("episode_length", "<i4", (prod(time_lane),)),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, at their largest."""
        return sum(field.nbytes for field in self.fields)

    @property
    def dense_nbytes(self) -> int:
        """Bytes of the arrays that are always full, which are those that take memory."""
        return sum(field.nbytes for field in self.fields if field.name not in SPARSE)

    def allocate(self) -> dict[str, Array]:
        return {field.name: np.empty(field.shape, field.dtype) for field in self.fields}


@dataclass(frozen=True)
class Trajectory:
    """T steps of B lanes, all played by one version of the weights.

    `obs[t]` is what the policy saw, `last_obs` what it would have seen next. Where `truncated[t, lane]`,
    the episode was cut: `final_obs[i]` is its last observation, for the i with `final_at[i] == (t, lane)`.
    """

    shard: int
    sequence: int  # counts the rollouts of this shard
    version: int  # of the weights that played
    maker: str
    obs: Array  # [T, B, ...]
    action: Array  # [T, B, ...]
    reward: Array  # [T, B]
    terminated: Array  # [T, B]
    truncated: Array  # [T, B]
    columns: Mapping[str, Array]  # each [T, B]
    last_obs: Array  # [B, ...]
    episode: Array  # [B], the number of the episode that each lane is in at the end
    final_obs: Array  # [F, ...]
    final_at: Array  # [F, 2]
    episode_return: Array  # [E] of the episodes that ended here
    episode_length: Array  # [E]
    seconds: float = 0.0  # spent on playing
    played: int = 0  # steps, where they were learned from on the spot and the arrays do not hold them

    @property
    def steps(self) -> int:
        return self.played or int(self.reward.size)

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated

    @property
    def worthless(self) -> Array:
        """[T, B]: where nothing that follows counts, because the episode or, if so wished, a life is over."""
        lost = self.columns.get(LIFE_LOST)
        return self.terminated if lost is None else self.terminated | (lost > 0)

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, Array],
        columns: tuple[str, ...],
        finals: int,
        episodes: int,
        **header: Any,
    ) -> "Trajectory":
        """Wraps a filled `Layout`; the sparse arrays are cut to what was used."""
        dense = ("obs", "action", "reward", "terminated", "truncated", "last_obs", "episode")
        return cls(
            **{name: arrays[name] for name in dense},  # type: ignore[arg-type]
            columns={name: arrays[name] for name in columns},
            final_obs=arrays["final_obs"][:finals],
            final_at=arrays["final_at"][:finals],
            episode_return=arrays["episode_return"][:episodes],
            episode_length=arrays["episode_length"][:episodes],
            **header,
        )


@dataclass(frozen=True)
class Remembered:
    """Trajectories that a learner holds on to, and that its `state` leaves out: one piece of them."""

    number: int  # of the piece
    marks: Array  # [lanes], how many rows of each lane came before
    trajectories: tuple[Trajectory, ...]


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
        """This lane's state once `trajectory` is played."""
        episode, obs = int(trajectory.episode[lane]), trajectory.last_obs[lane].copy()
        skip = tuple(each for each in self.skip if each >= episode)
        played = trajectory.action[:, lane]
        ends = np.flatnonzero(trajectory.done[:, lane])
        if len(ends):
            return LaneState(episode, played[ends[-1] + 1 :].copy(), obs, skip=skip)
        if episode != self.episode:  # begun anew when the shard changed hands
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
        """The same, without the episodes that were not to be played `before`."""
        lanes = [
            replace(lane, skip=tuple(episode for episode in old.skip if episode >= lane.episode))
            for lane, old in zip(self.lanes, before.lanes, strict=True)
        ]
        return ShardState(self.sequence, tuple(lanes))

    def fits(self, layout: Layout) -> bool:
        """Whether its arrays are those of lanes with this layout."""
        action, obs = layout.action, (np.dtype(layout.obs_dtype), layout.obs_shape)
        return len(self.lanes) == layout.lanes and all(
            (lane.obs.dtype, lane.obs.shape) == obs
            and lane.actions.dtype == np.dtype(action.dtype)
            and lane.actions.shape[1:] == action.shape
            for lane in self.lanes
        )

    def skipping(self, lane: int, episode: int) -> "ShardState":
        """The same, but `lane` will not play `episode`, which brought its process down."""
        lanes = list(self.lanes)
        if 0 <= lane < len(lanes) and episode >= lanes[lane].episode:
            skip = {*lanes[lane].skip, episode}
            lanes[lane] = replace(lanes[lane], skip=tuple(sorted(skip)))
        return ShardState(self.sequence, tuple(lanes))


@dataclass(frozen=True)
class Evaluation:
    """The returns and lengths of whole episodes, in the order of their seeds."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def sd(self) -> float:
        return float(np.std(self.returns))

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(len(self.returns))

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def steps(self) -> int:
        return sum(self.lengths)

    def promising(self, goal: float, episodes: int, margin: float) -> bool:
        """Whether a test of `episodes` could still end `margin` standard errors above the goal.

        It should unless its mean is now a whole standard error below what it will have to be then.
        """
        needed = goal + margin * self.sd / math.sqrt(episodes)
        return self.mean + self.error >= needed

    def __add__(self, more: "Evaluation") -> "Evaluation":
        return Evaluation(self.returns + more.returns, self.lengths + more.lengths)

    def to_plain(self) -> dict[str, Any]:
        return {"returns": list(self.returns), "lengths": list(self.lengths)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Evaluation":
        return cls(tuple(map(float, plain["returns"])), tuple(map(int, plain["lengths"])))

    def summary(self, solved_at: float | None) -> dict[str, float | int | bool | None]:
        return {
            "mean": self.mean,
            "sd": self.sd,
            "min": min(self.returns),
            "max": max(self.returns),
            "median": float(np.median(self.returns)),
            "episodes": self.episodes,
            "solved": None if solved_at is None else self.mean >= solved_at,
        }
