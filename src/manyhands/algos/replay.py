"""Replay memory: what was played, held in one ring per lane, drawn from evenly or by priority.

Observations that are stacks of pictures are held as single pictures and stacked again when drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from manyhands.algos.priorities import SumTree
from manyhands.algos.replay_memory import allocate
from manyhands.algos.returns import n_step
from manyhands.core.arrays import Array
from manyhands.core.trajectories import Layout, Trajectory

SMALLEST_PRIORITY = 1e-3
"""The number added to every error, so that a transition without one can be drawn again."""
UNKNOWN = -1
DRAWS = 4
"""The factor by which more rows are drawn than wanted, because some cannot be used."""


@dataclass(frozen=True)
class Drawn:
    """Transitions from a replay memory: N of them."""

    places: Array  # [N], where they lie
    obs: Array  # [N, ...]
    action: Array  # [N]
    reward: Array  # [N], over n steps
    discount: Array  # [N], of the value of next_obs; 0 where nothing follows
    next_obs: Array  # [N, ...]
    weight: Array  # [N], (1 / chance)^importance over the largest: corrects for being drawn unevenly


class Replay:
    """Rows of every lane in the order of playing. A row is an observation and what was done in it.

    After an episode that was cut comes a row with its last observation alone, because the next episode's
    first is no successor. A row can be drawn when its n steps are known and its pictures are all held.
    """

    def __init__(
        self,
        layout: Layout,
        shards: int,
        memory: int,
        gamma: float,
        steps: int,
        prioritised: bool,
        directory: Path | None = None,
    ) -> None:
        """With a `directory`, observations lie in a file without a name there."""
        self.layout, self.gamma, self.n = layout, gamma, steps
        self.lanes = shards * layout.lanes
        self.stack = layout.stack
        self.slots = slots(layout, shards, memory, steps)
        size = self.lanes * self.slots
        self.obs = allocate((size, *row_shape(layout)), layout.obs_dtype, directory)
        self.action = np.zeros(size, layout.action.dtype)
        self.reward = np.zeros(size, np.float32)
        self.discount = np.zeros(size, np.float32)
        self.ahead = np.zeros(size, np.uint8)  # rows to the next observation; 0: cannot be drawn
        self.age = np.zeros(size, np.uint8)  # earlier pictures of the same game, up to stack - 1
        self.tree = SumTree(size) if prioritised else None
        self.tails = [_Tail(_Rows.none()) for _ in range(self.lanes)]
        self.completed = 0  # rows that could ever be drawn

    @property
    def held(self) -> int:
        """The number of rows that lie in the rings."""
        return sum(min(tail.count, self.slots) for tail in self.tails)

    @property
    def nbytes(self) -> int:
        columns = (self.obs, self.action, self.reward, self.discount, self.ahead, self.age)
        levels = self.tree.levels if self.tree is not None else []
        return sum(array.nbytes for array in (*columns, *levels))

    @property
    def horizon(self) -> int:
        """The number of further rows after which no trace of a row is left."""
        return self.slots + self.stack + self.n

    def counts(self) -> Array:
        """Return how many rows were ever written, by lane."""
        return np.array([tail.count for tail in self.tails])

    def go_on_at(self, counts: Array) -> None:
        """Go on at these counts of rows, as if all earlier rows had been written here, or forgotten."""
        for tail, count in zip(self.tails, counts, strict=True):
            if tail.count != count:
                tail.forget()
                tail.count, tail.episode, tail.sequence = int(count), UNKNOWN, UNKNOWN

    def add(self, trajectory: Trajectory, reward: Array, power: float) -> None:
        """Add a rollout, with its rewards [T, B] as learning sees them."""
        for lane in range(self.layout.lanes):
            self._add_lane(trajectory, lane, reward[:, lane], power)

    def _add_lane(self, trajectory: Trajectory, lane: int, reward: Array, power: float) -> None:
        number = trajectory.shard * self.layout.lanes + lane
        tail = self.tails[number]
        if not tail.continued_by(trajectory, lane):
            tail.forget()  # what came last has no successor here
        tail.episode, tail.sequence = int(trajectory.episode[lane]), trajectory.sequence
        rows, obs, action = _rows(trajectory, lane, reward, self.stack)
        # The next rows lose the pictures that they were to be stacked with.
        passed = number * self.slots + (tail.count + np.arange(len(obs) + self.stack - 1)) % self.slots
        fresh = passed[: len(obs)]
        self.ahead[passed] = 0
        if self.tree is not None:
            self.tree.put(passed, np.zeros(len(passed)))
        self.obs[fresh], self.action[fresh] = obs, action
        self.age[fresh] = tail.extend(rows, self.stack)
        self._complete(number, tail, power)
        tail.rows = tail.rows.last(self.n)

    def _complete(self, number: int, tail: "_Tail", power: float) -> None:
        """Make those rows of a lane drawable whose n steps are now known."""
        rows = tail.rows
        total, discount, ahead = n_step(rows.reward, rows.stop, rows.no_bootstrap, self.gamma, self.n)
        known = np.flatnonzero((ahead > 0) & rows.played & ~rows.known)
        if not len(known):
            return
        rows.known[known] = True
        places = number * self.slots + (tail.count - len(ahead) + known) % self.slots
        self.reward[places], self.discount[places] = total[known], discount[known]
        self.ahead[places] = ahead[known]
        self.completed += len(known)
        if self.tree is not None:
            after = np.minimum(known + ahead[known], len(ahead) - 1)
            goal = total[known] + discount[known] * rows.q_max[after]
            self.tree.put(places, priority(goal - rows.q_taken[known], power))

    def draw(self, rng: np.random.Generator, count: int, importance: float = 1.0) -> Drawn:
        """Draw `count` transitions; by priority where there are any."""
        if self.tree is None:
            places, weight = self._evenly(rng, count), np.ones(count)
        else:
            places = self.tree.sample(rng, count)
            weight = self.tree.priorities[places] ** -importance
        return Drawn(
            places,
            self._stacked(places),
            self.action[places],
            self.reward[places],
            self.discount[places],
            self._stacked(self._later(places, self.ahead[places])),
            (weight / weight.max()).astype(np.float32),
        )

    def _evenly(self, rng: np.random.Generator, count: int) -> Array:
        held = np.array([min(tail.count, self.slots) for tail in self.tails])
        ends = held.cumsum()
        found: list[Array] = []
        missing = count
        while missing:
            rows = rng.integers(ends[-1], size=DRAWS * missing)
            lane = ends.searchsorted(rows, side="right")
            places = lane * self.slots + rows - (ends[lane] - held[lane])
            usable = places[self.ahead[places] > 0][:missing]
            found.append(usable)
            missing -= len(usable)
        return np.concatenate(found)

    def _later(self, places: Array, rows: Array) -> Array:
        """Return the places in the same lane some rows later (or, below 0, earlier)."""
        lane, slot = np.divmod(places, self.slots)
        moved: Array = lane * self.slots + (slot + rows) % self.slots
        return moved

    def _stacked(self, places: Array) -> Array:
        if self.stack == 1:
            return self.obs[places]
        back = np.arange(1 - self.stack, 1)
        whole = self.obs[self._later(places[:, None], back)]
        before_the_game = -back > self.age[places][:, None]
        if before_the_game.any():
            whole[before_the_game] = 0
        return whole

    def update(self, places: Array, error: Array, power: float) -> None:
        """Set new priorities, for rows that were drawn since anything was last added."""
        if self.tree is not None:
            self.tree.put(places, priority(error, power))

    def state(self) -> dict[str, Array]:
        """Return the part of the state that `add` does not make again."""
        return {} if self.tree is None else {"priorities": self.tree.priorities.copy()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        if self.tree is not None:
            drawable = np.where(self.ahead > 0, state["priorities"], 0.0)
            self.tree.put(np.arange(self.tree.size), drawable)


def slots(layout: Layout, shards: int, memory: int, steps: int) -> int:
    """Return the rows of each lane's ring, so that `memory` of all lanes can be drawn."""
    return -(-memory // (shards * layout.lanes)) + layout.stack + steps


def row_shape(layout: Layout) -> tuple[int, ...]:
    return layout.obs_shape[1:] if layout.stack > 1 else layout.obs_shape


def row_counts(trajectory: Trajectory) -> Array:
    """Return the rows [B] that a trajectory takes: its steps, and the last observations of cut episodes."""
    steps, lanes = trajectory.reward.shape
    rows: Array = steps + np.bincount(trajectory.final_at[:, 1], minlength=lanes)
    return rows


def priority(error: Array, power: float) -> Array:
    """Return (|error| + SMALLEST_PRIORITY)^power."""
    found: Array = (np.abs(error).astype(np.float64) + SMALLEST_PRIORITY) ** power
    return found


@dataclass(frozen=True)
class _Rows:
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
    def none(cls) -> "_Rows":
        flags, numbers = np.zeros(0, bool), np.zeros(0, np.float32)
        return cls(numbers, flags, flags, flags, flags, flags, numbers, numbers)

    def __add__(self, more: "_Rows") -> "_Rows":
        pairs = [(getattr(self, field.name), getattr(more, field.name)) for field in fields(self)]
        return _Rows(*(np.concatenate(pair) for pair in pairs))

    def last(self, count: int) -> "_Rows":
        return replace(self, **{field.name: getattr(self, field.name)[-count:] for field in fields(self)})


def _rows(trajectory: Trajectory, lane: int, reward: Array, stack: int) -> tuple[_Rows, Array, Array]:
    """Return one lane of a trajectory as rows, their observations (the newest images) and actions."""
    mine = trajectory.final_at[:, 1] == lane
    cuts, finals = trajectory.final_at[mine, 0] + 1, trajectory.final_obs[mine]
    obs, done = trajectory.obs[:, lane], trajectory.done[:, lane]
    if stack > 1:
        obs, finals = obs[:, -1], finals[:, -1]

    def with_finals(column: Array, there: Array | float) -> Array:
        return np.insert(column, cuts, there, axis=0) if len(cuts) else column

    no_bootstrap, q_max = trajectory.no_bootstrap[:, lane], trajectory.columns["q_max"][:, lane]
    rows = _Rows(
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
class _Tail:
    """The end of a lane: rows whose n steps are not over, and what the next row must know."""

    rows: _Rows
    count: int = 0  # rows that were ever written
    episode: int = 0
    sequence: int = UNKNOWN  # of the last rollout
    age: int = 0  # of the next row: how many rows of its game came before

    def continued_by(self, trajectory: Trajectory, lane: int) -> bool:
        """Return False if an episode began anew elsewhere, or a rollout was dropped or went to another."""
        first = int(trajectory.episode[lane]) - int(trajectory.done[:, lane].sum())
        follows = self.sequence in (UNKNOWN, trajectory.sequence - 1)
        return follows and self.episode in (UNKNOWN, first)

    def forget(self) -> None:
        self.age, self.rows = 0, _Rows.none()

    def extend(self, rows: _Rows, stack: int) -> Array:
        """Append rows; return their ages, up to stack - 1."""
        at = np.arange(len(rows.ends))
        begins = np.r_[False, rows.ends[:-1]]
        last = np.maximum.accumulate(np.where(begins, at, -1))
        ages = np.where(last >= 0, at - last, at + self.age)
        self.age = 0 if rows.ends[-1] else int(ages[-1]) + 1
        self.count += len(at)
        self.rows = self.rows + rows
        return np.minimum(ages, stack - 1)
