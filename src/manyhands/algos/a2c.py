"""Advantage actor-critic (Mnih et al. 2016), synchronous. Settings: `A2cConfig`. Results: benchmarks/."""

from collections.abc import Sequence
from typing import Any

from manyhands.algos.base import OnPolicy, explained_variance, fixed, normalised, rows
from manyhands.algos.configs import A2cConfig
from manyhands.experience import Trajectory


class A2C(OnPolicy):
    def __init__(self, config: A2cConfig, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self.config = config

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config = self.config
        batch, advantage, target = self.begin(trajectories)
        weight = normalised(rows(advantage)) if config.normalise_advantage else rows(advantage)
        coefficient = -weight / len(weight)  # the loss is -mean A log pi
        losses = self.descend(rows(batch.obs), rows(batch.action), rows(target), fixed(coefficient))
        self.end(batch.obs)
        return {**losses.metrics(), "explained_variance": explained_variance(batch.value, target)}
