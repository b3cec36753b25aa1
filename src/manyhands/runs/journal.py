"""What a learner remembers, beside its checkpoints: files that are written once and dropped when forgotten.

A replay memory is too large to be saved again and again, but what is new in it is not.
"""

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from manyhands import wire
from manyhands.errors import RunError, WireError
from manyhands.experience import Layout, Remembered
from manyhands.runs.checkpoint import write_atomically

LENGTH = struct.Struct("<Q")


class Journal:
    """Pieces of memory in a directory, numbered in the order in which they were made."""

    def __init__(self, directory: Path, layout: Layout, schema: str) -> None:
        self.directory, self.schema = directory, schema
        shape = (1, *layout.obs_shape[1:]) if layout.stack > 1 else layout.obs_shape
        self.layout = replace(layout, obs_shape=shape)

    def append(self, piece: Remembered) -> None:
        """Saves a piece and drops those whose rows are all forgotten."""
        self.directory.mkdir(exist_ok=True)
        head = wire.Message("remembered", self.schema, {"number": piece.number}, {"marks": piece.marks})
        messages = [wire.encode(head)]
        for trajectory in piece.trajectories:
            messages.append(wire.encode_trajectory(trajectory, self.schema, compress=True))
        write_atomically(self._path(piece.number), b"".join(LENGTH.pack(len(m)) + m for m in messages))
        paths = self._paths()
        for path, following in pairwise(paths):
            if not (self._read(following).marks <= piece.needed).all():
                break
            path.unlink()

    def read(self, until: int) -> Iterator[Remembered]:
        """All pieces before number `until`; later ones were written after the checkpoint and are dropped."""
        for path in self._paths():
            if int(path.stem) >= until:
                path.unlink()
            else:
                yield self._read(path, whole=True)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:09d}.memory"

    def _paths(self) -> list[Path]:
        return sorted(self.directory.glob("*.memory"))

    def _read(self, path: Path, whole: bool = False) -> Remembered:
        messages = []
        with path.open("rb") as file:
            while prefix := file.read(LENGTH.size):
                messages.append(file.read(LENGTH.unpack(prefix.ljust(LENGTH.size, b"\0"))[0]))
                if not whole:
                    break
        try:
            head = wire.decode(messages[0], "remembered", self.schema)
            marks = np.array(head.arrays["marks"])
            made = (wire.decode_trajectory(raw, self.layout, self.schema) for raw in messages[1:])
            return Remembered(int(head.meta["number"]), marks, marks, tuple(made))
        except (WireError, KeyError, IndexError) as error:
            raise RunError(f"{path} is damaged: {error}") from error
