"""The replay memory against a slow one that keeps everything, and the sum tree against a plain list."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.algos import replay_memory as room
from manyhands.algos.dqn import Dqn, DqnConfig
from manyhands.algos.priorities import SumTree
from manyhands.algos.replay import Replay, priority
from manyhands.algos.returns import n_step
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.errors import UsageError
from manyhands.core.trajectories import LIFE_LOST, Layout, Trajectory

CHOICE = ActionSpec("values", (3,))
SIDE = 3


@dataclass
class Step:
    """One step as an actor lived it."""

    obs: Array
    action: int
    reward: float
    terminated: bool
    truncated: bool
    life_lost: bool
    final_obs: Array | None


class Game:
    """One lane that invents pictures, and stacks them with nothing before the game's first."""

    def __init__(self, rng: np.random.Generator, stack: int) -> None:
        self.rng, self.stack = rng, stack
        self.episode = -1
        self.begin()

    def begin(self) -> None:
        self.episode += 1
        self.pictures = np.zeros((self.stack, SIDE, SIDE), np.uint8)
        self.see()

    def see(self) -> None:
        new = self.rng.integers(1, 255, (1, SIDE, SIDE), np.uint8)
        self.pictures = np.concatenate([self.pictures[1:], new])

    @property
    def obs(self) -> Array:
        return self.pictures.copy() if self.stack > 1 else self.pictures[0].reshape(-1).astype(np.float32)

    def step(self) -> Step:
        obs, ends = self.obs, self.rng.random()
        terminated, truncated = ends < 0.08, 0.08 <= ends < 0.16
        self.see()
        final = self.obs if truncated else None
        lost = bool(self.rng.random() < 0.1)
        made = Step(
            obs, int(self.rng.integers(3)), float(self.rng.normal()), terminated, truncated, lost, final
        )
        if terminated or truncated:
            self.begin()
        return made


def layout_of(stack: int, lanes: int = 2, steps: int = 7) -> Layout:
    shape, dtype = ((stack, SIDE, SIDE), "|u1") if stack > 1 else ((SIDE * SIDE,), "<f4")
    return Layout(steps, lanes, shape, dtype, CHOICE, ("q_taken", "q_max", LIFE_LOST), stack)


def play(
    layout: Layout, games: list[Game], shard: int, lives: list[list[Step]], sequence: int = 0
) -> Trajectory:
    """One rollout; what happened is also appended to `lives`, by lane."""
    rows = [[game.step() for game in games] for _ in range(layout.steps)]
    for lane in range(layout.lanes):
        lives[shard * layout.lanes + lane] += [row[lane] for row in rows]

    def column(name: str, dtype: Any) -> Array:
        return np.array([[getattr(step, name) for step in row] for row in rows], dtype)

    cuts = [(t, i) for t, row in enumerate(rows) for i, step in enumerate(row) if step.truncated]
    q = np.random.default_rng(shard).normal(size=(2, layout.steps, layout.lanes)).astype(np.float32)
    finals = [rows[t][i].final_obs for t, i in cuts]
    return Trajectory(
        shard=shard,
        sequence=sequence,
        version=0,
        maker="test",
        obs=column("obs", layout.obs_dtype),
        action=column("action", "<i4"),
        reward=column("reward", "<f4"),
        terminated=column("terminated", bool),
        truncated=column("truncated", bool),
        columns={"q_taken": q[0], "q_max": q[1], LIFE_LOST: column("life_lost", "<f4")},
        last_obs=np.array([game.obs for game in games]),
        episode=np.array([game.episode for game in games]),
        final_obs=np.array(finals).reshape(-1, *layout.obs_shape).astype(layout.obs_dtype),
        final_at=np.array(cuts, np.int32).reshape(-1, 2),
        episode_return=np.zeros(0),
        episode_length=np.zeros(0, np.int32),
    )


def transitions(steps: list[Step], n: int, gamma: float) -> list[tuple[Any, ...]]:
    """Every transition of a lane whose n steps are over, written like the definition."""
    found = []
    for start in range(len(steps)):
        total = 0.0
        for k in range(n):
            if start + k >= len(steps):
                break
            step = steps[start + k]
            total += gamma**k * step.reward
            if step.terminated or step.life_lost:
                found.append((steps[start], total, 0.0, None))
                break
            if step.truncated:
                found.append((steps[start], total, gamma ** (k + 1), step.final_obs))
                break
        else:
            if start + n < len(steps):
                found.append((steps[start], total, gamma**n, steps[start + n].obs))
    return found


def filled(stack: int, n: int, rollouts: int, memory: int, prioritised: bool = False) -> tuple[Replay, Any]:
    layout, shards = layout_of(stack), 2
    rng = np.random.default_rng(7)
    games = [[Game(rng, stack) for _ in range(layout.lanes)] for _ in range(shards)]
    lives: list[list[Step]] = [[] for _ in range(shards * layout.lanes)]
    replay = Replay(layout, shards, memory, 0.9, n, prioritised)
    for sequence in range(rollouts):
        for shard in range(shards):
            trajectory = play(layout, games[shard], shard, lives, sequence)
            replay.add(trajectory, trajectory.reward, 0.6)
    return replay, lives


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(("rollouts", "memory"), [(3, 400), (30, 160)], ids=["filling", "overwriting"])
def test_holds_the_newest_transitions_of_every_lane(stack: int, n: int, rollouts: int, memory: int) -> None:
    replay, lives = filled(stack, n, rollouts, memory)
    known = {
        transition[0].obs.tobytes(): transition
        for steps in lives
        for transition in transitions(steps, n, 0.9)
    }
    places = np.flatnonzero(replay.ahead)
    assert len(places) >= min(memory, len(known)) * 0.8  # last observations and lost pictures take some room
    obs, next_obs = replay._stacked(places), replay._stacked(replay._later(places, replay.ahead[places]))
    for i, place in enumerate(places):
        step, total, discount, following = known[obs[i].tobytes()]
        assert replay.action[place] == step.action
        assert replay.reward[place] == pytest.approx(total, rel=1e-5)
        assert replay.discount[place] == pytest.approx(discount, rel=1e-5)
        if following is not None:
            assert np.array_equal(next_obs[i], following)
    newest = {transitions(steps, n, 0.9)[-1][0].obs.tobytes() for steps in lives}
    assert newest <= {row.tobytes() for row in obs}


@pytest.mark.parametrize("prioritised", [False, True])
def test_draws_only_what_is_whole(prioritised: bool) -> None:
    replay, _ = filled(4, 3, 30, 160, prioritised)
    rng = np.random.default_rng(0)
    for _ in range(50):
        drawn = replay.draw(rng, 16, 0.5)
        assert (replay.ahead[drawn.places] > 0).all()
        assert drawn.obs.shape == drawn.next_obs.shape == (16, 4, SIDE, SIDE)
        assert drawn.weight.max() == 1
        replay.update(drawn.places, rng.normal(size=16), 0.6)


def test_draws_evenly_from_all_lanes_and_ages() -> None:
    replay, _ = filled(1, 1, 30, 160)
    drawn = np.concatenate([replay.draw(np.random.default_rng(i), 100).places for i in range(400)])
    usable = np.flatnonzero(replay.ahead)
    counts = np.bincount(drawn, minlength=len(replay.ahead))[usable]
    expected = len(drawn) / len(usable)
    assert abs(counts - expected).max() < 6 * expected**0.5


def test_first_priorities_are_the_errors_that_the_actor_saw() -> None:
    replay, _ = filled(1, 2, 1, 400, prioritised=True)
    layout, rng = layout_of(1), np.random.default_rng(7)
    games = [Game(rng, 1) for _ in range(layout.lanes)]
    trajectory = play(layout, games, 0, [[] for _ in range(4)])
    assert replay.tree is not None
    q_taken, q_max = (trajectory.columns[name][:, 0] for name in ("q_taken", "q_max"))
    quiet = ~(trajectory.done | trajectory.no_bootstrap)[:, 0]
    for t in range(layout.steps - 2):
        if quiet[: t + 2].all():  # no last observations lie between, so row t lies at place t
            error = (
                trajectory.reward[t, 0] + 0.9 * trajectory.reward[t + 1, 0] + 0.81 * q_max[t + 2] - q_taken[t]
            )
            assert replay.tree.priorities[t] == pytest.approx(priority(np.array([error]), 0.6)[0], rel=1e-4)


@pytest.mark.parametrize("missing", ["the rest of an episode", "a rollout"])
def test_what_follows_a_gap_is_no_successor(missing: str) -> None:
    layout = layout_of(4, lanes=1)
    for seed in range(20):
        game = Game(np.random.default_rng(seed), 4)
        replay = Replay(layout, 1, 100, 0.9, 3, False)
        first = play(layout, [game], 0, [[]])
        replay.add(first, first.reward, 0.6)
        if missing == "a rollout":
            lost = play(layout, [game], 0, [[]], 1)  # dropped for its age, or learned by another executor
            second = play(layout, [game], 0, [[]], 2)
            if lost.done.any():
                continue  # then the number of the episode tells as well
        else:
            game.begin()  # the worker was lost, and another began the next episode
            second = play(layout, [game], 0, [[]], 1)
        replay.add(second, second.reward, 0.6)
        places = np.flatnonzero(replay.ahead)
        seam = layout.steps + int(first.truncated.sum())
        crossing = (places < seam) & (places + replay.ahead[places] >= seam) & (replay.discount[places] > 0)
        assert not crossing.any()
        assert replay.age[seam] == 0


def test_a_memory_on_disk_holds_the_same_and_leaves_nothing_behind(tmp_path: Path) -> None:
    layout = layout_of(4)
    game = [Game(np.random.default_rng(3), 4) for _ in range(layout.lanes)]
    trajectory = play(layout, game, 0, [[] for _ in range(4)])
    one = Replay(layout, 1, 100, 0.9, 1, False)
    two = Replay(layout, 1, 100, 0.9, 1, False, tmp_path)
    for replay in (one, two):
        replay.add(trajectory, trajectory.reward, 0.6)
    assert isinstance(two.obs, np.memmap)
    assert np.array_equal(one.obs, two.obs)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match=r"algo.memory_on_disk: 0.0 GB in .*No such file"):
        Replay(layout, 1, 100, 0.9, 1, False, tmp_path / "nowhere")


def test_a_memory_that_does_not_fit_is_refused_with_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda: 100_000_000)
    layout = Layout(4, 1, (4, 84, 84), "|u1", CHOICE, ("q_taken", "q_max"), 4)
    for memory in (100_000, 10**16):
        with pytest.raises(
            UsageError, match=r"GB, and 0.1 GB are free; algo.memory=(\d+) would fit"
        ) as refused:
            Dqn(DqnConfig(memory=memory)).check_memory(layout, 2, here=True)
        fits = int(re.findall(r"memory=(\d+)", str(refused.value))[0])
        Dqn(DqnConfig(memory=fits)).check_memory(layout, 2, here=True)
    Dqn(DqnConfig(memory=10**16, memory_on_disk=True)).check_memory(layout, 2, here=True)
    Dqn(DqnConfig(memory=10**16)).check_memory(layout, 2, here=False)
    with pytest.raises(UsageError, match="2 lanes of 4 steps need at least 16"):
        Dqn(DqnConfig(memory=15, batch=8)).check_memory(layout, 2, here=True)


def test_a_transition_of_an_atari_game_takes_less_than_7500_bytes() -> None:
    layout = Layout(4, 1, (4, 84, 84), "|u1", CHOICE, ("q_taken", "q_max"), 4)
    assert Replay(layout, 1, 20_000, 0.9, 3, True).nbytes <= 7500 * 20_000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=300), st.integers(0, 2**32 - 1))
def test_the_sum_tree_finds_what_a_plain_list_finds(priorities: list[float], seed: int) -> None:
    tree = SumTree(len(priorities))
    values = np.array(priorities)
    half = len(values) // 2
    tree.put(np.arange(len(values)), np.r_[values[:half] + 1, values[half:]])
    tree.put(np.arange(half), values[:half])
    assert tree.total == pytest.approx(values.sum())
    if tree.total == 0:
        return
    ends = np.cumsum(values)
    amounts = np.random.default_rng(seed).random(20) * tree.total
    for amount, place in zip(amounts, tree.find(amounts), strict=True):
        assert values[place] > 0
        assert ends[place] >= amount - 1e-9 * tree.total
        assert ends[place] - values[place] <= amount + 1e-9 * tree.total


def test_draws_follow_the_priorities() -> None:
    tree, rng = SumTree(1000), np.random.default_rng(0)
    values = rng.random(1000) ** 3
    tree.put(np.arange(1000), values)
    drawn = np.concatenate([tree.sample(rng, 100) for _ in range(3000)])
    share = np.bincount(drawn, minlength=1000) / len(drawn)
    assert abs(share - values / values.sum()).max() < 3e-4


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 12))
def test_n_steps_are_those_of_the_definition(data: st.DataObject, n: int, count: int) -> None:
    rewards = np.array(data.draw(st.lists(st.floats(-5, 5), min_size=count, max_size=count)), np.float32)
    flags = data.draw(st.lists(st.sampled_from(["", "cut", "over"]), min_size=count, max_size=count))
    stop, no_bootstrap = (
        np.array([flag in kinds for flag in flags]) for kinds in (("cut", "over"), ("over",))
    )
    total, discount, ahead = n_step(rewards, stop, no_bootstrap, 0.9, n)
    for i in range(count):
        ends = [k for k in range(n) if i + k < count and stop[i + k]]
        if not ends and i + n >= count:
            assert ahead[i] == 0
            continue
        m = ends[0] + 1 if ends else n
        assert ahead[i] == m
        assert total[i] == pytest.approx(sum(0.9**k * rewards[i + k] for k in range(m)), abs=1e-4)
        assert discount[i] == pytest.approx(0 if ends and no_bootstrap[i + m - 1] else 0.9**m)
