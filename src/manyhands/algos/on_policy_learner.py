"""The network, optimizer and statistics that on-policy algorithms learn with."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands.algos import returns
from manyhands.algos.algorithm import LearnerSetup
from manyhands.algos.batches import Batch, Losses, ranked, rows
from manyhands.algos.distributions import Distribution, distribution
from manyhands.algos.on_policy import Minibatch, OnPolicy, OnPolicyConfig, normalised
from manyhands.core.arrays import Array, Float32
from manyhands.core.errors import OwnCodeError
from manyhands.core.own_code import own_code
from manyhands.core.seeding import LEARN, hash_seed
from manyhands.core.texts import one_line
from manyhands.core.trajectories import ReplayChunk, Trajectory
from manyhands.core.weights import Weights
from manyhands.nets.adam import Adam
from manyhands.nets.build import learning_net
from manyhands.nets.torch_net import torch_threads

CHUNK = 8192
"""Rows of one forward pass outside of learning."""
IMAGES = 256
"""Rows of such a pass over images: what the convolutions make of them then fits a core's cache better."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) or (isinstance(value, Tensor) and value.numel() == 1)


class OnPolicyLearner:
    """The network, its optimizer, and the statistics that scale observations and rewards."""

    chunks = 0  # of what is remembered

    def __init__(self, algorithm: OnPolicy, setup: LearnerSetup) -> None:
        self.algorithm = algorithm
        self.common: OnPolicyConfig = algorithm.settings
        self.spec, self.action = setup.spec, setup.layout.action
        self.heads = tuple(head.name for head in self.spec.heads if not head.free)
        self.free = tuple(head.name for head in self.spec.heads if head.free)
        self.seed, self.horizon = setup.seed, setup.horizon
        self.net = learning_net(self.spec, setup.weights)
        self.version, self.steps = setup.weights.version, 0
        self.optimizer = Adam(self.net.flat, self.net.gradient)
        self.learning_rate = self.common.learning_rate
        width = int(np.prod(self.spec.input_shape))
        self.obs_moments = (0.0, np.zeros(width), np.zeros(width))
        self.return_moments = (0.0, np.zeros(1), np.zeros(1))
        self.running: dict[int, Array] = {}  # discounted return so far, by shard

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        with torch_threads(self.common.threads), own_code(type(self.algorithm).__name__):
            return self.algorithm.learn(self, trajectories)

    def average_into(self, vector: Float32, share: float) -> None:
        self.net.average_into(vector, share)

    def weights(self) -> Weights:
        return Weights(self.version, self.net.vector(), self.spec.schema, self.net.beside())

    def assemble(self, trajectories: Sequence[Trajectory]) -> Batch:
        """Join trajectories and evaluate every observation once.

        Values come from the learner, not from the actors: one large forward pass is cheaper than many
        small ones, and fresher.
        """

        def join(name: str) -> Array:
            return np.concatenate([getattr(t, name) for t in trajectories], axis=1)

        obs, reward, done = join("obs"), join("reward"), join("done") | join("no_bootstrap")
        reward = returns.scaled(reward, self.common.reward_scale, self.common.reward_clip)
        if self.common.normalise_reward:
            reward = self._scale_reward(reward, done, trajectories)
        value = self.evaluate(obs.reshape(-1, *self.spec.input_shape)).reshape(reward.shape)
        last_obs = np.concatenate([t.last_obs for t in trajectories])
        next_value = np.concatenate([value[1:], self.evaluate(last_obs)[None]])
        first_lane = 0
        for trajectory in trajectories:
            if len(trajectory.final_at):
                t, lane = trajectory.final_at.T
                # A copy, because torch warns of the read-only arrays that come off a wire.
                next_value[t, first_lane + lane] = self.evaluate(trajectory.final_obs.copy())
            first_lane += trajectory.reward.shape[1]
        next_value[join("no_bootstrap")] = 0.0
        columns = {
            name: np.concatenate([t.columns[name] for t in trajectories], axis=1)
            for name in trajectories[0].columns
        }
        return Batch(obs, join("action"), reward, done, value, next_value, columns)

    def evaluate(self, obs: Array) -> Array:
        """Return V of observations [N, ...]."""
        chunk = IMAGES if self.spec.image else CHUNK
        with torch.inference_mode():
            parts = [self._value(torch.from_numpy(obs[i : i + chunk])) for i in range(0, len(obs), chunk)]
            values: Array = torch.cat(parts).numpy()
        return values

    def _value(self, obs: Tensor) -> Tensor:
        names = ("value",) if "value" in self.heads else self.heads
        outputs = dict(zip(names, self.net.forward(obs, *names), strict=True))
        value = self.algorithm.value(outputs)
        if not isinstance(value, Tensor) or value.shape != (len(obs),):
            given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise OwnCodeError(
                f"{type(self.algorithm).__name__}.value returned {given}; it must return a tensor [N], here "
                f"({len(obs)},)"
            )
        return value

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return log pi(action) under the present policy, [N]."""
        with torch.inference_mode():
            outputs = self.net.forward(obs, "policy")[0]
            log_std = self.net.views.get("log_std")
            policy: Distribution = distribution(self.action, outputs, log_std, action)
        return policy.log_prob

    def _scale_reward(self, reward: Array, done: Array, trajectories: Sequence[Trajectory]) -> Array:
        """Divide rewards by the deviation of the discounted return, which goes on from rollout to rollout."""
        nothing = np.zeros(trajectories[0].reward.shape[1], np.float32)
        before = np.concatenate([self.running.get(t.shard, nothing) for t in trajectories])
        running = returns.discounted(reward, done, self.common.gamma, before)
        after = np.split(running[-1] * ~done[-1], len(trajectories))
        self.running.update({t.shard: last for t, last in zip(trajectories, after, strict=True)})
        self.return_moments = returns.moments(*self.return_moments, running.reshape(-1, 1))
        count, _, square = self.return_moments
        scale = 1.0 / np.sqrt(square[0] / count + 1e-8)
        return np.clip(reward * np.float32(scale), -10.0, 10.0)

    def update(self, batch: Minibatch) -> Losses:
        """Take one step of the optimizer along the gradient of the algorithm's loss.

        The network takes the gradient for its outputs back to its parameters by itself; those come from the
        algorithm's formula where it has one, else from autograd over the loss alone.
        """
        heads = tuple(name for name in self.heads if name != "value" or batch.target is not None)
        outputs = dict(zip(heads, self.net.forward(batch.obs, *heads), strict=True))
        outputs |= {name: self.net.views[name] for name in self.free}
        self.net.gradient.zero_()
        losses, gradients = self._by_formula(batch, outputs) or self._by_autograd(batch, outputs)
        for name in self.free:
            if name in gradients and not (name == "log_std" and self.common.log_std_end is not None):
                self.net.gradient_of(name).add_(gradients[name])
        self._apply([gradients[name] for name in heads])
        return losses

    def _by_formula(
        self, batch: Minibatch, outputs: Mapping[str, Tensor]
    ) -> tuple[Losses, dict[str, Tensor]] | None:
        """Return the gradients for the outputs, by head. None where there is no formula."""
        if self.heads[:1] != ("policy",):
            return None
        with torch.no_grad():
            policy = batch.distribution(outputs)
            coefficient = self.algorithm.policy_loss_grad(policy.log_prob, batch)
            if coefficient is None:
                return None
            outputs_grad, log_std_grad = policy.gradient(coefficient, self.common.entropy)
            gradients = {"policy": outputs_grad}
            if log_std_grad is not None:
                gradients["log_std"] = log_std_grad
            if batch.target is None:
                return Losses(policy), gradients
            error = outputs["value"] - batch.target[:, None]
            scale = 2 * self.common.value_weight / len(batch.obs)
            return Losses(policy, error), {**gradients, "value": error * scale}

    def _by_autograd(
        self, batch: Minibatch, outputs: Mapping[str, Tensor]
    ) -> tuple[Losses, dict[str, Tensor]]:
        """Return the same by differentiating the loss, as a function of the outputs alone."""
        leaves = {name: output.detach().clone().requires_grad_() for name, output in outputs.items()}
        loss, told = self._checked(self.algorithm.loss(leaves, batch))
        wanted = list(leaves.values())
        found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            policy = batch.distribution(outputs) if "policy" in outputs else None
            error = None
            if "value" in outputs and batch.target is not None:
                error = outputs["value"] - batch.target[:, None]
            seen = {name: torch.as_tensor(number).detach() for name, number in told.items()}
        return Losses(policy, error, seen), dict(zip(leaves, found, strict=True))

    def _checked(self, returned: Any) -> tuple[Tensor, Mapping[str, Any]]:
        """Return what the loss returned as a loss and numbers; refuse what cannot be differentiated."""
        loss, told = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
        given = ""
        if not isinstance(loss, Tensor):
            given = type(loss).__name__
        elif loss.numel() != 1:
            given = f"a tensor of shape {tuple(loss.shape)}"
        elif not loss.requires_grad:
            given = "a tensor without a gradient, which does not depend on the outputs"
        elif not (isinstance(told, Mapping) and all(map(_is_number, told.values()))):
            given = f"{one_line(told, 100)} beside the loss"
        if given:
            raise OwnCodeError(
                f"{type(self.algorithm).__name__}.loss returned {given}; it must return a scalar tensor "
                "(and, if you like, a dict of numbers)"
            )
        return loss, told

    def update_value(self, batch: Minibatch) -> Tensor:
        """Do the value's part of `update`; return its errors [N]."""
        assert batch.target is not None
        error: Tensor = self.net.forward(batch.obs, "value")[0][:, 0] - batch.target
        self.net.gradient.zero_()
        self._apply([error[:, None] * (2 * self.common.value_weight / len(error))])
        return error

    def _apply(self, gradients: list[Tensor]) -> None:
        """Take a step of the optimizer, given the gradients of the last outputs."""
        self.net.backward(gradients)
        self.optimizer.clip(self.common.max_grad_norm)
        self.optimizer.step(self.learning_rate)

    def begin(self, trajectories: Sequence[Trajectory]) -> tuple[Batch, Array, Array]:
        """Begin an update: return the batch, its advantages and value targets, each [T, B]."""
        config = self.common
        left = self.horizon.left(self.steps, self.version)
        if config.anneal:
            self.learning_rate = config.learning_rate * left**config.anneal_power
        if config.log_std_end is not None and "log_std" in self.net.views:
            start, end = self.spec.head("log_std").gain, config.log_std_end
            self.net.views["log_std"].fill_(end + left * (start - end))
        batch = self.assemble(trajectories)
        self.steps += batch.reward.size
        advantage = returns.gae(
            batch.reward, batch.value, batch.next_value, batch.done, config.gamma, config.gae_lambda
        )
        return batch, advantage, advantage + batch.value

    def end(self, obs: Array) -> None:
        """End an update. Statistics change last, so that sync mode learns with those it played with."""
        if self.spec.normalise:
            self.obs_moments = returns.moments(*self.obs_moments, obs.reshape(-1, self.obs_moments[1].size))
            self.net.set_input_moments(*self.obs_moments)
        self.version += 1
        self.net.check_finite(self.steps)

    def measured(self, losses: Losses, batch: Minibatch) -> dict[str, float]:
        """Return what is worth plotting of the last step, which learned from `batch`."""
        found = {
            **losses.metrics(),
            "gradient_norm": self.optimizer.norm.item(),
            "learning_rate": self.learning_rate,
        }
        if type(self.algorithm).loss is OnPolicy.loss:  # else there may be no such part
            with torch.no_grad():
                policy_loss = self.algorithm.policy_loss(losses.log_prob, batch)
            found["policy_loss"] = policy_loss.item()
        return found

    def shuffled(self, epoch: int, count: int) -> Tensor:
        """Return an order of `count` rows that depends on the seed, the version and the epoch alone."""
        rng = np.random.default_rng(hash_seed(self.seed, LEARN, self.version, epoch))
        return torch.from_numpy(rng.permutation(count))

    def minibatch(self, batch: Batch, advantage: Array, target: Array) -> Minibatch:
        """Return a whole batch as rows."""
        columns = {name: rows(column) for name, column in batch.columns.items()}
        weights = self.weights_of(rows(advantage))
        return Minibatch(rows(batch.obs), rows(batch.action), weights, rows(target), columns, self.action)

    def parts(self, whole: Minibatch, epoch: int) -> Iterator[Minibatch]:
        """Yield its rows in an order of this epoch, `algo.minibatch` at a time; the last part may be less."""
        size, count = self.common.minibatch, len(whole.obs)
        if not size:
            yield whole
            return
        order = self.shuffled(epoch, count)
        shuffled = whole.map(lambda column: column[order])
        for start in range(0, count, size):
            yield shuffled.map(lambda column, start=start: column[start : start + size])  # type: ignore[misc]

    def weights_of(self, advantage: Tensor) -> Tensor:
        """Return how much each action counts, as the settings wish."""
        if self.common.rank_advantage:
            return ranked(advantage)
        return normalised(advantage) if self.common.normalise_advantage else advantage

    def state(self) -> dict[str, Array]:
        arrays = {f"adam.{name}": array for name, array in self.optimizer.state().items()}
        for name, (count, mean, square) in (("obs", self.obs_moments), ("return", self.return_moments)):
            arrays[f"{name}_moments"] = np.concatenate([[count], mean, square])
        running = {f"running.{shard}": last for shard, last in self.running.items()}
        own = {"vector": self.net.vector(), **self.net.beside(), "steps": np.array([self.steps])}
        return {**own, **arrays, **running}

    def replay_chunk(self) -> None:
        """Return nothing: no trajectory outlives an update."""

    def oldest_needed(self) -> Array:
        return np.zeros(0)

    def restore_replay(self, chunks: Iterable[ReplayChunk]) -> None:
        """Do nothing: there are no chunks."""

    def load_state(self, version: int, state: Mapping[str, Array]) -> None:
        self.version, self.steps = version, int(state["steps"][0])
        self.net.load(state["vector"], state)
        adam = ("mean", "square", "steps")
        self.optimizer.load_state({name: state[f"adam.{name}"] for name in adam})
        prefix = "running."
        names = [name for name in state if name.startswith(prefix)]
        self.running = {int(name.removeprefix(prefix)): state[name] for name in names}
        self.obs_moments = returns.unpack_moments(state["obs_moments"])
        self.return_moments = returns.unpack_moments(state["return_moments"])
