"""Supervised learning of chosen actions: play, choose what went well, imitate it, play again.

Three ways to choose (`sanitise.py`): fixed thresholds on an episode's score as published, an elite of recent
episodes, or every action by its advantage. `clone_learner.py` learns. Results: benchmarks/.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from manyhands.algos.algorithm import LearnerSetup
from manyhands.algos.on_policy import Minibatch, OnPolicy, OnPolicyConfig, weighted_grad
from manyhands.algos.replay_memory import BESIDES
from manyhands.core.checks import positive, require, unit
from manyhands.core.networks import NetSpec
from manyhands.core.roles import Learner
from manyhands.core.trajectories import Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CloneConfig(OnPolicyConfig):
    """Supervised learning of chosen actions: cross-entropy on pairs of observation and action."""

    choose: Literal[
        "advantage", "elite", "threshold", "published-1", "published-2", "published-3", "published-4"
    ] = "advantage"
    """advantage: every action by exp(its advantage / temperature). elite: the best episodes of late.
    threshold: episodes by keep and clean, with four presets as published for LunarLander."""
    temperature: float = 1.0
    """advantage: how sharply good actions are preferred, in deviations of the advantage."""
    weight_limit: float = 20.0
    """advantage: no action counts more than this (Peng et al. 2019 use 20)."""
    share: float = 0.1
    """elite: the part of recent episodes that is imitated."""
    window: int = 1000
    """elite: how many episodes are recent."""
    keep: float = 0.0
    """threshold: episodes with a score above this are taken whole."""
    clean: float | None = None
    """threshold: those above this are cleaned of actions with little reward; none are by default."""
    clean_level: float = 0.4
    """threshold: what little is, on a scale of 0 to 1. elite: the same for what followed an action, with
    discount gamma, so that a good episode does not teach its own end."""
    memory: int = 1_000_000
    """elite and threshold: pairs of observation and action that are held; the oldest go first."""
    minibatch: int = 512
    """Pairs for each step of the optimizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "algo", "temperature", "share", "window", "memory")
        unit(self, "algo", "share", "clean_level")
        require(self.weight_limit >= 1, "algo.weight_limit", self.weight_limit, "1 or more")


class Clone(OnPolicy):
    config = CloneConfig

    def policy_loss_grad(self, logp: "Tensor", batch: Minibatch) -> "Tensor":
        return weighted_grad(batch)

    def memory(self, layout: Layout, shards: int, spec: NetSpec) -> dict[str, int]:
        row = math.prod(layout.obs_shape) * np.dtype(layout.obs_dtype).itemsize
        return {"episodes to imitate (algo.memory)": self.settings.memory * (row + BESIDES)}

    def learner(self, setup: LearnerSetup) -> Learner:
        from manyhands.algos.clone_learner import CloneLearner

        return CloneLearner(self, setup)
