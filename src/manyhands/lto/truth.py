"""The true minimum of a problem for given conditions: a dense grid, then ever finer ones around its best."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from manyhands.core.arrays import Array
from manyhands.core.errors import missing_extra
from manyhands.envs.lto import Problem
from manyhands.envs.lto_functions import KNOWN

Function = Callable[[Array], Array]
"""A function from points [N, k] to values [N]."""
GRID = {1: 20_001, 2: 401}
"""Points along each x, by their number. More x than two are searched from many points instead."""
KEPT = 5
"""Valleys of the grid that are looked into."""
ZOOMS, ZOOM_POINTS = 12, 21
STARTS, REFINED = 4096, 8
SLOPE_STEP = 1e-6
CALLS = 400
"""Most calls of a user's own function in the search for its minimum at one condition."""
LEAST_CALLS = 20
SEED = 2024
CROWD = 10
"""Points that differential evolution keeps, for each x; fewer, where so few calls are allowed."""


def minimum(problem: Problem, condition: Array, member: int = 0) -> tuple[Array, float]:
    """Return the x in [-1, 1]^k of the smallest f at `condition` (scaled as well), and that f."""
    x, value = _minimum(problem, tuple(float(each) for each in condition), member)
    return np.array(x), value


@lru_cache(maxsize=100_000)
def _minimum(problem: Problem, condition: tuple[float, ...], member: int) -> tuple[tuple[float, ...], float]:
    def f(x: Array) -> Array:
        fixed = np.broadcast_to(condition, (len(x), problem.c))
        return problem.evaluate(np.concatenate([x, fixed], axis=1), member)

    if problem.x in GRID:
        x, value = _by_grid(f, problem.x)
    else:
        x, value = _by_descent(f, problem.x, _known_place(problem, member))
    return tuple(map(float, x)), float(value)


class Search:
    """Finds the best x of a function that may cost much in so many calls, by differential evolution.

    It begins with what the law says, so that what it finds is never worse than the law.
    """

    def __init__(self, law: Callable[[Array], Array], calls: int = CALLS) -> None:
        self.law, self.calls = law, calls

    def __call__(self, problem: Problem, condition: Array, member: int = 0) -> tuple[Array, float]:
        try:
            from scipy.optimize import differential_evolution
        except ModuleNotFoundError as error:
            raise missing_extra("a search for the minimum of your own function", error.name) from error

        def f(x: Array) -> float:
            return float(problem.evaluate(np.concatenate([x, condition])[None], member)[0])

        first = self.law(condition[None])[0].astype(np.float64)
        crowd = max(5, min(CROWD * problem.x, self.calls // 4))
        points = np.random.default_rng(SEED).uniform(-1, 1, (crowd, problem.x))
        points[0] = first
        rounds = max(1, self.calls // crowd - 1)
        found = differential_evolution(
            f, [(-1, 1)] * problem.x, init=points, maxiter=rounds, polish=False, tol=0.0, seed=SEED
        )
        return found.x, float(found.fun)


def _by_grid(f: Function, size: int) -> tuple[Array, float]:
    axis = np.linspace(-1, 1, GRID[size])
    points = np.stack(np.meshgrid(*[axis] * size, indexing="ij"), -1).reshape(-1, size)
    values = f(points)
    best: tuple[Array, float] = points[0], np.inf
    for index in _valleys(points, values, 2 / (GRID[size] - 1)):
        centre, value, reach = points[index], float(values[index]), 2 / (GRID[size] - 1)
        for _ in range(ZOOMS):
            sides = [np.linspace(-reach, reach, ZOOM_POINTS)] * size
            around = np.stack(np.meshgrid(*sides, indexing="ij"), -1).reshape(-1, size)
            tried = np.clip(centre + around, -1, 1)
            found = f(tried)
            if found.min() <= value:
                centre, value = tried[found.argmin()], float(found.min())
            reach /= 5
        if value < best[1]:
            best = centre, value
    return best


def _valleys(points: Array, values: Array, step: float) -> list[int]:
    """Return the lowest points of the grid, no two of them beside each other."""
    kept: list[int] = []
    for index in np.argsort(values, kind="stable")[: 200 * KEPT]:
        if all(np.abs(points[index] - points[other]).max() > 3 * step for other in kept):
            kept.append(int(index))
        if len(kept) == KEPT:
            break
    return kept


def _known_place(problem: Problem, member: int) -> Array:
    """Return the x of the function's minimum: in the right valley for many conditions, though not for all."""
    name, (shift, _) = problem.name(member), problem.deviation(member)
    if name not in KNOWN:
        return np.zeros(problem.x)
    _, reach, place = KNOWN[name]
    unit = np.full(problem.size, place / reach)
    if problem.bounds:
        unit = problem.from_units(np.full(problem.size, place))
    inside: Array = np.clip((unit - shift)[: problem.x], -1, 1)
    return inside


def _with_slope(f: Function) -> Callable[[Array], tuple[float, Array]]:
    """Return what gives f and its gradient by central differences; 2 k + 1 points at once cost little."""

    def evaluate(x: Array) -> tuple[float, Array]:
        steps = SLOPE_STEP * np.eye(len(x))
        values = f(np.concatenate([x[None], x + steps, x - steps]))
        ahead, behind = np.split(values[1:], 2)
        return float(values[0]), (ahead - behind) / (2 * SLOPE_STEP)

    return evaluate


def _by_descent(f: Function, size: int, known: Array) -> tuple[Array, float]:
    try:
        from scipy.optimize import minimize
        from scipy.stats import qmc
    except ModuleNotFoundError as error:
        raise missing_extra("a function of more than two x", error.name) from error
    points = 2 * qmc.Sobol(size, seed=0).random(STARTS) - 1
    values = f(points)
    best: tuple[Array, float] = points[0], np.inf
    for start in (known, *points[np.argsort(values)[:REFINED]]):
        done = minimize(_with_slope(f), start, jac=True, method="L-BFGS-B", bounds=[(-1, 1)] * size)
        if done.fun < best[1]:
            best = done.x, float(done.fun)
    return best
