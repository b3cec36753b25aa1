"""Films of an agent at play."""

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import Error as GymnasiumError
from numpy.typing import NDArray

from manyhands.core.errors import EnvError, UsageError
from manyhands.core.seeding import TEST, action_stream, hash_seed, trial_seed
from manyhands.core.texts import one_line
from manyhands.envs import make as envs
from manyhands.envs.codec import reward_number
from manyhands.runs.agent import from_checkpoint
from manyhands.runs.checkpoint import Checkpoint
from manyhands.runs.own_code import explained
from manyhands.runs.store import Run

MAX_FRAMES = 3_000
"""Steps of one episode that are filmed; one that has not ended by then is cut."""
DEFAULT_FPS = 30.0
"""Frames per second for environments that do not say how fast they want to be seen."""
GIF_FPS = 20.0
GIF_SIDE = 400
"""Most pixels of a side of a GIF, which stores every picture nearly whole, unlike an mp4."""
GIF_COLOURS = 128
SMALLEST_SIDE = 160
"""Pixels of a side up to which smaller pictures are enlarged by a whole number."""

Frame = NDArray[np.uint8]
Write = Callable[[Frame], None]


def record(
    run: Run,
    out: Path,
    episodes: int = 1,
    seed: int = 0,
    which: str | None = None,
    callable_env: envs.MakeEnv | None = None,
) -> list[float]:
    """Films the run's best tested agent, or `which`, into `out` (.mp4 or .gif); returns its scores.

    It plays greedily.
    """
    if out.suffix.lower() not in (".mp4", ".gif"):
        raise UsageError(f"cannot film into {out}: the name must end in .mp4 or .gif")
    if not out.parent.is_dir():
        raise UsageError(f"cannot film into {out}: there is no directory {out.parent}")
    if episodes < 1:
        raise UsageError(f"cannot film {episodes} episodes; at least 1")
    checkpoint = run.checkpoint(which)
    with explained(run):
        env = _make(run, callable_env)
    try:
        fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
        with _film(out, fps) as write:
            return _play(env, run.config().env.id, checkpoint, episodes, seed, write)
    finally:
        envs.close(env)


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _make(run: Run, callable_env: envs.MakeEnv | None) -> envs.Env:
    if not _has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame complains of the missing screen
    config = run.config().env
    refusal = f"{config.id} cannot be filmed: it does not render to rgb_array"
    try:
        with warnings.catch_warnings():
            # Gymnasium warns of a render mode that is not supported; that is refused below.
            warnings.simplefilter("ignore")
            env = envs.make(config, callable_env, render_mode="rgb_array")
    except (UsageError, EnvError) as error:
        if "render_mode" not in str(error):
            raise
        if isinstance(error.__cause__, TypeError):
            raise UsageError(
                f"{config.id} takes no render_mode, so it cannot be filmed; give it that argument and pass "
                "it on"
            ) from error
        raise UsageError(f"{refusal} ({error})") from error
    modes = env.metadata.get("render_modes") or []
    if env.render_mode != "rgb_array" or "rgb_array" not in modes:
        envs.close(env)
        if "rgb_array" in modes:
            raise UsageError(
                f"{config.id} cannot be filmed: it was asked for render_mode='rgb_array' and has "
                f"{env.render_mode!r}; pass that argument on"
            )
        raise UsageError(f"{refusal} (its render modes: {', '.join(map(str, modes)) or 'none'})")
    return env


def _play(
    env: envs.Env, name: str, checkpoint: Checkpoint, episodes: int, seed: int, write: Write
) -> list[float]:
    agent = from_checkpoint(checkpoint, env, name)
    returns = []
    for episode in range(episodes):
        # The same starts, and the same luck, as an evaluation with this seed.
        obs, _ = env.reset(seed=trial_seed(seed, episode))
        agent = replace(agent, noise=action_stream(hash_seed(seed, TEST), 0, episode))
        total = 0.0
        write(_frame(env, name))
        for _ in range(MAX_FRAMES):
            obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
            total += reward_number(reward)
            write(_frame(env, name))
            if terminated or truncated:
                break
        returns.append(total)
    return returns


def _frame(env: envs.Env, name: str) -> Frame:
    try:
        with warnings.catch_warnings():
            if not _has_display():
                warnings.simplefilter("ignore")  # of the missing display, before the error that comes of it
            frame: Any = env.render()
    except Exception as error:  # of any graphics library
        why = (
            one_line(error)
            if isinstance(error, GymnasiumError)
            else f"{type(error).__name__}: {one_line(error)}"
        )
        raise UsageError(f"{name} cannot be filmed: {why}{_without_display()}") from error
    if not (isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3):
        given = f"shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise UsageError(f"{name} cannot be filmed: it renders {given}, not a picture of [height, width, 3]")
    if frame.dtype.kind == "f" and frame.max() <= 1:
        frame = frame * 255  # MinAtar's, for one
    small = max(1, SMALLEST_SIDE // min(frame.shape[:2]))
    picture: Frame = frame.astype(np.uint8, copy=False).repeat(small, axis=0).repeat(small, axis=1)
    return picture


def _without_display() -> str:
    """Say what to try where MuJoCo finds no display to draw on."""
    if _has_display() or "mujoco" not in sys.modules or os.environ.get("MUJOCO_GL"):
        return ""
    return "; there is no display here: set MUJOCO_GL=egl, or without a graphics card MUJOCO_GL=osmesa"


@contextmanager
def _film(out: Path, fps: float) -> Iterator[Write]:
    """Open a film for frames; it has its name once it is whole, and is gone when something fails."""
    temporary = out.with_name(f".{out.stem}.{os.getpid()}{out.suffix}")
    kind = _mp4 if out.suffix.lower() == ".mp4" else _gif
    try:
        with kind(temporary, fps) as write:
            yield write
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _mp4(path: Path, fps: float) -> Iterator[Write]:
    import imageio.v2 as imageio

    # One-pixel blocks switch off its own resizing; the frames are made even here.
    writer = imageio.get_writer(
        path, format="FFMPEG", mode="I", fps=fps, codec="libx264", quality=7, macro_block_size=1
    )
    try:
        yield lambda frame: writer.append_data(_even(frame))
    finally:
        writer.close()


def _even(frame: Frame) -> Frame:
    """Make both sides even, as H.264's colours want it; an odd edge is repeated."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


@contextmanager
def _gif(path: Path, fps: float) -> Iterator[Write]:
    from PIL import Image

    every = max(1, math.ceil(fps / GIF_FPS))
    images: list[Image.Image] = []
    seen = 0

    def write(frame: Frame) -> None:
        nonlocal seen
        if seen % every == 0:
            image = Image.fromarray(frame)
            image.thumbnail((GIF_SIDE, GIF_SIDE))
            images.append(image.quantize(GIF_COLOURS, dither=Image.Dither.NONE))
        seen += 1

    yield write
    milliseconds = max(20, round(1000 * every / fps))
    images[0].save(path, save_all=True, append_images=images[1:], duration=milliseconds, loop=0)
