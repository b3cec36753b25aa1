"""Names from elsewhere: what `--allow` lets in, and thirty ways round it that it does not."""

from pathlib import Path
from typing import Any

import pytest

from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import ManyhandsError, UsageError
from manyhands.envs import make as envs
from manyhands.envs.importing import check_pattern

MODULE = "allowed_module"
ALL = [f"{MODULE}:*"]
MARK = "MARK"
"""Replaced by a file that must not appear."""


def checked_and_made(config: EnvConfig, patterns: list[str]) -> None:
    """What a worker and a child do with an environment from elsewhere."""
    envs.check_imports(config, patterns)
    envs.close(envs.make(config))


def refused(env_id: str, kwargs: dict[str, Any], patterns: list[str], mark: Path) -> str:
    def placed(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(MARK, str(mark))
        if isinstance(value, list):
            return [placed(item) for item in value]
        return {name: placed(item) for name, item in value.items()} if isinstance(value, dict) else value

    config = EnvConfig(env_id, placed(kwargs))
    with pytest.raises(UsageError) as caught:
        checked_and_made(config, patterns)
    assert not mark.exists()
    return str(caught.value)


ATTEMPTS: list[tuple[str, dict[str, Any], list[str]]] = [
    # What a module imports is not its own.
    (f"{MODULE}:os.system", {"command": "touch MARK"}, ALL),
    (f"{MODULE}:gymnasium.os.system", {"command": "touch MARK"}, ALL),
    (f"{MODULE}:system", {"command": "touch MARK"}, ALL),
    (f"{MODULE}:command", {"command": "touch MARK"}, ALL),
    (f"{MODULE}:shell", {"command": "touch MARK"}, ALL),
    (f"{MODULE}:os", {}, ALL),
    (f"{MODULE}:subprocess.run", {"args": ["touch", "MARK"]}, ALL),
    (f"{MODULE}:Path", {"path": "MARK"}, ALL),
    (f"{MODULE}:path_class", {}, ALL),
    (f"{MODULE}:CartPoleEnv", {}, ALL),
    (f"{MODULE}:USED", {}, ALL),
    # What it defines but does not mean to be an environment.
    (f"{MODULE}:write", {"path": "MARK"}, ALL),
    (f"{MODULE}:wipe", {"path": "MARK"}, ALL),
    (f"{MODULE}:Tool", {"path": "MARK"}, ALL),
    (f"{MODULE}:Tool", {"path": "MARK"}, [f"{MODULE}:Tool"]),
    (f"{MODULE}:anonymous", {"path": "MARK"}, ALL),
    (f"{MODULE}:bound", {"path": "MARK"}, ALL),
    (f"{MODULE}:Tame.spawn", {"words": "touch MARK"}, ALL),
    (f"{MODULE}:make_unsaid", {}, ALL),
    (f"{MODULE}:make_broken", {}, ALL),
    (f"{MODULE}:_make_private", {}, ALL),
    (f"{MODULE}:absent", {"path": "MARK"}, ALL),  # which the module's __getattr__ would make
    (f"{MODULE}:__getattr__", {"name": "MARK"}, ALL),
    (f"{MODULE}:__builtins__", {}, ALL),
    (f"{MODULE}:__loader__", {}, ALL),
    # Arguments that a signature does not name, or that are no plain data.
    (f"{MODULE}:Greedy", {"path": "MARK"}, ALL),
    (f"{MODULE}:Tame", {"length": 3}, ALL),
    (f"{MODULE}:Tame", {"size": b"raw"}, ALL),
    (f"{MODULE}:Tame", {"size": {"a": {1: 2}}}, ALL),
    (f"{MODULE}:Tame", {"size": list(range(20_000))}, ALL),
    # Patterns do not reach further than they say.
    (f"{MODULE}:Tame", {}, []),
    (f"{MODULE}:Tame", {}, [f"{MODULE}:Tam"]),
    (f"{MODULE}:Tame", {}, ["allowed:*"]),
    (f"{MODULE}.os:system", {"command": "touch MARK"}, ALL),
    ("os:system", {"command": "touch MARK"}, ALL),
    (f"{MODULE}:Tame:os", {}, ALL),
    (f"{MODULE}: Tame", {}, ALL),
    (f"{MODULE}:Tame\n", {}, ALL),
    (f"../{MODULE}:Tame", {}, ALL),
    (f":{MODULE}:Tame", {}, ALL),
    # Gymnasium's own ids, with a module in front or behind.
    ("antigravity:CartPole-v1", {}, ALL),
    (f"{MODULE}:CartPole-v1", {}, ALL),
    ("CartPole", {}, ALL),
    ("CartPole-v1", {"unknown": 1}, ALL),
    ("HalfCheetah-v5", {"xml_file": "/etc/passwd"}, ALL),
    ("GymV26Environment-v0", {"env_id": "os:CartPole-v1"}, ALL),
    ("FrozenLake-v1", {"desc": ["/etc"]}, ALL),
    # Functions to optimise.
    ("manyhands/Lto-v0", {"functions": ["os:abort"], "bounds": [[-1, 1]]}, ALL),
    ("manyhands/Lto-v0", {"functions": [f"{MODULE}:os.abort"], "bounds": [[-1, 1]]}, ALL),
    ("manyhands/Lto-v0", {"functions": [f"{MODULE}:wipe"], "bounds": [[-1, 1]]}, ALL),
    ("manyhands/Lto-v0", {"functions": [f"{MODULE}:unsaid"], "bounds": [[-1, 1]]}, ALL),
    ("manyhands/Lto-v0", {"functions": [f"{MODULE}:Tool"], "bounds": [[-1, 1]]}, ALL),
    ("manyhands/Lto-v0", {"functions": [f"{MODULE}:square"], "bounds": [[-1, 1]]}, []),
    ("manyhands/Lto-v0", {"functions": {"os:abort": 1}, "bounds": [[-1, 1]]}, ALL),
    ("manyhands/Lto", {"functions": ["os:abort"], "bounds": [[-1, 1]]}, ALL),
    ("CartPole-v1", {"functions": ["os:abort"]}, ALL),
    ("manyhands/Lto-v0", {"functions": ["sphere"], "x": 10**9}, ALL),
]


@pytest.mark.parametrize(("env_id", "kwargs", "patterns"), ATTEMPTS)
def test_an_attempt_to_run_other_code_is_refused(
    env_id: str, kwargs: dict[str, Any], patterns: list[str], tmp_path: Path
) -> None:
    message = refused(env_id, kwargs, patterns, tmp_path / "mark")
    assert "\n" not in message


def test_there_are_enough_attempts() -> None:
    assert len(ATTEMPTS) >= 30


@pytest.mark.parametrize(
    ("env_id", "kwargs", "patterns"),
    [
        (f"{MODULE}:Tame", {"size": 3}, ALL),
        (f"{MODULE}:make_tame", {"size": 3}, ALL),
        (f"{MODULE}:make_unsaid", {}, [f"{MODULE}:make_unsaid"]),
        (f"{MODULE}:_make_private", {}, [f"{MODULE}:_make_private"]),
        ("CartPole-v1", {}, []),
        ("CartPole-v1", {"max_episode_steps": 10}, []),
        ("FrozenLake-v1", {"is_slippery": False, "desc": ["SF", "FG"]}, []),
        ("MinAtar/Breakout-v1", {}, []),
        ("ALE/Breakout-v5", {"frame_skip": 2}, []),
        ("manyhands/Lto-v0", {"functions": [f"{MODULE}:square"], "bounds": [[-1, 1]]}, ALL),
        ("manyhands/Lto-v0", {"functions": ["sphere", "ackley"], "x": 2}, []),
    ],
)
def test_what_the_owner_allowed_is_made(env_id: str, kwargs: dict[str, Any], patterns: list[str]) -> None:
    config = EnvConfig(env_id, kwargs)
    envs.check_imports(config, patterns)
    envs.close(envs.make(config))


@pytest.mark.parametrize(
    "pattern", ["*", "*:*", "my_*:*", "my.module", "my:a.b", "my:*x", "", "my:", "a:b c"]
)
def test_a_pattern_that_says_too_much_or_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="module:name"):
        check_pattern(pattern)


def test_a_module_that_fails_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('one\\ntwo \\x1b[2J')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ManyhandsError) as caught:
        envs.check_imports(EnvConfig("broken_module:Env"), ["broken_module:*"])
    assert str(caught.value).isprintable()
