"""Describe an environment's spaces as plain data."""

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from manyhands.core.actions import ActionSpec
from manyhands.core.errors import UsageError
from manyhands.core.spaces import ObsSpec, Spaces
from manyhands.envs import atari
from manyhands.envs.make import Env

LARGEST_ROW = 4096
"""Most numbers of an observation with more dimensions than an image that is taken for a row."""
SMALLEST_IMAGE = 3
"""Least sides of a three-dimensional observation that counts as an image."""


def describe(env: Env) -> Spaces:
    """Describe an environment's spaces; how a policy acts in them is not the environment's to know."""
    for name in ("observation_space", "action_space"):
        found = getattr(env, name, None)
        if not isinstance(found, spaces.Space):
            given = "no" if found is None else f"{found!r:.60} as its"
            raise UsageError(
                f"{type(env.unwrapped).__name__} has {given} {name}; set self.{name} to one of "
                "gymnasium.spaces in __init__"
            )
    threshold = env.spec.reward_threshold if env.spec is not None else None
    obs, action = _obs_spec(env.observation_space), _action_spec(env.action_space)
    if isinstance(env, atari.AtariEnv):
        return Spaces(replace(obs, stack=env.stack), action, threshold, env.life_loss)
    return Spaces(obs, action, threshold)


def _obs_spec(space: spaces.Space[Any]) -> ObsSpec:
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        channels_first = space.shape[0] < space.shape[2]
        sides = space.shape[1:] if channels_first else space.shape[:2]
        if min(sides) >= SMALLEST_IMAGE:
            dtype = "|u1" if space.dtype == np.uint8 else "<f4"
            return ObsSpec(space.shape, dtype, "chw" if channels_first else "hwc")
    if isinstance(space, spaces.Box) and len(space.shape) > 3 and np.prod(space.shape) > LARGEST_ROW:
        raise UsageError(
            f"observations of shape {space.shape} are not supported: an image has three dimensions; put "
            "stacked images into the channels (gymnasium.wrappers.ReshapeObservation), or flatten them "
            "(gymnasium.wrappers.FlattenObservation)"
        )
    return ObsSpec((flat_size(space, space),), "<f4")


def flat_size(space: spaces.Space[Any], whole: spaces.Space[Any]) -> int:
    match space:
        case spaces.Box() | spaces.MultiBinary():
            return int(np.prod(space.shape))
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return int(space.nvec.sum())
        case spaces.Dict():
            return sum(flat_size(part, whole) for part in space.spaces.values())
        case spaces.Tuple():
            return sum(flat_size(part, whole) for part in space.spaces)
    inside = "" if space is whole else f" inside {type(whole).__name__}"
    raise UsageError(
        f"observations of type {type(space).__name__}{inside} are not supported; "
        "Box, Discrete, MultiBinary, MultiDiscrete, and Dict or Tuple of these are "
        "(use an ObservationWrapper)"
    )


def _action_spec(space: spaces.Space[Any]) -> ActionSpec:
    match space:
        case spaces.Discrete():
            return ActionSpec("categorical", (int(space.n),))
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return ActionSpec("categorical", tuple(int(n) for n in space.nvec))
        case spaces.MultiBinary() if len(space.shape) == 1:
            return ActionSpec("categorical", (2,) * space.shape[0])
        case spaces.Box() if np.issubdtype(np.dtype(space.dtype), np.floating):
            low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
            return ActionSpec("gaussian", (len(low),), low, high)
    raise UsageError(
        f"actions of type {space} are not supported; Discrete, MultiDiscrete (one row), "
        "MultiBinary (one row) and Box of floats are (use an ActionWrapper)"
    )
