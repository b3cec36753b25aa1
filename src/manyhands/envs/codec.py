"""Turns observations into rows of an array, and stored actions into what an environment takes."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError
from manyhands.core.spaces import ObsSpec
from manyhands.core.texts import one_line
from manyhands.envs.describe import describe, flat_size
from manyhands.envs.make import Env

Encoder = Callable[[Any, Array], None]
SLACK = 1e-4
"""How far numbers may lie outside of their bounds, in parts of these, before they are said to."""


def codec(env: Env, shape: tuple[int, ...], action: ActionSpec) -> tuple[Encoder, Callable[[Array], Any]]:
    """Return an encoder and a decoder for an environment, which must still be what it was when described."""
    now = describe(env)
    if now.obs.shape != shape or not action.fits(now.action):
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        raise EnvError(f"{name} has other spaces here than where the run was started")
    return encoder(env.observation_space, now.obs), decoder(env.action_space, action)


def reward_number(reward: Any) -> float:
    """Return a reward as a number; it may be an array of one."""
    try:
        return float(reward.item() if isinstance(reward, np.ndarray) else reward)
    except (TypeError, ValueError):
        shown = str(reward) if isinstance(reward, np.ndarray) else repr(reward)
        raise EnvError(f"its reward is {one_line(shown, 100)}; it must be one number") from None


def outside(space: spaces.Space[Any], obs: Array) -> str:
    """Say where observations [..., n] of a Box lie outside of it by more than rounding; "" for nowhere."""
    if not isinstance(space, spaces.Box) or space.dtype == np.uint8:
        return ""
    rows = obs.reshape(-1, *space.shape)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    wrong = (rows < low - SLACK * (1 + abs(low))) | (rows > high + SLACK * (1 + abs(high)))
    if not wrong.any():
        return ""
    row, *place = (int(index) for index in np.argwhere(wrong)[0])
    at = tuple(place)
    return f"{rows[(row, *at)]:g} at {list(at)}, where its space goes from {low[at]:g} to {high[at]:g}"


def encoder(space: spaces.Space[Any], spec: ObsSpec) -> Encoder:
    """Return a function that writes an observation of `space` into one lane's row, checking it on the way."""
    if isinstance(space, spaces.Box):
        shape = space.shape
        flat = spec.shape != shape
        kinds = "u" if spec.dtype == "|u1" else "fiub"
        widest = 1 if spec.dtype == "|u1" else 16

        def write_box(obs: Any, row: Array) -> None:
            try:
                if obs.shape == shape and obs.dtype.kind in kinds and obs.dtype.itemsize <= widest:
                    row[...] = obs.reshape(-1) if flat else obs
                    return
            except AttributeError:
                pass
            raise EnvError(_mismatch(obs, space))

        return write_box

    if isinstance(space, spaces.Discrete):
        count, start = int(space.n), int(space.start)

        def write_discrete(obs: Any, row: Array) -> None:
            try:
                index = operator.index(obs) - start
            except (TypeError, ValueError):
                raise EnvError(_mismatch(obs, space)) from None
            if not 0 <= index < count:
                raise EnvError(_mismatch(obs, space))
            row[...] = 0.0
            row[index] = 1.0

        return write_discrete

    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _composed(space)

    def write_flat(obs: Any, row: Array) -> None:
        if not space.contains(obs):
            raise EnvError(_mismatch(obs, space))
        row[...] = spaces.utils.flatten(space, obs)

    return write_flat


def split_batch(space: spaces.Space[Any], obs: Any) -> list[Any] | None:
    """Return the observations of a batch, one by one; None where `obs` is not a batch but one of `space`.

    What is neither is not found out here, but by the encoder that gets it.
    """
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping):
        if obs.keys() != space.spaces.keys():
            return None
        parts = {key: split_batch(part, obs[key]) for key, part in space.spaces.items()}
        whole = _side_by_side(list(parts.values()))
        return whole and [dict(zip(parts, each, strict=True)) for each in whole]
    if isinstance(space, spaces.Tuple) and isinstance(obs, tuple):
        if len(obs) != len(space.spaces):
            return None
        return _side_by_side([split_batch(part, each) for part, each in zip(space.spaces, obs, strict=True)])
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return obs if isinstance(obs, list) else None
    if isinstance(obs, list) and isinstance(space, spaces.Box | spaces.Discrete):
        return obs  # these take arrays and numbers alone
    try:
        shape = np.shape(obs)
    except ValueError:  # of a list whose items differ in length
        return None
    return list(obs) if shape and shape[1:] == space.shape and shape != space.shape else None


def _side_by_side(parts: Sequence[list[Any] | None]) -> list[Any] | None:
    """Return the parts of each observation together, where all are batches of as many."""
    batches = [part for part in parts if part is not None]
    if len(batches) < len(parts) or len({len(batch) for batch in batches}) != 1:
        return None
    return list(zip(*batches, strict=True))


def _composed(space: spaces.Dict | spaces.Tuple[Any]) -> Encoder:
    """Return an encoder of which each part writes into its piece of the row."""
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    writers: list[tuple[Any, Encoder, int, int]] = []
    start = 0
    for key, part in parts:
        end = start + flat_size(part, space)
        writers.append((key, encoder(part, ObsSpec((end - start,), "<f4")), start, end))
        start = end

    def write_parts(obs: Any, row: Array) -> None:
        try:
            pieces = [obs[key] for key, _, _, _ in writers]
            if len(obs) != len(writers):
                raise KeyError
        except (KeyError, IndexError, TypeError):
            raise EnvError(_mismatch(obs, space)) from None
        for piece, (_, write, start, end) in zip(pieces, writers, strict=True):
            write(piece, row[start:end])

    return write_parts


def _mismatch(obs: Any, space: spaces.Space[Any]) -> str:
    if isinstance(obs, np.ndarray):
        given = f"an array of shape {obs.shape} and dtype {obs.dtype}"
    else:
        given = f"{type(obs).__name__} {str(obs)[:60]}"
    return f"it returned {given} where its observation space is {space}"


def decoder(space: spaces.Space[Any], spec: ActionSpec) -> Callable[[Array], Any]:
    """Return a function from stored actions [B, ...] to a list of what each lane's `step` takes."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda action: (action + start).tolist() if start else action.tolist()
    if isinstance(space, spaces.MultiDiscrete):
        offset = space.start
        return lambda action: list((action + offset).astype(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        return lambda action: list(action.astype(space.dtype))
    assert isinstance(space, spaces.Box)
    shape, dtype = space.shape, space.dtype
    # Clipped once more in the space's own precision: 0.1 as a float32 lies outside a float64's 0.1.
    return lambda action: list(
        np.clip(spec.to_env(action).reshape(-1, *shape).astype(dtype), space.low, space.high)
    )
