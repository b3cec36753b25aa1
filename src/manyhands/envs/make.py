"""Environments: making any Gymnasium one, and describing its spaces as plain data."""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from gymnasium.error import Error as GymnasiumError
from gymnasium.wrappers import TimeLimit

from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import EnvError, ManyhandsError, UsageError, did_you_mean, missing_extra
from manyhands.envs import allowed, atari
from manyhands.envs.closing import Closer
from manyhands.envs.importing import imported
from manyhands.system.forks import keep_children_out

Env = gymnasium.Env[Any, Any]
MakeEnv = Callable[..., Env]
MINATAR = "MinAtar/"
LIBRARIES = {"gymnasium.envs.box2d": "Box2D", "gymnasium.envs.mujoco": "mujoco"}
"""What environments of Gymnasium need, by the beginning of where they are defined."""
WARNED: set[str] = set()
"""What Gymnasium has warned of in this process."""
CLOSER = Closer()
"""Remembers which kinds of environments cannot be closed."""


def make(config: EnvConfig, callable_env: MakeEnv | None = None, **extra: Any) -> Env:
    """Make the environment that `config` names, or the one that `callable_env` makes."""
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
        with _warned_once():
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


def ignore_versions() -> None:
    """Leave it to another process, which makes the same environment, to show that its version is old."""
    warnings.filterwarnings("ignore", ".*(latest versioned environment|is out of date)", module="gymnasium")


@contextmanager
def _warned_once() -> Iterator[None]:
    """Show each warning of a kind of environment once, not for each one that is made."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    for each in caught:
        if str(each.message) not in WARNED:
            WARNED.add(str(each.message))
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


class Forgetful(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Clears MinAtar's last action, which it repeats now and then, before the next game."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        return self.env.reset(**arguments)


def make_to_play(config: EnvConfig, callable_env: MakeEnv | None = None) -> Env:
    """Make an environment for a lane, which does not check its actions again.

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
    """Return the names, as `--allow` takes them, of all code that making this environment imports."""
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


def check_known(config: EnvConfig) -> None:
    """Refuse a Gymnasium id that nothing is registered for, without making it."""
    if ":" in config.id or config.family:
        return
    try:
        gymnasium.spec(config.id)
    except GymnasiumError as error:
        raise UsageError(_unknown(config.id, error)) from error


def close(env: Env) -> None:
    """Close an environment that nobody plays any more; what goes wrong is reported, not raised."""
    CLOSER.close(type(env.unwrapped), env.close, shows=_shows(env))


def _shows(env: Env) -> bool:
    """Return whether it draws, for a person or as observations, and so may have windows of one thread."""
    shape = getattr(getattr(env, "observation_space", None), "shape", None) or ()
    return len(shape) == 3 or getattr(env, "render_mode", None) is not None


def _spec(env_id: str) -> str | EnvSpec:
    """Return the spec without Gymnasium's guard against steps before the first reset, which cost 1 us each.

    Its Box2D environments are mended, too.
    """
    if env_id.startswith(MINATAR) and f"{MINATAR}Breakout-v1" not in gymnasium.registry:
        try:
            from minatar.gym import register_envs
        except ModuleNotFoundError as error:
            raise missing_extra(env_id, error.name) from error
        register_envs()
    registered = gymnasium.registry.get(env_id)
    if registered is None:
        return env_id
    spec = copy(registered)
    spec.order_enforce = False
    if str(spec.entry_point).startswith("gymnasium.envs.box2d"):
        with suppress(ImportError):  # Gymnasium says what is missing
            from manyhands.envs import box2d

            box2d.patch(spec)
    return spec


def _is_callable_path(env_id: str) -> bool:
    """Return whether an id is a callable, `module:callable`, and not Gymnasium's `module:Name-v0`."""
    return ":" in env_id and not re.search(r"-v\d+$", env_id)


def _unknown(env_id: str, error: GymnasiumError) -> str:
    known = [name for name in gymnasium.registry if "/" not in name or name.startswith(MINATAR)]
    if env_id in gymnasium.registry:
        entry = str(gymnasium.registry[env_id].entry_point)
        library = next((LIBRARIES[family] for family in LIBRARIES if entry.startswith(family)), "")
        if library and isinstance(error, DependencyNotInstalled):
            return str(missing_extra(env_id, library))
        return f"cannot make {env_id}: {' '.join(str(error).split())}"
    hint = did_you_mean(env_id, known) or "; give a Gymnasium id such as LunarLander-v3, or module:callable"
    return f"there is no environment {env_id!r}{hint}"
