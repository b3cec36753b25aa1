"""Functions that optimisers are tested on. Each takes points [..., n] to values [...]."""

import math
from collections.abc import Callable

import numpy as np

from manyhands.core.arrays import Array


def ackley(z: Array) -> Array:
    root, wave = np.sqrt((z * z).mean(-1)), np.cos(2 * np.pi * z).mean(-1)
    value: Array = 20 + math.e - 20 * np.exp(-0.2 * root) - np.exp(wave)
    return value


def rosenbrock(z: Array) -> Array:
    a, b = z[..., :-1], z[..., 1:]
    value: Array = (100 * (b - a * a) ** 2 + (1 - a) ** 2).sum(-1)
    return value


def sphere(z: Array) -> Array:
    value: Array = (z * z).sum(-1)
    return value


def rastrigin(z: Array) -> Array:
    value: Array = (z * z - 10 * np.cos(2 * np.pi * z) + 10).sum(-1)
    return value


def griewank(z: Array) -> Array:
    ranks = np.sqrt(np.arange(1, z.shape[-1] + 1))
    value: Array = 1 + (z * z).sum(-1) / 4000 - np.cos(z / ranks).prod(-1)
    return value


def levy(z: Array) -> Array:
    w = 1 + (z - 1) / 4
    first, last, inner = w[..., 0], w[..., -1], w[..., :-1]
    middle = ((inner - 1) ** 2 * (1 + 10 * np.sin(np.pi * inner + 1) ** 2)).sum(-1)
    end = (last - 1) ** 2 * (1 + np.sin(2 * np.pi * last) ** 2)
    value: Array = np.sin(np.pi * first) ** 2 + middle + end
    return value


KNOWN: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "ackley": (ackley, 32.768, 0.0),
    "rosenbrock": (rosenbrock, 2.048, 1.0),
    "sphere": (sphere, 5.12, 0.0),
    "rastrigin": (rastrigin, 5.12, 0.0),
    "griewank": (griewank, 600.0, 0.0),
    "levy": (levy, 10.0, 1.0),
}
"""The function, how far its domain reaches on either side of 0, and the place of its minimum, which is 0."""
