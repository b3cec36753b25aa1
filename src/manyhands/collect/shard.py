"""Plays a policy in a group of lanes and fills a trajectory. Knows nothing of where it runs."""

import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from manyhands.collect.episodes import TRIES
from manyhands.collect.lane import Lane
from manyhands.collect.policy import Policy
from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError
from manyhands.core.events import Fault, Notice
from manyhands.core.heartbeat import BEATS, EPISODE, LANE, NOBODY, unshared
from manyhands.core.lanes import LaneState, ShardState
from manyhands.core.orders import Task
from manyhands.core.trajectories import LIFE_LOST, Trajectory
from manyhands.core.weights import Weights
from manyhands.envs import make as envs
from manyhands.envs.codec import codec, outside, reward_number
from manyhands.envs.contract import is_wrong_step, wrong_step

NOISE_ROWS = 32
"""Steps for which noise is drawn at once."""
Report = Callable[[Fault | Notice], None]


class Shard:
    """A fixed group of lanes: the forward pass always has the same batch shape, so always the same bits."""

    def __init__(
        self,
        task: Task,
        index: int,
        worker: str,
        report: Report,
        policy: Policy,
        callable_env: envs.MakeEnv | None = None,
        progress: memoryview | None = None,
    ) -> None:
        """`policy` may be shared with other groups, which play one after the other."""
        self.task, self.layout, self.policy = task, task.layout, policy
        self.index, self.worker, self.report = index, worker, report
        self.progress = progress if progress is not None else unshared()
        lanes = self.layout.lanes
        self.progress[EPISODE] = NOBODY
        self.lanes: list[Lane] = []
        for i in range(lanes):
            self.lanes.append(
                Lane(task, index * lanes + i, lambda: envs.make_to_play(task.env, callable_env))
            )
            self.progress[BEATS] += 1
        if len({id(lane.env.unwrapped) for lane in self.lanes}) < lanes:
            raise EnvError(f"{task.env.id} returned the same environment twice; return a new one every time")
        env = self.lanes[0].env
        self.encode, self.decode = codec(env, self.layout.obs_shape, self.layout.action)
        self.life_loss = LIFE_LOST in self.layout.columns
        self.obs = np.zeros((lanes, *self.layout.obs_shape), self.layout.obs_dtype)
        self.sequence = 0

    def begin(self) -> None:
        """Begins the first episode of every lane, of a shard that nobody has played before."""
        for lane in range(len(self.lanes)):
            self._begin(lane, 0)

    def play(self, weights: Weights, out: dict[str, Array], sequence: int) -> Trajectory:
        """Play one rollout of `layout.steps` steps in every lane, written into `out`."""
        started = time.perf_counter()
        layout, policy = self.layout, self.policy
        first = self.index * layout.lanes
        policy.load(weights, slice(first, first + layout.lanes))
        time_lane = (layout.steps, layout.lanes)
        outputs = {name: np.empty((*time_lane, size), np.float32) for name, size in policy.sizes.items()}
        noise = np.empty((*time_lane, layout.action.noises), np.float32)
        self.finals, self.episodes = 0, 0
        out["terminated"][...] = out["truncated"][...] = False
        if self.life_loss:
            out[LIFE_LOST][...] = 0.0
        for t in range(layout.steps):
            if t % NOISE_ROWS == 0:
                for i in range(layout.lanes):
                    self._draw(i, t, noise)
            out["obs"][t] = self.obs
            with np.errstate(invalid="ignore"):  # what is not finite is found at the end, with its lane
                said = policy.outputs(self.obs)
            for name, output in said.items():
                outputs[name][t] = output
            action = policy.choose(said, noise[t])
            out["action"][t] = action
            self._step(t, self.decode(action), out, noise)
        out["last_obs"][...] = self.obs
        out["episode"][...] = [lane.episode for lane in self.lanes]
        for name, column in policy.notes(outputs, out["action"], layout.columns).items():
            out[name][...] = column
        self._check_finite(out)
        if sequence == 0 and self.index == 0:  # once in a run, because it takes time
            self._check_bounds(out["obs"])
        self.sequence = sequence + 1
        return Trajectory.from_arrays(
            out,
            layout.columns,
            self.finals,
            self.episodes,
            shard=self.index,
            sequence=sequence,
            version=weights.version,
            maker=self.worker,
            seconds=time.perf_counter() - started,
        )

    def _step(self, t: int, actions: list[Any], out: dict[str, Array], noise: Array) -> None:
        """Steps every lane once; an environment that raises is replaced and its episode cut."""
        progress, encode, rows = self.progress, self.encode, self.obs
        rewards: list[float] = []
        envs.start([lane.env for lane in self.lanes], actions, self._about_to_step)
        for i, lane in enumerate(self.lanes):
            progress[LANE], progress[EPISODE] = i, lane.episode
            progress[BEATS] += 1
            try:
                stepped = lane.env.step(actions[i])
            except Exception as error:
                if is_wrong_step(error):
                    self._fail(i, wrong_step((None,) * 4))
                self._fault(i, traceback.format_exc())
                lane.rebuild()
                rewards.append(0.0)
                self._end(t, i, True, out, noise)
                continue
            try:
                obs, reward, terminated, truncated, info = stepped
            except (TypeError, ValueError):
                self._fail(i, wrong_step(stepped))
            try:
                amount = reward_number(reward)
                encode(obs, rows[i])
            except EnvError as error:
                self._fail(i, str(error))
            rewards.append(amount)
            lane.total += amount
            lane.length += 1
            if self.life_loss and info["life_lost"]:
                out[LIFE_LOST][t, i] = 1.0
            if terminated or truncated:
                self._end(t, i, not terminated, out, noise)
        out["reward"][t] = rewards

    def _about_to_step(self, i: int) -> None:
        self.progress[LANE], self.progress[EPISODE] = i, self.lanes[i].episode

    def _end(self, t: int, i: int, cut: bool, out: dict[str, Array], noise: Array) -> None:
        """Record a finished episode and begin the lane's next one."""
        lane = self.lanes[i]
        out["truncated" if cut else "terminated"][t, i] = True
        if cut:
            out["final_obs"][self.finals] = self.obs[i]
            out["final_at"][self.finals] = t, i
            self.finals += 1
        if lane.length:
            out["episode_return"][self.episodes] = lane.total
            out["episode_length"][self.episodes] = lane.length
            self.episodes += 1
        self._begin(i, lane.episode + 1)
        if (t + 1) % NOISE_ROWS:
            self._draw(i, t + 1, noise)

    def _draw(self, i: int, t: int, noise: Array) -> None:
        """Draw a lane's noise from step t to the end of the block: ahead, but no further than is played."""
        end = min(self.layout.steps, t - t % NOISE_ROWS + NOISE_ROWS)
        if end > t:
            noise[t:end, i] = self.layout.action.noise(self.lanes[i].rng, end - t)

    def _begin(self, i: int, episode: int) -> None:
        """Begins an episode, or the next one that may be played."""
        lane = self.lanes[i]
        while episode in lane.skip:
            episode += 1
        self.progress[LANE], self.progress[EPISODE] = i, episode
        for attempt in range(TRIES):
            self.progress[BEATS] += 1
            try:
                obs = lane.begin(episode)
                break
            except EnvError as error:
                self._fail(i, str(error))
            except Exception as error:
                if attempt == TRIES - 1:
                    self._fail(i, f"reset failed {TRIES} times: {type(error).__name__}: {error}")
                self._fault(i, traceback.format_exc())
                lane.rebuild()
        try:
            self.encode(obs, self.obs[i])
        except EnvError as error:
            self._fail(i, f"on reset {error}")

    def restore(self, state: ShardState) -> None:
        """Bring every lane to where `state` says, by playing its actions again; report where that failed."""
        replayed = [self._replay(i, lane_state) for i, lane_state in enumerate(state.lanes)]
        self.sequence = state.sequence
        if not state.sequence:
            return
        env = self.task.env.id
        self._tell_of(state, replayed, False, f"{env} cannot be restarted exactly")
        self._tell_of(state, replayed, True, "not all actions since their beginning are known")

    def _tell_of(self, state: ShardState, replayed: list[bool], lost: bool, why: str) -> None:
        """Report lanes whose episodes begin anew; `lost` ones were too long, or another executor's."""
        anew = [i for i, lane in enumerate(state.lanes) if lane.lost == lost and not replayed[i]]
        if anew:
            lanes = ", ".join(str(self.lanes[i].index) for i in anew)
            self.report(Notice(self.worker, f"{why}; episodes in flight begin anew in lanes {lanes}"))

    def _replay(self, i: int, state: LaneState) -> bool:
        """Return True when the lane stands where `state` says; else it has begun the episode after it."""
        lane, count = self.lanes[i], len(state.actions)
        lane.skip = frozenset(state.skip)
        self._begin(i, state.episode)
        if state.episode in lane.skip:
            return True  # as was decided when it brought its process down, and told then
        ended = False
        try:
            for action in state.actions:
                self.progress[BEATS] += 1
                obs, reward, terminated, truncated, _ = lane.env.step(self.decode(action[None])[0])
                self.encode(obs, self.obs[i])
                lane.total += reward_number(reward)
                lane.length += 1
                ended = bool(terminated or truncated)
                if ended:
                    break
        except Exception:
            self._fault(i, traceback.format_exc())
            lane.rebuild()
        same = not count or (lane.length == count and not ended and np.array_equal(self.obs[i], state.obs))
        if state.lost or not same:
            self._begin(i, state.episode + 1)
            return False
        if count:
            self.layout.action.noise(lane.rng, count)
        return True

    def _fault(self, i: int, text: str) -> None:
        lane = self.lanes[i]
        self.report(Fault(self.worker, self.index, lane.index, lane.episode, lane.seed, text))

    def _fail(self, i: int, what: str) -> NoReturn:
        lane = self.lanes[i]
        raise EnvError(
            f"{self.task.env.id} broke its contract: {what} "
            f"(lane {lane.index}, episode {lane.episode}, step {lane.length}, seed {lane.seed})"
        )

    def _check_finite(self, out: dict[str, Array]) -> None:
        """Check for numbers that are not finite, once per rollout: it costs as much as a forward pass."""
        final_at = out["final_at"][: self.finals]
        for name, array in (
            ("obs", out["obs"]),
            ("last_obs", out["last_obs"][None]),
            ("reward", out["reward"]),
        ):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                t, i = np.argwhere(~np.isfinite(array))[0][:2]
                self._fail_at(len(out["obs"]) if name == "last_obs" else int(t), int(i), name, out)
        finals = out["final_obs"][: self.finals]
        if not np.isfinite(finals).all():
            t, i = final_at[np.argwhere(~np.isfinite(finals))[0][0]]
            self._fail_at(int(t), int(i), "final_obs", out)

    def _check_bounds(self, obs: Array) -> None:
        """Tell of observations that lie outside of their space; they are learned from as they are."""
        if found := outside(self.lanes[0].env.observation_space, obs):
            self.report(Notice(self.worker, f"{self.task.env.id}: an observation has {found}"))

    def _fail_at(self, t: int, i: int, name: str, out: dict[str, Array]) -> None:
        """Raise an error that names the episode that lane i played at step t, which may be long over."""
        lane = self.lanes[i]
        done = out["terminated"][:, i] | out["truncated"][:, i]
        lane.episode -= int(done[t:].sum())
        starts = np.flatnonzero(done[:t])
        lane.length = t - (int(starts[-1]) + 1) if len(starts) else t
        self._fail(i, f"its {'reward' if name == 'reward' else 'observation'} is not finite")

    def close(self) -> None:
        for lane in self.lanes:
            self.progress[BEATS] += 1
            envs.close(lane.env)
