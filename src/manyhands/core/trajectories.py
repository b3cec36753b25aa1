"""Trajectories, which workers make, and the table of their arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array

SPARSE = ("final_obs", "final_at", "episode_return", "episode_length")
"""Arrays that are used only as far as episodes end."""
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
    def no_bootstrap(self) -> Array:
        """The steps [T, B] after which nothing counts, because the episode or, if so set, a life is over."""
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
        """Wrap a filled `Layout`; the sparse arrays are cut to what was used."""
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
class ReplayChunk:
    """Trajectories that a learner holds on to, and that its `state` leaves out: one chunk of them."""

    number: int  # of the piece
    marks: Array  # [lanes], how many rows of each lane came before
    trajectories: tuple[Trajectory, ...]
