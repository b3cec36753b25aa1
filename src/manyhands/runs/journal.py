"""The journal of what a learner remembers beside its checkpoints: files written once, and later dropped.

A replay memory is too large to be saved again and again, but what is new in it is not.
"""

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from manyhands.core import payloads, wire
from manyhands.core.arrays import Array
from manyhands.core.errors import RunError, WireError
from manyhands.core.trajectories import Layout, ReplayChunk
from manyhands.runs.checkpoint import write_atomically

LENGTH = struct.Struct("<Q")
DIGITS = 9


class Journal:
    """Chunks of replay memory in a directory, numbered in the order in which they were made."""

    def __init__(self, directory: Path, layout: Layout, schema: str) -> None:
        self.directory, self.schema = directory, schema
        shape = (1, *layout.obs_shape[1:]) if layout.stack > 1 else layout.obs_shape
        self.layout = replace(layout, obs_shape=shape)

    def append(self, piece: ReplayChunk) -> None:
        self.directory.mkdir(exist_ok=True)
        head = wire.Message("remembered", self.schema, {"number": piece.number}, {"marks": piece.marks})
        messages = [wire.encode(head)]
        for trajectory in piece.trajectories:
            messages.append(payloads.encode_trajectory(trajectory, self.schema, compress=True))
        write_atomically(self._path(piece.number), b"".join(LENGTH.pack(len(m)) + m for m in messages))

    def forget(self, needed: Array) -> None:
        """Drop chunks that lie before the rows [lanes] that are `needed`. Only once a checkpoint agrees."""
        for path, following in pairwise(self._paths()):
            if not (self._read(following).marks <= needed).all():
                break
            path.unlink()

    def read(self, until: int) -> Iterator[ReplayChunk]:
        """Yield all chunks before number `until`; later ones, written after the checkpoint, are dropped."""
        for path in self._paths():
            if int(path.stem) >= until:
                path.unlink()
            else:
                yield self._read(path, whole=True)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:0{DIGITS}d}.memory"

    def _paths(self) -> list[Path]:
        return sorted(self.directory.glob(f"{'[0-9]' * DIGITS}.memory"))

    def _read(self, path: Path, whole: bool = False) -> ReplayChunk:
        messages: list[bytes] = []
        left = path.stat().st_size
        with path.open("rb") as file:
            while left > 0 and (whole or not messages):
                (length,) = LENGTH.unpack(file.read(LENGTH.size).ljust(LENGTH.size, b"\xff"))
                left -= LENGTH.size + length
                if left < 0:
                    raise RunError(self._damaged(path, "it is cut short"))
                messages.append(file.read(length))
        try:
            head = wire.decode(messages[0], "remembered", self.schema)
            marks = np.array(head.arrays["marks"])
            made = (payloads.decode_trajectory(raw, self.layout, self.schema) for raw in messages[1:])
            return ReplayChunk(int(head.meta["number"]), marks, tuple(made))
        except (WireError, KeyError, IndexError) as error:
            raise RunError(self._damaged(path, str(error))) from error

    def _damaged(self, path: Path, how: str) -> str:
        return f"{path} is damaged ({how}); without {self.directory} the run fills its memory anew"
