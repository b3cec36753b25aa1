"""How good a law is: its f against the true minimum, over a fixed set of conditions."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.core.arrays import Array
from manyhands.core.networks import NetSpec
from manyhands.core.weights import Weights
from manyhands.envs.lto import ENV_ID, Problem
from manyhands.lto.law import Law
from manyhands.lto.truth import minimum
from manyhands.runs.checkpoint import write_atomically
from manyhands.runs.jsonl import is_number, read_rows
from manyhands.runs.plan import Plan
from manyhands.runs.store import Run

EVERY = 10
"""Training steps between two measurements."""
SCATTERED = 64
"""Conditions that stand for a space of two dimensions or more."""
CONDITIONS_SEED = 2024


Find = Callable[[Problem, Array, int], tuple[Array, float]]
"""The best x of a problem's member at a condition, and its f."""


@dataclass(frozen=True)
class Quality:
    """The error over all conditions and members."""

    mse: float
    msle: float
    regret: float


def conditions(problem: Problem) -> Array:
    """Return c = -1, -0.9 .. 1 for one condition, scattered points for more, one empty row for none."""
    if problem.c == 0:
        return np.zeros((1, 0))
    if problem.c == 1:
        return np.linspace(-1, 1, 21)[:, None]
    return np.random.default_rng(CONDITIONS_SEED).uniform(-1, 1, (SCATTERED, problem.c))


class Judge:
    """Computes the true minima of a problem, once, and compares laws with them; `find` says how."""

    def __init__(self, problem: Problem, members: range | None = None, find: Find = minimum) -> None:
        self.problem = problem
        self.members = members if members is not None else range(problem.members)
        self.conditions = conditions(problem)
        self.truth = {
            member: np.array([find(problem, c, member)[1] for c in self.conditions])
            for member in self.members
        }

    def quality(self, law: Law) -> Quality:
        values = {member: self.law_values(law, member) for member in self.members}
        errors = np.concatenate([values[m] - self.truth[m] for m in self.members])
        with np.errstate(invalid="ignore", divide="ignore"):  # of a function of the user's, below -1
            logs = np.concatenate([np.log1p(values[m]) - np.log1p(self.truth[m]) for m in self.members])
        return Quality(float((errors**2).mean()), float((logs**2).mean()), float(errors.mean()))

    def law_values(self, law: Law, member: int) -> Array:
        """Return f where the law leads, at all conditions."""
        return law.values(self.conditions, member)


class QualityLog:
    """Measures after every so many training steps and keeps the rows in `quality.jsonl`."""

    def __init__(self, problem: Problem, spec: NetSpec, path: Path, version: int, every: int = EVERY) -> None:
        self.judge, self.spec, self.path, self.every = Judge(problem), spec, path, every
        kept = [row for row in read(path) if row["version"] <= version]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self.latest: dict[str, float] = {}

    def __call__(self, weights: Weights) -> dict[str, float]:
        if weights.version % self.every == 0:
            law = Law.of(self.judge.problem, self.spec, weights)
            self.latest = asdict(self.judge.quality(law))
            with self.path.open("a") as file:
                file.write(json.dumps({"version": weights.version, **self.latest}) + "\n")
        return self.latest


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows so far that are sound."""
    names = ("version", *(field.name for field in fields(Quality)))
    return read_rows(path, lambda row: all(is_number(row.get(name)) for name in names))


def measure_quality(plan: Plan, run: Run, version: int) -> QualityLog | None:
    """Return what measures each law of a run; None without a known minimum, as of a user's function."""
    env = plan.config.env
    if env.id != ENV_ID or (problem := Problem.of(env.kwargs)).imports:
        return None
    return QualityLog(problem, plan.spec, run.path / "quality.jsonl", version)
