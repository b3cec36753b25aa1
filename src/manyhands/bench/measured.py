"""Objectives that take time, as a measurement on a device does: for `manyhands bench lto`."""

import os
import time
from pathlib import Path

import numpy as np

from manyhands.envs.lto import ackley
from manyhands.experience import Array

SECONDS = "MANYHANDS_BENCH_SECONDS"
"""How long one evaluation takes."""
RANKS = "MANYHANDS_BENCH_RANKS"
"""A directory in which processes take numbers; process n is n + 1 times as slow."""
_rank: list[int] = []


def slow(point: Array) -> float:
    """Ackley after a pause."""
    time.sleep(float(os.environ[SECONDS]))
    return float(ackley(np.asarray(point)[None])[0])


def uneven(point: Array) -> float:
    """Ackley on devices of different speed."""
    if not _rank:
        _rank.append(_take_number(Path(os.environ[RANKS])))
    time.sleep(float(os.environ[SECONDS]) * (1 + _rank[0]))
    return float(ackley(np.asarray(point)[None])[0])


def _take_number(directory: Path) -> int:
    number = 0
    while True:
        try:
            (directory / str(number)).touch(exist_ok=False)
            return number
        except FileExistsError:
            number += 1
