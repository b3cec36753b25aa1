"""Small environments for tests. Workers import them by `small_envs:name`."""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Chain(gymnasium.Env[np.ndarray, int]):
    """Walk right along a line of five places; the end pays 1. Every step is a pure function of the seed."""

    def __init__(self, length: int = 5, limit: int = 30) -> None:
        self.length, self.limit = length, limit
        self.observation_space = spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.place = 0
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.time = int(self.np_random.integers(self.length - 1)), 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        slips = self.np_random.random() < 0.1
        forward = (action == 1) != slips
        self.place = max(0, self.place + (1 if forward else -1))
        terminated = self.place == self.length - 1
        return self._obs(), float(terminated), terminated, self.time >= self.limit, {}

    def _obs(self) -> np.ndarray:
        return np.eye(self.length, dtype=np.float32)[self.place]


class Failing(Chain):
    """A chain that misbehaves once: `how` it does so, after `after` steps, marked by the file `marker`."""

    def __init__(self, how: str, marker: str, after: int = 40, always: bool = False) -> None:
        super().__init__()
        self.how, self.marker, self.after, self.always = how, Path(marker), after, always
        self.total = 0

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.total += 1
        if self.total >= self.after and (self.always or not self.marker.exists()):
            self.marker.touch()
            match self.how:
                case "raise":
                    raise RuntimeError("the simulator exploded")
                case "hang":
                    time.sleep(3600)
                case "segfault":
                    ctypes.string_at(0)
                case "exit":
                    os._exit(7)
        obs, reward, terminated, truncated, facts = super().step(action)
        if self.total >= self.after:
            match self.how:
                case "nan":
                    return np.full_like(obs, np.nan), reward, terminated, truncated, facts
                case "nan-reward":
                    return obs, float("nan"), terminated, truncated, facts
                case "shape":
                    return obs[:-1], reward, terminated, truncated, facts
                case "dtype":
                    return obs.astype(str), reward, terminated, truncated, facts
                case "reward-text":
                    return obs, "much", terminated, truncated, facts
        return obs, reward, terminated, truncated, facts


class Old(Chain):
    """A chain by the interface that Gymnasium had before: `what` of it."""

    def __init__(self, what: str, limited: bool = False) -> None:
        super().__init__()
        self.what, self.limited = what, limited

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.what == "seed":
            raise TypeError("Old.reset() got an unexpected keyword argument 'seed'")
        found = super().reset(seed=seed)
        return found[0] if self.what == "reset" else found

    def step(self, action: int) -> Any:
        found = super().step(action)
        return (*found[:2], found[2] or found[3], {}) if self.what == "step" else found


def limited_old(what: str) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Old(what), 20)


class Spaceless(Chain):
    """Forgets its spaces."""

    def __init__(self, which: str) -> None:
        super().__init__()
        delattr(self, which)


class Unrepeatable(Chain):
    """Ignores its seed, so no episode can be played again."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return super().reset(seed=int.from_bytes(os.urandom(4), "little"))

    def _obs(self) -> np.ndarray:
        return super()._obs() * np.float32(1 - 1e-3 * self.np_random.random())


class Costly(Chain):
    """Each of 20 steps costs 1. Every other environment crashes at its second step, now and then."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Costly.made += 1
        self.crashes = Costly.made % 2 == 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        if self.crashes and self.time == 2 and self.np_random.random() < 0.5:
            raise RuntimeError("crashed")
        return self._obs(), -1.0, self.time >= 20, False, {}


class Leaky(Chain):
    """Forgets to free `leak` bytes a step."""

    def __init__(self, leak: int = 0) -> None:
        super().__init__()
        self.leak = leak
        self.lost: list[bytes] = []

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.lost.append(os.urandom(1) * self.leak)
        return super().step(action)


class Slow(Chain):
    """Takes `delay` seconds a step, like a heavy simulator."""

    def __init__(self, delay: float = 0.002) -> None:
        super().__init__()
        self.delay = delay

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self.delay)
        return super().step(action)


class Uneven(Slow):
    """Slow in the process that makes the first one after the file `marker` is gone, quick in all others."""

    def __init__(self, marker: str) -> None:
        super().__init__(delay=0.0)
        try:
            Path(marker).unlink()
            self.delay = 0.02
        except FileNotFoundError:
            pass


class Target(gymnasium.Env[Any, Any]):
    """One step: the observation shows a target, the action that matches it pays 1 and others less.

    `seen` and `asked` choose the kinds of the two spaces, so that every kind can be proven by learning.
    """

    def __init__(self, seen: str = "box", asked: str = "discrete") -> None:
        self.seen, self.asked = seen, asked
        self.observation_space = {
            "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "discrete": spaces.Discrete(4, start=1),
            "multibinary": spaces.MultiBinary(2),
            "multidiscrete": spaces.MultiDiscrete([2, 2]),
            "dict": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0.0, 1.0, (1,), np.float32)}),
            "tuple": spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(1))),
            "image": spaces.Box(0, 255, (8, 8, 1), np.uint8),
        }[seen]
        self.action_space = {
            "discrete": spaces.Discrete(4),
            "multidiscrete": spaces.MultiDiscrete([2, 2]),
            "multibinary": spaces.MultiBinary(2),
            "box": spaces.Box(-2.0, 2.0, (2,), np.float32),
        }[asked]
        self.bits = (0, 0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bits = (int(self.np_random.integers(2)), int(self.np_random.integers(2)))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        first, second = self.bits
        if self.asked == "discrete":
            reward = float(action == 2 * first + second)
        elif self.asked == "box":
            goal = np.array([first, second], np.float32) * 2 - 1
            reward = 1.0 - float(np.abs(action - goal).mean())
        else:
            reward = (int(action[0] == first) + int(action[1] == second)) / 2
        return self._obs(), float(reward), True, False, {}

    def _obs(self) -> Any:
        first, second = self.bits
        match self.seen:
            case "box":
                return np.array(self.bits, np.float32) * 2 - 1
            case "discrete":
                return 1 + 2 * first + second
            case "multibinary":
                return np.array(self.bits, np.int8)
            case "multidiscrete":
                return np.array(self.bits)
            case "dict":
                return {"a": first, "b": np.array([second], np.float32)}
            case "tuple":
                return (first, np.array([second], np.int8))
        image = np.zeros((8, 8, 1), np.uint8)
        image[4 * first : 4 * first + 4, 4 * second : 4 * second + 4] = 255
        return image


class Fatal(Chain):
    """Brings its process down in every episode whose seed is a multiple of `every`, at its second step.

    `how` it does so; "reset" is when the episode begins.
    """

    def __init__(self, how: str = "segfault", every: int = 12) -> None:
        super().__init__()
        self.how, self.every, self.doomed = how, every, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.doomed = seed is not None and seed % self.every == 0
        if self.doomed and self.how == "reset":
            ctypes.string_at(0)
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.doomed and self.time == 1:
            match self.how:
                case "segfault":
                    ctypes.string_at(0)
                case "hang":
                    time.sleep(3600)
                case "hang-locked":  # with Python's lock, so that no other thread says anything
                    ctypes.PyDLL(None).sleep(60)
                case "exit":
                    os._exit(3)
                case "exit-0":
                    os._exit(0)
                case "leave":
                    sys.exit(3)
        return super().step(action)


ONLY = Chain()


def only() -> Chain:
    """The same one every time."""
    return ONLY


class Unmakeable(Chain):
    """Brings down the process that makes it."""

    def __init__(self) -> None:
        ctypes.string_at(0)


class Lingering(Chain):
    """A chain that does not end well: `how`, or in "all" ways.

    It forks once in a process, and its children never.
    """

    forked = False

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.how = how
        if how in ("thread", "all"):
            threading.Thread(target=time.sleep, args=(3600,)).start()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.how.startswith(("fork", "all")) and self.time == 3 and not Lingering.forked:
            Lingering.forked = True
            match self.how if os.fork() == 0 else "":
                case "fork-raises":
                    raise RuntimeError("in the child")
                case "fork-exits":
                    sys.exit(3)
                case "fork-works":
                    os._exit(0)
        return super().step(action)

    def close(self) -> None:
        match self.how:
            case "close-raises" | "all":
                raise RuntimeError("cannot be closed\nat all")
            case "close-exits":
                sys.exit(3)
            case "close-hangs":
                time.sleep(3600)
            case "close-locks":  # in code that is not Python, and that no signal ends
                lock = ctypes.create_string_buffer(64)
                for _ in range(2):
                    ctypes.CDLL(None).pthread_mutex_lock(lock)
