"""Algorithms that are not part of the package: a user's own file, with settings and losses."""

from dataclasses import dataclass
from typing import Any

from manyhands.algos import Minibatch, OnPolicy, OnPolicyConfig
from manyhands.algos.ppo import Ppo, PpoConfig
from manyhands.core import Discrete


@dataclass(frozen=True)
class SpoConfig(PpoConfig):
    """Simple policy optimisation (Xie et al. 2024)."""

    penalty: float = 0.2
    """How far the probability of an action may move before the penalty outweighs what it gains."""


class Spo(Ppo):
    """PPO with a quadratic penalty in place of the clip."""

    config = SpoConfig

    def policy_loss(self, logp: Any, batch: Minibatch) -> Any:
        ratio = (logp - batch.columns["logp"]).exp()
        gained, moved = ratio * batch.advantage, (ratio - 1).square() * batch.advantage.abs()
        return (moved / (2 * self.settings.penalty) - gained).mean()

    def policy_loss_grad(self, logp: Any, batch: Minibatch) -> None:
        return None  # by autograd


@dataclass(frozen=True)
class SarsaConfig(OnPolicyConfig):
    """Expected SARSA with lambda-returns (van Seijen et al. 2009)."""

    learning_rate: float = 1e-3
    epsilon: float = 0.05
    """Share of random actions while learning."""


class Sarsa(OnPolicy):
    """Learns what actions are worth from what its own policy has just played."""

    config = SarsaConfig
    actions = Discrete
    heads = {"values": lambda space: space.n}  # noqa: RUF012
    columns = ("worth",)

    def act(self, outputs: Any, noise: Any) -> Any:
        return self.epsilon_greedy(outputs["values"], noise)

    def note(self, outputs: Any, action: Any) -> Any:
        return {"worth": outputs["values"].max(-1)}

    def value(self, outputs: Any) -> Any:
        return self.epsilon_greedy_value(outputs["values"])

    def loss(self, outputs: Any, batch: Minibatch) -> Any:
        import torch

        chosen = outputs["values"].gather(1, batch.action[:, None])[:, 0]
        loss = torch.nn.functional.smooth_l1_loss(chosen, batch.target)
        return loss, {"q": chosen.mean(), "worth": batch.columns["worth"].mean()}


class NoActing(OnPolicy):
    """Heads that nothing makes actions of."""

    config = OnPolicyConfig
    heads = {"values": lambda space: space.n}  # noqa: RUF012


class BadActing(Sarsa):
    """Actions of a wrong shape."""

    def act(self, outputs: Any, noise: Any) -> Any:
        return outputs["values"]


class FailingActing(Sarsa):
    """Raises."""

    def act(self, outputs: Any, noise: Any) -> Any:
        return outputs["worth"]


class FailingLoss(Sarsa):
    """Raises."""

    def loss(self, outputs: Any, batch: Minibatch) -> Any:
        return outputs["values"].no_such_method()


class FailingValue(Sarsa):
    """Raises."""

    def value(self, outputs: Any) -> Any:
        return outputs["nothing"]


class FailingHeads(Sarsa):
    """Raises."""

    heads = {"values": lambda space: space.no_such_size}  # noqa: RUF012


class HalfHeads(Sarsa):
    """Has no whole number of outputs."""

    heads = {"values": lambda space: space.n / 2}  # noqa: RUF012


class FailingNote(Sarsa):
    """Raises."""

    def note(self, outputs: Any, action: Any) -> Any:
        raise IndexError("two\nlines")


class FlatValue(Sarsa):
    """Keeps an axis too many."""

    def value(self, outputs: Any) -> Any:
        return super().value(outputs)[:, None]


class NoLoss(Sarsa):
    """Forgets to return."""

    def loss(self, outputs: Any, batch: Minibatch) -> Any:
        return None


class RowLoss(Sarsa):
    """Forgets the mean."""

    def loss(self, outputs: Any, batch: Minibatch) -> Any:
        return outputs["values"].amax(-1)


class ConstantLoss(Sarsa):
    """Cuts the gradient."""

    def loss(self, outputs: Any, batch: Minibatch) -> Any:
        return outputs["values"].mean().detach()


class TellingLoss(Sarsa):
    """Tells plain numbers."""

    def loss(self, outputs: Any, batch: Minibatch) -> Any:
        loss, _ = super().loss(outputs, batch)
        return loss, {"plain": 3, "tensor": loss}


class NoAlgorithm:
    """Something else."""
