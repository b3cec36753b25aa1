"""Filming where nothing can be drawn on: one line that says what to try."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toys import Clock

from manyhands.core.errors import UsageError
from manyhands.runs import video


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
