"""An agent acts on one observation or on a batch of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from short_runs import short_run
from small_envs import Target

from manyhands.core.errors import UsageError
from manyhands.envs.codec import split_batch
from manyhands.runs.agent import Agent


def observations(seen: str, count: int) -> list[Any]:
    env = Target(seen)
    return [env.reset(seed=seed)[0] for seed in range(count)]


def batch_of(space: spaces.Space[Any], each: list[Any]) -> Any:
    """As a vector environment of Gymnasium hands them over."""
    if isinstance(space, spaces.Dict):
        return {key: batch_of(part, [one[key] for one in each]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batch_of(part, [one[i] for one in each]) for i, part in enumerate(space.spaces))
    return np.stack([np.asarray(one) for one in each])


SEEN = ("box", "discrete", "multibinary", "multidiscrete", "dict", "tuple", "image")
ASKED = ("multidiscrete", "multibinary", "box")


@pytest.mark.parametrize(
    ("seen", "asked"), [*((seen, "discrete") for seen in SEEN), *(("box", asked) for asked in ASKED)]
)
def test_a_batch_gets_the_actions_that_its_observations_get(tmp_path: Path, seen: str, asked: str) -> None:
    run = short_run(tmp_path / "run", lambda: Target(seen, asked), updates=1)
    agent, env = run.agent(), Target(seen, asked)
    each = observations(seen, 5)
    single = [agent.act(obs) for obs in each]
    assert all(env.action_space.contains(action) for action in single)
    for batch in (batch_of(env.observation_space, each), each):
        together = agent.act(batch)
        assert isinstance(together, np.ndarray)
        assert together.shape == (5, *(env.action_space.shape or ()))
        np.testing.assert_allclose(together, np.array(single), rtol=1e-5, atol=1e-6)
    sampled = agent.act(each, sample=True)
    assert sampled.shape == together.shape


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    return short_run(tmp_path_factory.mktemp("box") / "run", Target, updates=1).agent()


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(3, np.float32),
        np.zeros((2, 3), np.float32),
        np.zeros((2, 2, 2), np.float32),
        np.zeros((0, 2), np.float32),
        np.array(1.0),
        [],
        [[1.0], [1.0, 2.0]],
        "text",
        None,
        {"a": 1},
    ],
)
def test_what_is_neither_is_refused_in_one_line(agent: Agent, wrong: Any) -> None:
    said_as = r"one observation of Box.*or a batch|a batch of no observations"
    with pytest.raises(UsageError, match=said_as) as said:
        agent.act(wrong)
    assert "\n" not in str(said.value)


def test_parts_of_a_batch_must_be_as_many() -> None:
    space = spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Discrete(3)})
    good = {"a": np.zeros((3, 2), np.float32), "b": np.array([0, 1, 2])}
    split = split_batch(space, good)
    assert split is not None
    assert [one["b"] for one in split] == [0, 1, 2]
    assert split_batch(space, {**good, "b": np.array([0, 1])}) is None
    assert split_batch(space, {**good, "b": 1}) is None
    assert split_batch(space, {"a": good["a"][0], "b": 1}) is None
