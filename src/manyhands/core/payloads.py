"""What goes into messages: weights, trajectories and where shards stand, checked before it is believed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyhands.core import wire
from manyhands.core.arrays import Array
from manyhands.core.errors import WireError
from manyhands.core.lanes import LaneState, ShardState
from manyhands.core.networks import NetSpec
from manyhands.core.trajectories import SPARSE, Layout, Trajectory
from manyhands.core.weights import Beside, Weights

BESIDE = "beside."
"""The prefix of the names, in a message, of arrays that travel beside the weights."""
MAX_SKIPPED = 10_000
"""Most episodes of a lane that are to be skipped."""
TRAJECTORY_HEADROOM = 64 * 1024
"""Bytes of a trajectory's message beside its arrays: its header, and gaps between the arrays."""
TRAJECTORY_ARRAYS = (
    "obs",
    "action",
    "reward",
    "terminated",
    "truncated",
    "last_obs",
    "episode",
    *SPARSE,
)


def beside_arrays(beside: Mapping[str, Array]) -> dict[str, Array]:
    """Return what travels beside weights as arrays of a message."""
    return {f"{BESIDE}{name}": array for name, array in beside.items()}


def encode_weights(weights: Weights) -> bytes:
    arrays = {"vector": weights.vector, **beside_arrays(weights.beside)}
    return wire.encode(wire.Message("weights", weights.schema, {"version": weights.version}, arrays))


def decode_weights(raw: bytes | memoryview, spec: NetSpec, beside: Beside = ()) -> Weights:
    return read_weights(wire.decode(raw), spec, beside)


def read_weights(message: wire.Message, spec: NetSpec, beside: Beside = ()) -> Weights:
    """Return the weights in a decoded message, with exactly the arrays that are to be `beside` them."""
    if (message.kind, message.schema) != ("weights", spec.schema):
        raise WireError(f"{message.kind!r} of {message.schema} where weights of {spec.schema} were expected")
    vector = message.arrays.get("vector")
    if vector is None or vector.dtype != np.float32 or vector.shape != (spec.size,):
        raise WireError(f"weights that are not {spec.size} float32 numbers")
    if not np.isfinite(vector).all():
        raise WireError("weights that are not finite")
    extras = read_beside(message.arrays, beside, ("vector",))
    return Weights(_integer(message.meta, "version"), vector, spec.schema, extras)


def read_beside(arrays: Mapping[str, Array], beside: Beside, vector: Collection[str]) -> dict[str, Array]:
    """Return the arrays `beside` those that hold the `vector`; refuse all others."""
    sizes = {f"{BESIDE}{name}": size for name, size in beside}
    found = {name: array for name, array in arrays.items() if name not in vector}
    if found.keys() != sizes.keys():
        raise WireError(f"weights with {', '.join(sorted(found)) or 'nothing'} beside them")
    for name, array in found.items():
        if array.dtype != np.float32 or array.shape != (sizes[name],) or not np.isfinite(array).all():
            raise WireError(f"{name} is not {sizes[name]} finite float32 numbers")
    return {name: found[f"{BESIDE}{name}"] for name, _ in beside}


def encode_trajectory(trajectory: Trajectory, schema: str, compress: bool = False) -> bytes:
    arrays = {name: getattr(trajectory, name) for name in TRAJECTORY_ARRAYS}
    meta = {name: getattr(trajectory, name) for name in ("shard", "sequence", "version", "maker")}
    meta["seconds"] = trajectory.seconds
    return wire.encode(wire.Message("trajectory", schema, meta, {**arrays, **trajectory.columns}), compress)


def decode_trajectory(raw: bytes | memoryview, layout: Layout, schema: str) -> Trajectory:
    """Decode a trajectory whose every array has the dtype and shape that `layout` gives it."""
    message = wire.decode(raw, "trajectory", schema, unpacked=layout.nbytes + TRAJECTORY_HEADROOM)
    arrays = message.arrays
    if set(arrays) != {field.name for field in layout.fields}:
        raise WireError(f"a trajectory with the arrays {', '.join(sorted(arrays))}")
    for spec in layout.fields:
        array = arrays[spec.name]
        sparse = spec.name in SPARSE
        fits = array.ndim > 0 and array.shape[0] <= spec.shape[0] if sparse else array.shape == spec.shape
        if array.dtype.str != spec.dtype or not fits or array.shape[1:] != spec.shape[1:]:
            raise WireError(f"{spec.name} is {array.dtype.str}{array.shape}, not {spec.dtype}{spec.shape}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WireError(f"{spec.name} is not finite")
    at = arrays["final_at"]
    if len(at) != len(arrays["final_obs"]) or (at < 0).any() or (at >= arrays["reward"].shape).any():
        raise WireError("final observations that belong to no step")
    if len(arrays["episode_return"]) != len(arrays["episode_length"]):
        raise WireError("episodes with a return but no length")
    actions, sizes = arrays["action"], layout.action.sizes
    if layout.action.kind != "gaussian" and ((actions < 0) | (actions >= sizes)).any():
        raise WireError("an action that does not exist")
    maker, seconds = message.meta.get("maker"), message.meta.get("seconds")
    if not isinstance(maker, str) or not isinstance(seconds, float):
        raise WireError("a trajectory that does not say who made it")
    return Trajectory(
        shard=_integer(message.meta, "shard"),
        sequence=_integer(message.meta, "sequence"),
        version=_integer(message.meta, "version"),
        maker=maker,
        seconds=seconds,
        played=0,
        columns={name: arrays[name] for name in layout.columns},
        **{name: arrays[name] for name in TRAJECTORY_ARRAYS},
    )


def pack_states(states: Mapping[int, ShardState]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Pack shard states as facts and arrays, to go into a larger message or a checkpoint."""
    arrays: dict[str, Array] = {}
    shards = []
    for shard, state in states.items():
        lanes = []
        for lane in state.lanes:
            lanes.append([lane.episode, len(lane.actions), lane.lost, list(lane.skip)])
        arrays[f"shard{shard}.actions"] = np.concatenate([lane.actions for lane in state.lanes])
        arrays[f"shard{shard}.obs"] = np.stack([lane.obs for lane in state.lanes])
        shards.append([shard, state.sequence, lanes])
    return {"shards": shards}, arrays


def unpack_states(meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[int, ShardState]:
    states: dict[int, ShardState] = {}
    try:
        for shard, sequence, rows in meta["shards"]:
            lanes = [_lane_row(*row) for row in rows]  # three values before 0.5, four since
            actions, obs = arrays[f"shard{shard}.actions"], arrays[f"shard{shard}.obs"]
            ends = np.cumsum([lane.count for lane in lanes])
            if not lanes or len(obs) != len(lanes) or ends[-1] != len(actions):
                raise WireError(f"shard {shard} with {len(obs)} observations for {len(lanes)} lanes")
            found = tuple(
                LaneState(lane.episode, actions[end - lane.count : end], obs[i], lane.lost, lane.skip)
                for i, (lane, end) in enumerate(zip(lanes, ends, strict=True))
            )
            states[_whole(shard)] = ShardState(_whole(sequence), found)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise WireError(f"unreadable shard states: {error!r:.200}") from error
    return states


@dataclass(frozen=True)
class _LaneRow:
    episode: int
    count: int
    lost: bool
    skip: tuple[int, ...]


def _lane_row(episode: Any, count: Any, lost: Any, skip: Any = ()) -> _LaneRow:
    if type(lost) is not bool or not isinstance(skip, list | tuple) or len(skip) > MAX_SKIPPED:
        raise WireError("a lane that is not [episode, actions, lost, episodes to skip]")
    return _LaneRow(_whole(episode), _whole(count), lost, tuple(map(_whole, skip)))


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < wire.MAX_COUNT:
        raise WireError(f"{value!r:.60} is not a whole number from 0 to 2^62")
    return value


def _integer(meta: Mapping[str, Any], name: str) -> int:
    try:
        return _whole(meta.get(name))
    except WireError as error:
        raise WireError(f"{name}: {error}") from error
