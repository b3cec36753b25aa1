"""Averaging and quantising vectors of weights: pure functions."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from manyhands.core.arrays import Array, Float32
from manyhands.core.errors import WireError
from manyhands.core.networks import MEAN, SCALE
from manyhands.core.weights import Weights

Format = Literal["float32", "float16", "int8"]
FORMATS: tuple[Format, ...] = ("float32", "float16", "int8")
BLOCK = 1024
"""Numbers that share a scale in int8: few enough that an outlier spoils little, and scales cost little."""
LARGEST = 127
LARGEST_SENT = {"float32": 1e38, "float16": float(np.finfo(np.float16).max), "int8": 1e38}
"""Magnitudes that survive each format and the rounding in it."""
STEP_LIMIT = 10.0
"""How far one exchange may move weights, as a multiple of what weights are here (root mean squares). Honest
ones moved by 0.54 times that at the most, in runs of ppo, impala, a3c and dqn; see docs/averaging.md."""
SMALLEST_SCALE = 1.0
"""The least scale: weights that are smaller may still grow to it, as networks start with as little as 0."""
LARGEST_START = 1e6
"""The root mean square of first weights from which no network can learn."""
LARGEST_STATISTIC = 1e18
"""The largest statistic of inputs; float32 holds its square."""
LARGEST_SCALE = 1e4
"""The largest scale of inputs. Those that have not varied yet have 1e3, which a new child often sends."""
MEAN_LIMIT = 1e5
"""How far the mean of an input may lie from ours, in deviations of ours, each of which counts as 1 at the
least. So an input that was always 0 here, such as a score, may be tens of thousands elsewhere."""
DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "|i1"}


def within(mine: Float32, moved: Float32, limit: float) -> Float32:
    """Return `moved`, or the point on the way to it that is `limit` away from `mine`; 0 is no limit."""
    way = moved.astype(np.float64) - mine
    length = float(np.sqrt(np.square(way).sum()))
    if not limit or length <= limit:
        return moved
    result: Float32 = (mine + way * (limit / length)).astype(np.float32)
    return result


def root_mean_square(vector: Float32) -> float:
    """Return sqrt(mean of squares), or infinity where float32 cannot hold the squares."""
    with np.errstate(over="ignore"):
        return math.sqrt(float(np.dot(vector, vector)) / max(1, len(vector)))


def absurdity(mine: Weights, other: Weights, share: float, scale: float) -> str:
    """Say why `mine` must not be averaged with `other`; return "" for all honest weights.

    Weights may move by STEP_LIMIT times `scale`, a root mean square that weights have here. The statistics of
    inputs beside them have bounds of their own.
    """
    if why := _absurd_statistics(mine.beside, other.beside, share):
        return why
    with np.errstate(over="ignore"):
        moved = share * root_mean_square(other.vector - mine.vector)
    limit = STEP_LIMIT * scale
    if moved > limit:
        away = f"a step to them is {moved:.2g} (root mean square), allowed are {limit:.2g}"
        return f"they are so far away that {away}"
    size = root_mean_square(other.vector)
    if size > LARGEST_START:  # by many steps, each of which was small for weights that had grown so far
        return f"no network can learn from weights of that size (root mean square {size:.2g})"
    return ""


def largest_statistic(beside: Mapping[str, Array]) -> float:
    """Return the largest magnitude in these arrays; 0 where there are none."""
    return max((float(np.abs(array).max()) for array in beside.values()), default=0.0)


def _absurd_statistics(mine: Mapping[str, Array], other: Mapping[str, Array], share: float) -> str:
    """Say what is wrong with the means and scales (1 / deviation) of inputs.

    Statistics that are still initial, 0 and 1 throughout, accept any mean. After that `mine` are on the way
    to the others': the mean is `share` times theirs, and the deviation still far too small. So a mean may
    also lie away by twice its own size / `share`, which lets honest ones undo what others have done as well.
    """
    if MEAN not in other or not share:
        return ""
    mean, scale, their_mean, their_scale = (each[name] for each in (mine, other) for name in (MEAN, SCALE))
    if largest_statistic(other) > LARGEST_STATISTIC:
        return f"they hold statistics of inputs beyond {LARGEST_STATISTIC:g}"
    if float(their_scale.max()) > LARGEST_SCALE:
        return f"they scale inputs by more than {LARGEST_SCALE:g}"
    if float(their_scale.min()) <= 0:
        return "they scale inputs by 0 or less"
    if not mean.any() and (scale == 1).all():
        return ""
    own_mean = np.abs(mean.astype(np.float64))
    deviation = 1 / np.clip(np.abs(scale.astype(np.float64)), 1 / LARGEST_STATISTIC, 1)
    allowed = MEAN_LIMIT * deviation + 2 / share * own_mean
    away = np.abs(their_mean.astype(np.float64) - mean)
    worst = int(np.argmax(away / allowed))
    if away[worst] <= allowed[worst]:
        return ""
    return f"their mean of input {worst} is {away[worst]:.2g} away, allowed are {allowed[worst]:.2g}"


def quantise(vector: Float32, how: Format) -> dict[str, Array]:
    """Return the vector as it travels. int8: v is round(127 v / m) m / 127; m is the block's largest |v|."""
    if how == "float32":
        return {"values": vector}
    if how == "float16":
        largest = np.finfo(np.float16).max
        return {"values": np.clip(vector, -largest, largest).astype("<f2")}
    blocks = np.zeros((-(-len(vector) // BLOCK), BLOCK), np.float32)
    blocks.reshape(-1)[: len(vector)] = vector
    scale = np.abs(blocks).max(axis=1) / np.float32(LARGEST)
    levels = np.rint(blocks / np.where(scale > 0, scale, 1)[:, None])
    values = np.clip(levels, -LARGEST, LARGEST).astype(np.int8).reshape(-1)[: len(vector)]
    return {"values": values, "scales": scale}


def dequantise(arrays: Mapping[str, Array], how: Format, size: int) -> Float32:
    """Invert `quantise`; raise WireError for anything but `size` finite numbers in the format agreed on."""
    values = arrays.get("values")
    if values is None or values.dtype.str != DTYPES[how] or values.shape != (size,):
        found = "nothing" if values is None else f"{values.dtype}{list(values.shape)}"
        raise WireError(f"{found} where {size} numbers of {how} were expected")
    result = values.astype(np.float32)
    if how == "int8":
        scales = arrays.get("scales")
        if scales is None or scales.dtype != np.float32 or scales.shape != (-(-size // BLOCK),):
            raise WireError("int8 weights without the scales of their blocks")
        with np.errstate(over="ignore", invalid="ignore"):  # found below
            result *= np.repeat(scales, BLOCK)[:size]
    if not np.isfinite(result).all():
        raise WireError("weights that are not finite")
    return result


class Feedback:
    """Quantises a stream of vectors; the error of one is added to the next (Seide et al. 2014)."""

    def __init__(self, how: Format, size: int) -> None:
        self.how: Format = how
        self.lost = np.zeros(size, np.float32)

    def quantise(self, vector: Float32) -> dict[str, Array]:
        # What a format cannot hold at all is not made up for: it would add up without end.
        largest = np.float32(LARGEST_SENT[self.how])
        wanted = np.clip(vector + self.lost, -largest, largest)
        arrays = quantise(wanted, self.how)
        self.lost = wanted - dequantise(arrays, self.how, len(wanted))
        return arrays
