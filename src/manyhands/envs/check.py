"""Checks an environment before a run does: its spaces, its methods, and what it says over some episodes."""

import inspect
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np
from gymnasium import spaces

from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import EnvError, ManyhandsError
from manyhands.core.texts import one_line
from manyhands.envs import make as envs
from manyhands.envs.codec import encoder, outside, reward_number
from manyhands.envs.contract import RESET, begin, is_wrong_step, wrong_step
from manyhands.envs.describe import describe

LONGEST_EPISODE = 1000
"""Steps after which a checked episode is left."""


@dataclass
class Checked:
    """The result of a check: `problems`, each in a line; and what is good to know of a sound environment."""

    env_id: str
    problems: list[str] = field(default_factory=list)
    spaces: str = ""
    exact: bool = False
    """Whether the same seed and the same actions give the same episode."""
    films: bool = False
    """Whether it renders pictures for videos."""
    speed: float = 0.0
    """Steps in a second, in one process."""

    def __str__(self) -> str:
        if self.problems:
            return "\n".join(f"{self.env_id}: {problem}" for problem in self.problems)
        exact, films = ("yes" if found else "no" for found in (self.exact, self.films))
        return (
            f"{self.env_id} is fine: {self.spaces}, exact restarts: {exact}, videos: {films}, "
            f"{self.speed:,.0f} steps/s"
        )


def check(config: EnvConfig, episodes: int = 5, seed: int = 0) -> Checked:
    """Play some episodes with random actions, and say what is wrong with the environment."""
    found = Checked(config.id)
    env = envs.make(config)
    try:
        described = describe(env)
        found.spaces = f"{_short(env.observation_space)} -> {_short(env.action_space)}"
        found.problems += _signatures(env)
        first = _Visit(env, encoder(env.observation_space, described.obs), described.obs)
        began = time.perf_counter()
        played = [list(first.play(seed + number)) for number in range(episodes)]
        found.speed = first.steps / max(1e-9, time.perf_counter() - began)
        found.problems += first.problems.values()
        if not found.problems:
            found.exact = _repeats(config, env, played, seed, found)
    except ManyhandsError as error:
        found.problems.append(str(error))
    finally:
        envs.close(env)
    if not found.problems:
        found.films = _films(config)
    return found


class _Visit:
    """Plays one environment, and notes what is wrong with what it returns."""

    def __init__(self, env: envs.Env, encode: Any, spec: Any) -> None:
        self.env, self.encode = env, encode
        self.row = np.zeros(spec.shape, spec.dtype)
        self.problems: dict[str, str] = {}  # the first of each kind
        self.steps = 0

    def play(self, seed: int) -> Iterator[tuple[Any, ...]]:
        """Play an episode and yield what it returned, so that another may be compared with it."""
        env = self.env
        env.action_space.seed(seed)
        try:
            obs = begin(env, seed)
        except EnvError:
            raise
        except Exception as error:
            raise EnvError(f"reset failed: {_raised(error)}") from error
        self._look(obs, "reset")
        yield (obs,)
        for _ in range(LONGEST_EPISODE):
            action = env.action_space.sample()
            try:
                stepped = env.step(action)
            except Exception as error:
                if is_wrong_step(error):
                    raise EnvError(wrong_step((None,) * 4)) from error
                raise EnvError(f"step({one_line(action, 60)}) failed: {_raised(error)}") from error
            try:
                obs, reward, terminated, truncated, info = stepped
            except (TypeError, ValueError):
                raise EnvError(wrong_step(stepped)) from None
            self.steps += 1
            self._look(obs, "step")
            self._note_reward(reward)
            for name, flag in (("terminated", terminated), ("truncated", truncated)):
                if not isinstance(flag, bool | np.bool_):
                    self._note(name, f"its {name} is {flag!r:.60}; it must be True or False")
            if not isinstance(info, dict):
                self._note("info", f"its info is {type(info).__name__}; it must be a dict")
            yield obs, reward, bool(terminated), bool(truncated)
            if terminated or truncated:
                return

    def _note(self, kind: str, problem: str) -> None:
        self.problems.setdefault(kind, problem)

    def _note_reward(self, reward: Any) -> None:
        """Note what a run would refuse as a reward."""
        try:
            amount = reward_number(reward)
        except EnvError as error:
            self._note("reward", str(error))
            return
        if not math.isfinite(amount):
            self._note("reward", f"its reward is {amount}; it must be finite")

    def _look(self, obs: Any, method: str) -> None:
        """Note an observation that cannot be read, is not finite, or lies outside its space."""
        space = self.env.observation_space
        try:
            self.encode(obs, self.row)
        except EnvError as error:
            raise EnvError(f"after {method} {error}") from error
        if self.row.dtype.kind == "f" and not np.isfinite(self.row).all():
            self._note("observation", f"after {method} its observation is not finite")
        elif found := outside(space, self.row[None]):
            self._note("observation", f"after {method} an observation has {found}")


def _signatures(env: envs.Env) -> Iterator[str]:
    """Yield what is wrong with the arguments of its methods."""
    bare = env.unwrapped
    if not _takes(bare.reset, seed=0, options=None):
        yield f"reset must be {RESET}"
    if not _takes(bare.step, 0):
        yield "step must be step(self, action)"


def _takes(method: Any, *given: Any, **named: Any) -> bool:
    try:
        inspect.signature(method).bind(*given, **named)
    except TypeError:
        return False
    except ValueError:  # of a compiled method, which says nothing
        return True
    return True


def _repeats(config: EnvConfig, env: envs.Env, played: list[Any], seed: int, found: Checked) -> bool:
    """Return whether another one like it plays the same episodes."""
    other = envs.make(config)
    if other.unwrapped is env.unwrapped:
        found.problems.append("it returned the same environment twice; return a new one every time")
        return False
    try:
        spec = describe(other).obs
        visit = _Visit(other, encoder(other.observation_space, spec), spec)
        again = [list(visit.play(seed + number)) for number in range(len(played))]
    finally:
        envs.close(other)
    return _same(played, again)


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, arrays inside of them included."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return np.array_equal(one, other)


def _films(config: EnvConfig) -> bool:
    """Return whether it renders pictures when asked to."""
    try:
        env = envs.make(config, render_mode="rgb_array")
    except ManyhandsError:
        return False
    try:
        if env.render_mode != "rgb_array":
            return False
        env.reset(seed=0)
        return np.ndim(env.render()) == 3  # type: ignore[arg-type]
    except Exception:  # of any graphics library
        return False
    finally:
        envs.close(env)


def _short(space: spaces.Space[Any]) -> str:
    """Return a space without the limits of every number."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape}"
    return one_line(space, 120)


def _raised(error: Exception) -> str:
    """Return an error in one line, with the place where it was raised."""
    frame = extract_tb(error.__traceback__)[-1]
    text = one_line(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"
