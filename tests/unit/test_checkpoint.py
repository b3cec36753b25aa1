"""A checkpoint comes back whole or is refused; half a file never replaces a whole one."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from samples import DISCRETE, GAUSSIAN, random_statistics, random_trajectory, random_vector, small_spec

from manyhands.core import wire
from manyhands.core.errors import RunError
from manyhands.core.lanes import ShardState
from manyhands.core.trajectories import Layout
from manyhands.core.weights import Weights
from manyhands.runs.checkpoint import MESSAGE, Checkpoint, read, write, write_atomically

SPEC = small_spec()


def sample() -> Checkpoint:
    layout = Layout(4, 3, (4,), "<f4", DISCRETE, ())
    states = {}
    for shard in range(3):
        state = ShardState.fresh(layout)
        for number in range(3):
            state = state.after(random_trajectory(layout, shard * 10 + number, sequence=number))
        states[shard] = state
    return Checkpoint(
        SPEC,
        DISCRETE,
        Weights(7, random_vector(SPEC, 7), SPEC.schema),
        (Weights(6, random_vector(SPEC, 6), SPEC.schema), Weights(5, random_vector(SPEC, 5), SPEC.schema)),
        {
            "adam.exp_avg": random_vector(SPEC, 1),
            "steps": np.array([123]),
            "adam.step": np.float32(3).reshape(()),
        },
        states,
        {"steps": 1000, "recent": [1.5, -2.0], "solved": False, "best": None},
    )


def test_checkpoints_come_back_as_they_were_written(tmp_path: Path) -> None:
    made = sample()
    write(tmp_path / "a.safetensors", made)
    back = read(tmp_path / "a.safetensors")
    assert (back.spec, back.action) == (made.spec, made.action)
    for mine, theirs in zip((back.weights, *back.previous), (made.weights, *made.previous), strict=True):
        assert (mine.version, mine.schema) == (theirs.version, theirs.schema)
        assert np.array_equal(mine.vector, theirs.vector)
    assert set(back.learner) == set(made.learner)
    for name, array in made.learner.items():
        assert back.learner[name].dtype == array.dtype
        assert back.learner[name].shape == array.shape
        assert np.array_equal(back.learner[name], array)
    assert dict(back.progress) == dict(made.progress)
    assert set(back.shards) == set(made.shards)
    for shard, state in made.shards.items():
        assert back.shards[shard].sequence == state.sequence
        for mine_lane, lane in zip(back.shards[shard].lanes, state.lanes, strict=True):
            assert (mine_lane.episode, mine_lane.lost) == (lane.episode, lane.lost)
            assert np.array_equal(mine_lane.actions, lane.actions)
            assert np.array_equal(mine_lane.obs, lane.obs)


def test_an_agent_alone_is_a_checkpoint_too(tmp_path: Path) -> None:
    spec = small_spec(3, GAUSSIAN, normalise=True)
    weights = Weights(1, random_vector(spec), spec.schema, random_statistics(spec))
    write(tmp_path / "a", Checkpoint(spec, GAUSSIAN, weights))
    back = read(tmp_path / "a")
    assert (back.spec, back.action) == (spec, GAUSSIAN)
    for name, array in random_statistics(spec).items():
        assert np.array_equal(back.weights.beside[name], array)
    assert (back.previous, back.learner, back.shards, back.progress) == ((), {}, {}, {})


@pytest.mark.parametrize(
    "beside", [{}, {"input_mean": np.zeros(3, np.float32)}, {"input_scale": np.ones(2, np.float32)}]
)
def test_an_agent_without_the_statistics_of_its_inputs_is_refused(
    tmp_path: Path, beside: dict[str, np.ndarray]
) -> None:
    spec = small_spec(3, GAUSSIAN, normalise=True)
    more = {**random_statistics(spec), **beside} if "input_scale" in beside else beside
    write(tmp_path / "a", Checkpoint(spec, GAUSSIAN, Weights(1, random_vector(spec), spec.schema, more)))
    with pytest.raises(RunError, match="without the statistics of their inputs"):
        read(tmp_path / "a")


def test_a_run_of_many_lanes_can_be_written(tmp_path: Path) -> None:
    layout = Layout(1, 128, (1,), "<f4", DISCRETE, ())
    state = ShardState.fresh(layout)
    lanes = tuple(replace(lane, episode=100_000, actions=np.zeros(300, np.int32)) for lane in state.lanes)
    made = replace(sample(), shards={shard: ShardState(9, lanes) for shard in range(128)})
    write(tmp_path / "a", made)
    assert len(read(tmp_path / "a").shards) == 128


@pytest.mark.parametrize("tenth", range(10))
def test_a_truncated_checkpoint_is_refused(tmp_path: Path, tenth: int) -> None:
    path = tmp_path / "a"
    write(path, sample())
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) * tenth // 10])
    with pytest.raises(RunError, match=str(path)):
        read(path)


def test_a_checkpoint_with_bytes_after_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, sample())
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(RunError, match="damaged"):
        read(path)


def foreign_numpy() -> bytes:
    return safetensors.numpy.save({"layer.weight": np.zeros((2, 3), np.float32)})


def foreign_bfloat() -> bytes:
    return safetensors.torch.save({"layer.weight": torch.zeros(2, 3, dtype=torch.bfloat16)})


def foreign_float8() -> bytes:
    return safetensors.torch.save({"layer.weight": torch.zeros(2, 3, dtype=torch.float8_e4m3fn)})


def same_names() -> bytes:
    return safetensors.numpy.save({MESSAGE: np.zeros(4, np.uint8), "weights": np.zeros(4, np.float32)})


@pytest.mark.parametrize("make", [foreign_numpy, foreign_bfloat, foreign_float8, same_names])
def test_tensors_of_others_are_refused(tmp_path: Path, make: Any) -> None:
    (tmp_path / "a").write_bytes(make())
    with pytest.raises(RunError, match=str(tmp_path / "a")):
        read(tmp_path / "a")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        b"text, not tensors",
        bytes(100),
        b"\xff" * 100,
        np.random.default_rng(1).bytes(5000),
        b"\x80\x04N.",
    ],
    ids=["empty", "one byte", "text", "zeros", "ones", "random", "pickle"],
)
def test_garbage_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(RunError, match=str(tmp_path / "a")):
        read(tmp_path / "a")


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no checkpoint"):
        read(tmp_path / "missing")
    with pytest.raises(RunError, match="cannot read"):
        read(tmp_path)


def tampered(path: Path, meta: dict[str, Any] | None = None, **arrays: Any) -> None:
    """Writes a checkpoint whose checksums are right and whose content is not."""
    write(path, sample())
    found = safetensors.numpy.load(path.read_bytes())
    if meta is not None:
        message = wire.decode(found[MESSAGE].tobytes())
        facts = {name: fact for name, fact in {**message.meta, **meta}.items() if fact != "REMOVED"}
        found[MESSAGE] = np.frombuffer(wire.encode(replace(message, meta=facts)), np.uint8)
    found.update(arrays)
    path.write_bytes(safetensors.numpy.save({n: a for n, a in found.items() if a is not None}))


def spoiled(value: float) -> np.ndarray:
    vector = random_vector(SPEC)
    vector[-1] = value
    return vector


@pytest.mark.parametrize(
    "change",
    [
        {"weights": spoiled(np.nan)},
        {"weights": spoiled(np.inf)},
        {"weights": random_vector(SPEC)[:-1]},
        {"weights": random_vector(SPEC).astype(float)},
        {"weights": None},
        {"previous6": spoiled(np.nan)},
        {"previous6": None},
        {"message": np.zeros(20, np.uint8)},
        {"message": None},
        {"collect.shard1.obs": None},
        {"collect.shard1.actions": np.zeros(99, np.int32)},
        {"meta": {"spec": "REMOVED"}},
        {"meta": {"spec": "not a network"}},
        {"meta": {"spec": small_spec(9).to_json()}},
        {"meta": {"action": "[]"}},
        {"meta": {"action": "{"}},
        {"meta": {"version": "x"}},
        {"meta": {"version": float("inf")}},
        {"meta": {"previous": 3}},
        {"meta": {"progress": "REMOVED"}},
        {"meta": {"progress": 3}},
        {"meta": {"shards": [[0]]}},
    ],
    ids=lambda change: (
        f"{next(iter(change))} {next(iter(change.values()), None) if 'meta' in change else ''}"[:60]
    ),
)
def test_content_that_does_not_fit_together_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "a"
    tampered(path)
    read(path)
    tampered(path, **change)
    with pytest.raises(RunError, match=str(path)):
        read(path)


def test_a_flipped_bit_in_the_facts_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, sample())
    found = safetensors.numpy.load(path.read_bytes())
    message = found[MESSAGE].copy()
    message[len(message) // 2] ^= 4
    path.write_bytes(safetensors.numpy.save({**found, MESSAGE: message}))
    with pytest.raises(RunError, match="damaged"):
        read(path)


def test_writing_replaces_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """Writing past `size` bytes of a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")
    with disk_full_after(1000), pytest.raises(OSError, match="too large"):
        write_atomically(path, bytes(100_000))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_target_that_cannot_be_replaced_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "a", b"new")
    assert os.listdir(tmp_path) == ["a"]


def test_content_that_is_no_bytes_leaves_no_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "a", "text")  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "missing" / "a", b"new")
