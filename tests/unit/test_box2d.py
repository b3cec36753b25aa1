"""Our lander is Gymnasium's, to the last bit, and Box2D's environments do not grow."""

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.envs.box2d.lunar_lander import LunarLander, heuristic

from manyhands.core.env_config import EnvConfig
from manyhands.envs import make
from manyhands.envs.box2d import Lander

EPISODES = 60


def test_lunar_lander_is_ours_and_the_other_kinds_are_played_by_gymnasiums_code() -> None:
    ours = make.make(EnvConfig("LunarLander-v3")).unwrapped
    assert isinstance(ours, Lander)
    assert ours.brief
    for kwargs in ({"continuous": True}, {"enable_wind": True}, {"render_mode": "rgb_array"}):
        other = make.make(EnvConfig("LunarLander-v3", kwargs)).unwrapped
        assert isinstance(other, Lander)
        assert not other.brief


def test_another_version_of_gymnasiums_lander_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.envs.box2d._is_known", lambda: False)
    assert type(make.make(EnvConfig("LunarLander-v3")).unwrapped) is LunarLander


def test_every_number_of_an_episode_is_the_same() -> None:
    """Random play and Gymnasium's own pilot, which lands; seeded, and going on without a seed."""
    theirs = gymnasium.make("LunarLander-v3").unwrapped
    ours = make.make(EnvConfig("LunarLander-v3")).unwrapped
    rng = np.random.default_rng(0)
    for episode in range(EPISODES):
        seed = None if episode % 3 else episode
        expected, _ = theirs.reset(seed=seed)
        found, _ = ours.reset(seed=seed)
        for _ in range(1000):
            assert found.tobytes() == expected.tobytes()
            action = int(rng.integers(4)) if episode % 2 else int(heuristic(theirs, expected))
            expected, *outcome = theirs.step(action)
            if episode % 3:
                make.start([ours], [action], lambda i: None)
            found, *ours_outcome = ours.step(action)
            assert ours_outcome == outcome
            if outcome[1]:
                break


def test_a_lander_that_cannot_start_fails_in_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    landers = [make.make(EnvConfig("LunarLander-v3")) for _ in range(3)]
    for seed, lander in enumerate(landers):
        lander.reset(seed=seed)

    def broken(action: int) -> None:
        raise ArithmeticError("broken")

    monkeypatch.setattr(landers[1].unwrapped, "start", broken)
    make.start(landers, [0, 0, 0], lambda i: None)
    for lander in (landers[0], landers[2]):
        assert len(lander.step(0)) == 5
    with pytest.raises(ArithmeticError):
        landers[1].step(0)


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3"])
def test_episodes_leave_no_memory_behind(env_id: str) -> None:
    """Box2D alone would leave 1.6 kB for each of a lander's."""
    env = make.make(EnvConfig(env_id))
    for seed in range(300):
        env.reset(seed=seed)
    before = resident()
    for seed in range(1000):
        env.reset(seed=seed)
    assert resident() - before < 400_000


def resident() -> int:
    return psutil.Process().memory_info().rss
