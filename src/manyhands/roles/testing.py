"""Tests of the agent while it trains: when they are due, their episodes, and whether the agent passes."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from manyhands.core.evaluation import Evaluation
from manyhands.core.orders import EvalOrder
from manyhands.core.seeding import TEST, hash_seed
from manyhands.core.texts import figures
from manyhands.core.weights import Weights

if TYPE_CHECKING:
    from manyhands.roles.executor import Executor

FIRST_EPISODES = 16
"""Episodes that a test begins with; when they leave no hope, the rest is not played."""
CONFIRMING = 0.5
"""The part of `run.margin` that the second test, which confirms a passed one, must keep."""
NEWEST_EPISODES = 20
"""Episodes that tell whether training is near its goal."""
NEAR = 0.25
"""Training is near its goal when at most this part of the way to it from the first returns is left."""


class Testing:
    """The tests of one run."""

    def __init__(self, executor: "Executor", save_best: Callable[[Weights], None]) -> None:
        self.executor, self.save_best = executor, save_best
        self.config, self.solved_at = executor.config.run, executor.solved_at
        self.results: dict[int, Evaluation] = {}  # by part of the test that is being played

    def is_due(self) -> bool:
        """Return whether to test: tests cost as much as learning, so they are rare far from the goal.

        Decided by counts alone, never by the clock: the same seed tests and stops at the same step.
        """
        counts = self.executor.counts
        if self.executor.finished():
            return counts.tested_at != counts.steps
        if counts.steps < counts.next_test or not self.executor.recent:
            return False
        newest = float(np.mean(list(self.executor.recent)[-NEWEST_EPISODES:]))
        if counts.first_mean is None:
            counts.first_mean = newest
        share = self.config.test_share
        if self.solved_at is not None:
            way = abs(self.solved_at - counts.first_mean)
            if newest >= self.solved_at:
                return True
            if newest >= self.solved_at - NEAR * way:
                share *= 2
        return counts.test_steps <= share * counts.steps

    def run(self) -> None:
        """Test the agent as it is; one that is stopped on the way counts as none."""
        began = time.monotonic()
        counts, episodes = self.executor.counts, self.config.test_episodes
        result = self._play_while_promising(0, self.config.margin, last=self.executor.finished())
        if result is None:
            return
        confirmed: Evaluation | None = None
        if self._passed(result):
            confirmed = self._play_while_promising(episodes, CONFIRMING * self.config.margin)
            if confirmed is None:
                return
        counts.tests += 1
        counts.tested_at = counts.steps
        counts.test_steps += result.steps + (0 if confirmed is None else confirmed.steps)
        counts.last_mean = result.mean
        counts.next_test = counts.steps + self.config.test_every
        was_solved = counts.solved
        solved_now = confirmed is not None and self._confirm(confirmed)
        better = counts.best_mean is None or result.mean > counts.best_mean
        if solved_now if was_solved else solved_now or better:  # a confirmed agent makes way for such alone
            counts.best_mean, counts.best_steps = counts.last_mean, counts.steps
            self.save_best(self.executor.weights)
        counts.testing += time.monotonic() - began
        self.executor.listener.tested(result, self.executor)

    def _passed(self, result: Evaluation) -> bool:
        """Return whether a test's mean is far enough above the goal, or at the end of the steps above it."""
        if self.solved_at is None or result.episodes < self.config.test_episodes:
            return False
        margin = 0.0 if self.executor.counts.steps >= self.config.steps else self.config.margin
        return result.mean - margin * result.error >= self.solved_at

    def _confirm(self, result: Evaluation) -> bool:
        """Return whether a second test, by which the agent was not chosen, confirms that it is solved.

        Of many tests one is lucky, so the mean of a passed test is too high: of an agent whose true mean lies
        below the goal one test in fifty passes, and a run makes a dozen. The second test is a single one.
        """
        assert self.solved_at is not None
        whole = result.episodes >= self.config.test_episodes
        bound = result.mean - CONFIRMING * self.config.margin * result.error
        if whole and bound >= self.solved_at:
            self.executor.counts.solved, self.executor.counts.last_mean = True, result.mean
            return True
        self.executor.listener.said(
            f"a test passed, but {result.episodes} other episodes have a mean of {figures(result.mean)} "
            f"(goal {self.solved_at:g}); not counted as solved"
        )
        return False

    def _play_while_promising(self, first: int, margin: float, last: bool = False) -> Evaluation | None:
        """Play a test from episode `first` on; only a few episodes if they leave no hope. None if stopped."""
        episodes = self.config.test_episodes
        result = self._play(first, min(FIRST_EPISODES, episodes))
        if result is None or result.episodes >= episodes:
            return result
        if self.solved_at is None or last or result.promising(self.solved_at, episodes, margin):
            rest = self._play(first + FIRST_EPISODES, episodes - FIRST_EPISODES)
            return result + rest if rest is not None else None
        return result

    def _play(self, first: int, count: int) -> Evaluation | None:
        """Play episodes of a test, in as many parts as there are shards; None when asked to stop."""
        seed = hash_seed(self.config.seed, TEST, self.executor.counts.tests)
        bounds = [
            first + count * part // len(self.executor.shards) for part in range(len(self.executor.shards) + 1)
        ]
        parts = [(part, a, b) for part, (a, b) in enumerate(pairwise(bounds)) if b > a]
        self.results.clear()
        for part, start, end in parts:
            self.executor.channel.order(
                EvalOrder(part, self.executor.weights.version, seed, start, end - start)
            )
        while len(self.results) < len(parts):
            if self.executor.stopping or self.executor.ended:
                return None
            self.executor.await_event()
        found = [self.results[part] for part, _, _ in parts]
        return sum(found[1:], start=found[0])
