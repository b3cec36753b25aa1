"""Rollouts of environments whose every number is known, and of ones that misbehave."""

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from toys import LONGEST, Clock, Spoiled, ending_of, length_of, observation, reward_of

from manyhands.collect.collector import Collector
from manyhands.collect.episodes import TRIES
from manyhands.config.settings import NetConfig
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import EnvError
from manyhands.core.events import Fault, Notice
from manyhands.core.lanes import ShardState
from manyhands.core.orders import Order, Task
from manyhands.core.seeding import env_seed
from manyhands.core.trajectories import Layout, Trajectory
from manyhands.core.weights import Weights
from manyhands.envs.describe import describe
from manyhands.envs.make import make
from manyhands.nets.build import actor, actor_critic

SEED = 5
STEPS, LANES = 6, 3


class Playing:
    """A collector, its task and weights, and what it reports."""

    def __init__(
        self,
        make_env: Callable[..., Any] | None = None,
        env_id: str = "toy",
        steps: int = STEPS,
        lanes: int = LANES,
    ) -> None:
        config = EnvConfig(env_id)
        env = make(config, make_env)
        described = describe(env)
        env.close()
        spec = actor_critic(NetConfig(hidden=(8,), log_std=-0.3), described)
        layout = Layout(steps, lanes, described.obs.shape, described.obs.dtype, described.action, ("logp",))
        self.task = Task(config, spec, layout, SEED)
        self.reports: list[Fault | Notice] = []
        self.make_env = make_env
        self.collector = Collector(self.task, "worker", self.reports.append, make_env)

    def weights(self, version: int = 0) -> Weights:
        spec = self.task.spec
        vector = spec.initial_vector(version) + np.float32(0.05 * version)
        return Weights(version, vector, spec.schema)

    def play(self, sequence: int, shard: int = 0, start: ShardState | None = None) -> Trajectory:
        """Rollout number `sequence`, always played by the weights of the same number."""
        order = Order(shard, sequence, sequence, start)
        return self.collector.collect(order, self.weights(sequence), self.task.layout.allocate())

    def again(self) -> "Playing":
        """The same run on another worker."""
        other = copy.copy(self)
        other.reports = []
        other.collector = Collector(self.task, "worker 2", other.reports.append, self.make_env)
        return other


def bits(trajectory: Trajectory) -> dict[str, Any]:
    """Everything but who made it and how long it took."""
    fields = {**vars(trajectory), **trajectory.columns}
    for name in ("columns", "maker", "seconds"):
        del fields[name]
    return {n: (v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for n, v in fields.items()}


def expected_steps(lane: int) -> Iterator[tuple[int, int, int]]:
    """(episode, seed, step) before every step of a Clock in a lane, forever."""
    for episode in itertools.count():
        seed = env_seed(SEED, lane, episode)
        for step in range(length_of(seed)):
            yield episode, seed, step


@pytest.mark.parametrize("shard", [0, 2])
def test_rollouts_hold_what_the_environment_said_and_nothing_crosses_an_episode(shard: int) -> None:
    playing = Playing(Clock)
    lanes = [expected_steps(shard * LANES + i) for i in range(LANES)]
    last_action = [-1] * LANES
    seen = {"terminated": 0, "truncated": 0, "both": 0}
    for sequence in range(12):
        trajectory = playing.play(sequence, shard)
        finals = {tuple(at): obs for at, obs in zip(trajectory.final_at, trajectory.final_obs, strict=True)}
        returns, lengths = [], []
        for t, i in np.ndindex(STEPS, LANES):
            _, seed, step = next(lanes[i])
            action = int(trajectory.action[t, i])
            assert np.array_equal(
                trajectory.obs[t, i], observation(seed, step, last_action[i] if step else -1)
            )
            assert trajectory.reward[t, i] == reward_of(seed, step + 1)
            last = step + 1 == length_of(seed)
            terminated, truncated = ending_of(seed) if last else (False, False)
            assert trajectory.terminated[t, i] == terminated
            assert trajectory.truncated[t, i] == (truncated and not terminated)
            if truncated and not terminated:
                assert np.array_equal(finals.pop((t, i)), observation(seed, step + 1, action))
            if last:
                returns.append(sum(reward_of(seed, s + 1) for s in range(step + 1)))
                lengths.append(step + 1)
                seen["both" if terminated and truncated else "terminated" if terminated else "truncated"] += 1
            last_action[i] = action
        assert not finals, "a final observation that belongs to no truncated step"
        assert trajectory.episode_return.tolist() == pytest.approx(returns)
        assert trajectory.episode_length.tolist() == lengths
        for i in range(LANES):
            episode, seed, step = upcoming = next(lanes[i])
            lanes[i] = itertools.chain([upcoming], lanes[i])
            assert trajectory.episode[i] == episode
            assert np.array_equal(
                trajectory.last_obs[i], observation(seed, step, last_action[i] if step else -1)
            )
        assert (trajectory.shard, trajectory.sequence, trajectory.version) == (shard, sequence, sequence)
        assert trajectory.maker == "worker"
    assert all(count > 2 for count in seen.values()), "the test must meet every kind of ending"
    assert not playing.reports


def test_shards_and_seeds_never_share_lanes() -> None:
    playing = Playing(Clock)
    firsts = [playing.play(0, shard).obs[0, :, 0].tolist() for shard in range(4)]
    assert len({seed for lanes in firsts for seed in lanes}) == 4 * LANES


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_stored_log_probabilities_equal_a_recomputation(env_id: str) -> None:
    playing = Playing(env_id=env_id)
    net = actor(playing.task.spec)
    for sequence in range(3):
        trajectory = playing.play(sequence)
        net.load(playing.weights(sequence).vector)
        for t in range(STEPS):
            outputs = torch.from_numpy(net.forward(trajectory.obs[t], "policy").copy())
            action = torch.from_numpy(trajectory.action[t])
            if playing.task.layout.action.kind == "gaussian":
                deviation = torch.from_numpy(np.exp(net.forward(trajectory.obs[t], "log_std")))
                expected = torch.distributions.Normal(outputs, deviation).log_prob(action).sum(-1)
            else:
                expected = torch.distributions.Categorical(logits=outputs).log_prob(action)
            np.testing.assert_allclose(trajectory.columns["logp"][t], expected, rtol=1e-4, atol=1e-4)


RESTARTABLE: list[tuple[Callable[..., Any] | None, str]] = [
    (Clock, "toy"),
    (None, "CartPole-v1"),
    (None, "Pendulum-v1"),
    (None, "FrozenLake-v1"),
]


@pytest.mark.parametrize(("make_env", "env_id"), RESTARTABLE)
@pytest.mark.parametrize("cut", [0, 1, 4, 9])
def test_a_shard_restored_by_replay_goes_on_with_the_same_bits(
    make_env: Callable[..., Any] | None, env_id: str, cut: int
) -> None:
    whole = Playing(make_env, env_id)
    state = ShardState.fresh(whole.task.layout)
    for sequence in range(cut):
        state = state.after(whole.play(sequence))
    other = whole.again()
    for sequence in range(cut, cut + 5):
        expected = whole.play(sequence)
        got = other.play(sequence, start=state if sequence == cut else None)
        assert bits(got) == bits(expected)
    assert not other.reports
    if cut:
        assert any(len(lane.actions) for lane in state.lanes), "nothing was in flight: the test tests nothing"


def test_episodes_restored_in_flight_report_their_whole_return_and_length() -> None:
    whole = Playing(None, "CartPole-v1", steps=5)
    state = ShardState.fresh(whole.task.layout)
    for sequence in range(3):
        state = state.after(whole.play(sequence))
    other = whole.again()
    lengths = []
    for sequence in range(3, 20):
        expected = whole.play(sequence)
        got = other.play(sequence, start=state if sequence == 3 else None)
        assert got.episode_length.tolist() == expected.episode_length.tolist()
        lengths += got.episode_length.tolist()
    assert max(lengths) > 15


def test_a_shard_can_be_restored_on_a_collector_that_holds_it_already() -> None:
    playing = Playing(Clock)
    state = ShardState.fresh(playing.task.layout).after(playing.play(0))
    first = playing.play(1)
    playing.play(2)
    assert bits(playing.play(1, start=state)) == bits(first)


def test_an_order_out_of_sequence_is_refused() -> None:
    playing = Playing(Clock)
    playing.play(0)
    with pytest.raises(ValueError, match="stands at 1, not 3"):
        playing.play(3)


class Forgetful(Clock):
    """Its observations depend on how many environments were made before it."""

    made = itertools.count()

    def __init__(self) -> None:
        self.number = next(self.made)

    def step(self, action: int) -> Any:
        obs, *rest = super().step(action)
        obs[2] = self.number
        return obs, *rest


def in_flight(state: ShardState) -> list[int]:
    return [i for i, lane in enumerate(state.lanes) if len(lane.actions)]


def test_an_environment_that_does_not_repeat_itself_is_noticed_and_its_lanes_named() -> None:
    playing = Playing(Forgetful)
    state = ShardState.fresh(playing.task.layout)
    for sequence in range(2):
        state = state.after(playing.play(sequence, shard=1))
    moving = in_flight(state)
    assert moving
    other = playing.again()
    trajectory = other.play(2, shard=1, start=state)
    [notice] = other.reports
    assert isinstance(notice, Notice)
    assert notice.worker == "worker 2"
    assert "toy" in notice.text
    assert notice.text.endswith("lanes " + ", ".join(str(LANES + i) for i in moving))
    for i in range(LANES):
        episode = state.lanes[i].episode + (i in moving)
        seed = env_seed(SEED, LANES + i, episode)
        assert np.array_equal(trajectory.obs[0, i], observation(seed, 0, -1))


class Capricious(gymnasium.Env[np.ndarray, int]):
    """Always looks the same, but ends at another step every time it is played."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    ends_at = 1000

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.count, self.over = 0, False
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert not self.over, "stepped after its end"
        self.count += 1
        self.over = self.count >= self.ends_at
        return np.zeros(1, np.float32), 1.0, self.over, False, {}


def test_an_episode_that_ends_during_its_replay_is_begun_anew() -> None:
    playing = Playing(Capricious)
    state = ShardState.fresh(playing.task.layout).after(playing.play(0))

    class Sooner(Capricious):
        ends_at = STEPS  # at the very last of the actions that are played again

    playing.make_env = Sooner
    other = playing.again()
    other.play(1, start=state)
    assert [type(report) for report in other.reports] == [Notice]


def test_a_lost_episode_is_begun_anew_with_a_notice() -> None:
    playing = Playing(Clock)
    state = ShardState.fresh(playing.task.layout).after(playing.play(0))
    lanes = tuple(replace(lane, lost=True, actions=lane.actions[:0]) for lane in state.lanes)
    other = playing.again()
    trajectory = other.play(1, start=replace(state, lanes=lanes))
    assert [type(report) for report in other.reports] == [Notice]
    for i in range(LANES):
        seed = env_seed(SEED, i, state.lanes[i].episode + 1)
        assert np.array_equal(trajectory.obs[0, i], observation(seed, 0, -1))


def crash_at(seed: int, step: int) -> Callable[..., Any]:
    def on_step(env: Spoiled, *result: Any) -> Any:
        if (env.seed, env.step_number) == (seed, step):
            raise RuntimeError("the simulator fell over")
        return result

    return lambda: Spoiled(on_step)


def long_episode(lane: int) -> tuple[int, int]:
    """(episode, seed) of the first one in a lane that has at least four steps."""
    for episode in itertools.count():
        seed = env_seed(SEED, lane, episode)
        if length_of(seed) >= 4:
            return episode, seed
    raise AssertionError


def test_a_crash_in_step_is_reported_and_the_lane_goes_on_with_a_new_environment() -> None:
    lane = 4  # the second of shard 1
    episode, seed = long_episode(lane)
    playing, healthy = Playing(crash_at(seed, 3)), Playing(Clock)
    met = False
    for sequence in range(20):
        trajectory, whole = playing.play(sequence, shard=1), healthy.play(sequence, shard=1)
        others = [0, 2]
        assert np.array_equal(trajectory.reward[:, others], whole.reward[:, others]), "another lane felt it"
        if playing.reports and not met:
            met = True
            index = next(
                i
                for i, (t, lane_in_shard) in enumerate(trajectory.final_at)
                if lane_in_shard == 1 and trajectory.reward[t, 1] == 0.0
            )
            t = int(trajectory.final_at[index, 0])
            assert trajectory.truncated[t, 1]
            assert not trajectory.terminated[t, 1]
            assert np.array_equal(trajectory.final_obs[index], trajectory.obs[t, 1]), (
                "the last it was seen to say"
            )
            following = trajectory.obs[t + 1, 1] if t + 1 < STEPS else trajectory.last_obs[1]
            assert np.array_equal(following, observation(env_seed(SEED, lane, episode + 1), 0, -1))
            assert 2 in trajectory.episode_length.tolist()
    assert met
    [fault] = playing.reports
    assert isinstance(fault, Fault)
    assert (fault.worker, fault.shard, fault.lane, fault.episode, fault.seed) == (
        "worker",
        1,
        lane,
        episode,
        seed,
    )
    assert "Traceback" in fault.text
    assert "the simulator fell over" in fault.text
    assert "on_step" in fault.text


def test_a_crash_in_the_first_step_of_an_episode_books_no_episode() -> None:
    def on_step(env: Spoiled, *result: Any) -> Any:
        raise RuntimeError("always")

    playing = Playing(lambda: Spoiled(on_step), steps=3, lanes=2)
    trajectory = playing.play(0)
    assert len(playing.reports) == 6
    assert trajectory.truncated.all()
    assert len(trajectory.episode_length) == 0
    assert trajectory.episode.tolist() == [3, 3]


def test_a_crash_during_replay_is_reported_and_the_lane_begun_anew() -> None:
    playing = Playing(Clock)
    state = ShardState.fresh(playing.task.layout)
    sequence = 0
    while len(in_flight(state)) < LANES:
        state = state.after(playing.play(sequence))
        sequence += 1

    def on_step(env: Spoiled, *result: Any) -> Any:
        raise RuntimeError("not again")

    playing.make_env = lambda: Spoiled(on_step)
    other = playing.again()
    other.collector.collect(Order(0, sequence, 0, state), playing.weights(), playing.task.layout.allocate())
    assert [type(report) for report in other.reports[: LANES + 1]] == [Fault] * LANES + [Notice]


def test_a_reset_that_fails_once_is_tried_again() -> None:
    failures = iter([True])

    def on_reset(env: Spoiled, *result: Any) -> Any:
        if next(failures, False):
            raise RuntimeError("not today")
        return result

    playing = Playing(lambda: Spoiled(on_reset=on_reset))
    trajectory = playing.play(0)
    [fault] = playing.reports
    assert isinstance(fault, Fault)
    assert "not today" in fault.text
    assert np.array_equal(trajectory.obs[0, 0], observation(env_seed(SEED, 0, 0), 0, -1))


def test_a_reset_that_always_fails_ends_the_run_by_name() -> None:
    def on_reset(env: Spoiled, *result: Any) -> Any:
        raise RuntimeError("never")

    playing = Playing(lambda: Spoiled(on_reset=on_reset))
    with pytest.raises(EnvError, match=rf"reset failed {TRIES} times: RuntimeError: never.*lane 0") as caught:
        playing.play(0)
    assert str(env_seed(SEED, 0, 0)) in str(caught.value)
    assert len(playing.reports) == TRIES - 1


def spoil(part: int, value: Any, when: Callable[[Spoiled, tuple[Any, ...]], bool]) -> Callable[[], Spoiled]:
    """A Clock that returns `value` as part of a step (0 observation, 1 reward) of lane 1 of shard 0."""
    seeds = {env_seed(SEED, 1, episode) for episode in range(200)}

    def on_step(env: Spoiled, *result: Any) -> Any:
        if env.seed in seeds and when(env, result):
            return (*result[:part], value, *result[part + 1 :])
        return result

    return lambda: Spoiled(on_step)


NAN_OBS = np.array([0.0, np.nan, 0.0], np.float32)


def at_step(number: int) -> Callable[[Spoiled, tuple[Any, ...]], bool]:
    return lambda env, result: env.step_number == number


def when_truncated(env: Spoiled, result: tuple[Any, ...]) -> bool:
    return bool(result[3] and not result[2])


BROKEN = {
    "NaN observation": (spoil(0, NAN_OBS, at_step(2)), "observation is not finite"),
    "infinite observation": (
        spoil(0, np.array([0.0, np.inf, 0.0], np.float32), at_step(2)),
        "observation is not finite",
    ),
    "NaN in the last observation of a truncated episode": (
        spoil(0, NAN_OBS, when_truncated),
        "observation is not finite",
    ),
    "NaN reward": (spoil(1, float("nan"), at_step(1)), "reward is not finite"),
    "infinite reward": (spoil(1, float("-inf"), at_step(1)), "reward is not finite"),
    "no reward": (spoil(1, None, at_step(1)), "reward is None"),
    "reward in words": (spoil(1, "much", at_step(1)), "reward is 'much'"),
    "observation of another shape": (spoil(0, np.zeros(4, np.float32), at_step(1)), r"shape \(4,\)"),
    "no observation": (spoil(0, None, at_step(1)), "NoneType"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_contracts_are_refused_with_lane_and_seed(what: str) -> None:
    make_env, words = BROKEN[what]
    playing = Playing(make_env)
    with pytest.raises(EnvError, match=words) as caught:
        deque(map(playing.play, range(40)), maxlen=0)
    assert "toy" in str(caught.value)
    assert "lane 1," in str(caught.value)
    assert "seed" in str(caught.value)
    assert not playing.reports


@pytest.mark.parametrize(("part", "value"), [(0, NAN_OBS), (1, float("nan"))], ids=["observation", "reward"])
def test_the_seed_named_is_that_of_the_episode_that_broke(part: int, value: Any) -> None:
    """The lane may be many episodes further when the rollout is checked."""
    episode, seed = long_episode(1)
    playing = Playing(spoil(part, value, lambda env, _: (env.seed, env.step_number) == (seed, 2)), steps=80)
    with pytest.raises(EnvError, match=rf"lane 1, episode {episode}, .*seed {seed}"):
        playing.play(0)


def test_a_broken_observation_on_reset_is_refused_with_its_lane() -> None:
    playing = Playing(lambda: Spoiled(on_reset=lambda env, obs, info: (np.zeros((3, 1)), info)))
    with pytest.raises(EnvError, match=r"on reset.*shape \(3, 1\).*lane 0"):
        playing.play(0)


def test_other_spaces_than_the_tasks_are_refused() -> None:
    playing = Playing(Clock)
    playing.make_env = Capricious
    with pytest.raises(EnvError, match="other spaces"):
        playing.again().play(0)


def test_environments_that_reuse_their_observation_array_do_no_harm() -> None:
    class Reusing(Clock):
        def __init__(self) -> None:
            self.buffer = np.zeros(3, np.float32)

        def step(self, action: int) -> Any:
            self.buffer[...], *rest = super().step(action)
            return self.buffer, *rest

    reusing, fresh = Playing(Reusing), Playing(Clock)
    for sequence in range(5):
        assert bits(reusing.play(sequence)) == bits(fresh.play(sequence))


def test_the_longest_toy_episode_outlasts_a_rollout() -> None:
    """Else no test here would carry an episode from one rollout to the next."""
    assert LONGEST > STEPS
