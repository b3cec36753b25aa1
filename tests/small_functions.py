"""Functions of a user's for tests of learn-to-optimise, well-behaved and not."""

import time
from pathlib import Path

import numpy as np


def square(point: np.ndarray) -> float:
    return float((point[0] - 0.5 * point[1]) ** 2)


def slow(point: np.ndarray) -> float:
    time.sleep(0.05)
    return square(point)


def nan(point: np.ndarray) -> float:
    return float("nan")


def infinite(point: np.ndarray) -> float:
    return float("inf")


def vector(point: np.ndarray) -> np.ndarray:
    return point


def text(point: np.ndarray) -> str:
    return "low"


def raises(point: np.ndarray) -> float:
    raise RuntimeError("the device is off")


def hangs(point: np.ndarray) -> float:
    time.sleep(1000)
    return 0.0


def flaky(point: np.ndarray) -> float:
    """Fails once in its life, by a mark in the working directory."""
    mark = Path("flaky-mark")
    if not mark.exists():
        mark.touch()
        raise RuntimeError("the device hiccuped")
    return square(point)
