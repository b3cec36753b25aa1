"""The learner of a run: an algorithm's, loaded late, and the exchange of its weights with others."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from manyhands.algos.algorithm import LearnerSetup
from manyhands.core.arrays import Array
from manyhands.core.horizon import Horizon
from manyhands.core.roles import Learner
from manyhands.core.trajectories import ReplayChunk, Trajectory
from manyhands.core.weights import Weights
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.journal import Journal
from manyhands.runs.plan import Plan
from manyhands.runs.warm_start import Start

Measure = Callable[[Weights], dict[str, float]]
"""Measures every new version of the weights, in a way of its own."""


class LazyLearner:
    """Stands for an algorithm's learner until that is loaded, so that workers play while torch loads."""

    def __init__(self, make: Callable[[], Learner], first: Weights, measure: Measure | None = None) -> None:
        self.make, self.first, self.measure = make, first, measure
        self.made: Learner | None = None

    def load(self) -> Learner:
        if self.made is None:
            self.made = self.make()
        return self.made

    def weights(self) -> Weights:
        return self.first if self.made is None else self.made.weights()

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        metrics = self.load().learn(trajectories)
        return {**metrics, **self.measure(self.weights())} if self.measure is not None else metrics

    def state(self) -> Mapping[str, Array]:
        return self.load().state()

    def replay_chunk(self) -> ReplayChunk | None:
        return self.load().replay_chunk()

    def oldest_needed(self) -> Array:
        return self.load().oldest_needed()


class Exchange(Protocol):
    """An exchange of the weights with others, between updates."""

    def after(self, learner: Learner, trajectories: list[Trajectory]) -> None:
        """Called after every update; may replace the learner's weights."""

    @property
    def horizon(self) -> Horizon:
        """The end of the run."""

    def bind(self, stop: Callable[[], None], said: Callable[[str], None]) -> None:
        """Called before the first update, with what ends the run and what reports a text."""


class Exchanging:
    """A learner whose weights are exchanged with others after an update."""

    def __init__(self, learner: LazyLearner, exchange: Exchange) -> None:
        self.learner, self.exchange = learner, exchange

    def weights(self) -> Weights:
        return self.learner.weights()

    def learn(self, trajectories: list[Trajectory]) -> dict[str, float]:
        metrics = self.learner.learn(trajectories)
        self.exchange.after(self.learner.load(), trajectories)
        return metrics


def open_learner(
    plan: Plan,
    first: Weights,
    resumed: Checkpoint | None,
    journal: Journal,
    horizon: Horizon,
    memory: object = None,
    measure: Measure | None = None,
    start: Start | None = None,
) -> LazyLearner:
    """Return the learner of a run; `memory` is what cores share that learn by themselves.

    `start` is another run's agent that a new one begins with.
    """
    config = plan.config
    setup = LearnerSetup(
        spec=plan.spec,
        layout=plan.task.layout,
        shards=config.collect.shards,
        weights=first,
        seed=config.run.seed,
        horizon=horizon,
        directory=journal.directory.parent,
        memory=memory,
    )

    def make() -> Learner:
        learner: Learner = plan.algorithm.learner(setup)
        if resumed is not None and resumed.learner:
            learner.load_state(first.version, resumed.learner)
            learner.restore_replay(journal.read(until=learner.chunks))
        elif start is not None:
            start.give(learner)
        return learner

    lazy = LazyLearner(make, first, measure)
    if plan.algorithm.uses_cores:
        lazy.load()  # its memory is what the cores play with from the start
    return lazy
