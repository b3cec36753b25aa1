"""What an algorithm is: one object that answers every question the rest of the package has about it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from manyhands.config.settings import CollectConfig, Config, NetConfig
from manyhands.core.actions import ActionSpec
from manyhands.core.horizon import Horizon
from manyhands.core.networks import NetSpec
from manyhands.core.roles import Learner
from manyhands.core.spaces import Spaces
from manyhands.core.trajectories import Layout
from manyhands.core.weights import Weights


@dataclass(frozen=True)
class LearnerSetup:
    """What a learner is made from."""

    spec: NetSpec
    layout: Layout
    shards: int
    weights: Weights  # to start with
    seed: int
    horizon: Horizon
    directory: Path | None = None  # where what is too large for memory may lie
    memory: Any = None  # what the cores of this machine share, for algorithms that learn on them


class Algorithm:
    """One algorithm with its settings.

    Cheap to import, because a command line and workers ask it questions, too: `learner` imports what learns.
    """

    name: ClassVar[str]
    config: ClassVar[type[Any]]
    """Its settings: a frozen dataclass with a sentence under every field."""
    general: ClassVar[Mapping[str, Any]] = {}
    """Settings by section for environments without a recipe."""
    columns: ClassVar[tuple[str, ...]] = ()
    """What actors note down beside the usual."""
    uses_cores: ClassVar[bool] = False
    """Whether it learns on the cores of one machine, on memory that they share; else on any channel."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def actions(self, space: ActionSpec, net: NetConfig, env_id: str) -> ActionSpec:
        """How its outputs become actions of `space`; refuses actions that it does not support."""
        raise NotImplementedError

    def network(self, net: NetConfig, spaces: Spaces, lanes: int) -> NetSpec:
        """The network that it wants for a run of so many lanes in all."""
        raise NotImplementedError

    def check(self, config: Config, spaces: Spaces) -> None:
        """Refuse other settings of a run that it cannot work with."""

    def check_memory(self, layout: Layout, shards: int, here: bool) -> None:
        """Refuse settings whose memory cannot be had, `here` where this machine is to have it."""

    def collecting(self, collect: CollectConfig, workers: int) -> CollectConfig:
        """How experience is made, given the settings and the worker processes (-1: one per core)."""
        return collect

    def memory(self, layout: Layout, shards: int, spec: NetSpec) -> dict[str, int]:
        """Bytes that its learner holds beside network and batches, by what they are for."""
        return {}

    def for_child(self, config: Config, cores: int) -> Config:
        """A parent's settings for a machine with so many cores that exchanges weights with it."""
        collect, shards = config.collect, config.collect.shards
        if cores > shards:
            collect = replace(collect, shards=cores, lanes=max(1, shards * collect.lanes // cores))
        algo = replace(config.algo, threads=min(config.algo.threads, cores))
        return replace(config, collect=collect, algo=algo)

    def learner(self, setup: LearnerSetup) -> Learner:
        """What learns in a run; imports what it needs."""
        raise NotImplementedError
