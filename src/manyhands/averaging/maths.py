"""Averaging and quantising vectors of weights: pure functions."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from manyhands.errors import WireError
from manyhands.experience import Array
from manyhands.policy import Float32

Format = Literal["float32", "float16", "int8"]
FORMATS: tuple[Format, ...] = ("float32", "float16", "int8")
BLOCK = 1024
"""Numbers that share a scale in int8: few enough that an outlier spoils little, and scales cost little."""
LARGEST = 127
DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "|i1"}


def average(mine: Float32, other: Float32, share: float) -> Float32:
    """(1 - share) mine + share other."""
    result: Float32 = np.float32(1 - share) * mine + np.float32(share) * other
    return result


def within(mine: Float32, moved: Float32, limit: float) -> Float32:
    """`moved`, or the point on the way to it that is `limit` away from `mine`; 0 is no limit."""
    way = moved - mine
    length = float(np.sqrt(np.square(way, dtype=np.float64).sum()))
    if not limit or length <= limit:
        return moved
    result: Float32 = mine + way * np.float32(limit / length)
    return result


def quantise(vector: Float32, how: Format) -> dict[str, Array]:
    """The vector as it travels. int8: v is round(127 v / m) times m / 127, with m the block's largest |v|."""
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
    """The inverse. Raises WireError for anything but `size` finite numbers in the format agreed on."""
    values = arrays.get("values")
    if values is None or values.dtype.str != DTYPES[how] or values.shape != (size,):
        found = "nothing" if values is None else f"{values.dtype}{list(values.shape)}"
        raise WireError(f"{found} where {size} numbers of {how} were expected")
    result = values.astype(np.float32)
    if how == "int8":
        scales = arrays.get("scales")
        if scales is None or scales.dtype != np.float32 or scales.shape != (-(-size // BLOCK),):
            raise WireError("int8 weights without the scales of their blocks")
        result *= np.repeat(scales, BLOCK)[:size]
    if not np.isfinite(result).all():
        raise WireError("weights that are not finite")
    return result


class Feedback:
    """Quantises a stream of vectors; what one loses is added to the next (Seide et al. 2014)."""

    def __init__(self, how: Format, size: int) -> None:
        self.how: Format = how
        self.lost = np.zeros(size, np.float32)

    def quantise(self, vector: Float32) -> dict[str, Array]:
        wanted = vector + self.lost
        arrays = quantise(wanted, self.how)
        self.lost = wanted - dequantise(arrays, self.how, len(wanted))
        return arrays
