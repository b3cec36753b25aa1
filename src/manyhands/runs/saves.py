"""Saves a run while it goes: its checkpoints, its state, and what its workers have done."""

from typing import Any

from manyhands.channels.base import ExecutorChannel
from manyhands.core.weights import Weights
from manyhands.roles.executor import Executor
from manyhands.runs import store
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.journal import Journal
from manyhands.runs.learners import LazyLearner
from manyhands.runs.listeners import Listeners
from manyhands.runs.plan import Plan
from manyhands.runs.store import Run


class Saves:
    """Writes down what a run needs to go on, and its best agent."""

    def __init__(
        self,
        plan: Plan,
        run: Run,
        channel: ExecutorChannel,
        learner: LazyLearner,
        journal: Journal,
        listener: Listeners,
    ) -> None:
        self.plan, self.run, self.channel = plan, run, channel
        self.learner, self.journal, self.listener = learner, journal, listener

    def last(self, executor: Executor) -> None:
        """Write down all that a resume needs."""
        learned = executor.weights.version > 0
        piece = self.learner.replay_chunk() if learned else None
        if piece is not None:
            self.journal.append(piece)
        self.run.save(
            store.LAST,
            Checkpoint(
                self.plan.spec,
                self.plan.spaces.action,
                executor.weights,
                executor.previous,
                dict(self.learner.state()) if learned else {},
                executor.states,
                executor.counts.to_plain(),
            ),
        )
        if piece is not None:
            self.journal.forget(self.learner.oldest_needed())
        self.run.save_status(status_of(executor, "running"))
        self.run.save_worker_stats(self.channel.worker_stats())
        self.listener.saved(store.LAST)

    def best(self, weights: Weights) -> None:
        """Write down the best tested agent."""
        self.run.save(store.BEST, Checkpoint(self.plan.spec, self.plan.spaces.action, weights))
        self.listener.saved(store.BEST)


def status_of(executor: Executor, status: str) -> dict[str, Any]:
    """Return what `state.json` says of a run."""
    counts = executor.counts.to_plain()
    del counts["recent"], counts["lengths"]
    return {"status": status, "version": executor.weights.version, "updated": store.now(), **counts}
