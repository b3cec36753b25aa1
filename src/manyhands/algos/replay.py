"""Replay memory: what was played, held in one ring per lane, drawn from evenly or by priority.

Observations that are stacks of pictures are held as single pictures and stacked again when drawn.
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from manyhands.algos.priorities import SumTree
from manyhands.algos.returns import n_step
from manyhands.errors import UsageError
from manyhands.experience import Array, Layout, Trajectory

SMALLEST_PRIORITY = 1e-3
"""So that what surprised nobody once can be drawn again."""
RESERVE = 0.9
"""Of the free memory, what a replay memory may take."""
UNKNOWN = -1
DRAWS = 4
"""How many more rows are drawn than wanted, because some cannot be used."""


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
    """Rows of every lane in the order of playing. A row is an observation and what was done about it.

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
        file: str = "",
    ) -> None:
        self.layout, self.gamma, self.n = layout, gamma, steps
        self.lanes = shards * layout.lanes
        self.stack = layout.stack
        self.slots = -(-memory // self.lanes) + self.stack + steps
        if self.slots < 2 * layout.steps + self.stack + steps:
            raise UsageError(
                f"algo.memory is {memory}; {self.lanes} lanes of {layout.steps} steps need at least "
                f"{2 * layout.steps * self.lanes}"
            )
        shape = layout.obs_shape[1:] if self.stack > 1 else layout.obs_shape
        size = self.lanes * self.slots
        self.obs = _allocate((size, *shape), layout.obs_dtype, file)
        self.action = np.zeros(size, layout.action.dtype)
        self.reward = np.zeros(size, np.float32)
        self.discount = np.zeros(size, np.float32)
        self.ahead = np.zeros(size, np.uint8)  # rows to the next observation; 0: cannot be drawn
        self.age = np.zeros(size, np.uint8)  # earlier pictures of the same game, up to stack - 1
        self.tree = SumTree(size) if prioritised else None
        self.tails = [_Tail() for _ in range(self.lanes)]
        self.completed = 0  # rows that could ever be drawn

    @property
    def held(self) -> int:
        """Rows that lie in the rings."""
        return sum(min(tail.count, self.slots) for tail in self.tails)

    @property
    def horizon(self) -> int:
        """Rows after which one is gone without a trace."""
        return self.slots + self.stack + self.n

    def counts(self) -> Array:
        """Rows that were ever written, by lane."""
        return np.array([tail.count for tail in self.tails])

    def begin_at(self, counts: Array) -> None:
        """An empty memory goes on where another was, so that rows come to lie in the same places."""
        for tail, count in zip(self.tails, counts, strict=True):
            tail.count, tail.episode = int(count), UNKNOWN

    def add(self, trajectory: Trajectory, reward: Array, power: float) -> None:
        """A rollout, with its rewards [T, B] as learning sees them."""
        for lane in range(self.layout.lanes):
            self._add_lane(trajectory, lane, reward[:, lane], power)

    def _add_lane(self, trajectory: Trajectory, lane: int, reward: Array, power: float) -> None:
        number = trajectory.shard * self.layout.lanes + lane
        tail = self.tails[number]
        rows = _Rows(trajectory, lane, reward, self.stack)
        if rows.first_episode != tail.episode != UNKNOWN:
            tail.forget()  # its episode was begun anew elsewhere: what came last has no successor
        tail.episode = int(trajectory.episode[lane])
        count = len(rows.ends)
        # The next rows lose the pictures that they were to be stacked with.
        passed = number * self.slots + (tail.count + np.arange(count + self.stack - 1)) % self.slots
        fresh = passed[:count]
        self.ahead[passed] = 0
        if self.tree is not None:
            self.tree.put(passed, np.zeros(len(passed)))
        self.obs[fresh] = rows.obs
        self.action[fresh] = rows.action
        self.age[fresh] = tail.extend(rows, self.stack)
        self._complete(number, tail, power)
        tail.cut(self.n)

    def _complete(self, number: int, tail: "_Tail", power: float) -> None:
        """Makes those rows of a lane drawable whose n steps are now known."""
        table = tail.table
        reward, stop = table["reward"], table["stop"]
        total, discount, ahead = n_step(reward, stop, table["worthless"], self.gamma, self.n)
        known = np.flatnonzero((ahead > 0) & table["played"] & ~table["known"])
        if not len(known):
            return
        table["known"][known] = True
        places = number * self.slots + (tail.count - len(ahead) + known) % self.slots
        self.reward[places], self.discount[places] = total[known], discount[known]
        self.ahead[places] = ahead[known]
        self.completed += len(known)
        if self.tree is not None:
            after = np.minimum(known + ahead[known], len(ahead) - 1)
            goal = total[known] + discount[known] * table["q_max"][after]
            self.tree.put(places, priority(goal - table["q_taken"][known], power))

    def draw(self, rng: np.random.Generator, count: int, importance: float = 1.0) -> Drawn:
        """`count` transitions; by priority where there are any."""
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
        """The same lane, some rows on (or, below 0, back)."""
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
        """New priorities, for rows that were drawn; not for those that were overwritten since."""
        if self.tree is not None:
            still = self.ahead[places] > 0
            self.tree.put(places[still], priority(error[still], power))

    def state(self) -> dict[str, Array]:
        """What `add` does not make again."""
        return {} if self.tree is None else {"priorities": self.tree.priorities.copy()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        if self.tree is not None:
            self.tree.put(np.arange(self.tree.size), state["priorities"])


def priority(error: Array, power: float) -> Array:
    """(|error| + a little)^power."""
    found: Array = (np.abs(error).astype(np.float64) + SMALLEST_PRIORITY) ** power
    return found


class _Rows:
    """One lane of a trajectory as rows: its steps, and the last observation of every episode that was cut."""

    def __init__(self, trajectory: Trajectory, lane: int, reward: Array, stack: int) -> None:
        newest = (slice(None), lane, -1) if stack > 1 else (slice(None), lane)
        mine = trajectory.final_at[:, 1] == lane
        cuts = trajectory.final_at[mine, 0] + 1
        finals = trajectory.final_obs[mine]
        done = trajectory.done[:, lane]
        self.first_episode = int(trajectory.episode[lane]) - int(done.sum())

        def with_finals(column: Array, there: Array | float) -> Array:
            return np.insert(column, cuts, there, axis=0) if len(cuts) else column

        self.obs = with_finals(trajectory.obs[newest], finals[:, -1] if stack > 1 else finals)
        self.action = with_finals(trajectory.action[:, lane], 0)
        played = np.ones(len(done), bool)
        worthless = trajectory.worthless[:, lane]
        q_max = trajectory.columns["q_max"][:, lane]
        self.ends = with_finals(trajectory.terminated[:, lane], True)  # the game is over after this row
        self.table = {
            "reward": with_finals(reward, 0),
            "stop": with_finals(done | worthless, True),
            "worthless": with_finals(worthless, True),
            "played": with_finals(played, False),
            "known": with_finals(~played, False),
            "q_taken": with_finals(trajectory.columns["q_taken"][:, lane], 0),
            # Nobody asked what the last observation of a cut episode is worth; as much as the one before.
            "q_max": with_finals(q_max, q_max[cuts - 1]),
        }


class _Tail:
    """The end of a lane: rows whose n steps are not over, and what the next row must know."""

    def __init__(self) -> None:
        self.count = 0  # rows that were ever written
        self.episode = 0
        self.age = 0  # of the next row: how many rows of its game came before
        self.table: dict[str, Array] = {}

    def forget(self) -> None:
        self.age, self.table = 0, {}

    def extend(self, rows: _Rows, stack: int) -> Array:
        """Appends rows; returns their ages, up to stack - 1."""
        at = np.arange(len(rows.ends))
        begins = np.r_[False, rows.ends[:-1]]
        last = np.maximum.accumulate(np.where(begins, at, -1))
        ages = np.where(last >= 0, at - last, at + self.age)
        self.age = 0 if rows.ends[-1] else int(ages[-1]) + 1
        self.count += len(at)
        self.table = {
            name: np.concatenate([self.table[name], column]) if self.table else column
            for name, column in rows.table.items()
        }
        return np.minimum(ages, stack - 1)

    def cut(self, rows: int) -> None:
        self.table = {name: column[-rows:] for name, column in self.table.items()}


def _allocate(shape: tuple[int, ...], dtype: str, file: str) -> Array:
    """Room for observations, in memory or in a file; refused before it is taken, not when it runs out."""
    wanted = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if file:
        path = Path(file)
        room = shutil.disk_usage(path.parent if path.parent.exists() else ".").free
        _refuse_if_too_large(wanted, room, shape[0], f"on the disk of {file}")
        try:
            return np.memmap(path, dtype, "w+", shape=shape)
        except OSError as error:
            raise UsageError(f"algo.memory_file: cannot write {file}: {error.strerror}") from error
    _refuse_if_too_large(wanted, free_memory(), shape[0], "in memory; or give algo.memory_file, a file")
    return np.zeros(shape, dtype)


def _refuse_if_too_large(wanted: int, room: int, rows: int, where: str) -> None:
    if wanted > RESERVE * room:
        fits = int(rows * RESERVE * room / wanted)
        raise UsageError(
            f"a replay memory of {rows:,} transitions takes {wanted / 1e9:.1f} GB, and {room / 1e9:.1f} GB "
            f"are free; algo.memory={fits} would fit {where}"
        )


def free_memory() -> int:
    """Bytes that this process can still get, as Linux tells; elsewhere what the machine has."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):  # a container's own limit; the word "max" where there is none
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text())
        limits.append(int((group / "memory.max").read_text()) - used)
    return min(limits)
