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
    weighted_grad,
)
from manyhands.algos.returns import vtrace
from manyhands.core.arrays import Array
from manyhands.core.checks import positive
from manyhands.core.trajectories import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.algos.batches import Batch, Losses
    from manyhands.algos.on_policy_learner import OnPolicyLearner


@dataclass(frozen=True)
class ImpalaConfig(OnPolicyConfig):
    """IMPALA (Espeholt et al. 2018): actor-critic that corrects for old weights by V-trace."""

    learning_rate: float = 6e-4
    entropy: float = 0.01
    gae_lambda: float = 1.0
    """V-trace's lambda."""
    rho_clip: float = 1.0
    """V-trace's bound on importance weights, which decides what the values converge to."""
    c_clip: float = 1.0
    """V-trace's bound on how far a later error counts for earlier steps."""
    epochs: int = 1
    minibatch: int = 512
    """Steps from which one step of the optimizer learns, rounded to whole lanes; 0 takes the whole batch."""
    normalise_advantage: bool = False
    """Shift and scale every batch's advantages to mean 0 and deviation 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "rho_clip", "c_clip")


class Impala(OnPolicy):
    config = ImpalaConfig
    columns = ("logp",)

    def policy_loss_grad(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        return weighted_grad(batch)

    def learn(self, learner: "OnPolicyLearner", trajectories: Sequence[Trajectory]) -> dict[str, float]:
        config: ImpalaConfig = self.settings
        batch, _, _ = learner.begin(trajectories)
        steps, lanes = batch.reward.shape
        parts = max(1, round(steps * lanes / config.minibatch)) if config.minibatch else 1
        for epoch in range(config.epochs):
            for chosen in learner.shuffled(epoch, lanes).tensor_split(min(parts, lanes)):
                losses, part, value, target = self._step(learner, batch, chosen.numpy())
        learner.end(batch.obs)
        return {**learner.measured(losses, part), "explained_variance": explained_variance(value, target)}

    def _step(
        self, learner: "OnPolicyLearner", batch: "Batch", lanes: Array
    ) -> tuple["Losses", Minibatch, Array, Array]:
        """Take one step along the gradient of some lanes; return them, their values and V-trace targets."""
        from manyhands.algos.batches import rows

        config: ImpalaConfig = self.settings
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
        weight = learner.weights_of(rows(advantage))
        part = Minibatch(obs, action, weight, rows(target), action_spec=learner.action)
        return learner.update(part), part, value, target
