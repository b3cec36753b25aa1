"""A lane of trajectories as rows of a replay memory, and its end, whose rows wait for their n steps."""

from dataclasses import dataclass, fields, replace

import numpy as np

from manyhands.core.arrays import Array
from manyhands.core.trajectories import Trajectory

UNKNOWN = -1
"""The episode, or the rollout, of a lane after which any may follow."""


def row_counts(trajectory: Trajectory) -> Array:
    """Return the rows [B] that a trajectory takes: its steps, and the last observations of cut episodes."""
    steps, lanes = trajectory.reward.shape
    rows: Array = steps + np.bincount(trajectory.final_at[:, 1], minlength=lanes)
    return rows


@dataclass(frozen=True)
class Rows:
    """The columns of a lane's rows [N] that are needed until their n steps are over."""

    reward: Array
    stop: Array  # after it nothing is added up
    no_bootstrap: Array  # what follows is worth nothing
    ends: Array  # the next row begins another game
    played: Array  # it is a step, not the last observation of an episode that was cut
    known: Array  # its n steps are over
    q_taken: Array
    q_max: Array

    @classmethod
    def none(cls) -> "Rows":
        flags, numbers = np.zeros(0, bool), np.zeros(0, np.float32)
        return cls(numbers, flags, flags, flags, flags, flags, numbers, numbers)

    def __add__(self, more: "Rows") -> "Rows":
        pairs = [(getattr(self, field.name), getattr(more, field.name)) for field in fields(self)]
        return Rows(*(np.concatenate(pair) for pair in pairs))

    def last(self, count: int) -> "Rows":
        return replace(self, **{field.name: getattr(self, field.name)[-count:] for field in fields(self)})


def rows_of_lane(trajectory: Trajectory, lane: int, reward: Array, stack: int) -> tuple[Rows, Array, Array]:
    """Return one lane of a trajectory as rows, their observations (the newest images) and actions."""
    mine = trajectory.final_at[:, 1] == lane
    cuts, finals = trajectory.final_at[mine, 0] + 1, trajectory.final_obs[mine]
    obs, done = trajectory.obs[:, lane], trajectory.done[:, lane]
    if stack > 1:
        obs, finals = obs[:, -1], finals[:, -1]

    def with_finals(column: Array, there: Array | float) -> Array:
        return np.insert(column, cuts, there, axis=0) if len(cuts) else column

    no_bootstrap, q_max = trajectory.no_bootstrap[:, lane], trajectory.columns["q_max"][:, lane]
    rows = Rows(
        reward=with_finals(reward, 0),
        stop=with_finals(done | no_bootstrap, True),
        no_bootstrap=with_finals(no_bootstrap, True),
        ends=with_finals(trajectory.terminated[:, lane], True),
        played=with_finals(np.ones(len(done), bool), False),
        known=with_finals(np.zeros(len(done), bool), False),
        q_taken=with_finals(trajectory.columns["q_taken"][:, lane], 0),
        # Nobody asked what the last observation of a cut episode is worth; as much as the one before.
        q_max=with_finals(q_max, q_max[cuts - 1]),
    )
    return rows, with_finals(obs, finals), with_finals(trajectory.action[:, lane], 0)


@dataclass
class Tail:
    """The end of a lane: rows whose n steps are not over, and what the next row must know."""

    rows: Rows
    count: int = 0  # rows that were ever written
    episode: int = 0
    sequence: int = UNKNOWN  # of the last rollout
    age: int = 0  # of the next row: how many rows of its game came before

    def continued_by(self, trajectory: Trajectory, lane: int) -> bool:
        """Return False if an episode restarted elsewhere, or a rollout was dropped or went to another."""
        first = int(trajectory.episode[lane]) - int(trajectory.done[:, lane].sum())
        follows = self.sequence in (UNKNOWN, trajectory.sequence - 1)
        return follows and self.episode in (UNKNOWN, first)

    def forget(self) -> None:
        self.age, self.rows = 0, Rows.none()

    def extend(self, rows: Rows, stack: int) -> Array:
        """Append rows; return their ages, up to stack - 1."""
        at = np.arange(len(rows.ends))
        begins = np.r_[False, rows.ends[:-1]]
        last = np.maximum.accumulate(np.where(begins, at, -1))
        ages = np.where(last >= 0, at - last, at + self.age)
        self.age = 0 if rows.ends[-1] else int(ages[-1]) + 1
        self.count += len(at)
        self.rows = self.rows + rows
        return np.minimum(ages, stack - 1)
