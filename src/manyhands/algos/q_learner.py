"""The learner of action values, for `dqn` and `apex`: double, dueling, n steps, priorities."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands.algos import returns
from manyhands.algos.algorithm import LearnerSetup
from manyhands.algos.dqn import Dqn, DqnConfig
from manyhands.algos.replay import Drawn, Replay
from manyhands.algos.replay_rows import row_counts
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array, Float32
from manyhands.core.errors import RunError
from manyhands.core.seeding import LEARN, hash_seed
from manyhands.core.trajectories import ReplayChunk, Trajectory
from manyhands.core.weights import Weights
from manyhands.nets.adam import Adam
from manyhands.nets.build import learning_net
from manyhands.nets.torch_net import torch_threads

LARGE = 2**18
"""Numbers in a batch of images from which on drawing it in a thread of its own pays."""


def outputs_grad(action_spec: ActionSpec, action: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient [N, n] for a head's outputs, given that for the values of the actions taken [N]."""
    chosen = torch.zeros(len(action), action_spec.outputs)
    chosen.scatter_(1, action[:, None], gradient[:, None])
    if action_spec.dueling:  # Q_a = V + A_a - mean A
        chosen[:, :-1] -= gradient[:, None] / action_spec.sizes[0]
        chosen[:, -1] = gradient
    return chosen


def epsilons(config: DqnConfig, steps: int, lanes: int) -> Array:
    """Return how often each lane explores after `steps` of the run: always at first, then less and less."""
    way = (steps - config.warmup) / max(1, config.epsilon_steps)
    level = 1 - (1 - config.epsilon) * min(1.0, max(0.0, way))
    ladder = 1 + config.epsilon_ladder * np.arange(lanes) / max(1, lanes - 1)
    lane_epsilons: Array = (level**ladder).astype(np.float32)
    return lane_epsilons


class QLearner:
    def __init__(self, algorithm: Dqn, setup: LearnerSetup) -> None:
        config: DqnConfig = algorithm.settings
        self.algorithm = algorithm
        spec, layout, weights, shards = setup.spec, setup.layout, setup.weights, setup.shards
        self.config, self.spec, self.action = config, spec, layout.action
        self.seed, self.horizon = setup.seed, setup.horizon
        self.lanes = shards * layout.lanes
        self.lane_epsilons = weights.beside["epsilon"]
        self.net, self.target = learning_net(spec, weights), learning_net(spec, weights)
        self.optimizer = Adam(self.net.flat, self.net.gradient)
        self.version, self.steps, self.updates = weights.version, 0, 0
        width = int(np.prod(spec.input_shape))
        self.obs_moments = (0.0, np.zeros(width), np.zeros(width))
        self.replay = Replay(
            layout,
            shards,
            config.memory,
            config.gamma,
            config.n_step,
            config.prioritised,
            setup.directory if config.memory_on_disk else None,
        )
        self.begun = (0, 0)  # steps and updates when the memory was empty
        self.unsaved: list[Trajectory] = []
        self.chunks, self.marks = 0, self.replay.counts()
        self.saved_priorities: Mapping[str, Array] = {}
        self.replay_thread = ThreadPoolExecutor(1, "replay")

    def weights(self) -> Weights:
        beside = {**self.net.beside(), "epsilon": self.lane_epsilons}
        return Weights(self.version, self.net.vector(), self.spec.schema, beside)

    def average_into(self, vector: Float32, share: float) -> None:
        self.net.average_into(vector, share)

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        with torch_threads(self.config.threads):
            return self._learn(trajectories)

    def _learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        for trajectory in trajectories:
            self._remember(trajectory)
            self.steps += trajectory.steps
            if self.config.save_memory:
                self.unsaved.append(_thin(trajectory, self.replay.stack))
        self._trim_unsaved()
        self._scale(trajectories)
        metrics = self._catch_up()
        self.lane_epsilons = epsilons(self.config, self.steps, self.lanes)
        self.version += 1
        self.net.check_finite(self.steps)
        return {
            **metrics,
            "epsilon": float(self.lane_epsilons.mean()),
            "updates": float(self.updates),
            "remembered": float(self.replay.held),
        }

    def _remember(self, trajectory: Trajectory) -> None:
        config = self.config
        reward = returns.scaled(trajectory.reward, config.reward_scale, config.reward_clip)
        self.replay.add(trajectory, reward, config.priority_power)

    def _trim_unsaved(self) -> None:
        """Drop unsaved trajectories that the replay memory no longer holds: these need not be saved."""
        lanes = self.replay.layout.lanes
        while self.unsaved:
            oldest = self.unsaved[0]
            mine = slice(oldest.shard * lanes, (oldest.shard + 1) * lanes)
            after = self.marks[mine] + row_counts(oldest)
            if (after > self.replay.counts()[mine] - self.replay.horizon).any():
                break
            self.marks[mine] = after
            self.unsaved.pop(0)

    def _scale(self, trajectories: Sequence[Trajectory]) -> None:
        """Scale observations by their mean and deviation over all that was played, if so configured."""
        if self.spec.normalise:
            width = self.obs_moments[1].size
            rows = np.concatenate([trajectory.obs.reshape(-1, width) for trajectory in trajectories])
            self.obs_moments = returns.moments(*self.obs_moments, rows)
            for net in (self.net, self.target):
                net.set_input_moments(*self.obs_moments)

    def _due(self) -> int:
        """Return how many steps of the optimizer the environment steps so far allow."""
        steps, updates = self.begun
        warm = self.steps - steps - self.config.warmup
        if warm < 0 or self.replay.completed < self.config.batch:
            return 0
        return updates + int(warm / self.config.steps_per_update)

    def _catch_up(self) -> dict[str, float]:
        """Take all steps of the optimizer that are due.

        A batch is drawn before the one ahead of it has given its errors, so that both can be done at once.
        """
        due = self._due()
        if self.updates >= due:
            return {}
        drawn = self._draw(self.updates)
        while True:
            if self._crosses_target():
                self.target.load(self.net.vector(), self.net.beside())
            last = self.updates + 1 == due
            ahead = None if last else self._draw_ahead(self.updates + 1)
            error, value = self._update(drawn)
            next_drawn = ahead() if ahead is not None else drawn
            self.replay.update(drawn.places, error.numpy(), self.config.priority_power)
            self.updates += 1
            if last:
                return {"loss": float(error.square().mean()), "q_mean": float(value.mean())}
            drawn = next_drawn

    def _draw_ahead(self, update: int) -> Callable[[], Drawn]:
        """Draw a batch: large images in a thread beside the optimizer; for others that costs too much."""
        if self.spec.image and self.config.batch * math.prod(self.spec.input_shape) >= LARGE:
            return self.replay_thread.submit(self._draw, update).result
        drawn = self._draw(update)
        return lambda: drawn

    def _draw(self, update: int) -> Drawn:
        played = self.config.warmup + update * self.config.steps_per_update
        importance = 1 - self.horizon.left(played) * (1 - self.config.importance)
        rng = np.random.default_rng(hash_seed(self.seed, LEARN, update))
        return self.replay.draw(rng, self.config.batch, importance)

    def _crosses_target(self) -> bool:
        """Return whether the target network is due, by the environment steps that updates stand for."""
        before, now = (
            int((self.updates + k) * self.config.steps_per_update / self.config.target_every) for k in (-1, 0)
        )
        return now > before

    def _update(self, drawn: Drawn) -> tuple[Tensor, Tensor]:
        """Take one step of the optimizer; return the errors and values of the actions that were taken."""
        action = torch.from_numpy(drawn.action).long()
        td_target = self._td_target(drawn)
        outputs = self.net.forward(torch.from_numpy(drawn.obs), "policy")[0]
        with torch.no_grad():
            value = self.action.values(outputs).gather(1, action[:, None])[:, 0]
            error = value - td_target
            gradient = self._loss_grad(value, td_target, torch.from_numpy(drawn.weight))
            head_grad = outputs_grad(self.action, action, gradient)
        self.net.gradient.zero_()
        self.net.backward([head_grad])
        self.optimizer.clip(self.config.max_grad_norm)
        self.optimizer.step(self.config.learning_rate)
        return error, value

    def _loss_grad(self, value: Tensor, td_target: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient [N] of the algorithm's loss for the values, by its formula or by autograd."""
        found = self.algorithm.loss_grad(value, td_target, weight)
        if found is None:
            with torch.enable_grad():
                leaf = value.detach().requires_grad_()
                (found,) = torch.autograd.grad(self.algorithm.loss(leaf, td_target, weight), leaf)
        return found

    @torch.inference_mode()
    def _td_target(self, drawn: Drawn) -> Tensor:
        """Return r + gamma^n max Q'(s', a); double: Q' of the action that Q prefers."""
        next_obs = torch.from_numpy(drawn.next_obs)
        value = self.action.values(self.target.forward(next_obs, "policy")[0])
        judged = self.action.values(self.net.forward(next_obs, "policy")[0]) if self.config.double else value
        best = value.gather(1, judged.argmax(1, keepdim=True))[:, 0]
        td_target: Tensor = torch.from_numpy(drawn.reward) + torch.from_numpy(drawn.discount) * best
        return td_target

    def replay_chunk(self) -> ReplayChunk | None:
        """Return what was played since the last call, so that a resume can fill the memory again."""
        if not self.config.save_memory:
            return None
        piece = ReplayChunk(self.chunks, self.marks, tuple(self.unsaved))
        self.chunks, self.marks, self.unsaved = self.chunks + 1, self.replay.counts(), []
        return piece

    def oldest_needed(self) -> Array:
        """Return the rows [lanes] before which the memory no longer holds anything."""
        return self.replay.counts() - self.replay.horizon

    def restore_replay(self, chunks: Iterable[ReplayChunk]) -> None:
        """Fill the memory again, after `load_state`. Without chunks it fills anew before learning goes on."""
        last = None
        for piece in chunks:
            if last is not None and piece.number != last + 1:
                raise RunError(_missing(last + 1))
            last = piece.number
            self.replay.go_on_at(piece.marks)
            for trajectory in piece.trajectories:
                self._remember(trajectory)
        self.marks = self.replay.counts()
        if last is None:
            self.begun = (self.steps, self.updates)
        elif last + 1 != self.chunks:
            raise RunError(_missing(last + 1))
        else:
            self.replay.load_state(self.saved_priorities)
        self.saved_priorities = {}

    def state(self) -> dict[str, Array]:
        arrays = {f"adam.{name}": array for name, array in self.optimizer.state().items()}
        arrays |= {f"replay.{name}": array for name, array in self.replay.state().items()}
        count, mean, square = self.obs_moments
        return {
            "vector": self.net.vector(),
            "target": self.target.vector(),
            **self.net.beside(),  # which are the target's as well
            "counts": np.array([self.steps, self.updates, *self.begun, self.chunks]),
            "obs_moments": np.concatenate([[count], mean, square]),
            **arrays,
        }

    def load_state(self, version: int, state: Mapping[str, Array]) -> None:
        self.version = version
        self.steps, self.updates, *begun, self.chunks = map(int, state["counts"])
        self.begun = (begun[0], begun[1])
        self.saved_priorities = {
            name.removeprefix("replay."): array for name, array in state.items() if name.startswith("replay.")
        }
        self.net.load(state["vector"], state)
        self.target.load(state["target"], state)
        self.optimizer.load_state({name: state[f"adam.{name}"] for name in ("mean", "square", "steps")})
        self.obs_moments = returns.unpack_moments(state["obs_moments"])


def _missing(piece: int) -> str:
    return (
        f"piece {piece} of the saved memory is missing; without its directory the run fills its memory anew"
    )


def _thin(trajectory: Trajectory, stack: int) -> Trajectory:
    """Return a copy that outlives the channel's memory, with the newest image of every stack."""
    copies: dict[str, Any] = {
        field.name: value.copy()
        for field in fields(trajectory)
        if isinstance(value := getattr(trajectory, field.name), np.ndarray) and "obs" not in field.name
    }
    last = slice(-1, None) if stack > 1 else slice(None)
    return replace(
        trajectory,
        **copies,
        obs=trajectory.obs[:, :, last].copy(),
        last_obs=trajectory.last_obs[:, last].copy(),
        final_obs=trajectory.final_obs[:, last].copy(),
        columns={name: column.copy() for name, column in trajectory.columns.items()},
    )
