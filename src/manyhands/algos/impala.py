"""IMPALA (Espeholt et al. 2018): actor-critic on old trajectories, corrected by V-trace.

Settings: `ImpalaConfig`. Results: benchmarks/.
"""

from collections.abc import Sequence
from typing import Any

import torch

from manyhands.algos.base import Batch, Losses, OnPolicy, explained_variance, fixed, normalised, rows
from manyhands.algos.configs import ImpalaConfig
from manyhands.algos.returns import vtrace
from manyhands.experience import Array, Trajectory


class Impala(OnPolicy):
    def __init__(self, config: ImpalaConfig, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self.config = config

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config = self.config
        batch, _, _ = self.begin(trajectories)
        lanes = batch.reward.shape[1]
        for chosen in torch.tensor_split(self.shuffled(0, lanes), min(config.minibatches, lanes)):
            losses, value, target = self._step(batch, chosen.numpy())
        self.end(batch.obs)
        return {**losses.metrics(), "explained_variance": explained_variance(value, target)}

    def _step(self, batch: Batch, lanes: Array) -> tuple[Losses, Array, Array]:
        """One step along the gradient of some lanes; also their values and V-trace targets."""
        config = self.config
        obs, action = rows(batch.obs[:, lanes]), rows(batch.action[:, lanes])
        shape = (-1, len(lanes))
        log_ratio = self.log_prob(obs, action).numpy().reshape(shape) - batch.columns["logp"][:, lanes]
        value = batch.value[:, lanes]
        target, advantage = vtrace(
            log_ratio,
            batch.reward[:, lanes],
            value,
            batch.next_value[:, lanes],
            batch.done[:, lanes],
            config.gamma,
            config.gae_lambda,
            config.rho_clip,
            config.c_clip,
        )
        weight = normalised(rows(advantage)) if config.normalise_advantage else rows(advantage)
        coefficient = -weight / len(weight)  # the loss is -mean rho A log pi
        return self.descend(obs, action, rows(target), fixed(coefficient)), value, target
