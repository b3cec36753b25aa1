"""A law that was learned once against optimisers that begin anew for every condition."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parts import Measured
from manyhands.core.arrays import Array
from manyhands.core.errors import UsageError
from manyhands.envs.lto import Problem
from manyhands.lto.law import Law
from manyhands.lto.truth import minimum
from manyhands.runs.report import Table, manyhands
from manyhands.runs.store import Run

CONDITIONS = 1000
TRIALS = 40
"""Evaluations that Bayesian optimisation gets for each condition."""
STEPS = {"ackley": 5000, "rosenbrock": 10_000}

Optimiser = Callable[[Callable[[float], float]], float]
"""A function from f of one x in [-1, 1] to the x at which it ends."""


def one_shot(path: Path, seed: int) -> Measured:
    tables, numbers = [], {}
    for name, steps in STEPS.items():
        run = Run(path / f"one-shot-{name}")
        began = time.monotonic()
        words = ("lto", name, "--starts", "latin", "--steps", steps, "--drivers", 0, "--seed", seed)
        subprocess.run(manyhands(*words, "--dir", run.path, "--quiet"), check=True)
        trained = time.monotonic() - began
        problem, law = Problem((name,)), Law.load(run)
        conditions = np.random.default_rng(seed).uniform(-1, 1, (CONDITIONS, 1))
        truth = np.array([minimum(problem, c)[1] for c in conditions])
        began = time.perf_counter()
        values = law.values(conditions)
        took = time.perf_counter() - began
        rows = [_row(f"the law (trained in {trained:.0f} s)", took, values - truth, CONDITIONS)]
        numbers[name] = {"law": _numbers(took, values - truth), "trained": trained}
        for optimiser, optimise in _optimisers().items():
            took, values, evaluations = _each(problem, conditions, optimise)
            rows.append(_row(optimiser, took, values - truth, evaluations))
            numbers[name][optimiser] = {**_numbers(took, values - truth), "evaluations": evaluations}
            print(*rows[-1], flush=True)
        columns = ("", "1000 conditions", "evaluations of f", "mean regret", "median", "95 %")
        tables.append(Table(f"One shot against re-optimising, {name}", columns, rows))
    return tables, numbers


def _each(problem: Problem, conditions: Array, optimise: Optimiser) -> tuple[float, Array, int]:
    values = np.empty(len(conditions))
    count = 0
    began = time.perf_counter()
    for i, condition in enumerate(conditions):

        def f(x: float, condition: Array = condition) -> float:
            nonlocal count
            count += 1
            return float(problem.evaluate(np.array([[np.clip(x, -1, 1), *condition]]))[0])

        values[i] = f(optimise(f))
    return time.perf_counter() - began, values, count


def _optimisers() -> dict[str, Optimiser]:
    try:
        import optuna
        from scipy.optimize import differential_evolution, minimize
    except ModuleNotFoundError as error:
        raise UsageError(f"this part needs {error.name}; pip install {error.name}") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def nelder_mead(f: Callable[[float], float]) -> float:
        return float(minimize(lambda x: f(x[0]), [0.3], method="Nelder-Mead", bounds=[(-1, 1)]).x[0])

    def evolution(f: Callable[[float], float]) -> float:
        return float(differential_evolution(lambda x: f(x[0]), [(-1, 1)], rng=0, maxiter=30).x[0])

    def bayesian(f: Callable[[float], float]) -> float:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
        study.optimize(lambda trial: f(trial.suggest_float("x", -1, 1)), n_trials=TRIALS)
        return float(study.best_params["x"])

    return {
        "Nelder-Mead (SciPy)": nelder_mead,
        "differential evolution (SciPy)": evolution,
        f"Bayesian optimisation (optuna, {TRIALS} trials)": bayesian,
    }


def _row(name: str, took: float, regret: Array, evaluations: int) -> tuple[str, ...]:
    cells = [f"{value:.3g}" for value in (regret.mean(), np.median(regret), np.quantile(regret, 0.95))]
    return (name, f"{took:.3g} s", f"{evaluations:,}", *cells)


def _numbers(took: float, regret: Array) -> dict[str, Any]:
    quantile = float(np.quantile(regret, 0.95))
    return {
        "seconds": took,
        "mean": float(regret.mean()),
        "median": float(np.median(regret)),
        "p95": quantile,
    }
