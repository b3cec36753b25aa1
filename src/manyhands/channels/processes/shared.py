"""Memory that an executor shares with its worker processes: nameless, so nothing can be left behind."""

import mmap
import os
import tempfile
from math import prod

import numpy as np

from manyhands.core.arrays import Array, Float32
from manyhands.core.errors import RunError
from manyhands.core.networks import NetSpec
from manyhands.core.trajectories import Layout
from manyhands.core.weights import Beside, Weights, split_beside, weights_nbytes

ALIGNMENT = 64
WEIGHT_SLOTS = 4
"""Versions that are kept. Orders that name a version are at most two behind the newest."""
READ_TRIES = 100
ROLLOUT_SLOTS = 2
"""Slots per shard: one is learned from while the other is filled."""


def create(size: int) -> int:
    """Return a descriptor of `size` bytes of memory, freed when the last process that holds it is gone."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("manyhands")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor


class WeightBoard:
    """The last versions of the weights, written by one executor and copied by workers.

    Each slot starts with its version. The writer voids the version, writes, then states the new one;
    a reader copies and looks at the version again.
    """

    VOID = -2

    def __init__(self, memory: mmap.mmap, spec: NetSpec, beside: Beside = ()) -> None:
        self.spec, self.beside = spec, beside
        stride = _slot_size(spec, beside)
        count = spec.size + sum(size for _, size in beside)
        self.newest_cell = np.frombuffer(memory, np.int64, 1, 0)
        starts = [ALIGNMENT + slot * stride for slot in range(WEIGHT_SLOTS)]
        self.versions = [np.frombuffer(memory, np.int64, 1, start) for start in starts]
        self.numbers = [np.frombuffer(memory, np.float32, count, start + 8) for start in starts]

    @staticmethod
    def size(spec: NetSpec, beside: Beside = ()) -> int:
        return ALIGNMENT + WEIGHT_SLOTS * _slot_size(spec, beside)

    def clear(self) -> None:
        for cell in (self.newest_cell, *self.versions):
            cell[0] = self.VOID

    def write(self, weights: Weights) -> None:
        slot = weights.version % WEIGHT_SLOTS
        self.versions[slot][0] = self.VOID
        parts = [weights.vector, *(weights.beside[name] for name, _ in self.beside)]
        np.concatenate(parts, out=self.numbers[slot])
        self.versions[slot][0] = weights.version
        self.newest_cell[0] = weights.version

    def newest(self) -> int:
        return int(self.newest_cell[0])

    def read_newest(self) -> Weights:
        """Read the newest version; try again if the executor overwrote it, by several updates in one copy."""
        for _ in range(READ_TRIES):
            try:
                return self.read(self.newest())
            except RunError:
                continue
        raise RunError("the weights change faster than they can be read")

    def read(self, version: int) -> Weights:
        slot = version % WEIGHT_SLOTS
        numbers: Float32 = self.numbers[slot].copy()
        if self.versions[slot][0] != version:
            raise RunError(f"weights of version {version} are gone; the newest is {self.newest()}")
        vector, beside = split_beside(numbers, self.spec.size, self.beside)
        return Weights(version, vector, self.spec.schema, beside)


def _slot_size(spec: NetSpec, beside: Beside) -> int:
    """Return the bytes of one version: its number, the vector, and what travels beside it."""
    return _aligned(8 + weights_nbytes(spec.size, beside))


def rollout_size(layout: Layout) -> int:
    return sum(_aligned(field.nbytes) for field in layout.fields)


def rollout_arrays(memory: mmap.mmap, layout: Layout, slot: int) -> dict[str, Array]:
    """Return the arrays of one rollout as views of a shard's memory."""
    arrays: dict[str, Array] = {}
    at = slot * rollout_size(layout)
    for field in layout.fields:
        flat = np.frombuffer(memory, field.dtype, prod(field.shape), at)
        arrays[field.name] = flat.reshape(field.shape)
        at += _aligned(field.nbytes)
    return arrays


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
