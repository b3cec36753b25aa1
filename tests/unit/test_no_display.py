"""Filming where nothing can be drawn: one line that says what to try."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from toys import Clock

from manyhands.config.settings import Config
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import UsageError
from manyhands.runs import store, video


class Undrawable(Clock):
    """Fails as MuJoCo does."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def render(self) -> Any:
        raise RuntimeError("an OpenGL platform library has not been loaded\ninto this process")


@pytest.mark.parametrize(
    ("display", "chosen", "hinted"), [("", "", True), (":0", "", False), ("", "egl", False)]
)
def test_mujoco_without_a_display_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, display: str, chosen: str, hinted: bool
) -> None:
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setenv("MUJOCO_GL", chosen)
    monkeypatch.setitem(sys.modules, "mujoco", ModuleType("mujoco"))
    with pytest.raises(
        UsageError, match="Walker cannot be filmed: RuntimeError: an OpenGL platform"
    ) as caught:
        video._frame(Undrawable(), "Walker")
    assert ("set MUJOCO_GL=egl" in str(caught.value)) is hinted
    assert "\n" not in str(caught.value)


def test_others_are_not_told_of_mujoco(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    with pytest.raises(UsageError, match="cannot be filmed") as caught:
        video._frame(Undrawable(), "Walker")
    assert "MUJOCO" not in str(caught.value)


def keeps_it_to_itself(render_mode: str | None = None) -> Any:
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize(
    ("make_env", "said"),
    [
        (
            lambda: gymnasium.make("CartPole-v1"),
            "takes no render_mode, so it cannot be filmed; give it that argument and pass it on",
        ),
        (keeps_it_to_itself, "asked for render_mode='rgb_array' and has None; pass that argument on"),
    ],
)
def test_a_callable_that_does_not_pass_the_render_mode_on_is_told_to(
    tmp_path: Path, make_env: Any, said: str
) -> None:
    run = store.create(tmp_path / "run", Config(env=EnvConfig("my_envs:short_pole")))
    with pytest.raises(UsageError, match=r"^my_envs:short_pole ") as caught:
        video._make(run, make_env)
    assert str(caught.value).endswith(said)
