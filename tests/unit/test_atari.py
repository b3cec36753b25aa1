"""Atari games: what an agent sees, what a film shows, and what is said when something is missing."""

import sys
from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from manyhands.collect.lane import Lane
from manyhands.config.resolve import merge, resolve
from manyhands.config.settings import Config
from manyhands.core.env_config import EnvConfig
from manyhands.core.errors import UsageError
from manyhands.core.trajectories import LIFE_LOST
from manyhands.envs import atari
from manyhands.envs.describe import describe
from manyhands.envs.make import make, start
from manyhands.runs.agent import judge
from manyhands.runs.plan import plan
from manyhands.runs.store import LAST
from manyhands.runs.training import train
from manyhands.runs.video import _frame, record

BREAKOUT = EnvConfig("BreakoutNoFrameskip-v4")
FIRE, RIGHT = 1, 2


def played(config: EnvConfig, seed: int, steps: int = 40) -> list[np.ndarray]:
    env = make(config)
    seen = [env.reset(seed=seed)[0]]
    seen += [env.step(step % 4)[0] for step in range(steps)]
    env.close()
    return seen


@pytest.mark.parametrize("env_id", ["ALE/Breakout-v5", "BreakoutNoFrameskip-v4"])
def test_a_seed_gives_the_same_game_again_even_with_sticky_actions(env_id: str) -> None:
    once, again, other = (played(EnvConfig(env_id), seed) for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(once, other, strict=True))


def test_pictures_are_stacked_with_nothing_before_the_first() -> None:
    seen = played(BREAKOUT, 1)
    assert seen[0].shape == (4, 84, 84)
    assert seen[0].dtype == np.uint8
    assert not seen[0][:3].any()
    for before, after in pairwise(seen):
        assert np.array_equal(before[1:], after[:3])


def test_lost_lives_are_told_and_the_game_goes_on() -> None:
    env = make(BREAKOUT)
    _, info = env.reset(seed=2)
    assert info["lives"] == 5
    lost, total, over = 0, 0, False
    while not over:  # without `fire` an agent that does nothing would wait for ever after its first life
        _, _, over, _, info = env.step(0)
        total += 1
        lost += info["life_lost"]
    assert lost == 5
    assert 30 < total < 1000


def test_versions_differ_in_how_sticky_they_are_and_arguments_win() -> None:
    assert make(EnvConfig("ALE/Pong-v5")).unwrapped.settings["repeat_action_probability"] == 0.25
    assert make(EnvConfig("PongNoFrameskip-v4")).unwrapped.settings["repeat_action_probability"] == 0
    chosen = make(EnvConfig("ALE/Pong-v5", {"sticky": 0.1, "frame_skip": 2, "noops": 0, "life_loss": False}))
    assert chosen.unwrapped.settings["repeat_action_probability"] == 0.1
    assert chosen.unwrapped.settings["frameskip"] == 2
    assert not describe(chosen).life_loss


def test_every_game_has_a_name() -> None:
    from ale_py import roms

    for name in ("MsPacman", "SpaceInvaders", "Breakout", "Qbert"):
        assert atari.rom_of(name, name) in roms.get_all_rom_ids()


def test_gymnasiums_checker_is_content() -> None:
    check_env(make(EnvConfig("BreakoutNoFrameskip-v4")), skip_render_check=True)


def test_a_film_shows_the_whole_screen_of_the_same_game() -> None:
    env, film = make(BREAKOUT), make(BREAKOUT, render_mode="rgb_array")
    assert isinstance(film, gymnasium.Env)
    env.reset(seed=3)
    film.reset(seed=3)
    for step in range(60):
        action = (FIRE, RIGHT, RIGHT, 3)[step % 4]
        here, there = env.step(action), film.step(action)
        assert np.array_equal(here[0], there[0])
        assert here[1] == there[1]
    picture = film.render()
    assert picture.shape == (224, 160, 3)
    # The screen that the agent saw, made small and grey, is that of the film.
    grey = picture[:210].mean(2)[::5, ::4]
    seen = here[0][-1]
    rows, columns = (np.linspace(0, 83, size).astype(int) for size in grey.shape)
    assert np.corrcoef(grey.ravel(), seen[np.ix_(rows, columns)].ravel())[0, 1] > 0.7


def test_minatar_forgets_the_game_before() -> None:
    env = make(EnvConfig("MinAtar/Breakout-v1"))

    def play(first: int) -> list[np.ndarray]:
        env.reset(seed=1)
        env.step(first)
        seen = [env.reset(seed=8)[0]]
        return seen + [env.step(step % 3)[0] for step in range(100)]

    assert all(np.array_equal(a, b) for a, b in zip(play(1), play(2), strict=True))


def test_films_of_small_boards_are_large_and_not_black() -> None:
    env = make(EnvConfig("MinAtar/Breakout-v1"), render_mode="rgb_array")
    env.reset(seed=1)
    picture = _frame(env, "MinAtar/Breakout-v1")
    assert picture.shape == (160, 160, 3)
    assert picture.max() > 100


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("ALE/Brakout-v5", "there is no Atari game 'Brakout'.*Breakout"),
        ("ALE/Breakout-v4", "Atari games are called ALE/Breakout-v5"),
        ("xyzNoFrameskip-v4", "there is no Atari game 'xyz'"),
    ],
)
def test_unknown_games_are_refused(env_id: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make(EnvConfig(env_id))


def test_wrong_conventions_are_refused() -> None:
    with pytest.raises(UsageError, match="sticky 2"):
        make(EnvConfig("ALE/Pong-v5", {"sticky": 2}))
    with pytest.raises(UsageError, match="does not accept"):
        make(EnvConfig("ALE/Pong-v5", {"colour": True}))


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [("ALE/Pong-v5", "ale_py", "atari"), ("MinAtar/Asterix-v1", "minatar.gym", "minatar")],
)
def test_a_missing_extra_is_named(
    env_id: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gymnasium, "registry", {})
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"pip install .* '\.\[{extra}\]'"):
        make(EnvConfig(env_id))


def test_dqn_refuses_actions_that_are_no_choice() -> None:
    with pytest.raises(
        UsageError, match=r"dqn needs one choice .* and Pendulum-v1 has Box\(1\); try --algo ppo"
    ):
        plan(resolve("Pendulum-v1", "dqn"))


SMALL = {
    "env": {"id": "BreakoutNoFrameskip-v4"},
    "net": {"hidden": [32], "activation": "relu", "filters": "small"},
    "collect": {"shards": 2, "lanes": 2, "steps": 16},
    "run": {"steps": 256, "until": "steps", "workers": 2, "test_every": 10**9, "test_episodes": 1},
}


def test_any_number_of_workers_gives_the_same_weights(tmp_path: Path) -> None:
    """Pictures are drawn in a thread of their own; that must change no bit either."""
    more = {"memory": 400, "warmup": 64, "batch": 8, "n_step": 3, "prioritised": True}
    vectors = []
    for workers in (0, 2):
        plain = merge(SMALL, {"run": {"algo": "dqn", "workers": workers}, "algo": more})
        run = train(Config.from_plain(plain), directory=tmp_path / str(workers))
        vectors.append(run.checkpoint(LAST).weights.vector)
    assert np.array_equal(*vectors)


@pytest.mark.parametrize("algo", ["dqn", "apex", "ppo", "impala"])
def test_trains_from_pixels_judges_whole_games_and_films_them(algo: str, tmp_path: Path) -> None:
    more = {"memory": 400, "warmup": 64, "epsilon_test": 0.5} if algo in ("dqn", "apex") else {}
    config = Config.from_plain(merge(SMALL, {"run": {"algo": algo}, "algo": {"reward_clip": 1.0, **more}}))
    assert LIFE_LOST in plan(config).task.layout.columns
    run = train(config, directory=tmp_path / "run")
    result = judge(run, episodes=1, seed=1, which=LAST)
    assert result.returns[0] >= 0
    record(run, tmp_path / "film.mp4")
    assert (tmp_path / "film.mp4").stat().st_size > 1000


def test_a_later_game_begins_alike_whether_or_not_those_before_were_played() -> None:
    config = resolve("BreakoutNoFrameskip-v4", "dqn", None, ({"run": {"seed": 4}},))
    task = plan(config).task
    played_on, jumped = (Lane(task, 3, lambda: make(BREAKOUT)) for _ in range(2))
    seeds, starts = set(), []
    for episode in range(18):  # past the second seed
        starts.append(played_on.begin(episode).copy())
        seeds.add(played_on.seed)
        for step in range(8):
            starts[-1] = np.concatenate([starts[-1], played_on.env.step(step % 4)[0]])
    assert len(seeds) == 2
    for episode in (5, 17, 2):
        again = jumped.begin(episode).copy()
        for step in range(8):
            again = np.concatenate([again, jumped.env.step(step % 4)[0]])
        assert np.array_equal(again, starts[episode])
    assert len({start.tobytes() for start in starts}) > 5


def test_games_that_play_at_once_play_the_same() -> None:
    alone, together = ([make(BREAKOUT) for _ in range(3)] for _ in range(2))
    for group in (alone, together):
        for number, env in enumerate(group):
            env.reset(seed=number)
    for step in range(30):
        actions = [(step + number) % 4 for number in range(3)]
        start(together, actions, lambda i: None)
        for one, other, action in zip(alone, together, actions, strict=True):
            here, there = one.step(action), other.step(action)
            assert np.array_equal(here[0], there[0])
            assert here[1:] == there[1:]
