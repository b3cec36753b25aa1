"""IMPALA (Espeholt et al. 2018): actor-critic on old trajectories, corrected by V-trace.

Results: benchmarks/.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.algos.on_policy import (
    Minibatch,
    OnPolicy,
    OnPolicyConfig,
    explained_variance,
    normalised,
    weighted_grad,
)
from manyhands.algos.returns import vtrace
from manyhands.core.arrays import Array
from manyhands.core.checks import positive
from manyhands.core.trajectories import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.algos.on_policy_learner import Batch, Losses, OnPolicyLearner


@dataclass(frozen=True)
class ImpalaConfig(OnPolicyConfig):
    """IMPALA (Espeholt et al. 2018): actor-critic that corrects for old weights by V-trace."""

    learning_rate: float = 6e-4
    entropy: float = 0.01
    gae_lambda: float = 1.0
    """V-trace's lambda."""
    rho_clip: float = 1.0
    c_clip: float = 1.0
    minibatches: int = 4
    """Steps along the gradient per batch, each on a part of the lanes."""
    normalise_advantage: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "rho_clip", "c_clip", "minibatches")


class Impala(OnPolicy):
    name, config = "impala", ImpalaConfig
    columns = ("logp",)

    def policy_loss_grad(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        return weighted_grad(batch)

    def learn(self, learner: "OnPolicyLearner", trajectories: Sequence[Trajectory]) -> dict[str, float]:
        batch, _, _ = learner.begin(trajectories)
        lanes = batch.reward.shape[1]
        for chosen in learner.shuffled(0, lanes).tensor_split(min(self.settings.minibatches, lanes)):
            losses, value, target = self._step(learner, batch, chosen.numpy())
        learner.end(batch.obs)
        return {**losses.metrics(), "explained_variance": explained_variance(value, target)}

    def _step(
        self, learner: "OnPolicyLearner", batch: "Batch", lanes: Array
    ) -> tuple["Losses", Array, Array]:
        """One step along the gradient of some lanes; also their values and V-trace targets."""
        config: ImpalaConfig = self.settings
        rows = learner.rows
        obs, action = rows(batch.obs[:, lanes]), rows(batch.action[:, lanes])
        shape = (-1, len(lanes))
        log_ratio = learner.log_prob(obs, action).numpy().reshape(shape) - batch.columns["logp"][:, lanes]
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
        return learner.update(Minibatch(obs, action, weight, rows(target))), value, target
