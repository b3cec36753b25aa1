"""The learner of chosen actions; see `clone.py`."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from manyhands.algos import sanitise
from manyhands.algos.algorithm import LearnerSetup
from manyhands.algos.batches import rows
from manyhands.algos.clone import Clone, CloneConfig
from manyhands.algos.on_policy import Minibatch, explained_variance, normalised
from manyhands.algos.on_policy_learner import OnPolicyLearner
from manyhands.core.arrays import Array
from manyhands.core.trajectories import Trajectory
from manyhands.nets.torch_net import torch_threads


class CloneLearner(OnPolicyLearner):
    def __init__(self, algorithm: Clone, setup: LearnerSetup) -> None:
        super().__init__(algorithm, setup)
        self.config: CloneConfig = algorithm.settings
        config = self.config
        self.unfinished: dict[tuple[int, int], list[dict[str, Array]]] = {}  # pieces, by shard and lane
        self.scores: deque[float] = deque(maxlen=config.window)
        self.memory: dict[str, Array] = {}  # pairs: obs, action, weight, score
        self.thresholds = sanitise.PUBLISHED.get(
            config.choose, sanitise.Threshold(config.keep, config.clean, config.clean_level)
        )

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        with torch_threads(self.config.threads):
            return self._learn(trajectories)

    def _learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        if self.config.choose == "advantage":
            return self._learn_by_advantage(trajectories)
        self.steps += sum(trajectory.steps for trajectory in trajectories)
        for trajectory in trajectories:
            self._remember(
                [pairs for episode in self._episodes(trajectory) for pairs in self._judge(episode)]
            )
        chosen = self._chosen()
        metrics = {"pairs": float(len(chosen)), "held": float(len(self.memory.get("score", ())))}
        if self.scores:
            metrics["elite_score"] = sanitise.elite(np.array(self.scores), self.config.share)
        if len(chosen):
            columns = (self.memory[name][chosen, None] for name in ("obs", "action", "weight"))
            metrics |= self._imitate(*map(rows, columns))
        self.end(np.concatenate([trajectory.obs for trajectory in trajectories], axis=1))
        return metrics

    def _learn_by_advantage(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Update first the value, then the policy: A = return - V is only as good as V."""
        config = self.config
        batch, advantage, target = self.begin(trajectories)
        whole = self.minibatch(batch, advantage, target)
        for epoch in range(config.epochs):
            for part in self.parts(whole, epoch):
                self.update_value(part)
        value = self.evaluate(whole.obs.numpy())
        advantages = normalised(rows(target) - torch.from_numpy(value)).numpy()
        weights = sanitise.advantage(advantages, config.temperature, config.weight_limit)
        policy = self._imitate(whole.obs, whole.action, torch.from_numpy(weights / weights.mean()))
        self.end(batch.obs)
        return {
            **policy,
            "effective_share": float(weights.sum() ** 2 / (weights**2).sum() / len(weights)),
            "explained_variance": explained_variance(value, rows(target).numpy()),
        }

    def _imitate(self, obs: Tensor, action: Tensor, weight: Tensor) -> dict[str, float]:
        """Lower the loss -mean w log pi(a | s) for some epochs."""
        whole = Minibatch(obs, action, weight, action_spec=self.action)
        for epoch in range(self.config.epochs):
            for part in self.parts(whole, epoch):
                losses = self.update(part)
        return {"cross_entropy": -losses.log_prob.mean().item(), **losses.metrics()}

    def _episodes(self, trajectory: Trajectory) -> Iterator[dict[str, Array]]:
        """Yield the episodes that end in a trajectory; they may have begun in an earlier one."""
        done = trajectory.done
        for lane in range(done.shape[1]):
            key = (trajectory.shard, lane)
            ends = [*(int(end) + 1 for end in np.flatnonzero(done[:, lane]))]
            number = int(trajectory.episode[lane]) - len(ends)
            before = self.unfinished.pop(key, [])
            if before and before[0]["number"][0] != number:
                before = []  # its environment failed, or could not be taken up again
            for start, end in pairwise([0, *ends]):
                pieces = [*before, _piece(trajectory, lane, start, end, number)]
                yield {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
                before, number = [], number + 1
            start = ends[-1] if ends else 0
            if start < len(done):
                self.unfinished[key] = [*before, _piece(trajectory, lane, start, len(done), number)]

    def _judge(self, episode: dict[str, Array]) -> Iterator[dict[str, Array]]:
        """Yield the pairs of an episode that are taken, if any."""
        reward = episode["reward"]
        score = float(reward.sum(dtype=np.float64))
        self.scores.append(score)
        if self.config.choose == "elite":
            weight = sanitise.hopeful(reward, self.config.gamma, self.config.clean_level)
        else:
            weight = sanitise.threshold(reward, self.thresholds)
        taken = weight > 0
        if taken.any():
            pairs = {"obs": episode["obs"], "action": episode["action"], "weight": weight}
            pairs["score"] = np.full(len(reward), score)
            yield {name: column[taken] for name, column in pairs.items()}

    def _remember(self, episodes: list[dict[str, Array]]) -> None:
        """Add episodes; the newest `memory` pairs are held."""
        if not episodes:
            return
        held = [self.memory] if self.memory else []
        for name in episodes[0]:
            columns = [pairs[name] for pairs in (*held, *episodes)]
            self.memory = {**self.memory, name: np.concatenate(columns)[-self.config.memory :]}

    def _chosen(self) -> Array:
        """Return the rows of the memory to learn from."""
        if not self.memory:
            return np.zeros(0, np.int64)
        count = len(self.memory["score"])
        if self.config.choose != "elite":
            return np.arange(count)
        least = sanitise.elite(np.array(self.scores), self.config.share)
        return np.flatnonzero(self.memory["score"] >= least)

    def state(self) -> dict[str, Array]:
        pieces = {
            f"unfinished.{shard}.{lane}.{name}": np.concatenate([piece[name] for piece in pieces])
            for (shard, lane), pieces in self.unfinished.items()
            for name in pieces[0]
        }
        memory = {f"memory.{name}": column for name, column in self.memory.items()}
        return {**super().state(), **pieces, **memory, "scores": np.array(self.scores)}

    def load_state(self, version: int, state: Mapping[str, Array]) -> None:
        super().load_state(version, state)
        self.scores.extend(map(float, state["scores"]))
        for name, array in state.items():
            kind, _, rest = name.partition(".")
            if kind == "memory":
                self.memory[rest] = array
            elif kind == "unfinished":
                shard, lane, column = rest.split(".")
                pieces = self.unfinished.setdefault((int(shard), int(lane)), [{}])
                pieces[0][column] = array


def _piece(trajectory: Trajectory, lane: int, start: int, end: int, number: int) -> dict[str, Array]:
    """Return some steps of a lane; a copy, because a channel may use the trajectory's memory again."""
    columns = ("obs", "action", "reward")
    copies = {name: getattr(trajectory, name)[start:end, lane].copy() for name in columns}
    return {**copies, "number": np.array([number])}
