"""Round trips, limits, and a fuzzer: nothing that arrives may raise anything but WireError."""

import random
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from samples import DISCRETE, GAUSSIAN, MULTI, random_statistics, random_trajectory, random_vector, small_spec

from manyhands.core import payloads, wire
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import UsageError, WireError
from manyhands.core.events import Fault
from manyhands.core.lanes import LaneState, ShardState
from manyhands.core.networks import NetSpec
from manyhands.core.orders import EvalResult, Order, Task
from manyhands.core.trajectories import Layout, Trajectory
from manyhands.core.weights import Weights
from manyhands.core.wire import Message, decode, encode

PREFIX = struct.Struct("<3sBII")


def forge(header: Any, tail: bytes | None = None, **prefix: Any) -> bytes:
    """A message with a right checksum around any header at all; arrays' bytes follow at the next 64."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    gap = bytes(-(PREFIX.size + len(packed)) % wire.ALIGNMENT)
    body = prefix.get("body", packed if tail is None else packed + gap + tail)
    return (
        PREFIX.pack(
            prefix.get("magic", b"MH1"),
            prefix.get("flags", 0),
            zlib.crc32(body),
            prefix.get("header_size", len(packed)),
        )
        + body
    )


def with_checksum(raw: bytes) -> bytes:
    return raw[:4] + struct.pack("<I", zlib.crc32(raw[PREFIX.size :])) + raw[8:]


def random_array(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Any bits at all, NaNs and infinities included; booleans are 0 or 1."""
    rng = np.random.default_rng(seed)
    if dtype == "|b1":
        return np.asarray(rng.random(shape) < 0.5)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(shape)


arrays = st.builds(
    random_array,
    st.sampled_from(wire.DTYPES),
    st.lists(st.integers(0, 4), max_size=5).map(tuple),
    st.integers(0, 2**32),
)
facts = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=10)
    | st.binary(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
messages = st.builds(
    Message,
    st.text(max_size=8),
    st.text(max_size=16),
    st.dictionaries(st.text(max_size=8), facts, max_size=4),
    st.dictionaries(st.text(max_size=8), arrays, max_size=5),
)


def same_arrays(left: Any, right: Any) -> bool:
    return list(left) == list(right) and all(
        (left[n].dtype, left[n].shape, left[n].tobytes())
        == (right[n].dtype, right[n].shape, right[n].tobytes())
        for n in left
    )


@given(messages, st.booleans())
def test_messages_come_back_as_they_were_sent(message: Message, compress: bool) -> None:
    back = decode(encode(message, compress), unpacked=wire.MAX_MESSAGE)
    assert (back.kind, back.schema, dict(back.meta)) == (message.kind, message.schema, dict(message.meta))
    assert same_arrays(back.arrays, message.arrays)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (1, 1, 1, 1, 1, 1, 1, 2)])
@pytest.mark.parametrize("dtype", wire.DTYPES)
def test_every_dtype_and_shape_comes_back(dtype: str, shape: tuple[int, ...], compress: bool) -> None:
    sent = {
        "a": random_array(dtype, shape, 1),
        "b": random_array("|u1", (3,), 2),
        "c": random_array(dtype, shape, 3),
    }
    assert same_arrays(
        decode(encode(Message("k", arrays=sent), compress), unpacked=wire.MAX_MESSAGE).arrays, sent
    )


def test_arrays_that_lie_otherwise_arrive_contiguous_and_little_endian() -> None:
    grid = np.arange(24, dtype=np.int32).reshape(4, 6)
    sent = {
        "transposed": grid.T,
        "strided": grid[::2, 1::3],
        "reversed": grid[::-1],
        "big endian": grid.astype(">i4"),
        "fortran": np.asfortranarray(grid),
    }
    back = decode(encode(Message("k", arrays=sent))).arrays
    for name, array in sent.items():
        assert np.array_equal(back[name], array), name
        assert back[name].dtype == np.dtype("<i4")
        assert back[name].flags.c_contiguous


def start_of(array: np.ndarray) -> int:
    """The address of the buffer that a decoded array looks into."""
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return int(np.frombuffer(base.obj, np.uint8).ctypes.data)


@given(messages, st.booleans())
def test_decoded_arrays_start_at_multiples_of_64(message: Message, compress: bool) -> None:
    raw = encode(message, compress)
    for array in decode(raw, unpacked=wire.MAX_MESSAGE).arrays.values():
        if array.size:
            start = start_of(array)
            assert (array.ctypes.data - start) % 64 == 0
            assert compress or start == np.frombuffer(raw, np.uint8).ctypes.data


def test_decoded_arrays_are_read_only_views_of_the_received_bytes() -> None:
    raw = encode(Message("k", arrays={"a": np.arange(100.0), "b": np.ones((3, 4), np.float32)}))
    for buffer in (raw, memoryview(raw), bytearray(raw)):
        for array in decode(buffer).arrays.values():
            assert np.shares_memory(array, np.frombuffer(buffer, np.uint8))
            assert not array.flags.writeable


def test_compression_makes_images_smaller() -> None:
    image = Message("k", arrays={"obs": np.tile(np.arange(84, dtype=np.uint8), (84, 4))})
    assert len(encode(image, compress=True)) < len(encode(image)) / 20


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


BEYOND_LIMITS = {
    "too many arrays": Message("k", arrays={f"a{i}": np.zeros(1) for i in range(wire.MAX_ARRAYS + 1)}),
    "header too large": Message("k", meta={"text": "x" * wire.MAX_HEADER}),
    "message too large": Message("k", arrays={"a": np.zeros(wire.MAX_MESSAGE + 1, np.uint8)}),
    "complex": Message("k", arrays={"a": np.zeros(2, np.complex64)}),
    "objects": Message("k", arrays={"a": np.array([object()])}),
    "text array": Message("k", arrays={"a": np.array(["text"])}),
    "dates": Message("k", arrays={"a": np.zeros(2, "datetime64[s]")}),
    "records": Message("k", arrays={"a": np.zeros(2, [("x", "<f4")])}),
    "fact of an unknown type": Message("k", meta={"a": object()}),
    "fact that is an array": Message("k", meta={"a": np.zeros(2)}),
    "number past 64 bits": Message("k", meta={"a": 2**70}),
    "half a character": Message("k", meta={"a": "\ud800"}),
    "facts too deep": Message("k", meta={"a": nested(wire.MAX_META_DEPTH)}),
    "facts without end": Message("k", meta={"a": nested(2000)}),
    "fact named by a number": Message("k", meta={1: 2}),  # type: ignore[dict-item]
    "too many dimensions": Message("k", arrays={"a": np.zeros((1,) * (wire.MAX_DIMENSIONS + 1))}),
    "side too long": Message("k", arrays={"a": np.zeros((0, wire.MAX_MESSAGE + 1), np.uint8)}),
}


@pytest.mark.parametrize("what", BEYOND_LIMITS)
def test_what_decode_would_refuse_is_not_encoded(what: str) -> None:
    with pytest.raises(WireError):
        encode(BEYOND_LIMITS[what])


def test_facts_as_deep_as_the_limit_are_allowed() -> None:
    meta = {"a": nested(wire.MAX_META_DEPTH - 2)}
    assert decode(encode(Message("k", meta=meta))).meta == meta
    with pytest.raises(WireError, match="nested"):
        decode(forge(["k", "", {"a": nested(wire.MAX_META_DEPTH - 1)}, []]))


FORGED = {
    "nothing": b"",
    "less than a prefix": b"MH1" + bytes(5),
    "another protocol": forge(["k", "", {}, []], magic=b"MH2"),
    "unknown flags": forge(["k", "", {}, []], flags=2),
    "wrong checksum": forge(["k", "", {}, []])[:-1] + b"\x00",
    "bytes after the end": forge(
        ["k", "", {}, []], body=msgpack.packb(["k", "", {}, []]) + b"x", header_size=5
    ),
    "header longer than the message": forge(["k", "", {}, []], header_size=100),
    "header longer than allowed": forge(["k", "", {"a": "x" * wire.MAX_HEADER}, []]),
    "no header": forge(b""),
    "header of two values": forge(b"\x01\x02"),
    "header that is a number": forge(7),
    "header of three": forge(["k", "", {}]),
    "kind that is a number": forge([1, "", {}, []]),
    "kind that is no text": forge(b"\x94\xa2\xff\xfe\xa0\x80\x90"),
    "facts that are a list": forge(["k", "", [], []]),
    "fact named by a number": forge(["k", "", {1: 2}, []]),
    "inner fact named by bytes": forge(["k", "", {"a": {b"b": 1}}, []]),
    "extension type": forge(["k", "", {"a": msgpack.ExtType(5, b"x")}, []]),
    "timestamp": forge(["k", "", {"a": msgpack.Timestamp(5)}, []]),
    "header nested without end": forge(b"\x94\xa1k\xa0\x81\xa1a" + b"\x91" * 30000 + b"\xc0\x90"),
    "too many arrays": forge(["k", "", {}, [[f"a{i}", "|u1", [0]] for i in range(wire.MAX_ARRAYS + 1)]], b""),
    "array entry of two": forge(["k", "", {}, [["a", "<f4"]]]),
    "array entry that is a number": forge(["k", "", {}, [1]]),
    "array named by a number": forge(["k", "", {}, [[1, "<f4", []]]], bytes(4)),
    "shape that is a number": forge(["k", "", {}, [["a", "<f4", 1]]], bytes(4)),
    "fractional side": forge(["k", "", {}, [["a", "<f4", [1.0]]]], bytes(4)),
    "boolean side": forge(["k", "", {}, [["a", "<f4", [True]]]], bytes(4)),
    "negative side": forge(["k", "", {}, [["a", "<f4", [-1]]]], bytes(4)),
    "two negative sides": forge(["k", "", {}, [["a", "<f4", [-1, -1]]]], bytes(4)),
    "huge side": forge(["k", "", {}, [["a", "<f4", [2**63]]]], bytes(4)),
    "huge product": forge(["k", "", {}, [["a", "<f4", [2**20, 2**20, 2**20]]]], bytes(4)),
    "nothing times huge": forge(["k", "", {}, [["a", "<f8", [0, 2**28, 2**28, 2**28]]]], b""),
    "too many dimensions": forge(["k", "", {}, [["a", "<f4", [1] * 9]]], bytes(4)),
    "array past the end": forge(["k", "", {}, [["a", "<f4", [2]]]], bytes(4)),
    "array twice": forge(["k", "", {}, [["a", "|u1", [0]], ["a", "|u1", [0]]]], b""),
    "boolean that is 2": forge(["k", "", {}, [["a", "|b1", [1]]]], b"\x02"),
    "bytes after the arrays": forge(["k", "", {}, [["a", "|u1", [1]]]], b"\x02\x03"),
    **{
        f"dtype {dtype}": forge(["k", "", {}, [["a", dtype, [1]]]], bytes(16))
        for dtype in ("O", "|O", "<c8", ">f4", "f4", "<U4", "|S4", "<M8[s]", "|V4", "", "<f16", "no such")
    },
    "not zstd": forge(["k", "", {}, []], flags=wire.COMPRESSED),
    "empty frame": forge(b"", flags=wire.COMPRESSED),
    "frame of unknown size": forge(
        b"", flags=1, body=zstandard.ZstdCompressor(write_content_size=False).compress(bytes(50))
    ),
    "frame that claims an exabyte": forge(
        b"", flags=1, body=b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**60)
    ),
    "frame that claims more than allowed": forge(
        b"", flags=1, body=b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", wire.MAX_MESSAGE + 1)
    ),
    "frame cut short": forge(
        b"", flags=1, body=zstandard.ZstdCompressor().compress(bytes(range(256)) * 20)[:-5], header_size=5
    ),
    "skippable frame": forge(b"", flags=1, body=struct.pack("<II", 0x184D2A50, 4) + bytes(4)),
}


def test_a_message_unpacks_to_no_more_than_it_may_be() -> None:
    """Eight kilobytes of zstd can hold 250 megabytes of zeros."""
    bomb = encode(Message("trajectory", SPEC.schema, {}, {"obs": np.zeros(250_000_000, np.uint8)}), True)
    assert len(bomb) < 50_000
    with pytest.raises(WireError, match="where none is expected"):
        decode(bomb)
    began = time.perf_counter()
    for _ in range(35):
        with pytest.raises(WireError, match="at most"):
            payloads.decode_trajectory(bomb, LAYOUT, SPEC.schema)
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize("what", FORGED)
def test_forged_messages_are_refused(what: str) -> None:
    with pytest.raises(WireError):
        decode(FORGED[what])


def test_a_message_past_the_size_limit_is_refused_unread() -> None:
    with pytest.raises(WireError, match="at most"):
        decode(bytes(wire.MAX_MESSAGE + PREFIX.size + 1))


def test_the_smallest_forged_message_is_a_message() -> None:
    """The forgery itself is sound: only what it is asked to break is broken."""
    message = decode(forge(["k", "s", {"a": 1}, [["a", "<f4", [1]]]], bytes(4)))
    assert message.arrays["a"].tolist() == [0.0]


def test_a_wrong_kind_and_a_wrong_schema_are_refused_by_name() -> None:
    raw = encode(Message("order", "abc"))
    assert decode(raw, "order", "abc").kind == "order"
    with pytest.raises(WireError, match=r"order.*weights"):
        decode(raw, "weights")
    with pytest.raises(WireError, match=r"abc.*def"):
        decode(raw, "order", "def")


SPEC = small_spec()


@given(st.integers(0, wire.MAX_COUNT - 1), st.integers(0, 2**32))
def test_weights_come_back_as_they_were_sent(version: int, seed: int) -> None:
    weights = Weights(version, random_vector(SPEC, seed), SPEC.schema)
    back = payloads.decode_weights(payloads.encode_weights(weights), SPEC)
    assert (back.version, back.schema) == (version, SPEC.schema)
    assert np.array_equal(back.vector, weights.vector)


NORMALISED = small_spec(normalise=True)


def with_statistics(version: int = 1, **arrays: np.ndarray) -> bytes:
    """Weights of a network that scales its inputs, with some of its statistics replaced."""
    beside = {**random_statistics(NORMALISED), **arrays}
    return payloads.encode_weights(Weights(version, random_vector(NORMALISED), NORMALISED.schema, beside))


def test_statistics_of_inputs_come_back_beside_the_weights() -> None:
    back = payloads.decode_weights(with_statistics(), NORMALISED, NORMALISED.statistics)
    assert back.vector.shape == (SPEC.size,)
    assert list(back.beside) == ["input_mean", "input_scale"]
    for name, array in random_statistics(NORMALISED).items():
        assert np.array_equal(back.beside[name], array)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (with_statistics(input_mean=np.zeros(3, np.float32)), "beside.input_mean is not 4 finite float32"),
        (with_statistics(input_mean=np.zeros(4)), "beside.input_mean is not 4 finite float32"),
        (with_statistics(input_scale=np.full(4, np.nan, np.float32)), "beside.input_scale is not 4 finite"),
        (with_statistics(more=np.zeros(4, np.float32)), "weights with .*beside.more beside them"),
        (
            payloads.encode_weights(Weights(1, random_vector(NORMALISED), NORMALISED.schema)),
            "weights with nothing beside them",
        ),
    ],
)
def test_wrong_statistics_of_inputs_are_refused_by_name(raw: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        payloads.decode_weights(raw, NORMALISED, NORMALISED.statistics)


def test_a_task_whose_statistics_do_not_travel_is_refused() -> None:
    good = replace(TASK, spec=NORMALISED, beside=NORMALISED.statistics)
    assert Task.from_message(wire.decode(encode(good.to_message()))) == good
    for beside in ((), NORMALISED.statistics[:1], (("input_mean", 4), ("input_scale", 5))):
        bad = replace(good, beside=beside).to_message()
        with pytest.raises(WireError, match="without the statistics of its inputs"):
            Task.from_message(wire.decode(encode(bad)))


def weights_message(vector: Any, schema: str = SPEC.schema, version: Any = 1, kind: str = "weights") -> bytes:
    return encode(Message(kind, schema, {"version": version}, {"vector": vector}))


def spoiled(value: float) -> np.ndarray:
    vector = random_vector(SPEC)
    vector[3] = value
    return vector


BAD_WEIGHTS = {
    "another kind": weights_message(random_vector(SPEC), kind="trajectory"),
    "another network": weights_message(random_vector(SPEC), schema=small_spec(5).schema),
    "NaN": weights_message(spoiled(np.nan)),
    "infinity": weights_message(spoiled(-np.inf)),
    "one too few": weights_message(random_vector(SPEC)[:-1]),
    "two axes": weights_message(random_vector(SPEC)[None]),
    "doubles": weights_message(random_vector(SPEC).astype(float)),
    "a version in words": weights_message(random_vector(SPEC), version="3"),
    "a fractional version": weights_message(random_vector(SPEC), version=1.0),
    "a boolean version": weights_message(random_vector(SPEC), version=True),
    "no vector": encode(Message("weights", SPEC.schema, {"version": 1})),
    "no version": encode(Message("weights", SPEC.schema, {}, {"vector": random_vector(SPEC)})),
}


@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_wrong_weights_are_refused(what: str) -> None:
    with pytest.raises(WireError):
        payloads.decode_weights(BAD_WEIGHTS[what], SPEC)


layouts = st.builds(
    Layout,
    steps=st.integers(1, 6),
    lanes=st.integers(1, 4),
    obs_shape=st.sampled_from([(3,), (1,), (4, 4, 2)]),
    obs_dtype=st.sampled_from(["<f4", "|u1"]),
    action=st.sampled_from([DISCRETE, MULTI, GAUSSIAN]),
    columns=st.sampled_from([(), ("logp",), ("logp", "value")]),
)


def plain_fields(trajectory: Trajectory) -> dict[str, Any]:
    fields = {**vars(trajectory), **trajectory.columns}
    del fields["columns"]
    return {
        n: (v.dtype.str, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for n, v in fields.items()
    }


@given(layouts, st.integers(0, 2**32), st.booleans())
def test_trajectories_come_back_as_they_were_sent(layout: Layout, seed: int, compress: bool) -> None:
    trajectory = random_trajectory(layout, seed, sequence=seed)
    raw = payloads.encode_trajectory(trajectory, "schema", compress)
    back = payloads.decode_trajectory(raw, layout, "schema")
    assert plain_fields(back) == plain_fields(trajectory)
    assert set(back.columns) == set(layout.columns)


LAYOUT = Layout(5, 3, (4,), "<f4", DISCRETE, ("logp",))
GOOD = random_trajectory(LAYOUT, 8)


def changed(name: str, change: Callable[[np.ndarray], Any]) -> Trajectory:
    return replace(GOOD, **{name: change(getattr(GOOD, name).copy())})


def put(index: Any, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[index] = value
        return array

    return change


BAD_TRAJECTORIES = {
    "observation that is NaN": changed("obs", put((0, 0, 0), np.nan)),
    "final observation that is NaN": changed("final_obs", put((0, 0), np.nan)),
    "last observation that is infinite": changed("last_obs", put((0, 0), np.inf)),
    "reward that is NaN": changed("reward", put((1, 1), np.nan)),
    "return that is NaN": changed("episode_return", put(0, np.nan)),
    "log-probability that is NaN": replace(GOOD, columns={"logp": np.full((5, 3), np.nan, np.float32)}),
    "observation too long": changed("obs", lambda a: a[..., :3]),
    "a step missing": changed("reward", lambda a: a[:4]),
    "axes swapped": changed("reward", lambda a: a.T),
    "rewards as doubles": changed("reward", lambda a: a.astype(float)),
    "flags as bytes": changed("terminated", lambda a: a.astype(np.uint8)),
    "action that does not exist": changed("action", put((0, 0), 3)),
    "negative action": changed("action", put((0, 0), -1)),
    "final step outside": changed("final_at", put((0, 0), 5)),
    "final lane outside": changed("final_at", put((0, 1), 3)),
    "negative final step": changed("final_at", put((0, 0), -1)),
    "a final observation missing": changed("final_obs", lambda a: a[1:]),
    "more final observations than steps": changed("final_obs", lambda a: np.zeros((16, 4), np.float32)),
    "final observation without axes": changed("final_obs", lambda a: np.float32(3)),
    "returns without lengths": changed("episode_length", lambda a: a[1:]),
    "another column": replace(GOOD, columns={"value": GOOD.columns["logp"]}),
    "a column missing": replace(GOOD, columns={}),
    "a column too many": replace(GOOD, columns={**GOOD.columns, "value": GOOD.columns["logp"]}),
    "maker that is a number": replace(GOOD, maker=3),  # type: ignore[arg-type]
    "shard in words": replace(GOOD, shard="0"),  # type: ignore[arg-type]
    "sequence that is nothing": replace(GOOD, sequence=None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", BAD_TRAJECTORIES)
def test_wrong_trajectories_are_refused(what: str) -> None:
    payloads.decode_trajectory(payloads.encode_trajectory(GOOD, "schema"), LAYOUT, "schema")
    with pytest.raises(WireError):
        payloads.decode_trajectory(
            payloads.encode_trajectory(BAD_TRAJECTORIES[what], "schema"), LAYOUT, "schema"
        )


@pytest.mark.parametrize("name", ["shard", "sequence", "version"])
def test_a_trajectory_that_nobody_could_count_on_from_is_refused(name: str) -> None:
    endless = replace(GOOD, **{name: 2**64 - 1})
    with pytest.raises(WireError, match=name):
        payloads.decode_trajectory(payloads.encode_trajectory(endless, "schema"), LAYOUT, "schema")


def test_a_trajectory_of_another_network_is_refused() -> None:
    with pytest.raises(WireError, match="network structure"):
        payloads.decode_trajectory(payloads.encode_trajectory(GOOD, "schema"), LAYOUT, "another")


def random_states(seed: int, shards: int, lanes: int, layout: Layout) -> dict[int, ShardState]:
    rng = np.random.default_rng(seed)
    states = {}
    for shard in range(shards):
        rows = []
        for _ in range(lanes):
            actions = rng.integers(0, 2, (int(rng.integers(0, 5)), *layout.action.shape)).astype(
                layout.action.dtype
            )
            obs = rng.integers(0, 9, layout.obs_shape).astype(layout.obs_dtype)
            rows.append(LaneState(int(rng.integers(0, 2**40)), actions, obs, bool(rng.random() < 0.2)))
        states[shard * 3] = ShardState(int(rng.integers(0, 2**40)), tuple(rows))
    return states


def plain_states(states: dict[int, ShardState]) -> Any:
    return {
        shard: (
            state.sequence,
            [
                (lane.episode, lane.actions.dtype.str, lane.actions.tolist(), lane.obs.tolist(), lane.lost)
                for lane in state.lanes
            ],
        )
        for shard, state in states.items()
    }


@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(1, 4), layouts, st.booleans())
def test_shard_states_come_back_as_they_were_sent(
    seed: int, shards: int, lanes: int, layout: Layout, compress: bool
) -> None:
    states = random_states(seed, shards, lanes, layout)
    meta, packed = payloads.pack_states(states)
    message = decode(encode(Message("states", "", meta, packed), compress), unpacked=wire.MAX_MESSAGE)
    assert plain_states(payloads.unpack_states(message.meta, message.arrays)) == plain_states(states)


@pytest.mark.parametrize(
    "shards",
    [
        7,
        [7],
        [[0, 1]],
        [[0, 1, []]],
        [[0, 1, [[0, 2, False]]]],
        [[0, 1, [[0, 1, False], [0, 9, False]]]],
        [[0, 1, [[0, 3, False], [0, -1, False]]]],
        [[0, 1, [[0, "1", False], [0, 1, False]]]],
        [[0, 1, [[None, 1, False], [0, 1, False]]]],
        [[0, 1, [[float("inf"), 1, False], [0, 1, False]]]],
        [[0, float("nan"), [[0, 1, False], [0, 1, False]]]],
        [[5, 1, [[0, 1, False], [0, 1, False]]]],
    ],
)
def test_shard_states_that_do_not_fit_together_are_refused(shards: Any) -> None:
    packed = {"shard0.actions": np.zeros(2, np.int32), "shard0.obs": np.zeros((2, 4), np.float32)}
    whole = payloads.unpack_states({"shards": [[0, 1, [[0, 1, False], [0, 1, False]]]]}, packed)
    assert len(whole[0].lanes) == 2
    with pytest.raises(WireError):
        payloads.unpack_states({"shards": shards}, packed)


TASK = Task(EnvConfig("CartPole-v1", {"a": [1, None]}), SPEC, LAYOUT, 3)
STATE = random_states(3, 1, 3, LAYOUT)[0]
ORDER = Order(0, 4, 5, STATE)
FAULT = Fault("w0", 0, 1, 2, 3, "Traceback")


def test_tasks_orders_and_faults_come_back_as_they_were_sent() -> None:
    assert Task.from_message(decode(encode(TASK.to_message()), "task")) == TASK
    assert Fault.from_message(decode(encode(FAULT.to_message()), "fault")) == FAULT
    bare = Order(2, 4, -1)
    assert Order.from_message(decode(encode(bare.to_message()), "order")) == bare
    order = Order.from_message(decode(encode(ORDER.to_message()), "order"))
    assert order.start is not None
    assert (order.shard, order.sequence, order.version) == (0, 4, 5)
    assert plain_states({0: order.start}) == plain_states({0: STATE})


NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 64, 2**28, 2**31, 2**32, 2**63 - 1, 2**64 - 1, -(2**63)),
    *(0.0, 1.5, float("nan"), float("inf"), -float("inf")),
    *(
        "",
        "a",
        "weights",
        "trajectory",
        "vector",
        "obs",
        "|b1",
        "<f4",
        "<f8",
        "O",
        "[",
        "{}",
        "[]",
        "Infinity",
    ),
    *("[" * 5000, '{"input_shape": [Infinity]}', '{"kind": "gaussian"}'),
    *(b"", b"MH1", [], [0], [-1], [0, 2**28, 2**28, 2**28], [2**28], [[]], {}, {"a": 1}, {"version": 1}),
)


class Fuzzer:
    """Spoils messages. Most of what it makes has a right checksum, so that parsing goes deep."""

    def __init__(self, seed: int, originals: list[bytes]) -> None:
        self.random = random.Random(seed)
        self.originals = originals
        self.bodies = [self._opened(raw) for raw in originals]
        self.compressor = zstandard.ZstdCompressor(level=1)

    @staticmethod
    def _opened(raw: bytes) -> tuple[int, bytes, bool]:
        """Header length, uncompressed body, and whether it was compressed."""
        _, flags, _, header_size = PREFIX.unpack_from(raw)
        body = raw[PREFIX.size :]
        return header_size, zstandard.ZstdDecompressor().decompress(body) if flags else body, bool(flags)

    def make(self) -> tuple[int, bytes]:
        """Which original it comes from, and the spoiled bytes."""
        which = self.random.randrange(len(self.originals))
        kind = self.random.random()
        if kind < 0.35:
            return which, self._restructured(which)
        if kind < 0.55:
            return which, self._spoiled_body(which)
        if kind < 0.65:
            raw = bytes(self._spoil(bytearray(self.originals[which])))
        elif kind < 0.75:
            raw = self.originals[which][: self.random.randrange(len(self.originals[which]))]
        elif kind < 0.87:
            other = self.random.choice(self.originals)
            raw = self.originals[which][: self.random.randrange(len(self.originals[which]))]
            raw += other[self.random.randrange(len(other)) :]
        else:
            raw = self.random.randbytes(self.random.randrange(200))
            if self.random.random() < 0.8:
                header = struct.pack("<I", self.random.randrange(60))
                raw = b"MH1" + bytes([self.random.randrange(2)]) + bytes(4) + header + raw
        if len(raw) >= PREFIX.size and self.random.random() < 0.7:
            raw = with_checksum(raw)
        return which, raw

    def _spoil(self, raw: bytearray, first: int = 0, last: int | None = None) -> bytearray:
        last = len(raw) if last is None else last
        for _ in range(self.random.randint(1, 3)):
            at = self.random.randrange(first, last)
            if self.random.random() < 0.5:
                raw[at] ^= 1 << self.random.randrange(8)
            else:
                raw[at] = self.random.randrange(256)
        return raw

    def _spoiled_body(self, which: int) -> bytes:
        """Changes the header's bytes or the arrays', below the compression."""
        header_size, body, compressed = self.bodies[which]
        part = header_size if self.random.random() < 0.7 else len(body)
        return self._closed(bytes(self._spoil(bytearray(body), 0, part)), header_size, compressed)

    def _restructured(self, which: int) -> bytes:
        """Puts a nasty value somewhere into the header and packs it again."""
        header_size, body, compressed = self.bodies[which]
        header = msgpack.unpackb(body[:header_size])
        self._replace_one(header)
        packed = msgpack.packb(header)
        first_array = header_size + -(PREFIX.size + header_size) % wire.ALIGNMENT
        gap = -(PREFIX.size + len(packed)) % wire.ALIGNMENT
        return self._closed(packed + bytes(gap) + body[first_array:], len(packed), compressed)

    def _replace_one(self, node: Any) -> None:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = self.random.choice(keys)
        if isinstance(node[key], list | dict) and node[key] and self.random.random() < 0.85:
            self._replace_one(node[key])
        elif self.random.random() < 0.1:
            del node[key]
        elif self.random.random() < 0.1 and isinstance(node, list):
            node.append(node[key])
        else:
            node[key] = self.random.choice(NASTY)

    def _closed(self, body: bytes, header_size: int, compressed: bool) -> bytes:
        if compressed:
            body = self.compressor.compress(body)
        return PREFIX.pack(b"MH1", int(compressed), zlib.crc32(body), header_size) + body


def check_message(raw: bytes) -> None:
    for array in decode(raw, unpacked=wire.MAX_MESSAGE).arrays.values():
        assert array.dtype.str in wire.DTYPES


def check_weights(raw: bytes) -> None:
    weights = payloads.decode_weights(raw, SPEC)
    assert weights.vector.shape == (SPEC.size,)
    assert np.isfinite(weights.vector).all()
    assert type(weights.version) is int


def check_trajectory(raw: bytes) -> None:
    trajectory = payloads.decode_trajectory(raw, LAYOUT, SPEC.schema)
    assert trajectory.obs.shape == (5, 3, 4)
    assert set(np.unique(trajectory.action)) <= {0, 1, 2}
    assert len(trajectory.final_at) == len(trajectory.final_obs)
    assert type(trajectory.shard) is int
    assert isinstance(trajectory.maker, str)


def outcome(check: Callable[[bytes], None], raw: bytes) -> str:
    try:
        check(raw)
    except WireError as error:
        return str(error).split(" ")[0]
    return "valid"


def test_a_hundred_thousand_spoiled_messages_raise_nothing_but_wire_errors() -> None:
    weights = payloads.encode_weights(Weights(7, random_vector(SPEC), SPEC.schema))
    sample = Message(
        "sample", "s", {"a": [1, {"b": 2.5}], "c": None}, {"x": np.arange(6.0), "y": np.ones((2, 2), bool)}
    )
    cases = [
        (check_weights, weights),
        (check_trajectory, payloads.encode_trajectory(GOOD, SPEC.schema)),
        (check_trajectory, payloads.encode_trajectory(GOOD, SPEC.schema, compress=True)),
        (check_message, encode(sample)),
        (check_message, encode(sample, compress=True)),
    ]
    fuzzer = Fuzzer(1, [raw for _, raw in cases])
    outcomes: Counter[str] = Counter()
    escaped: dict[str, str] = {}
    shallow = 0
    for _ in range(100_000):
        which, raw = fuzzer.make()
        try:
            outcomes[outcome(cases[which][0], raw)] += 1
        except Exception as error:
            escaped.setdefault(f"case {which}: {type(error).__name__}", f"{str(error)[:80]} {raw!r}")
        shallow += (
            len(raw) < PREFIX.size
            or raw[:3] != b"MH1"
            or zlib.crc32(raw[PREFIX.size :]) != PREFIX.unpack_from(raw)[2]
        )
    assert not escaped
    assert shallow < 50_000, "most messages must get past the checksum"
    assert outcomes["valid"] > 1000, "some changes are harmless and must be seen to be"
    assert len(outcomes) > 20, outcomes


def check_from_message(cls: Any) -> Callable[[bytes], None]:
    return lambda raw: cls.from_message(decode(raw))


def test_spoiled_tasks_orders_and_faults_raise_nothing_but_wire_errors() -> None:
    cases: list[tuple[Callable[[bytes], None], bytes]] = [
        (check_from_message(Task), encode(TASK.to_message())),
        (check_from_message(Order), encode(ORDER.to_message())),
        (check_from_message(Order), encode(Order(1, 2, 3).to_message())),
        (check_from_message(Fault), encode(FAULT.to_message())),
    ]
    fuzzer = Fuzzer(2, [raw for _, raw in cases])
    escaped: dict[str, str] = {}
    for _ in range(20_000):
        which, raw = fuzzer.make()
        try:
            outcome(cases[which][0], raw)
        except Exception as error:
            escaped.setdefault(f"case {which}: {type(error).__name__}", f"{str(error)[:80]} {raw!r}")
    assert not escaped


def test_network_descriptions_that_break_the_parser_are_refused() -> None:
    for text in ("[" * 5000, '{"input_shape": [Infinity], "heads": []}', "[]", "7", "{}"):
        with pytest.raises(UsageError):
            NetSpec.from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": "{}"},
        {"spec": "[" * 5000},
        {"spec": 3},
        {"seed": float("inf")},
        {"seed": None},
        {"env": {"id": 5}},
        {"env": {"id": "a", "kwargs": 3}},
        {"env": {"name": "a"}},
        {"layout": 3},
        {"layout": {}},
        {"layout": {**TASK.to_message().meta["layout"], "steps": "x"}},
        {"layout": {**TASK.to_message().meta["layout"], "action": "[]"}},
    ],
)
def test_wrong_tasks_are_refused(change: dict[str, Any]) -> None:
    message = TASK.to_message()
    with pytest.raises(WireError):
        Task.from_message(replace(message, meta={**message.meta, **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"shard": float("inf")},
        {"version": None},
        {"sequence": "x"},
        {"shards": 3},
        {"shard": 2**63},
        {"sequence": 2**63},
        {"version": 2**63},
    ],
)
def test_wrong_orders_are_refused(change: dict[str, Any]) -> None:
    message = ORDER.to_message()
    with pytest.raises(WireError):
        Order.from_message(replace(message, meta={**message.meta, **change}))


@pytest.mark.parametrize("change", [{"lane": "x"}, {"text": 3}, {"worker": None}, {"unknown": 1}])
def test_wrong_fault_reports_are_refused(change: dict[str, Any]) -> None:
    message = FAULT.to_message()
    with pytest.raises(WireError):
        Fault.from_message(replace(message, meta={**message.meta, **change}))


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"returns": [1.0, 2.0], "lengths": [3]}, "2 returns, 1 lengths"),
        ({"returns": [], "lengths": []}, "0 returns"),
        ({"returns": [1.0], "lengths": [-1]}, "1 returns"),
        ({"returns": [1e200], "lengths": [3]}, "beyond 1e.100"),
    ],
)
def test_results_of_tests_are_checked(plain: dict[str, Any], said: str) -> None:
    message = Message("eval_result", "", {"part": 0, **plain})
    with pytest.raises(WireError, match=said):
        EvalResult.from_message(message)
