"""Messages as bytes. Nothing here is ever unpickled, and everything is checked before it is believed.

    b"MH1" + flags (1 byte) + body checksum (crc32, 4) + header length (4), little-endian
    header: msgpack of [kind, schema, meta, [[name, dtype, shape], ...]]
    body:   the arrays' raw little-endian bytes, each starting at a multiple of 64

Arrays are decoded as read-only views of the received bytes, without copying. With the flag COMPRESSED the
body (header included) is one zstd frame, whose size is checked before it is unpacked.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import msgpack
import numpy as np

from manyhands.core.arrays import Array
from manyhands.core.errors import WireError

MAGIC = b"MH1"
COMPRESSED = 1
ALIGNMENT = 64
MAX_MESSAGE = 256 * 2**20
MAX_HEADER = 2**20
MAX_ARRAYS = 256
MAX_DIMENSIONS = 8
MAX_META_DEPTH = 8
MAX_COUNT = 2**62
"""The largest count of anything: an int64 holds the next number as well."""
DTYPES = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
PREFIX = struct.Struct("<3sBII")


@dataclass(frozen=True)
class Message:
    """A decoded message: what kind, of which network structure, small facts, named arrays."""

    kind: str
    schema: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


def encode(message: Message, compress: bool = False) -> bytes:
    """Encode the message; raise WireError when it breaks a limit that `decode` would hold against it."""
    buffers: list[memoryview] = []
    table: list[list[Any]] = []
    if len(message.arrays) > MAX_ARRAYS:
        raise WireError(f"{len(message.arrays)} arrays in one message, at most {MAX_ARRAYS}")
    for name, array in message.arrays.items():
        dtype = array.dtype.newbyteorder("<").str
        if dtype not in DTYPES:
            raise WireError(f"array {name!r} has dtype {array.dtype}; allowed are {', '.join(DTYPES)}")
        flat = np.ascontiguousarray(array, dtype=dtype)
        table.append([name, dtype, list(array.shape)])
        _array_entry(table[-1])
        buffers.append(flat.reshape(-1).view(np.uint8).data)
    _check_meta(message.meta, MAX_META_DEPTH)
    try:
        header = msgpack.packb([message.kind, message.schema, dict(message.meta), table])
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"a {message.kind!r} message cannot be written: {error}") from error
    if len(header) > MAX_HEADER:
        raise WireError(f"a header of {len(header)} bytes, at most {MAX_HEADER}")
    parts: list[bytes | memoryview] = [header]
    size = len(header)
    for buffer in buffers:
        gap = -(PREFIX.size + size) % ALIGNMENT
        parts += [bytes(gap), buffer]
        size += gap + len(buffer)
    if size > MAX_MESSAGE:
        raise WireError(f"a message of {size} bytes, at most {MAX_MESSAGE}")
    body = b"".join(parts)
    if compress:
        import zstandard

        body = zstandard.ZstdCompressor(level=1).compress(body)
    flags = COMPRESSED if compress else 0
    return PREFIX.pack(MAGIC, flags, zlib.crc32(body), len(header)) + body


def decode(
    raw: bytes | memoryview, kind: str | None = None, schema: str | None = None, unpacked: int = 0
) -> Message:
    """Decode the message in `raw`; raise WireError, and nothing else, for anything that is not one.

    A compressed one may unpack to `unpacked` bytes at most: what this message can be, not what any could.
    """
    if len(raw) < PREFIX.size:
        raise WireError(f"{len(raw)} bytes are too short for a message")
    if len(raw) > MAX_MESSAGE + PREFIX.size:
        raise WireError(f"a message of {len(raw)} bytes, at most {MAX_MESSAGE}")
    magic, flags, checksum, header_size = PREFIX.unpack_from(raw)
    if magic != MAGIC:
        raise WireError("not a manyhands message (or of another protocol version)")
    if flags & ~COMPRESSED:
        raise WireError(f"unknown flags {flags}")
    view = memoryview(raw).toreadonly()
    if zlib.crc32(view[PREFIX.size :]) != checksum:
        raise WireError("checksum mismatch: the message was damaged on its way")
    if flags & COMPRESSED:
        # The prefix stays in front, so that the arrays keep their alignment.
        view = memoryview(bytes(PREFIX.size) + _decompress(view[PREFIX.size :], unpacked))
    if header_size > MAX_HEADER or PREFIX.size + header_size > len(view):
        raise WireError(f"a header of {header_size} bytes does not fit")
    message_kind, message_schema, meta, table = _header(view[PREFIX.size : PREFIX.size + header_size])
    if kind is not None and message_kind != kind:
        raise WireError(f"a message of kind {message_kind!r} where {kind!r} was expected")
    if schema is not None and message_schema != schema:
        raise WireError(f"network structure {message_schema} where {schema} was expected")
    arrays: dict[str, Array] = {}
    at = PREFIX.size + header_size
    for entry in table:
        name, dtype, shape = _array_entry(entry)
        if name in arrays:
            raise WireError(f"array {name!r} twice")
        at += -at % ALIGNMENT
        size = prod(shape) * np.dtype(dtype).itemsize
        if at + size > len(view):
            raise WireError(f"array {name!r} wants {size} bytes, past the message's end")
        arrays[name] = np.frombuffer(view[at : at + size], dtype).reshape(shape)
        if dtype == "|b1" and size and arrays[name].view(np.uint8).max() > 1:
            raise WireError(f"array {name!r} holds bytes that are neither true nor false")
        at += size
    if at != len(view):
        raise WireError(f"{len(view) - at} bytes after the message's end")
    return Message(message_kind, message_schema, meta, arrays)


def _decompress(frame: memoryview, limit: int) -> bytes:
    if not limit:
        raise WireError("a compressed message where none is expected")
    import zstandard

    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= min(limit, MAX_MESSAGE):
            raise WireError(f"a compressed message of {size} bytes, where at most {limit} are expected")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
    except zstandard.ZstdError as error:
        raise WireError(f"cannot decompress: {error}") from error


def _header(raw: memoryview) -> tuple[str, str, dict[str, Any], list[Any]]:
    try:
        header = msgpack.unpackb(raw, raw=False, strict_map_key=True, use_list=True)
    except Exception as error:  # msgpack raises many kinds; all mean the same here
        raise WireError(f"unreadable header: {type(error).__name__}") from error
    match header:
        case [str() as kind, str() as schema, dict() as meta, list() as table]:
            if len(table) > MAX_ARRAYS:
                raise WireError(f"{len(table)} arrays in one message, at most {MAX_ARRAYS}")
            _check_meta(meta, MAX_META_DEPTH)
            return kind, schema, meta, table
    raise WireError("the header is not [kind, schema, meta, arrays]")


def _check_meta(value: Any, depth: int) -> None:
    if depth == 0:
        raise WireError(f"facts nested deeper than {MAX_META_DEPTH}")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise WireError("a fact whose name is not text")
            _check_meta(item, depth - 1)
    elif type(value) in (list, tuple):  # not msgpack's ExtType, which is a tuple as well
        for item in value:
            _check_meta(item, depth - 1)
    elif not (value is None or isinstance(value, bool | int | float | str | bytes)):
        raise WireError(f"a fact of type {type(value).__name__}")


def _array_entry(entry: Any) -> tuple[str, str, tuple[int, ...]]:
    match entry:
        case [str() as name, str() as dtype, list() as shape]:
            if dtype not in DTYPES:
                raise WireError(f"array {name!r} has dtype {dtype!r}")
            sides_ok = all(type(side) is int and 0 <= side <= MAX_MESSAGE for side in shape)
            # Sides of 0 count as 1: numpy refuses an empty array whose other sides overflow.
            if len(shape) > MAX_DIMENSIONS or not sides_ok or prod(side or 1 for side in shape) > MAX_MESSAGE:
                raise WireError(f"array {name!r} has shape {shape}")
            return name, dtype, tuple(shape)
    raise WireError("an array's entry is not [name, dtype, shape]")
