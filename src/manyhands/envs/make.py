"""Environments: making any Gymnasium one, and describing its spaces as plain data."""

import operator
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import Error as GymnasiumError
from gymnasium.wrappers import TimeLimit

from manyhands.config import EnvConfig
from manyhands.envs import (
    allowed,
    atari,
    lto,  # noqa: F401 (registers its environment)
)
from manyhands.envs.closing import Closer
from manyhands.envs.importing import imported
from manyhands.errors import EnvError, ManyhandsError, UsageError, near, needs
from manyhands.experience import Array
from manyhands.forks import keep_children_out
from manyhands.policy import ActionSpec

Env = gymnasium.Env[Any, Any]
MakeEnv = Callable[..., Env]

MINATAR = "MinAtar/"
SMALLEST_IMAGE = 3
"""Sides of a three-dimensional observation from which on it counts as an image."""
CLOSER = Closer()
"""Remembers which kinds of environments cannot be closed."""


def make(config: EnvConfig, callable_env: MakeEnv | None = None, **extra: Any) -> Env:
    """The environment that `config` names, or the one that `callable_env` makes."""
    keep_children_out()
    arguments = {**config.kwargs, **extra}
    if callable_env is None and config.family == "Atari":
        return atari.make(config.id, arguments)
    if callable_env is None and _is_callable_path(config.id):
        callable_env = imported(config.id, "environment")
    if callable_env is not None:
        try:
            env = callable_env(**arguments)
        except Exception as error:
            raise EnvError(f"{config.id} could not be made: {type(error).__name__}: {error}") from error
        if not isinstance(env, gymnasium.Env):
            raise UsageError(
                f"{config.id} returned {type(env).__name__}, not a gymnasium.Env; "
                "return an environment that has Gymnasium's reset and step"
            )
        return env
    try:
        # The collector checks every observation itself; Gymnasium's checker would only slow it down.
        env = gymnasium.make(_spec(config.id), disable_env_checker=True, **arguments)
        return Forgetful(env) if config.family == "MinAtar" else env
    except ManyhandsError:
        raise
    except ModuleNotFoundError as error:
        raise UsageError(f"{config.id} needs the module {error.name!r}, which is not installed") from error
    except GymnasiumError as error:
        raise UsageError(_unknown(config.id, error)) from error
    except TypeError as error:
        raise UsageError(f"{config.id} does not accept {arguments!s:.200}: {error}") from error
    except Exception as error:
        raise EnvError(f"{config.id} could not be made: {type(error).__name__}: {error}") from error


class Forgetful(gymnasium.Wrapper[Any, Any, Any, Any]):
    """MinAtar, which repeats the last action now and then, would repeat the last one of the game before."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        return self.env.reset(**arguments)


def make_to_play(config: EnvConfig, callable_env: MakeEnv | None = None) -> Env:
    """An environment for a lane, which does not check its actions again.

    They come from `decoder`, which makes valid ones only, and Gymnasium's check takes 5 us of a LunarLander
    step's 50 and half of a CartPole's. It stays where a wrapper makes other actions of ours.
    """
    env = make(config, callable_env)
    inner = env.unwrapped
    if env.action_space is inner.action_space:
        trusting = copy(inner.action_space)  # a copy, because a class may share its space with others
        trusting.contains = lambda x: True  # type: ignore[method-assign]
        with suppress(AttributeError):  # a property, perhaps
            inner.action_space = trusting
    return env


def check_imports(config: EnvConfig, patterns: Sequence[str]) -> None:
    """Refuses an environment that somebody else names unless the owner of this machine allows its code."""
    if ":" not in config.id:
        _spec(config.id)  # which registers what is registered late
    allowed.check(config, patterns)


def imported_names(config: EnvConfig) -> list[str]:
    """The names, as `--allow-env` takes them, of all code that making this environment imports."""
    return [name for name in (config.id, *allowed.functions(config.kwargs)) if ":" in name]


def start(playing: list[Env], actions: list[Any], about_to: Callable[[int], None]) -> None:
    """Begins a step in all of them, where that is faster. Each is ended by its `step`.

    `about_to` is told which of them comes next, because one may bring the process down.
    """
    if not playing:
        return
    limited = isinstance(playing[0], TimeLimit)  # which leaves actions as they are

    def bare(env: Any) -> Any:
        return env.env if limited else env

    if getattr(type(bare(playing[0])), "starts", False) is True:
        with suppress(Exception):  # what is not started here is so by its `step`, where a failure is told
            for i, (env, action) in enumerate(zip(playing, actions, strict=True)):
                about_to(i)
                bare(env).start(action)


def close(env: Env) -> None:
    """Closes one that nobody plays any more; what goes wrong with it is said, and no more."""
    CLOSER.close(type(env.unwrapped), env.close, shows=_shows(env))


def _shows(env: Env) -> bool:
    """Whether it draws, for a person or as observations, and so may have windows that belong to a thread."""
    shape = getattr(getattr(env, "observation_space", None), "shape", None) or ()
    return len(shape) == 3 or getattr(env, "render_mode", None) is not None


def _spec(env_id: str) -> str | EnvSpec:
    """Without Gymnasium's guard against a step before the first reset, which costs a microsecond a step.

    Its Box2D environments are mended, too.
    """
    if env_id.startswith(MINATAR) and f"{MINATAR}Breakout-v1" not in gymnasium.registry:
        try:
            from minatar.gym import register_envs
        except ModuleNotFoundError as error:
            raise needs(env_id, error, "minatar") from error
        register_envs()
    registered = gymnasium.registry.get(env_id)
    if registered is None:
        return env_id
    spec = copy(registered)
    spec.order_enforce = False
    if str(spec.entry_point).startswith("gymnasium.envs.box2d"):
        with suppress(ImportError):  # Gymnasium says what is missing
            from manyhands.envs import box2d

            box2d.mend(spec)
    return spec


def _is_callable_path(env_id: str) -> bool:
    """`module:callable` is ours, `module:Name-v0` is Gymnasium's."""
    return ":" in env_id and not re.search(r"-v\d+$", env_id)


def _unknown(env_id: str, error: GymnasiumError) -> str:
    known = [name for name in gymnasium.registry if "/" not in name or name.startswith(MINATAR)]
    if env_id in gymnasium.registry:
        return f"cannot make {env_id}: {' '.join(str(error).split())}"
    hint = near(env_id, known) or "; give a Gymnasium id such as LunarLander-v3, or module:callable"
    return f"there is no environment {env_id!r}{hint}"


@dataclass(frozen=True)
class ObsSpec:
    """Observations as they are stored: one array of `shape` and `dtype` per lane and step."""

    shape: tuple[int, ...]
    dtype: str
    image: Literal["", "hwc", "chw"] = ""
    stack: int = 1  # pictures in one observation, each of which was the last one of an earlier observation


@dataclass(frozen=True)
class Spaces:
    """An environment's two spaces as plain data, and the mean return at which it calls itself solved.

    With `life_loss` it reports lost lives, which learning shall treat as ends.
    """

    obs: ObsSpec
    action: ActionSpec
    threshold: float | None
    life_loss: bool = False


def describe(env: Env) -> Spaces:
    """How a policy acts in it, beyond what the space says, is not the environment's to know."""
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
    return ObsSpec((_flat_size(space, space),), "<f4")


def _flat_size(space: spaces.Space[Any], whole: spaces.Space[Any]) -> int:
    match space:
        case spaces.Box() | spaces.MultiBinary():
            return int(np.prod(space.shape))
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return int(space.nvec.sum())
        case spaces.Dict():
            return sum(_flat_size(part, whole) for part in space.spaces.values())
        case spaces.Tuple():
            return sum(_flat_size(part, whole) for part in space.spaces)
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
