"""Observations into rows of an array, and stored actions into what an environment takes."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError
from manyhands.core.spaces import ObsSpec
from manyhands.envs.describe import _flat_size, describe
from manyhands.envs.make import Env

Encoder = Callable[[Any, Array], None]


def codec(env: Env, shape: tuple[int, ...], action: ActionSpec) -> tuple[Encoder, Callable[[Array], Any]]:
    """An encoder and a decoder for an environment that must still be what it was when it was described."""
    now = describe(env)
    if now.obs.shape != shape or not action.fits(now.action):
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        raise EnvError(f"{name} has other spaces here than where the run was started")
    return encoder(env.observation_space, now.obs), decoder(env.action_space, action)


def encoder(space: spaces.Space[Any], spec: ObsSpec) -> Encoder:
    """A function that writes an observation of `space` into one lane's row, checking it on the way."""
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


def _composed(space: spaces.Dict | spaces.Tuple[Any]) -> Encoder:
    """Each part writes into its piece of the row."""
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    writers: list[tuple[Any, Encoder, int, int]] = []
    start = 0
    for key, part in parts:
        end = start + _flat_size(part, space)
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
    """A function from stored actions [B, ...] to a list of what each lane's `step` takes."""
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
