"""Inputs of the fuzzer: messages that are nearly right, so that they get past the first checks.

An input is a few frames, each an envelope (1 byte: how the message is delivered), a length (4) and the
message's own bytes. Mutations work on the parts of a message, and correct its lengths and checksum after.
"""

import json
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from random import Random
from typing import Any

import msgpack
import yaml
import zstandard

PREFIX = struct.Struct("<3sBII")
FRAME = struct.Struct("<BI")
MOST_FRAMES = 6
LONGEST = 64 * 1024
"""Most bytes of one input."""
COMPRESSED = 1
ALIGNMENT = 64
SIZES = {"b1": 1, "u1": 1, "i1": 1, "i2": 2, "i4": 4, "i8": 8, "u2": 2, "u4": 4, "u8": 8}
SIZES |= {"f2": 2, "f4": 4, "f8": 8}
DTYPES = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "|O", ">f4")


@dataclass(frozen=True)
class Frame:
    """One message, and how it is delivered."""

    envelope: int
    raw: bytes


@dataclass(frozen=True)
class Parts:
    """A message taken apart without a check: its header as plain data, and the bytes of every array."""

    header: Any
    bodies: tuple[bytes, ...]
    compressed: bool = False


def pack_frames(frames: Sequence[Frame]) -> bytes:
    return b"".join(FRAME.pack(frame.envelope, len(frame.raw)) + frame.raw for frame in frames)


def unpack_frames(data: bytes) -> list[Frame]:
    """Return the frames in any bytes; a last one that is cut short is what there is of it."""
    frames: list[Frame] = []
    at = 0
    while at + FRAME.size <= len(data) and len(frames) < MOST_FRAMES:
        envelope, size = FRAME.unpack_from(data, at)
        at += FRAME.size
        frames.append(Frame(envelope, data[at : at + size]))
        at += size
    return frames


def take_apart(raw: bytes) -> Parts:
    """Return the parts of a message; raise ValueError where that is not possible."""
    try:
        _, flags, _, size = PREFIX.unpack_from(raw)
        body = raw[PREFIX.size :]
        if flags & COMPRESSED:
            body = zstandard.ZstdDecompressor().decompress(body, max_output_size=2**20)
        header = msgpack.unpackb(body[:size], strict_map_key=False, unicode_errors="surrogatepass")
        bodies, at = [], size
        for entry in header[3]:
            at += -(PREFIX.size + at) % ALIGNMENT
            length = prod(entry[2]) * SIZES[entry[1][1:]]
            bodies.append(body[at : at + length])
            at += length
        return Parts(header, tuple(bodies), bool(flags & COMPRESSED))
    except Exception as error:  # it may be anything at all
        raise ValueError("not a message") from error


def put_together(parts: Parts) -> bytes:
    """Return a message with the right lengths and checksum, whatever it says."""
    header: bytes = msgpack.packb(parts.header, unicode_errors="surrogatepass")
    return seal(header, parts.bodies, parts.compressed)


def seal(header: bytes, bodies: Sequence[bytes], compressed: bool) -> bytes:
    body = bytearray(header)
    for array in bodies:
        body += bytes(-(PREFIX.size + len(body)) % ALIGNMENT) + array
    sealed = zstandard.ZstdCompressor(level=1).compress(bytes(body)) if compressed else bytes(body)
    return PREFIX.pack(b"MH1", COMPRESSED if compressed else 0, zlib.crc32(sealed), len(header)) + sealed


def nested(depth: int, named: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if named else [value]
    return value


NASTY: tuple[Any, ...] = (
    *(0, 1, -1, 2, 7, 255, 10**6, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1),
    *(2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -0.0, 0.5, -1.5, 5e-324, 1e-300, 1e15, 1e300, 1.7e308, float("inf"), -float("inf"), float("nan")),
    *(None, True, False, "", b"", b"\xff\x00" * 20, [], {}, [[]], [{}], {"": 0}),
    *("0", "nan", "1e999", "-1", "true", "é" * 120, "x" * 300, "\U0001f600" * 70, "y" * 5000),
    *("\x1b[2J\x1b]0;owned\x07", "a\nmanyhands: forged\r\n", "\u2028\u202eevil\u0000", "\ud800"),
    *(
        "../../etc",
        "os:system",
        "CartPole-v1",
        "[/red]",
        "[link=x",
        "manyhands.player.h.1",
        "manyhands.executor.e.1",
        "%s{0}",
    ),
    *([0] * 300, ["z"] * 50, list(range(9)), {str(i): i for i in range(40)}),
    *(nested(7, True), nested(9, False), nested(60, True), nested(400, False)),
    *(msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 2)),
)
YAML_WORDS = (
    *("&a ", "*a", "<<: *a", "!!python/object/apply:os.system [id]", "!!binary x", "!!set {a}", "!!omap []"),
    *("1e999", ".nan", ".inf", "-.inf", "0x_", "2021-13-45", "2001-01-01", "1:60:60", "0o7", "~", "? a\n: b"),
    *(
        "\n- ",
        "{",
        "[",
        "]",
        "}",
        ": ",
        "|\n",
        ">\n",
        "---\n",
        "...\n",
        "'",
        '"',
        "\\x1b",
        "#",
        "\t",
        "9" * 30,
    ),
)


class Mutator:
    """Makes a new input out of one that the fuzzer found worth keeping."""

    def __init__(self, seeds: Sequence[Sequence[Frame]], of_text: bool = False) -> None:
        """`of_text`: frames hold YAML, not messages."""
        self.pool = [frame for frames in seeds for frame in frames]
        self.of_text = of_text

    def __call__(self, data: bytes, most: int, seed: int) -> bytes:
        rng = Random(seed)
        frames = unpack_frames(data)
        for _ in range(1 + (rng.random() < 0.4) + (rng.random() < 0.2)):
            self._change(frames, rng)
        made = pack_frames(frames[:MOST_FRAMES])
        while len(made) > most and len(frames) > 1:
            frames.pop()
            made = pack_frames(frames)
        return made[:most]

    def _change(self, frames: list[Frame], rng: Random) -> None:
        if not frames or rng.random() < 0.12:
            frames.insert(rng.randint(0, len(frames)), rng.choice(self.pool))
            return
        at = rng.randrange(len(frames))
        frame = frames[at]
        match rng.random():
            case share if share < 0.05:
                del frames[at]
            case share if share < 0.10:
                frames.insert(at, frame)
            case share if share < 0.13:
                rng.shuffle(frames)
            case share if share < 0.18:
                frames[at] = replace(frame, envelope=rng.randrange(256))
            case share if share < 0.23:
                frames[at] = replace(frame, raw=change_bytes(frame.raw, rng))
            case _:
                change = self._text if self.of_text else self._message
                frames[at] = replace(frame, raw=change(frame.raw, rng))

    def _text(self, raw: bytes, rng: Random) -> bytes:
        if rng.random() < 0.5:
            with suppress(Exception):  # of what is no YAML (any more), only the letters can be changed
                plain = change_value(yaml.safe_load(raw), rng)
                return yaml.safe_dump(plain).encode()
        at = rng.randint(0, len(raw))
        end = at + rng.choice((0, 0, 1, 4))
        return raw[:at] + rng.choice(YAML_WORDS).encode() + raw[end:]

    def _message(self, raw: bytes, rng: Random) -> bytes:
        try:
            parts = take_apart(raw)
        except ValueError:
            return rng.choice(self.pool).raw
        if rng.random() < 0.08:  # a header that is no longer msgpack, or not the same
            header = change_bytes(msgpack.packb(parts.header, unicode_errors="surrogatepass"), rng)
            return seal(header, parts.bodies, parts.compressed)
        for _ in range(1 + (rng.random() < 0.3)):
            parts = self._part(parts, rng)
        try:
            return put_together(parts)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return raw

    def _part(self, parts: Parts, rng: Random) -> Parts:
        known = parts.header if isinstance(parts.header, list) else [parts.header]
        kind, schema, meta, table = (*known, *[None] * 4)[:4]
        match rng.random():
            case share if share < 0.04:
                return replace(parts, compressed=not parts.compressed)
            case share if share < 0.08:
                return replace(parts, header=change_value([kind, schema, meta, table], rng))
            case share if share < 0.12:
                other = rng.choice(self.pool).raw
                with suppress(ValueError):
                    kind = take_apart(other).header[0]
                return replace(parts, header=[kind, schema, meta, table])
            case share if share < 0.32 and parts.bodies:
                with suppress(ValueError, TypeError, IndexError, KeyError, OverflowError):
                    return change_array(replace(parts, header=[kind, schema, meta, list(table)]), rng)
        return replace(parts, header=[kind, schema, change_value(meta, rng), table])


def change_bytes(raw: bytes, rng: Random) -> bytes:
    """Change some of the bytes, leave them out, or repeat them."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, size = rng.randint(0, len(raw)), rng.choice((1, 1, 2, 4, 8, 64))
        match rng.randrange(5):
            case 0 if raw:
                at = min(at, len(raw) - 1)
                raw = raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]
            case 1:
                raw = (
                    raw[:at]
                    + rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))
                    + raw[at + size :]
                )
            case 2:
                raw = raw[:at] + rng.randbytes(size) + raw[at:]
            case 3:
                raw = raw[:at] + raw[at + size :]
            case _:
                raw = raw[: at + size] + raw[at:]
    return raw


def change_array(parts: Parts, rng: Random) -> Parts:
    """Change an array's values, type or shape (with the bytes that it needs) or name; repeat or drop it."""
    kind, schema, meta, table = parts.header
    bodies = list(parts.bodies)
    at = rng.randrange(len(bodies))
    name, dtype, shape = table[at]
    size = SIZES.get(str(dtype)[1:], 1)
    match rng.randrange(7):
        case 0 | 1 if bodies[at]:
            one = rng.randrange(0, len(bodies[at]), size)
            bodies[at] = bodies[at][:one] + _nasty_number(dtype, size, rng) + bodies[at][one + size :]
        case 2:
            dtype = rng.choice(DTYPES)
            bodies[at] = _fit(bodies[at], prod(shape) * SIZES.get(dtype[1:], 1))
        case 3:
            shape = list(shape)
            if shape and rng.random() < 0.7:
                shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2, 3, 5, 2**20, 2**62, -1))
            else:
                shape = rng.choice(([], [0], [1, *shape], [*shape, 1], shape[::-1], [1] * 9, [0, 2**28]))
            bodies[at] = _fit(bodies[at], max(0, prod(shape) * size))
        case 4:
            names = ("vector", "values", "scales", "beside.input_mean", "obs", "shard0.obs")
            name = rng.choice((*names, "", "x" * 300, "\x1b[2J"))
        case 5:
            del table[at], bodies[at]
            return Parts([kind, schema, meta, table], tuple(bodies), parts.compressed)
        case _:
            bodies.append(bodies[at])
            table.append([f"{name}2", dtype, shape])
    table[at] = [name, dtype, shape]
    return Parts([kind, schema, meta, table], tuple(bodies), parts.compressed)


def _fit(body: bytes, size: int) -> bytes:
    """Return `body` cut or filled up to `size` bytes, which an earlier change may have made absurd."""
    size = min(size, LONGEST)
    return (body + bytes(max(0, size - len(body))))[:size]


def _nasty_number(dtype: str, size: int, rng: Random) -> bytes:
    if str(dtype)[1:2] == "f":
        code = {2: "<e", 4: "<f", 8: "<d"}[size]
        number = rng.choice((float("nan"), float("inf"), -float("inf"), 6e4, -1.0, 0.0, 3e38, 1e300))
        try:
            return struct.pack(code, number)
        except OverflowError:
            return struct.pack(code, 1.0)
    return rng.choice((b"\xff", b"\x00", b"\x01", b"\x80", b"\x7f")) * size


def change_value(value: Any, rng: Random) -> Any:
    """Return a copy of plain data in which one value, anywhere inside, is another."""
    if isinstance(value, dict) and value and rng.random() < 0.93:
        key = rng.choice(list(value))
        match rng.random():
            case share if share < 0.04:
                return {name: item for name, item in value.items() if name != key}
            case share if share < 0.08:
                return {**value, rng.choice(("x", "", "kwargs", "id", 5, "\x1b[31m")): rng.choice(NASTY)}
            case share if share < 0.12:
                return {**value, key: rng.choice(list(value.values()))}
        return {**value, key: change_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        match rng.random():
            case share if share < 0.06:
                return value[:at] + value[at + 1 :]
            case share if share < 0.12:
                return [*value[: at + 1], *value[at:]]
            case share if share < 0.14:
                return value * 20
        return [*value[:at], change_value(value[at], rng), *value[at + 1 :]]
    if isinstance(value, str) and value[:1] == "{" and rng.random() < 0.9:
        with suppress(ValueError, TypeError, RecursionError):
            return json.dumps(change_value(json.loads(value), rng))
    if isinstance(value, str) and "\n" in value and rng.random() < 0.8:
        with suppress(Exception):  # a text of several lines is YAML, or nothing
            return yaml.safe_dump(change_value(yaml.safe_load(value), rng))
    if rng.random() < 0.25:
        return _near(value, rng)
    return rng.choice(NASTY)


def _near(value: Any, rng: Random) -> Any:
    """Return another value that looks like it."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return rng.choice((value + 1, value - 1, -value, value * 2, float(value), str(value), [value]))
    if isinstance(value, str):
        return rng.choice((value + "\x1b[1m", value[:-1], value * 2, value.upper(), [value], value[::-1]))
    return [value]
