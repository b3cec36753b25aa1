"""A child: trains by itself with any algorithm, and exchanges weights with its parent now and then."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from manyhands.averaging.link import Link
from manyhands.averaging.maths import SMALLEST_SCALE, Feedback, absurdity, root_mean_square
from manyhands.averaging.protocol import statistics
from manyhands.averaging.welcome import Welcome
from manyhands.config.settings import Config
from manyhands.core import payloads, wire
from manyhands.core.horizon import Horizon
from manyhands.core.networks import NetSpec
from manyhands.core.roles import Learner
from manyhands.core.trajectories import Trajectory
from manyhands.core.weights import Weights
from manyhands.roles.progress import RECENT

LEAST_MEMORY = 150
"""MB without which no process can play anything."""


class Exchanger:
    """Exchanges weights with the parent between two updates of a child's learner."""

    def __init__(self, link: Link, spec: NetSpec, version: int) -> None:
        self.link, self.spec, self.base = link, spec, version
        self.feedback = Feedback(link.averaging.format, spec.size)
        self.steps, self.episodes, self.exchanges = 0, 0, 0
        self.told = 0  # steps that the parent knows of
        self.horizon = Horizon(steps=1)
        self._look_ahead()
        self.round_trip = 0.0
        self.ruinous = False  # the parent's last weights
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.stop: Callable[[], None] = lambda: None

    def bind(self, stop: Callable[[], None], said: Callable[[str], None]) -> None:
        self.stop, self.link.ended, self.link.said = stop, stop, said
        if self.link.over or self.link.refused:  # while nobody was there to be told
            stop()

    def after(self, learner: Learner, trajectories: list[Trajectory]) -> None:
        for trajectory in trajectories:
            self.steps += trajectory.steps
            self.episodes += len(trajectory.episode_return)
            self.recent.extend(map(float, trajectory.episode_return))
        averaging = self.link.averaging
        if self.steps - self.told < averaging.every or self.link.connection is None:
            return
        theirs = self.exchange(learner.weights())
        self._look_ahead()
        if theirs is not None and averaging.beta and self._usable(learner.weights(), theirs):
            learner.average_into(theirs.vector, averaging.beta)

    def _usable(self, mine: Weights, theirs: Weights) -> bool:
        """Return whether the parent's weights are usable; report bad ones once, until they are good again."""
        scale = max(SMALLEST_SCALE, root_mean_square(mine.vector))
        why = absurdity(mine, theirs, self.link.averaging.beta, scale)
        if why and not self.ruinous:
            self.link.said(
                f"refused the weights of the parent at {self.link.url}: {why}; training with its own"
            )
        self.ruinous = bool(why)
        return not why

    def _look_ahead(self) -> None:
        self.horizon.told = max(0.0, 1.0 - self.base / self.link.averaging.exchanges)

    def exchange(self, mine: Weights) -> Weights | None:
        """Send our weights; return the parent's, or None where it cannot be reached."""
        meta = {
            "base": self.base,
            "steps": self.steps,
            "episodes": self.episodes,
            "round_trip": self.round_trip,
            "recent": float(np.mean(self.recent)) if self.recent else None,
        }
        if self.feedback.how != self.link.averaging.format:
            self.feedback = Feedback(self.link.averaging.format, self.spec.size)
        began = time.perf_counter()
        beside = payloads.beside_arrays(statistics(self.spec, mine.beside))
        arrays = {**self.feedback.quantise(mine.vector), **beside}
        theirs = self.link.ask(wire.Message("exchange", self.spec.schema, meta, arrays), self.spec)
        if self.link.over or self.link.refused:
            self.stop()
        if theirs is None:
            self.feedback = Feedback(self.feedback.how, self.spec.size)  # what was lost, was lost with it
            return None
        self.told = self.steps
        self.round_trip = time.perf_counter() - began
        self.exchanges += 1
        self.base = theirs.version
        return theirs


def own_config(welcome: Welcome, cores: int, seed: int, memory: float = math.inf) -> Config:
    """Return the parent's settings for this machine: its cores, a seed of its own, no end but the parent's.

    Its workers together hold half of the `memory` that it gives.
    """
    config: Config = welcome.config.algorithm.for_child(welcome.config, cores)
    run = replace(
        config.run,
        workers=cores,
        seed=seed,
        until="external",
        minutes=0.0,
        updates=0,
        test_every=10**12,
        checkpoint_every=1e9,
        worker_memory=max(LEAST_MEMORY, int(min(config.run.worker_memory, memory / 1e6 / (2 * cores)))),
    )
    return replace(config, run=run)
