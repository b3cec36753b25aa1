"""Atari games through ALE's native vector environment: grey, 84 x 84, four pictures stacked.

Scores are the game's own. What learning makes of them is settled elsewhere: rewards are cut by
`algo.reward_clip`, and a lost life counts as an end where `life_loss` is set, though the game goes on.
"""

import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from manyhands.core.arrays import Array
from manyhands.core.errors import EnvError, UsageError, did_you_mean, missing_extra

SIDE = 84
STACK = 4
SCREEN = (210, 160)
STRIP = 14
"""Pixels below a film's picture, for the score."""
FRAMES = 108_000
"""Most frames of a game: half an hour at 60 a second, after which it is cut (Machado et al. 2018)."""
SEEDS = 2**31
EPISODES_PER_SEED = 16
"""Games for each seed: ALE takes 150 ms for a new seed and 10 for a new game. From a seed on, it is the
number of games that decides how the next one begins, if nothing else is left to chance."""
FIRE = 1
"""The index of the fire button among the actions of every game that has it."""


def make(env_id: str, arguments: dict[str, Any]) -> "AtariEnv":
    """Make a game; `ALE/Breakout-v5` repeats actions at probability 0.25, `BreakoutNoFrameskip-v4` never."""
    found = re.fullmatch(r"ALE/(\w+)-v5|(\w+)NoFrameskip-v4", env_id)
    if not found:
        raise UsageError(f"there is no environment {env_id!r}; Atari games are called ALE/Breakout-v5")
    rom = rom_of(found[1] or found[2], env_id)
    try:
        return AtariEnv(rom, **{"sticky": 0.25 if found[1] else 0.0, **arguments})
    except TypeError as error:
        raise UsageError(f"{env_id} does not accept {arguments}: {error}") from error


def rom_of(game: str, env_id: str) -> str:
    """Return ALE's name of a game: `MsPacman` is called `ms_pacman` there."""
    try:
        from ale_py import roms
    except ModuleNotFoundError as error:
        raise missing_extra(env_id, error.name) from error
    names = {"".join(part.title() for part in rom.split("_")): rom for rom in roms.get_all_rom_ids()}
    if game not in names:
        hint = did_you_mean(game, names) or "; there are Breakout, Pong and a hundred more"
        raise UsageError(f"there is no Atari game {game!r}{hint}")
    return names[game]


class AtariEnv(gymnasium.Env[Array, int]):
    """One game. A step is `frame_skip` frames, of which the last two are merged against flickering."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 (Gymnasium's)
    starts = True

    def __init__(
        self,
        rom: str,
        sticky: float = 0.0,
        frame_skip: int = 4,
        noops: int = 30,
        fire: bool = True,
        life_loss: bool = True,
        all_actions: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """
        sticky: probability that the emulator repeats the last action instead.
        noops: a game begins after up to this many frames of doing nothing.
        fire: in games with that button it is pressed at the start and, instead of the agent's next action,
        after a lost life. Some games would otherwise wait for ever.
        life_loss: learning treats a lost life as an end.
        all_actions: all 18, not only those that mean something in this game.
        """
        if not 0 <= sticky < 1 or frame_skip < 1 or noops < 0:
            raise UsageError(
                f"sticky {sticky}, frame_skip {frame_skip}, noops {noops}: "
                "they must be in [0, 1), 1 or more, 0 or more"
            )
        self.render_mode, self.life_loss, self.stack = render_mode, life_loss, STACK
        self.settings = {
            "game": rom,
            "num_envs": 1,
            "num_threads": 1,
            "repeat_action_probability": sticky,
            "frameskip": frame_skip,
            "noop_max": noops,
            "use_fire_reset": fire,
            "full_action_space": all_actions,
            "reward_clipping": False,
            "max_num_frames_per_episode": FRAMES,
        }
        self.metadata = {**self.metadata, "render_fps": 60 // frame_skip}
        self.games = [_vector(self.settings, SIDE, SIDE, STACK, True)]
        if render_mode == "rgb_array":
            # A twin of the same seed that plays the same actions, and shows the whole screen in colour.
            self.games.append(_vector(self.settings, *SCREEN, 1, False))
        self.observation_space = spaces.Box(0, 255, (STACK, SIDE, SIDE), np.uint8)
        self.action_space = self.games[0].single_action_space
        self.action = np.zeros(1, np.int32)
        self.fire = fire and self.games[0].ale.get_action_set()[FIRE].name == "FIRE"
        self.fires_next, self.started = False, False
        self.episodes_per_seed = 1 if sticky else EPISODES_PER_SEED
        self.lives, self.score = 0, 0.0
        self.picture = np.zeros((*SCREEN, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if self.started:
            self.step(0)
        seeds = None if seed is None else np.array([seed % SEEDS])
        obs, info = self.games[0].reset(seed=seeds)
        if len(self.games) > 1:
            self.picture = self.games[1].reset(seed=seeds)[0][0, 0]
        self.lives, self.score, self.fires_next = int(info["lives"][0]), 0.0, False
        return obs[0], {"lives": self.lives}

    def start(self, action: int) -> None:
        """Begin a step in the game's own thread, so that several games can play at once; `step` ends it."""
        self.action[0] = FIRE if self.fires_next else action
        for game in self.games:
            game.send(self.action)
        self.started = True

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if not self.started:
            self.start(action)
        self.started = False
        obs, reward, terminated, truncated, info = self.games[0].recv()
        if len(self.games) > 1:
            self.picture = self.games[1].recv()[0][0, 0]
        lives, before = int(info["lives"][0]), self.lives
        self.lives, self.fires_next = lives, self.fire and lives < before
        amount = float(reward[0])
        self.score += amount
        lost = {"lives": lives, "life_lost": lives < before}
        return obs[0], amount, bool(terminated[0]), bool(truncated[0]), lost

    def render(self) -> Array:
        """Return the whole screen, with the score below."""
        from PIL import Image, ImageDraw

        height, width = SCREEN
        image = Image.new("RGB", (width, height + STRIP))
        image.paste(Image.fromarray(self.picture))
        ImageDraw.Draw(image).text((4, height + 1), f"score {self.score:g}   lives {self.lives}", "white")
        return np.asarray(image)

    def close(self) -> None:
        """Let go of the game, which ALE then frees."""
        self.games = []


def _vector(settings: dict[str, Any], height: int, width: int, stack: int, grey: bool) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    try:
        return AtariVectorEnv(**settings, img_height=height, img_width=width, stack_num=stack, grayscale=grey)
    except Exception as error:
        raise EnvError(f"ALE cannot play {settings['game']}: {error}") from error
