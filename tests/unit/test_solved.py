"""When a run counts as solved: a passed test must be confirmed by another, of other episodes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from manyhands.config.settings import Config
from manyhands.core.evaluation import Evaluation
from manyhands.core.orders import EvalOrder, EvalResult
from manyhands.core.weights import Weights
from manyhands.roles.executor import Executor
from manyhands.runs.plan import plan

GOAL = 100.0
EPISODES = 100


class Scores:
    """A channel whose agents score what a function says, by the number of the test and of the episode."""

    plays_here = True

    def __init__(self, score: Callable[[int, int], float]) -> None:
        self.score, self.test = score, 0
        self.asked: list[EvalOrder] = []
        self.played: list[tuple[int, int]] = []  # test, episode

    def order(self, trial: Any) -> None:
        self.asked.append(trial)

    def receive(self, timeout: float) -> EvalResult:
        trial = self.asked.pop(0)
        self.played += [(self.test, episode) for episode in trial.episodes]
        returns = tuple(self.score(self.test, episode) for episode in trial.episodes)
        return EvalResult(trial.part, Evaluation(returns, (1,) * len(returns)))

    def workers(self) -> list[Any]:
        return []


def executor(score: Callable[[int, int], float], **run: Any) -> tuple[Executor, Scores, list[int]]:
    settings = {"run": {"test_episodes": EPISODES, "steps": 10**9, **run}}
    config = Config.from_plain(settings)
    planned = plan(config)
    channel, best = Scores(score), []
    weights = Weights(0, np.zeros(planned.spec.size, np.float32), planned.spec.schema)
    learner = SimpleNamespace(weights=lambda: weights)
    quiet: Any = SimpleNamespace(tested=lambda *_: None, said=lambda *_: None, waiting=lambda *_: None)
    made = Executor(
        config,
        planned.task.layout,
        channel,  # type: ignore[arg-type]
        learner,  # type: ignore[arg-type]
        GOAL,
        quiet,
        lambda executor: None,
        lambda weights: best.append(channel.test),
    )
    return made, channel, best


def run_test(made: Executor, channel: Scores, test: int) -> None:
    channel.test = test
    made.counts.steps += 1
    made.testing.run()


def test_a_good_agent_is_solved_after_two_tests_of_different_episodes() -> None:
    made, channel, best = executor(lambda test, episode: GOAL + 10 + episode % 3)
    run_test(made, channel, 1)
    assert made.counts.solved
    episodes = [episode for _, episode in channel.played]
    assert sorted(episodes) == list(range(2 * EPISODES))
    assert best == [1]


@pytest.mark.parametrize("second", [GOAL - 5, GOAL - 0.1])
def test_a_lucky_test_alone_does_not_count(second: float) -> None:
    made, channel, _ = executor(
        lambda test, episode: GOAL + 10 + episode % 3 if episode < EPISODES else second + episode % 3 - 1
    )
    run_test(made, channel, 1)
    assert not made.counts.solved


def test_the_confirming_test_needs_half_the_margin() -> None:
    spread = [-20.0, 20.0]  # a standard error of 2 over 100 episodes
    for above, solved in ((1.5, False), (2.5, True)):
        made, channel, _ = executor(
            lambda test, episode, above=above: (
                spread[episode % 2] + (GOAL + 5 if episode < EPISODES else GOAL + above)
            )
        )
        run_test(made, channel, 1)
        assert made.counts.solved == solved


def test_a_test_that_does_not_pass_is_not_confirmed_and_a_hopeless_one_is_cut_short() -> None:
    made, channel, _ = executor(lambda test, episode: GOAL - 50 + episode % 3)
    run_test(made, channel, 1)
    assert len(channel.played) < EPISODES
    assert not made.counts.solved


def test_a_confirmed_agent_makes_way_only_for_another_confirmed_one() -> None:
    """After solving, with --until steps: a luckier test alone must not replace what is known to be good."""
    means = {1: (GOAL + 10, GOAL + 10), 2: (GOAL + 50, GOAL - 50), 3: (GOAL + 20, GOAL + 20)}
    made, channel, best = executor(
        lambda test, episode: means[test][episode >= EPISODES] + episode % 3, until="steps"
    )
    for test in (1, 2, 3):
        run_test(made, channel, test)
    assert made.counts.solved
    assert best == [1, 3]
