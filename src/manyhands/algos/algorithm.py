"""The interface of an algorithm: one object with all that the rest of the package asks about it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from manyhands.config import algorithms
from manyhands.config.settings import CollectConfig, Config, NetConfig
from manyhands.core.action_spaces import KINDS, ActionSpace, Box, Discrete, MultiDiscrete
from manyhands.core.actions import ActionSpec, epsilon_greedy
from manyhands.core.arrays import Array, Float32
from manyhands.core.errors import UsageError
from manyhands.core.horizon import Horizon
from manyhands.core.networks import NetSpec
from manyhands.core.orders import Cores
from manyhands.core.roles import Learner
from manyhands.core.spaces import Spaces
from manyhands.core.trajectories import Layout
from manyhands.core.weights import Weights


@dataclass(frozen=True)
class LearnerSetup:
    """The parts that a learner is made from."""

    spec: NetSpec
    """The network."""
    layout: Layout
    """What a rollout holds, and in which shapes."""
    shards: int
    """Groups of lanes, each of which sends one trajectory for every update."""
    weights: Weights
    """What it starts with."""
    seed: int
    """The run's seed."""
    horizon: Horizon
    """How long the run may last."""
    directory: Path | None = None
    """Where what is too large for memory may lie."""
    memory: Any = None
    """What the cores of this machine share, for algorithms that learn on them."""


class Algorithm:
    """One algorithm with its settings.

    Cheap to import, because a command line and workers ask it questions, too: `learner` imports what learns.
    """

    config: ClassVar[type[Any]]
    """The class of its settings: a frozen dataclass with a sentence under every field."""
    actions: ClassVar[Any] = (Discrete, MultiDiscrete, Box)
    """The kinds of action spaces that it supports: one, or several."""
    heads: ClassVar[Mapping[str, Callable[[Any], int]]] = {}
    """The outputs of its network, if it has others than a policy and a value: a name, and the size for an
    action space."""
    general: ClassVar[Mapping[str, Any]] = {}
    """Settings by section for environments without a recipe."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Names of the columns that actors record of every step beside the usual ones; see `note`."""
    uses_cores: ClassVar[bool] = False
    """Whether it learns on the cores of one machine, on memory that they share; else on any channel."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def act(self, outputs: Mapping[str, Float32], noise: Float32 | None) -> Array:
        """Choose actions [B, ...], given the outputs [B, n] of all heads; by NumPy, on the workers.

        `noise` is random, None where the best actions are wanted. For Discrete and
        MultiDiscrete spaces it is [B, 1 + n] and exponential, for Box it is [B, n] and normal. An algorithm
        that defines this chooses by itself; else its action_spec says how.
        """
        raise NotImplementedError

    def note(self, outputs: Mapping[str, Float32], action: Array) -> Mapping[str, Array]:
        """Return the `columns` of a rollout, each [T, B], given outputs [T, B, n] and actions [T, B, ...]."""
        raise NotImplementedError

    def epsilon_greedy(self, values: Float32, noise: Float32 | None) -> Array:
        """Choose the best by their `values` [B, n], or any with probability settings.epsilon."""
        return epsilon_greedy(values, self.settings.epsilon, noise)

    @classmethod
    def acts(cls) -> bool:
        """Return whether it chooses actions by a method of its own."""
        return cls.act is not Algorithm.act

    def action_spec(self, space: ActionSpec, net: NetConfig, name: str) -> ActionSpec:
        """Return how its outputs become actions of `space`; `name` is what the run calls the algorithm."""
        if self.acts():
            return replace(space, algo=name, settings=json.dumps(asdict(self.settings)))
        return space

    @classmethod
    def check_actions(cls, space: ActionSpace, name: str, env_id: str) -> None:
        """Refuse an action space that it does not support, and say which algorithms do."""
        kinds = cls.actions if isinstance(cls.actions, tuple) else (cls.actions,)
        if not isinstance(space, kinds):
            wanted = " or ".join(KINDS[kind] for kind in kinds)
            others = (algo for algo in ("ppo", "dqn", "a2c") if algorithms.supports(algo, space))
            raise UsageError(
                f"{name} needs {wanted}, and {env_id} has {space}; try "
                f"{' or '.join(f'--algo {algo}' for algo in others)}"
            )

    def network(self, net: NetConfig, spaces: Spaces) -> NetSpec:
        """Return the network that it wants."""
        raise NotImplementedError

    def beside(self, lanes: int) -> dict[str, Float32]:
        """Return the first values of what travels beside the weights and is not learned; `lanes` in all."""
        return {}

    def check(self, config: Config, spaces: Spaces) -> None:
        """Refuse other settings of a run that it cannot work with."""

    def check_memory(self, layout: Layout, shards: int, here: bool) -> None:
        """Refuse settings whose memory cannot be had, `here` where this machine is to have it."""

    def collecting(self, collect: CollectConfig, workers: int) -> CollectConfig:
        """Return how experience is made, given the settings and the worker processes (-1: one per core)."""
        return collect

    def cores(self, count: int, name: str) -> Cores | None:
        """Return what workers are told of cores that learn together; None for all other algorithms."""
        return None

    def memory(self, layout: Layout, shards: int, spec: NetSpec) -> dict[str, int]:
        """Return the bytes that its learner holds beside network and batches, by what they are for."""
        return {}

    def for_child(self, config: Config, cores: int) -> Config:
        """Return a parent's settings for a machine with so many cores that exchanges weights with it."""
        collect, shards = config.collect, config.collect.shards
        if cores > shards:
            collect = replace(collect, shards=cores, lanes=max(1, shards * collect.lanes // cores))
        algo = replace(config.algo, threads=min(config.algo.threads, cores))
        return replace(config, collect=collect, algo=algo)

    def learner(self, setup: LearnerSetup) -> Learner:
        """Return the learner of a run; imports what it needs."""
        raise NotImplementedError
