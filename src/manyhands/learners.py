"""What learns in a run: an algorithm that is loaded late, or cores that learn by themselves."""

from collections.abc import Callable
from typing import Any, Protocol, cast

from manyhands.algos.configs import HogwildConfig
from manyhands.algos.horizon import Horizon
from manyhands.averaging.maths import average
from manyhands.channels.base import ExecutorChannel, SharingChannel
from manyhands.envs import lto
from manyhands.experience import Trajectory
from manyhands.plan import Plan
from manyhands.policy import Float32, Weights
from manyhands.roles.hogwild import HogwildLearner
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.journal import Journal
from manyhands.runs.store import Run

OWN = ("epsilon", "input.")
"""Beginnings of the names of numbers that travel with the weights and are not learned."""
Judge = Callable[[Weights], dict[str, float]]
"""Measures every new version of the weights by means of its own."""


def _judge(plan: Plan, run: Run, version: int) -> Judge | None:
    """Learn-to-optimise knows the true minimum of its own functions, though not of a user's."""
    env = plan.config.env
    if env.id != lto.ENV_ID or (problem := lto.Problem.of(env.kwargs)).imports:
        return None
    from manyhands.lto.judge import QualityLog

    return QualityLog(problem, plan.spec, run.path / "quality.jsonl", version)


class LateLearner:
    """Stands for the algorithm until it is first asked to learn, so that workers play while torch loads."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        resumed: Checkpoint | None,
        journal: Journal,
        horizon: Horizon,
        judge: Judge | None = None,
    ) -> None:
        self.plan, self.first, self.resumed = plan, weights, resumed
        self.journal, self.horizon, self.judge = journal, horizon, judge
        self.algorithm: Any = None
        assert not isinstance(plan.config.algo, HogwildConfig)
        self.algo = plan.config.algo

    def weights(self) -> Weights:
        made: Weights = self.algorithm.weights() if self.algorithm else self.first
        return made

    def learn(self, trajectories: Any) -> dict[str, float]:
        from manyhands.nets.torch_net import torch_threads

        with torch_threads(self.algo.threads):
            metrics: dict[str, float] = self.load().learn(trajectories)
        return {**metrics, **self.judge(self.weights())} if self.judge is not None else metrics

    def mix(self, vector: Float32, share: float) -> None:
        """All but what a learner keeps for itself: how much it explores, and how it scales its inputs."""
        net = self.load().net
        own = {name: view.clone() for name, view in net.views.items() if name.startswith(OWN)}
        net.load(average(net.vector(), vector, share))
        for name, view in own.items():
            net.views[name].copy_(view)

    def load(self) -> Any:
        if self.algorithm is None:
            from manyhands.algos.base import learner

            config = self.plan.config
            self.algorithm = learner(
                config.run.algo,
                config=self.algo,
                spec=self.plan.spec,
                layout=self.plan.task.layout,
                shards=config.collect.shards,
                weights=self.first,
                seed=config.run.seed,
                horizon=self.horizon,
                directory=self.journal.directory.parent,
            )
            if self.resumed is not None and self.resumed.learner:
                self.algorithm.load_state(self.first.version, self.resumed.learner)
                self.algorithm.recall(self.journal.read(until=self.algorithm.pieces))
        return self.algorithm


Learner = LateLearner | HogwildLearner


class Exchange(Protocol):
    """Who else has a say in the weights."""

    def after(self, learner: Learner, trajectories: list[Trajectory]) -> None:
        """Called after every update; may replace the learner's weights."""

    @property
    def horizon(self) -> Horizon:
        """Where the run ends."""

    def bind(self, stop: Callable[[], None], said: Callable[[str], None]) -> None:
        """Told before the first update how to end the run, and how to say something."""


class Exchanging:
    """A learner whose every update somebody else hears of."""

    def __init__(self, learner: Learner, exchange: Exchange) -> None:
        self.learner, self.exchange = learner, exchange

    def weights(self) -> Weights:
        return self.learner.weights()

    def learn(self, trajectories: list[Trajectory]) -> dict[str, float]:
        metrics = self.learner.learn(trajectories)
        self.exchange.after(self.learner, trajectories)
        return metrics


def open_learner(
    plan: Plan,
    run: Run,
    channel: ExecutorChannel,
    first: Weights,
    resumed: Checkpoint | None,
    journal: Journal,
    horizon: Horizon,
) -> Learner:
    if plan.task.hogwild is None:
        return LateLearner(plan, first, resumed, journal, horizon, _judge(plan, run, first.version))
    memory = cast(SharingChannel, channel).memory
    assert memory is not None
    learner = HogwildLearner(memory, plan.spec, first, horizon, plan.task.hogwild.config.anneal)
    if resumed is not None and resumed.learner:
        learner.load_state(resumed.learner)
    return learner
