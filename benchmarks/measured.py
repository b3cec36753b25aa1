"""Objectives that take time, as a measurement on a device does: for `python -m benchmarks lto`."""

import os
import time
from pathlib import Path

import numpy as np

from manyhands.core.arrays import Array
from manyhands.envs.lto_functions import ackley

SECONDS = "MANYHANDS_BENCH_SECONDS"
"""The environment variable that says how many seconds one evaluation takes."""
RANKS = "MANYHANDS_BENCH_RANKS"
"""The variable of a directory in which processes take numbers; process n is n + 1 times as slow."""
_rank: list[int] = []


def slow(point: Array) -> float:
    """Return Ackley's value, taking that long in all."""
    return _taking(float(os.environ[SECONDS]), point)


def uneven(point: Array) -> float:
    """Return Ackley's value as devices of different speed would."""
    if not _rank:
        _rank.append(_take_number(Path(os.environ[RANKS])))
    return _taking(float(os.environ[SECONDS]) * (1 + _rank[0]), point)


def _taking(seconds: float, point: Array) -> float:
    ends = time.perf_counter() + seconds
    value = float(ackley(np.asarray(point)[None])[0])
    time.sleep(max(0.0, ends - time.perf_counter()))
    return value


def _take_number(directory: Path) -> int:
    number = 0
    while True:
        try:
            (directory / str(number)).touch(exist_ok=False)
            return number
        except FileExistsError:
            number += 1
