"""Replay memory: what was played, held in one ring per lane, drawn from evenly or by priority.

Observations that are stacks of pictures are held as single pictures and stacked again when drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from manyhands.algos.priorities import SumTree
from manyhands.algos.replay_memory import allocate
from manyhands.algos.replay_rows import UNKNOWN, Rows, Tail, rows_of_lane
from manyhands.algos.returns import n_step
from manyhands.core.arrays import Array
from manyhands.core.trajectories import Layout, Trajectory

SMALLEST_PRIORITY = 1e-3
"""The number added to every error, so that a transition without one can be drawn again."""
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
        self.tails = [Tail(Rows.none()) for _ in range(self.lanes)]
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
        rows, obs, action = rows_of_lane(trajectory, lane, reward, self.stack)
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

    def _complete(self, number: int, tail: Tail, power: float) -> None:
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


def priority(error: Array, power: float) -> Array:
    """Return (|error| + SMALLEST_PRIORITY)^power."""
    found: Array = (np.abs(error).astype(np.float64) + SMALLEST_PRIORITY) ** power
    return found
