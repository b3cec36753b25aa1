"""Checkpoints: one safetensors file each, written beside and renamed, so there is never half a one."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from manyhands.core import payloads, wire
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.errors import ManyhandsError, RunError
from manyhands.core.lanes import ShardState
from manyhands.core.networks import NetSpec
from manyhands.core.weights import Weights

MESSAGE = "message"
"""The array that holds everything that is not an array, as a checksummed wire message."""


@dataclass(frozen=True)
class Checkpoint:
    """An agent; and, when made for resuming, the whole state that its training goes on from."""

    spec: NetSpec
    action: ActionSpec
    weights: Weights
    previous: tuple[Weights, ...] = ()  # older versions that rollouts in flight are played with
    learner: Mapping[str, Array] = field(default_factory=dict)
    shards: Mapping[int, ShardState] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)


def write(path: Path, checkpoint: Checkpoint) -> None:
    states, state_arrays = payloads.pack_states(checkpoint.shards)
    meta = {
        "spec": checkpoint.spec.to_json(),
        "action": checkpoint.action.to_json(),
        "version": checkpoint.weights.version,
        "previous": [weights.version for weights in checkpoint.previous],
        "beside": {name: len(array) for name, array in checkpoint.weights.beside.items()},
        "progress": dict(checkpoint.progress),
        **states,
    }
    message = wire.encode(wire.Message("checkpoint", checkpoint.spec.schema, meta))
    arrays = {
        MESSAGE: np.frombuffer(message, np.uint8),
        "weights": checkpoint.weights.vector,
        **_beside_arrays("weights", checkpoint.weights),
        **{f"previous{weights.version}": weights.vector for weights in checkpoint.previous},
        **{
            name: array
            for weights in checkpoint.previous
            for name, array in _beside_arrays(f"previous{weights.version}", weights).items()
        },
        **{f"learner.{name}": array for name, array in checkpoint.learner.items()},
        **{f"collect.{name}": array for name, array in state_arrays.items()},
    }
    raw = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    write_atomically(path, raw)


def write_atomically(path: Path, raw: bytes) -> None:
    """Write all of a file or nothing, even when the machine stops or the disk is full in between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def read(path: Path) -> Checkpoint:
    try:
        arrays = load(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"there is no checkpoint at {path}") from None
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"{path} is damaged or not a checkpoint: {error}") from error
    if MESSAGE not in arrays or "weights" not in arrays:
        raise RunError(f"{path} holds tensors, but it is not a checkpoint of manyhands")
    try:
        message = wire.decode(arrays[MESSAGE].tobytes(), "checkpoint")
        meta = message.meta
        spec = NetSpec.from_json(meta["spec"])
        beside = meta.get("beside", {})
        weights = _weights(spec, int(meta["version"]), arrays, "weights", beside)
        previous = tuple(_weights(spec, int(v), arrays, f"previous{v}", beside) for v in meta["previous"])
        shards = payloads.unpack_states(meta, _section(arrays, "collect."))
        action = ActionSpec.from_json(meta["action"])
        progress = dict(meta["progress"])
    except (ManyhandsError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    learner = _section(arrays, "learner.")
    return Checkpoint(spec, action, weights, previous, learner, shards, progress)


def _beside_arrays(prefix: str, weights: Weights) -> dict[str, Array]:
    return {f"{prefix}.beside.{name}": array for name, array in weights.beside.items()}


def _weights(
    spec: NetSpec, version: int, arrays: Mapping[str, Array], prefix: str, beside: Mapping[str, int]
) -> Weights:
    if not set(spec.statistics) <= set(dict(beside).items()):
        raise RunError("weights without the statistics of their inputs, as earlier versions saved them")
    vector = arrays[prefix]
    if vector.dtype != np.float32 or vector.shape != (spec.size,):
        raise RunError(f"{vector.size} weights of {vector.dtype} for a network of {spec.size}")
    if not np.isfinite(vector).all():
        raise RunError("weights that are not finite")
    extras = {name: arrays[f"{prefix}.beside.{name}"] for name in beside}
    for name, array in extras.items():
        if array.dtype != np.float32 or array.shape != (beside[name],) or not np.isfinite(array).all():
            raise RunError(f"{name} beside the weights is not {beside[name]} finite numbers")
    return Weights(version, vector, spec.schema, extras)


def _section(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
