"""A module whose owner allows it to be named by others: environments, and much that is none."""

import functools
import os
import subprocess
from os import system
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

command = os.system
shell = functools.partial(os.system)
path_class = Path


class Tame(CartPoleEnv):
    """An environment of this module's own."""

    def __init__(self, size: int = 1, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.size = size

    @staticmethod
    def spawn(words: str) -> int:
        return os.system(words)


class Greedy(CartPoleEnv):
    """One that takes anything."""

    def __init__(self, **anything: object) -> None:
        super().__init__()
        for value in anything.values():
            Path(str(value)).write_text("taken")


class Tool:
    """A class that is no environment."""

    def __init__(self, path: str) -> None:
        Path(path).write_text("tool")


def make_tame(size: int = 1) -> gymnasium.Env:
    return Tame(size)


def make_unsaid(size: int = 1):
    return Tame(size)


def make_broken() -> "NoSuchType":  # noqa: F821
    return Tame()


def _make_private() -> gymnasium.Env:
    return Tame()


def write(path: str) -> None:
    Path(path).write_text("written")


def wipe(path: str) -> str:
    Path(path).write_text("wiped")
    return path


def square(point) -> float:
    return float((point**2).sum())


def unsaid(point):
    return float((point**2).sum())


anonymous = lambda path: Path(path).write_text("anonymous")  # noqa: E731
instance = Tame
bound = Tool.__init__
USED = (subprocess, system)


def __getattr__(name: str) -> object:
    return lambda **arguments: Path(str(next(iter(arguments.values())))).write_text(name)
