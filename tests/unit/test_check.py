"""`manyhands check`: each thing that may be wrong with an environment has a line of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_envs import Chain

from manyhands.cli import main as cli
from manyhands.core.env_config import EnvConfig
from manyhands.envs.check import check


class Wrong(Chain):
    """A chain with something wrong, as `what` says."""

    def __init__(self, what: str = "", render_mode: str | None = None) -> None:
        super().__init__()
        self.what, self.render_mode = what, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=None if self.what == "luck" else seed)
        return (obs + 2, info) if self.what == "outside" else (obs, info)

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        match self.what:
            case "raises":
                raise KeyError("motor")
            case "nan":
                obs = np.full_like(obs, np.nan)
            case "shape":
                obs = obs[:-1]
            case "reward":
                return obs, np.array([reward, reward]), terminated, truncated, info
            case "infinite":
                return obs, float("inf"), terminated, truncated, info
            case "flag":
                return obs, reward, "no", truncated, info
            case "info":
                return obs, reward, terminated, truncated, None
            case "four":
                return obs, reward, terminated, info
        return obs, reward, terminated, truncated, info

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


class Seedless(Chain):
    """Takes no seed."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


SHARED = Wrong()


def shared() -> Wrong:
    return SHARED


@pytest.mark.parametrize(
    ("env", "what", "said"),
    [
        ("Wrong", "outside", "at [0], where its space goes from"),
        ("Wrong", "raises", "failed: KeyError: 'motor' (test_check.py:"),
        ("Wrong", "nan", "after step its observation is not finite"),
        ("Wrong", "shape", "after step it returned an array of shape (4,) and dtype float32 where its"),
        ("Wrong", "reward", "it must be one number"),
        ("Wrong", "infinite", "its reward is inf; it must be finite"),
        ("Wrong", "flag", "its terminated is 'no'; it must be True or False"),
        ("Wrong", "info", "its info is NoneType; it must be a dict"),
        ("Wrong", "four", "step returned 4 values, not (observation, reward, terminated, truncated, info)"),
        ("Seedless", "", "reset must be reset(self, *, seed=None, options=None)"),
        ("shared", "", "it returned the same environment twice"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_each(
    env: str, what: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--set", f"env.kwargs={{what: {what}}}"] if what else []
    with pytest.raises(SystemExit) as caught:
        cli.main(["check", f"test_check:{env}", *given])
    assert caught.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"test_check:{env}: ") for line in lines)
    assert len([line for line in lines if said in line]) == 1


def test_one_without_a_space_is_told_so() -> None:
    (problem,) = check(EnvConfig("small_envs:Spaceless", {"which": "action_space"})).problems
    assert problem.startswith("Spaceless has no action_space; set self.action_space")


def test_a_sound_one_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["check", "test_check:Wrong", "--episodes", "2", "--seed", "7"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("test_check:Wrong is fine: Box(5,) -> Discrete(2), exact restarts: yes, videos: ")
    assert line.endswith(" steps/s")


def test_luck_of_its_own_is_noticed_and_no_problem() -> None:
    found = check(EnvConfig("test_check:Wrong", {"what": "luck"}))
    assert (found.problems, found.exact) == ([], False)
    assert check(EnvConfig("test_check:Wrong")).exact


def test_what_renders_can_be_filmed(tmp_path: Path) -> None:
    assert check(EnvConfig("CartPole-v1"), episodes=1).films
    assert check(EnvConfig("test_check:Wrong"), episodes=1).films
    assert not check(EnvConfig("small_envs:Chain"), episodes=1).films


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--episodes", "0"], "--episodes is 0; it must be 1 or more"),
        (["--set", "algo.gamma=0.5"], "only env.kwargs may be set for a check, not algo.gamma"),
    ],
)
def test_a_wrong_call_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["check", "CartPole-v1", *words])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
